/* Rows of a matrix as floats, by id. The CPU's bits.
 *
 * Work split: a block of 128 threads per row and 512 columns, a thread four of them: reads and writes of a warp are contiguous.
 * Bytes: 4 a column written; read 4 (F32), 2 (BF16), 1.03 (FP8), 0.53 (FP4). The table may lie in pinned memory of the host
 * (Engram): every block has one load a thread on its way.
 * Bound: memory: 4096 rows of 5120 of BF16 are 126 MB, 26 us at 4.8 TB/s; one row is the launch and two loads in a row.
 * Measured: not yet run on a device. */
#ifndef KVI_CUDA_EMBED_CUH
#define KVI_CUDA_EMBED_CUH

#include "device_floats.cuh"
#include "device_format.cuh"

enum : unsigned { EMBED_THREADS = 128, EMBED_COLUMNS = 4 * EMBED_THREADS, EMBED_GROUP = 32 };
enum embed_kind { EMBED_F32, EMBED_BF16, EMBED_FP8, EMBED_FP8_ROW, EMBED_FP4 };

struct embed_args {
    const uint8_t  *data, *scale;
    const uint64_t *ids;
    float          *y;
    size_t          y_stride;
    unsigned        cols, pieces; /* blocks of a row */
};

/* A NaN is the one of the value, else that of the scale. */
KVI_DEV float embed_scaled(float v, float scale)
{
    const float x = v * scale;

    if (kvi_is_nan(x))
        return kvi_is_nan(v) ? v : scale;
    return x;
}

/* Columns i .. i + 3 of a row, i < cols; whole groups of four where there are scales. */
template <embed_kind KIND> KVI_DEV float4 embed_piece(const embed_args &a, size_t row, unsigned i)
{
    const size_t groups = a.cols / EMBED_GROUP, group = i / EMBED_GROUP;

    if (KIND == EMBED_F32) {
        const float *from = reinterpret_cast<const float *>(a.data) + row * a.cols;
        return kvi_load_piece(from, i, a.cols, kvi_is_aligned_16(from));
    }
    if (KIND == EMBED_BF16) {
        const uint16_t *from = reinterpret_cast<const uint16_t *>(a.data) + row * a.cols;
        uint32_t        low, high;

        if (a.cols % 4 == 0) {
            const uint2 v = *reinterpret_cast<const uint2 *>(from + i);
            low = v.x;
            high = v.y;
        } else {
            low = from[i] | (i + 1 < a.cols ? static_cast<uint32_t>(from[i + 1]) << 16 : 0u);
            high = (i + 2 < a.cols ? from[i + 2] : 0u) | (i + 3 < a.cols ? static_cast<uint32_t>(from[i + 3]) << 16 : 0u);
        }
        return make_float4(kvi_float(low << 16), kvi_float(low & 0xffff0000u), kvi_float(high << 16),
                           kvi_float(high & 0xffff0000u));
    }
    if (KIND == EMBED_FP4) {
        const uint32_t v = *reinterpret_cast<const uint16_t *>(a.data + row * (a.cols / 2) + i / 2);
        const float    s = kvi_of_e8m0(a.scale[row * groups + group]);

        return make_float4(embed_scaled(kvi_of_e2m1(v & 15u), s), embed_scaled(kvi_of_e2m1(v >> 4 & 15u), s),
                           embed_scaled(kvi_of_e2m1(v >> 8 & 15u), s), embed_scaled(kvi_of_e2m1(v >> 12), s));
    }
    const uint32_t v = *reinterpret_cast<const uint32_t *>(a.data + row * a.cols + i);
    const float    s = kvi_of_e8m0(a.scale[(KIND == EMBED_FP8 ? row / EMBED_GROUP : row) * groups + group]);

    return make_float4(embed_scaled(kvi_of_e4m3(v & 255u), s), embed_scaled(kvi_of_e4m3(v >> 8 & 255u), s),
                       embed_scaled(kvi_of_e4m3(v >> 16 & 255u), s), embed_scaled(kvi_of_e4m3(v >> 24), s));
}

template <embed_kind KIND> KVI_KERNEL(EMBED_THREADS, 8) embed_f32_kernel(embed_args a)
{
    const size_t   row = blockIdx.x / a.pieces;
    const unsigned i = blockIdx.x % a.pieces * EMBED_COLUMNS + 4 * threadIdx.x;
    float         *y = a.y + row * a.y_stride;

    if (i < a.cols)
        kvi_write_piece(y, i, a.cols, kvi_is_aligned_16(y), embed_piece<KIND>(a, static_cast<size_t>(a.ids[row]), i));
}

#endif
