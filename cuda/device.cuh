/* What kernels are written with. Every instruction that C++ does not have stands in one inline function here (or in a header of one
 * architecture), and has a second body in C++ for the emulation of test/cuda/emulate.h: no kernel holds PTX of its own.
 *
 * Rules for kernels
 * - A kernel is a `KVI_KERNEL(threads, blocks) void name(struct of parameters)` in a header NAME.cuh; NAME.cu checks, chooses and
 *   launches. Both compile twice, as CUDA and as C++17.
 * - Shared memory is one struct, kvi_shared<T>(); its size is that of the launch. Offsets into device arrays are 64 bits wide.
 * - Products and sums are rounded one by one (nvcc -fmad=false); where one rounding is wanted, kvi_fma says so.
 * - No atomics on floats. No kernel waits for another block of its grid. */
#ifndef KVI_DEVICE_CUH
#define KVI_DEVICE_CUH

#include <stddef.h>
#include <stdint.h>

#ifdef KVI_CUDA_EMULATED
#include <cmath>

#include "emulate.h"
#define KVI_DEV               static inline
#define KVI_KERNEL(t, b)      static void
#define KVI_SITE              const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define KVI_SITE_ONLY         KVI_SITE
#define KVI_SITE_MORE         , KVI_SITE
#define KVI_UNROLL
#else
#include <cuda_runtime.h>
#define KVI_DEV               static __device__ __forceinline__
#define KVI_KERNEL(t, b)      static __global__ void __launch_bounds__(t, b)
#define KVI_SITE_ONLY
#define KVI_SITE_MORE
#define KVI_UNROLL            _Pragma("unroll")
#endif

enum : unsigned { KVI_WARP = 32u, KVI_ALL_LANES = 0xffffffffu };

/* ---- threads ---- */

#ifndef KVI_CUDA_EMULATED
extern __shared__ __align__(1024) unsigned char kvi_shared_bytes[];
#endif

/* The block's shared memory, aligned to 1024 bytes. */
template <class T> KVI_DEV T &kvi_shared()
{
#ifdef KVI_CUDA_EMULATED
    return *static_cast<T *>(kvi_emu::self().shared);
#else
    return *reinterpret_cast<T *>(kvi_shared_bytes);
#endif
}

KVI_DEV unsigned kvi_lane() { return threadIdx.x % KVI_WARP; }   /* blocks are one-dimensional */
KVI_DEV unsigned kvi_warp() { return threadIdx.x / KVI_WARP; }

/* All threads of the block, none of which may have ended. */
KVI_DEV void kvi_sync_block(KVI_SITE_ONLY)
{
#ifdef KVI_CUDA_EMULATED
    kvi_emu::barrier(0, blockDim.x * blockDim.y * blockDim.z, {file, line});
#else
    __syncthreads();
#endif
}

KVI_DEV void kvi_sync_warp(KVI_SITE_ONLY)
{
#ifdef KVI_CUDA_EMULATED
    const char none = 0;
    kvi_emu::exchange(KVI_ALL_LANES, none, {file, line});
#else
    __syncwarp();
#endif
}

/* The value of another lane; all 32 lanes call. T has 4 or 8 bytes. */
template <class T> KVI_DEV T kvi_shfl(T v, unsigned lane KVI_SITE_MORE)
{
#ifdef KVI_CUDA_EMULATED
    return kvi_emu::lane_value<T>(kvi_emu::exchange(KVI_ALL_LANES, v, {file, line}), lane);
#else
    return __shfl_sync(KVI_ALL_LANES, v, lane);
#endif
}

template <class T> KVI_DEV T kvi_shfl_xor(T v, unsigned mask KVI_SITE_MORE)
{
#ifdef KVI_CUDA_EMULATED
    return kvi_emu::lane_value<T>(kvi_emu::exchange(KVI_ALL_LANES, v, {file, line}), kvi_lane() ^ mask);
#else
    return __shfl_xor_sync(KVI_ALL_LANES, v, mask);
#endif
}

/* Of the lane that is `n` lower; lanes below n get their own. */
template <class T> KVI_DEV T kvi_shfl_up(T v, unsigned n KVI_SITE_MORE)
{
#ifdef KVI_CUDA_EMULATED
    const unsigned lane = kvi_lane();
    return kvi_emu::lane_value<T>(kvi_emu::exchange(KVI_ALL_LANES, v, {file, line}), lane >= n ? lane - n : lane);
#else
    return __shfl_up_sync(KVI_ALL_LANES, v, n);
#endif
}

KVI_DEV unsigned kvi_ballot(bool p KVI_SITE_MORE)
{
#ifdef KVI_CUDA_EMULATED
    const unsigned char *all = kvi_emu::exchange(KVI_ALL_LANES, p, {file, line});
    unsigned             bits = 0;
    for (unsigned i = 0; i < KVI_WARP; i++)
        bits |= (kvi_emu::lane_value<bool>(all, i) ? 1u : 0u) << i;
    return bits;
#else
    return __ballot_sync(KVI_ALL_LANES, p);
#endif
}

/* Returns what stood there before. Integers only: sums of floats would depend on the order. */
KVI_DEV unsigned kvi_atomic_add(unsigned *p, unsigned v)
{
#ifdef KVI_CUDA_EMULATED
    const unsigned old = *p;
    *p = old + v;
    return old;
#else
    return atomicAdd(p, v);
#endif
}

KVI_DEV void kvi_atomic_add(uint64_t *p, uint64_t v)
{
#ifdef KVI_CUDA_EMULATED
    *p += v;
#else
    atomicAdd(reinterpret_cast<unsigned long long *>(p), static_cast<unsigned long long>(v));
#endif
}

/* ---- numbers ---- */

KVI_DEV uint32_t kvi_bits(float x)
{
#ifdef KVI_CUDA_EMULATED
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return u;
#else
    return __float_as_uint(x);
#endif
}

KVI_DEV float kvi_float(uint32_t u)
{
#ifdef KVI_CUDA_EMULATED
    float x;
    std::memcpy(&x, &u, sizeof x);
    return x;
#else
    return __uint_as_float(u);
#endif
}

KVI_DEV float kvi_fma(float a, float b, float c) /* a * b + c, rounded once */
{
#ifdef KVI_CUDA_EMULATED
    return std::fma(a, b, c);
#else
    return __fmaf_rn(a, b, c);
#endif
}

KVI_DEV float kvi_sqrt(float x) /* IEEE */
{
#ifdef KVI_CUDA_EMULATED
    return std::sqrt(x);
#else
    return __fsqrt_rn(x);
#endif
}

KVI_DEV float kvi_div(float a, float b) /* IEEE */
{
#ifdef KVI_CUDA_EMULATED
    return a / b;
#else
    return __fdiv_rn(a, b);
#endif
}

KVI_DEV float kvi_rint(float x) /* to the nearest integer, ties to even */
{
#ifdef KVI_CUDA_EMULATED
    return std::nearbyint(x);
#else
    return rintf(x);
#endif
}

KVI_DEV float kvi_max(float a, float b) { return a > b ? a : b; } /* NaN gives b */
KVI_DEV float kvi_min(float a, float b) { return a < b ? a : b; }
KVI_DEV bool  kvi_is_nan(float x) { return x != x; }

KVI_DEV unsigned kvi_count_bits(unsigned x)
{
#ifdef KVI_CUDA_EMULATED
    return static_cast<unsigned>(__builtin_popcount(x));
#else
    return static_cast<unsigned>(__popc(static_cast<int>(x)));
#endif
}

/* Bytes 0-3 are those of x, 4-7 those of y; nibble i of `pick` names the byte i of the result. Its highest bit must be 0. */
KVI_DEV uint32_t kvi_byte_perm(uint32_t x, uint32_t y, uint32_t pick)
{
#ifdef KVI_CUDA_EMULATED
    const uint64_t all = (static_cast<uint64_t>(y) << 32) | x;
    uint32_t       r = 0;
    for (unsigned i = 0; i < 4; i++)
        r |= static_cast<uint32_t>(all >> (8 * (pick >> (4 * i) & 7u)) & 0xffu) << (8 * i);
    return r;
#else
    return __byte_perm(x, y, pick);
#endif
}

/* bf16 nearest to x, ties to even, a NaN stays one: low 16 bits. */
KVI_DEV uint32_t kvi_bf16(float x)
{
    const uint32_t u = kvi_bits(x);

    if (kvi_is_nan(x))
        return u >> 16 | 0x40u;
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
KVI_DEV float    kvi_of_bf16(uint32_t low16) { return kvi_float(low16 << 16); }
KVI_DEV float    kvi_round_bf16(float x) { return kvi_of_bf16(kvi_bf16(x)); }
/* Two of them, the first in the low half. */
KVI_DEV uint32_t kvi_bf16x2(float low, float high)
{
#ifdef KVI_CUDA_EMULATED
    return kvi_bf16(low) | kvi_bf16(high) << 16;
#else
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#endif
}

/* e^x of numerics revision 2 (cpu/v16.h), the same bits: 0 below -87.33, +inf above 88.72. */
KVI_DEV float kvi_exp(float x)
{
    const float n = kvi_rint(kvi_min(kvi_max(x, -88.0f), 89.0f) * 1.44269504088896341f);
    float       r = kvi_fma(-n, 0.693359375f, x);
    float       p = 1.9875691500e-4f;

    if (kvi_is_nan(x))
        return x;
    if (x < -87.33654f)
        return 0.0f;
    if (x > 88.722839f)
        return kvi_float(0x7f800000u);
    r = kvi_fma(-n, -2.12194440e-4f, r);
    p = kvi_fma(p, r, 1.3981999507e-3f);
    p = kvi_fma(p, r, 8.3334519073e-3f);
    p = kvi_fma(p, r, 4.1665795894e-2f);
    p = kvi_fma(p, r, 1.6666665459e-1f);
    p = kvi_fma(p, r, 5.0000001201e-1f);
    p = kvi_fma(p, r * r, r) + 1.0f;
    const int k = static_cast<int>(n), half = k >> 1;
    p = p * kvi_float(static_cast<uint32_t>(half + 127) << 23);
    return p * kvi_float(static_cast<uint32_t>(k - half + 127) << 23);
}

/* ---- memory ---- */

/* 16 bytes at a 16-byte boundary of global memory that no kernel of this launch writes. */
KVI_DEV uint4 kvi_load_16(const void *p)
{
#ifdef KVI_CUDA_EMULATED
    if (reinterpret_cast<uintptr_t>(p) % 16)
        kvi_emu::fault({"kvi_load_16", 0}, "16 bytes are not aligned");
    return *static_cast<const uint4 *>(p);
#else
    return __ldg(static_cast<const uint4 *>(p));
#endif
}

/* Asynchronous copy of 16 bytes from global to shared memory, both aligned to 16; of the first `bytes`, the rest becomes zero. */
KVI_DEV void kvi_copy_16(void *shared, const void *global, unsigned bytes = 16)
{
#ifdef KVI_CUDA_EMULATED
    if (reinterpret_cast<uintptr_t>(shared) % 16 || reinterpret_cast<uintptr_t>(global) % 16 || bytes > 16)
        kvi_emu::fault({"kvi_copy_16", 0}, "16 bytes are not aligned");
    kvi_emu::copy_later(shared, global, bytes, 16 - bytes);
#else
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
#endif
}

/* End of a group of copies of this thread; wait until only the N newest groups may still be on their way. Other threads see them
 * after a barrier. */
KVI_DEV void kvi_copy_commit()
{
#ifdef KVI_CUDA_EMULATED
    kvi_emu::copy_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <unsigned N> KVI_DEV void kvi_copy_wait()
{
#ifdef KVI_CUDA_EMULATED
    kvi_emu::copy_wait(N);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* ---- matrix instructions of a warp (sm_80 and later) ----
 * With g = lane / 4 and t = lane % 4:
 *   16-bit: a[0] row g, columns 2t, 2t+1; a[1] row g + 8; a[2], a[3] the same at columns + 8. b[0] rows 2t, 2t+1 of column g; b[1]
 *   rows + 8.  8-bit: four columns 4t.. in the place of two, + 16 in the place of + 8.
 *   d[0], d[1] row g, columns 2t, 2t+1; d[2], d[3] row g + 8. */

#ifdef KVI_CUDA_EMULATED
struct kvi_fragments {
    uint32_t a[4], b[2];
};
/* d += a b for 16 x 8 x (2 STEP): `value` takes element e of a register apart. */
template <int STEP, class D, class F> static inline void kvi_mma_any(D (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], F value, kvi_emu::site at)
{
    constexpr int  PER = STEP / 4; /* elements of a register */
    kvi_fragments  mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const unsigned char *all = kvi_emu::exchange(KVI_ALL_LANES, mine, at);
    const unsigned g = kvi_lane() / 4, t = kvi_lane() % 4;

    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = g + 8 * (i / 2), col = 2 * t + i % 2;
        D              sum = d[i];
        for (unsigned half = 0; half < 2; half++)
            for (unsigned q = 0; q < 4; q++) {
                const kvi_fragments fa = kvi_emu::lane_value<kvi_fragments>(all, row % 8 * 4 + q);
                const kvi_fragments fb = kvi_emu::lane_value<kvi_fragments>(all, col * 4 + q);
                for (int e = 0; e < PER; e++)
                    sum += value(fa.a[row / 8 + 2 * half], e) * value(fb.b[half], e);
            }
        d[i] = sum;
    }
}
static inline float kvi_emu_half(uint32_t bits) /* f16 */
{
    const uint32_t sign = (bits & 0x8000u) << 16, e = bits >> 10 & 31u, f = bits & 0x3ffu;
    if (e == 31)
        return kvi_float(sign | 0x7f800000u | f << 13);
    if (e == 0)
        return (sign ? -1.0f : 1.0f) * static_cast<float>(f) * 5.9604644775390625e-8f;
    return kvi_float(sign | (e + 112) << 23 | f << 13);
}
#endif

KVI_DEV void kvi_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] KVI_SITE_MORE) /* 16 x 8 x 16 */
{
#ifdef KVI_CUDA_EMULATED
    kvi_mma_any<8>(d, a, b, [](uint32_t r, int e) { return kvi_of_bf16(r >> (16 * e) & 0xffffu); }, {file, line});
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

KVI_DEV void kvi_mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] KVI_SITE_MORE) /* 16 x 8 x 16 */
{
#ifdef KVI_CUDA_EMULATED
    kvi_mma_any<8>(d, a, b, [](uint32_t r, int e) { return kvi_emu_half(r >> (16 * e) & 0xffffu); }, {file, line});
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

KVI_DEV void kvi_mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] KVI_SITE_MORE) /* 16 x 8 x 32, exact */
{
#ifdef KVI_CUDA_EMULATED
    kvi_mma_any<16>(d, a, b, [](uint32_t r, int e) { return static_cast<int>(static_cast<int8_t>(r >> (8 * e) & 0xffu)); }, {file, line});
#else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* Four 8 x 8 matrices of 16-bit elements from shared memory: lane i names row i % 8 of matrix i / 8, 16 bytes each, aligned. r[m] =
 * elements 2t, 2t+1 of row g of matrix m; transposed: rows 2t, 2t+1 of column g. */
template <bool TRANSPOSED> KVI_DEV void kvi_load_matrices(uint32_t (&r)[4], const void *row KVI_SITE_MORE)
{
#ifdef KVI_CUDA_EMULATED
    if (reinterpret_cast<uintptr_t>(row) % 16)
        kvi_emu::fault({file, line}, "a row of a matrix is not aligned to 16 bytes");
    const unsigned char *all = kvi_emu::exchange(KVI_ALL_LANES, row, {file, line});
    const unsigned       g = kvi_lane() / 4, t = kvi_lane() % 4;
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        uint32_t v = 0;
        for (unsigned e = 0; e < 2; e++) {
            const unsigned i = TRANSPOSED ? 2 * t + e : g, j = TRANSPOSED ? g : 2 * t + e;
            uint16_t       x;
            std::memcpy(&x, static_cast<const char *>(kvi_emu::lane_value<const void *>(all, 8 * matrix + i)) + 2 * j, 2);
            v |= static_cast<uint32_t>(x) << (16 * e);
        }
        r[matrix] = v;
    }
#else
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
#endif
}

/* ---- sums of a warp and of a block, in one fixed order ---- */

/* The butterfly 16, 8, 4, 2, 1: every lane gets the same bits. */
KVI_DEV float kvi_warp_sum(float x KVI_SITE_MORE)
{
    for (unsigned d = 16; d; d /= 2)
#ifdef KVI_CUDA_EMULATED
        x = x + kvi_shfl_xor(x, d, file, line);
#else
        x = x + kvi_shfl_xor(x, d);
#endif
    return x;
}

#endif
