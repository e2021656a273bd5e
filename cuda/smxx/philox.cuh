/* Words of Philox4x32-10 (Salmon et al. 2011), those of cuRAND's generator in its legacy order: word q is word q % 4 of the result for
 * the key (seed) and the counter (block / 2^16: 64 bits, block mod 2^16, 0) with block = q / 4. The order was found with cuRAND's own
 * generator on the host; test_cuda_rand holds words that it made.
 *
 * Work split: a thread makes one block, four words, and stores them at once where they lie at 16 bytes.
 * Traffic: 4 bytes written a word. Bound: memory. A block of words is 20 products of 32 x 32 bits and about 40 other instructions, 0.6
 * cycles of an SM: 132 of them could make 6 TB/s. 1 GiB: 224 us at 4.8 TB/s.
 * Measured: not yet run on a device. */
#ifndef KVI_PHILOX_CUH
#define KVI_PHILOX_CUH

#include "device.cuh"

enum : unsigned { PHILOX_THREADS = 256, PHILOX_BLOCK_WORDS = 4 * PHILOX_THREADS };

struct philox_args {
    uint32_t *to;
    uint64_t  first;   /* block of the first word */
    size_t    n_words;
    unsigned  skip;    /* words of that block that are not wanted */
    uint32_t  key[2];
    bool      whole;   /* blocks lie at 16 bytes */
};

KVI_DEV void philox_4x32(uint32_t (&c)[4], const uint32_t (&key)[2])
{
    uint32_t k0 = key[0], k1 = key[1];

    KVI_UNROLL
    for (unsigned round = 0; round < 10; round++) {
        const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c[0], p1 = static_cast<uint64_t>(0xCD9E8D57u) * c[2];

        c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
        c[1] = static_cast<uint32_t>(p1);
        c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
        c[3] = static_cast<uint32_t>(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

KVI_KERNEL(PHILOX_THREADS, 4) philox_kernel(philox_args a)
{
    const size_t   i = static_cast<size_t>(blockIdx.x) * PHILOX_THREADS + threadIdx.x;
    const uint64_t block = a.first + i, high = block >> 16;
    uint32_t       v[4] = {static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32), static_cast<uint32_t>(block & 0xffff), 0};

    philox_4x32(v, a.key);
    if (a.whole && 4 * i + 4 <= a.n_words) {
        reinterpret_cast<uint4 *>(a.to)[i] = make_uint4(v[0], v[1], v[2], v[3]);
        return;
    }
    KVI_UNROLL
    for (unsigned w = 0; w < 4; w++) {
        const size_t at = 4 * i + w;

        if (at >= a.skip && at - a.skip < a.n_words)
            a.to[at - a.skip] = v[w];
    }
}

#endif
