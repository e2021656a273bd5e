/* The results as JSON: a file that keeps, for each part, what its last run found. */
#ifndef BENCH_JSON_H
#define BENCH_JSON_H

#include "bench.h"

#include <jansson.h>

/* What the file holds, or an empty document; the machine is filled in anew. file may be NULL. */
json_t *bench_json_open(const char *file);
/* An empty part with date, commit and version. */
json_t *bench_json_part(int quick);
json_t *bench_json_rows(const bench_rows *list);
/* Nothing without a file. */
void    bench_json_save(json_t *root, const char *file);

#endif
