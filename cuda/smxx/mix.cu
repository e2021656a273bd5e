#include "mix.cuh"

#include "cuda_features.h"
#include "dense_check.h"

enum : unsigned { MAX_WIDTH = 0x7fffffffu / MIX_COPIES };

static_assert(MIX_COPIES == KVI_MAX_COPIES, "copies");

static kvcsa_status check_copies(const char *name, uint32_t copies, uint32_t width, kvcsa_error *err)
{
    if (copies < 1 || copies > MIX_COPIES)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "%s: 1 to %u copies, not %u", name, MIX_COPIES, copies);
    if (width > MAX_WIDTH)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "%s: a row of more than 2^31 floats", name);
    return KVCSA_OK;
}

kvcsa_status kvi_cuda_mix(kvi_device *dev, const kvi_mix_params *p, kvcsa_error *err)
{
    kvi_cuda_use   use(dev);
    const mix_args a = {p->h,       p->proj,     p->base,     p->pre,      p->post,     p->comb, p->copies, p->copies * p->width,
                        p->n_iters, p->scale[0], p->scale[1], p->scale[2], p->norm_eps, p->eps};
    dim3           grid;

    KVI_TRY(check_copies("mix", p->copies, p->width, err));
    if (p->n_rows == 0)
        return KVCSA_OK;
    KVI_TRY(kvi_dense_grid("mix", p->n_rows, 1, &grid, err));
    return kvi_launch(dev, "mix", p->copies == 4 ? mix_f32_f32_kernel<4> : mix_f32_f32_kernel<0>, grid, MIX_THREADS,
                      sizeof(mix_shared), err, a);
}

kvcsa_status kvi_cuda_collapse(kvi_device *dev, const kvi_collapse_params *p, kvcsa_error *err)
{
    kvi_cuda_use        use(dev);
    const unsigned      pieces = kvi_blocks(p->width, STREAM_COLUMNS);
    const collapse_args a = {p->h, p->pre, p->y, p->copies, p->width, pieces};
    dim3                grid;

    KVI_TRY(kvi_dense_flags("collapse", p->flags, err));
    KVI_TRY(check_copies("collapse", p->copies, p->width, err));
    if (p->n_rows == 0 || p->width == 0)
        return KVCSA_OK;
    KVI_TRY(kvi_dense_grid("collapse", p->n_rows, pieces, &grid, err));
    return kvi_launch(dev, "collapse", p->copies == 4 ? collapse_f32_f32_kernel<4> : collapse_f32_f32_kernel<0>, grid,
                      STREAM_THREADS, 0, err, a);
}

kvcsa_status kvi_cuda_expand(kvi_device *dev, const kvi_expand_params *p, kvcsa_error *err)
{
    kvi_cuda_use      use(dev);
    const unsigned    pieces = kvi_blocks(p->width, STREAM_COLUMNS);
    const expand_args a = {p->h, p->y, p->post, p->comb, p->copies, p->width, pieces};
    dim3              grid;

    KVI_TRY(kvi_dense_flags("expand", p->flags, err));
    KVI_TRY(check_copies("expand", p->copies, p->width, err));
    if (p->n_rows == 0 || p->width == 0)
        return KVCSA_OK;
    KVI_TRY(kvi_dense_grid("expand", p->n_rows, pieces, &grid, err));
    return kvi_launch(dev, "expand", p->copies == 4 ? expand_f32_f32_kernel<4> : expand_f32_f32_kernel<8>, grid, STREAM_THREADS,
                      sizeof(expand_shared), err, a);
}

void kvi_cuda_features_mix(kvi_features *f)
{
    f->copies = {1, MIX_COPIES, 1};
    f->hidden = {32, UINT32_MAX, 32}; /* groups of weights have 32 channels; no configuration is as wide as MAX_WIDTH */
}
