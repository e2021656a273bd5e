#include "roofline.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MAX_THREADS 64u
#define MIN_NS      60000000 /* a measurement lasts so long at least */
#define TRIES       3

int64_t bench_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ------------------------------------------------------------------ kernels */

/* `rounds` times ten independent chains of multiply-adds, which hide their latency and stay in registers: named variables,
 * since a compiler may keep an array in memory. Returns multiply-adds per round. */
typedef uint64_t (*fma_fn)(uint64_t rounds, volatile float *sink);

#define CHAINS(type, zero, step, lane0)                                                            \
    type a0 = zero, a1 = zero, a2 = zero, a3 = zero, a4 = zero;                                    \
    type a5 = zero, a6 = zero, a7 = zero, a8 = zero, a9 = zero;                                    \
    for (uint64_t r = 0; r < rounds; r++) {                                                        \
        a0 = step(a0); a1 = step(a1); a2 = step(a2); a3 = step(a3); a4 = step(a4);                 \
        a5 = step(a5); a6 = step(a6); a7 = step(a7); a8 = step(a8); a9 = step(a9);                 \
    }                                                                                              \
    *sink += lane0(a0) + lane0(a1) + lane0(a2) + lane0(a3) + lane0(a4) + lane0(a5) + lane0(a6) +   \
             lane0(a7) + lane0(a8) + lane0(a9)

typedef float vec4 __attribute__((vector_size(16)));

static uint64_t fma_plain(uint64_t rounds, volatile float *sink)
{
    const vec4 x = {1.0f + 1e-7f, 1.0f, 1.0f, 1.0f};
    const vec4 zero = {0};
#define STEP(a)  ((a) * x + x)
#define LANE0(a) ((a)[0])
    CHAINS(vec4, zero, STEP, LANE0);
#undef STEP
#undef LANE0
    return 10 * 4;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static uint64_t fma_avx2(uint64_t rounds, volatile float *sink)
{
    const __m256 x = _mm256_set1_ps(1.0f + 1e-7f);
#define STEP(a) _mm256_fmadd_ps(a, x, x)
    CHAINS(__m256, _mm256_setzero_ps(), STEP, _mm256_cvtss_f32);
#undef STEP
    return 10 * 8;
}

__attribute__((target("avx512f"))) static uint64_t fma_avx512(uint64_t rounds, volatile float *sink)
{
    const __m512 x = _mm512_set1_ps(1.0f + 1e-7f);
#define STEP(a) _mm512_fmadd_ps(a, x, x)
    CHAINS(__m512, _mm512_setzero_ps(), STEP, _mm512_cvtss_f32);
#undef STEP
    return 10 * 16;
}
#endif

static fma_fn best_fma(const char **name)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        *name = "AVX-512";
        return fma_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        *name = "AVX2 + FMA";
        return fma_avx2;
    }
#endif
    *name = "128-bit vectors";
    return fma_plain;
}

const char *roofline_isa(void)
{
    const char *name;

    (void)best_fma(&name);
    return name;
}

/* 64-byte vectors; the compiler splits them as the machine needs. */
static uint64_t sum_words(const uint64_t *p, size_t n)
{
    typedef uint64_t v8 __attribute__((vector_size(64), aligned(8)));
    v8       a = {0};
    v8       b = {0};
    uint64_t s = 0;

    for (size_t i = 0; i + 16 <= n; i += 16) {
        a += *(const v8 *)(p + i);
        b += *(const v8 *)(p + i + 8);
    }
    a += b;
    for (int i = 0; i < 8; i++)
        s += a[i];
    return s;
}

/* ------------------------------------------------------------------ threads */

typedef struct job {
    pthread_barrier_t *gate;
    const uint64_t    *words; /* NULL = multiply-adds */
    size_t             n_words;
    double             done;  /* bytes or multiply-adds */
    int64_t            ns;
    volatile float     sink;
    volatile uint64_t  sum;
} job;

static void *work(void *arg)
{
    job        *j = arg;
    const char *name;
    fma_fn      fma = best_fma(&name);
    int64_t     start;

    pthread_barrier_wait(j->gate);
    start = bench_now_ns();
    do {
        if (j->words) {
            j->sum = j->sum + sum_words(j->words, j->n_words);
            j->done += (double)(j->n_words * 8);
        } else {
            j->done += (double)(fma(200000, &j->sink) * 200000);
        }
        j->ns = bench_now_ns() - start;
    } while (j->ns < MIN_NS);
    return NULL;
}

/* Sum of the threads' rates; each thread has its own share of the words. */
static double run(const uint64_t *words, size_t n_words, uint32_t n_threads)
{
    pthread_barrier_t gate;
    pthread_t         threads[MAX_THREADS];
    static const job  none;
    job               jobs[MAX_THREADS];
    double            rate = 0;

    if (pthread_barrier_init(&gate, NULL, n_threads) != 0)
        return 0;
    for (uint32_t i = 0; i < n_threads; i++) {
        const size_t share = n_words / n_threads;

        memcpy(&jobs[i], &none, sizeof none);
        jobs[i].gate = &gate;
        jobs[i].words = words ? words + i * share : NULL;
        jobs[i].n_words = share;
        if (i + 1 < n_threads && pthread_create(&threads[i], NULL, work, &jobs[i]) != 0)
            exit(1); /* the others wait at the gate for ever */
    }
    work(&jobs[n_threads - 1]);
    for (uint32_t i = 0; i + 1 < n_threads; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&gate);
    for (uint32_t i = 0; i < n_threads; i++)
        rate += jobs[i].done * 1e9 / (double)jobs[i].ns;
    return rate;
}

static double best_of(const uint64_t *words, size_t n_words, uint32_t n_threads)
{
    double best = 0;

    if (n_threads == 0 || n_threads > MAX_THREADS)
        return 0;
    for (int i = 0; i < TRIES; i++) {
        const double r = run(words, n_words, n_threads);

        best = r > best ? r : best;
    }
    return best;
}

double roofline_read(size_t n_bytes, uint32_t n_threads)
{
    const size_t n = (n_bytes + 1023) / 1024 * 1024;
    uint64_t    *words = aligned_alloc(64, n);
    double       r;

    if (!words)
        return 0;
    memset(words, 1, n); /* so that every page is its own */
    r = best_of(words, n / 8, n_threads);
    free(words);
    return r;
}

double roofline_fma(uint32_t n_threads)
{
    return best_of(NULL, 0, n_threads);
}
