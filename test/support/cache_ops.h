/* What the tests of the cache operators share: guarded memory, devices with 1 to 3 threads on one allocator that can fail, the
 * element types by their definition, and blocks of entries to read and write. Nothing of it uses the formats or the kernels. */
#ifndef CACHE_OPS_H
#define CACHE_OPS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fmath.h"
#include "cpu/cpu_ops.h"
#include "support/fault_alloc.h"
#include "support/prng.h"

enum { N_DEVICES = 3, GUARD = 64 };

static uint64_t   seed;
static fault_alloc memory;
static kvi_device devices[N_DEVICES]; /* 1, 2 and 3 threads */

static inline void *get(size_t bytes) /* with guard bytes behind, and full of a value that no operator writes */
{
    uint8_t *p = malloc(bytes + GUARD);

    assert_non_null(p);
    memset(p, 0xA7, bytes + GUARD);
    return p;
}

static inline void check_guard(const void *p, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(((const uint8_t *)p)[bytes + i], 0xA7);
}

static inline void fill_normal(prng *r, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = prng_normal(r) * scale;
}

/* ---------------------------------------------------------------- formats, from docs/formats.md */

static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

static inline double e4m3(unsigned code)
{
    const unsigned e = code >> 3 & 15;
    const unsigned m = code & 7;
    const double   v = e == 0 ? m * 0x1p-9 : ldexp(1 + m / 8.0, (int)e - 7);

    if ((code & 0x7f) == 0x7f)
        return NAN;
    return code & 0x80 ? -v : v;
}

static inline double e8m0(unsigned code)
{
    return code == 255 ? NAN : ldexp(1, (int)code - 127);
}

static inline float bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, sizeof u);
    return x;
}

/* A packed row as doubles; group = channels with one scale. */
static inline double unpacked(const uint8_t *values, const uint8_t *scales, size_t c, size_t group)
{
    const unsigned code = c % 2 != 0 ? values[c / 2] >> 4 : values[c / 2] & 15;
    const double   v = code & 8 ? -e2m1[code & 7] : e2m1[code & 7];

    return v * (group == 16 ? e4m3(scales[c / 16]) : e8m0(scales[c / 32]));
}

/* ---------------------------------------------------------------- entries in blocks */

typedef struct store {
    kvi_kv_owner owner;
    size_t       n_blocks;
    size_t       index_bytes;
    size_t       main_bytes;
    uint8_t     *index_parts[64];
    uint8_t     *main_parts[64];
} store;

/* The owner lies behind others in both parts, so that its offsets count. */
static inline void store_init_format(store *s, uint32_t format, uint32_t row_bytes, uint32_t width, uint32_t index_width,
                                     uint32_t rows_per_block, size_t n_entries)
{
    memset(s, 0, sizeof *s);
    s->owner = (kvi_kv_owner){.layer = 3, .ratio = 1, .rows_per_block = rows_per_block, .entry_width = width,
                              .entry_format = format, .main_row_bytes = row_bytes,
                              .index_width = index_width, .index_value_bytes = index_width / 2,
                              .index_row_bytes = index_width / 2 + index_width / 32, .index_off = 40, .main_off = 24};
    s->n_blocks = (n_entries + rows_per_block - 1) / rows_per_block;
    assert_true(s->n_blocks <= 64 && rows_per_block % 8 == 0);
    s->index_bytes = 40 + (size_t)rows_per_block * s->owner.index_row_bytes;
    s->main_bytes = 24 + (size_t)rows_per_block * s->owner.main_row_bytes;
    for (size_t b = 0; b < s->n_blocks; b++) {
        s->index_parts[b] = get(s->index_bytes);
        s->main_parts[b] = get(s->main_bytes);
    }
}

/* In the model's format. */
static inline void store_init(store *s, uint32_t width, uint32_t index_width, uint32_t rows_per_block, size_t n_entries)
{
    store_init_format(s, KVCSA_FORMAT_FP4_E4M3_G16, width / 2 + width / 16, width, index_width, rows_per_block, n_entries);
}

static inline void store_fini(store *s)
{
    for (size_t b = 0; b < s->n_blocks; b++) {
        check_guard(s->index_parts[b], s->index_bytes);
        check_guard(s->main_parts[b], s->main_bytes);
        free(s->index_parts[b]);
        free(s->main_parts[b]);
    }
}

static inline kvi_entries entries_of(const store *s)
{
    return (kvi_entries){&s->owner, s->index_parts, s->main_parts};
}

static inline uint8_t *main_row(const store *s, size_t entry)
{
    return s->main_parts[entry / s->owner.rows_per_block] + 24 +
           entry % s->owner.rows_per_block * s->owner.main_row_bytes;
}

/* Groups of 8 rows: 8 x values, then 8 x scales. */
static inline uint8_t *index_values(const store *s, size_t entry)
{
    const size_t row = entry % s->owner.rows_per_block;

    return s->index_parts[entry / s->owner.rows_per_block] + 40 + row / 8 * 8 * s->owner.index_row_bytes +
           row % 8 * s->owner.index_value_bytes;
}

static inline uint8_t *index_scales(const store *s, size_t entry)
{
    const size_t row = entry % s->owner.rows_per_block;

    return s->index_parts[entry / s->owner.rows_per_block] + 40 + row / 8 * 8 * s->owner.index_row_bytes +
           (size_t)8 * s->owner.index_value_bytes + row % 8 * (s->owner.index_width / 32);
}

/* Valid random bytes of the model's format: no NaN, scales near 1. */
static inline void store_fill(store *s, prng *r)
{
    for (size_t e = 0; e < s->n_blocks * s->owner.rows_per_block; e++) {
        prng_fill(r, index_values(s, e), s->owner.index_value_bytes);
        prng_fill(r, main_row(s, e), s->owner.entry_width / 2);
        for (size_t g = 0; g < s->owner.index_width / 32; g++)
            index_scales(s, e)[g] = (uint8_t)prng_range(r, 120, 132);
        for (size_t g = 0; g < s->owner.entry_width / 16; g++)
            main_row(s, e)[s->owner.entry_width / 2 + g] = (uint8_t)prng_range(r, 0x18, 0x34);
    }
}

/* ---------------------------------------------------------------- devices */

static inline int open_devices(void **state)
{
    (void)state;
    fault_alloc_init(&memory);
    for (uint32_t d = 0; d < N_DEVICES; d++) {
        kvi_threads *threads = NULL;

        assert_int_equal(kvi_threads_create(&memory.hook, d + 1, NULL, &threads, NULL), KVCSA_OK);
        kvi_cpu_device_init(&devices[d], &memory.hook, threads, 0);
    }
    return 0;
}

static inline int close_devices(void **state)
{
    (void)state;
    for (uint32_t d = 0; d < N_DEVICES; d++)
        kvi_threads_destroy(devices[d].threads);
    return fault_alloc_is_clean(&memory) ? 0 : -1;
}

/* ---------------------------------------------------------------- out of memory */

/* Runs an operator again and again while its first, second, ... allocation fails, on every device. */
static inline void check_scratch_failures(kvcsa_status (*run)(kvi_device *dev, prng *r), prng *r)
{
    for (size_t d = 0; d < N_DEVICES; d++) {
        const size_t before = memory.n_blocks; /* the devices' threads */
        size_t       n_hits = 0;

        for (uint64_t n = 1;; n++) {
            kvcsa_status st;

            fault_alloc_fail_at(&memory, n);
            st = run(&devices[d], r);
            assert_int_equal(memory.n_blocks, before);
            assert_int_equal(memory.n_bad, 0);
            if (!fault_alloc_hit(&memory)) {
                assert_int_equal(st, KVCSA_OK);
                break;
            }
            assert_int_equal(st, KVCSA_ERR_NOMEM);
            n_hits++;
            assert_true(n < 100);
        }
        fault_alloc_fail_at(&memory, 0);
        assert_true(n_hits >= 1);
    }
}

#endif
