/* Entries of many timelines in one call, pool_pairs and entry_write with `of`, beside the CPU's calls for one pair and one row:
 * bit for bit. Every other case is recorded while there is nothing to do, and replayed once the tables say what there is. */
#include "cuda/cuda_check.h"

#include "format/row.h"

#include <stdio.h>
#include <string.h>

enum { MAX_SLICES = 12, MAX_BLOCKS = 8 };

static void *some(size_t n) /* never NULL */
{
    void *p = malloc(n + 1);

    assert_non_null(p);
    memset(p, 0xff, n + 1); /* floats that are NaN */
    return p;
}

static uint32_t below(uint32_t n) { return prng() % n; }

/* Groups of different sizes, ties, and now and then a special value. */
static void values(float *x, size_t n)
{
    static const float special[] = {NAN, INFINITY, -INFINITY, 3e38f, -0.0f, 0x1p-149f, -88.0f, 0x1.01p0f};
    float              size = 1.0f;

    fill(x, n, 6.0f);
    for (size_t i = 0; i < n; i++) {
        if (i % 16 == 0)
            size = ldexpf(1.0f, (int)below(12) - 6);
        x[i] = below(211) == 0 ? special[below(8)] : below(5) == 0 ? (float)((int)below(49) - 24) * 0.25f * size : x[i] * size;
    }
}

/* What stands in a table on the device before the run that was recorded. */
typedef struct tables {
    void       *device;
    const void *then;
    size_t      size;
} tables;

static void replay(kvi_graph **graph, const tables *t)
{
    kvcsa_error err = {0};

    must(gpu_ops->graph_end(gpu, graph, &err), &err);
    must(gpu_ops->mem_copy(gpu, t->device, t->then, t->size, KVI_COPY_IN, &err), &err);
    must(gpu_ops->graph_run(gpu, *graph, &err), &err);
    must(gpu_ops->sync(gpu, &err), &err);
    gpu_ops->graph_free(gpu, *graph);
}

#define RUN_ONCE(op, params, recorded, table)                                                                                  \
    do {                                                                                                                       \
        const uint64_t run_before = emulated ? emu.launches() : 0;                                                             \
        kvi_graph     *run_graph = NULL;                                                                                       \
        kvcsa_error    run_err = {0};                                                                                          \
        if (recorded)                                                                                                          \
            must(gpu_ops->graph_begin(gpu, &run_err), &run_err);                                                               \
        GPU(op, params);                                                                                                       \
        if (recorded)                                                                                                          \
            replay(&run_graph, table);                                                                                         \
        must(gpu_ops->sync(gpu, &run_err), &run_err);                                                                          \
        if (emulated)                                                                                                          \
            assert_int_equal(emu.launches() - run_before, 1);                                                                  \
    } while (0)

/* ---------------------------------------------------------------- pairs */

typedef struct pair_shape {
    size_t   n, each;    /* timelines, pairs of each */
    uint32_t width, slots, pad, off; /* of a page of raw rows: floats behind a slot, bytes in front */
    uint32_t parity;     /* of the first positions: 0, 1, 2 = mixed */
    uint32_t missing;    /* one pair of so many is none; 1 = all, 0 = no one */
} pair_shape;

typedef struct pair_case {
    pair_shape     s;
    size_t         n_pairs, n_rows, page_bytes;
    float         *k, *gate;             /* [n_rows, width]; NaN between the timelines */
    uint8_t       *pages[MAX_SLICES];    /* NULL = none is needed */
    kvi_slice_rows rows[MAX_SLICES];
    uint64_t      *entry_pos;
    bool           recorded;
} pair_case;

static size_t slot_bytes(const pair_shape *s) { return (2 * (size_t)s->width + s->pad) * sizeof(float); }

static void pair_case_init(pair_case *c, const pair_shape *s, size_t last)
{
    memset(c, 0, sizeof *c);
    c->s = *s;
    c->n_pairs = (s->n - 1) * s->each + last;
    c->page_bytes = s->off + s->slots * slot_bytes(s);
    c->n_rows = s->n * (2 * s->each + 1);
    c->k = some(c->n_rows * s->width * sizeof *c->k);
    c->gate = some(c->n_rows * s->width * sizeof *c->gate);
    c->entry_pos = some(c->n_pairs * sizeof *c->entry_pos);
    for (size_t i = 0; i < s->n; i++) {
        const size_t    each = i + 1 < s->n ? s->each : last;
        const uint64_t  pos = 2 * (uint64_t)(1 + below(1000)) + (s->parity == 2 ? i % 2 : s->parity);
        kvi_slice_rows *r = &c->rows[i];

        *r = (kvi_slice_rows){.pos = pos, .row = (s->n - 1 - i) * (2 * s->each + 1), .floor = UINT64_MAX};
        values(c->k + r->row * s->width, 2 * s->each * s->width);
        values(c->gate + r->row * s->width, 2 * s->each * s->width);
        for (size_t j = 0; j < each; j++)
            c->entry_pos[i * s->each + j] = s->missing && below(s->missing) == 0 ? KVI_NO_ENTRY : pos - pos % 2 + 2 * j;
        if (pos % 2 && c->entry_pos[i * s->each] != KVI_NO_ENTRY) {
            float *raw = some(slot_bytes(s));

            c->pages[i] = some(c->page_bytes);
            values(raw, 2 * (size_t)s->width);
            memcpy(c->pages[i] + s->off + pos / 2 % s->slots * slot_bytes(s), raw, slot_bytes(s));
            free(raw);
        }
    }
}

static void pair_case_fini(pair_case *c)
{
    for (size_t i = 0; i < c->s.n; i++)
        free(c->pages[i]);
    free(c->k);
    free(c->gate);
    free(c->entry_pos);
}

static void run_pairs(const void *arg, void *out)
{
    const pair_case *c = arg;
    const size_t     n = c->n_rows * c->s.width, entries = c->n_pairs * sizeof *c->entry_pos;
    kvi_slice        slices[MAX_SLICES] = {{0}};
    void            *entry_pos = to_device(c->recorded ? NULL : c->entry_pos, entries);
    const tables     t = {entry_pos, c->entry_pos, entries};
    float           *o = to_device(NULL, c->n_pairs * c->s.width * sizeof *o);
    kvcsa_error      err = {0};

    for (size_t i = 0; i < c->s.n; i++)
        slices[i].pending = c->pages[i] ? to_device(c->pages[i], c->page_bytes) : NULL;
    const kvi_pool_pairs_params p = {.k = to_device(c->k, n * sizeof *c->k), .gate = to_device(c->gate, n * sizeof *c->gate),
                                     .out = o, .n_pairs = c->n_pairs, .width = c->s.width,
                                     .of = {to_device(slices, c->s.n * sizeof *slices),
                                            to_device(c->rows, c->s.n * sizeof *c->rows), c->s.each},
                                     .entry_pos = entry_pos, .pending_off = c->s.off, .pending_slots = c->s.slots,
                                     .pending_bytes = (uint32_t)slot_bytes(&c->s)};
    if (c->recorded) /* nothing to do */
        must(gpu_ops->mem_fill(gpu, entry_pos, 0xff, entries, &err), &err);
    RUN_ONCE(pool_pairs, &p, c->recorded, &t);
    from_device(out, o, c->n_pairs * c->s.width * sizeof *o);
    device_free_all();
}

static void check_pairs(const pair_case *c)
{
    const size_t width = c->s.width;
    float       *got = some(c->n_pairs * width * sizeof *got), *want = some(width * sizeof *want);

    gpu_run(run_pairs, c, got, c->n_pairs * width * sizeof *got);
    for (size_t j = 0; j < c->n_pairs; j++) {
        const size_t          i = j / c->s.each;
        const kvi_slice_rows *r = &c->rows[i];
        const uint64_t        pos = c->entry_pos[j];
        kvi_pool_pairs_params p = {.out = want, .n_pairs = 1, .width = c->s.width};
        size_t                row = r->row + (size_t)(pos - r->pos);

        memset(want, 0, width * sizeof *want);
        if (pos != KVI_NO_ENTRY) {
            if (pos < r->pos) {
                p.head = (const float *)(const void *)(c->pages[i] + c->s.off + pos / 2 % c->s.slots * slot_bytes(&c->s));
                row = r->row;
            }
            p.k = c->k + row * width;
            p.gate = c->gate + row * width;
            CPU(pool_pairs, &p);
        }
        for (size_t x = 0; x < width; x++)
            if (isnan(want[x]) ? !isnan(got[j * width + x]) : memcmp(&want[x], &got[j * width + x], sizeof *want) != 0)
                fail_msg("pair %zu of timeline %zu, channel %zu: %a, not %a", j, i, x, (double)got[j * width + x],
                         (double)want[x]);
    }
    free(got);
    free(want);
}

static void test_pairs(void **state)
{
    static const pair_shape shapes[] = {
        /* timelines, pairs, width, slots, pad, off, parity, missing */
        {1, 1, 4, 1, 0, 0, 0, 0},     {1, 1, 4, 1, 0, 0, 1, 0},      {1, 1, 512, 64, 0, 16, 1, 1}, {3, 1, 512, 64, 0, 64, 2, 0},
        {2, 1, 128, 2, 0, 4, 1, 0},   {12, 1, 33, 5, 1, 4, 2, 3},    {4, 3, 64, 3, 0, 0, 2, 0},    {4, 3, 64, 3, 0, 0, 2, 2},
        {4, 3, 1, 3, 2, 12, 2, 2},    {2, 7, 576, 4, 4, 32, 2, 4},   {3, 64, 32, 64, 0, 0, 2, 5},  {5, 2, 31, 9, 3, 20, 1, 2},
        {5, 2, 513, 9, 0, 4, 2, 0},   {5, 2, 512, 9, 1, 8, 2, 0},    {6, 1, 127, 1, 0, 0, 0, 2},   {6, 1, 127, 1, 0, 0, 1, 2},
        {9, 4, 2, 7, 0, 8, 2, 1},     {2, 33, 96, 33, 0, 48, 1, 33}, {7, 1, 1000, 2, 0, 0, 2, 0},  {7, 1, 2052, 2, 0, 16, 2, 4},
        {1, 129, 36, 17, 0, 0, 1, 9}, {12, 2, 256, 64, 0, 0, 2, 3},
    };

    (void)state;
    prng_seed(31);
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        const pair_shape *s = &shapes[i / 2];
        pair_case         c;

        pair_case_init(&c, s, i % 4 < 2 ? s->each : (s->each + 1) / 2); /* the last may have fewer */
        c.recorded = i % 2;
        check_pairs(&c);
        pair_case_fini(&c);
    }
}

/* ---------------------------------------------------------------- entries */

typedef struct entry_shape {
    size_t   n, each;
    uint32_t format, width, index_width, per_block, ratio, off, missing;
} entry_shape;

typedef struct entry_case {
    entry_shape  s;
    kvi_kv_owner owner;
    size_t       n_rows, main_bytes, index_bytes; /* of a part */
    float       *latent, *key;
    uint64_t    *entry_pos;
    bool         recorded;
} entry_case;

static size_t slice_bytes(const entry_case *c) { return MAX_BLOCKS * (c->main_bytes + c->index_bytes); }

static void entry_case_init(entry_case *c, const entry_shape *s, size_t last)
{
    kvi_kv_owner *o = &c->owner;

    memset(c, 0, sizeof *c);
    c->s = *s;
    *o = (kvi_kv_owner){.rows_per_block = s->per_block, .entry_width = s->width, .entry_format = s->format,
                        .main_row_bytes = kvi_format_row_bytes(s->format, s->width), .index_width = s->index_width,
                        .index_value_bytes = s->index_width / 2, .index_row_bytes = s->index_width / 2 + s->index_width / 32,
                        .index_off = s->off, .main_off = s->off};
    assert_int_not_equal(o->main_row_bytes, 0);
    c->n_rows = (s->n - 1) * s->each + last;
    c->main_bytes = s->off + (size_t)s->per_block * o->main_row_bytes;
    c->index_bytes = s->off + (size_t)s->per_block * o->index_row_bytes;
    c->latent = some(c->n_rows * s->width * sizeof *c->latent);
    c->key = some(c->n_rows * s->index_width * sizeof *c->key);
    c->entry_pos = some(c->n_rows * sizeof *c->entry_pos);
    values(c->latent, c->n_rows * s->width);
    values(c->key, c->n_rows * s->index_width);
    assert_true(2 * s->each <= (size_t)MAX_BLOCKS * s->per_block);
    for (size_t i = 0; i < s->n; i++) {
        uint64_t entry = below((uint32_t)(MAX_BLOCKS * s->per_block - 2 * s->each + 1));

        for (size_t j = i * s->each; j < (i + 1) * s->each && j < c->n_rows; j++, entry += 1 + below(2))
            c->entry_pos[j] = s->missing && below(s->missing) == 0 ? KVI_NO_ENTRY : entry * s->ratio + below(s->ratio);
    }
}

static void entry_case_fini(entry_case *c)
{
    free(c->latent);
    free(c->key);
    free(c->entry_pos);
}

static void run_entries(const void *arg, void *out)
{
    const entry_case *c = arg;
    const size_t      entries = c->n_rows * sizeof *c->entry_pos;
    uint8_t          *parts[2][MAX_SLICES][MAX_BLOCKS], *to = out;
    kvi_slice         slices[MAX_SLICES] = {{0}};
    void             *entry_pos = to_device(c->recorded ? NULL : c->entry_pos, entries);
    const tables      t = {entry_pos, c->entry_pos, entries};
    kvcsa_error       err = {0};

    for (size_t i = 0; i < c->s.n; i++) {
        for (size_t b = 0; b < MAX_BLOCKS; b++) {
            parts[0][i][b] = to_device(NULL, c->main_bytes);
            parts[1][i][b] = to_device(NULL, c->index_bytes);
        }
        slices[i].main_parts = table_to_device(parts[0][i], MAX_BLOCKS);
        slices[i].index_parts = c->s.index_width ? table_to_device(parts[1][i], MAX_BLOCKS) : NULL;
    }
    const kvi_entry_write_params p = {.to = {.owner = &c->owner},
                                      .latent = to_device(c->latent, c->n_rows * c->s.width * sizeof(float)),
                                      .key = to_device(c->key, c->n_rows * c->s.index_width * sizeof(float)), .n_rows = c->n_rows,
                                      .of = {.slices = to_device(slices, c->s.n * sizeof *slices), .each = c->s.each},
                                      .entry_pos = entry_pos, .ratio = c->s.ratio};
    if (c->recorded)
        must(gpu_ops->mem_fill(gpu, entry_pos, 0xff, entries, &err), &err);
    RUN_ONCE(entry_write, &p, c->recorded, &t);
    for (size_t i = 0; i < c->s.n; i++)
        for (size_t b = 0; b < MAX_BLOCKS; b++, to += c->main_bytes + c->index_bytes) {
            from_device(to, parts[0][i][b], c->main_bytes);
            from_device(to + c->main_bytes, parts[1][i][b], c->index_bytes);
        }
    device_free_all();
}

static void check_entries(const entry_case *c)
{
    const size_t size = c->s.n * slice_bytes(c);
    uint8_t     *got = some(size), *want = some(size);

    memset(want, GUARD, size);
    for (size_t j = 0; j < c->n_rows; j++) {
        uint8_t *main_parts[MAX_BLOCKS], *index_parts[MAX_BLOCKS];

        for (size_t b = 0; b < MAX_BLOCKS; b++) {
            main_parts[b] = want + j / c->s.each * slice_bytes(c) + b * (c->main_bytes + c->index_bytes);
            index_parts[b] = main_parts[b] + c->main_bytes;
        }
        const kvi_entry_write_params p = {.to = {&c->owner, index_parts, main_parts}, .latent = c->latent + j * c->s.width,
                                          .key = c->key + j * c->s.index_width, .first_entry = c->entry_pos[j] / c->s.ratio,
                                          .n_rows = 1};
        if (c->entry_pos[j] != KVI_NO_ENTRY)
            CPU(entry_write, &p);
    }
    gpu_run(run_entries, c, got, size);
    assert_memory_equal(got, want, size);
    free(got);
    free(want);
}

static void test_entries(void **state)
{
    enum { FP4 = KVCSA_FORMAT_FP4_E4M3_G16, FP8 = KVCSA_FORMAT_FP8_E8M0_G32 };
    static const entry_shape shapes[] = {
        /* timelines, rows, format, width, index width, rows of a block, ratio, off, missing */
        {1, 1, FP4, 512, 128, 8, 1, 0, 0},   {1, 1, FP4, 512, 128, 8, 2, 0, 1},   {3, 1, FP4, 512, 128, 64, 2, 16, 0},
        {12, 1, FP4, 512, 128, 64, 1, 0, 3}, {4, 6, FP4, 512, 128, 8, 2, 0, 2},   {4, 6, FP4, 96, 32, 8, 2, 13, 0},
        {2, 5, FP8, 64, 0, 8, 4, 0, 2},      {3, 3, FP8, 544, 544, 16, 3, 4, 2},  {5, 2, KVCSA_FORMAT_F32, 7, 32, 8, 1, 1, 3},
        {5, 2, KVCSA_FORMAT_F16, 33, 64, 8, 2, 2, 3}, {5, 2, KVCSA_FORMAT_BF16, 513, 0, 8, 2, 6, 0},
        {2, 4, KVCSA_FORMAT_Q8_0, 576, 128, 24, 2, 0, 4}, {2, 4, KVCSA_FORMAT_Q4_0, 96, 96, 24, 1, 5, 4},
        {2, 4, KVCSA_FORMAT_INT3_F16_G32, 1056, 128, 8, 2, 0, 0}, {3, 2, KVCSA_FORMAT_FP4_AS_F32, 48, 32, 8, 2, 8, 2},
        {3, 2, KVCSA_FORMAT_FP4_E8M0_G32, 128, 64, 8, 2, 16, 2}, {6, 1, FP4, 16, 32, 8, 128, 0, 2},
        {6, 3, FP4, 32, 0, 8, 2, 0, 1},
        {1, 128, FP4, 64, 32, 64, 2, 0, 7},  {2, 64, FP8, 32, 32, 24, 2, 0, 3},   {7, 1, FP4, 1040, 160, 8, 2, 32, 0},
    };

    (void)state;
    prng_seed(32);
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        const entry_shape *s = &shapes[i / 2];
        entry_case         c;

        entry_case_init(&c, s, i % 4 < 2 ? s->each : (s->each + 1) / 2);
        c.recorded = i % 2;
        check_entries(&c);
        entry_case_fini(&c);
    }
}

/* ---------------------------------------------------------------- what is refused */

static void test_refused(void **state)
{
    const kvi_slice        slice = {0};
    const kvi_slice_rows   rows = {0};
    const float            head[8] = {0};
    const kvi_kv_owner     owner = {.rows_per_block = 8, .entry_width = 64, .entry_format = KVCSA_FORMAT_FP4_E4M3_G16,
                                    .main_row_bytes = 36};
    kvi_pool_pairs_params  p = {.n_pairs = 1, .width = 4, .of = {&slice, &rows, 0}};
    kvi_entry_write_params e = {.to = {.owner = &owner}, .n_rows = 1, .of = {&slice, &rows, 0}, .ratio = 2};
    kvcsa_error            err = {0};

    (void)state;
    assert_int_equal(gpu_ops->pool_pairs(gpu, &p, &err), KVCSA_ERR_ARG);
    p.of.each = 1;
    p.head = head;
    assert_int_equal(gpu_ops->pool_pairs(gpu, &p, &err), KVCSA_ERR_ARG);
    assert_non_null(strstr(err.text, "head"));
    assert_int_equal(gpu_ops->entry_write(gpu, &e, &err), KVCSA_ERR_ARG);
    e.of.each = 1;
    e.ratio = 0;
    assert_int_equal(gpu_ops->entry_write(gpu, &e, &err), KVCSA_ERR_ARG);
    e.n_rows = 0;
    e.ratio = 2;
    assert_int_equal(gpu_ops->entry_write(gpu, &e, &err), KVCSA_OK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_pairs),
    cmocka_unit_test(test_entries),
    cmocka_unit_test(test_refused),
};

CUDA_MAIN(tests)
