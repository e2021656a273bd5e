#include "api/api_call.h"
#include "model/synth.h"

KVI_NO_TAIL_PADDING(kvcsa_synth_params, user);
KVI_NO_TAIL_PADDING(kvcsa_synth_info, n_shards);

static const kvcsa_synth_params default_synth_params = {.struct_size = sizeof(kvcsa_synth_params)};

void kvcsa_synth_params_default(kvcsa_synth_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_synth_params, sizeof default_synth_params);
}

kvcsa_status kvcsa_synth_checkpoint(const char *config, const char *directory,
                                    const kvcsa_synth_params *params, kvcsa_synth_info *info,
                                    kvcsa_error *err)
{
    kvcsa_synth_params p = default_synth_params;
    kvcsa_synth_info   i = {.struct_size = sizeof i};
    kvcsa_status       st;

    kvi_error_clear(err);
    KVI_REQUIRE(config, err);
    if (info && (st = KVI_EXPORT(i, info, "kvcsa_synth_info", err)) != KVCSA_OK)
        return st;
    if ((st = KVI_IMPORT(p, params, "kvcsa_synth_params", err)) != KVCSA_OK)
        return st;
    if (directory && !directory[0])
        return kvi_fail(err, KVCSA_ERR_ARG, "directory is empty");
    st = kvi_synth_checkpoint(config, directory, &p, kvi_fs_posix(), &i, err);
    return st == KVCSA_OK && info ? KVI_EXPORT(i, info, "kvcsa_synth_info", err) : st;
}
