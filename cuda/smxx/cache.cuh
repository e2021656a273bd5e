/* Floats become cache bytes: window rows, entries and keys and values of heads in ten formats, index keys and queries.
 *
 * Work split: a warp takes up to 512 channels of one row, four neighbours a lane in each of four steps, so that loads are 16
 * bytes a lane and 512 contiguous bytes an instruction. A group of 16 or 32 channels is 4 or 8 lanes; its largest magnitude
 * goes round by two or three shuffles of the bits. The warp lays the bytes down in its shared memory in the order of the row
 * and copies them out, 16 bytes a lane where the row is aligned (528 = 33 x 16 and 288 = 18 x 16 bytes are), words or bytes
 * where it is not. No block barrier. All rows of a call are one launch, be they of one timeline or of many (kvi_slices); a
 * decode step is one launch with its jobs in device memory.
 * Traffic for a row of 512: 2,048 bytes read, 528 (window) or 288 (FP4) written; a key of 128: 512 and 68. One token of the
 * release, 40 window rows, 4 entries, 4 keys: 92 KB read, 23 KB written, 4 KB of jobs. A token of 8 heads of 128, keys and
 * values in bf16: 8 KB read, 4 KB written.
 * Bound: one token has 48 warps, so it is latency: a launch and two dependent loads, job and row (2 us by estimate). 128 tokens
 * move 15 MB, 3.2 us at 4.8 TB/s; 6,144 warps with 2 KB in flight each are more than the 4 MB that cover the latency.
 * Measured: not yet run on a device.
 * Numbers: bit for bit those of format/row.c and cpu/ref_cache.c. Magnitudes compare like their bits, so NaN and infinity come
 * out on top of a group, and nothing here depends on the order of lanes. */
#ifndef KVI_CUDA_CACHE_CUH
#define KVI_CUDA_CACHE_CUH

#include "cache.h"
#include "device_format.cuh"

enum : unsigned {
    CACHE_WARPS = 4,
    CACHE_THREADS = CACHE_WARPS * KVI_WARP,
    CACHE_STEPS = 4,
    CACHE_STEP = 4 * KVI_WARP, /* channels */
    CACHE_CHUNK = CACHE_STEPS * CACHE_STEP,
    CACHE_QUERY = 0,           /* as a format: int8 codes, fp32 scales */
    CACHE_BLOCK = 32           /* channels with one fp16 scale in q8_0, q4_0, int3 */
};

struct alignas(16) cache_stage {
    uint8_t values[4 * CACHE_CHUNK];
    uint8_t scales[4 * CACHE_CHUNK / 32];
};
struct cache_shared {
    cache_stage warp[CACHE_WARPS];
};
static_assert(sizeof(cache_shared) <= 48 * 1024, "shared memory of a block");

#ifdef KVI_CUDA_EMULATED
#define CACHE_BOTH static inline
#else
#define CACHE_BOTH static inline __host__ __device__
#endif

CACHE_BOTH unsigned cache_block_bytes(unsigned format)
{
    return format == KVCSA_FORMAT_Q8_0 ? 34 : format == KVCSA_FORMAT_Q4_0 ? 18 : 14;
}

/* Bytes of the values, or of all, of n channels; where a chunk begins, and how long it is. */
CACHE_BOTH size_t cache_value_bytes(unsigned format, size_t n)
{
    switch (format) {
    case KVCSA_FORMAT_FP4_E4M3_G16:
    case KVCSA_FORMAT_FP4_E8M0_G32: return n / 2;
    case KVCSA_FORMAT_F32:
    case KVCSA_FORMAT_FP4_AS_F32: return n * 4;
    case KVCSA_FORMAT_F16:
    case KVCSA_FORMAT_BF16: return n * 2;
    case KVCSA_FORMAT_Q8_0:
    case KVCSA_FORMAT_Q4_0:
    case KVCSA_FORMAT_INT3_F16_G32: return n / CACHE_BLOCK * cache_block_bytes(format);
    default: return n; /* FP8, queries */
    }
}

CACHE_BOTH size_t cache_scale_bytes(unsigned format, size_t n)
{
    switch (format) {
    case KVCSA_FORMAT_FP4_E4M3_G16: return n / 16;
    case KVCSA_FORMAT_FP4_E8M0_G32:
    case KVCSA_FORMAT_FP8_E8M0_G32: return n / 32;
    case CACHE_QUERY: return n / 32 * 4;
    default: return 0;
    }
}

/* Channels 128 k + 4 lane .. + 3 of x, the absent ones 0. */
KVI_DEV void cache_load(const float *x, unsigned n, float (&v)[CACHE_STEPS][4])
{
    const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;

    KVI_UNROLL
    for (unsigned k = 0; k < CACHE_STEPS; k++) {
        const unsigned c = CACHE_STEP * k + 4 * kvi_lane();
        uint4          four = make_uint4(0, 0, 0, 0);

        if (aligned && c + 4 <= n) {
            four = kvi_load_16(x + c);
        } else {
            four.x = c < n ? kvi_bits(x[c]) : 0;
            four.y = c + 1 < n ? kvi_bits(x[c + 1]) : 0;
            four.z = c + 2 < n ? kvi_bits(x[c + 2]) : 0;
            four.w = c + 3 < n ? kvi_bits(x[c + 3]) : 0;
        }
        v[k][0] = kvi_float(four.x);
        v[k][1] = kvi_float(four.y);
        v[k][2] = kvi_float(four.z);
        v[k][3] = kvi_float(four.w);
    }
}

/* Bits of the largest magnitude of a group of LANES lanes. */
template <unsigned LANES> KVI_DEV uint32_t cache_amax(const float (&g)[4])
{
    uint32_t m = 0;

    KVI_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t a = kvi_bits(g[i]) & KVI_MAGNITUDE;
        m = a > m ? a : m;
    }
    KVI_UNROLL
    for (unsigned d = 1; d < LANES; d *= 2) {
        const uint32_t a = kvi_shfl_xor(m, d);
        m = a > m ? a : m;
    }
    return m;
}

KVI_DEV void cache_put_16(uint8_t *to, uint32_t bits) { *reinterpret_cast<uint16_t *>(to) = static_cast<uint16_t>(bits); }
KVI_DEV void cache_put_32(uint8_t *to, uint32_t bits) { *reinterpret_cast<uint32_t *>(to) = bits; }

KVI_DEV uint32_t cache_e2m1x4(const float (&g)[4])
{
    return kvi_to_e2m1(g[0]) | kvi_to_e2m1(g[1]) << 4 | kvi_to_e2m1(g[2]) << 8 | kvi_to_e2m1(g[3]) << 12;
}

/* ---- formats: four channels of this lane, of step k, into the stage ---- */

KVI_DEV uint32_t cache_main(const float (&g)[4], kvi_group *of)
{
    *of = kvi_group_main(cache_amax<4>(g));
    if (of->poisoned)
        return 0;
    /* A division, not a product with 1 / s: s is no power of two, and the product moves quotients off a tie. */
    const float q[4] = {kvi_div(g[0], of->scale), kvi_div(g[1], of->scale), kvi_div(g[2], of->scale), kvi_div(g[3], of->scale)};
    return cache_e2m1x4(q);
}

KVI_DEV uint32_t cache_index(const float (&g)[4], kvi_group *of)
{
    *of = kvi_group_index(cache_amax<8>(g));
    if (of->poisoned)
        return 0;
    const float q[4] = {g[0] * of->scale, g[1] * of->scale, g[2] * of->scale, g[3] * of->scale};
    return cache_e2m1x4(q);
}

KVI_DEV uint32_t cache_window(const float (&g)[4], kvi_group *of)
{
    *of = kvi_group_window(cache_amax<8>(g));
    if (of->poisoned)
        return 0;
    return kvi_to_e4m3(g[0] * of->scale) | kvi_to_e4m3(g[1] * of->scale) << 8 | kvi_to_e4m3(g[2] * of->scale) << 16 |
           kvi_to_e4m3(g[3] * of->scale) << 24;
}

/* The value of largest magnitude of 8 lanes with its sign, the first of several; +0 of a zero group. */
KVI_DEV float cache_extreme(const float (&g)[4], uint32_t amax)
{
    float mine = 0.0f;
    bool  has = false;

    KVI_UNROLL
    for (unsigned i = 4; i-- > 0;)
        if ((kvi_bits(g[i]) & KVI_MAGNITUDE) == amax) {
            mine = g[i];
            has = true;
        }
    const unsigned octet = kvi_lane() & 24u;
    const unsigned holders = kvi_ballot(has) >> octet & 0xffu;
    const unsigned below = kvi_count_bits((holders & (0u - holders)) - 1);
    mine = kvi_shfl(mine, octet + below); /* somebody always has it */
    return amax ? mine : 0.0f;
}

/* A scale that is no normal float is 0 in fp16, so that its codes do not matter. */
KVI_DEV float cache_reciprocal(float d) { return d >= 1.17549435e-38f || d <= -1.17549435e-38f ? kvi_div(1.0f, d) : 0.0f; }

/* To the nearest integer, halves away from zero: every step is exact for |q| < 2^23. */
KVI_DEV uint32_t cache_q8(float q)
{
    const float a = kvi_float(kvi_bits(q) & KVI_MAGNITUDE);
    const int   whole = static_cast<int>(a), code = whole + (a - static_cast<float>(whole) >= 0.5f ? 1 : 0);

    return static_cast<uint32_t>(kvi_bits(q) >> 31 ? -code : code) & 0xffu;
}

/* Two roundings, as in ggml's C where the compiler does not fuse them. */
KVI_DEV uint32_t cache_level(float x, float inverse, unsigned half)
{
    const float    q = x * inverse;
    const unsigned code = static_cast<unsigned>(q + (static_cast<float>(half) + 0.5f));

    return code > 2 * half - 1 ? 2 * half - 1 : code;
}

template <unsigned FORMAT> KVI_DEV void cache_put_block(const float (&g)[4], unsigned c, unsigned n, uint8_t *values)
{
    const unsigned octet_lane = kvi_lane() % 8;
    const uint32_t amax = cache_amax<8>(g);
    const float    d = FORMAT == KVCSA_FORMAT_Q8_0 ? kvi_div(kvi_float(amax), 127.0f)
                                                   : kvi_div(cache_extreme(g, amax), FORMAT == KVCSA_FORMAT_Q4_0 ? -8.0f : -4.0f);
    const uint32_t scale = kvi_to_f16(d);
    const bool     bad = amax >= KVI_INFINITY || (scale & 0x7fffu) >= 0x7c00u;
    const float    inverse = cache_reciprocal(d);
    uint8_t       *block = values + c / CACHE_BLOCK * cache_block_bytes(FORMAT), *codes = block + 2;
    uint32_t       q[4] = {0, 0, 0, 0};

    if (!bad) {
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++)
            q[i] = FORMAT == KVCSA_FORMAT_Q8_0 ? cache_q8(g[i] * inverse)
                                               : cache_level(g[i], inverse, FORMAT == KVCSA_FORMAT_Q4_0 ? 8 : 4);
    }
    const unsigned step = FORMAT == KVCSA_FORMAT_INT3_F16_G32 ? 3 : 8;
    const uint32_t mine = q[0] | q[1] << step | q[2] << (2 * step) | q[3] << (3 * step);
    /* q4_0 pairs channel i with i + 16, int3 makes three bytes of eight channels. */
    const uint32_t other = FORMAT == KVCSA_FORMAT_Q8_0 ? 0 : kvi_shfl_xor(mine, FORMAT == KVCSA_FORMAT_Q4_0 ? 4u : 1u);

    if (c >= n)
        return;
    if (octet_lane == 0)
        cache_put_16(block, bad ? 0x7e00u : scale);
    if constexpr (FORMAT == KVCSA_FORMAT_Q8_0) {
        cache_put_16(codes + 4 * octet_lane, mine & 0xffffu);
        cache_put_16(codes + 4 * octet_lane + 2, mine >> 16);
    } else if constexpr (FORMAT == KVCSA_FORMAT_Q4_0) {
        if (octet_lane < 4) {
            cache_put_16(codes + 4 * octet_lane, (mine | other << 4) & 0xffffu);
            cache_put_16(codes + 4 * octet_lane + 2, (mine | other << 4) >> 16);
        }
    } else if (octet_lane % 2 == 0) {
        const uint32_t bits = mine | other << 12;
        uint8_t       *three = codes + octet_lane / 2 * 3;
        three[0] = static_cast<uint8_t>(bits);
        three[1] = static_cast<uint8_t>(bits >> 8);
        three[2] = static_cast<uint8_t>(bits >> 16);
    }
}

KVI_DEV uint32_t cache_plain_f32(float x)
{
    const uint32_t u = kvi_bits(x);
    return (u & KVI_MAGNITUDE) >= KVI_INFINITY ? static_cast<uint32_t>(KVI_NAN) : u;
}

KVI_DEV uint32_t cache_plain_16(float x, bool is_f16)
{
    const uint32_t bits = is_f16 ? kvi_to_f16(x) : kvi_bf16(x), top = is_f16 ? 0x7c00u : 0x7f80u,
                   nan = is_f16 ? 0x7e00u : 0x7fc0u;
    return (bits & 0x7fffu) >= top ? nan : bits;
}

/* The chunk's n channels into the stage. All lanes come; those of absent channels write nothing that is copied out. */
template <unsigned FORMAT> KVI_DEV void cache_encode(cache_stage &s, const float (&x)[CACHE_STEPS][4], unsigned n)
{
    constexpr bool plain = FORMAT == KVCSA_FORMAT_F32 || FORMAT == KVCSA_FORMAT_F16;
    const unsigned lane = kvi_lane();

    KVI_UNROLL
    for (unsigned k = 0; k < CACHE_STEPS; k++) {
        const unsigned c = CACHE_STEP * k + 4 * lane;
        float          g[4];
        kvi_group      of = {0, 0.0f, false};

        if (CACHE_STEP * k >= n)
            break;
        KVI_UNROLL
        for (unsigned i = 0; i < 4; i++)
            g[i] = plain || FORMAT == KVCSA_FORMAT_BF16 ? x[k][i] : kvi_round_bf16(x[k][i]);
        if constexpr (FORMAT == KVCSA_FORMAT_FP4_E4M3_G16) {
            const uint32_t codes = cache_main(g, &of);
            cache_put_16(s.values + c / 2, codes);
            if (lane % 4 == 0)
                s.scales[c / 16] = static_cast<uint8_t>(of.code);
        } else if constexpr (FORMAT == KVCSA_FORMAT_FP4_E8M0_G32) {
            const uint32_t codes = cache_index(g, &of);
            cache_put_16(s.values + c / 2, codes);
            if (lane % 8 == 0)
                s.scales[c / 32] = static_cast<uint8_t>(of.code);
        } else if constexpr (FORMAT == KVCSA_FORMAT_FP8_E8M0_G32) {
            const uint32_t codes = cache_window(g, &of);
            cache_put_32(s.values + c, codes);
            if (lane % 8 == 0)
                s.scales[c / 32] = static_cast<uint8_t>(of.code);
        } else if constexpr (FORMAT == CACHE_QUERY) {
            const uint32_t codes = cache_index(g, &of);
            cache_put_32(s.values + c, kvi_e2m1x4_twice(codes));
            if (lane % 8 == 0)
                cache_put_32(s.scales + c / 8, kvi_bits(kvi_half_of_e8m0(of.code)));
        } else if constexpr (FORMAT == KVCSA_FORMAT_FP4_AS_F32) {
            const uint32_t codes = cache_main(g, &of);
            uint32_t       v[4];
            KVI_UNROLL
            for (unsigned i = 0; i < 4; i++) /* 0 * NaN has other bits on a device */
                v[i] = of.poisoned ? static_cast<uint32_t>(KVI_NAN) : kvi_bits(kvi_of_e2m1(codes >> (4 * i)) * of.scale);
            *reinterpret_cast<uint4 *>(s.values + 4 * c) = make_uint4(v[0], v[1], v[2], v[3]);
        } else if constexpr (FORMAT == KVCSA_FORMAT_F32) {
            *reinterpret_cast<uint4 *>(s.values + 4 * c) =
                make_uint4(cache_plain_f32(g[0]), cache_plain_f32(g[1]), cache_plain_f32(g[2]), cache_plain_f32(g[3]));
        } else if constexpr (FORMAT == KVCSA_FORMAT_F16 || FORMAT == KVCSA_FORMAT_BF16) {
            const bool is_f16 = FORMAT == KVCSA_FORMAT_F16;
            *reinterpret_cast<uint2 *>(s.values + 2 * c) =
                make_uint2(cache_plain_16(g[0], is_f16) | cache_plain_16(g[1], is_f16) << 16,
                           cache_plain_16(g[2], is_f16) | cache_plain_16(g[3], is_f16) << 16);
        } else {
            cache_put_block<FORMAT>(g, c, n, s.values);
        }
    }
}

KVI_DEV void cache_encode_any(unsigned format, cache_stage &s, const float (&x)[CACHE_STEPS][4], unsigned n)
{
    switch (format) {
    case KVCSA_FORMAT_FP4_E4M3_G16: cache_encode<KVCSA_FORMAT_FP4_E4M3_G16>(s, x, n); break;
    case KVCSA_FORMAT_FP4_E8M0_G32: cache_encode<KVCSA_FORMAT_FP4_E8M0_G32>(s, x, n); break;
    case KVCSA_FORMAT_FP8_E8M0_G32: cache_encode<KVCSA_FORMAT_FP8_E8M0_G32>(s, x, n); break;
    case KVCSA_FORMAT_F32: cache_encode<KVCSA_FORMAT_F32>(s, x, n); break;
    case KVCSA_FORMAT_F16: cache_encode<KVCSA_FORMAT_F16>(s, x, n); break;
    case KVCSA_FORMAT_BF16: cache_encode<KVCSA_FORMAT_BF16>(s, x, n); break;
    case KVCSA_FORMAT_FP4_AS_F32: cache_encode<KVCSA_FORMAT_FP4_AS_F32>(s, x, n); break;
    case KVCSA_FORMAT_Q8_0: cache_encode<KVCSA_FORMAT_Q8_0>(s, x, n); break;
    case KVCSA_FORMAT_Q4_0: cache_encode<KVCSA_FORMAT_Q4_0>(s, x, n); break;
    default: cache_encode<KVCSA_FORMAT_INT3_F16_G32>(s, x, n); break;
    }
}

/* n bytes that the warp has staged, in the widest pieces that the target allows. */
KVI_DEV void cache_copy_out(uint8_t *to, const uint8_t *from, unsigned n)
{
    const unsigned off = static_cast<unsigned>(reinterpret_cast<uintptr_t>(to) % 16);
    unsigned       done = 0;

    if (off == 0) {
        done = n & ~15u;
        for (unsigned i = 16 * kvi_lane(); i < done; i += 16 * KVI_WARP)
            *reinterpret_cast<uint4 *>(to + i) = *reinterpret_cast<const uint4 *>(from + i);
    }
    if (off % 4 == 0) {
        for (unsigned i = done + 4 * kvi_lane(); i + 4 <= n; i += 4 * KVI_WARP)
            *reinterpret_cast<uint32_t *>(to + i) = *reinterpret_cast<const uint32_t *>(from + i);
        done = n & ~3u;
    }
    for (unsigned i = done + kvi_lane(); i < n; i += KVI_WARP)
        to[i] = from[i];
}

/* Where the rows of a call belong if they are of slices (kvi_entry_write_params). */
struct append_slices {
    kvi_slices      of;
    const uint64_t *entry_pos;
    unsigned        ratio;
};

struct append_place {
    uint8_t *base;     /* the block's rows of the owner, or all rows; NULL = the row is not stored */
    size_t   in_block;
};

KVI_DEV append_place append_place_of(const kvi_append_job &job, unsigned row)
{
    const unsigned at = job.first_row + row; /* counted from the beginning of the first row's block */

    if (!job.parts)
        return {job.rows, at};
    return {job.parts[at / job.rows_per_block] + job.part_off, at % job.rows_per_block};
}

KVI_DEV append_place append_place_of(const kvi_append_job &job, const append_slices &a, bool is_key, unsigned row)
{
    const uint64_t pos = a.entry_pos[row];

    if (pos == KVI_NO_ENTRY)
        return {nullptr, 0};
    const kvi_slice &slice = a.of.slices[row / a.of.each];
    const uint64_t   entry = pos / a.ratio;

    return {(is_key ? slice.index_parts : slice.main_parts)[entry / job.rows_per_block] + job.part_off,
            static_cast<size_t>(entry % job.rows_per_block)};
}

KVI_DEV unsigned append_chunks(const kvi_append_job &job) { return (job.width + CACHE_CHUNK - 1) / CACHE_CHUNK; }

/* Chunk `unit` of a job: rows one after the other, each its chunks. */
KVI_DEV void cache_append(const kvi_append_job &job, unsigned unit, const append_place &place)
{
    cache_stage   &s = kvi_shared<cache_shared>().warp[kvi_warp()];
    const unsigned row = unit / append_chunks(job), begin = unit % append_chunks(job) * CACHE_CHUNK;
    const unsigned n = job.width - begin < CACHE_CHUNK ? job.width - begin : CACHE_CHUNK;
    const size_t   row_bytes = static_cast<size_t>(job.value_bytes) + job.scale_bytes;
    float          x[CACHE_STEPS][4];

    cache_load(job.x + row * job.x_stride + begin, n, x);
    const size_t   in_group = place.in_block % job.group_rows;
    uint8_t *const group = place.base + (place.in_block - in_group) * row_bytes;
    cache_encode_any(job.format, s, x, n);
    kvi_sync_warp();
    cache_copy_out(group + in_group * job.value_bytes + cache_value_bytes(job.format, begin), s.values,
                   static_cast<unsigned>(cache_value_bytes(job.format, n)));
    cache_copy_out(group + job.group_rows * static_cast<size_t>(job.value_bytes) + in_group * job.scale_bytes +
                       cache_scale_bytes(job.format, begin),
                   s.scales, static_cast<unsigned>(cache_scale_bytes(job.format, n)));
}

struct append_args {
    kvi_append_job first, second;
    unsigned       first_warps, warps;
    append_slices  slices; /* of.slices NULL = the jobs say where rows belong */
};

/* One call's rows: window rows, or entries and then their keys. */
KVI_KERNEL(CACHE_THREADS, 8) append_rows_kernel(append_args a)
{
    const unsigned all = blockIdx.x * CACHE_WARPS + kvi_warp();

    if (all >= a.warps)
        return;
    const bool           is_key = all >= a.first_warps;
    const kvi_append_job job = is_key ? a.second : a.first;
    const unsigned       unit = is_key ? all - a.first_warps : all, row = unit / append_chunks(job);
    const append_place   place = a.slices.of.slices ? append_place_of(job, a.slices, is_key, row) : append_place_of(job, row);
    if (place.base)
        cache_append(job, unit, place);
}

/* A decode step's rows. */
KVI_KERNEL(CACHE_THREADS, 8) append_step_kernel(const kvi_append_job *jobs, unsigned n_jobs, unsigned warps_per_job)
{
    const unsigned all = blockIdx.x * CACHE_WARPS + kvi_warp(), j = all / warps_per_job, unit = all % warps_per_job;

    if (j >= n_jobs)
        return;
    const kvi_append_job job = jobs[j]; /* the same address in all lanes: five loads of 16 bytes */
    if (unit < job.n_rows * append_chunks(job))
        cache_append(job, unit, append_place_of(job, unit / append_chunks(job)));
}

struct paged_write_args {
    kvi_paged_write_params p;
    size_t                 warps;
    unsigned               value_bytes, scale_bytes; /* of a row */
};

/* Keys and values of heads: a warp takes a chunk of one of them, the key's and the value's of a head side by side. */
KVI_KERNEL(CACHE_THREADS, 8) paged_write_kernel(paged_write_args a)
{
    const kvi_paged_write_params &p = a.p;
    const unsigned                all = blockIdx.x * CACHE_WARPS + kvi_warp();
    kvi_append_job                job = {};

    if (all >= a.warps)
        return;
    job.width = p.width;
    job.format = p.format;
    job.group_rows = 1;
    job.value_bytes = a.value_bytes;
    job.scale_bytes = a.scale_bytes;
    const unsigned chunk = all % append_chunks(job), part = all / append_chunks(job); /* key, value, key of the next head, ... */
    const size_t   head = part / 2 % p.n_kv_heads, row = part / 2 / p.n_kv_heads, strip = 2 * head + part % 2;
    const uint64_t pos = p.first + row;
    job.x = part % 2 ? p.v + row * p.v_row_stride + head * p.v_head_stride : p.k + row * p.k_row_stride + head * p.k_head_stride;
    cache_append(job, chunk,
                 {p.pages[pos / p.page_rows] + p.page_off, strip * p.page_rows + static_cast<size_t>(pos % p.page_rows)});
}

struct query_args {
    const float *x;
    int8_t      *codes;
    float       *scales;
    float       *weights;  /* NULL, or [n_weights] to be multiplied in place */
    size_t       channels; /* rows and heads are one run of groups on both sides */
    size_t       n_weights;
    float        weight_scale;
};

KVI_KERNEL(CACHE_THREADS, 8) index_query_kernel(query_args a)
{
    cache_stage &s = kvi_shared<cache_shared>().warp[kvi_warp()];
    const size_t unit = static_cast<size_t>(blockIdx.x) * CACHE_WARPS + kvi_warp();
    const size_t begin = unit * CACHE_CHUNK, weight = unit * KVI_WARP + kvi_lane();
    float        x[CACHE_STEPS][4];

    if (begin >= a.channels)
        return;
    if (a.weights && weight < a.n_weights) /* a chunk has at most 16 heads */
        a.weights[weight] *= a.weight_scale;
    const unsigned n = a.channels - begin < CACHE_CHUNK ? static_cast<unsigned>(a.channels - begin) : CACHE_CHUNK;
    cache_load(a.x + begin, n, x);
    cache_encode<CACHE_QUERY>(s, x, n);
    kvi_sync_warp();
    cache_copy_out(reinterpret_cast<uint8_t *>(a.codes) + begin, s.values, n);
    cache_copy_out(reinterpret_cast<uint8_t *>(a.scales) + begin / 8, s.scales, n / 8);
}

#endif
