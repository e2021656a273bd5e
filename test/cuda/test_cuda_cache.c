/* Bytes of the cache on the device beside the CPU's, bit for bit: window rows, entries in every format, index keys, index
 * queries, and all rows of a step in one launch. */
#include "cuda/cuda_check.h"

#include "base/bytes.h"
#include "format/dtype.h"
#include "format/fp4.h"
#include "format/row.h"

#include <dlfcn.h>
#include <stdio.h>

enum { FORMATS = 10, JOB_BYTES = 80 };

/* ---------------------------------------------------------------- what the emulated plug-in exports besides its table */

typedef struct hooks {
    kvcsa_status (*jobs)(const kvi_window_write_params *w, unsigned n_w, const kvi_entry_write_params *e, unsigned n_e,
                         void *host_jobs, size_t *warps, kvcsa_error *err);
    kvcsa_status (*step)(kvi_device *dev, const void *jobs, unsigned n_jobs, size_t warps, kvcsa_error *err);
    uint32_t (*to_e4m3)(float x), (*to_e2m1)(float x), (*to_e8m0)(float x), (*to_f16)(float x);
    float (*of_e4m3)(uint32_t code), (*of_e2m1)(uint32_t code), (*of_e8m0)(uint32_t code), (*of_f16)(uint32_t code);
    uint32_t (*twice)(uint32_t codes);
    void (*decode)(int is_fp8, const uint8_t *row, unsigned width, float *f32, float *bf16);
} hooks;
static hooks hook;

static void find(void *library, const char *name, void *to)
{
    *(void **)to = dlsym(library, name);
    assert_non_null(*(void **)to);
}

/* Skips the test on a real device. */
static void find_hooks(void)
{
    Dl_info info;
    void   *library;

    if (!emulated)
        skip();
    assert_int_not_equal(dladdr((const void *)gpu_ops, &info), 0);
    library = dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    find(library, "kvi_emu_append_jobs", &hook.jobs);
    find(library, "kvi_emu_append_step", &hook.step);
    find(library, "kvi_emu_to_e4m3", &hook.to_e4m3);
    find(library, "kvi_emu_to_e2m1", &hook.to_e2m1);
    find(library, "kvi_emu_to_e8m0", &hook.to_e8m0);
    find(library, "kvi_emu_to_f16", &hook.to_f16);
    find(library, "kvi_emu_of_e4m3", &hook.of_e4m3);
    find(library, "kvi_emu_of_e2m1", &hook.of_e2m1);
    find(library, "kvi_emu_of_e8m0", &hook.of_e8m0);
    find(library, "kvi_emu_of_f16", &hook.of_f16);
    find(library, "kvi_emu_twice", &hook.twice);
    find(library, "kvi_emu_decode", &hook.decode);
    dlclose(library); /* the test's own handle keeps it */
}

/* ---------------------------------------------------------------- elements */

static void check_element(float x)
{
    const uint32_t u = kvi_f32_bits(x);

    assert_int_equal(hook.to_e4m3(x), kvi_f32_to_e4m3(x));
    assert_int_equal(hook.to_e2m1(x), kvi_f32_to_e2m1(x));
    assert_int_equal(hook.to_f16(x), kvi_f32_to_fp16(x));
    if (u >= 0x00800000u && u < 0x7f800000u) /* normal and positive is all that it promises */
        assert_int_equal(hook.to_e8m0(x), kvi_f32_to_e8m0_up(x));
}

static void test_elements_to_bits(void **state)
{
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};

    (void)state;
    find_hooks();
    for (uint32_t h = 0; h < 65536; h++)
        for (size_t i = 0; i < sizeof low / sizeof *low; i++)
            check_element(kvi_bits_f32(h << 16 | low[i]));
    /* the midpoints of fp16 and their neighbours; those of the narrower types are bf16 values */
    for (uint32_t c = 0; c < 0x7c00; c++) {
        const float    a = kvi_fp16_to_f32((uint16_t)c), b = c == 0x7bff ? 65536.0f : kvi_fp16_to_f32((uint16_t)(c + 1));
        const uint32_t middle = kvi_f32_bits((a + b) / 2);

        for (int d = -1; d <= 1; d++) {
            check_element(kvi_bits_f32(middle + (uint32_t)d));
            check_element(-kvi_bits_f32(middle + (uint32_t)d));
        }
    }
}

static void test_bits_to_elements(void **state)
{
    (void)state;
    find_hooks();
    for (uint32_t c = 0; c < 256; c++) {
        assert_int_equal(kvi_f32_bits(hook.of_e4m3(c)), kvi_f32_bits(kvi_e4m3_to_f32((uint8_t)c)));
        assert_int_equal(kvi_f32_bits(hook.of_e2m1(c)), kvi_f32_bits(kvi_e2m1_to_f32((uint8_t)c)));
        assert_int_equal(kvi_f32_bits(hook.of_e8m0(c)), kvi_f32_bits(kvi_e8m0_to_f32((uint8_t)c)));
    }
    for (uint32_t c = 0; c < 65536; c++) {
        const uint8_t packed[2] = {(uint8_t)c, (uint8_t)(c >> 8)};
        int8_t        four[4];
        uint32_t      want;

        assert_int_equal(kvi_f32_bits(hook.of_f16(c)), kvi_f32_bits(kvi_fp16_to_f32((uint16_t)c)));
        kvi_unpack_e2m1_x2(packed, 4, four);
        memcpy(&want, four, sizeof want);
        assert_int_equal(hook.twice(c), want);
    }
}

static void check_decoded(uint32_t format, const uint8_t *row, unsigned width)
{
    float want[256], f32[256], bf16[256];

    kvi_row_decode(format, row, width, want);
    hook.decode(format == KVCSA_FORMAT_FP8_E8M0_G32, row, width, f32, bf16);
    for (unsigned c = 0; c < width; c++) {
        if (isnan(want[c])) {
            assert_true(isnan(f32[c]) && isnan(bf16[c]));
        } else {
            assert_int_equal(kvi_f32_bits(f32[c]), kvi_f32_bits(want[c]));
            assert_int_equal(kvi_f32_bits(bf16[c]), kvi_f32_bits(kvi_round_bf16(want[c])));
        }
    }
}

static void test_groups_decode(void **state)
{
    static _Alignas(16) uint8_t row[512];

    (void)state;
    find_hooks();
    for (uint32_t scale = 0; scale < 256; scale++) {
        for (uint32_t first = 0; first < 2; first++) { /* every pair of codes, every byte */
            for (uint32_t b = 0; b < 128; b++)
                row[b] = (uint8_t)(128 * first + b);
            memset(row + 128, (int)scale, 16);
            check_decoded(KVCSA_FORMAT_FP4_E4M3_G16, row, 256);
            memset(row + 128, (int)scale, 4);
            check_decoded(KVCSA_FORMAT_FP8_E8M0_G32, row, 128);
        }
    }
}

/* ---------------------------------------------------------------- values */

static float special(uint32_t r)
{
    static const uint32_t bits[] = {0x80000000, 0x00000001, 0x807fffff, 0x00400000, 0x00800000, 0x7f7fffff, 0xff7fffff,
                                    0x7f7f0000, 0x7f7f8000, 0x3f808000, 0x3f818000, 0x38d1b717, 0x3c400000, 0x01c00000,
                                    0x477fe000, 0x477ff000, 0x33000000, 0x33000001, 0xc0a00000, 0x43e80000};
    return kvi_bits_f32(bits[r % (sizeof bits / sizeof *bits)]);
}

/* Runs of groups of different size; ties; now and then a special value, seldom NaN or infinity. */
static void values(float *x, size_t n)
{
    float size = 1.0f;

    for (size_t i = 0; i < n; i++) {
        const uint32_t r = prng();

        if (i % 16 == 0)
            size = ldexpf(1.0f, (int)(r % 11 == 0 ? r / 16 % 250 : 100 + r / 16 % 50) - 126);
        if (r % 97 == 0)
            x[i] = special(r / 128);
        else if (r % 401 == 1)
            x[i] = kvi_bits_f32((r & 4096 ? 0x7f800000u : 0x7fc00001u) | (r & 0x80000000u));
        else if (r % 5 == 0)
            x[i] = (float)((int)(r / 8 % 49) - 24) * 0.25f * size;
        else
            x[i] = uniform(6.0f) * size;
    }
}

/* ---------------------------------------------------------------- window rows */

typedef struct window_case {
    const float *x;
    size_t       n_x, n_rows, stride, x_off, row_off;
    uint32_t     width, row_bytes;
} window_case;

static void run_window(const void *arg, void *out)
{
    const window_case      *c = arg;
    const size_t            size = c->n_rows * c->row_bytes;
    uint8_t                *rows = to_device_at(NULL, size, c->row_off);
    kvi_window_write_params p = {.x = to_device_at(c->x, c->n_x * sizeof *c->x, c->x_off),
                                 .rows = rows,
                                 .x_stride = c->stride,
                                 .n_rows = c->n_rows,
                                 .width = c->width,
                                 .row_bytes = c->row_bytes};
    const uint64_t          before = emulated ? emu.launches() : 0;

    GPU(window_write, &p);
    from_device(out, rows, size);
    if (emulated)
        assert_int_equal(emu.launches() - before, size ? 1 : 0);
    device_free_all();
}

static void check_window(window_case *c)
{
    uint8_t *want = malloc(c->n_rows * (c->width + c->width / 32) + 1), *got;

    c->row_bytes = c->width + c->width / 32;
    got = malloc(c->n_rows * c->row_bytes + 1);
    const kvi_window_write_params p = {.x = c->x, .rows = want, .x_stride = c->stride, .n_rows = c->n_rows, .width = c->width,
                                       .row_bytes = c->row_bytes};
    CPU(window_write, &p);
    gpu_run(run_window, c, got, c->n_rows * c->row_bytes);
    assert_memory_equal(got, want, c->n_rows * c->row_bytes);
    free(want);
    free(got);
}

static void test_window_shapes(void **state)
{
    static const uint32_t widths[] = {32, 64, 96, 128, 480, 512, 544, 1024, 1120};
    static const size_t   rows[] = {0, 1, 5}, x_offs[] = {0, 4, 16}, row_offs[] = {0, 1, 4, 8, 6};
    size_t                turn = 0;

    (void)state;
    prng_seed(11);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t r = 0; r < 3; r++)
            for (size_t pad = 0; pad < 4; pad += 3, turn++) {
                window_case c = {.n_rows = rows[r], .stride = widths[w] + pad, .width = widths[w], .x_off = x_offs[turn % 3],
                                 .row_off = row_offs[turn % 5]};
                float      *x;

                c.n_x = c.n_rows * c.stride;
                x = malloc((c.n_x + 1) * sizeof *x);
                values(x, c.n_x);
                c.x = x;
                check_window(&c);
                free(x);
            }
}

/* Every bf16 value in a group of its neighbours, in a group of strangers, and alone among zeros. */
static void test_window_takes_every_bf16(void **state)
{
    float *x = calloc((size_t)65536 * 32, sizeof *x);

    (void)state;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < 65536; i++)
            x[i] = kvi_bits_f32((pass ? i * 40503u & 0xffffu : i) << 16);
        check_window(&(window_case){.x = x, .n_x = 65536, .n_rows = 128, .stride = 512, .width = 512});
    }
    memset(x, 0, 65536 * sizeof *x);
    for (uint32_t i = 0; i < 65536; i++)
        x[32 * i + i % 32] = kvi_bits_f32(i << 16);
    check_window(&(window_case){.x = x, .n_x = (size_t)65536 * 32, .n_rows = 4096, .stride = 512, .width = 512});
    free(x);
}

/* ---------------------------------------------------------------- entries */

enum { MAX_BLOCKS = 8 };

/* An owner's blocks: on the host, and on a device while a case runs. */
typedef struct entry_case {
    kvi_kv_owner owner;
    float       *latent, *key;
    uint64_t     first;
    size_t       n_rows, n_blocks, main_bytes, index_bytes; /* of a part */
    size_t       part_off;                                  /* of parts, beyond 256 bytes */
} entry_case;

static size_t case_size(const entry_case *c)
{
    return c->n_blocks * (c->main_bytes + c->index_bytes);
}

static void case_init(entry_case *c, uint32_t format, uint32_t width, uint32_t index_width, uint32_t per_block, uint64_t first,
                      size_t n_rows, uint32_t off)
{
    kvi_kv_owner *o = &c->owner;

    memset(c, 0, sizeof *c);
    o->rows_per_block = per_block;
    o->entry_width = width;
    o->entry_format = format;
    o->main_row_bytes = kvi_format_row_bytes(format, width);
    o->index_width = index_width;
    o->index_value_bytes = index_width / 2;
    o->index_row_bytes = index_width / 2 + index_width / 32;
    o->index_off = off;
    o->main_off = off;
    assert_int_not_equal(o->main_row_bytes, 0);
    c->first = first;
    c->n_rows = n_rows;
    c->n_blocks = (size_t)(first + n_rows) / per_block + 1;
    assert_true(c->n_blocks <= MAX_BLOCKS);
    c->main_bytes = off + (size_t)per_block * o->main_row_bytes + 5;
    c->index_bytes = off + (size_t)per_block * o->index_row_bytes + 5;
    c->latent = malloc((n_rows * width + 1) * sizeof *c->latent);
    c->key = malloc((n_rows * index_width + 1) * sizeof *c->key);
    values(c->latent, n_rows * width);
    values(c->key, n_rows * index_width);
}

static void case_free(entry_case *c)
{
    free(c->latent);
    free(c->key);
}

/* out: all parts, as the CPU leaves them. */
static void case_cpu(const entry_case *c, uint8_t *out)
{
    uint8_t *main_parts[MAX_BLOCKS], *index_parts[MAX_BLOCKS];

    memset(out, GUARD, case_size(c));
    for (size_t b = 0; b < c->n_blocks; b++) {
        main_parts[b] = out + b * c->main_bytes;
        index_parts[b] = out + c->n_blocks * c->main_bytes + b * c->index_bytes;
    }
    const kvi_entry_write_params p = {.to = {&c->owner, index_parts, main_parts}, .latent = c->latent, .key = c->key,
                                      .first_entry = c->first, .n_rows = c->n_rows};
    CPU(entry_write, &p);
}

typedef struct device_case {
    uint8_t *main_parts[MAX_BLOCKS], *index_parts[MAX_BLOCKS];
    kvi_entry_write_params p;
} device_case;

static void case_to_device(const entry_case *c, device_case *d)
{
    for (size_t b = 0; b < c->n_blocks; b++) {
        d->main_parts[b] = to_device_at(NULL, c->main_bytes, c->part_off);
        d->index_parts[b] = to_device_at(NULL, c->index_bytes, c->part_off);
    }
    d->p = (kvi_entry_write_params){
        .to = {&c->owner, table_to_device(d->index_parts, c->n_blocks), table_to_device(d->main_parts, c->n_blocks)},
        .latent = to_device(c->latent, c->n_rows * c->owner.entry_width * sizeof *c->latent),
        .key = to_device(c->key, c->n_rows * c->owner.index_width * sizeof *c->key),
        .first_entry = c->first,
        .n_rows = c->n_rows};
}

static void case_from_device(const entry_case *c, const device_case *d, uint8_t *out)
{
    for (size_t b = 0; b < c->n_blocks; b++) {
        from_device(out + b * c->main_bytes, d->main_parts[b], c->main_bytes);
        from_device(out + c->n_blocks * c->main_bytes + b * c->index_bytes, d->index_parts[b], c->index_bytes);
    }
}

static void run_entries(const void *arg, void *out)
{
    const entry_case *c = arg;
    const uint64_t    before = emulated ? emu.launches() : 0;
    device_case       d;

    case_to_device(c, &d);
    GPU(entry_write, &d.p);
    case_from_device(c, &d, out);
    if (emulated)
        assert_int_equal(emu.launches() - before, c->n_rows ? 1 : 0);
    device_free_all();
}

static void check_entries(const entry_case *c)
{
    uint8_t *want = malloc(case_size(c)), *got = malloc(case_size(c));

    case_cpu(c, want);
    gpu_run(run_entries, c, got, case_size(c));
    assert_memory_equal(got, want, case_size(c));
    free(want);
    free(got);
}

static void test_entries_of_every_format(void **state)
{
    static const uint32_t widths[] = {32, 96, 512, 576, 1056}, index_widths[] = {128, 32, 0, 544, 96}, offs[] = {0, 16, 4, 6, 13};
    static const uint32_t per_block[] = {8, 16, 24}, firsts[] = {0, 7, 13, 17};
    static const size_t   rows[] = {1, 3, 11, 0};
    size_t                turn = 0;

    (void)state;
    prng_seed(12);
    for (uint32_t f = 1; f <= FORMATS; f++)
        for (size_t w = 0; w < 5; w++, turn++) {
            entry_case c;

            case_init(&c, f, widths[w], index_widths[(w + f) % 5], per_block[turn % 3], firsts[turn % 4],
                      rows[(turn + turn / 4) % 4], offs[(turn + f) % 5]);
            c.part_off = turn % 2 ? 16 : turn % 3;
            check_entries(&c);
            case_free(&c);
        }
}

/* The plain formats have no groups: any width. */
static void test_entries_of_odd_widths(void **state)
{
    static const uint32_t widths[] = {1, 2, 3, 5, 127, 129, 511, 513, 515};
    static const uint32_t formats[] = {KVCSA_FORMAT_F32, KVCSA_FORMAT_F16, KVCSA_FORMAT_BF16};

    (void)state;
    prng_seed(13);
    for (size_t w = 0; w < 9; w++)
        for (size_t f = 0; f < 3; f++) {
            entry_case c;

            case_init(&c, formats[f], widths[w], 32, 8, 6 + w, 3, (uint32_t)w);
            check_entries(&c);
            case_free(&c);
        }
}

/* Every bf16 value through every format and through the keys, in a group of strangers and in one of neighbours. */
static void test_entries_take_every_bf16(void **state)
{
    (void)state;
    for (uint32_t f = 1; f <= FORMATS; f++)
        for (uint32_t pass = 0; pass < 2; pass++) {
            entry_case c;

            case_init(&c, f, 1024, 1024, 16, 0, 64, 0);
            for (uint32_t i = 0; i < 65536; i++)
                c.latent[i] = c.key[i] = kvi_bits_f32((pass ? i * 40503u & 0xffffu : i) << 16);
            check_entries(&c);
            case_free(&c);
        }
}

/* ---------------------------------------------------------------- queries */

typedef struct query_case {
    const float *x, *weights; /* weights: NULL, or of the heads */
    size_t       n_rows, x_off, code_off;
    uint32_t     n_heads, width;
    float        weight_scale;
} query_case;

static void run_query(const void *arg, void *out)
{
    const query_case      *c = arg;
    const size_t           n = c->n_rows * c->n_heads * c->width;
    kvi_index_query_params p = {.x = to_device_at(c->x, n * sizeof *c->x, c->x_off),
                                .codes = to_device_at(NULL, n, c->code_off),
                                .scales = to_device(NULL, n / 32 * sizeof(float)),
                                .n_rows = c->n_rows,
                                .n_heads = c->n_heads,
                                .width = c->width,
                                .weight_scale = c->weight_scale};
    const size_t           heads = c->n_rows * c->n_heads;

    if (c->weights)
        p.weights = to_device_at(c->weights, heads * sizeof(float), c->x_off);
    GPU(index_query, &p);
    from_device(out, p.codes, n);
    from_device((uint8_t *)out + n, p.scales, n / 32 * sizeof(float));
    if (c->weights)
        from_device((uint8_t *)out + n + n / 32 * sizeof(float), p.weights, heads * sizeof(float));
    device_free_all();
}

static void test_index_queries(void **state)
{
    static const uint32_t heads[] = {1, 3, 64}, widths[] = {32, 64, 96, 128, 160};
    static const size_t   rows[] = {0, 1, 2};
    size_t                turn = 0;

    (void)state;
    prng_seed(14);
    for (size_t h = 0; h < 3; h++)
        for (size_t w = 0; w < 5; w++)
            for (size_t r = 0; r < 3; r++, turn++) {
                const size_t n_weights = turn % 4 ? rows[r] * heads[h] : 0, n = rows[r] * heads[h] * widths[w];
                const size_t of_scales = n / 32 * sizeof(float), size = n + of_scales + n_weights * sizeof(float);
                float       *x = malloc((n + 1) * sizeof *x), *scales = malloc((n / 32 + 1) * sizeof *scales);
                float       *weights = malloc((n_weights + 1) * sizeof *weights);
                uint8_t     *want = malloc(size + 1), *got = malloc(size + 1);
                query_case   c = {.x = x, .n_rows = rows[r], .n_heads = heads[h], .width = widths[w], .x_off = turn % 2 * 4,
                                  .code_off = turn % 5, .weight_scale = 0.0123f};

                values(x, n);
                fill(weights, n_weights, 3.0f);
                if (n_weights)
                    weights[n_weights / 2] = turn % 2 ? INFINITY : -0x1p-149f;
                c.weights = n_weights ? weights : NULL;
                kvi_index_query_params p = {.x = x, .codes = (int8_t *)want, .scales = scales, .n_rows = rows[r],
                                            .n_heads = heads[h], .width = widths[w], .weight_scale = c.weight_scale};
                gpu_run(run_query, &c, got, size);
                p.weights = n_weights ? weights : NULL;
                CPU(index_query, &p);
                memcpy(want + n, scales, of_scales);
                memcpy(want + n + of_scales, weights, n_weights * sizeof *weights);
                assert_memory_equal(got, want, size);
                free(x);
                free(scales);
                free(weights);
                free(want);
                free(got);
            }
}

/* Every bf16 value, in a group of neighbours and in one of strangers: codes, scales 2^-127 and NaN among them. */
static void test_index_queries_take_every_bf16(void **state)
{
    enum { N = 65536, SIZE = N + N / 32 * sizeof(float) };
    float   *x = malloc(N * sizeof *x), *scales = malloc(N / 32 * sizeof *scales);
    uint8_t *want = malloc(SIZE), *got = malloc(SIZE);

    (void)state;
    for (uint32_t pass = 0; pass < 2; pass++) {
        const kvi_index_query_params p = {
            .x = x, .codes = (int8_t *)want, .scales = scales, .n_rows = 8, .n_heads = 64, .width = 128};

        for (uint32_t i = 0; i < N; i++)
            x[i] = kvi_bits_f32((pass ? i * 40503u & 0xffffu : i) << 16);
        CPU(index_query, &p);
        memcpy(want + N, scales, N / 32 * sizeof *scales);
        gpu_run(run_query, &(query_case){.x = x, .n_rows = 8, .n_heads = 64, .width = 128}, got, SIZE);
        assert_memory_equal(got, want, SIZE);
    }
    free(x);
    free(scales);
    free(want);
    free(got);
}

/* ---------------------------------------------------------------- a step */

enum { OWNERS = 4, LAYERS = 40, STEP_JOBS = LAYERS + 2 * OWNERS };

typedef struct step_case {
    entry_case owners[OWNERS];
    float     *x;        /* [LAYERS, n_rows, width] */
    size_t     n_rows;
    uint32_t   width;
    bool       replay;   /* record for the first entries 0, then run for those of the owners */
    bool       window_only;
} step_case;

static size_t step_windows_size(const step_case *s)
{
    return LAYERS * s->n_rows * (s->width + s->width / 32);
}

static size_t step_size(const step_case *s)
{
    size_t n = step_windows_size(s);

    for (size_t i = 0; i < OWNERS; i++)
        n += case_size(&s->owners[i]);
    return n;
}

static void copy_jobs(void *device, const void *host, size_t size)
{
    kvcsa_error err = {0};

    must(gpu_ops->mem_copy(gpu, device, host, size, KVI_COPY_IN, &err), &err);
    must(gpu_ops->sync(gpu, &err), &err);
}

static void run_step(const void *arg, void *out)
{
    const step_case        *s = arg;
    const size_t            row_bytes = s->width + s->width / 32;
    const unsigned          n_jobs = s->window_only ? LAYERS : STEP_JOBS, n_owners = s->window_only ? 0 : OWNERS;
    device_case             d[OWNERS];
    kvi_window_write_params windows[LAYERS];
    kvi_entry_write_params  entries[OWNERS];
    _Alignas(16) uint8_t    jobs[STEP_JOBS * JOB_BYTES];
    void                   *device_jobs = to_device(NULL, sizeof jobs);
    uint8_t                *rows = to_device(NULL, step_windows_size(s)), *to = out;
    const float            *x = to_device(s->x, LAYERS * s->n_rows * s->width * sizeof *s->x);
    size_t                  warps;
    uint64_t                before;
    kvcsa_error             err = {0};

    for (size_t l = 0; l < LAYERS; l++)
        windows[l] = (kvi_window_write_params){.x = x + l * s->n_rows * s->width, .rows = rows + l * s->n_rows * row_bytes,
                                               .x_stride = s->width, .n_rows = s->n_rows, .width = s->width,
                                               .row_bytes = (uint32_t)row_bytes};
    for (size_t i = 0; i < OWNERS; i++) {
        case_to_device(&s->owners[i], &d[i]);
        entries[i] = d[i].p;
        if (s->replay)
            entries[i].first_entry = 0;
    }
    must(hook.jobs(windows, LAYERS, entries, n_owners, jobs, &warps, &err), &err);
    copy_jobs(device_jobs, jobs, sizeof jobs);
    before = emu.launches();
    if (s->replay) {
        kvi_graph *graph = NULL;

        must(gpu_ops->graph_begin(gpu, &err), &err);
        must(hook.step(gpu, device_jobs, n_jobs, warps, &err), &err);
        must(gpu_ops->graph_end(gpu, &graph, &err), &err);
        for (size_t i = 0; i < n_owners; i++)
            entries[i].first_entry = s->owners[i].first;
        must(hook.jobs(windows, LAYERS, entries, n_owners, jobs, &warps, &err), &err);
        copy_jobs(device_jobs, jobs, sizeof jobs);
        must(gpu_ops->graph_run(gpu, graph, &err), &err);
        must(gpu_ops->sync(gpu, &err), &err);
        gpu_ops->graph_free(gpu, graph);
    } else {
        must(hook.step(gpu, device_jobs, n_jobs, warps, &err), &err);
        must(gpu_ops->sync(gpu, &err), &err);
    }
    assert_int_equal(emu.launches() - before, warps ? 1 : 0);
    from_device(to, rows, step_windows_size(s));
    to += step_windows_size(s);
    for (size_t i = 0; i < OWNERS; to += case_size(&s->owners[i]), i++)
        case_from_device(&s->owners[i], &d[i], to);
    device_free_all();
}

static void check_step(const step_case *s)
{
    uint8_t                      *want = malloc(step_size(s) + 1), *got = malloc(step_size(s) + 1), *to = want;
    const kvi_window_write_params p = {.x = s->x,
                                       .rows = want,
                                       .x_stride = s->width,
                                       .n_rows = LAYERS * s->n_rows,
                                       .width = s->width,
                                       .row_bytes = s->width + s->width / 32};

    CPU(window_write, &p);
    to += step_windows_size(s);
    for (size_t i = 0; i < OWNERS; to += case_size(&s->owners[i]), i++) {
        if (s->window_only)
            memset(to, GUARD, case_size(&s->owners[i]));
        else
            case_cpu(&s->owners[i], to);
    }
    gpu_run(run_step, s, got, step_size(s));
    assert_memory_equal(got, want, step_size(s));
    free(want);
    free(got);
}

static void test_step_is_one_launch(void **state)
{
    static const uint32_t widths[] = {512, 64, 544}, index_widths[] = {128, 64, 0, 544};
    static const size_t   rows[] = {1, 0, 2, 6};

    (void)state;
    find_hooks();
    prng_seed(15);
    for (uint32_t turn = 0; turn < 20; turn++) {
        const size_t n_rows = rows[turn % 4];
        step_case    s = {.n_rows = n_rows, .width = widths[turn % 3], .replay = turn % 2, .window_only = turn == 8};

        s.x = malloc((LAYERS * n_rows * s.width + 1) * sizeof *s.x);
        values(s.x, LAYERS * n_rows * s.width);
        for (uint32_t i = 0; i < OWNERS; i++)
            case_init(&s.owners[i], turn < 3 ? KVCSA_FORMAT_FP4_E4M3_G16 : 1 + (turn + i) % FORMATS,
                      turn < 3 ? 512 : 32 * (1 + turn + 3 * i), turn < 3 ? 128 : index_widths[(turn + i) % 4], 8 * (1 + i),
                      7 + i * turn % 9, i == 3 ? n_rows / 2 : n_rows, 16 * i);
        check_step(&s);
        for (uint32_t i = 0; i < OWNERS; i++)
            case_free(&s.owners[i]);
        free(s.x);
    }
}

/* ---------------------------------------------------------------- what is refused */

#define REFUSED(op, params, status, words)                                                                                     \
    do {                                                                                                                       \
        kvcsa_error refused_err = {0};                                                                                         \
        assert_int_equal(gpu_ops->op(gpu, params, &refused_err), status);                                                      \
        assert_non_null(strstr(refused_err.text, words));                                                                      \
    } while (0)

static void test_refused(void **state)
{
    const kvi_kv_owner       good = {.rows_per_block = 8,
                                     .entry_width = 64,
                                     .entry_format = KVCSA_FORMAT_FP4_E4M3_G16,
                                     .main_row_bytes = 36,
                                     .index_width = 32,
                                     .index_value_bytes = 16,
                                     .index_row_bytes = 17};
    kvi_kv_owner             o = good;
    kvi_window_write_params  w = {.n_rows = 1, .width = 33, .row_bytes = 34};
    kvi_entry_write_params   e = {.to = {.owner = &o}, .n_rows = 1};
    kvi_index_query_params   q = {.n_rows = 1, .n_heads = 1, .width = 48};

    (void)state;
    REFUSED(window_write, &w, KVCSA_ERR_ARG, "multiple of 32");
    w = (kvi_window_write_params){.n_rows = 1, .width = 32, .row_bytes = 32};
    REFUSED(window_write, &w, KVCSA_ERR_ARG, "must have 33");
    w = (kvi_window_write_params){.n_rows = (size_t)1 << 31, .width = 32, .row_bytes = 33};
    REFUSED(window_write, &w, KVCSA_ERR_UNSUPPORTED, "at most 2^31 - 1");
    w = (kvi_window_write_params){.n_rows = (size_t)1 << 30, .width = 1056, .row_bytes = 1089};
    REFUSED(window_write, &w, KVCSA_ERR_UNSUPPORTED, "at most 2^31 - 1");
    o.entry_format = KVCSA_FORMAT_INT6;
    REFUSED(entry_write, &e, KVCSA_ERR_UNSUPPORTED, "format 13");
    o = good;
    o.main_row_bytes = 35;
    REFUSED(entry_write, &e, KVCSA_ERR_ARG, "must have 36");
    o = good;
    o.index_width = 40;
    REFUSED(entry_write, &e, KVCSA_ERR_ARG, "multiple of 32");
    o = good;
    o.index_value_bytes = 15;
    REFUSED(entry_write, &e, KVCSA_ERR_ARG, "must be 16");
    o = good;
    e.n_rows = (size_t)3 << 29;
    REFUSED(entry_write, &e, KVCSA_ERR_UNSUPPORTED, "at most 2147483647");
    REFUSED(index_query, &q, KVCSA_ERR_ARG, "multiple of 32");
    q = (kvi_index_query_params){.n_rows = (size_t)1 << 34, .n_heads = 64, .width = 128};
    REFUSED(index_query, &q, KVCSA_ERR_UNSUPPORTED, "at most 2^31 - 1");
    q = (kvi_index_query_params){.n_rows = 1, .n_heads = 1, .width = 32, .flags = KVI_OP_ROUND_BF16};
    REFUSED(index_query, &q, KVCSA_ERR_UNSUPPORTED, "reference mode");
}

static void test_step_refused(void **state)
{
    kvcsa_error err = {0};

    (void)state;
    find_hooks();
    assert_int_equal(hook.step(gpu, NULL, 8193, 1, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "at most 8192"));
    assert_int_equal(hook.step(gpu, NULL, 1, (size_t)1 << 31, &err), KVCSA_ERR_UNSUPPORTED);
    assert_int_equal(hook.step(gpu, NULL, 0, 1, &err), KVCSA_OK);
    assert_int_equal(hook.step(gpu, NULL, 5, 0, &err), KVCSA_OK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_elements_to_bits),
    cmocka_unit_test(test_bits_to_elements),
    cmocka_unit_test(test_groups_decode),
    cmocka_unit_test(test_window_shapes),
    cmocka_unit_test(test_window_takes_every_bf16),
    cmocka_unit_test(test_entries_of_every_format),
    cmocka_unit_test(test_entries_of_odd_widths),
    cmocka_unit_test(test_entries_take_every_bf16),
    cmocka_unit_test(test_index_queries),
    cmocka_unit_test(test_index_queries_take_every_bf16),
    cmocka_unit_test(test_step_is_one_launch),
    cmocka_unit_test(test_refused),
    cmocka_unit_test(test_step_refused),
};

CUDA_MAIN(tests)
