/* Opening the tokenizers that the tests come with, whole or changed. Paths are relative to the
 * project. */
#ifndef TEST_TOKENIZER_FILES_H
#define TEST_TOKENIZER_FILES_H

#include "base/alloc.h"
#include "base/status.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

#define T1_FILE  "test/data/t1/tokenizer.json"
#define ODD_FILE "test/golden/tokenizer/odd-tokenizer.json"

static inline char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *data = NULL;
    long  size = 0;

    if (!f || fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) < 0)
        fail_msg("cannot read %s", path);
    rewind(f);
    data = malloc((size_t)size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)size, f), (size_t)size);
    fclose(f);
    *n = (size_t)size;
    return data;
}

static inline json_t *read_json(const char *path)
{
    json_error_t err;
    json_t      *root = json_load_file(path, 0, &err);

    if (!root)
        fail_msg("%s: %s", path, err.text);
    return root;
}

static inline kvcsa_status open_bytes(const kvcsa_allocator *a, const char *json, size_t n,
                                      kvi_tokenizer **t, kvcsa_error *err)
{
    kvi_error_clear(err);
    return kvi_tokenizer_open(a, json, n, "tokenizer.json", t, err);
}

static inline kvi_tokenizer *open_path(const kvcsa_allocator *a, const char *path)
{
    kvi_tokenizer *t = NULL;
    kvcsa_error    err;
    size_t         n = 0;
    char          *json = read_file(path, &n);

    if (open_bytes(a, json, n, &t, &err) != KVCSA_OK)
        fail_msg("%s: %s", path, err.text);
    free(json);
    return t;
}

static inline kvcsa_status open_json(const kvcsa_allocator *a, const json_t *root,
                                     kvi_tokenizer **t, kvcsa_error *err)
{
    char        *text = json_dumps(root, JSON_COMPACT);
    kvcsa_status st = open_bytes(a, text, strlen(text), t, err);

    free(text);
    return st;
}

static inline size_t encode(const kvi_tokenizer *t, const void *text, size_t n, uint32_t flags,
                            int32_t *ids, size_t cap)
{
    size_t      n_ids = 0;
    kvcsa_error err;

    if (kvi_tokenizer_encode(t, text, n, flags, ids, cap, &n_ids, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    return n_ids;
}

/* The ids' bytes are the text's. */
static inline void check_decodes(const kvi_tokenizer *t, const int32_t *ids, size_t n_ids,
                                 const uint8_t *text, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < n_ids; i++) {
        const uint8_t *bytes = NULL;
        size_t         len = 0;

        assert_true(kvi_tokenizer_bytes(t, ids[i], &bytes, &len));
        assert_true(len <= n - at);
        assert_memory_equal(bytes, text + at, len);
        at += len;
    }
    assert_int_equal(at, n);
}

#endif
