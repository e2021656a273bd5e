/* Shared inside this room: files, JSON text, advice for mapped shards. */
#ifndef KVI_MODEL_INT_H
#define KVI_MODEL_INT_H

#include <jansson.h>

#include "kvcsa.h"
#include "model/safetensors.h"

typedef struct kvi_file { /* a whole regular file; zeroed = none */
    uint8_t *data;
    uint64_t n_bytes;
    int      mapped; /* else from the allocator */
} kvi_file;

/* ERR_IO (ERR_NOMEM) with the name, what could not be done, and errno. */
kvcsa_status kvi_file_fail(kvcsa_error *err, const char *name, const char *what);

/* name stands in messages. ERR_IO if it cannot be opened or read or is not a regular file;
 * ERR_FORMAT if it is empty or larger than max_bytes. map: read-only mapping, else the bytes are
 * read. Never blocks on a FIFO. */
kvcsa_status kvi_file_open(const kvcsa_allocator *a, const char *path, const char *name,
                           uint64_t max_bytes, int map, kvi_file *out, kvcsa_error *err);
void         kvi_file_close(const kvcsa_allocator *a, kvi_file *file); /* accepts a zeroed one */

/* 1 = there is something of that name, 0 = there is not (other faults count as "is": opening it
 * will tell). */
int kvi_path_exists(const char *path);
/* dir/name; free with kvi_strfree; NULL = out of memory. */
char *kvi_path_join(const kvcsa_allocator *a, const char *dir, const char *name);

/* Parse JSON whose root is an object; duplicate keys are refused. jansson's nodes come from libc
 * malloc and live for the call only: giving it our allocator would change state of the whole
 * process. Free with json_decref. */
kvcsa_status kvi_json_parse(const void *text, size_t n_bytes, const char *name, json_t **out,
                            kvcsa_error *err);

/* Advice for all mapped shards: random access for the fingerprint's samples, then normal. */
void kvi_tensors_advise(kvi_tensors *t, int random);

#endif
