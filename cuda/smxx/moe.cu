#include "moe.cuh"

#include "cuda_device.h"
#include "cuda_features.h"

static_assert(sizeof(moe_experts) + sizeof(moe_group_args) <= 32764, "parameters of a launch");

namespace {

/* Rows of one pass: bounds the scratch (k = 6, width 4096, inner 2048: 176 MB); bits do not depend on it. */
constexpr size_t PASS_ROWS = 1024;

struct plan {
    const kvi_moe_params *p;
    moe_args              up, down;
    float                *products;
    size_t                n_slots;   /* routed, of a full pass */
    size_t                n_tiles;   /* at most */
    unsigned              tile;
};

bool aligned(const void *p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

kvcsa_status check_matrix(const char *name, const kvi_matrix *w, uint32_t kind, uint32_t rows, uint32_t cols, kvcsa_error *err)
{
    if (w->rows != rows || w->cols != cols)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "moe: %s is %u x %u, must be %u x %u", name, w->rows, w->cols, rows, cols);
    if (w->kind != KVI_W_BF16 && w->kind != KVI_W_FP8 && w->kind != KVI_W_FP4)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "moe: %s is of kind %u, must be BF16, FP8 or FP4", name, w->kind);
    if (w->kind != kind)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "moe: %s is of kind %u, others are of %u", name, w->kind, kind);
    if (w->kind >= KVI_W_FP8 && cols % SCALE_GROUP)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "moe: %s has %u columns, must be a multiple of 32", name, cols);
    if (!aligned(w->data, 16))
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "moe: %s is not aligned to 16 bytes", name);
    return KVCSA_OK;
}

/* All routed experts are alike; w1 and w3 of one kind. */
kvcsa_status check_expert(const kvi_moe_params *p, const kvi_expert *e, const kvi_expert *first, kvcsa_error *err)
{
    KVI_TRY(check_matrix("w1", &e->w1, first->w1.kind, p->inner, p->width, err));
    KVI_TRY(check_matrix("w3", &e->w3, first->w1.kind, p->inner, p->width, err));
    return check_matrix("w2", &e->w2, first->w2.kind, p->width, p->inner, err);
}

kvcsa_status check(const kvi_moe_params *p, kvcsa_error *err)
{
    if (p->flags)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "moe: the reference mode is the CPU's");
    if (p->n_experts > MOE_MAX_EXPERTS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "moe: %u experts, at most %u", p->n_experts, static_cast<unsigned>(MOE_MAX_EXPERTS));
    if (p->k > p->n_experts || p->k > MOE_MAX_K)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "moe: %u experts of a row, at most %u of %u", p->k,
                             +MOE_MAX_K, p->n_experts);
    for (uint32_t e = 0; e < p->n_experts; e++)
        KVI_TRY(check_expert(p, &p->routed[e], p->routed, err));
    return check_expert(p, p->shared, p->shared, err);
}

product_shape shape_of(uint32_t cols, bool x_aligned)
{
    product_shape s = product_shape();

    s.cols = cols;
    s.segment = static_cast<unsigned>(product_segment(cols));
    s.n_segments = kvi_blocks(cols, s.segment);
    s.whole = cols % PIECE == 0;
    s.x_whole = s.whole && x_aligned;
    return s;
}

size_t round_up(size_t n) { return (n + 255) / 256 * 256; }

/* The next piece of `size` bytes; with a NULL base only its size is counted. */
template <class T> T *piece(char *base, size_t &off, size_t n)
{
    T *at = base ? reinterpret_cast<T *>(base + off) : nullptr;

    off += round_up(n * sizeof(T));
    return at;
}

size_t lay_out(plan &m, char *base, size_t rows)
{
    const kvi_moe_params *p = m.p;
    const size_t          slots = m.n_slots + rows;
    size_t                off = 0;
    moe_lists             l;

    l.table = piece<moe_expert>(base, off, p->n_experts + static_cast<size_t>(1));
    l.tiles = piece<moe_tile>(base, off, m.n_tiles);
    l.n_tiles = piece<unsigned>(base, off, 1);
    l.slot_row = piece<unsigned>(base, off, slots);
    l.slot_weight = piece<float>(base, off, slots);
    l.order = piece<unsigned>(base, off, m.n_slots);
    m.up.y = piece<float>(base, off, slots * p->inner);
    m.products = piece<float>(base, off, slots * p->width);
    m.up.lists = m.down.lists = l;
    m.down.x = m.up.y;
    m.down.y = m.products;
    return off;
}

moe_experts table_of(const kvi_moe_params *p)
{
    moe_experts t;

    for (uint32_t i = 0; i <= p->n_experts; i++) {
        const kvi_expert *e = i < p->n_experts ? &p->routed[i] : p->shared;
        t.e[i] = {{e->w1.data, e->w1.scale}, {e->w2.data, e->w2.scale}, {e->w3.data, e->w3.scale}};
    }
    return t;
}

template <unsigned ROUTED, unsigned SHARED, bool UP>
kvcsa_status few(kvi_device *dev, const plan &m, const moe_args &a, kvcsa_error *err)
{
    return kvi_launch(dev, UP ? "moe, up" : "moe, down", moe_few_kernel<ROUTED, SHARED, UP, 1>,
                      dim3(kvi_blocks(a.n_out, UP ? 16 : 32), static_cast<unsigned>(m.n_tiles)), PRODUCT_THREADS,
                      sizeof(few_shared<2, 1>), err, a);
}

template <unsigned KIND, bool UP> kvcsa_status one_kind(kvi_device *dev, const plan &m, const moe_args &a, kvcsa_error *err)
{
    const unsigned y = static_cast<unsigned>(m.n_tiles);

    if (m.tile == 8)
        return few<KIND, KIND, UP>(dev, m, a, err);
    if (m.tile == 32)
        return kvi_launch(dev, UP ? "moe, up, rows" : "moe, down, rows", moe_few_kernel<KIND, KIND, UP, 4>,
                          dim3(kvi_blocks(a.n_out, UP ? 16 : 32), y), PRODUCT_THREADS, sizeof(few_shared<2, 4>), err, a);
    return kvi_launch(dev, UP ? "moe, up, many" : "moe, down, many", moe_many_kernel<KIND, UP>,
                      dim3(kvi_blocks(a.n_out, UP ? MANY / 2 : MANY), y), PRODUCT_THREADS, sizeof(many_shared), err, a);
}

template <bool UP> kvcsa_status of_kind(kvi_device *dev, const plan &m, const moe_args &a, uint32_t kind, kvcsa_error *err)
{
    switch (kind) {
    case KVI_W_BF16:
        return one_kind<WEIGHT_BF16, UP>(dev, m, a, err);
    case KVI_W_FP8:
        return one_kind<WEIGHT_FP8, UP>(dev, m, a, err);
    default:
        return one_kind<WEIGHT_FP4, UP>(dev, m, a, err);
    }
}

/* One launch where routed and shared experts are of one kind, and for few rows of the checkpoint's pair on the way up; else one for each. */
template <bool UP> kvcsa_status product(kvi_device *dev, const plan &m, const moe_args &args, kvcsa_error *err)
{
    const kvi_moe_params *p = m.p;
    const uint32_t        shared = UP ? p->shared->w1.kind : p->shared->w2.kind;
    const uint32_t        routed = p->n_experts == 0 ? shared : UP ? p->routed->w1.kind : p->routed->w2.kind;
    moe_args              a = args;

    if (a.n_out == 0)
        return KVCSA_OK;
    a.routed = a.shared = true;
    if (routed == shared)
        return of_kind<UP>(dev, m, a, routed, err);
    if constexpr (UP) /* the other product would not fit the registers of sm_80 */
        if (m.tile == 8 && routed == KVI_W_FP4 && shared == KVI_W_FP8)
            return few<WEIGHT_FP4, WEIGHT_FP8, UP>(dev, m, a, err);
    a.shared = false;
    KVI_TRY(of_kind<UP>(dev, m, a, routed, err));
    a.shared = true;
    a.routed = false;
    return of_kind<UP>(dev, m, a, shared, err);
}

kvcsa_status pass(kvi_device *dev, plan &m, const moe_experts &table, size_t first, size_t rows, kvcsa_error *err)
{
    const kvi_moe_params *p = m.p;
    moe_group_args        g = moe_group_args();
    moe_sum_args          s = moe_sum_args();

    g.experts = p->experts + first * p->k;
    g.weights = p->weights + first * p->k;
    g.to = m.up.lists;
    g.n_rows = static_cast<unsigned>(rows);
    g.k = p->k;
    g.n_experts = p->n_experts;
    g.tile = m.tile;
    KVI_TRY(kvi_launch(dev, "moe, groups", moe_group_kernel, dim3(p->n_experts + 1), PRODUCT_THREADS, sizeof(moe_group_shared), err, g,
                       table));
    m.up.x = p->x + first * p->width;
    KVI_TRY(product<true>(dev, m, m.up, err));
    KVI_TRY(product<false>(dev, m, m.down, err));
    s.products = m.products;
    s.order = m.up.lists.order;
    s.y = p->y + first * p->width;
    s.n_slots = static_cast<unsigned>(rows * p->k);
    s.k = p->k;
    s.width = p->width;
    s.whole = p->width % 4 == 0 && aligned(p->y, 16);
    return kvi_launch(dev, "moe, sum", moe_sum_kernel, dim3(kvi_blocks(p->width, 4 * PRODUCT_THREADS), static_cast<unsigned>(rows)),
                      PRODUCT_THREADS, 0, err, s);
}

/* Slots of a tile, by the rows of a pass: how many an expert may be expected to get. Bits do not depend on it. */
unsigned tile_of(const kvi_moe_params *p, size_t rows, bool whole)
{
    if (rows <= 8)
        return 8;
    return whole && rows * p->k > 32 * static_cast<size_t>(p->n_experts) ? +MANY : 32u;
}

} // namespace

kvcsa_status kvi_cuda_moe(kvi_device *dev, const kvi_moe_params *p, kvcsa_error *err)
{
    kvi_cuda_use use(dev);
    plan         m = plan();
    const size_t rows = p->n_rows < PASS_ROWS ? p->n_rows : PASS_ROWS;
    void        *base = nullptr;

    KVI_TRY(check(p, err));
    if (p->n_rows == 0 || p->width == 0)
        return KVCSA_OK;
    m.p = p;
    m.up.shape = shape_of(p->width, aligned(p->x, 16));
    m.down.shape = shape_of(p->inner, true);
    m.up.n_out = p->inner;
    m.down.n_out = p->width;
    m.up.n_routed = m.down.n_routed = p->n_experts;
    m.up.limit = p->limit;
    m.tile = tile_of(p, rows, m.up.shape.x_whole && m.down.shape.x_whole);
    m.n_slots = rows * p->k;
    m.n_tiles = (m.n_slots < p->n_experts ? m.n_slots : p->n_experts) + m.n_slots / m.tile + kvi_blocks(rows, m.tile);
    const size_t size = lay_out(m, nullptr, rows);
    KVI_TRY(kvi_cuda_scratch_get(dev, size, &base, err));
    (void)lay_out(m, static_cast<char *>(base), rows);
    const moe_experts table = table_of(p);
    for (size_t first = 0; first < p->n_rows; first += rows)
        KVI_TRY(pass(dev, m, table, first, p->n_rows - first < rows ? p->n_rows - first : rows, err));
    return KVCSA_OK;
}

void kvi_cuda_features_moe(kvi_features *f) /* after those of route */
{
    f->experts.max = f->experts.max < MOE_MAX_EXPERTS ? f->experts.max : +MOE_MAX_EXPERTS;
    f->experts_per_token = {1, MOE_MAX_K, 1};
    f->inner = {32, UINT32_MAX, 32};
    f->expert_kinds = 1u << KVI_W_BF16 | 1u << KVI_W_FP8 | 1u << KVI_W_FP4; /* as check() */
}
