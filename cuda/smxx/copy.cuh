/* Many copies in one launch.
 *
 * Work split: a warp takes 2 KiB of one job, four pieces of 16 bytes a lane that are all on their way before the first is stored.
 * Every job has as many warps as the longest needs; those behind its end have nothing to do. Where source and target do not lie at
 * multiples of 16 bytes, words or bytes are moved.
 * Traffic: each byte read once and written once, 24 bytes of a job for each warp from the first cache. Bound: memory; 40 window
 * rows of 528 bytes are 42 KB and so only latency: a launch and two dependent loads, job and bytes. 64 MB within the device: 27 us
 * at 4.8 TB/s.
 * Measured: not yet run on a device. */
#ifndef KVI_CUDA_COPY_CUH
#define KVI_CUDA_COPY_CUH

#include "backend/op_params.h"
#include "device.cuh"

enum : unsigned {
    COPY_WARPS = 4,
    COPY_THREADS = COPY_WARPS * KVI_WARP,
    COPY_TURNS = 4,
    COPY_PIECE = COPY_TURNS * 16 * KVI_WARP /* bytes of a warp */
};

struct copy_args {
    const kvi_copy_job *jobs;
    size_t              n_units;  /* jobs x pieces */
    size_t              pieces;   /* of the longest job */
};

/* n <= COPY_PIECE / 16 * sizeof(T) x 16 elements; the ranges do not overlap. */
template <class T> KVI_DEV void copy_elements(T *__restrict__ to, const T *__restrict__ from, unsigned n)
{
    unsigned i = kvi_lane();

    for (; i + (COPY_TURNS - 1) * KVI_WARP < n; i += COPY_TURNS * KVI_WARP) {
        T v[COPY_TURNS];

        KVI_UNROLL
        for (unsigned u = 0; u < COPY_TURNS; u++)
            v[u] = from[i + u * KVI_WARP];
        KVI_UNROLL
        for (unsigned u = 0; u < COPY_TURNS; u++)
            to[i + u * KVI_WARP] = v[u];
    }
    for (; i < n; i += KVI_WARP)
        to[i] = from[i];
}

KVI_KERNEL(COPY_THREADS, 8) copy_kernel(copy_args a)
{
    const size_t unit = static_cast<size_t>(blockIdx.x) * COPY_WARPS + kvi_warp();

    if (unit >= a.n_units)
        return;
    const kvi_copy_job job = a.jobs[unit / a.pieces];
    const uint64_t     begin = unit % a.pieces * COPY_PIECE;
    if (begin >= job.n_bytes)
        return;
    const unsigned  n = job.n_bytes - begin < COPY_PIECE ? static_cast<unsigned>(job.n_bytes - begin) : COPY_PIECE;
    const uint8_t  *from = static_cast<const uint8_t *>(job.from) + begin;
    uint8_t        *to = static_cast<uint8_t *>(job.to) + begin;
    const uintptr_t off = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to);
    unsigned        done = 0;

    if (off % 16 == 0) {
        done = n & ~15u;
        copy_elements(reinterpret_cast<uint4 *>(to), reinterpret_cast<const uint4 *>(from), done / 16);
    }
    if (off % 4 == 0) {
        copy_elements(reinterpret_cast<uint32_t *>(to + done), reinterpret_cast<const uint32_t *>(from + done), (n - done) / 4);
        done = n & ~3u;
    }
    copy_elements(to + done, from + done, n - done);
}

#endif
