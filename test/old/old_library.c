/* A library of 0.1 made of today's code, for programs that are newer than their library: the functions of that release, which
 * know the structs of that release, in front of today's, whose names check_old_new.sh has changed to now_kvcsa_*. Sizes are
 * looked at by the rule that every release has (base/params.c); functions whose structs have not grown are names for today's.
 * (`make check-old` has the real libraries of older releases.) */
#include "base/params.h"

#include <stddef.h>

/* What today's library offers, with structs that begin like those of 0.1. */
kvcsa_status now_kvcsa_model_open(const char *path, const kvcsa_model_params *params, kvcsa_model **out, kvcsa_error *err);
kvcsa_status now_kvcsa_model_get_info(const kvcsa_model *model, kvcsa_model_info *info, kvcsa_error *err);
kvcsa_status now_kvcsa_model_plan_row(const kvcsa_model *model, uint32_t layer, kvcsa_plan_row *row, kvcsa_error *err);
kvcsa_status now_kvcsa_model_cost(const kvcsa_model *model, uint64_t n_tokens, kvcsa_cost *cost, kvcsa_error *err);
kvcsa_status now_kvcsa_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out, kvcsa_error *err);
kvcsa_status now_kvcsa_pool_get_stats(kvcsa_pool *pool, kvcsa_pool_stats *stats, kvcsa_error *err);
kvcsa_status now_kvcsa_session_create(kvcsa_pool *pool, kvcsa_model *model, const kvcsa_session_params *params, kvcsa_session
                                      **out,
                                      kvcsa_error *err);
kvcsa_status now_kvcsa_session_append(kvcsa_session *session, const int32_t *tokens, size_t n_tokens,
                                      const kvcsa_append_params *params,
                                      uint64_t *out_pos, kvcsa_error *err);
kvcsa_status now_kvcsa_session_get_stats(kvcsa_session *session, kvcsa_session_stats *stats, kvcsa_error *err);
void now_kvcsa_model_params_default(kvcsa_model_params *params, size_t struct_size);
void now_kvcsa_pool_params_default(kvcsa_pool_params *params, size_t struct_size);
void now_kvcsa_session_params_default(kvcsa_session_params *params, size_t struct_size);
void now_kvcsa_append_params_default(kvcsa_append_params *params, size_t struct_size);

uint32_t kvcsa_version_number(void)
{
    return KVCSA_VERSION_NUMBER;
}

/* Defaults for as much as this release knows, zeros behind. */
#define DEFAULTS(x)                                                                                                    \
    void kvcsa_##x##_default(kvcsa_##x *params, size_t struct_size)                                                    \
    {                                                                                                                  \
        kvcsa_##x ours;                                                                                                \
                                                                                                                       \
        now_kvcsa_##x##_default(&ours, sizeof ours);                                                                   \
        kvi_params_default(params, struct_size, &ours, sizeof ours);                                                   \
    }
DEFAULTS(model_params)
DEFAULTS(pool_params)
DEFAULTS(session_params)
DEFAULTS(append_params)

#define IMPORT(x, ours, theirs)                                                                                        \
    kvcsa_##x    ours;                                                                                                 \
    kvcsa_status st;                                                                                                   \
                                                                                                                       \
    now_kvcsa_##x##_default(&ours, sizeof ours);                                                                       \
    st = kvi_params_import(&ours, sizeof ours, sizeof ours, theirs, "kvcsa_" #x, err);                                 \
    if (st != KVCSA_OK)                                                                                                \
    return st

kvcsa_status kvcsa_model_open(const char *path, const kvcsa_model_params *params, kvcsa_model **out, kvcsa_error *err)
{
    IMPORT(model_params, ours, params);
    return now_kvcsa_model_open(path, &ours, out, err);
}

kvcsa_status kvcsa_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out, kvcsa_error *err)
{
    IMPORT(pool_params, ours, params);
    return now_kvcsa_pool_create(&ours, out, err);
}

kvcsa_status kvcsa_session_create(kvcsa_pool *pool, kvcsa_model *model, const kvcsa_session_params *params, kvcsa_session **out,
                                  kvcsa_error *err)
{
    IMPORT(session_params, ours, params);
    return now_kvcsa_session_create(pool, model, &ours, out, err);
}

kvcsa_status kvcsa_session_append(kvcsa_session *session, const int32_t *tokens, size_t n_tokens, const kvcsa_append_params
                                  *params,
                                  uint64_t *out_pos, kvcsa_error *err)
{
    IMPORT(append_params, ours, params);
    return now_kvcsa_session_append(session, tokens, n_tokens, &ours, out_pos, err);
}

#define EXPORT(x, call)                                                                                                \
    kvcsa_##x    ours = {.struct_size = sizeof ours};                                                                  \
    kvcsa_status st = call;                                                                                            \
                                                                                                                       \
    return st != KVCSA_OK ? st : kvi_params_export(&ours, sizeof ours, sizeof ours, out, "kvcsa_" #x, err)

kvcsa_status kvcsa_model_get_info(const kvcsa_model *model, kvcsa_model_info *out, kvcsa_error *err)
{
    EXPORT(model_info, now_kvcsa_model_get_info(model, &ours, err));
}

kvcsa_status kvcsa_model_plan_row(const kvcsa_model *model, uint32_t layer, kvcsa_plan_row *out, kvcsa_error *err)
{
    EXPORT(plan_row, now_kvcsa_model_plan_row(model, layer, &ours, err));
}

kvcsa_status kvcsa_model_cost(const kvcsa_model *model, uint64_t n_tokens, kvcsa_cost *out, kvcsa_error *err)
{
    EXPORT(cost, now_kvcsa_model_cost(model, n_tokens, &ours, err));
}

kvcsa_status kvcsa_pool_get_stats(kvcsa_pool *pool, kvcsa_pool_stats *out, kvcsa_error *err)
{
    EXPORT(pool_stats, now_kvcsa_pool_get_stats(pool, &ours, err));
}

kvcsa_status kvcsa_session_get_stats(kvcsa_session *session, kvcsa_session_stats *out, kvcsa_error *err)
{
    EXPORT(session_stats, now_kvcsa_session_get_stats(session, &ours, err));
}
