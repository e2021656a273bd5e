/* Scenes of sparse attention for the tests of its kernels: shapes with random rows, run on the device, by the portable CPU, and by
 * an oracle in double that rounds q and keys to bf16 as the device does. The bounds are those of cuda/smxx/attend.cuh. */
#ifndef ATTEND_SCENE_H
#define ATTEND_SCENE_H

#include "cuda/cuda_check.h"

#include "format/row.h"
#include "plan/cache_plan.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BLOCKS = 600, MAX_PAGES = 64 };

typedef struct shape {
    size_t   n_rows;
    uint32_t n_heads, width, n_window, k, format;
    uint32_t page_rows;
    uint64_t first;    /* position of the first row */
    uint32_t in_chunk; /* positions in front of it that the chunk holds too */
    uint64_t floor;
    uint32_t off;      /* of the rows in pages and blocks */
} shape;

typedef struct scene {
    shape        s;
    uint32_t     row_bytes, n_pages, n_blocks;
    size_t       n_out, page_bytes, block_bytes, chunk_bytes;
    float        scale;
    kvi_kv_owner owner;
    float       *q, *sink;
    uint64_t    *pos;
    int32_t     *ids;
    uint8_t     *chunk;
    uint8_t     *pages[MAX_PAGES];
    uint8_t     *blocks[MAX_BLOCKS];
} scene;

static void *some(size_t n) /* never NULL */
{
    void *p = calloc(n + 1, 1);

    assert_non_null(p);
    return p;
}

static uint8_t *random_row(uint32_t format, uint32_t width, uint8_t *row)
{
    float x[512];

    fill(x, width, 2.0f);
    kvi_row_encode(format, x, width, row);
    return row;
}

static uint64_t chunk_pos(const scene *c) { return c->s.first - c->s.in_chunk; }

static void scene_init(scene *c, const shape *s)
{
    const size_t n_heads = s->n_heads, n_in_chunk = s->in_chunk + s->n_rows;

    memset(c, 0, sizeof *c);
    c->s = *s;
    c->row_bytes = s->width + s->width / 32;
    c->scale = (float)(1 / sqrt(s->width));
    c->n_out = s->n_rows * n_heads * s->width;
    c->q = some(c->n_out * sizeof *c->q);
    fill(c->q, c->n_out, 2.0f);
    c->sink = some(n_heads * sizeof *c->sink);
    fill(c->sink, n_heads, 1.0f);
    c->pos = some(s->n_rows * sizeof *c->pos);
    for (size_t i = 0; i < s->n_rows; i++)
        c->pos[i] = s->first + i;

    c->chunk_bytes = n_in_chunk * c->row_bytes;
    c->chunk = some(c->chunk_bytes);
    for (size_t i = 0; i < n_in_chunk; i++)
        random_row(KVCSA_FORMAT_FP8_E8M0_G32, s->width, c->chunk + i * c->row_bytes);
    c->n_pages = (s->n_window + s->page_rows - 1) / s->page_rows + (uint32_t)(s->first % 2);
    c->page_bytes = s->off + (size_t)s->page_rows * c->row_bytes;
    assert_true(c->n_pages <= MAX_PAGES);
    for (uint32_t p = 0; p < c->n_pages; p++) {
        c->pages[p] = some(c->page_bytes);
        memset(c->pages[p], 0xff, c->page_bytes);
        for (uint32_t i = 0; i < s->page_rows; i++)
            random_row(KVCSA_FORMAT_FP8_E8M0_G32, s->width, c->pages[p] + s->off + (size_t)i * c->row_bytes);
    }

    c->owner = (kvi_kv_owner){.rows_per_block = 8, .entry_width = s->width, .entry_format = s->format, .main_off = s->off};
    if (s->k) {
        c->owner.main_row_bytes = kvi_format_row_bytes(s->format, s->width);
        c->n_blocks = 3 + s->k / 32;
        c->block_bytes = s->off + 8 * (size_t)c->owner.main_row_bytes;
        assert_true(c->n_blocks <= MAX_BLOCKS);
        for (uint32_t b = 0; b < c->n_blocks; b++) {
            c->blocks[b] = some(c->block_bytes);
            for (uint32_t i = 0; i < 8; i++)
                random_row(s->format, s->width, c->blocks[b] + s->off + (size_t)i * c->owner.main_row_bytes);
        }
        c->ids = some(s->n_rows * s->k * sizeof *c->ids);
        for (size_t i = 0; i < s->n_rows * s->k; i++)
            c->ids[i] = prng() % 6 == 0 ? -1 : (int32_t)(prng() % (8 * c->n_blocks));
    }
}

static void scene_fini(scene *c)
{
    for (uint32_t p = 0; p < c->n_pages; p++)
        free(c->pages[p]);
    for (uint32_t b = 0; b < c->n_blocks; b++)
        free(c->blocks[b]);
    free(c->q);
    free(c->sink);
    free(c->pos);
    free(c->ids);
    free(c->chunk);
}

static kvi_attend_params params_of(const scene *c)
{
    return (kvi_attend_params){.page_off = c->s.off, .entries = {.owner = &c->owner}, .chunk_pos = chunk_pos(c), .floor = c->s.floor,
                               .n_rows = c->s.n_rows, .n_heads = c->s.n_heads, .width = c->s.width, .n_window = c->s.n_window,
                               .page_rows = c->s.page_rows, .n_pages = c->n_pages, .row_bytes = c->row_bytes, .k = c->s.k,
                               .scale = c->scale};
}

/* What a run on the device takes: rows first .. first + n - 1 of the scene. out: [n, heads, width], then the mass [n, k] if
 * wanted. */
typedef struct job {
    const scene *c;
    size_t       first, n;
    bool         mass;
} job;

static size_t out_bytes(const job *j)
{
    return j->n * ((size_t)j->c->s.n_heads * j->c->s.width + (j->mass ? j->c->s.k : 0)) * sizeof(float);
}

static void run(const void *arg, void *out)
{
    const job        *j = arg;
    const scene      *c = j->c;
    const size_t      row = (size_t)c->s.n_heads * c->s.width, n = j->n;
    uint8_t          *tables[2][MAX_BLOCKS];
    kvi_attend_params p = params_of(c);
    float            *o = to_device(NULL, n * row * sizeof *o), *m = NULL;

    for (uint32_t i = 0; i < c->n_pages; i++)
        tables[0][i] = to_device(c->pages[i], c->page_bytes);
    for (uint32_t i = 0; i < c->n_blocks; i++)
        tables[1][i] = to_device(c->blocks[i], c->block_bytes);
    p.q = to_device(c->q + j->first * row, n * row * sizeof *c->q);
    p.out = o;
    p.pos = to_device(c->pos + j->first, n * sizeof *c->pos);
    p.pages = table_to_device(tables[0], c->n_pages);
    p.chunk = to_device(c->chunk, c->chunk_bytes);
    p.sink = to_device(c->sink, c->s.n_heads * sizeof *c->sink);
    p.n_rows = n;
    if (c->s.k) {
        p.ids = to_device(c->ids + j->first * c->s.k, n * c->s.k * sizeof *c->ids);
        p.entries.main_parts = table_to_device(tables[1], c->n_blocks);
    }
    if (j->mass)
        p.mass = m = to_device(NULL, n * c->s.k * sizeof *m);
    GPU(attend, &p);
    from_device(out, o, n * row * sizeof *o);
    if (m)
        from_device((float *)out + n * row, m, n * c->s.k * sizeof *m);
    device_free_all();
}

static void run_cpu(const scene *c, float *out, float *mass)
{
    kvi_attend_params p = params_of(c);

    p.q = c->q;
    p.out = out;
    p.pos = c->pos;
    p.pages = c->pages;
    p.chunk = c->chunk;
    p.sink = c->sink;
    p.ids = c->ids;
    p.mass = mass;
    p.entries.main_parts = c->blocks;
    CPU(attend, &p);
}

/* ---------------------------------------------------------------- oracle */

/* Keys of a row's slots, [slots, width], and which there are. */
static void slot_keys(const scene *c, size_t row, float *keys, bool *used)
{
    const uint64_t pos = c->pos[row];
    uint64_t       lo = pos + 1 > c->s.n_window ? pos + 1 - c->s.n_window : 0;

    lo = lo > c->s.floor ? lo : c->s.floor;
    for (uint32_t slot = 0; slot < c->s.n_window + c->s.k; slot++, keys += c->s.width) {
        if (slot < c->s.n_window) {
            const uint64_t at = lo + slot;
            const uint8_t *bytes;

            if (!(used[slot] = at <= pos))
                continue;
            if (at >= chunk_pos(c)) {
                bytes = c->chunk + (at - chunk_pos(c)) * c->row_bytes;
            } else {
                const uint64_t ring = at % ((uint64_t)c->n_pages * c->s.page_rows);
                bytes = c->pages[ring / c->s.page_rows] + c->s.off + ring % c->s.page_rows * c->row_bytes;
            }
            kvi_row_decode(KVCSA_FORMAT_FP8_E8M0_G32, bytes, c->s.width, keys);
        } else {
            const int32_t id = c->ids[row * c->s.k + slot - c->s.n_window];

            if ((used[slot] = id >= 0))
                kvi_row_decode(c->s.format, c->blocks[id / 8] + c->s.off + (size_t)(id % 8) * c->owner.main_row_bytes, c->s.width, keys);
        }
    }
}

/* out [width] and mass [k] (added to) of a head in double, with the bounds of both. rounded: q and keys are taken as the
 * device has them, so that only sums and p are off; else they are exact, and the bound knows of the roundings. */
static void oracle(const scene *c, size_t row, size_t head, const float *keys, const bool *used, bool rounded, double *out, double *tol,
                   double *mass, double *mass_tol)
{
    const bool     exact = c->s.format != KVCSA_FORMAT_F32 && c->s.format != KVCSA_FORMAT_F16 && c->s.format != KVCSA_FORMAT_Q8_0 &&
                       c->s.format != KVCSA_FORMAT_Q4_0 && c->s.format != KVCSA_FORMAT_INT3_F16_G32;
    const uint32_t n = c->s.n_window + c->s.k, width = c->s.width;
    const double   u = 0x1p-8, g = width * 0x1p-22, h = (n + 64) * 0x1p-22;
    float         *q = some(width * sizeof *q), *k = some((size_t)n * width * sizeof *k);
    double        *s = some(n * sizeof *s), *d = some(n * sizeof *d), den = exp(c->sink[head]), e = den;

    memcpy(q, c->q + (row * c->s.n_heads + head) * width, width * sizeof *q);
    memcpy(k, keys, (size_t)n * width * sizeof *k);
    if (rounded) {
        round_all(q, width);
        round_all(k, (size_t)n * width);
    }
    for (uint32_t i = 0; i < n; i++) {
        double a = 0, dot = 0;

        if (!used[i])
            continue;
        for (uint32_t x = 0; x < width; x++) {
            dot += (double)q[x] * (double)k[i * width + x];
            a += fabs((double)q[x] * (double)k[i * width + x]);
        }
        a *= (double)c->scale;
        d[i] = rounded ? a * g : i < c->s.n_window || exact ? a * (u + g) : a * (2 * u + u * u + g);
        s[i] = exp(dot * (double)c->scale);
        den += s[i];
        e += s[i] * exp(d[i]);
    }
    e /= den;
    for (uint32_t x = 0; x < width; x++)
        out[x] = tol[x] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double p = s[i] / den, v = rounded || exact || i < c->s.n_window ? 1 : 1 + u, f = exp(d[i]) * e * (1 + h);

        for (uint32_t x = 0; x < width && used[i]; x++) {
            out[x] += p * (double)k[i * width + x];
            tol[x] += p * fabs((double)k[i * width + x]) * (f * (1 + u) * v - 1);
        }
        if (mass && i >= c->s.n_window && used[i]) {
            mass[i - c->s.n_window] += p;
            mass_tol[i - c->s.n_window] += p * (f * (1 + c->s.n_heads * 0x1p-22) - 1);
        }
    }
    free(q);
    free(k);
    free(s);
    free(d);
}

/* Both comparisons, all rows. Returns the largest |device - rounded oracle| in units of its bound. */
static double check(const scene *c, bool want_mass)
{
    const uint32_t n = c->s.n_window + c->s.k, width = c->s.width, k = c->s.k;
    const job      j = {c, 0, c->s.n_rows, want_mass};
    float         *got = some(out_bytes(&j)), *want = some(out_bytes(&j)), *keys = some((size_t)n * width * sizeof *keys);
    float         *mass = want_mass ? want + c->n_out : NULL;
    bool          *used = some(n);
    double        *out = some(width * 8), *tol = some(width * 8), *m = some(k * 8), *m_tol = some(k * 8), worst = 0;

    gpu_run(run, &j, got, out_bytes(&j));
    run_cpu(c, want, mass);
    for (size_t row = 0; row < c->s.n_rows; row++) {
        slot_keys(c, row, keys, used);
        memset(m, 0, k * 8);
        memset(m_tol, 0, k * 8);
        for (size_t head = 0; head < c->s.n_heads; head++) {
            const size_t at = (row * c->s.n_heads + head) * width;

            oracle(c, row, head, keys, used, true, out, tol, NULL, NULL);
            for (uint32_t x = 0; x < width; x++) {
                assert_within(got[at + x], out[x], tol[x] + 1e-30);
                worst = fmax(worst, fabs((double)got[at + x] - out[x]) / (tol[x] + 1e-30));
            }
            oracle(c, row, head, keys, used, false, out, tol, want_mass ? m : NULL, m_tol);
            for (uint32_t x = 0; x < width; x++)
                assert_within(got[at + x], (double)want[at + x], tol[x] + 1e-30);
        }
        for (uint32_t i = 0; want_mass && i < k; i++) {
            assert_within(got[c->n_out + row * k + i], (double)mass[row * k + i], m_tol[i]);
            assert_true(used[c->s.n_window + i] || got[c->n_out + row * k + i] == 0);
        }
    }
    free(got);
    free(want);
    free(keys);
    free(used);
    free(out);
    free(tol);
    free(m);
    free(m_tol);
    return worst;
}
/* ---------------------------------------------------------------- many timelines in one call */

enum { MAX_SLICES = 5 };

typedef struct slices {
    scene  scenes[MAX_SLICES];
    size_t n, each, n_rows;
    bool   mass;
} slices;

/* Timelines that differ in everything that may: positions, what of them stands in the chunk, floors, pages, blocks. */
static void slices_init(slices *a, const shape *s, size_t n, size_t last, bool mass)
{
    a->n = n;
    a->each = s->n_rows;
    a->n_rows = (n - 1) * s->n_rows + last;
    a->mass = mass;
    assert_true(n <= MAX_SLICES && last <= s->n_rows);
    for (size_t i = 0; i < n; i++) {
        shape one = *s;

        one.first += 2 * (i * i * 7 % 50); /* as many pages for all: their number goes by the parity */
        one.in_chunk = (uint32_t)(i * 3 % 5 < one.first ? i * 3 % 5 : one.first);
        one.floor = i % 3 == 1 ? one.first - one.in_chunk : i % 3 == 2 ? s->first / 2 : s->floor;
        one.n_rows = i + 1 < n ? s->n_rows : last;
        scene_init(&a->scenes[i], &one);
    }
}

static void slices_fini(slices *a)
{
    for (size_t i = 0; i < a->n; i++)
        scene_fini(&a->scenes[i]);
}

static size_t slices_bytes(const slices *a)
{
    const shape *s = &a->scenes[0].s;

    return a->n_rows * ((size_t)s->n_heads * s->width + (a->mass ? s->k : 0)) * sizeof(float);
}

/* In the chunk the timelines follow each other backwards, with a row between them that is nobody's. out: as of run. */
static void run_slices(const void *arg, void *out)
{
    const slices     *a = arg;
    const shape      *s = &a->scenes[0].s;
    const size_t      row = (size_t)s->n_heads * s->width, chunk_row = a->scenes[0].row_bytes;
    kvi_slice         slice[MAX_SLICES];
    kvi_slice_rows    rows[MAX_SLICES];
    kvi_attend_params p = params_of(&a->scenes[0]);
    float            *q = some(a->n_rows * row * sizeof *q), *o = to_device(NULL, a->n_rows * row * sizeof *o), *m = NULL;
    uint64_t         *pos = some(a->n_rows * sizeof *pos);
    int32_t          *ids = some(a->n_rows * s->k * sizeof *ids);
    uint8_t          *chunk;
    size_t            n_chunk = 0;

    for (size_t i = a->n; i-- > 0;) {
        rows[i].row = n_chunk;
        n_chunk += a->scenes[i].chunk_bytes / chunk_row + 1;
    }
    chunk = some(n_chunk * chunk_row);
    memset(chunk, 0xff, n_chunk * chunk_row);
    for (size_t i = 0; i < a->n; i++) {
        const scene *c = &a->scenes[i];
        uint8_t     *tables[2][MAX_BLOCKS];

        for (uint32_t j = 0; j < c->n_pages; j++)
            tables[0][j] = to_device(c->pages[j], c->page_bytes);
        for (uint32_t j = 0; j < c->n_blocks; j++)
            tables[1][j] = to_device(c->blocks[j], c->block_bytes);
        slice[i] = (kvi_slice){.main_parts = c->s.k ? table_to_device(tables[1], c->n_blocks) : NULL};
        if (c->s.floor < chunk_pos(c)) /* else nobody looks at pages */
            slice[i].pages = table_to_device(tables[0], c->n_pages);
        rows[i].pos = chunk_pos(c);
        rows[i].floor = c->s.floor;
        memcpy(chunk + rows[i].row * chunk_row, c->chunk, c->chunk_bytes);
        memcpy(q + i * a->each * row, c->q, c->n_out * sizeof *q);
        memcpy(pos + i * a->each, c->pos, c->s.n_rows * sizeof *pos);
        if (s->k)
            memcpy(ids + i * a->each * s->k, c->ids, c->s.n_rows * s->k * sizeof *ids);
    }
    p.q = to_device(q, a->n_rows * row * sizeof *q);
    p.out = o;
    p.pos = to_device(pos, a->n_rows * sizeof *pos);
    p.chunk = to_device(chunk, n_chunk * chunk_row);
    p.chunk_pos = p.floor = UINT64_MAX; /* is not read */
    p.sink = to_device(a->scenes[0].sink, s->n_heads * sizeof *p.sink);
    p.ids = s->k ? to_device(ids, a->n_rows * s->k * sizeof *ids) : NULL;
    p.mass = m = a->mass ? to_device(NULL, a->n_rows * s->k * sizeof *m) : NULL;
    p.n_rows = a->n_rows;
    p.of = (kvi_slices){to_device(slice, a->n * sizeof *slice), to_device(rows, a->n * sizeof *rows), a->each};
    GPU(attend, &p);
    from_device(out, o, a->n_rows * row * sizeof *o);
    if (m)
        from_device((float *)out + a->n_rows * row, m, a->n_rows * s->k * sizeof *m);
    device_free_all();
    free(q);
    free(pos);
    free(ids);
    free(chunk);
}

/* Bit for bit what each timeline gets alone. */
static void check_slices(slices *a)
{
    const size_t row = (size_t)a->scenes[0].s.n_heads * a->scenes[0].s.width, k = a->scenes[0].s.k;
    float       *got = some(slices_bytes(a)), *want = some(slices_bytes(a));

    gpu_run(run_slices, a, got, slices_bytes(a));
    for (size_t i = 0; i < a->n; i++) {
        scene       *c = &a->scenes[i];
        const size_t n = c->s.n_rows;

        memcpy(c->sink, a->scenes[0].sink, c->s.n_heads * sizeof *c->sink);
        run(&(job){c, 0, n, a->mass}, want);
        assert_memory_equal(got + i * a->each * row, want, n * row * sizeof *got);
        if (a->mass)
            assert_memory_equal(got + a->n_rows * row + i * a->each * k, want + n * row, n * k * sizeof *got);
    }
    free(got);
    free(want);
}

#endif
