/* Random words of the device beside the library's own Philox, whose known answers are in test_sampler, and beside cuRAND's. */
#include "cuda/cuda_check.h"

#include "session/sampler_int.h"

#include <stdio.h>
#include <string.h>

enum { MANY = (1 << 20) + 5 }; /* so many that cuRAND makes them, where it is there */

typedef struct words {
    uint64_t seed, offset;
    size_t   n, off; /* off: bytes from an address that is aligned to 256 */
} words;

/* Word q: lane q % 4 of block q / 4; blocks take turns over 2^16 subsequences. */
static uint32_t word_at(uint64_t seed, uint64_t q)
{
    const uint64_t block = q / 4, high = block >> 16;
    const uint32_t counter[4] = {(uint32_t)high, (uint32_t)(high >> 32), (uint32_t)(block & 0xffff), 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t       out[4];

    kvi_philox4x32(counter, key, out);
    return out[q % 4];
}

static void run(const void *arg, void *out)
{
    const words *w = arg;
    void        *to = to_device_at(NULL, w->n * sizeof(uint32_t), w->off);
    kvcsa_error  err = {0};

    must(gpu_ops->mem_random(gpu, to, w->n, w->seed, w->offset, &err), &err);
    from_device(out, to, w->n * sizeof(uint32_t));
    device_free_all();
}

static void check(const words *w, const uint32_t *got)
{
    for (size_t i = 0; i < w->n; i++)
        if (got[i] != word_at(w->seed, w->offset + i))
            fail_msg("seed %llx, word %llu + %zu is %08x, must be %08x", (unsigned long long)w->seed, (unsigned long long)w->offset, i,
                     got[i], word_at(w->seed, w->offset + i));
}

typedef struct heard {
    char text[512];
    int  n;
} heard;

static void hear(void *user, int32_t level, const char *text)
{
    heard *h = user;

    (void)level;
    if (!strstr(text, "random words"))
        return;
    snprintf(h->text, sizeof h->text, "%s", text);
    h->n++;
}

/* The first of all, since it is said once in a process. */
static void test_random_says_what_makes_the_words(void **state)
{
    heard                   h = {.n = 0};
    const kvi_host_ops      host = {.struct_size = sizeof host, .log = hear, .user = &h};
    const kvi_device_params params = {.host = &host};
    kvi_device             *dev = NULL;
    void                   *to = NULL;
    kvcsa_error             err = {0};

    (void)state;
    must(gpu_ops->device_open(&params, &dev, &err), &err);
    must(gpu_ops->mem_alloc(dev, MANY * sizeof(uint32_t), KVI_MEMORY_DEVICE, &to, &err), &err);
    for (int i = 0; i < 3; i++)
        must(gpu_ops->mem_random(dev, to, emulated ? 16 : MANY, 1, 2, &err), &err);
    must(gpu_ops->sync(dev, &err), &err);
    gpu_ops->mem_free(dev, to, KVI_MEMORY_DEVICE);
    gpu_ops->device_close(dev);
    printf("%s\n", h.text);
    assert_int_equal(h.n, 1);
}

/* Made by curandGenerate of cuRAND 10.4 on the host: CURAND_RNG_PSEUDO_PHILOX4_32_10, CURAND_ORDERING_PSEUDO_LEGACY. */
static void test_random_words_are_those_of_curand(void **state)
{
    static const struct {
        uint64_t seed, offset;
        uint32_t want[8];
    } rows[] = {
        {0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8, 0x844515e1, 0xf08d6eaa, 0x0f19c053, 0x83f875f0}},
        {0x123456789abcdef0, 262141, {0xd6a7e149, 0x55f52c7c, 0xf1432b27, 0x389d999a, 0x609cf517, 0x0570bb00, 0x99b16edc, 0xeace5522}},
        {UINT64_MAX, ((uint64_t)1 << 50) + 5,
         {0x3fae9345, 0xd134fd2c, 0x0a952a9f, 0x7d6cf3bb, 0xcafa9380, 0xced4c7d9, 0xbcb40218, 0x33dd6aed}},
        {42, ((uint64_t)1 << 62) - 2, {0xf6afc55c, 0x40bd6083, 0xc0360904, 0xd11d8f16, 0xccf9895a, 0x5b9e959c, 0xb8e77384, 0xa7b660c8}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const words w = {.seed = rows[i].seed, .offset = rows[i].offset, .n = 8};
        uint32_t    got[8];

        for (size_t k = 0; k < 8; k++)
            assert_int_equal(word_at(w.seed, w.offset + k), rows[i].want[k]);
        run(&w, got);
        for (size_t k = 0; k < 8; k++)
            assert_int_equal(got[k], rows[i].want[k]);
    }
}

static void test_random_any_piece(void **state)
{
    static const uint64_t offsets[] = {0, 1, 2, 3, 4, 262143, ((uint64_t)1 << 34) + 1, ((uint64_t)1 << 62) + 3, UINT64_MAX - 2999};
    static const size_t   counts[] = {1, 2, 3, 4, 5, 7, 1023, 1024, 1025, 3000};
    static uint32_t       got[3000];

    (void)state;
    for (size_t o = 0; o < sizeof offsets / sizeof *offsets; o++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (size_t off = 0; off < 12; off += 4) {
                const words w = {.seed = 0x9e3779b97f4a7c15 * (o + 1), .offset = offsets[o], .n = counts[c], .off = off};

                gpu_run(run, &w, got, w.n * sizeof *got);
                check(&w, got);
            }
}

static void test_random_many_words(void **state)
{
    static const size_t offs[] = {0, 4};
    uint32_t           *got = malloc(MANY * sizeof *got);

    (void)state;
    assert_non_null(got);
    for (size_t i = 0; i < 2; i++) {
        const words w = {.seed = 77, .offset = 3 + i * 1000000, .n = MANY, .off = offs[i]};

        run(&w, got);
        check(&w, got);
    }
    free(got);
}

static void test_random_in_a_graph(void **state)
{
    const words w = {.seed = 5, .offset = 9, .n = MANY};
    uint32_t   *to = to_device(NULL, MANY * sizeof *to), *got = malloc(MANY * sizeof *got);
    kvi_graph  *graph = NULL;
    kvcsa_error err = {0};

    (void)state;
    assert_non_null(got);
    must(gpu_ops->graph_begin(gpu, &err), &err);
    must(gpu_ops->mem_random(gpu, to, w.n, w.seed, w.offset, &err), &err);
    must(gpu_ops->graph_end(gpu, &graph, &err), &err);
    must(gpu_ops->mem_fill(gpu, to, 0, MANY * sizeof *to, &err), &err);
    from_device(got, to, MANY * sizeof *got);
    assert_int_equal(got[0] | got[MANY - 1], 0);
    must(gpu_ops->graph_run(gpu, graph, &err), &err);
    from_device(got, to, MANY * sizeof *got);
    check(&w, got);
    gpu_ops->graph_free(gpu, graph);
    free(got);
    device_free_all();
}

static void test_random_refuses(void **state)
{
    uint8_t    *to = to_device(NULL, 64);
    kvcsa_error err = {0};

    (void)state;
    assert_int_equal(gpu_ops->mem_random(gpu, to + 2, 4, 0, 0, &err), KVCSA_ERR_ARG);
    assert_int_equal(gpu_ops->mem_random(gpu, to, 4, 0, UINT64_MAX - 2, &err), KVCSA_ERR_ARG);
    assert_non_null(strstr(err.text, "2^64"));
    must(gpu_ops->mem_random(gpu, to, 0, 0, UINT64_MAX, &err), &err); /* nothing to do */
    must(gpu_ops->mem_random(gpu, to, 1, 0, UINT64_MAX, &err), &err);
    device_free_all();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_random_says_what_makes_the_words),
    cmocka_unit_test(test_random_words_are_those_of_curand),
    cmocka_unit_test(test_random_any_piece),
    cmocka_unit_test(test_random_many_words),
    cmocka_unit_test(test_random_in_a_graph),
    cmocka_unit_test(test_random_refuses),
};

CUDA_MAIN(tests)
