#include "attend_combine.cuh"

#include "attend_sm90.h"
#include "cuda_device.h"
#include "cuda_features.h"

enum { KEEP = 32 << 20 }; /* bytes of parts and scores that one launch leaves for the next: what the second cache holds */

typedef void (*attend_kernel)(attend_args);

struct attend_plan {
    attend_kernel kernel;
    size_t        shared;
    unsigned      heads, threads; /* of a block */
};

template <unsigned HEADS, unsigned SLOTS, bool FAST> static attend_plan plan_of()
{
    return {attend_bf16_f32_kernel<HEADS, SLOTS, FAST>, sizeof(typename attend_shape<HEADS, SLOTS, FAST>::shared), HEADS,
            ATTEND_THREADS};
}

/* Tiles are as large as the device's shared memory allows, for all numbers of rows alike. Groups of 16 heads where all blocks
 * run at the same time, or where 64 would be half empty, or do not fit. */
static attend_plan choose(const kvi_device *dev, const attend_args &a, size_t n_rows, bool fast)
{
    const bool large = dev->shared_max >= sizeof(attend_shape<64, 64, true>::shared);
    const bool few = a.n_heads <= 32 || n_rows * a.n_splits * ((a.n_heads + 15) / 16) <= static_cast<size_t>(dev->n_sms) ||
                     dev->shared_max < sizeof(attend_shape<64, 32, true>::shared);
    attend_sm90 sm90;

    if (!fast)
        return plan_of<16, 32, false>();
    if (kvi_attend_sm90_get(dev, a.n_heads, &sm90)) /* for any number of rows: it has bits of its own */
        return {sm90.kernel, sm90.shared, sm90.heads, sm90.threads};
    if (large)
        return few ? plan_of<16, 64, true>() : plan_of<64, 64, true>();
    return few ? plan_of<16, 32, true>() : plan_of<64, 32, true>();
}

static kvcsa_status check(const kvi_attend_params *p, kvcsa_error *err)
{
    if (p->flags)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "attend: the reference mode is the CPU's");
    if (p->width == 0 || p->width > ATTEND_WIDTH || p->width % ATTEND_STEP)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "attend: %u channels, must be a multiple of %u up to %u", p->width,
                             +ATTEND_STEP, +ATTEND_WIDTH);
    if (p->k && !kvi_tile_can(p->entries.owner->entry_format))
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "attend: entry format %u", p->entries.owner->entry_format);
    if (static_cast<uint64_t>(p->n_window) + p->k > 1u << 24)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "attend: %llu slots, at most 2^24",
                             static_cast<unsigned long long>(static_cast<uint64_t>(p->n_window) + p->k));
    return KVCSA_OK;
}

static bool is_fast(const kvi_attend_params *p)
{
    const kvi_kv_owner *o = p->entries.owner;

    return p->width == ATTEND_WIDTH &&
           (p->n_window == 0 ||
            (p->row_bytes == ATTEND_FP8 && p->page_off % 16 == 0 && reinterpret_cast<uintptr_t>(p->chunk) % 16 == 0)) &&
           (p->k == 0 || (o->entry_format == KVCSA_FORMAT_FP4_E4M3_G16 && o->main_row_bytes == ATTEND_FP4 && o->main_off % 16 == 0));
}

/* The rows of one portion: `a` holds what they share. */
static kvcsa_status run(kvi_device *dev, const kvi_attend_params *p, attend_args a, const attend_plan &plan, size_t row, size_t n,
                        kvcsa_error *err)
{
    const size_t width = static_cast<size_t>(p->n_heads) * p->width;
    const size_t n_blocks = n * a.n_splits * a.n_groups;

    a.q = p->q + row * width;
    a.out = p->out + row * width;
    a.pos = p->pos + row;
    a.ids = p->ids ? p->ids + row * p->k : nullptr;
    a.first_row = row;
    KVI_TRY(kvi_launch(dev, "attend", plan.kernel, dim3(kvi_blocks(n_blocks, 1)), plan.threads, plan.shared, err, a));
    if (a.n_splits > 1)
        KVI_TRY(kvi_launch(dev, "attend combine", attend_combine_kernel, dim3(kvi_blocks(n * a.n_heads, 1)), COMBINE_THREADS, 0,
                           err, a));
    if (a.scores) {
        const attend_mass_args m = {a.scores, a.stat, a.ids, p->mass + row * p->k, a.n_heads, a.k};
        const dim3             grid(kvi_blocks(n * kvi_blocks(a.k, MASS_THREADS), 1));
        KVI_TRY(kvi_launch(dev, "attend mass", attend_mass_kernel, grid, MASS_THREADS, 0, err, m));
    }
    return KVCSA_OK;
}

kvcsa_status kvi_cuda_attend(kvi_device *dev, const kvi_attend_params *p, kvcsa_error *err)
{
    kvi_cuda_use use(dev);
    attend_args  a = attend_args();

    if (p->n_rows == 0 || p->n_heads == 0)
        return KVCSA_OK;
    KVI_TRY(check(p, err));
    a.pages = p->pages;
    a.chunk = p->chunk;
    a.sink = p->sink;
    a.chunk_pos = p->chunk_pos;
    a.floor = p->floor;
    a.of = p->of;
    a.page_off = p->page_off;
    a.n_heads = p->n_heads;
    a.width = p->width;
    a.n_window = p->n_window;
    a.page_rows = p->page_rows;
    a.n_pages = p->n_pages;
    a.row_bytes = p->row_bytes;
    a.k = p->k;
    a.scale = p->scale;
    if (p->k) {
        a.main_parts = p->entries.main_parts;
        a.main_off = p->entries.owner->main_off;
        a.rows_per_block = p->entries.owner->rows_per_block;
        a.main_row_bytes = p->entries.owner->main_row_bytes;
        a.format = p->entries.owner->entry_format;
    }
    const unsigned n_slots = p->n_window + p->k;
    a.n_splits = n_slots ? kvi_blocks(n_slots, ATTEND_SPLIT) : 1;

    /* Scratch of a row: parts and their statistics, statistics of the end, scores. */
    const bool   mass = p->mass && p->k;
    const size_t heads = p->n_heads;
    const size_t parts = a.n_splits > 1 ? a.n_splits * heads * p->width * sizeof(float) : 0;
    const size_t part_stats = a.n_splits > 1 ? a.n_splits * heads * sizeof(float2) : 0;
    const size_t stats = mass ? heads * sizeof(float2) : 0, scores = mass ? heads * p->k * sizeof(float) : 0;
    const size_t row_bytes = parts + part_stats + stats + scores;
    size_t       n = p->n_rows;
    if (row_bytes) {
        char *at;

        n = n * row_bytes <= KEEP ? n : row_bytes < KEEP ? KEEP / row_bytes : 1;
        void *scratch;
        KVI_TRY(kvi_cuda_scratch_get(dev, n * row_bytes, &scratch, err));
        at = static_cast<char *>(scratch);
        if (parts) {
            a.part = reinterpret_cast<float *>(at);
            a.part_stat = reinterpret_cast<float2 *>(at + n * parts);
        }
        if (mass) {
            a.stat = reinterpret_cast<float2 *>(at + n * (parts + part_stats));
            a.scores = reinterpret_cast<float *>(at + n * (parts + part_stats + stats));
        }
    }
    const attend_plan plan = choose(dev, a, n, is_fast(p));
    a.n_groups = kvi_blocks(p->n_heads, plan.heads);
    for (size_t row = 0; row < p->n_rows; row += n)
        KVI_TRY(run(dev, p, a, plan, row, p->n_rows - row < n ? p->n_rows - row : n, err));
    return KVCSA_OK;
}

void kvi_cuda_features_attend(kvi_features *f)
{
    for (uint32_t format = 0; format < 64; format++)
        if (kvi_tile_can(format))
            f->entry_formats |= static_cast<uint64_t>(1) << format;
    f->heads = {1, UINT32_MAX, 1};
    f->head_width = f->window_width = {ATTEND_STEP, ATTEND_WIDTH, ATTEND_STEP};
}
