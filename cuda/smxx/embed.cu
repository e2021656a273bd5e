#include "embed.cuh"

#include "dense_check.h"

template <embed_kind KIND> static kvcsa_status launch(kvi_device *dev, dim3 grid, const embed_args &a, kvcsa_error *err)
{
    return kvi_launch(dev, "embed", embed_f32_kernel<KIND>, grid, EMBED_THREADS, 0, err, a);
}

kvcsa_status kvi_cuda_embed(kvi_device *dev, const kvi_embed_params *p, kvcsa_error *err)
{
    kvi_cuda_use      use(dev);
    const kvi_matrix *t = p->table;
    const unsigned    pieces = kvi_blocks(t->cols, EMBED_COLUMNS);
    const embed_args  a = {t->data, t->scale, p->ids, p->y, p->y_stride, t->cols, pieces};
    dim3              grid;

    KVI_TRY(kvi_dense_flags("embed", p->flags, err));
    if (t->kind >= KVI_W_FP8 && t->cols % EMBED_GROUP)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "embed: %u columns are not whole groups of %u", t->cols, EMBED_GROUP);
    if (t->cols > 0x7fffffffu || reinterpret_cast<uintptr_t>(t->data) % 16)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "embed: rows below 2^31 columns, a table at a 16-byte boundary");
    if (p->n_rows == 0 || t->cols == 0)
        return KVCSA_OK;
    KVI_TRY(kvi_dense_grid("embed", p->n_rows, pieces, &grid, err));
    switch (t->kind) {
    case KVI_W_F32:
        return launch<EMBED_F32>(dev, grid, a, err);
    case KVI_W_BF16:
        return launch<EMBED_BF16>(dev, grid, a, err);
    case KVI_W_FP8:
        return launch<EMBED_FP8>(dev, grid, a, err);
    case KVI_W_FP8_ROW:
        return launch<EMBED_FP8_ROW>(dev, grid, a, err);
    case KVI_W_FP4:
        return launch<EMBED_FP4>(dev, grid, a, err);
    default:
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "embed: matrices of kind %u", t->kind);
    }
}
