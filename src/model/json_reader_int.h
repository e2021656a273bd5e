/* Typed access to the keys of a JSON object, for configurations. The first fault is kept, with the
 * key, the value and the limit; after it nothing is read and every getter gives something harmless,
 * so a caller may read on and look at `st` once. null counts as absent. */
#ifndef KVI_JSON_READER_INT_H
#define KVI_JSON_READER_INT_H

#include <jansson.h>

#include "base/status.h"

typedef struct kvi_json_reader {
    const json_t *obj;
    const char   *file;      /* for messages */
    const char   *prefix;    /* of the keys, for messages */
    kvcsa_status  malformed; /* what a wrong value is: ERR_FORMAT in a file, ERR_ARG in a call */
    kvcsa_status  st;        /* the first failure */
    kvcsa_error  *err;
} kvi_json_reader;

void kvi_json_refuse(kvi_json_reader *r, kvcsa_status st, const char *key, const char *format, ...)
    KVI_PRINTF(4, 5);
/* "an object", "a list", "absent", ... */
const char *kvi_json_type(const json_t *value);

/* NULL = absent. */
const json_t *kvi_json_get(const kvi_json_reader *r, const char *key);

/* min where it fails. */
int64_t kvi_json_check_int(kvi_json_reader *r, const char *key, const json_t *value, int64_t min,
                           int64_t max);
int64_t kvi_json_int(kvi_json_reader *r, const char *key, int64_t min, int64_t max);
int64_t kvi_json_int_or(kvi_json_reader *r, const char *key, int64_t min, int64_t max,
                        int64_t absent);
/* Finite, and normal or zero as fp32. */
float       kvi_json_real(kvi_json_reader *r, const char *key, double min, double max);
const char *kvi_json_text(kvi_json_reader *r, const char *key); /* "" where it fails */
int         kvi_json_bool(kvi_json_reader *r, const char *key);
int         kvi_json_bool_or(kvi_json_reader *r, const char *key, int absent);
/* ERR_UNSUPPORTED if it is anything else. */
void kvi_json_want_text(kvi_json_reader *r, const char *key, const char *want);
void kvi_json_want_false(kvi_json_reader *r, const char *key);

/* A list of at most `max` items; absent gives an empty one where that is allowed. NULL and n 0
 * where it fails. */
const json_t *kvi_json_list(kvi_json_reader *r, const char *key, size_t max, int required,
                            size_t *n);
/* Layer ids `first`..first + n_layers - 1, distinct and ascending, at most `max`; out holds them
 * counted from 0. Returns how many. */
uint32_t kvi_json_layers(kvi_json_reader *r, const char *key, uint32_t first, uint32_t n_layers,
                         uint32_t max, uint32_t *out);
/* An object below this one, as a reader of its own; r->st is to be taken over afterwards. false =
 * it is absent, or not an object (then r has failed). prefix: of its keys. */
int kvi_json_enter(kvi_json_reader *r, const char *key, const char *prefix, kvi_json_reader *out);

#endif
