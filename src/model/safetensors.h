/* A set of safetensors shards: mapped (or read), with one table of tensors. Every header is treated
 * as hostile. */
#ifndef KVI_SAFETENSORS_H
#define KVI_SAFETENSORS_H

#include "kvcsa.h"

enum {
    KVI_ST_F32 = 1,
    KVI_ST_BF16,
    KVI_ST_F16,
    KVI_ST_F8_E4M3,
    KVI_ST_F8_E8M0,
    KVI_ST_I8,
    KVI_ST_U8,
    KVI_ST_I32,
    KVI_ST_I64,
    KVI_ST_OTHER
};

#define KVI_ST_MAX_DIMS 8u

typedef struct kvi_tensor {
    const char    *name;
    const char    *shard; /* file name, for messages */
    const uint8_t *data;  /* any alignment */
    uint64_t       n_bytes;
    uint64_t       shape[KVI_ST_MAX_DIMS];
    uint32_t       n_dims;
    uint32_t       dtype; /* KVI_ST_* */
    uint32_t       used;  /* set by kvi_weights_bind */
} kvi_tensor;

typedef struct kvi_tensors kvi_tensors;

/* Parse one header: u64 length, JSON. file u8 [n_bytes] is the whole file (or as much of it as
 * there is: file_bytes is its true size). Adds tensors to t. For fuzzing too. */
kvcsa_status kvi_tensors_create(const kvcsa_allocator *a, kvi_tensors **out, kvcsa_error *err);
kvcsa_status kvi_tensors_add_file(kvi_tensors *t, const uint8_t *file, uint64_t file_bytes,
                                  const char *shard, kvcsa_error *err);
/* dir/model.safetensors.index.json with its shards, else dir/model.safetensors. Every tensor of the
 * index must be in the shard it names, and every shard's tensors in the index. read: into memory
 * instead of mapping. */
kvcsa_status kvi_tensors_open_dir(const kvcsa_allocator *a, const char *dir, int read,
                                  kvi_tensors **out, kvcsa_error *err);
void         kvi_tensors_destroy(kvi_tensors *t);

size_t      kvi_tensors_count(const kvi_tensors *t);
kvi_tensor *kvi_tensors_at(kvi_tensors *t, size_t i);           /* sorted by name */
kvi_tensor *kvi_tensors_find(kvi_tensors *t, const char *name); /* NULL if absent */
const char *kvi_dtype_name(uint32_t dtype);

#endif
