#include "roofline.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define HUGE_PAGE   ((size_t)2 << 20)
#define MAX_THREADS 64u
#define MIN_NS      60000000 /* a measurement lasts so long at least */
#define TRIES       3
/* Likewise a burst. */
#define BURST_NS      1000000
#define BURST_READ_NS 4000000

static clockid_t the_clock = CLOCK_MONOTONIC;

void bench_use_cpu_clock(void)
{
    the_clock = CLOCK_THREAD_CPUTIME_ID;
}

int64_t bench_now_ns(void)
{
    struct timespec t;

    clock_gettime(the_clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ------------------------------------------------------------------ memory */

static size_t whole_pages(size_t n_bytes)
{
    return (n_bytes / HUGE_PAGE + 1) * HUGE_PAGE;
}

void *bench_alloc(size_t n_bytes)
{
    const size_t n = whole_pages(n_bytes);
    char        *p = mmap(NULL, n + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t       skip;

    if (p == MAP_FAILED) {
        fprintf(stderr, "bench: no %zu bytes of memory\n", n_bytes);
        exit(1);
    }
    skip = HUGE_PAGE - (size_t)(uintptr_t)p % HUGE_PAGE; /* 1..HUGE_PAGE */
    if (skip < HUGE_PAGE)
        munmap(p, skip);
    else
        skip = 0;
    munmap(p + skip + n, HUGE_PAGE - skip);
    madvise(p + skip, n, MADV_HUGEPAGE); /* where there are none it works as well */
    return p + skip;
}

void bench_free(void *p, size_t n_bytes)
{
    if (p)
        munmap(p, whole_pages(n_bytes));
}

/* ------------------------------------------------------------------ kernels */

/* `rounds` times fourteen independent chains of multiply-adds, which hide their latency and stay in registers: named variables,
 * since a compiler may keep an array in memory, with another start each, since it makes equal ones one. Returns multiply-adds per round. */
typedef uint64_t (*fma_fn)(uint64_t rounds, volatile float *sink);

#define CHAINS(type, init, step, lane0)                                                            \
    type a0 = init(0), a1 = init(1), a2 = init(2), a3 = init(3), a4 = init(4), a5 = init(5);       \
    type a6 = init(6), a7 = init(7), a8 = init(8), a9 = init(9), b0 = init(10), b1 = init(11);     \
    type b2 = init(12), b3 = init(13);                                                             \
    for (uint64_t r = 0; r < rounds; r++) {                                                        \
        a0 = step(a0); a1 = step(a1); a2 = step(a2); a3 = step(a3); a4 = step(a4);                 \
        a5 = step(a5); a6 = step(a6); a7 = step(a7); a8 = step(a8); a9 = step(a9);                 \
        b0 = step(b0); b1 = step(b1); b2 = step(b2); b3 = step(b3);                                \
    }                                                                                              \
    *sink += lane0(a0) + lane0(a1) + lane0(a2) + lane0(a3) + lane0(a4) + lane0(a5) + lane0(a6) +   \
             lane0(a7) + lane0(a8) + lane0(a9) + lane0(b0) + lane0(b1) + lane0(b2) + lane0(b3)
enum { N_CHAINS = 14 };

typedef float vec4 __attribute__((vector_size(16)));

#if defined(__aarch64__)
static uint64_t fma_neon(uint64_t rounds, volatile float *sink)
{
    const float32x4_t x = vdupq_n_f32(1.0f + 1e-7f);
#define STEP(a)  vfmaq_f32(x, a, x)
#define LANE0(a) vgetq_lane_f32(a, 0)
    CHAINS(float32x4_t, vdupq_n_f32, STEP, LANE0);
#undef STEP
#undef LANE0
    return N_CHAINS * 4;
}
#else
static uint64_t fma_plain(uint64_t rounds, volatile float *sink)
{
    const vec4 x = {1.0f + 1e-7f, 1.0f, 1.0f, 1.0f};
#define STEP(a)  ((a) * x + x)
#define LANE0(a) ((a)[0])
#define INIT(i)  {i, i, i, i}
    CHAINS(vec4, INIT, STEP, LANE0);
#undef INIT
#undef STEP
#undef LANE0
    return N_CHAINS * 4;
}
#endif

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static uint64_t fma_avx2(uint64_t rounds, volatile float *sink)
{
    const __m256 x = _mm256_set1_ps(1.0f + 1e-7f);
#define STEP(a) _mm256_fmadd_ps(a, x, x)
    CHAINS(__m256, _mm256_set1_ps, STEP, _mm256_cvtss_f32);
#undef STEP
    return N_CHAINS * 8;
}

__attribute__((target("avx512f"))) static uint64_t fma_avx512(uint64_t rounds, volatile float *sink)
{
    const __m512 x = _mm512_set1_ps(1.0f + 1e-7f);
#define STEP(a) _mm512_fmadd_ps(a, x, x)
    CHAINS(__m512, _mm512_set1_ps, STEP, _mm512_cvtss_f32);
#undef STEP
    return N_CHAINS * 16;
}
#endif

/* int8 products, four to a lane, as roofline_fma does fp32. */
#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vnni"))) static uint64_t dot8(uint64_t rounds, volatile float *sink)
{
    const __m512i x = _mm512_set1_epi8(1);
#define STEP(a)  _mm512_dpbusd_epi32(a, x, x)
#define LANE0(a) (float)_mm_cvtsi128_si32(_mm512_castsi512_si128(a))
    CHAINS(__m512i, _mm512_set1_epi32, STEP, LANE0);
#undef STEP
#undef LANE0
    return N_CHAINS * 64;
}
static fma_fn best_dot8(void)
{
    return __builtin_cpu_supports("avx512vnni") ? dot8 : NULL;
}
#elif defined(__ARM_FEATURE_DOTPROD)
static uint64_t dot8(uint64_t rounds, volatile float *sink)
{
    const int8x16_t x = vdupq_n_s8(1);
#define STEP(a)  vdotq_s32(a, x, x)
#define LANE0(a) (float)vgetq_lane_s32(a, 0)
    CHAINS(int32x4_t, vdupq_n_s32, STEP, LANE0);
#undef STEP
#undef LANE0
    return N_CHAINS * 16;
}
static fma_fn best_dot8(void)
{
    return dot8;
}
#else
static fma_fn best_dot8(void)
{
    return NULL;
}
#endif

/* At most that many lanes. */
static fma_fn best_fma(uint32_t n_lanes, const char **name)
{
#if defined(__aarch64__)
    *name = n_lanes ? "NEON" : "";
    return fma_neon;
#else
#if defined(__x86_64__)
    if (n_lanes >= 16 && __builtin_cpu_supports("avx512f")) {
        *name = "AVX-512";
        return fma_avx512;
    }
    if (n_lanes >= 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        *name = "AVX2 + FMA";
        return fma_avx2;
    }
#endif
    *name = n_lanes ? "128-bit vectors" : "";
    return fma_plain;
#endif
}

const char *roofline_isa(void)
{
    const char *name;

    (void)best_fma(16, &name);
    return name;
}

/* 64-byte vectors; the compiler splits them as the machine needs. Where the widest registers are not those that it may use, a cache
 * would look slower than it is. */
#define SUM_WORDS(p, n)                                                                            \
    typedef uint64_t v8 __attribute__((vector_size(64), aligned(8)));                              \
    v8       a = {0};                                                                              \
    v8       b = {0};                                                                              \
    uint64_t s = 0;                                                                                \
                                                                                                   \
    for (size_t i = 0; i + 16 <= n; i += 16) {                                                     \
        a += *(const v8 *)(p + i);                                                                 \
        b += *(const v8 *)(p + i + 8);                                                             \
    }                                                                                              \
    a += b;                                                                                        \
    for (int i = 0; i < 8; i++)                                                                    \
        s += a[i];                                                                                 \
    return s

static uint64_t sum_words_plain(const uint64_t *p, size_t n)
{
    SUM_WORDS(p, n);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static uint64_t sum_words_avx512(const uint64_t *p, size_t n)
{
    SUM_WORDS(p, n);
}

static uint64_t sum_words(const uint64_t *p, size_t n)
{
    return __builtin_cpu_supports("avx512f") ? sum_words_avx512(p, n) : sum_words_plain(p, n);
}
#else
static uint64_t sum_words(const uint64_t *p, size_t n)
{
    return sum_words_plain(p, n);
}
#endif

/* ------------------------------------------------------------------ bursts */

/* What a loop reads or computes; words NULL = multiply-adds. Reading goes on where it stopped. */
typedef struct load {
    fma_fn    fma;
    uint64_t *words;
    size_t    n_words;
    size_t    n_bytes; /* of the buffer */
    int       stays;   /* in a cache, where it must be fetched first */
} load;

static load loads[ROOFLINE_N];

typedef struct job {
    atomic_uint      *n_missing; /* threads that are not there yet */
    const load       *load;
    size_t            first, n_words; /* of the words, this thread's share */
    int64_t           least_ns;
    double            done; /* bytes or multiply-adds */
    int64_t           ns;
    volatile float    sink;
    volatile uint64_t sum;
} job;

#define STEP_WORDS  ((size_t)128 << 10) /* between looks at the clock, which is a system call if it is the processor's */
#define STEP_ROUNDS 4000u
#define WARM_NS     100000 /* until the wide units run at their full rate */

/* Round and round through this thread's words, or rounds of multiply-adds. */
static void run_for(job *j, size_t *at, int64_t least_ns)
{
    const int64_t start = bench_now_ns();

    j->done = 0;
    do {
        for (size_t k = 0; j->load->words && k < STEP_WORDS;) {
            const size_t left = j->n_words - *at;
            const size_t n = left < STEP_WORDS - k ? left : STEP_WORDS - k;

            j->sum = j->sum + sum_words(j->load->words + j->first + *at, n);
            *at = (*at + n) % j->n_words;
            k += n;
        }
        if (j->load->words)
            j->done += (double)(STEP_WORDS * 8);
        else
            j->done += (double)(j->load->fma(STEP_ROUNDS, &j->sink) * STEP_ROUNDS);
        j->ns = bench_now_ns() - start;
    } while (j->ns < least_ns);
}

/* Where the next burst through a buffer that no cache holds goes on. */
static size_t next_word;

static void *work(void *arg)
{
    job   *j = arg;
    size_t at = j->load->stays || !j->n_words ? 0 : next_word % j->n_words;

    run_for(j, &at, j->load->words ? 0 : WARM_NS);
    if (j->load->stays)
        for (size_t i = 0; i < j->n_words; i += STEP_WORDS)
            run_for(j, &at, 0);
    atomic_fetch_sub(j->n_missing, 1);
    while (atomic_load(j->n_missing) > 0) /* spinning: those who sleep start late */
        sched_yield();
    run_for(j, &at, j->least_ns);
    return NULL;
}

/* Sum of the threads' rates; each thread has its own share of the words. */
static double run(const load *l, uint32_t n_threads, int64_t least_ns)
{
    atomic_uint      n_missing = n_threads;
    pthread_t        threads[MAX_THREADS];
    static const job none;
    job              jobs[MAX_THREADS];
    double           rate = 0;

    for (uint32_t i = 0; i < n_threads; i++) {
        const size_t share = l->n_words / n_threads;

        memcpy(&jobs[i], &none, sizeof none);
        jobs[i].n_missing = &n_missing;
        jobs[i].load = l;
        jobs[i].first = i * share;
        jobs[i].n_words = share;
        jobs[i].least_ns = least_ns;
        if (i + 1 < n_threads && pthread_create(&threads[i], NULL, work, &jobs[i]) != 0)
            exit(1); /* the others wait for it for ever */
    }
    work(&jobs[n_threads - 1]);
    for (uint32_t i = 0; i + 1 < n_threads; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < n_threads; i++)
        rate += jobs[i].done * 1e9 / (double)jobs[i].ns;
    next_word += (size_t)(jobs[0].done / 8);
    return rate;
}

static double best_of(const load *l, uint32_t n_threads)
{
    double best = 0;

    if (n_threads == 0 || n_threads > MAX_THREADS || (!l->fma && !l->words))
        return 0;
    for (int i = 0; i < (l->fma ? 4 : 1) * TRIES; i++) { /* registers are quick to measure */
        const double r = run(l, n_threads, MIN_NS);

        best = r > best ? r : best;
    }
    return best;
}

static load load_of_bytes(size_t n_bytes, int stays)
{
    const size_t n = (n_bytes + 1023) / 1024 * 1024;
    load         l = {.words = bench_alloc(n), .n_words = n / 8, .n_bytes = n, .stays = stays};

    memset(l.words, 1, n); /* so that every page is its own */
    return l;
}

void roofline_open(size_t memory_bytes)
{
    const char *name;

    loads[ROOFLINE_FMA].fma = best_fma(16, &name);
    loads[ROOFLINE_FMA_AVX2].fma = best_fma(8, &name);
    loads[ROOFLINE_DOT8].fma = best_dot8();
    loads[ROOFLINE_READ] = load_of_bytes(memory_bytes, 0);
    loads[ROOFLINE_L2] = load_of_bytes((size_t)512 << 10, 1);
    loads[ROOFLINE_L3] = load_of_bytes((size_t)16 << 20, 1);
}

void roofline_close(void)
{
    for (size_t i = 0; i < ROOFLINE_N; i++) {
        bench_free(loads[i].words, loads[i].n_bytes);
        loads[i] = (load){.words = NULL};
    }
}

double roofline_best(roofline_kind kind, uint32_t n_threads)
{
    return best_of(&loads[kind], n_threads);
}

double roofline_burst(roofline_kind kind, uint32_t n_threads)
{
    return run(&loads[kind], n_threads, kind == ROOFLINE_READ ? BURST_READ_NS : BURST_NS);
}

double roofline_read(size_t n_bytes, uint32_t n_threads)
{
    load         l = load_of_bytes(n_bytes, 0);
    const double r = best_of(&l, n_threads);

    bench_free(l.words, l.n_bytes);
    return r;
}

double roofline_copy(size_t n_bytes)
{
    char  *from = bench_alloc(n_bytes);
    char  *to = bench_alloc(n_bytes);
    double best = 0;

    memset(from, 1, n_bytes);
    memset(to, 2, n_bytes);
    for (int i = 0; i < TRIES; i++) {
        const int64_t start = bench_now_ns();
        int64_t       ns;
        double        done = 0;

        do {
            memcpy(to, from, n_bytes);
            __asm__ volatile("" : : "r"(to) : "memory");
            done += (double)n_bytes;
            ns = bench_now_ns() - start;
        } while (ns < MIN_NS);
        best = done * 1e9 / (double)ns > best ? done * 1e9 / (double)ns : best;
    }
    bench_free(from, n_bytes);
    bench_free(to, n_bytes);
    return best;
}

double roofline_fma(uint32_t n_threads)
{
    const char *name;
    const load  l = {.fma = best_fma(16, &name)};

    return best_of(&l, n_threads);
}
