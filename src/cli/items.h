/* Items of `kvcsa needle` and `kvcsa need`: a file of JSON objects, one a line.
 *
 * A text is a string, or a list of token ids. Keys that nobody asks for are ignored; what is asked
 * for and is wrong is an error with the file and the line. */
#ifndef KVCSA_CLI_ITEMS_H
#define KVCSA_CLI_ITEMS_H

#include "cli.h"

typedef struct item_reader {
    const char             *command;
    const char             *file;
    const kvcsa_model      *model;
    const kvcsa_model_info *info;
    uint32_t                flags; /* KVCSA_TOKENIZE_* */
    cli_text                text;
    size_t                  at;    /* first byte that was not read */
    size_t                  line;  /* number of the line that was read last, from 1 */
} item_reader;

typedef struct item_place { /* tokens [begin, end); begin == end: there is none */
    size_t begin, end;
} item_place;

typedef struct item_places {
    item_place *items;
    size_t      n;
} item_places;

int  items_open(item_reader *r, const char *command, const char *file, const kvcsa_model *model,
                const kvcsa_model_info *info, int special);
void items_close(item_reader *r); /* accepts a zeroed one */

/* The next object, to be released by the caller; NULL at the end of the file. Empty lines are
 * skipped. */
int items_next(item_reader *r, json_t **item);

/* Prints "kvcsa COMMAND: FILE:LINE: ..."; returns CLI_FAILED. */
int items_fail(const item_reader *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Ids of item[key], which must be there unless `optional`; *out is empty then. */
int items_ids(const item_reader *r, const json_t *item, const char *key, int optional,
              cli_ids *out);
/* item[key] in min..max; `absent` if it is not there. */
int items_real(const item_reader *r, const json_t *item, const char *key, double min, double max,
               double absent, double *out);
int items_uint(const item_reader *r, const json_t *item, const char *key, uint64_t min,
               uint64_t max, uint64_t absent, uint64_t *out);

/* A document behind the model's start token: item[key] as it is, or one that is built:
 *
 *   "filler"   repeated as often as is needed,
 *   "length"   tokens of the whole, `n_behind` tokens behind it included,
 *   "before"   in front of the filler (optional),
 *   "needle"   stands at "depth" (0..1) of the filler (optional),
 *   "needles"  a list of {"text", "depth"} (optional); without depths they are spread evenly.
 *
 * Pieces are turned into tokens one by one. places: of the needle (n = 0 if there is none), or of
 * the needles if `many`. Free out->data and places->items in every case. */
int items_document(const item_reader *r, const json_t *item, const char *key, size_t n_behind,
                   int many, cli_ids *out, item_places *places);

#endif
