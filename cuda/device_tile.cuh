/* Eight channels of a cached row as bf16, the unit in which attention kernels put keys into shared memory: two channels in a
 * word, four words, 16 bytes. */
#ifndef KVI_DEVICE_TILE_CUH
#define KVI_DEVICE_TILE_CUH

#include "device_format.cuh"
#include "kvcsa.h"

/* Vectors in shared or global memory whose elements have another type; p is aligned to the vector. */
template <class T> KVI_DEV void kvi_put(void *p, T v)
{
#ifdef KVI_CUDA_EMULATED
    if (reinterpret_cast<uintptr_t>(p) % sizeof v)
        kvi_emu::fault({"kvi_put", 0}, "%zu bytes are not aligned", sizeof v);
    std::memcpy(p, &v, sizeof v);
#else
    *static_cast<T *>(p) = v;
#endif
}

template <class T> KVI_DEV T kvi_get(const void *p)
{
#ifdef KVI_CUDA_EMULATED
    T v;
    if (reinterpret_cast<uintptr_t>(p) % sizeof v)
        kvi_emu::fault({"kvi_get", 0}, "%zu bytes are not aligned", sizeof v);
    std::memcpy(&v, p, sizeof v);
    return v;
#else
    return *static_cast<const T *>(p);
#endif
}

KVI_DEV uint4 kvi_scale_8(const uint32_t (&v)[4], float scale) /* scale: exact in bf16 */
{
    const uint32_t s = kvi_pair(kvi_bits(scale) >> 16);

    return {kvi_mul_bf16x2(v[0], s), kvi_mul_bf16x2(v[1], s), kvi_mul_bf16x2(v[2], s), kvi_mul_bf16x2(v[3], s)};
}

/* Channels 8i.. of an FP4_E4M3_G16 row of WIDTH channels that begins at a multiple of 4 bytes. Exact: at most 2 + 4
 * significant bits, between 2^-10 and 2688. */
template <unsigned WIDTH> KVI_DEV uint4 kvi_tile_fp4(const uint8_t *row, unsigned i)
{
    uint32_t v[4];

    kvi_e2m1x8_bf16(kvi_get<uint32_t>(row + 4 * i), v);
    return kvi_scale_8(v, kvi_of_e4m3(row[WIDTH / 2 + i / 2]));
}

/* The same of an FP8_E8M0_G32 row that begins at a multiple of 8 bytes. Exact for every scale that the window's quantiser
 * writes (2^-22 and above); rounded to a multiple of 2^-133 where the scale is below 2^-117. */
template <unsigned WIDTH> KVI_DEV uint4 kvi_tile_fp8(const uint8_t *row, unsigned i)
{
    const uint2 codes = kvi_get<uint2>(row + 8 * i);
    uint32_t    v[4], high[2], low[2];

    kvi_e4m3x4_bf16(codes.x, low);
    kvi_e4m3x4_bf16(codes.y, high);
    v[0] = low[0];
    v[1] = low[1];
    v[2] = high[0];
    v[3] = high[1];
    return kvi_scale_8(v, kvi_of_e8m0(row[WIDTH + i / 4]));
}

/* ---- any format, any address ---- */

KVI_DEV uint32_t kvi_bytes_2(const uint8_t *p) { return p[0] | static_cast<uint32_t>(p[1]) << 8; }
KVI_DEV uint32_t kvi_bytes_4(const uint8_t *p) { return kvi_bytes_2(p) | kvi_bytes_2(p + 2) << 16; }

/* True if kvi_tile_any knows the format: those of format/row.h. */
static inline bool kvi_tile_can(uint32_t format)
{
    return format >= KVCSA_FORMAT_FP4_E4M3_G16 && format <= KVCSA_FORMAT_INT3_F16_G32;
}

/* Channels c .. c + 7 (c: a multiple of 8) as fp32, the values of kvi_row_decode bit for bit. */
KVI_DEV void kvi_tile_values(unsigned format, const uint8_t *row, unsigned width, unsigned c, float (&x)[8])
{
    const unsigned at = c % 32; /* inside a group of 32 */
    const uint8_t *block = row;
    float          scale = 1.0f;
    uint32_t       codes = 0;

    switch (format) {
    case KVCSA_FORMAT_FP4_E4M3_G16:
        scale = kvi_of_e4m3(row[width / 2 + c / 16]);
        codes = kvi_bytes_4(row + c / 2);
        break;
    case KVCSA_FORMAT_FP4_E8M0_G32:
        scale = kvi_of_e8m0(row[width / 2 + c / 32]);
        codes = kvi_bytes_4(row + c / 2);
        break;
    case KVCSA_FORMAT_FP8_E8M0_G32: scale = kvi_of_e8m0(row[width + c / 32]); break;
    case KVCSA_FORMAT_Q8_0: block = row + c / 32 * 34; break;
    case KVCSA_FORMAT_Q4_0: block = row + c / 32 * 18; break;
    case KVCSA_FORMAT_INT3_F16_G32:
        block = row + c / 32 * 14;
        codes = kvi_bytes_2(block + 2 + at / 8 * 3) | static_cast<uint32_t>(block[4 + at / 8 * 3]) << 16;
        break;
    default: break;
    }
    if (format == KVCSA_FORMAT_Q8_0 || format == KVCSA_FORMAT_Q4_0 || format == KVCSA_FORMAT_INT3_F16_G32)
        scale = kvi_of_f16(kvi_bytes_2(block));
    KVI_UNROLL
    for (unsigned i = 0; i < 8; i++)
        switch (format) {
        case KVCSA_FORMAT_FP4_E4M3_G16:
        case KVCSA_FORMAT_FP4_E8M0_G32: x[i] = kvi_of_e2m1(codes >> (4 * i)) * scale; break;
        case KVCSA_FORMAT_FP8_E8M0_G32: x[i] = kvi_of_e4m3(row[c + i]) * scale; break;
        case KVCSA_FORMAT_F16: x[i] = kvi_of_f16(kvi_bytes_2(row + 2 * (c + i))); break;
        case KVCSA_FORMAT_BF16: x[i] = kvi_of_bf16(kvi_bytes_2(row + 2 * (c + i))); break;
        case KVCSA_FORMAT_Q8_0: x[i] = static_cast<float>(static_cast<int8_t>(block[2 + at + i])) * scale; break;
        case KVCSA_FORMAT_Q4_0: /* byte i: channel i low, channel i + 16 high */
            x[i] = static_cast<float>(static_cast<int>(block[2 + at % 16 + i] >> (at < 16 ? 0 : 4) & 15) - 8) * scale;
            break;
        case KVCSA_FORMAT_INT3_F16_G32: x[i] = static_cast<float>(static_cast<int>(codes >> (3 * i) & 7u) - 4) * scale; break;
        default: x[i] = kvi_float(kvi_bytes_4(row + 4 * (c + i))); break; /* F32, FP4_AS_F32 */
        }
}

/* The same rounded to bf16: exact for FP4_E4M3_G16, FP4_AS_F32 and BF16, for FP4_E8M0_G32 and FP8_E8M0_G32 as above. */
KVI_DEV uint4 kvi_tile_any(unsigned format, const uint8_t *row, unsigned width, unsigned c)
{
    float x[8];

    kvi_tile_values(format, row, width, c, x);
    return {kvi_bf16x2(x[0], x[1]), kvi_bf16x2(x[2], x[3]), kvi_bf16x2(x[4], x[5]), kvi_bf16x2(x[6], x[7])};
}

#endif
