/* What a backend has kernels for, against what a model asks for. */
#ifndef KVI_NET_FEATURES_H
#define KVI_NET_FEATURES_H

#include "backend/backend.h"
#include "model/model.h"

/* ERR_UNSUPPORTED: a size or format of the model is not among them; the text names it and lists
 * what there is. backend: its name. The model has a network. */
kvcsa_status kvi_net_check_features(const kvi_features *f, const char *backend,
                                    const kvcsa_model *model, kvcsa_error *err);

/* Likewise what a plan asks for, whoever has the network. */
kvcsa_status kvi_net_check_plan(const kvi_features *f, const char *backend, const kvi_plan *plan,
                                kvcsa_error *err);

/* All of it to be shown, but for sizes without a limit; cut where `size` ends. Returns the length. */
size_t kvi_features_text(const kvi_features *f, char *out, size_t size);

#endif
