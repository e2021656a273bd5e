/* Attention over the window and the selected entries of a row.
 *
 * The algorithm is that of the official kernel, slot for slot (docs/formats.md "Network"):
 *   - slots in order: n_window window slots, the oldest position first, then the k selected
 *     entries; an empty slot keeps its place, so the tiles of 64 slots have fixed borders;
 *   - per tile: s = (q . key) * scale; the running maximum m (from -1e30) moves to m';
 *     f = e^(m - m'); p = e^(s - m'); denominator = denominator * f + (sum of p, slots ascending
 *     from 0); every channel of the output is multiplied by f and then gets p * key, slots
 *     ascending, each product rounded; in the reference mode p is rounded to bf16 for that
 *     product and for nothing else;
 *   - at the end the denominator gets e^(sink - m) and divides.
 * Empty slots would add p = 0; they are skipped. Without any key the sink term is infinite and the
 * output 0. NaN in a query or in a key makes the whole head NaN.
 *
 * The mass of a selected slot is e^(s - m) / denominator with the m and the denominator of the end,
 * in every mode, summed over the heads in ascending order. It needs the scores of all heads of a
 * row until then, and changes no bit of the output.
 *
 * None of this depends on how rows are grouped. Tile by tile for all heads, the keys of a tile stay
 * in the cache; keys are dequantised once a row, window keys once for a group of neighbouring rows.
 * Few rows are spread over heads instead. */
#include "cpu/cpu_ops.h"

#include "base/checked.h"
#include "base/fmath.h"
#include "format/dtype.h"
#include "format/fp8.h"
#include "format/row.h"
#include "cpu/ref_dense_int.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    TILE = 64,     /* slots */
    ROWS_GROUP = 8 /* rows that share dequantised window keys */
};

/* What a head carries from tile to tile, beside its unfinished output. */
typedef struct head_state {
    float *scores; /* [k] of the selected slots; NULL = nobody asks for the mass */
    float  max;
    float  sum;
} head_state;

/* Keys of one tile, empty slots left out. */
typedef struct tile {
    const float *keys[TILE];
    size_t       slots[TILE];
    size_t       n_keys;
} tile;

/* ---------------------------------------------------------------- keys */

static uint64_t first_position(const kvi_attend_params *p, size_t row)
{
    const uint64_t end = p->pos[row] + 1;
    const uint64_t lo = end > p->n_window ? end - p->n_window : 0;

    return lo > p->floor ? lo : p->floor;
}

static const uint8_t *window_row(const kvi_attend_params *p, uint64_t pos)
{
    const uint64_t ring_rows = (uint64_t)p->n_pages * p->page_rows;
    uint32_t       slot;

    if (pos >= p->chunk_pos)
        return p->chunk + (pos - p->chunk_pos) * p->row_bytes;
    slot = (uint32_t)(pos % ring_rows);
    return p->pages[slot / p->page_rows] + p->page_off +
           (size_t)(slot % p->page_rows) * p->row_bytes;
}

static void load_window_key(const kvi_attend_params *p, uint64_t pos, float *key)
{
    const uint8_t *row = window_row(p, pos);

    kvi_dequant_window(row, row + p->width, p->width, key);
}

static void load_entry_key(const kvi_attend_params *p, uint32_t entry, float *key)
{
    const kvi_kv_owner *o = p->entries.owner;
    const uint8_t      *part = p->entries.main_parts[entry / o->rows_per_block];
    const uint8_t      *row = part + kvi_kv_main_row_off(o, entry % o->rows_per_block);

    kvi_row_decode(o->entry_format, row, p->width, key);
}

/* ---------------------------------------------------------------- one head, one tile */

/* out = out * f + sum over keys of weight * key, keys ascending. width: a multiple of 16. Channels
 * are independent, so their grouping is free; four short vectors stay in registers on every
 * machine, where gcc keeps one long vector in memory. */
static void add_keys(float *out, size_t width, float f, const float *weights,
                     const float *const *keys, size_t n_keys)
{
    for (size_t c = 0; c < width; c += 16) {
        kvi_vec4 a0 = kvi_vec4_load(out + c) * f;
        kvi_vec4 a1 = kvi_vec4_load(out + c + 4) * f;
        kvi_vec4 a2 = kvi_vec4_load(out + c + 8) * f;
        kvi_vec4 a3 = kvi_vec4_load(out + c + 12) * f;

        for (size_t i = 0; i < n_keys; i++) {
            const float *key = keys[i] + c;

            a0 = a0 + kvi_vec4_load(key) * weights[i];
            a1 = a1 + kvi_vec4_load(key + 4) * weights[i];
            a2 = a2 + kvi_vec4_load(key + 8) * weights[i];
            a3 = a3 + kvi_vec4_load(key + 12) * weights[i];
        }
        kvi_vec4_store(out + c, a0);
        kvi_vec4_store(out + c + 4, a1);
        kvi_vec4_store(out + c + 8, a2);
        kvi_vec4_store(out + c + 12, a3);
    }
}

/* Keeps the scores s [n_keys] of the selected slots in a tile. */
static void keep_scores(const kvi_attend_params *p, const tile *t, const float *s, float *scores)
{
    for (size_t i = 0; i < t->n_keys; i++)
        if (t->slots[i] >= p->n_window)
            scores[t->slots[i] - p->n_window] = s[i];
}

static void add_tile(const kvi_attend_params *p, size_t row, size_t head, head_state *state,
                     const tile *t)
{
    const size_t at = (row * p->n_heads + head) * p->width;
    float        s[TILE];
    float        max = state->max;
    float        sum = 0.0f;
    float        f;

    for (size_t i = 0; i < t->n_keys; i++) {
        s[i] = kvi_ref_dot(p->q + at, t->keys[i], p->width) * p->scale;
        if (s[i] > max) /* NaN does not move it, but arrives through e^s */
            max = s[i];
    }
    if (state->scores != NULL)
        keep_scores(p, t, s, state->scores);
    f = kvi_expf(state->max - max);
    for (size_t i = 0; i < t->n_keys; i++) {
        s[i] = kvi_expf(s[i] - max);
        sum = sum + s[i];
        if ((p->flags & KVI_OP_ROUND_BF16) != 0)
            s[i] = kvi_round_bf16(s[i]);
    }
    state->sum = state->sum * f + sum;
    state->max = max;
    add_keys(p->out + at, p->width, f, s, t->keys, t->n_keys);
}

/* scores: [k], or NULL */
static void begin_head(const kvi_attend_params *p, size_t row, size_t head, float *scores,
                       head_state *state)
{
    state->scores = scores;
    state->max = -1e30f;
    state->sum = 0.0f;
    memset(p->out + (row * p->n_heads + head) * p->width, 0, p->width * sizeof(float));
}

static void end_head(const kvi_attend_params *p, size_t row, size_t head, const head_state *state)
{
    const float den = state->sum + kvi_expf(p->sink[head] - state->max);
    float      *out = p->out + (row * p->n_heads + head) * p->width;

    for (size_t c = 0; c < p->width; c++) {
        out[c] = out[c] / den;
        if ((p->flags & KVI_OP_ROUND_BF16) != 0)
            out[c] = kvi_round_bf16(out[c]);
    }
    for (size_t j = 0; state->scores != NULL && j < p->k; j++)
        state->scores[j] = p->ids[row * p->k + j] >= 0
                               ? kvi_expf(state->scores[j] - state->max) / den
                               : 0.0f;
}

/* Adds the heads' probabilities [n_heads, k] to the mass of slots begin..end - 1 of a row. */
static void add_heads(const kvi_attend_params *p, size_t row, const float *probabilities,
                      size_t begin, size_t end)
{
    float *mass = p->mass + row * p->k;

    for (size_t j = begin; j < end; j++)
        mass[j] = 0.0f;
    for (size_t head = 0; head < p->n_heads; head++)
        for (size_t j = begin; j < end; j++)
            mass[j] = mass[j] + probabilities[head * p->k + j];
}

/* Multiply-adds of a head of a row. */
static size_t head_work(const kvi_attend_params *p)
{
    return 2 * ((size_t)p->n_window + p->k) * p->width;
}

/* Bytes of the scores of all heads of a row; 0 if nobody asks for the mass. */
static bool count_scores(const kvi_attend_params *p, size_t *bytes)
{
    *bytes = 0;
    return p->mass == NULL || kvi_mul_size((size_t)p->n_heads * sizeof(float), p->k, bytes);
}

/* ---------------------------------------------------------------- many rows: a group of rows an
 * item */

typedef struct attend_job {
    const kvi_attend_params *p;
    const kvcsa_allocator   *allocator;
    size_t                   scratch_bytes;
    atomic_int               no_memory;
} attend_job;

typedef struct row_scratch {
    float      *window;  /* [n_window + ROWS_GROUP - 1, width] keys of positions window_pos.. */
    float      *entries; /* [TILE, width] keys of one tile */
    float      *scores;  /* [n_heads, k]; NULL = nobody asks for the mass */
    head_state *heads;   /* [n_heads] */
    uint64_t    window_pos;
} row_scratch;

static bool count_row_scratch(const kvi_attend_params *p, size_t *bytes)
{
    const size_t n_keys = (size_t)p->n_window + ROWS_GROUP - 1 + TILE;
    size_t       scores = 0;

    return kvi_mul_size(n_keys * sizeof(float), p->width, bytes) && count_scores(p, &scores) &&
           kvi_add_size(*bytes, scores, bytes) &&
           kvi_add_size(*bytes, p->n_heads * sizeof(head_state), bytes);
}

static void load_window(const kvi_attend_params *p, size_t row_begin, size_t row_end,
                        row_scratch *s)
{
    const uint64_t last = p->pos[row_end - 1];

    s->window_pos = first_position(p, row_begin);
    for (uint64_t pos = s->window_pos; pos <= last; pos++)
        load_window_key(p, pos, s->window + (pos - s->window_pos) * p->width);
}

/* Keys of the slots first_slot.. of a row. */
static void find_tile(const kvi_attend_params *p, size_t row, size_t first_slot,
                      const row_scratch *s, tile *t)
{
    const size_t   end = kvi_min_size(first_slot + TILE, (size_t)p->n_window + p->k);
    const uint64_t lo = first_position(p, row);

    t->n_keys = 0;
    for (size_t slot = first_slot; slot < end; slot++) {
        const float *key = NULL;

        if (slot < p->n_window) {
            if (lo + slot <= p->pos[row])
                key = s->window + (lo + slot - s->window_pos) * p->width;
        } else {
            const int32_t entry = p->ids[row * p->k + slot - p->n_window];
            float        *to = s->entries + (slot - first_slot) * p->width;

            if (entry >= 0) {
                load_entry_key(p, (uint32_t)entry, to);
                key = to;
            }
        }
        if (key != NULL) {
            t->keys[t->n_keys] = key;
            t->slots[t->n_keys++] = slot;
        }
    }
}

static void attend_row(const kvi_attend_params *p, size_t row, const row_scratch *s)
{
    const size_t n_slots = (size_t)p->n_window + p->k;
    tile         t;

    for (size_t head = 0; head < p->n_heads; head++)
        begin_head(p, row, head, s->scores ? s->scores + head * p->k : NULL, &s->heads[head]);
    for (size_t slot = 0; slot < n_slots; slot += TILE) {
        find_tile(p, row, slot, s, &t);
        for (size_t head = 0; t.n_keys > 0 && head < p->n_heads; head++)
            add_tile(p, row, head, &s->heads[head], &t);
    }
    for (size_t head = 0; head < p->n_heads; head++)
        end_head(p, row, head, &s->heads[head]);
    if (s->scores)
        add_heads(p, row, s->scores, 0, p->k);
}

static void run_row_groups(void *arg, size_t begin, size_t end)
{
    attend_job              *job = arg;
    const kvi_attend_params *p = job->p;
    void                    *memory =
        atomic_load(&job->no_memory) ? NULL : kvi_alloc(job->allocator, job->scratch_bytes);
    row_scratch s = {0};

    if (memory == NULL) {
        atomic_store(&job->no_memory, 1);
        return;
    }
    s.heads = memory;
    s.entries = (float *)(s.heads + p->n_heads);
    s.window = s.entries + (size_t)TILE * p->width;
    if (p->mass != NULL)
        s.scores = s.window + ((size_t)p->n_window + ROWS_GROUP - 1) * p->width;
    for (size_t group = begin; group < end; group++) {
        const size_t row_begin = group * ROWS_GROUP;
        const size_t row_end = kvi_min_size(row_begin + ROWS_GROUP, p->n_rows);

        load_window(p, row_begin, row_end, &s);
        for (size_t row = row_begin; row < row_end; row++)
            attend_row(p, row, &s);
    }
    kvi_free(job->allocator, memory, job->scratch_bytes);
}

static kvcsa_status attend_by_rows(kvi_device *dev, const kvi_attend_params *p, kvcsa_error *err)
{
    attend_job job = {.p = p, .allocator = &dev->allocator};

    if (!count_row_scratch(p, &job.scratch_bytes))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "attention: scratch for %u keys", p->n_window);
    atomic_init(&job.no_memory, 0);
    kvi_run(dev->threads, run_row_groups, &job, kvi_div_up(p->n_rows, ROWS_GROUP),
            kvi_ref_grain(ROWS_GROUP * p->n_heads * head_work(p)));
    if (atomic_load(&job.no_memory))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "attention: scratch of %zu bytes", job.scratch_bytes);
    return KVCSA_OK;
}

/* ---------------------------------------------------------------- few rows: some heads of one row
 * an item */

typedef struct row_job {
    const kvi_attend_params *p;
    size_t                   row;
    float                   *keys;   /* [n_window + k, width] by slot */
    float                   *scores; /* [n_heads, k]; NULL = nobody asks for the mass */
} row_job;

static bool is_empty(const kvi_attend_params *p, size_t row, size_t slot)
{
    if (slot < p->n_window)
        return first_position(p, row) + slot > p->pos[row];
    return p->ids[row * p->k + slot - p->n_window] < 0;
}

static void run_load_keys(void *arg, size_t begin, size_t end)
{
    const row_job           *job = arg;
    const kvi_attend_params *p = job->p;

    for (size_t slot = begin; slot < end; slot++) {
        float *key = job->keys + slot * p->width;

        if (is_empty(p, job->row, slot))
            continue;
        if (slot < p->n_window)
            load_window_key(p, first_position(p, job->row) + slot, key);
        else
            load_entry_key(p, (uint32_t)p->ids[job->row * p->k + slot - p->n_window], key);
    }
}

static void run_heads(void *arg, size_t begin, size_t end)
{
    const row_job           *job = arg;
    const kvi_attend_params *p = job->p;
    const size_t             n_slots = (size_t)p->n_window + p->k;

    for (size_t head = begin; head < end; head++) {
        head_state state;
        tile       t;

        begin_head(p, job->row, head, job->scores ? job->scores + head * p->k : NULL, &state);
        for (size_t first = 0; first < n_slots; first += TILE) {
            t.n_keys = 0;
            for (size_t slot = first; slot < kvi_min_size(first + TILE, n_slots); slot++) {
                if (is_empty(p, job->row, slot))
                    continue;
                t.keys[t.n_keys] = job->keys + slot * p->width;
                t.slots[t.n_keys++] = slot;
            }
            if (t.n_keys > 0)
                add_tile(p, job->row, head, &state, &t);
        }
        end_head(p, job->row, head, &state);
    }
}

static void run_add_heads(void *arg, size_t begin, size_t end)
{
    const row_job *job = arg;

    add_heads(job->p, job->row, job->scores, begin, end);
}

static kvcsa_status attend_by_heads(kvi_device *dev, const kvi_attend_params *p, kvcsa_error *err)
{
    const size_t n_slots = (size_t)p->n_window + p->k;
    row_job      job = {.p = p};
    size_t       key_bytes = 0;
    size_t       bytes = 0;

    if (!kvi_mul_size(n_slots * sizeof(float), p->width, &key_bytes) || !count_scores(p, &bytes) ||
        !kvi_add_size(bytes, key_bytes, &bytes) ||
        (job.keys = kvi_alloc(&dev->allocator, bytes)) == NULL)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "attention: %zu keys of %u channels", n_slots,
                        p->width);
    if (p->mass != NULL)
        job.scores = job.keys + n_slots * p->width;
    for (job.row = 0; job.row < p->n_rows; job.row++) {
        kvi_run(dev->threads, run_load_keys, &job, n_slots, kvi_ref_grain(4 * (size_t)p->width));
        kvi_run(dev->threads, run_heads, &job, p->n_heads, kvi_ref_grain(head_work(p)));
        if (p->mass != NULL)
            kvi_run(dev->threads, run_add_heads, &job, p->k, kvi_ref_grain(p->n_heads));
    }
    kvi_free(&dev->allocator, job.keys, bytes);
    return KVCSA_OK;
}

/* ---------------------------------------------------------------- the operator */

kvcsa_status kvi_cpu_attend(kvi_device *dev, const kvi_attend_params *p, kvcsa_error *err)
{
    const size_t n_threads = dev->threads != NULL ? kvi_threads_width(dev->threads) : 1;

    KVI_ASSERT(p->width % KVI_WINDOW_GROUP == 0 &&
               p->row_bytes == p->width + p->width / KVI_WINDOW_GROUP);
    KVI_ASSERT(p->k == 0 || (p->ids != NULL && p->entries.owner->entry_width == p->width));
    KVI_ASSERT(p->k == 0 || (kvi_row_can_run(p->entries.owner->entry_format) &&
                             p->entries.owner->main_row_bytes ==
                                 kvi_format_row_bytes(p->entries.owner->entry_format, p->width)));
    if (p->n_rows == 0)
        return KVCSA_OK;
    KVI_ASSERT(p->chunk_pos <= p->pos[0] && p->pos[p->n_rows - 1] == p->pos[0] + p->n_rows - 1);
    KVI_ASSERT(first_position(p, 0) >= p->chunk_pos ||
               (uint64_t)p->n_pages * p->page_rows >= p->n_window);
    /* With fewer groups than threads, groups alone would leave threads idle; a single row always
     * goes by heads. */
    if (p->n_rows == 1 || kvi_div_up(p->n_rows, ROWS_GROUP) < n_threads)
        return attend_by_heads(dev, p, err);
    return attend_by_rows(dev, p, err);
}
