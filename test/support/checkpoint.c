#include "support/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <unistd.h>

static const char index_name[] = "model.safetensors.index.json";

static void path_in(const checkpoint *c, const char *file, char *out, size_t cap)
{
    assert_true(snprintf(out, cap, "%s/%s", c->dir, file) < (int)cap);
}

/* ------------------------------------------------------------------ files */

void checkpoint_copy(checkpoint *c, const char *from)
{
    const char    *tmp = getenv("TMPDIR");
    char           base[PATH_MAX];
    DIR           *dir;
    struct dirent *e;

    assert_true(snprintf(c->dir, sizeof c->dir, "%s/kvcsa-test-XXXXXX",
                         tmp && *tmp ? tmp : "/tmp") < (int)sizeof c->dir);
    assert_non_null(mkdtemp(c->dir));
    assert_non_null(realpath(from, base));
    assert_non_null(dir = opendir(base));
    while ((e = readdir(dir))) {
        char target[PATH_MAX + 300];
        char link[PATH_MAX];

        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(target, sizeof target, "%s/%s", base, e->d_name);
        path_in(c, e->d_name, link, sizeof link);
        assert_int_equal(symlink(target, link), 0);
    }
    closedir(dir);
}

void checkpoint_remove(checkpoint *c)
{
    DIR           *dir = opendir(c->dir);
    struct dirent *e;

    assert_non_null(dir);
    while ((e = readdir(dir))) {
        char path[PATH_MAX];

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        path_in(c, e->d_name, path, sizeof path);
        if (unlink(path) != 0)
            assert_int_equal(rmdir(path), 0);
    }
    closedir(dir);
    assert_int_equal(rmdir(c->dir), 0);
}

char *read_file(const char *path, size_t *n_bytes)
{
    FILE *f = fopen(path, "rb");
    char *data;
    long  n;

    if (!f)
        fail_msg("cannot open %s", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    n = ftell(f);
    assert_true(n >= 0);
    rewind(f);
    assert_non_null(data = malloc((size_t)n + 1));
    assert_int_equal(fread(data, 1, (size_t)n, f), n);
    data[n] = '\0';
    fclose(f);
    *n_bytes = (size_t)n;
    return data;
}

char *checkpoint_read(const checkpoint *c, const char *file, size_t *n_bytes)
{
    char path[PATH_MAX];

    path_in(c, file, path, sizeof path);
    return read_file(path, n_bytes);
}

void checkpoint_write(const checkpoint *c, const char *file, const void *data, size_t n_bytes)
{
    char  path[PATH_MAX];
    FILE *f;

    path_in(c, file, path, sizeof path);
    (void)unlink(path); /* never write through a link */
    assert_non_null(f = fopen(path, "wb"));
    assert_int_equal(fwrite(data, 1, n_bytes, f), n_bytes);
    assert_int_equal(fclose(f), 0);
}

void checkpoint_drop(const checkpoint *c, const char *file)
{
    char path[PATH_MAX];

    path_in(c, file, path, sizeof path);
    assert_int_equal(unlink(path), 0);
}

void checkpoint_cut(const checkpoint *c, const char *file, size_t n_bytes)
{
    size_t n = 0;
    char  *data = checkpoint_read(c, file, &n);

    assert_true(n_bytes <= n);
    checkpoint_write(c, file, data, n_bytes);
    free(data);
}

/* ------------------------------------------------------------------ JSON */

static json_t *child_of(json_t *at, const char *key)
{
    return json_is_array(at) ? json_array_get(at, (size_t)strtoul(key, NULL, 10))
                             : json_object_get(at, key);
}

static void edit(json_t *root, const char *path, const char *value)
{
    char   *keys = strdup(path);
    char   *key = keys;
    char   *slash;
    json_t *at = root;
    json_t *what = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;

    assert_non_null(keys);
    if (value && !what)
        fail_msg("not JSON: %s", value);
    for (; (slash = strchr(key, '/')); key = slash + 1) {
        *slash = '\0';
        at = child_of(at, key);
        if (!at)
            fail_msg("no %s in %s", key, path);
    }
    if (!value)
        assert_int_equal(json_is_array(at) ? json_array_remove(at, (size_t)strtoul(key, NULL, 10))
                                           : json_object_del(at, key),
                         0);
    else if (json_is_array(at) && strtoul(key, NULL, 10) == json_array_size(at))
        assert_int_equal(json_array_append_new(at, what), 0);
    else if (json_is_array(at))
        assert_int_equal(json_array_set_new(at, (size_t)strtoul(key, NULL, 10), what), 0);
    else
        assert_int_equal(json_object_set_new(at, key, what), 0);
    free(keys);
}

char *edit_json(const char *text, size_t n_bytes, const char *path, const char *value)
{
    json_t *root = json_loadb(text, n_bytes, 0, NULL);
    char   *out;

    assert_non_null(root);
    edit(root, path, value);
    assert_non_null(out = json_dumps(root, JSON_COMPACT));
    json_decref(root);
    return out;
}

static void edit_file(const checkpoint *c, const char *file, const char *path, const char *value)
{
    size_t n = 0;
    char  *text = checkpoint_read(c, file, &n);
    char  *out = edit_json(text, n, path, value);

    checkpoint_write(c, file, out, strlen(out));
    free(out);
    free(text);
}

void checkpoint_edit_config(const checkpoint *c, const char *path, const char *value)
{
    edit_file(c, "config.json", path, value);
}

void checkpoint_edit_index(const checkpoint *c, const char *path, const char *value)
{
    edit_file(c, index_name, path, value);
}

/* ------------------------------------------------------------------ shards */

void checkpoint_shard_of(const checkpoint *c, const char *tensor, char *out, size_t cap)
{
    size_t      n = 0;
    char       *text = checkpoint_read(c, index_name, &n);
    json_t     *root = json_loadb(text, n, 0, NULL);
    const char *shard =
        json_string_value(json_object_get(json_object_get(root, "weight_map"), tensor));

    if (!shard)
        fail_msg("no tensor %s in the index", tensor);
    assert_true(snprintf(out, cap, "%s", shard) < (int)cap);
    json_decref(root);
    free(text);
}

void checkpoint_edit_tensor(const checkpoint *c, const char *tensor, const char *path,
                            const char *value)
{
    char     shard[256];
    char     full[512];
    size_t   n = 0;
    char    *file;
    char    *header;
    char    *out;
    uint64_t n_old = 0;
    uint64_t n_new;
    size_t   n_data;

    checkpoint_shard_of(c, tensor, shard, sizeof shard);
    file = checkpoint_read(c, shard, &n);
    memcpy(&n_old, file, sizeof n_old);
    assert_true(snprintf(full, sizeof full, "%s%s%s", tensor, *path ? "/" : "", path) <
                (int)sizeof full);
    header = edit_json(file + 8, (size_t)n_old, full, value);
    n_new = strlen(header);
    n_data = n - 8 - (size_t)n_old;
    assert_non_null(out = malloc(8 + (size_t)n_new + n_data));
    memcpy(out, &n_new, 8);
    memcpy(out + 8, header, (size_t)n_new);
    memcpy(out + 8 + n_new, file + 8 + n_old, n_data);
    checkpoint_write(c, shard, out, 8 + (size_t)n_new + n_data);
    free(out);
    free(header);
    free(file);
}

void checkpoint_patch_data(const checkpoint *c, const char *tensor, size_t off, const void *data,
                           size_t n_bytes)
{
    char     shard[256];
    size_t   n = 0;
    char    *file;
    uint64_t n_header = 0;
    json_t  *root;
    json_t  *offsets;
    size_t   at;

    checkpoint_shard_of(c, tensor, shard, sizeof shard);
    file = checkpoint_read(c, shard, &n);
    memcpy(&n_header, file, sizeof n_header);
    assert_non_null(root = json_loadb(file + 8, (size_t)n_header, 0, NULL));
    offsets = json_object_get(json_object_get(root, tensor), "data_offsets");
    at = 8 + (size_t)n_header + (size_t)json_integer_value(json_array_get(offsets, 0)) + off;
    assert_true(at + n_bytes <=
                8 + n_header + (size_t)json_integer_value(json_array_get(offsets, 1)));
    memcpy(file + at, data, n_bytes);
    checkpoint_write(c, shard, file, n);
    json_decref(root);
    free(file);
}
