#include "linear.cuh"

#include "cuda_blas.h"
#include "cuda_device.h"
#include "cuda_features.h"

static_assert(static_cast<unsigned>(WEIGHT_F32) == KVI_W_F32 && static_cast<unsigned>(WEIGHT_BF16) == KVI_W_BF16 &&
                  static_cast<unsigned>(WEIGHT_FP8) == KVI_W_FP8 && static_cast<unsigned>(WEIGHT_FP8_ROW) == KVI_W_FP8_ROW &&
                  static_cast<unsigned>(WEIGHT_FP4) == KVI_W_FP4,
              "kinds as in backend/op_params.h");
static_assert(sizeof(many_shared) <= 99 * 1024, "fits the smallest device");
static_assert(sizeof(few_shared<2, 4>) <= 99 * 1024, "fits the smallest device");

namespace {

/* Weight tiles that are y of a grid. The emulated device has few, so that small tests have tiles in z. */
#ifdef KVI_CUDA_EMULATED
enum : size_t { MOST_Y = 3 };
#else
enum : size_t { MOST_Y = 65535 };
#endif
enum : size_t { MAX_OUT = 0x7fffff00 }; /* weight rows of a tile have 32-bit numbers */

/* Blocks with the same weights are neighbours: row tiles x, weight tiles y + z. A few blocks at the end of z may have none. */
dim3 tiles(size_t n_rows, size_t rows, size_t n_out, size_t outs)
{
    const size_t n = kvi_blocks(n_out, outs), z = (n + MOST_Y - 1) / MOST_Y;

    return dim3(kvi_blocks(n_rows, rows), static_cast<unsigned>((n + z - 1) / z), static_cast<unsigned>(z));
}

template <unsigned KIND> kvcsa_status run(kvi_device *dev, const linear_args &a, kvcsa_error *err)
{
    if (a.n_rows <= 8)
        return kvi_launch(dev, "linear, few rows", linear_few_kernel<KIND, 1, 1>, tiles(1, 1, a.n_out, 16), PRODUCT_THREADS,
                          sizeof(few_shared<1, 1>), err, a);
    if (a.n_rows <= 32 || !a.shape.x_whole || !a.shape.whole)
        return kvi_launch(dev, "linear, rows", linear_few_kernel<KIND, 2, 4>, tiles(a.n_rows, 32, a.n_out, 32), PRODUCT_THREADS,
                          sizeof(few_shared<2, 4>), err, a);
    return kvi_launch(dev, "linear, many rows", linear_many_kernel<KIND>, tiles(a.n_rows, MANY, a.n_out, MANY), PRODUCT_THREADS,
                      sizeof(many_shared), err, a);
}

kvcsa_status run_f32(kvi_device *dev, const linear_args &a, kvcsa_error *err)
{
    if (a.n_rows == 1)
        return kvi_launch(dev, "linear, f32 row", linear_f32_kernel<1, 1>, tiles(1, 1, a.n_out, 1), PRODUCT_THREADS,
                          sizeof(linear_f32_shared<1, 1>), err, a);
    return kvi_launch(dev, "linear, f32 rows", linear_f32_kernel<4, 8>, tiles(a.n_rows, 8, a.n_out, 4), PRODUCT_THREADS,
                      sizeof(linear_f32_shared<4, 8>), err, a);
}

/* BF16: two products, of the high and of the low parts of x. *made = false: y is to be made by others. */
kvcsa_status run_blas(kvi_device *dev, const kvi_linear_params *p, bool *made, kvcsa_error *err)
{
    const size_t          cols = p->w->cols, n = p->n_rows * cols;
    const size_t          row_bytes = cols * (p->w->kind == KVI_W_F32 ? 4 : 2);
    kvi_cuda_blas_product b = {p->w->data + p->row0 * row_bytes, p->x, p->y, p->n_rows, p->n_out, cols, p->x_stride, p->y_stride,
                               false, false};
    void                 *room = nullptr;

    if (p->w->kind == KVI_W_F32)
        return kvi_cuda_blas_run(dev, &b, made, err);
    KVI_TRY(kvi_cuda_scratch_get(dev, 4 * n, &room, err));
    const linear_split_args s = {p->x, static_cast<uint16_t *>(room), static_cast<uint16_t *>(room) + n, p->x_stride, p->w->cols};
    KVI_TRY(kvi_launch(dev, "linear, split", linear_split_kernel, dim3(kvi_blocks(p->n_rows, 1)), PRODUCT_THREADS, 0, err, s));
    b.bf16 = true;
    b.x_stride = cols;
    b.x = s.hi;
    KVI_TRY(kvi_cuda_blas_run(dev, &b, made, err));
    if (!*made)
        return KVCSA_OK;
    b.add = true;
    b.x = s.lo;
    return kvi_cuda_blas_run(dev, &b, made, err);
}

bool aligned(const void *p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

kvcsa_status check(const kvi_linear_params *p, kvcsa_error *err)
{
    const kvi_matrix *w = p->w;

    if (p->flags)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "linear: the reference mode is the CPU's");
    if (w->kind == KVI_W_NONE || w->kind > KVI_W_FP4)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "linear: weights of kind %u", w->kind);
    if (w->kind >= KVI_W_FP8 && w->cols % SCALE_GROUP)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "linear: %u columns, must be a multiple of 32", w->cols);
    if (p->row0 > w->rows || p->n_out > w->rows - p->row0)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "linear: rows %u + %u of %u", p->row0, p->n_out, w->rows);
    if (!aligned(w->data, 16))
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "linear: weights are not aligned to 16 bytes");
    if (p->n_out > MAX_OUT)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "linear: %u outputs, at most %zu", p->n_out, static_cast<size_t>(MAX_OUT));
    return KVCSA_OK;
}

} // namespace

kvcsa_status kvi_cuda_linear(kvi_device *dev, const kvi_linear_params *p, kvcsa_error *err)
{
    kvi_cuda_use use(dev);
    linear_args  a = linear_args();
    bool         made = false;

    KVI_TRY(check(p, err));
    if (p->n_rows == 0 || p->n_out == 0)
        return KVCSA_OK;
    a.w = {p->w->data, p->w->scale};
    a.row0 = p->row0;
    a.x = p->x;
    a.y = p->y;
    a.x_stride = p->x_stride;
    a.y_stride = p->y_stride;
    a.n_rows = p->n_rows;
    a.n_out = p->n_out;
    a.shape.cols = p->w->cols;
    a.shape.segment = static_cast<unsigned>(product_segment(p->w->cols));
    a.shape.n_segments = kvi_blocks(p->w->cols, a.shape.segment);
    a.shape.whole = p->w->cols % (p->w->kind == KVI_W_F32 ? 4u : +PIECE) == 0;
    a.shape.x_whole = a.shape.whole && aligned(p->x, 16) && p->x_stride % 4 == 0;
    if (dev->blas && dev->blas->fast_dense && p->n_rows >= FAST_DENSE_ROWS && p->w->kind <= KVI_W_BF16 && p->w->cols % 8 == 0) {
        KVI_TRY(run_blas(dev, p, &made, err));
        if (made)
            return KVCSA_OK;
    }
    switch (p->w->kind) {
    case KVI_W_F32:
        return run_f32(dev, a, err);
    case KVI_W_BF16:
        return run<WEIGHT_BF16>(dev, a, err);
    case KVI_W_FP8:
        return run<WEIGHT_FP8>(dev, a, err);
    case KVI_W_FP8_ROW:
        return run<WEIGHT_FP8_ROW>(dev, a, err);
    default:
        return run<WEIGHT_FP4>(dev, a, err);
    }
}

void kvi_cuda_features_linear(kvi_features *f)
{
    for (uint32_t kind = KVI_W_NONE + 1; kind <= KVI_W_FP4; kind++) /* as check() */
        f->weight_kinds |= 1u << kind;
}
