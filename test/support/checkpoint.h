/* Copies of a checkpoint directory that a test may spoil. Files are links to the original until
 * they are edited. Every function fails the running CMocka test when it cannot do its work; none
 * touches the original. */
#ifndef TEST_CHECKPOINT_H
#define TEST_CHECKPOINT_H

#include <stddef.h>

#define T1_DIR "test/data/t1" /* tests run in the root of the tree */
#define TINY_DIR "examples/models/tiny"
#define RELEASE_CONFIG "test/data/v41-flash-config.json"

typedef struct checkpoint {
    char dir[256];
} checkpoint;

void checkpoint_copy(checkpoint *c, const char *from);
void checkpoint_remove(checkpoint *c);

/* Whole files; the result is malloc'd and has a NUL behind it. */
char *read_file(const char *path, size_t *n_bytes);
char *checkpoint_read(const checkpoint *c, const char *file, size_t *n_bytes);
void  checkpoint_write(const checkpoint *c, const char *file, const void *data, size_t n_bytes);
void  checkpoint_drop(const checkpoint *c, const char *file);
void checkpoint_cut(const checkpoint *c, const char *file, size_t n_bytes); /* keep so many bytes */

/* JSON text with one value replaced or added, or removed where value is NULL. path: keys or list
 * indices with '/' between them; value: JSON. malloc'd, terminated. */
char *edit_json(const char *text, size_t n_bytes, const char *path, const char *value);

void checkpoint_edit_config(const checkpoint *c, const char *path, const char *value);
void checkpoint_edit_index(const checkpoint *c, const char *path, const char *value);
/* The header of the shard that holds `tensor`; path is below the tensor ("dtype", "shape",
 * "shape/0"), "" = the tensor itself. */
void checkpoint_edit_tensor(const checkpoint *c, const char *tensor, const char *path,
                            const char *value);
/* Bytes of a tensor's data. */
void checkpoint_patch_data(const checkpoint *c, const char *tensor, size_t off, const void *data,
                           size_t n_bytes);
/* File name of the shard that the index gives for a tensor. */
void checkpoint_shard_of(const checkpoint *c, const char *tensor, char *out, size_t cap);

#endif
