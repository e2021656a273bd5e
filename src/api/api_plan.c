/* Models from a plan alone. */
#include "api/api_call.h"
#include "model/model.h"

KVI_NO_TAIL_PADDING(kvcsa_plan_params, vocab_tokens);

static const kvcsa_plan_params default_plan_params = {.struct_size = sizeof(kvcsa_plan_params)};

void kvcsa_plan_params_default(kvcsa_plan_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_plan_params, sizeof default_plan_params);
}

kvcsa_status kvcsa_model_from_plan(const kvcsa_plan_row *rows, size_t n_rows,
                                   const kvcsa_plan_params *params, kvcsa_model **out,
                                   kvcsa_error *err)
{
    kvcsa_plan_params p = default_plan_params;
    kvcsa_status      st;

    kvi_error_clear(err);
    KVI_REQUIRE(out, err);
    *out = NULL;
    KVI_REQUIRE(rows, err);
    if ((st = KVI_IMPORT(p, params, "kvcsa_plan_params", err)) != KVCSA_OK)
        return st;
    return kvi_model_from_plan(rows, n_rows, &p, out, err);
}
