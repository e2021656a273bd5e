/* Rows of many timelines in one call against the calls for one timeline each, rows that take all that they see, and maxima of
 * blocks: bit for bit, at every instruction set of this machine, and on the test device "apart". */
#include "base/checked.h"
#include "format/row.h"
#include "support/prng.h"
#include "support/worlds.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>

#include <cmocka.h>

static uint64_t seed;

enum { N_SHAPES = 50 };

typedef void (*shape_fn)(world *w, prng *r);

/* The same shapes at every instruction set of this machine, alone and with threads, and on the test device. */
static void at_every_mask(shape_fn try_shape)
{
    static const uint32_t wanted[] = {0, KVCSA_CPU_AVX2, KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512, KVCSA_CPU_NEON,
                                      KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD};
    enum { N_MASKS = sizeof wanted / sizeof *wanted };
    const uint32_t  found = kvi_cpu_flags(0);
    kvcsa_allocator libc;
    kvi_threads    *threads = NULL;

    assert_int_equal(kvi_allocator_import(NULL, &libc, NULL), KVCSA_OK);
    assert_int_equal(kvi_threads_create(&libc, 3, NULL, &threads, NULL), KVCSA_OK);
    for (size_t i = 0; i <= 2 * N_MASKS; i++) {
        const uint32_t          flags = i < 2 * N_MASKS ? wanted[i / 2] : found;
        const kvi_device_params p = {.allocator = &world_host.hook, .threads = i % 2 ? threads : NULL, .cpu_flags = flags};
        prng                    r;

        if ((found & flags) != flags)
            continue;
        prng_init(&r, seed);
        for (int shape = 0; shape < N_SHAPES; shape++) {
            world w = open_world(i < 2 * N_MASKS ? ON_HOST : ON_DEVICE, NULL, NULL, NULL);

            if (i < 2 * N_MASKS) {
                w.m.ops->device_close(w.m.dev);
                w.m.ops = kvi_cpu_backend(flags);
                must(&w, w.m.ops->device_open(&p, &w.m.dev, &w.err));
            }
            try_shape(&w, &r);
            close_world(&w);
        }
    }
    kvi_threads_destroy(threads);
}

enum { MOST_SLICES = 5, MOST_OF = 20, MOST_MANY = MOST_SLICES * MOST_OF, N_PARTS = 12 };

/* Slices with entries of one owner. */
typedef struct many {
    size_t         n; /* slices */
    size_t         n_rows;
    kvi_kv_owner   owner;
    uint64_t       n_entries;               /* that each has */
    uint8_t       *index, *main;            /* [n, N_PARTS] parts */
    size_t         index_bytes, main_bytes; /* of a part */
    kvi_slice      slices[MOST_SLICES];
    kvi_slice_rows rows[MOST_SLICES];
    kvi_slices     of;
} many;

/* Two results of an operator that are to be equal. */
static void assert_equal_there(world *w, const void *a, const void *b, size_t size)
{
    uint8_t *x = malloc(size + 1), *y = malloc(size + 1);

    assert_true(x && y);
    world_get(w, x, a, size);
    world_get(w, y, b, size);
    assert_memory_equal(x, y, size);
    free(x);
    free(y);
}

static float *random_room(world *w, prng *r, size_t n)
{
    float *x = malloc(n * sizeof *x + 1), *there;

    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = prng_float(r, -2, 2);
    there = world_put(w, x, n * sizeof *x);
    free(x);
    return there;
}

static void *room_of(world *w, int byte, size_t size)
{
    void *p = world_room(w, size);

    must(w, kvi_memory_fill(&w->m, p, byte, size, &w->err));
    return p;
}

static kvi_entries entries_of(const many *m, size_t slice)
{
    return (kvi_entries){&m->owner, m->slices[slice].index_parts, m->slices[slice].main_parts};
}

static void make_owner(many *m, prng *r, uint32_t width)
{
    kvi_kv_owner *o = &m->owner;

    do
        o->entry_format = (uint32_t)prng_below(r, 64);
    while (!kvi_row_can_run(o->entry_format));
    o->rows_per_block = 8 * (uint32_t)prng_range(r, 1, 4);
    o->entry_width = width;
    o->main_row_bytes = (uint32_t)kvi_format_row_bytes(o->entry_format, width);
    o->index_width = 32 * (uint32_t)prng_range(r, 1, 4);
    o->index_value_bytes = o->index_width / 2;
    o->index_row_bytes = o->index_width / 2 + o->index_width / 32;
    o->index_off = 16 * (uint32_t)prng_below(r, 3);
    o->main_off = 16 * (uint32_t)prng_below(r, 3);
    m->index_bytes = o->index_off + (size_t)o->rows_per_block * o->index_row_bytes;
    m->main_bytes = o->main_off + (size_t)o->rows_per_block * o->main_row_bytes;
    m->n_entries = (uint64_t)N_PARTS * o->rows_per_block;
}

/* Tables of fresh parts, all bytes 0. */
static void make_parts(world *w, many *m)
{
    uint8_t  *table[2 * MOST_SLICES * N_PARTS];
    uint8_t **there;

    m->index = room_of(w, 0, m->n * N_PARTS * m->index_bytes);
    m->main = room_of(w, 0, m->n * N_PARTS * m->main_bytes);
    for (size_t i = 0; i < m->n * N_PARTS; i++) { /* in no order */
        const size_t at = i / N_PARTS * N_PARTS + i * 5 % N_PARTS;

        table[2 * i] = m->index + at * m->index_bytes;
        table[2 * i + 1] = m->main + at * m->main_bytes;
    }
    for (size_t s = 0; s < m->n; s++) { /* [N_PARTS] of the index, [N_PARTS] of the other */
        uint8_t *part[2 * N_PARTS];

        for (size_t i = 0; i < 2 * N_PARTS; i++)
            part[i % 2 * N_PARTS + i / 2] = table[2 * s * N_PARTS + i];
        memcpy(table + 2 * s * N_PARTS, part, sizeof part);
    }
    there = world_put(w, table, 2 * m->n * N_PARTS * sizeof *table);
    for (size_t s = 0; s < m->n; s++) {
        m->slices[s].index_parts = there + 2 * s * N_PARTS;
        m->slices[s].main_parts = there + (2 * s + 1) * N_PARTS;
    }
}

static many make_many(world *w, prng *r, uint32_t width)
{
    static const uint8_t each[] = {1, 1, 2, 3, 6, 6, MOST_OF};
    many                 m = {.n = prng_below(r, 6) ? prng_range(r, 2, MOST_SLICES) : 1};

    m.of.each = each[prng_below(r, sizeof each)];
    m.n_rows = m.n * m.of.each - (prng_below(r, 3) ? 0 : prng_below(r, m.of.each));
    make_owner(&m, r, width);
    make_parts(w, &m);
    return m;
}

static size_t rows_of(const many *m, size_t slice)
{
    return kvi_min_size(m->of.each, m->n_rows - slice * m->of.each);
}

static void put_tables(world *w, many *m)
{
    m->of.slices = world_put(w, m->slices, m->n * sizeof *m->slices);
    m->of.rows = world_put(w, m->rows, m->n * sizeof *m->rows);
}

/* Entries in all slices. */
static void fill_parts(world *w, prng *r, const many *m)
{
    const size_t           n = (size_t)m->n_entries;
    kvi_entry_write_params p = {.n_rows = n};

    p.latent = random_room(w, r, n * m->owner.entry_width + m->n * 7);
    p.key = random_room(w, r, n * m->owner.index_width + m->n * 5);
    for (size_t s = 0; s < m->n; s++, p.latent += 7, p.key += 5) { /* others in every slice */
        p.to = entries_of(m, s);
        must(w, w->m.ops->entry_write(w->m.dev, &p, &w->err));
    }
}

/* ------------------------------------------------------------------ attention */

/* Window rows: a chunk with rows of all slices, and pages of each. */
static void make_window(world *w, prng *r, many *m, kvi_attend_params *p, uint64_t *pos)
{
    const size_t             page_bytes = p->page_off + (size_t)p->page_rows * p->row_bytes;
    const size_t             n_pages = m->n * p->n_pages;
    kvi_window_write_params  wp = {.x_stride = p->width, .width = p->width, .row_bytes = p->row_bytes};
    uint8_t                **table = calloc(n_pages + 1, sizeof *table), **there;
    uint8_t                 *slab = room_of(w, 0, n_pages * page_bytes);
    size_t                   n_chunk = 0;

    assert_non_null(table);
    for (size_t s = 0; s < m->n; s++) {
        const uint64_t first = prng_below(r, 150);

        m->rows[s].pos = first - prng_below(r, first < 5 ? first + 1 : 5);
        m->rows[s].row = n_chunk += prng_below(r, 3);
        m->rows[s].floor = prng_below(r, 2) ? prng_below(r, first + 2) : 0;
        n_chunk += (size_t)(first - m->rows[s].pos) + rows_of(m, s);
        for (size_t i = 0; i < rows_of(m, s); i++)
            pos[s * m->of.each + i] = first + i;
    }
    wp.x = random_room(w, r, (kvi_max_size(n_chunk, n_pages * p->page_rows) + 1) * p->width);
    wp.n_rows = n_chunk;
    p->chunk = wp.rows = world_room(w, n_chunk * p->row_bytes);
    must(w, w->m.ops->window_write(w->m.dev, &wp, &w->err));
    wp.n_rows = p->page_rows;
    for (size_t i = 0; i < n_pages; i++) {
        table[i] = slab + i * page_bytes;
        wp.rows = table[i] + p->page_off;
        must(w, w->m.ops->window_write(w->m.dev, &wp, &w->err));
        wp.x += wp.n_rows * p->width;
    }
    there = world_put(w, table, n_pages * sizeof *table);
    for (size_t s = 0; s < m->n; s++)
        m->slices[s].pages = there + s * p->n_pages;
    free(table);
}

static kvi_attend_params make_attend(world *w, prng *r, many *m)
{
    const bool        large = m->owner.entry_width == 512; /* worth threads, for parts of the heads */
    kvi_attend_params p = {.n_rows = m->n_rows,
                           .n_heads = large ? (uint32_t)prng_range(r, 20, 24) : (uint32_t)prng_range(r, 1, 5),
                           .width = m->owner.entry_width,
                           .n_window = (uint32_t)prng_below(r, 70),
                           .page_rows = (uint32_t)prng_range(r, 1, 9),
                           .page_off = 16 * prng_below(r, 3),
                           .k = (uint32_t)prng_below(r, 90),
                           .scale = 0.3f,
                           .entries.owner = &m->owner,
                           .flags = prng_below(r, 4) ? 0 : KVI_OP_ROUND_BF16};
    const size_t      n_out = p.n_rows * p.n_heads * p.width, n_ids = p.n_rows * p.k;
    uint64_t          pos[MOST_MANY];
    int32_t           ids[MOST_MANY * 90];

    p.row_bytes = p.width + p.width / 32;
    p.n_pages = (uint32_t)kvi_div_up(p.n_window, p.page_rows) + (uint32_t)prng_below(r, 3);
    make_window(w, r, m, &p, pos);
    put_tables(w, m);
    for (size_t i = 0; i < n_ids; i++)
        ids[i] = prng_below(r, 6) ? (int32_t)prng_below(r, m->n_entries) : -1;
    p.q = random_room(w, r, n_out);
    p.sink = random_room(w, r, p.n_heads);
    p.pos = world_put(w, pos, p.n_rows * sizeof *pos);
    p.ids = p.k ? world_put(w, ids, n_ids * sizeof *ids) : NULL;
    p.out = room_of(w, 0x5c, n_out * sizeof *p.out);
    p.mass = p.k && prng_below(r, 2) ? room_of(w, 0x5c, n_ids * sizeof *p.mass) : NULL;
    p.of = m->of;
    return p;
}

static void try_attend_slices(world *w, prng *r)
{
    many                    m = make_many(w, r, prng_below(r, 5) ? 32 * (uint32_t)prng_range(r, 1, 4) : 512);
    const kvi_attend_params p = (fill_parts(w, r, &m), make_attend(w, r, &m));
    const size_t            out_bytes = p.n_rows * p.n_heads * p.width * sizeof *p.out;
    const size_t            mass_bytes = p.n_rows * p.k * sizeof *p.mass;
    float                  *out = world_room(w, out_bytes), *mass = p.mass ? world_room(w, mass_bytes) : NULL;

    must(w, w->m.ops->attend(w->m.dev, &p, &w->err));
    for (size_t s = 0; s < m.n; s++) {
        const size_t      row = s * p.of.each;
        kvi_attend_params one = p;

        one.of = (kvi_slices){0};
        one.n_rows = rows_of(&m, s);
        one.q += row * p.n_heads * p.width;
        one.out = out + row * p.n_heads * p.width;
        one.pos += row;
        one.ids = p.ids ? p.ids + row * p.k : NULL;
        one.mass = mass ? mass + row * p.k : NULL;
        one.pages = m.slices[s].pages;
        one.entries = entries_of(&m, s);
        one.chunk += m.rows[s].row * p.row_bytes;
        one.chunk_pos = m.rows[s].pos;
        one.floor = m.rows[s].floor;
        must(w, w->m.ops->attend(w->m.dev, &one, &w->err));
    }
    assert_equal_there(w, p.out, out, out_bytes);
    if (mass)
        assert_equal_there(w, p.mass, mass, mass_bytes);
}

static void test_attend_of_slices(void **state)
{
    (void)state;
    at_every_mask(try_attend_slices);
}

/* ------------------------------------------------------------------ entries */

static void try_pairs_slices(world *w, prng *r)
{
    enum { SLOTS = 3, OFF = 128 };
    many                  m = make_many(w, r, 32);
    kvi_pool_pairs_params p = {.n_pairs = m.n_rows,
                               .width = 32 * (uint32_t)prng_range(r, 1, 5),
                               .flags = prng_below(r, 2) ? KVI_OP_ROUND_BF16 : 0,
                               .pending_off = OFF,
                               .pending_slots = SLOTS};
    const size_t          n_out = p.n_pairs * p.width;
    uint64_t              entry_pos[MOST_MANY];
    size_t                n_k = 0;
    const uint8_t        *pending;
    float                *out, *zeros;

    p.pending_bytes = 2 * p.width * (uint32_t)sizeof *p.k + 64 * (uint32_t)prng_below(r, 2);
    const size_t page_bytes = OFF + SLOTS * p.pending_bytes;

    pending = (const void *)random_room(w, r, m.n * page_bytes / sizeof *p.k);
    for (size_t s = 0; s < m.n; s++) {
        const uint64_t first = prng_below(r, 50);       /* position of the first pair ... */
        const uint64_t made = first + prng_below(r, 2); /* ... and of the first row that is not pending */

        m.rows[s] = (kvi_slice_rows){.pos = made, .row = n_k += prng_below(r, 3)};
        m.slices[s].pending = made > first || prng_below(r, 2) ? pending + s * page_bytes : NULL;
        for (size_t i = 0; i < rows_of(&m, s); i++)
            entry_pos[s * m.of.each + i] = prng_below(r, 4) ? first + 2 * i : KVI_NO_ENTRY;
        n_k += (size_t)(first + 2 * m.of.each - made);
    }
    put_tables(w, &m);
    p.of = m.of;
    p.k = random_room(w, r, n_k * p.width);
    p.gate = random_room(w, r, n_k * p.width);
    p.entry_pos = world_put(w, entry_pos, p.n_pairs * sizeof *entry_pos);
    p.out = room_of(w, 0x5c, n_out * sizeof *p.out);
    must(w, w->m.ops->pool_pairs(w->m.dev, &p, &w->err));
    out = world_room(w, n_out * sizeof *out);
    zeros = room_of(w, 0, p.width * sizeof *zeros);
    for (size_t j = 0; j < p.n_pairs; j++) {
        const kvi_slice_rows *rows = &m.rows[j / m.of.each];
        const uint64_t        pos = entry_pos[j];
        const size_t          row = (size_t)(rows->row + (pos >= rows->pos ? pos - rows->pos : 0));
        kvi_pool_pairs_params one = {.n_pairs = 1, .width = p.width, .flags = p.flags, .out = out + j * p.width};

        if (pos == KVI_NO_ENTRY) {
            must(w, kvi_memory_move(&w->m, one.out, zeros, p.width * sizeof *zeros, &w->err));
            continue;
        }
        one.k = p.k + row * p.width;
        one.gate = p.gate + row * p.width;
        if (pos < rows->pos)
            one.head = (const void *)(m.slices[j / m.of.each].pending + OFF + pos / 2 % SLOTS * p.pending_bytes);
        must(w, w->m.ops->pool_pairs(w->m.dev, &one, &w->err));
    }
    assert_equal_there(w, p.out, out, n_out * sizeof *out);
}

static void test_pairs_of_slices(void **state)
{
    (void)state;
    at_every_mask(try_pairs_slices);
}

static void try_entries_slices(world *w, prng *r)
{
    many                   m = make_many(w, r, 32 * (uint32_t)prng_range(r, 1, 4)), old = m;
    kvi_entry_write_params p = {.to.owner = &m.owner, .n_rows = m.n_rows, .ratio = prng_below(r, 2) ? 4 : 128};
    uint64_t               entry_pos[MOST_MANY];

    for (size_t s = 0; s < m.n; s++) {
        const uint64_t first = prng_below(r, m.n_entries - MOST_OF);

        for (size_t i = 0; i < rows_of(&m, s); i++)
            entry_pos[s * m.of.each + i] = prng_below(r, 4) ? (first + i) * p.ratio : KVI_NO_ENTRY;
    }
    p.latent = random_room(w, r, p.n_rows * m.owner.entry_width);
    p.key = random_room(w, r, p.n_rows * m.owner.index_width);
    p.entry_pos = world_put(w, entry_pos, p.n_rows * sizeof *entry_pos);
    p.of.slices = world_put(w, m.slices, m.n * sizeof *m.slices);
    p.of.each = m.of.each;
    must(w, w->m.ops->entry_write(w->m.dev, &p, &w->err));
    make_parts(w, &old);
    for (size_t j = 0; j < p.n_rows; j++) {
        const kvi_entry_write_params one = {.to = entries_of(&old, j / m.of.each),
                                            .latent = p.latent + j * m.owner.entry_width,
                                            .key = p.key + j * m.owner.index_width,
                                            .first_entry = entry_pos[j] / p.ratio,
                                            .n_rows = 1};

        if (entry_pos[j] != KVI_NO_ENTRY)
            must(w, w->m.ops->entry_write(w->m.dev, &one, &w->err));
    }
    assert_equal_there(w, m.index, old.index, m.n * N_PARTS * m.index_bytes);
    assert_equal_there(w, m.main, old.main, m.n * N_PARTS * m.main_bytes);
}

static void test_entries_of_slices(void **state)
{
    (void)state;
    at_every_mask(try_entries_slices);
}

/* ------------------------------------------------------------------ index scores, and maxima of blocks */

enum { STRIDE = N_PARTS * 32 + 3 };

/* Ascending blocks of what a row sees. */
static void list_blocks(prng *r, kvi_index_score_params *p, world *w, const uint64_t *n_visible)
{
    int32_t  *blocks = malloc(p->n_rows * STRIDE * sizeof *blocks);
    uint32_t  n_blocks[MOST_MANY];

    assert_non_null(blocks);
    p->blocks_stride = STRIDE;
    p->scores_stride = STRIDE + p->block_entries;
    for (size_t i = 0; i < p->n_rows; i++) {
        n_blocks[i] = 0;
        for (size_t b = 0; b < kvi_div_up((size_t)n_visible[i], p->block_entries); b++)
            if (prng_below(r, 3))
                blocks[i * STRIDE + n_blocks[i]++] = (int32_t)b;
    }
    p->blocks = world_put(w, blocks, p->n_rows * STRIDE * sizeof *blocks);
    p->n_blocks = world_put(w, n_blocks, p->n_rows * sizeof *n_blocks);
    free(blocks);
}

static kvi_index_score_params make_score(world *w, prng *r, many *m, uint64_t *n_visible)
{
    static const int8_t    codes[] = {0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12};
    static const uint16_t  sizes[] = {8, 8, 16, 1, 3, 17, 128};
    static const float     odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
    kvi_index_score_params p = {.keys.owner = &m->owner,
                                .n_rows = m->n_rows,
                                .n_heads = prng_below(r, 6) ? (uint32_t)prng_range(r, 1, 5) : 33,
                                .block_entries = sizes[prng_below(r, sizeof sizes / sizeof *sizes)],
                                .scores_stride = STRIDE,
                                .max_stride = STRIDE};
    const size_t           n = p.n_rows * p.n_heads;
    int8_t                *q = malloc(n * m->owner.index_width);
    float                 *weights = malloc(n * sizeof *weights);

    assert_true(q && weights);
    for (size_t i = 0; i < n * m->owner.index_width; i++)
        q[i] = codes[prng_below(r, sizeof codes)];
    for (size_t i = 0; i < n; i++)
        weights[i] = prng_below(r, 20) ? prng_float(r, -1, 1) : odd[prng_below(r, sizeof odd / sizeof *odd)];
    for (size_t i = 0; i < p.n_rows; i++)
        n_visible[i] = prng_below(r, 8) ? prng_below(r, m->n_entries + 1) : 0;
    p.codes = world_put(w, q, n * m->owner.index_width);
    p.scales = random_room(w, r, n * (m->owner.index_width / 32));
    p.weights = world_put(w, weights, n * sizeof *weights);
    p.n_visible = world_put(w, n_visible, p.n_rows * sizeof *n_visible);
    free(q);
    free(weights);
    return p;
}

/* The old form, slice by slice. */
static void score_slices(world *w, const many *m, const kvi_index_score_params *p, float *scores)
{
    for (size_t s = 0; s < m->n; s++) {
        const size_t           row = s * m->of.each, head = row * p->n_heads;
        kvi_index_score_params one = *p;

        one.of = (kvi_slices){0};
        one.keys = entries_of(m, s);
        one.all = 0;
        one.block_max = NULL;
        one.n_rows = rows_of(m, s);
        one.codes += head * m->owner.index_width;
        one.scales += head * (m->owner.index_width / 32);
        one.weights += head;
        one.n_visible += row;
        one.blocks = p->blocks ? p->blocks + row * p->blocks_stride : NULL;
        one.n_blocks = p->blocks ? p->n_blocks + row : NULL;
        one.scores = scores + row * p->scores_stride;
        must(w, w->m.ops->index_score(w->m.dev, &one, &w->err));
    }
}

static bool same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

static void check_maxima(const float *scores, size_t n, uint32_t block_entries, const float *maxima)
{
    for (size_t b = 0; b * block_entries < n; b++) {
        float most = -INFINITY;

        for (size_t i = b * block_entries; i < n && i < (b + 1) * block_entries; i++)
            most = scores[i] > most ? scores[i] : most;
        assert_true(maxima[b] == most);
    }
}

/* Candidates of the maxima, and of the scores. */
static void check_candidates(world *w, prng *r, const kvi_index_score_params *p, const float *scores)
{
    const uint64_t        seen = p->all < STRIDE ? p->all : STRIDE;
    kvi_candidates_params c = {.scores = scores,
                               .n_visible = p->n_visible,
                               .scores_stride = p->scores_stride,
                               .n_rows = p->n_rows,
                               .block_entries = p->block_entries,
                               .n_keep = (uint32_t)(kvi_div_up((size_t)seen, p->block_entries) + prng_below(r, 20)),
                               .all = p->all};
    const size_t          bytes = p->n_rows * c.n_keep * sizeof *c.blocks;
    const int32_t        *blocks = c.blocks = world_room(w, bytes);
    const uint32_t       *n_blocks = c.n_blocks = world_room(w, p->n_rows * sizeof *c.n_blocks);

    must(w, w->m.ops->candidates(w->m.dev, &c, &w->err));
    c.scores = p->scores;
    c.block_max = p->block_max;
    c.max_stride = p->max_stride;
    c.blocks = world_room(w, bytes);
    c.n_blocks = world_room(w, p->n_rows * sizeof *c.n_blocks);
    must(w, w->m.ops->candidates(w->m.dev, &c, &w->err));
    assert_equal_there(w, c.blocks, blocks, bytes);
    assert_equal_there(w, c.n_blocks, n_blocks, p->n_rows * sizeof *n_blocks);
}

static void try_scores_slices(world *w, prng *r)
{
    uint64_t               n_visible[MOST_MANY];
    many                   m = make_many(w, r, 32);
    kvi_index_score_params p = (fill_parts(w, r, &m), make_score(w, r, &m, n_visible));
    const bool             one_slice = m.n == 1 && prng_below(r, 2);
    size_t                 bytes;
    float                 *old, *is, *wanted, *maxima;

    p.all = prng_below(r, 3) == 0 ? 0 : prng_below(r, 4) ? prng_below(r, m.n_entries) : UINT64_MAX;
    if (prng_below(r, 3) == 0)
        list_blocks(r, &p, w, n_visible);
    else
        p.block_max = room_of(w, 0x5c, p.n_rows * STRIDE * sizeof *p.block_max);
    bytes = p.n_rows * p.scores_stride * sizeof *p.scores;
    p.scores = room_of(w, 0x5c, bytes);
    old = room_of(w, 0x5c, bytes);
    put_tables(w, &m);
    p.of.slices = one_slice ? NULL : m.of.slices;
    p.of.each = m.of.each;
    if (one_slice)
        p.keys = entries_of(&m, 0);
    must(w, w->m.ops->index_score(w->m.dev, &p, &w->err));
    score_slices(w, &m, &p, old);

    is = malloc(bytes);
    wanted = malloc(bytes);
    maxima = malloc(p.n_rows * STRIDE * sizeof *maxima);
    assert_true(is && wanted && maxima);
    world_get(w, is, p.scores, bytes);
    world_get(w, wanted, old, bytes);
    if (p.block_max)
        world_get(w, maxima, p.block_max, p.n_rows * STRIDE * sizeof *maxima);
    for (size_t i = 0; i < p.n_rows; i++) {
        const bool all = p.all && n_visible[i] <= p.all;

        if (all) /* nobody has written there */
            memset(wanted + i * p.scores_stride, 0x5c, p.scores_stride * sizeof *wanted);
        for (size_t j = 0; j < p.scores_stride; j++)
            assert_true(same_float(is[i * p.scores_stride + j], wanted[i * p.scores_stride + j]));
        if (p.block_max && !all)
            check_maxima(wanted + i * p.scores_stride, (size_t)n_visible[i], p.block_entries, maxima + i * STRIDE);
    }
    if (p.block_max)
        check_candidates(w, r, &p, old);
    free(is);
    free(wanted);
    free(maxima);
}

static void test_scores_of_slices(void **state)
{
    (void)state;
    at_every_mask(try_scores_slices);
}

/* ------------------------------------------------------------------ rows that take all that they see */

static void try_take_all(world *w, prng *r)
{
    enum { MOST = 8, MOST_SCORES = 200 };
    static float          scores[MOST * MOST_SCORES];
    const size_t          n_rows = prng_range(r, 1, MOST);
    kvi_topk_params       t = {.n_rows = n_rows, .scores_stride = MOST_SCORES, .k = (uint32_t)prng_range(r, 1, 60)};
    kvi_candidates_params c = {.n_rows = t.n_rows, .scores_stride = MOST_SCORES, .block_entries = (uint32_t)prng_range(r, 1, 17)};
    const uint64_t        all = prng_below(r, 4) ? prng_range(r, 1, t.k) : t.k;
    uint64_t              n_visible[MOST], n_scores[MOST];
    int32_t              *ids, *old_ids, *blocks, *old_blocks;
    uint32_t              n_blocks[MOST], old_n_blocks[MOST];

    c.n_keep = (uint32_t)(kvi_div_up((size_t)all, c.block_entries) + prng_below(r, 4));
    for (size_t i = 0; i < MOST * MOST_SCORES; i++)
        scores[i] = prng_below(r, 9) ? prng_normal(r) : prng_below(r, 2) ? NAN : -INFINITY;
    for (size_t i = 0; i < t.n_rows; i++)
        n_scores[i] = n_visible[i] = prng_below(r, 3) ? prng_below(r, all + 2) : prng_below(r, MOST_SCORES + 1);
    t.ids_stride = prng_below(r, 2) ? t.k + prng_below(r, 4) : 0;
    c.blocks_stride = prng_below(r, 2) ? c.n_keep + prng_below(r, 4) : 0;
    t.scores = c.scores = world_put(w, scores, t.n_rows * MOST_SCORES * sizeof *scores);
    t.n_scores = world_put(w, n_scores, t.n_rows * sizeof *n_scores);
    t.n_visible = c.n_visible = world_put(w, n_visible, t.n_rows * sizeof *n_visible);

    const size_t stride = t.ids_stride ? t.ids_stride : t.k, b_stride = c.blocks_stride ? c.blocks_stride : c.n_keep;
    const size_t ids_bytes = t.n_rows * stride * sizeof *ids, blocks_bytes = t.n_rows * b_stride * sizeof *blocks;

    ids = malloc(ids_bytes);
    old_ids = malloc(ids_bytes);
    blocks = malloc(blocks_bytes);
    old_blocks = malloc(blocks_bytes);
    assert_true(ids && old_ids && blocks && old_blocks);
    t.ids = world_room(w, ids_bytes);
    c.blocks = world_room(w, blocks_bytes);
    c.n_blocks = world_room(w, t.n_rows * sizeof *c.n_blocks);
    must(w, w->m.ops->topk(w->m.dev, &t, &w->err));
    must(w, w->m.ops->candidates(w->m.dev, &c, &w->err));
    world_get(w, old_ids, t.ids, ids_bytes);
    world_get(w, old_blocks, c.blocks, blocks_bytes);
    world_get(w, old_n_blocks, c.n_blocks, t.n_rows * sizeof *c.n_blocks);
    for (size_t i = 0; i < t.n_rows; i++) {
        const uint32_t n = (uint32_t)kvi_div_up((size_t)n_visible[i], c.block_entries);

        if (n_visible[i] > all)
            continue;
        n_scores[i] = UINT64_MAX; /* it is not read */
        for (size_t j = 0; j < stride; j++)
            old_ids[i * stride + j] = j < n_visible[i] ? (int32_t)j : -1;
        for (size_t j = 0; j < b_stride; j++)
            old_blocks[i * b_stride + j] = j < n ? (int32_t)j : -1;
        old_n_blocks[i] = n;
    }
    t.n_scores = world_put(w, n_scores, t.n_rows * sizeof *n_scores);
    t.all = c.all = all;
    must(w, w->m.ops->topk(w->m.dev, &t, &w->err));
    must(w, w->m.ops->candidates(w->m.dev, &c, &w->err));
    world_get(w, ids, t.ids, ids_bytes);
    world_get(w, blocks, c.blocks, blocks_bytes);
    world_get(w, n_blocks, c.n_blocks, t.n_rows * sizeof *c.n_blocks);
    assert_memory_equal(ids, old_ids, ids_bytes);
    assert_memory_equal(blocks, old_blocks, blocks_bytes);
    assert_memory_equal(n_blocks, old_n_blocks, t.n_rows * sizeof *n_blocks);
    free(ids);
    free(old_ids);
    free(blocks);
    free(old_blocks);
}

static void test_rows_that_take_all(void **state)
{
    (void)state;
    at_every_mask(try_take_all);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend_of_slices),
        cmocka_unit_test(test_pairs_of_slices),
        cmocka_unit_test(test_entries_of_slices),
        cmocka_unit_test(test_scores_of_slices),
        cmocka_unit_test(test_rows_that_take_all),
    };

    seed = prng_seed(argc, argv, 20270);
    return cmocka_run_group_tests(tests, load_apart, NULL);
}
