#include "api/api_call.h"
#include "base/fpenv.h"
#include "net/net_features.h"
#include "session/session.h"

#include <stdio.h>
#include <string.h>

#define POOL_FLAGS                                                                                 \
    ((uint32_t)(KVCSA_POOL_FILL_FREED | KVCSA_POOL_ZERO_FREED | KVCSA_POOL_FAST_DENSE))

KVI_NO_TAIL_PADDING(kvcsa_pool_params, host_bytes);
KVI_NO_TAIL_PADDING(kvcsa_pool_stats, n_moved_in_blocks);
KVI_NO_TAIL_PADDING(kvcsa_cpu_info, why);
KVI_NO_TAIL_PADDING(kvcsa_backend_info, why);
KVI_NO_TAIL_PADDING(kvcsa_step_params, deadline_ns);
KVI_NO_TAIL_PADDING(kvcsa_trace_event, reason);
KVI_FIRST_SIZE(kvcsa_pool_params, trace, 48);
KVI_FIRST_SIZE(kvcsa_pool_stats, evictable_bytes, 96);

static const kvcsa_pool_params default_pool_params = {.struct_size = sizeof(kvcsa_pool_params)};
static const kvcsa_step_params default_step_params = {.struct_size = sizeof(kvcsa_step_params)};

void kvcsa_pool_params_default(kvcsa_pool_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_pool_params, sizeof default_pool_params);
}

static kvcsa_status check_pool_params(const kvcsa_pool_params *p, kvcsa_error *err)
{
    if (p->flags & ~POOL_FLAGS)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "flags is 0x%x, unknown bits in it", p->flags);
    if (p->evict > KVCSA_EVICT_LRU)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "evict is %u, must be one of KVCSA_EVICT_*",
                        p->evict);
    if (p->cpu_avoid & ~KVI_CPU_ALL)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "cpu_avoid is 0x%x, unknown bits in it",
                        p->cpu_avoid);
    if (p->backend > KVCSA_BACKEND_CUDA)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "backend is %u, must be one of KVCSA_BACKEND_*", p->backend);
    if (p->backend_dir && p->backend_dir[0] != '/')
        return kvi_fail(err, KVCSA_ERR_ARG, "backend_dir is \"%.160s\", must be an absolute path",
                        p->backend_dir);
    return KVCSA_OK;
}

kvcsa_status kvcsa_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out, kvcsa_error *err)
{
    kvcsa_pool_params p = default_pool_params;
    kvcsa_status      st;

    kvi_error_clear(err);
    KVI_REQUIRE(out, err);
    *out = NULL;
    if ((st = KVI_IMPORT_GROWN(p, trace, params, "kvcsa_pool_params", err)) != KVCSA_OK ||
        (st = check_pool_params(&p, err)) != KVCSA_OK)
        return st;
    return kvi_pool_create(&p, out, err);
}

void kvcsa_pool_release(kvcsa_pool **pool)
{
    if (!pool)
        return;
    kvi_pool_release(*pool);
    *pool = NULL;
}

kvcsa_status kvcsa_pool_get_stats(kvcsa_pool *pool, kvcsa_pool_stats *stats, kvcsa_error *err)
{
    kvcsa_pool_stats s = {.struct_size = sizeof s};
    kvcsa_status     st;

    kvi_error_clear(err);
    KVI_REQUIRE(pool, err);
    KVI_REQUIRE(stats, err);
    if ((st = kvi_pool_get_stats(pool, &s, err)) != KVCSA_OK)
        return st;
    return KVI_EXPORT_GROWN(s, evictable_bytes, stats, "kvcsa_pool_stats", err);
}

kvcsa_status kvcsa_pool_get_cpu(const kvcsa_pool *pool, kvcsa_cpu_info *info, kvcsa_error *err)
{
    const uint32_t avoid = pool ? kvi_pool_cpu_avoid(pool) : 0;
    kvcsa_cpu_info out = {.struct_size = sizeof out};
    kvi_cpu_found  found;

    kvi_error_clear(err);
    KVI_REQUIRE(info, err);
    kvi_cpu_find(avoid, &found);
    out.detected = found.detected;
    out.used = found.used;
    out.numerics = kvi_cpu_backend(found.used)->numerics;
    memcpy(out.processor, found.name, sizeof out.processor);
    memcpy(out.kernels, found.kernels, sizeof out.kernels);
    memcpy(out.why, found.why, sizeof out.why);
    return KVI_EXPORT(out, info, "kvcsa_cpu_info", err);
}

static void fill_backend(const kvcsa_pool *pool, kvcsa_backend_info *out)
{
    const kvi_backend_ops *ops = kvi_pool_ops(pool);
    kvi_device_info        device = {0};
    kvi_features           features = {0};
    kvi_cpu_found          cpu;

    out->backend = kvi_pool_backend(pool);
    out->reference = out->backend == KVCSA_BACKEND_CPU;
    out->numerics = kvi_pool_numerics(pool);
    kvi_pool_describe(pool, &device);
    if (out->reference) {
        kvi_cpu_find(kvi_pool_cpu_avoid(pool), &cpu);
        memcpy(device.name, cpu.name, sizeof device.name);
        memcpy(device.kernels, cpu.kernels, sizeof device.kernels);
    }
    out->memory_bytes = device.memory;
    out->memory_free_bytes = device.memory_free;
    ops->features(&features);
    out->entry_formats = features.entry_formats;
    out->paged_formats = features.paged_formats;
    snprintf(out->name, sizeof out->name, "%s", ops->name);
    snprintf(out->device, sizeof out->device, "%s", device.name);
    snprintf(out->kernels, sizeof out->kernels, "%s", device.kernels);
    kvi_features_text(&features, out->features, sizeof out->features);
    snprintf(out->why, sizeof out->why, "%s", kvi_pool_backend_why(pool));
}

kvcsa_status kvcsa_pool_get_backend(const kvcsa_pool *pool, kvcsa_backend_info *info,
                                    kvcsa_error *err)
{
    kvcsa_pool_params  p = default_pool_params;
    kvcsa_backend_info out = {.struct_size = sizeof out};
    kvcsa_pool        *own = NULL;
    kvcsa_status       st = KVCSA_OK;

    kvi_error_clear(err);
    KVI_REQUIRE(info, err);
    p.n_threads = 1;
    if (!pool && (st = kvi_pool_create(&p, &own, err)) != KVCSA_OK)
        return st;
    fill_backend(pool ? pool : own, &out);
    kvi_pool_release(own);
    return KVI_EXPORT(out, info, "kvcsa_backend_info", err);
}

kvcsa_status kvcsa_pool_check(kvcsa_pool *pool, kvcsa_error *err)
{
    kvi_error_clear(err);
    KVI_REQUIRE(pool, err);
    return kvi_pool_check(pool, err);
}

kvcsa_status kvcsa_pool_resize(kvcsa_pool *pool, uint64_t budget_bytes, kvcsa_error *err)
{
    kvi_error_clear(err);
    KVI_REQUIRE(pool, err);
    return kvi_pool_resize(pool, budget_bytes, err);
}

kvcsa_status kvcsa_pool_trim(kvcsa_pool *pool, uint64_t max_used_bytes, uint64_t *freed_bytes,
                             kvcsa_error *err)
{
    kvi_error_clear(err);
    if (freed_bytes)
        *freed_bytes = 0;
    KVI_REQUIRE(pool, err);
    kvi_pool_trim(pool, max_used_bytes, freed_bytes);
    return KVCSA_OK;
}

void kvcsa_step_params_default(kvcsa_step_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_step_params, sizeof default_step_params);
}

kvcsa_status kvcsa_pool_step(kvcsa_pool *pool, kvcsa_session *const *sessions, size_t n_sessions,
                             const kvcsa_step_params *params, kvcsa_step_result *results,
                             kvcsa_error *err)
{
    kvcsa_step_params p = default_step_params;
    uint64_t          mode;
    kvcsa_status      st;

    kvi_error_clear(err);
    KVI_REQUIRE(pool, err);
    if (n_sessions)
        KVI_REQUIRE(sessions, err);
    if (n_sessions > UINT32_MAX)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_sessions is %zu, the limit is %u", n_sessions,
                        UINT32_MAX);
    if ((st = KVI_IMPORT(p, params, "kvcsa_step_params", err)) != KVCSA_OK)
        return st;
    for (size_t i = 0; i < n_sessions; i++) {
        if (!sessions[i])
            return kvi_fail(err, KVCSA_ERR_ARG, "sessions[%zu] is NULL", i);
        if (sessions[i]->pool != pool)
            return kvi_fail(err, KVCSA_ERR_ARG, "sessions[%zu] belongs to another pool", i);
    }
    mode = kvi_fp_enter();
    st = kvi_step(pool, sessions, n_sessions, &p, results, err);
    kvi_fp_leave(mode);
    return st;
}
