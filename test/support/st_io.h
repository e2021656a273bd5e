/* A small safetensors reader and writer for tests and tools.
 *
 * It shares no code with src/format or src/model on purpose: what the library reads is checked with something else. The reader
 * treats the file as hostile: the header is bounded, offsets must tile the payload without gap or overlap, and shape, dtype
 * and byte count must agree. Payloads are copied, so each tensor's data is aligned to 16 bytes. */
#ifndef ST_IO_H
#define ST_IO_H

#include <stddef.h>
#include <stdint.h>

#define ST_MAX_DIMS 8

typedef struct st_tensor {
    const char *name;
    char        dtype[12];           /* "F32", "I32", "U8", ... */
    uint32_t    n_dims;
    uint64_t    shape[ST_MAX_DIMS];
    const void *data;                /* never NULL, also when n_bytes is 0 */
    size_t      n_bytes;
} st_tensor;

typedef struct st_file   st_file;
typedef struct st_writer st_writer;

/* NULL on failure, with one line in err (may be NULL). */
st_file *st_open(const char *path, char *err, size_t n_err);
st_file *st_parse(const void *bytes, size_t n, char *err, size_t n_err);
void     st_close(st_file *f);                            /* accepts NULL */

const st_tensor *st_find(const st_file *f, const char *name);   /* NULL = not there */
size_t           st_count(const st_file *f);
const st_tensor *st_at(const st_file *f, size_t i);             /* ascending name; NULL = out of range */

st_writer *st_create(void);                                     /* NULL = out of memory */
/* Copies. 0 = done, -1 = unknown dtype, duplicate name, too many dimensions, or out of memory. n_dims 0 is a scalar. */
int  st_add(st_writer *w, const char *name, const char *dtype, uint32_t n_dims, const uint64_t *shape, const void *data);
int  st_write(const st_writer *w, const char *path, char *err, size_t n_err);  /* 0 = done, -1 = failed */
void st_destroy(st_writer *w);                                  /* accepts NULL */

/* Whole file into memory (malloc, one extra byte that is 0); NULL = failed. Refuses more than `limit` bytes. */
char *st_slurp(const char *path, size_t limit, size_t *n, char *err, size_t n_err);

#endif
