/* A copy of a model's weights in a device's memory. */
#ifndef KVI_WEIGHTS_PLACE_H
#define KVI_WEIGHTS_PLACE_H

#include "backend/memory.h"
#include "model/model.h"

/* Every matrix and vector, each at a multiple of KVI_WEIGHT_ALIGN; structs and arrays of them stay in
 * the host's memory, and so do Engram tables where all of them together have more than
 * max_table_bytes (engram_on_host). Waits until all is there; the model must outlive it.
 * ERR_NOMEM, before anything is copied; ERR_BACKEND. *out is zeroed on failure. */
kvcsa_status kvi_weights_place(const kvcsa_model *model, const kvi_memory *m,
                               uint64_t max_table_bytes, kvi_weights *out, kvcsa_error *err);
void         kvi_weights_unplace(kvi_weights *w, const kvi_memory *m); /* accepts a zeroed one */
/* Without tables it needs no less than that. */
uint64_t     kvi_weights_least_bytes(const kvcsa_model *model);
/* Of the device's memory. */
uint64_t     kvi_weights_placed_bytes(const kvi_weights *w);
#define KVI_WEIGHT_ALIGN ((size_t)256)

#endif
