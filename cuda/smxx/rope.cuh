/* Rotary position: the last n_rotated channels of every head, adjacent pairs, in place. The CPU's bits.
 *
 * Work split: a block per row and 16 heads, so that 64 heads of one row are on four SMs. The sines and cosines of up to 128 pairs
 * are made once a block, in double (about 60 operations each), and kept in shared memory for its heads.
 * Bytes: 8 n_rotated a head; of 64 heads with 64 rotated channels 32 KB a row.
 * Bound: memory for many rows (4096 rows 28 us at 4.8 TB/s); at one row the chain of some 40 dependent operations in double
 * behind one load, about half a microsecond.
 * Measured: not yet run on a device. */
#ifndef KVI_CUDA_ROPE_CUH
#define KVI_CUDA_ROPE_CUH

#include "device_floats.cuh"
#include "device_math.cuh"

enum : unsigned { ROPE_THREADS = 128, ROPE_HEADS = 16, ROPE_PAIRS = 128 };
static_assert(ROPE_PAIRS <= ROPE_THREADS && ROPE_PAIRS % 2 == 0, "a thread makes one angle at most");

struct rope_args {
    float          *x;
    const float    *freqs;
    const uint64_t *pos;
    size_t          row_stride;
    unsigned        n_heads, width, n_rotated, inverse;
    unsigned        head_blocks; /* blocks of a row */
};

struct rope_shared {
    float2 turn[ROPE_PAIRS]; /* cosine, sine */
};

KVI_DEV float2 rope_turn(float a, float b, float2 t) { return make_float2(a * t.x - b * t.y, a * t.y + b * t.x); }

KVI_KERNEL(ROPE_THREADS, 8) rope_f32_f32_kernel(rope_args a)
{
    rope_shared   &s = kvi_shared<rope_shared>();
    const size_t   row = blockIdx.x / a.head_blocks;
    const unsigned head = blockIdx.x % a.head_blocks * ROPE_HEADS, n_pairs = a.n_rotated / 2;
    const unsigned heads = a.n_heads - head < ROPE_HEADS ? a.n_heads - head : ROPE_HEADS;
    float         *x = a.x + row * a.row_stride + static_cast<size_t>(head) * a.width + (a.width - a.n_rotated);
    const bool     aligned = kvi_is_aligned_16(x) && a.width % 4 == 0;
    const float    pos = static_cast<float>(a.pos[row]);

    for (unsigned first = 0; first < n_pairs; first += ROPE_PAIRS) {
        const unsigned n = n_pairs - first < ROPE_PAIRS ? n_pairs - first : ROPE_PAIRS;

        if (first)
            kvi_sync_block();
        if (threadIdx.x < n) {
            float2 t;

            kvi_sincos_exact(pos * a.freqs[first + threadIdx.x], &t.y, &t.x);
            if (a.inverse)
                t.y = -t.y;
            s.turn[threadIdx.x] = t;
        }
        kvi_sync_block();
        if (aligned && n % 2 == 0) {
            for (unsigned i = threadIdx.x; i < heads * (n / 2); i += ROPE_THREADS) {
                const unsigned pair = 2 * (i % (n / 2));
                float         *to = x + static_cast<size_t>(i / (n / 2)) * a.width + 2 * (first + pair);
                const float4   v = kvi_read_float4(to);
                const float2   low = rope_turn(v.x, v.y, s.turn[pair]), high = rope_turn(v.z, v.w, s.turn[pair + 1]);

                kvi_write_float4(to, make_float4(low.x, low.y, high.x, high.y));
            }
        } else {
            for (unsigned i = threadIdx.x; i < heads * n; i += ROPE_THREADS) {
                float       *to = x + static_cast<size_t>(i / n) * a.width + 2 * (first + i % n);
                const float2 v = rope_turn(to[0], to[1], s.turn[i % n]);

                to[0] = v.x;
                to[1] = v.y;
            }
        }
    }
}

#endif
