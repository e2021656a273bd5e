/* Kernels of the cache's bytes: every instruction set of this machine against the portable kernels, bit for bit; pooling against
 * an oracle of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cpu/cpu_ops.h"
#include "format/dtype.h"
#include "format/row.h"
#include "plan/cache_plan.h"
#include "support/prng.h"

enum { MAX_MASKS = 2, MAX_WIDTH = 4096, MAX_ROW = 4 * MAX_WIDTH };

static uint64_t          seed;
static kvi_cache_kernels ref;
static kvi_cache_kernels kernels[MAX_MASKS];
static size_t            n_kernels;

static const uint32_t formats[] = {
    KVCSA_FORMAT_FP4_E4M3_G16, KVCSA_FORMAT_FP4_E8M0_G32, KVCSA_FORMAT_FP8_E8M0_G32, KVCSA_FORMAT_F32,
    KVCSA_FORMAT_F16, KVCSA_FORMAT_BF16, KVCSA_FORMAT_FP4_AS_F32, KVCSA_FORMAT_Q8_0, KVCSA_FORMAT_Q4_0,
    KVCSA_FORMAT_INT3_F16_G32,
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static size_t group_of(uint32_t format)
{
    switch (format) {
    case KVCSA_FORMAT_FP4_E4M3_G16:
    case KVCSA_FORMAT_FP4_AS_F32:
        return 16;
    case KVCSA_FORMAT_F32:
    case KVCSA_FORMAT_F16:
    case KVCSA_FORMAT_BF16:
        return 1;
    default:
        return 32;
    }
}

/* ---------------------------------------------------------------- memory that ends at a page end */

/* Bytes between two pages that fault: `at_end` puts the array against the one behind it, else against the one in front. */
typedef struct arena {
    uint8_t *map;
    size_t   bytes;
    size_t   page;
} arena;

static void arena_init(arena *a, size_t bytes)
{
    a->page = (size_t)sysconf(_SC_PAGESIZE);
    a->bytes = (bytes + a->page - 1) / a->page * a->page;
    a->map = mmap(NULL, a->bytes + 2 * a->page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(a->map != MAP_FAILED);
    assert_int_equal(mprotect(a->map, a->page, PROT_NONE), 0);
    assert_int_equal(mprotect(a->map + a->page + a->bytes, a->page, PROT_NONE), 0);
}

static void arena_fini(arena *a)
{
    munmap(a->map, a->bytes + 2 * a->page);
}

static void *arena_put(arena *a, size_t bytes, int at_end)
{
    assert_true(bytes <= a->bytes);
    memset(a->map + a->page, 0xA7, a->bytes);
    return at_end ? a->map + a->page + a->bytes - bytes : a->map + a->page;
}

static void arena_check(const arena *a, size_t bytes, int at_end)
{
    const uint8_t *p = a->map + a->page;

    for (size_t i = at_end ? 0 : bytes; i < (at_end ? a->bytes - bytes : a->bytes); i++)
        assert_int_equal(p[i], 0xA7);
}

/* ---------------------------------------------------------------- encoders against the portable ones */

static void encode_all(const float *x, size_t width)
{
    static uint8_t want[MAX_ROW];
    static uint8_t got[MAX_ROW];
    static float   want_scales[MAX_WIDTH / 32];
    static float   got_scales[MAX_WIDTH / 32];
    const uint32_t w = (uint32_t)width;

    assert_true(width <= MAX_WIDTH);
    for (size_t m = 0; m < n_kernels; m++) {
        const kvi_cache_kernels *k = &kernels[m];

        for (size_t f = 0; f < N_FORMATS; f++) {
            if (width % group_of(formats[f]) != 0)
                continue;
            memset(want, 0x11, sizeof want);
            memset(got, 0x11, sizeof got);
            ref.encode_entry(formats[f], x, w, want);
            k->encode_entry(formats[f], x, w, got);
            assert_memory_equal(got, want, sizeof want);
        }
        if (width % 32 != 0)
            continue;
        ref.encode_window(x, w, want);
        k->encode_window(x, w, got);
        assert_memory_equal(got, want, width + width / 32);
        ref.encode_index(x, w, want, want + width / 2);
        k->encode_index(x, w, got, got + width / 2);
        assert_memory_equal(got, want, width / 2 + width / 32);
        ref.encode_query(x, width / 32, (int8_t *)want, want_scales);
        k->encode_query(x, width / 32, (int8_t *)got, got_scales);
        assert_memory_equal(got, want, width);
        assert_memory_equal(got_scales, want_scales, width / 32 * sizeof *want_scales);
    }
}

/* Every bf16 pattern, neighbours together: groups of one magnitude, and of NaN. */
static void test_encode_every_bf16_in_order(void **state)
{
    static float x[512];

    (void)state;
    for (uint32_t first = 0; first < 65536; first += 512) {
        for (uint32_t i = 0; i < 512; i++)
            x[i] = kvi_bits_f32((first + i) << 16);
        encode_all(x, 512);
    }
}

/* Every finite bf16 pattern in groups with the powers of two up to 2^12 times as large. */
static void test_encode_every_bf16_under_a_larger_one(void **state)
{
    static float x[512];

    (void)state;
    for (uint32_t first = 0; first < 65536;) {
        for (uint32_t i = 0; i < 512; i++) {
            const uint32_t bits = first << 16;

            if (i % 16 == 0) { /* the largest of the group: of 16 and, every other one, of 32 channels */
                const uint32_t field = (bits >> 23 & 255) + (i / 16) % 13;

                x[i] = kvi_bits_f32((field > 254 ? 254u : field) << 23 | (i / 2 & 127u) << 16);
            } else {
                x[i] = kvi_bits_f32((bits >> 23 & 255) == 255 ? bits & 0x8000ffffu : bits);
                first++;
            }
        }
        encode_all(x, 512);
    }
}

/* What decides about a rounding: midpoints of the codes under every scale, in front of the rounding to bf16 and behind it, and
 * their neighbours on both sides. */
static void near_midpoints(float scale, float top, const float *mid, size_t n_mid)
{
    static const int32_t step[] = {0, 1, -1, 2, -2, 0x7fff, -0x7fff, 0x8000, -0x8000, 0x8001, -0x8001, 0x10000, -0x10000, 0x18000};
    static float         x[512];
    size_t               n = 0;

    for (size_t j = 0; j < n_mid; j++) {
        for (size_t k = 0; k < sizeof step / sizeof *step; k++) {
            const int32_t bits = (int32_t)kvi_f32_bits(mid[j] * scale) + step[k];

            if (n % 16 == 0)
                x[n++] = top * scale;
            x[n++] = kvi_bits_f32((uint32_t)(bits < 0 ? 0 : bits) | (uint32_t)(k % 2) << 31);
            if (n == 512) {
                encode_all(x, n);
                n = 0;
            }
        }
    }
    while (n % 32 != 0)
        x[n++] = 0.0f;
    if (n != 0)
        encode_all(x, n);
}

static void test_encode_at_midpoints(void **state)
{
    static const float e2m1[] = {.25f, .5f, .75f, 1, 1.25f, 1.5f, 1.75f, 2, 2.5f, 3, 3.5f, 4, 5, 6, 6.5f, 7};
    static float       fine[254];

    (void)state;
    for (uint8_t code = 1; code < 127; code++)
        near_midpoints(kvi_e4m3_to_f32(code), 6.0f, e2m1, sizeof e2m1 / sizeof *e2m1);
    for (unsigned code = 0; code < 254; code++)
        near_midpoints(kvi_e8m0_to_f32((uint8_t)code), 6.0f, e2m1, sizeof e2m1 / sizeof *e2m1);
    for (uint8_t code = 0; code < 126; code++) { /* E4M3: values and the middles between two */
        fine[2 * code] = kvi_e4m3_to_f32(code);
        fine[2 * code + 1] = 0.5f * (kvi_e4m3_to_f32(code) + kvi_e4m3_to_f32((uint8_t)(code + 1)));
    }
    fine[252] = 448.0f;
    fine[253] = 463.0f;
    for (unsigned code = 0; code < 250; code += 7)
        near_midpoints(kvi_e8m0_to_f32((uint8_t)code), 448.0f, fine, 254);
}

/* Where the scale changes: amax around each value of 6 (448, 127) times a code or a middle of codes. */
static void test_encode_where_scales_round(void **state)
{
    static const float factor[] = {6.0f, 448.0f, 127.0f};
    static float       x[512];
    size_t             n = 0;

    (void)state;
    for (size_t k = 0; k < 3; k++) {
        for (unsigned code = 0; code < 126; code++) {
            for (unsigned j = 0; j < 2; j++) {
                const float    v = kvi_e4m3_to_f32((uint8_t)code);
                const float    s = j ? 0.5f * (v + kvi_e4m3_to_f32((uint8_t)(code + 1))) : v;
                const uint32_t middle = kvi_f32_bits(factor[k] * s) & ~0x7fffu;

                for (uint32_t i = 0; i < 8; i++) { /* halves of a bf16 step */
                    const uint32_t bits = middle + 0x8000u * i;

                    x[n] = kvi_bits_f32(bits < 0x20000u ? bits : bits - 0x20000u);
                    for (size_t c = 1; c < 32; c++)
                        x[n + c] = x[n] * (c % 2 ? -0.9f : 0.8f) / (float)c;
                    n = (n + 32) % 512;
                    if (n == 0)
                        encode_all(x, 512);
                }
            }
        }
    }
}

static float any_float(prng *r, unsigned kind)
{
    const uint32_t bits = (uint32_t)prng_u64(r);

    switch (kind) {
    case 0: /* any bits */
        return kvi_bits_f32(bits);
    case 1: /* like activations */
        return prng_normal(r);
    case 2: /* tiny */
        return kvi_bits_f32(bits & 0x80ffffffu);
    case 3: /* huge, finite */
        return kvi_bits_f32((bits & 0x81ffffffu) | 0x7e000000u) * 0.5f;
    case 4: /* few values, zeros of both signs */
        return (float)((int)(bits % 5) - 2) * 0.5f * (bits & 64 ? 1.0f : -1.0f);
    default: /* over many orders of magnitude */
        return prng_normal(r) * ldexpf(1, (int)(bits % 60) - 40);
    }
}

static void test_encode_random(void **state)
{
    static float x[MAX_WIDTH];
    prng         r;

    (void)state;
    prng_init(&r, seed);
    for (unsigned run = 0; run < 120; run++) {
        const size_t width = run < 100 ? 16 * (1 + prng_below(&r, 40)) : 1 + prng_below(&r, 70);

        for (size_t i = 0; i < width; i++)
            x[i] = any_float(&r, run % 6);
        encode_all(x, width);
        if (width >= 32) { /* one bad channel spoils its own group only */
            static const uint32_t bad[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001, 0x7f7f8000, 0x7f7f7fff, 0xffffffff};

            for (size_t i = 0; i < width; i++)
                x[i] = any_float(&r, 1);
            x[prng_below(&r, (uint32_t)width)] = kvi_bits_f32(bad[run % 7]);
            encode_all(x, width);
        }
    }
    for (size_t i = 0; i < MAX_WIDTH; i++)
        x[i] = any_float(&r, 5);
    encode_all(x, MAX_WIDTH);
    memset(x, 0, sizeof x);
    encode_all(x, 512);
}

/* ---------------------------------------------------------------- decoders */

/* Bits are equal, but where two NaNs meet in a product: which of them survives is the compiler's choice. */
static void assert_same_floats(const float *got, const float *want, size_t n, int two_nans)
{
    for (size_t i = 0; i < n; i++) {
        if (two_nans && isnan(want[i]))
            assert_true(isnan(got[i]));
        else
            assert_int_equal(kvi_f32_bits(got[i]), kvi_f32_bits(want[i]));
    }
}

static void decode_row(uint32_t format, const uint8_t *row, size_t width)
{
    static float want[MAX_WIDTH];
    static float got[MAX_WIDTH];
    const int    two_nans = format == KVCSA_FORMAT_FP8_E8M0_G32;

    ref.decode_entry(format, row, (uint32_t)width, want);
    for (size_t m = 0; m < n_kernels; m++) {
        memset(got, 0x11, sizeof got);
        kernels[m].decode_entry(format, row, (uint32_t)width, got);
        assert_same_floats(got, want, width, two_nans);
        if (format == KVCSA_FORMAT_FP8_E8M0_G32) {
            memset(got, 0x11, sizeof got);
            kernels[m].decode_window(row, (uint32_t)width, got);
            assert_same_floats(got, want, width, two_nans);
        }
    }
}

static void test_decode_every_scale_and_code(void **state)
{
    static uint8_t row[1024];

    (void)state;
    for (unsigned scale = 0; scale < 256; scale++) {
        for (size_t i = 0; i < 8; i++) /* codes 0..15, in both nibbles */
            row[i] = (uint8_t)(2 * i | (2 * i + 1) << 4);
        for (size_t i = 8; i < 16; i++)
            row[i] = (uint8_t)((31 - 2 * i) << 4 | (30 - 2 * i));
        memset(row + 16, (int)scale, 2);
        decode_row(KVCSA_FORMAT_FP4_E4M3_G16, row, 32);
        decode_row(KVCSA_FORMAT_FP4_E8M0_G32, row, 32);
        for (size_t i = 0; i < 256; i++)
            row[i] = (uint8_t)i;
        memset(row + 256, (int)scale, 8);
        decode_row(KVCSA_FORMAT_FP8_E8M0_G32, row, 256);
        for (size_t i = 0; i < 256; i++) /* without the NaN codes */
            row[i] = (uint8_t)((i & 127) == 127 ? i - 1 : i);
        decode_row(KVCSA_FORMAT_FP8_E8M0_G32, row, 256);
        row[256 + scale % 8] = 0x80;
        decode_row(KVCSA_FORMAT_FP8_E8M0_G32, row, 256);
    }
}

static void test_decode_every_half(void **state)
{
    static uint8_t row[MAX_WIDTH * 2];
    static uint8_t q8[34 * 16];
    static uint8_t q4[18 * 16];

    (void)state;
    for (uint32_t first = 0; first < 65536; first += 256) {
        for (uint32_t i = 0; i < 256; i++) {
            const uint16_t h = (uint16_t)(first + i);

            memcpy(row + 2 * i, &h, 2);
        }
        decode_row(KVCSA_FORMAT_F16, row, 256);
        decode_row(KVCSA_FORMAT_BF16, row, 256);
        for (uint32_t b = 0; b < 256; b += 16) { /* as scales */
            for (uint32_t i = 0; i < 16; i++) {
                memcpy(q8 + 34 * i, row + 2 * (b + i), 2);
                memcpy(q4 + 18 * i, row + 2 * (b + i), 2);
                for (uint32_t c = 0; c < 32; c++)
                    q8[34 * i + 2 + c] = (uint8_t)(32 * (first / 256 + i) + c);
                for (uint32_t c = 0; c < 16; c++)
                    q4[18 * i + 2 + c] = (uint8_t)(c | (15 - c) << 4);
            }
            decode_row(KVCSA_FORMAT_Q8_0, q8, 512);
            decode_row(KVCSA_FORMAT_Q4_0, q4, 512);
        }
    }
}

static void test_decode_random_bytes(void **state)
{
    static uint8_t row[MAX_ROW];
    prng           r;

    (void)state;
    prng_init(&r, seed + 1);
    for (unsigned run = 0; run < 400; run++) {
        const uint32_t format = formats[run % N_FORMATS];
        const size_t   width = group_of(format) * (1 + prng_below(&r, 40));

        prng_fill(&r, row, kvi_format_row_bytes(format, (uint32_t)width));
        if (run % 3 == 0 && format != KVCSA_FORMAT_F32 && format != KVCSA_FORMAT_FP4_AS_F32)
            for (size_t i = 0; i < sizeof row; i++) /* nothing special */
                row[i] &= 0x7b;
        decode_row(format, row, width);
    }
}

/* ---------------------------------------------------------------- bounds and alignment */

static void test_arrays_may_lie_anywhere(void **state)
{
    arena  in;
    arena  out;
    prng   r;

    (void)state;
    prng_init(&r, seed + 2);
    arena_init(&in, MAX_WIDTH * 4);
    arena_init(&out, MAX_WIDTH * 4);
    for (size_t f = 0; f < N_FORMATS; f++) {
        static const size_t groups[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33};

        for (size_t w = 0; w < sizeof groups / sizeof *groups; w++) {
            const size_t width = groups[w] * group_of(formats[f]);
            const size_t bytes = kvi_format_row_bytes(formats[f], (uint32_t)width);

            for (size_t m = 0; m < n_kernels; m++) {
                for (int at_end = 0; at_end < 2; at_end++) {
                    static float   x[2048];
                    static uint8_t want[8192];
                    float         *px = arena_put(&in, width * sizeof *px, at_end);
                    uint8_t       *row = arena_put(&out, bytes, at_end);

                    for (size_t i = 0; i < width; i++)
                        x[i] = prng_normal(&r);
                    memcpy(px, x, width * sizeof *px);
                    ref.encode_entry(formats[f], x, (uint32_t)width, want);
                    kernels[m].encode_entry(formats[f], px, (uint32_t)width, row);
                    assert_memory_equal(row, want, bytes);
                    arena_check(&out, bytes, at_end);
                    px = arena_put(&in, width * sizeof *px, at_end);
                    kernels[m].decode_entry(formats[f], row, (uint32_t)width, px);
                    arena_check(&in, width * sizeof *px, at_end);
                    ref.decode_entry(formats[f], want, (uint32_t)width, x);
                    assert_memory_equal(px, x, width * sizeof *px);
                }
            }
        }
    }
    arena_fini(&in);
    arena_fini(&out);
}

static void test_rows_at_any_byte(void **state)
{
    static uint8_t raw[4 * 512 + 64];
    static uint8_t out[1024 + 64];
    static float   x[512];
    static uint8_t want[1024];
    prng           r;

    (void)state;
    prng_init(&r, seed + 3);
    for (size_t i = 0; i < 512; i++)
        x[i] = prng_normal(&r);
    for (size_t m = 0; m < n_kernels; m++) {
        for (size_t off = 0; off < 64; off += 7) { /* bytes may lie anywhere, floats at multiples of 4 */
            float *px = (float *)(void *)(raw + off / 4 * 4);

            memcpy(px, x, sizeof x);
            memset(out, 0xA7, sizeof out);
            ref.encode_window(x, 512, want);
            kernels[m].encode_window(px, 512, out + off);
            assert_memory_equal(out + off, want, 528);
            for (size_t i = 0; i < sizeof out; i++)
                if (i < off || i >= off + 528)
                    assert_int_equal(out[i], 0xA7);
            kernels[m].decode_window(out + off, 512, px);
            ref.decode_window(want, 512, x);
            assert_memory_equal(px, x, sizeof x);
        }
    }
}

/* ---------------------------------------------------------------- operators */

static void *copy_of(const void *p, size_t bytes)
{
    void *q = malloc(bytes);

    assert_non_null(q);
    memcpy(q, p, bytes);
    return q;
}

typedef struct results {
    uint8_t *window;
    int8_t  *codes;
    float   *scales;
    uint8_t *main[8];
    uint8_t *index[8];
    float   *pooled;
} results;

enum { ROWS = 300, WIDTH = 512, INDEX_WIDTH = 128, HEADS = 3, BLOCKS = 8, PER_BLOCK = 64, FIRST = 70 };

static void run_operators(kvi_device *dev, const float *x, results *out, size_t step)
{
    const kvi_kv_owner owner = {.rows_per_block = PER_BLOCK, .entry_width = WIDTH, .entry_format = KVCSA_FORMAT_FP4_E4M3_G16,
                                .main_row_bytes = 288, .index_width = INDEX_WIDTH, .index_value_bytes = 64, .index_row_bytes = 68,
                                .index_off = 3, .main_off = 5};

    for (size_t i = 0; i < ROWS; i += step) {
        const size_t n = ROWS - i < step ? ROWS - i : step;
        const kvi_window_write_params w = {.x = x + i * (WIDTH + 1), .rows = out->window + i * 528, .x_stride = WIDTH + 1, .n_rows = n,
                                           .width = WIDTH, .row_bytes = 528};
        const kvi_index_query_params  q = {.x = x + i * HEADS * INDEX_WIDTH, .codes = out->codes + i * HEADS * INDEX_WIDTH,
                                           .scales = out->scales + i * HEADS * 4, .n_rows = n, .n_heads = HEADS,
                                           .width = INDEX_WIDTH};
        const kvi_entry_write_params  e = {.to = {&owner, out->index, out->main}, .latent = x + i * WIDTH,
                                           .key = x + i * INDEX_WIDTH, .first_entry = FIRST + i, .n_rows = n};
        const kvi_pool_pairs_params   p = {.k = x + 2 * i * 96, .gate = x + 2 * i * 96 + 7, .out = out->pooled + i * 96,
                                           .n_pairs = n, .width = 96};

        assert_int_equal(kvi_cpu_window_write(dev, &w, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_index_query(dev, &q, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_entry_write(dev, &e, NULL), KVCSA_OK);
        assert_int_equal(kvi_cpu_pool_pairs(dev, &p, NULL), KVCSA_OK);
    }
}

static void results_init(results *r)
{
    r->window = calloc(ROWS, 528);
    r->codes = calloc(ROWS, HEADS * INDEX_WIDTH);
    r->scales = calloc(ROWS, HEADS * 4 * sizeof(float));
    r->pooled = calloc(ROWS, 96 * sizeof(float));
    for (size_t b = 0; b < BLOCKS; b++) {
        r->main[b] = calloc(1, 5 + PER_BLOCK * 288);
        r->index[b] = calloc(1, 3 + PER_BLOCK * 68);
    }
}

static void results_fini(results *r)
{
    free(r->window);
    free(r->codes);
    free(r->scales);
    free(r->pooled);
    for (size_t b = 0; b < BLOCKS; b++) {
        free(r->main[b]);
        free(r->index[b]);
    }
}

/* Threads, the number of rows in a call and the instruction set do not show. */
static void test_operators_agree(void **state)
{
    const size_t    n = (size_t)ROWS * (WIDTH + 1) + 64;
    kvcsa_allocator memory;
    kvi_device      dev;
    results         want, got, pooled;
    float          *x = malloc(n * sizeof *x);
    prng            r;

    (void)state;
    prng_init(&r, seed + 4);
    for (size_t i = 0; i < n; i++)
        x[i] = prng_normal(&r) * ldexpf(1, (int)prng_below(&r, 12) - 6);
    assert_int_equal(kvi_allocator_import(NULL, &memory, NULL), KVCSA_OK);
    results_init(&want);
    results_init(&pooled);
    kvi_cpu_device_init(&dev, &memory, NULL, 0);
    run_operators(&dev, x, &want, ROWS);
    for (size_t m = 0; m < n_kernels; m++) {
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
            kvi_threads *threads = NULL;

            assert_int_equal(kvi_threads_create(&memory, n_threads, NULL, &threads, NULL), KVCSA_OK);
            kvi_cpu_device_init(&dev, &memory, threads, kernels[m].flags);
            results_init(&got);
            run_operators(&dev, x, &got, n_threads == 3 ? 1 : ROWS);
            assert_memory_equal(got.window, want.window, ROWS * 528);
            assert_memory_equal(got.codes, want.codes, ROWS * HEADS * INDEX_WIDTH);
            assert_memory_equal(got.scales, want.scales, ROWS * HEADS * 4 * sizeof(float));
            for (size_t b = 0; b < BLOCKS; b++) {
                assert_memory_equal(got.main[b], want.main[b], 5 + PER_BLOCK * 288);
                assert_memory_equal(got.index[b], want.index[b], 3 + PER_BLOCK * 68);
            }
            if (m == 0 && n_threads == 1)
                memcpy(pooled.pooled, got.pooled, ROWS * 96 * sizeof(float));
            assert_memory_equal(got.pooled, pooled.pooled, ROWS * 96 * sizeof(float));
            results_fini(&got);
            kvi_threads_destroy(threads);
        }
    }
    results_fini(&want);
    results_fini(&pooled);
    free(x);
}

/* ---------------------------------------------------------------- pooling */

/* v16_exp, written from its description for one number. */
static float naive_exp(float x)
{
    static const float c[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    float n, r, p;

    if (isnan(x))
        return x;
    if (x > 88.722839f)
        return INFINITY;
    if (x < -87.33654f)
        return 0.0f;
    n = rintf(x * 1.44269504088896341f);
    r = fmaf(n, 2.12194440e-4f, fmaf(-n, 0.693359375f, x));
    p = c[0];
    for (size_t i = 1; i < 6; i++)
        p = fmaf(p, r, c[i]);
    return ldexpf(fmaf(p, r * r, r) + 1.0f, (int)n);
}

static float naive_pool(float k0, float k1, float g0, float g1)
{
    const float m = g0 > g1 ? g0 : g1;
    const float e0 = naive_exp(g0 - m);
    const float e1 = naive_exp(g1 - m);
    const float sum = e0 + e1;
    const float a = k0 * (e0 / sum);
    const float b = k1 * (e1 / sum);

    return a + b;
}

static void test_pool_pair_is_the_oracle(void **state)
{
    static const float special[] = {0.0f, -0.0f, 1.0f, -87.3f, -87.4f, -200.0f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN, 1e-40f};
    enum { N = sizeof special / sizeof *special, W = N * N };
    static float k[2 * W], g[2 * W], got[W], want[W];
    prng         r;

    (void)state;
    prng_init(&r, seed + 5);
    for (unsigned run = 0; run < 60; run++) {
        const uint32_t width = run < 4 ? W : 1 + (uint32_t)prng_below(&r, 70);

        for (uint32_t i = 0; i < 2 * width; i++) {
            k[i] = prng_normal(&r);
            g[i] = prng_normal(&r) * (run % 3 == 0 ? 30.0f : 3.0f);
        }
        for (uint32_t i = 0; i < W && run < 2; i++) {
            g[i] = special[i / N];
            g[W + i] = special[i % N];
            if (run == 1) {
                k[i] = special[i % N];
                k[W + i] = special[i / N];
            }
        }
        kvi_ref_pool_pair((const float *[]){k, k + width}, (const float *[]){g, g + width}, width, want);
        for (size_t m = 0; m < n_kernels; m++) {
            float *exact_k = copy_of(k, 2 * width * sizeof *k); /* so that ASan sees a read behind it */
            float *exact_g = copy_of(g, 2 * width * sizeof *g);

            memset(got, 0x11, sizeof got);
            kernels[m].pool_pair((const float *[]){exact_k, exact_k + width}, (const float *[]){exact_g, exact_g + width}, width,
                                 got);
            for (uint32_t c = 0; c < width; c++) {
                const float naive = naive_pool(k[c], k[width + c], g[c], g[width + c]);

                assert_true(isnan(naive) ? isnan(got[c]) : kvi_f32_bits(naive) == kvi_f32_bits(got[c]));
                assert_int_equal(isnan(want[c]), isnan(got[c]));
                assert_int_equal(isinf(want[c]), isinf(got[c]));
                /* A weight is e_i / (e0 + e1). The larger e is exactly 1, the other one has 0.51 ulp of error here and 1.5 there,
                 * which moves a weight by 2.01 ulp at most; sum, quotient, product and last sum add half an ulp each on both
                 * sides: less than 8 * 2^-23 of the magnitudes. v16_exp says 0 below 2^-126. */
                if (isfinite(want[c]))
                    assert_true(fabsf(want[c] - got[c]) <= 8 * 0x1p-23f * (fabsf(k[c]) + fabsf(k[width + c])) + 0x1p-120f);
            }
            for (uint32_t c = width; c < W; c++)
                assert_int_equal(kvi_f32_bits(got[c]), 0x11111111);
            free(exact_k);
            free(exact_g);
        }
    }
}

/* ---------------------------------------------------------------- */

static void add_mask(uint32_t mask, uint32_t have, const char *name)
{
    if ((mask & have) != mask) {
        printf("# %s: not on this machine, skipped\n", name);
        return;
    }
    kvi_cache_init(&kernels[n_kernels++], mask);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_every_bf16_in_order),
        cmocka_unit_test(test_encode_every_bf16_under_a_larger_one),
        cmocka_unit_test(test_encode_at_midpoints),
        cmocka_unit_test(test_encode_where_scales_round),
        cmocka_unit_test(test_encode_random),
        cmocka_unit_test(test_decode_every_scale_and_code),
        cmocka_unit_test(test_decode_every_half),
        cmocka_unit_test(test_decode_random_bytes),
        cmocka_unit_test(test_arrays_may_lie_anywhere),
        cmocka_unit_test(test_rows_at_any_byte),
        cmocka_unit_test(test_operators_agree),
        cmocka_unit_test(test_pool_pair_is_the_oracle),
    };
    const uint32_t have = kvi_cpu_flags(0);

    seed = prng_seed(argc, argv, 20261);
    kvi_cache_init(&ref, 0);
#if defined(KVI_ARCH_X86_64)
    add_mask(KVCSA_CPU_AVX2, have, "avx2");
    add_mask(KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512, have, "avx512");
#elif defined(KVI_ARCH_ARM64)
    add_mask(KVCSA_CPU_NEON, have, "neon");
    add_mask(KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD, have, "dotprod");
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
