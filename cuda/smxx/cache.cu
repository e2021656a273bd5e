#include "cache.cuh"

#include "cuda_device.h"

extern "C" {
#include "format/fp4.h"
#include "format/fp8.h"
}

/* Channels per scale, or 1; 0 = no format of rows. */
static uint32_t group_of(uint32_t format)
{
    switch (format) {
    case KVCSA_FORMAT_FP4_E4M3_G16:
    case KVCSA_FORMAT_FP4_AS_F32: return 16;
    case KVCSA_FORMAT_FP4_E8M0_G32:
    case KVCSA_FORMAT_FP8_E8M0_G32:
    case KVCSA_FORMAT_Q8_0:
    case KVCSA_FORMAT_Q4_0:
    case KVCSA_FORMAT_INT3_F16_G32: return 32;
    case KVCSA_FORMAT_F32:
    case KVCSA_FORMAT_F16:
    case KVCSA_FORMAT_BF16: return 1;
    default: return 0;
    }
}

static size_t chunks_of(size_t width) { return (width + CACHE_CHUNK - 1) / CACHE_CHUNK; }

/* What a launch can count. */
static const size_t MAX_WARPS = (static_cast<size_t>(1) << 31) - 1;

static kvcsa_status check_job(const char *name, size_t n_rows, uint32_t width, uint32_t format, uint32_t row_bytes,
                              size_t wanted_bytes, kvcsa_error *err)
{
    const uint32_t group = group_of(format);

    if (group == 0)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "%s: format %u is not stored", name, format);
    if (width % group != 0)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "%s: width %u is no multiple of %u", name, width, group);
    if (row_bytes != wanted_bytes)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "%s: a row has %u bytes, must have %zu", name, row_bytes, wanted_bytes);
    if (n_rows > MAX_WARPS || n_rows * chunks_of(width) > MAX_WARPS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "%s: %zu rows of %u, at most 2^31 - 1 times 512 channels in a call",
                             name, n_rows, width);
    return KVCSA_OK;
}

size_t kvi_append_warps(const kvi_append_job *job) { return job->n_rows * chunks_of(job->width); }

kvcsa_status kvi_append_window_job(const kvi_window_write_params *p, kvi_append_job *job, kvcsa_error *err)
{
    *job = kvi_append_job();
    KVI_TRY(check_job("window_write", p->n_rows, p->width, KVCSA_FORMAT_FP8_E8M0_G32, p->row_bytes,
                      static_cast<size_t>(p->width) + p->width / KVI_WINDOW_GROUP, err));
    job->x = p->x;
    job->rows = p->rows;
    job->x_stride = p->x_stride;
    job->n_rows = static_cast<uint32_t>(p->n_rows);
    job->width = p->width;
    job->format = KVCSA_FORMAT_FP8_E8M0_G32;
    job->rows_per_block = 1;
    job->group_rows = 1;
    job->value_bytes = p->width;
    job->scale_bytes = p->width / KVI_WINDOW_GROUP;
    return KVCSA_OK;
}

/* What latents and keys of an owner have in common. */
static void entry_job(const kvi_entry_write_params *p, const float *x, uint8_t *const *parts, uint32_t width, uint32_t part_off,
                      kvi_append_job *job)
{
    const uint32_t per_block = p->to.owner->rows_per_block;

    job->x = x;
    job->parts = parts + p->first_entry / per_block;
    job->x_stride = width;
    job->n_rows = static_cast<uint32_t>(p->n_rows);
    job->width = width;
    job->first_row = static_cast<uint32_t>(p->first_entry % per_block);
    job->rows_per_block = per_block;
    job->part_off = part_off;
}

kvcsa_status kvi_append_entry_jobs(const kvi_entry_write_params *p, kvi_append_job *latents, kvi_append_job *keys,
                                   kvcsa_error *err)
{
    const kvi_kv_owner *o = p->to.owner;
    const size_t        values = cache_value_bytes(o->entry_format, o->entry_width);
    const size_t        scales = cache_scale_bytes(o->entry_format, o->entry_width);

    *latents = kvi_append_job();
    *keys = kvi_append_job();
    KVI_TRY(check_job("entry_write", p->n_rows, o->entry_width, o->entry_format, o->main_row_bytes, values + scales, err));
    entry_job(p, p->latent, p->to.main_parts, o->entry_width, o->main_off, latents);
    latents->format = o->entry_format;
    latents->group_rows = 1;
    latents->value_bytes = static_cast<uint32_t>(values);
    latents->scale_bytes = static_cast<uint32_t>(scales);
    if (o->index_width == 0)
        return KVCSA_OK;
    KVI_TRY(check_job("entry_write: keys", p->n_rows, o->index_width, KVCSA_FORMAT_FP4_E8M0_G32, o->index_row_bytes,
                      static_cast<size_t>(o->index_width) / 2 + o->index_width / KVI_INDEX_GROUP, err));
    if (o->index_value_bytes != o->index_width / 2)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "entry_write: keys: %u bytes of values, must be %u", o->index_value_bytes,
                             o->index_width / 2);
    entry_job(p, p->key, p->to.index_parts, o->index_width, o->index_off, keys);
    keys->format = KVCSA_FORMAT_FP4_E8M0_G32;
    keys->group_rows = KVI_INDEX_GROUP_ROWS;
    keys->value_bytes = o->index_width / 2;
    keys->scale_bytes = o->index_width / KVI_INDEX_GROUP;
    return KVCSA_OK;
}

/* One launch for one or two jobs (an empty second one). */
static kvcsa_status append_rows(kvi_device *dev, const char *name, const kvi_append_job &first, const kvi_append_job &second,
                                const append_slices &slices, kvcsa_error *err)
{
    const size_t one = kvi_append_warps(&first), all = one + kvi_append_warps(&second);

    if (all == 0)
        return KVCSA_OK;
    if (all > MAX_WARPS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "%s: %zu pieces of 512 channels, at most %zu in a call", name, all,
                             MAX_WARPS);
    const append_args a = {first, second, static_cast<unsigned>(one), static_cast<unsigned>(all), slices};
    return kvi_launch(dev, name, append_rows_kernel, dim3(kvi_blocks(all, CACHE_WARPS)), CACHE_THREADS, sizeof(cache_shared), err,
                      a);
}

kvcsa_status kvi_cuda_window_write(kvi_device *dev, const kvi_window_write_params *p, kvcsa_error *err)
{
    kvi_cuda_use   use(dev);
    kvi_append_job job;

    KVI_TRY(kvi_append_window_job(p, &job, err));
    return append_rows(dev, "window_write", job, kvi_append_job(), append_slices(), err);
}

kvcsa_status kvi_cuda_entry_write(kvi_device *dev, const kvi_entry_write_params *p, kvcsa_error *err)
{
    kvi_cuda_use   use(dev);
    kvi_append_job latents, keys;

    KVI_TRY(kvi_append_entry_jobs(p, &latents, &keys, err));
    const append_slices slices = {p->of, p->entry_pos, p->ratio};
    if (p->of.slices && (p->of.each == 0 || p->ratio == 0))
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "entry_write: slices of %zu rows, entries of %u tokens", p->of.each,
                             p->ratio);
    return append_rows(dev, "entry_write", latents, keys, slices, err);
}

static const uint32_t MAX_CHANNELS = 65536; /* of a row: no format of plan/row_format.c has more */

/* What the CPU refuses is refused here. */
kvcsa_status kvi_cuda_paged_write(kvi_device *dev, const kvi_paged_write_params *p, kvcsa_error *err)
{
    kvi_cuda_use   use(dev);
    const uint32_t group = group_of(p->format);
    const size_t   pieces = static_cast<size_t>(2) * p->n_kv_heads * chunks_of(p->width); /* of a position */

    if (group == 0)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "paged_write: format %u is not stored", p->format);
    if (p->width == 0 || p->width % group != 0 || p->width > MAX_CHANNELS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0,
                             "paged_write: heads of %u channels; multiples of %u up to %u in format %u", p->width, group,
                             MAX_CHANNELS, p->format);
    if (p->n_kv_heads == 0 || p->page_rows == 0)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "paged_write: %u KV heads in pages of %u rows; at least 1 of each",
                             p->n_kv_heads, p->page_rows);
    if (p->n_rows > MAX_WARPS / pieces)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0,
                             "paged_write: %zu rows of %u KV heads of %u, at most 2^31 - 1 times 512 channels in a call",
                             p->n_rows, p->n_kv_heads, p->width);
    if (p->n_rows == 0)
        return KVCSA_OK;
    const paged_write_args a = {*p, p->n_rows * pieces, static_cast<unsigned>(cache_value_bytes(p->format, p->width)),
                                static_cast<unsigned>(cache_scale_bytes(p->format, p->width))};
    return kvi_launch(dev, "paged_write", paged_write_kernel, dim3(kvi_blocks(a.warps, CACHE_WARPS)), CACHE_THREADS,
                      sizeof(cache_shared), err, a);
}

kvcsa_status kvi_cuda_append_step(kvi_device *dev, const kvi_append_job *jobs, unsigned n_jobs, size_t warps, kvcsa_error *err)
{
    kvi_cuda_use use(dev);

    if (n_jobs > KVI_APPEND_JOBS || warps > MAX_WARPS / KVI_APPEND_JOBS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0,
                             "append_step: %u jobs of %zu pieces of 512 channels, at most %u of %zu", n_jobs, warps,
                             KVI_APPEND_JOBS, MAX_WARPS / KVI_APPEND_JOBS);
    if (n_jobs == 0 || warps == 0)
        return KVCSA_OK;
    return kvi_launch(dev, "append_step", append_step_kernel, dim3(kvi_blocks(n_jobs * warps, CACHE_WARPS)), CACHE_THREADS,
                      sizeof(cache_shared), err, jobs, n_jobs, static_cast<unsigned>(warps));
}

kvcsa_status kvi_cuda_index_query(kvi_device *dev, const kvi_index_query_params *p, kvcsa_error *err)
{
    kvi_cuda_use     use(dev);
    const size_t     heads = p->n_rows * p->n_heads;
    const query_args a = {p->x, p->codes, p->scales, p->weights, heads * p->width, heads, p->weight_scale};

    if (p->flags)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "index_query: the reference mode is the CPU's");
    if (p->width % KVI_INDEX_GROUP != 0)
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "index_query: width %u is no multiple of %u", p->width, KVI_INDEX_GROUP);
    if (chunks_of(a.channels) > MAX_WARPS)
        return kvi_cuda_fail(err, KVCSA_ERR_UNSUPPORTED, 0, "index_query: %zu channels, at most 2^31 - 1 times 512 in a call",
                             a.channels);
    if (a.channels == 0)
        return KVCSA_OK;
    return kvi_launch(dev, "index_query", index_query_kernel, dim3(kvi_blocks(chunks_of(a.channels), CACHE_WARPS)), CACHE_THREADS,
                      sizeof(cache_shared), err, a);
}

#ifdef KVI_CUDA_EMULATED
/* What the table of operators has no slot for, and device_format.cuh, for test_cuda_cache. */

namespace {
struct decoded {
    const uint8_t *row;
    float         *f32, *bf16;
    unsigned       width;
};

void decode_fp4(const decoded &d)
{
    for (unsigned g = 0; g < d.width / 16; g++) {
        uint2    codes;
        float    x[16];
        uint32_t pairs[8];
        memcpy(&codes, d.row + 8 * g, sizeof codes);
        kvi_decode_fp4_16(codes, d.row[d.width / 2 + g], x);
        kvi_decode_fp4_16_bf16(codes, d.row[d.width / 2 + g], pairs);
        for (unsigned i = 0; i < 16; i++) {
            d.f32[16 * g + i] = x[i];
            d.bf16[16 * g + i] = kvi_of_bf16(pairs[i / 2] >> (16 * (i % 2)) & 0xffffu);
        }
    }
}

void decode_fp8(const decoded &d)
{
    for (unsigned g = 0; g < d.width / 32; g++) {
        uint4    codes[2];
        float    x[32];
        uint32_t pairs[16];
        memcpy(codes, d.row + 32 * g, sizeof codes);
        kvi_decode_fp8_32(codes[0], codes[1], d.row[d.width + g], x);
        kvi_decode_fp8_32_bf16(codes[0], codes[1], d.row[d.width + g], pairs);
        for (unsigned i = 0; i < 32; i++) {
            d.f32[32 * g + i] = x[i];
            d.bf16[32 * g + i] = kvi_of_bf16(pairs[i / 2] >> (16 * (i % 2)) & 0xffffu);
        }
    }
}
} // namespace

#pragma GCC visibility push(default)
extern "C" {
/* Jobs of windows and then of entries, two each, at host_jobs, 80 bytes a job; returns the most warps of one. */
kvcsa_status kvi_emu_append_jobs(const kvi_window_write_params *windows, unsigned n_windows,
                                 const kvi_entry_write_params *entries, unsigned n_entries, void *host_jobs, size_t *warps,
                                 kvcsa_error *err)
{
    kvi_append_job *jobs = static_cast<kvi_append_job *>(host_jobs);

    for (unsigned i = 0; i < n_windows; i++)
        KVI_TRY(kvi_append_window_job(&windows[i], &jobs[i], err));
    for (unsigned i = 0; i < n_entries; i++)
        KVI_TRY(kvi_append_entry_jobs(&entries[i], &jobs[n_windows + 2 * i], &jobs[n_windows + 2 * i + 1], err));
    *warps = 0;
    for (unsigned i = 0; i < n_windows + 2 * n_entries; i++)
        *warps = kvi_append_warps(&jobs[i]) > *warps ? kvi_append_warps(&jobs[i]) : *warps;
    return KVCSA_OK;
}

kvcsa_status kvi_emu_append_step(kvi_device *dev, const void *jobs, unsigned n_jobs, size_t warps, kvcsa_error *err)
{
    return kvi_cuda_append_step(dev, static_cast<const kvi_append_job *>(jobs), n_jobs, warps, err);
}

uint32_t kvi_emu_to_e4m3(float x) { return kvi_to_e4m3(x); }
uint32_t kvi_emu_to_e2m1(float x) { return kvi_to_e2m1(x); }
uint32_t kvi_emu_to_e8m0(float x) { return kvi_to_e8m0_up(x); }
uint32_t kvi_emu_to_f16(float x) { return kvi_to_f16(x); }
float    kvi_emu_of_e4m3(uint32_t code) { return kvi_of_e4m3(code); }
float    kvi_emu_of_e2m1(uint32_t code) { return kvi_of_e2m1(code); }
float    kvi_emu_of_e8m0(uint32_t code) { return kvi_of_e8m0(code); }
float    kvi_emu_of_f16(uint32_t code) { return kvi_of_f16(code); }
uint32_t kvi_emu_twice(uint32_t codes) { return kvi_e2m1x4_twice(codes); }
/* A row of FP4_E4M3_G16 or FP8_E8M0_G32 at an 8-byte boundary, as fp32 and as bf16. */
void kvi_emu_decode(int is_fp8, const uint8_t *row, unsigned width, float *f32, float *bf16)
{
    const decoded d = {row, f32, bf16, width};

    if (is_fp8)
        decode_fp8(d);
    else
        decode_fp4(d);
}
}
#pragma GCC visibility pop
#endif
