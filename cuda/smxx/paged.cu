#include "paged.cuh"

#include "cuda_device.h"
#include "cuda_features.h"

static const size_t PAGED_SCRATCH = static_cast<size_t>(64) << 20; /* of the chunks' sums, unless one row needs more */
enum : unsigned { PAGED_STEP = 32 };                               /* of widths */
enum : size_t { PAGED_UNITS_PER_SM = 8 };                          /* blocks that need no chunks apart */

/* How a launch divides the heads and what its blocks are. */
struct paged_kernels {
    void (*run)(paged_args);
    size_t   shared;
    unsigned threads;
    unsigned heads; /* of a block */
    unsigned group_bytes; /* of 32 channels */
};

template <class F, unsigned MAX_WIDTH, unsigned NT> static paged_kernels paged_of()
{
    typedef paged_shape<F, MAX_WIDTH, NT> shape;
    return {paged_kernel<F, MAX_WIDTH, NT>, sizeof(paged_shared<F, MAX_WIDTH, NT>), shape::THREADS, shape::HEADS, F::BYTES};
}

template <class F> static paged_kernels paged_choose(uint32_t width, uint32_t ratio)
{
    if (width > 128)
        return paged_of<F, 256, 1>();
    return ratio > 8 ? paged_of<F, 128, 2>() : paged_of<F, 128, 1>();
}

static bool paged_find(uint32_t format, uint32_t width, uint32_t ratio, paged_kernels *out)
{
    switch (format) {
    case KVCSA_FORMAT_F16: *out = paged_choose<paged_f16>(width, ratio); return true;
    case KVCSA_FORMAT_BF16: *out = paged_choose<paged_bf16>(width, ratio); return true;
    case KVCSA_FORMAT_FP8_E8M0_G32: *out = paged_choose<paged_mxfp8>(width, ratio); return true;
    case KVCSA_FORMAT_Q8_0: *out = paged_choose<paged_q8>(width, ratio); return true;
    case KVCSA_FORMAT_FP4_E4M3_G16: *out = paged_choose<paged_fp4>(width, ratio); return true;
    case KVCSA_FORMAT_FP4_E8M0_G32: *out = paged_choose<paged_mxfp4>(width, ratio); return true;
    case KVCSA_FORMAT_Q4_0: *out = paged_choose<paged_q4>(width, ratio); return true;
    default: return false;
    }
}

/* A block for each row, KV head and part of its query heads. */
static kvcsa_status paged_whole(kvi_device *dev, const paged_kernels &k, const paged_args &all, size_t n_rows, kvcsa_error *err)
{
    const size_t units = static_cast<size_t>(all.n_kv_heads) * all.n_parts, most = (static_cast<size_t>(1) << 30) / units;

    for (size_t row = 0; row < n_rows; row += most) {
        const size_t n = n_rows - row < most ? n_rows - row : most, off = row * all.n_heads * all.width;
        paged_args   a = all;

        a.q += off;
        a.out += off;
        a.n_visible += row;
        KVI_TRY(kvi_launch(dev, "paged_attend", k.run, dim3(kvi_blocks(n * units, 1)), k.threads, k.shared, err, a));
    }
    return KVCSA_OK;
}

/* A block for each chunk too; as many rows at a time as have room for their sums. */
static kvcsa_status paged_split_rows(kvi_device *dev, const paged_kernels &k, const paged_args &all, size_t n_rows,
                                     kvcsa_error *err)
{
    const size_t units = static_cast<size_t>(all.n_kv_heads) * all.n_parts * all.n_chunks;
    const size_t slots = static_cast<size_t>(all.n_chunks) * all.n_heads;
    const size_t bytes = slots * (all.width * sizeof(float) + sizeof(float2));
    const size_t most = bytes < PAGED_SCRATCH ? PAGED_SCRATCH / bytes : 1, rows = n_rows < most ? n_rows : most;
    void        *scratch = nullptr;

    KVI_TRY(kvi_cuda_scratch_get(dev, rows * bytes, &scratch, err));
    for (size_t row = 0; row < n_rows; row += rows) {
        const size_t n = n_rows - row < rows ? n_rows - row : rows, off = row * all.n_heads * all.width;
        paged_args   a = all;

        a.q += off;
        a.out += off;
        a.n_visible += row;
        a.sums = static_cast<float *>(scratch);
        a.states = reinterpret_cast<float2 *>(a.sums + rows * slots * all.width);
        KVI_TRY(kvi_launch(dev, "paged_attend", k.run, dim3(kvi_blocks(n * units, 1)), k.threads, k.shared, err, a));
        KVI_TRY(kvi_launch(dev, "paged_combine", paged_combine_kernel, dim3(kvi_blocks(n * all.n_heads, 1)),
                           PAGED_COMBINE_THREADS, sizeof(paged_combine_shared), err, a));
    }
    return KVCSA_OK;
}

/* Beyond backend/op_params.h: pages start at 16-byte boundaries. Without max_visible few rows do not fill a large device. */
kvcsa_status kvi_cuda_paged_attend(kvi_device *dev, const kvi_paged_attend_params *p, kvcsa_error *err)
{
    kvi_cuda_use  use(dev);
    paged_kernels k;
    paged_args    a = {};

    if (p->n_rows == 0)
        return KVCSA_OK;
    if (p->width == 0 || p->width % PAGED_STEP || p->width > PAGED_MAX_WIDTH)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "paged_attend: heads of %u channels; multiples of %u up to %u",
                             p->width, +PAGED_STEP, PAGED_MAX_WIDTH);
    if (p->n_kv_heads == 0 || p->n_heads % p->n_kv_heads || p->n_heads / p->n_kv_heads > PAGED_MAX_RATIO || p->n_heads == 0)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "paged_attend: %u heads on %u KV heads; 1 to %u on each", p->n_heads,
                             p->n_kv_heads, PAGED_MAX_RATIO);
    if (p->page_rows == 0 || p->page_off % 16)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "paged_attend: pages of %u rows at byte %zu; at a multiple of 16",
                             p->page_rows, p->page_off);
    if (!paged_find(p->format, p->width, p->n_heads / p->n_kv_heads, &k))
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0,
                             "paged_attend: format %u; f16, bf16, fp8, q8_0, fp4, mxfp4 and q4_0 are there", p->format);
    if (k.shared > dev->shared_max)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "paged_attend: %zu bytes of shared memory, a block has %zu",
                             k.shared, dev->shared_max);
    a.q = p->q;
    a.out = p->out;
    a.pages = p->pages;
    a.n_visible = p->n_visible;
    a.sink = p->sink;
    a.page_off = p->page_off;
    a.max_visible = p->max_visible ? p->max_visible : UINT64_MAX;
    a.n_heads = p->n_heads;
    a.n_kv_heads = p->n_kv_heads;
    a.ratio = p->n_heads / p->n_kv_heads;
    a.n_parts = kvi_blocks(a.ratio, k.heads);
    a.width = p->width;
    a.page_rows = p->page_rows;
    a.row_bytes = p->width / 32 * k.group_bytes;
    a.scale = p->scale * 1.44269504088896341f;

    const uint64_t n_chunks = p->max_visible / KVI_PAGED_CHUNK + (p->max_visible % KVI_PAGED_CHUNK != 0);
    const size_t   units = p->n_rows * p->n_kv_heads * a.n_parts;
    if (n_chunks <= 1 || units >= PAGED_UNITS_PER_SM * static_cast<size_t>(dev->n_sms))
        return paged_whole(dev, k, a, p->n_rows, err);
    if (n_chunks > 0x7fffffffu / (static_cast<uint64_t>(p->n_kv_heads) * a.n_parts))
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "paged_attend: %llu chunks are more than a grid has blocks",
                             static_cast<unsigned long long>(n_chunks));
    a.n_chunks = static_cast<unsigned>(n_chunks);
    return paged_split_rows(dev, k, a, p->n_rows, err);
}

void kvi_cuda_features_paged(kvi_features *f)
{
    paged_kernels k;

    for (uint32_t format = 0; format < 64; format++)
        if (paged_find(format, PAGED_STEP, 1, &k))
            f->paged_formats |= static_cast<uint64_t>(1) << format;
    f->paged_width = {PAGED_STEP, PAGED_MAX_WIDTH, PAGED_STEP};
}
