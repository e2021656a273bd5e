/* Shared by synth.c (the checkpoint as files), synth_weights.c (the numbers) and synth_tokenizer.c
 * (the vocabulary). */
#ifndef KVI_SYNTH_INT_H
#define KVI_SYNTH_INT_H

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"
#include "model/config.h"
#include "model/weights.h"

/* ------------------------------------------------------------------ synth_weights.c */

#define KVI_SYNTH_BAND_ROWS 32u /* of a matrix at a time: one row of FP8 tiles */

/* Values first .. first + n - 1 of a stream of standard normal numbers, which depends on key alone.
 * first is even. */
void kvi_synth_normal(uint64_t key, uint64_t first, size_t n, float *out);

/* Bytes of matrix rows [row0, row0 + n_rows) of a tensor; row0 is a multiple of
 * KVI_SYNTH_BAND_ROWS and n_rows at most that. For scales: those of the rows. scratch f32
 * [n_rows, cols]; out: at most as many bytes as scratch has. Returns how many. scales: NULL, or
 * where the scales of a weight's rows go as well. */
size_t kvi_synth_band(const kvi_config *c, const kvi_weight_tensor *t, uint64_t seed,
                      uint32_t row0, uint32_t n_rows, float *scratch, uint8_t *out,
                      uint8_t *scales);

/* ------------------------------------------------------------------ synth_tokenizer.c */

#define KVI_SYNTH_MAX_SPECIAL 9u

typedef struct kvi_synth_vocab {
    uint32_t n_ids;
    uint32_t n_special;
    struct {
        uint32_t    id;
        const char *text;
    } special[KVI_SYNTH_MAX_SPECIAL];
    /* made-up words, and how many of them with a blank in front, with a capital, with both; n_ids
     * = special + 256 bytes + these */
    uint32_t n_words;
    uint32_t n_variants[3];
} kvi_synth_vocab;

/* A vocabulary of vocab_size ids whose compressed size is engram_compressed_vocab; where that is 0
 * one is chosen. ERR_UNSUPPORTED if there is none. */
kvcsa_status kvi_synth_vocab_init(const kvi_config *c, kvi_synth_vocab *v, kvcsa_error *err);
uint32_t     kvi_synth_vocab_compressed(const kvi_synth_vocab *v);

/* ------------------------------------------------------------------ synth.c */

#define KVI_SYNTH_BUFFER_BYTES ((size_t)1 << 20)
#define KVI_SYNTH_KEPT_SCALES ((size_t)1 << 20) /* at most so many are kept from weight to scales */

typedef struct kvi_synth_out { /* a file that is being written */
    const kvi_fs             *fs;
    const kvcsa_allocator    *a;
    const kvcsa_synth_params *params;    /* progress */
    char                     *path;      /* [path_bytes]; the directory, a slash, room for a name */
    size_t                    path_bytes;
    size_t                    n_dir;     /* characters of path in front of the name */
    int                       fd;        /* -1 = none */
    uint8_t                  *buffer;    /* [KVI_SYNTH_BUFFER_BYTES] */
    size_t                    used;      /* of it */
    uint64_t                  n_payload; /* bytes of tensors so far */
    uint64_t                  n_total;
    kvcsa_status              st;        /* the first failure; after it nothing is written */
    kvcsa_error              *err;
} kvi_synth_out;

void kvi_synth_put(kvi_synth_out *o, const void *data, size_t n);
void kvi_synth_print(kvi_synth_out *o, const char *format, ...) KVI_PRINTF(2, 3);

/* tokenizer.json; synth_tokenizer.c. */
void kvi_synth_put_tokenizer(kvi_synth_out *o, const kvi_synth_vocab *v);

#endif
