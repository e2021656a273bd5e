/* safetensors shards and their table of tensors.
 *
 * (S1) Every tensor's bytes lie inside its shard, and the tensors of a shard cover its data part
 *      exactly once: no overlap, no hole, nothing behind the last one. (The format asks for it; a
 *      hole could carry anything.)
 * (S2) items[] is sorted by name and names are unique whenever a public function returns OK.
 * (S3) The strings of a shard live in its names block, as long as the table. Bytes of a shard that
 *      kvi_tensors_open_dir opened belong to the table; those of kvi_tensors_add_file stay the
 *      caller's.
 */
#include "model/safetensors.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/status.h"
#include "model/model_int.h"

#include <stdlib.h>
#include <sys/mman.h>

#define MAX_HEADER_BYTES ((uint64_t)100 << 20) /* the format's own limit */
#define MAX_INDEX_BYTES ((uint64_t)64 << 20)   /* the release's has 7.5 MB */
#define MAX_SHARD_BYTES ((uint64_t)1 << 46)
#define MAX_SHARDS 4096u
#define MAX_NAME_BYTES 512u

typedef struct shard {
    kvi_file file;    /* zeroed where the caller owns the bytes */
    char    *names;   /* the shard's name, then those of its tensors */
    size_t   n_names; /* bytes */
} shard;

struct kvi_tensors {
    kvcsa_allocator a;
    kvi_buf         items; /* kvi_tensor */
    size_t          n_items;
    kvi_buf         shards; /* shard */
    size_t          n_shards;
};

static const struct {
    const char *name;
    uint32_t    dtype;
    uint32_t    n_bytes;
} dtypes[] = {
    {"F32", KVI_ST_F32, 4},         {"BF16", KVI_ST_BF16, 2},       {"F16", KVI_ST_F16, 2},
    {"F8_E4M3", KVI_ST_F8_E4M3, 1}, {"F8_E8M0", KVI_ST_F8_E8M0, 1}, {"I8", KVI_ST_I8, 1},
    {"U8", KVI_ST_U8, 1},           {"I32", KVI_ST_I32, 4},         {"I64", KVI_ST_I64, 8},
};

const char *kvi_dtype_name(uint32_t dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].name;
    return "another dtype";
}

static kvi_tensor *items_of(const kvi_tensors *t)
{
    return t->items.data;
}

kvcsa_status kvi_tensors_create(const kvcsa_allocator *a, kvi_tensors **out, kvcsa_error *err)
{
    kvi_tensors *t = kvi_zalloc(a, sizeof *t);

    *out = NULL;
    if (!t)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "tensor table of %zu bytes", sizeof *t);
    t->a = *a;
    *out = t;
    return KVCSA_OK;
}

void kvi_tensors_destroy(kvi_tensors *t)
{
    kvcsa_allocator a;

    if (!t)
        return;
    a = t->a;
    for (size_t i = 0; i < t->n_shards; i++) {
        shard *s = (shard *)t->shards.data + i;

        kvi_file_close(&a, &s->file);
        kvi_free(&a, s->names, s->n_names);
    }
    kvi_buf_free(&a, &t->shards, sizeof(shard));
    kvi_buf_free(&a, &t->items, sizeof(kvi_tensor));
    kvi_free(&a, t, sizeof *t);
}

/* ------------------------------------------------------------------ one header */

typedef struct header { /* one shard while it is being read */
    const char    *shard;
    const uint8_t *data;       /* behind the header */
    uint64_t       data_off;   /* in the file */
    uint64_t       data_bytes; /* as far as the file goes */
    uint64_t       file_bytes;
} header;

static int has_control_character(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return 1;
    return 0;
}

static kvcsa_status parse_shape(const header *h, const char *name, const json_t *shape,
                                kvi_tensor *out, uint64_t *n_elements, kvcsa_error *err)
{
    size_t n = 1;

    if (!json_is_array(shape) || json_array_size(shape) > KVI_ST_MAX_DIMS)
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "%s: shape of %s must be a list of at most %u integers", h->shard, name,
                        KVI_ST_MAX_DIMS);
    out->n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < out->n_dims; i++) {
        const json_t *dim = json_array_get(shape, i);

        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return kvi_fail(err, KVCSA_ERR_FORMAT,
                            "%s: shape of %s: dimension %u is not an integer of 0 or more",
                            h->shard, name, i);
        out->shape[i] = (uint64_t)json_integer_value(dim);
        if (!kvi_mul_size(n, (size_t)out->shape[i], &n))
            return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: shape of %s has more than 2^64 elements",
                            h->shard, name);
    }
    *n_elements = n;
    return KVCSA_OK;
}

static kvcsa_status parse_offsets(const header *h, const char *name, const json_t *offsets,
                                  uint64_t *begin, uint64_t *end, kvcsa_error *err)
{
    const json_t *first = json_array_get(offsets, 0);
    const json_t *last = json_array_get(offsets, 1);

    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "%s: data_offsets of %s must be two integers, 0 <= begin <= end", h->shard,
                        name);
    *begin = (uint64_t)json_integer_value(first);
    *end = (uint64_t)json_integer_value(last);
    if (*end > h->data_bytes)
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "%s: %s lies at offset %llu..%llu behind the header of %llu bytes, the "
                        "file has only %llu bytes",
                        h->shard, name, (unsigned long long)*begin, (unsigned long long)*end,
                        (unsigned long long)h->data_off, (unsigned long long)h->file_bytes);
    return KVCSA_OK;
}

/* out->name is the JSON's string; the caller replaces it. */
static kvcsa_status parse_tensor(const header *h, const char *name, const json_t *info,
                                 kvi_tensor *out, kvcsa_error *err)
{
    const char  *dtype = json_string_value(json_object_get(info, "dtype"));
    uint32_t     element = 0;
    uint64_t     n_elements = 0;
    uint64_t     begin = 0;
    uint64_t     end = 0;
    size_t       want = 0;
    kvcsa_status st;

    memset(out, 0, sizeof *out);
    if (!name[0] || strlen(name) > MAX_NAME_BYTES || has_control_character(name))
        return kvi_fail(
            err, KVCSA_ERR_FORMAT,
            "%s: tensor name \"%.64s\" has %zu bytes, must have 1..%u and no control characters",
            h->shard, name, strlen(name), MAX_NAME_BYTES);
    if (!dtype)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: dtype of %s must be a string", h->shard, name);
    out->dtype = KVI_ST_OTHER;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, dtype) == 0) {
            out->dtype = dtypes[i].dtype;
            element = dtypes[i].n_bytes;
        }
    if ((st = parse_shape(h, name, json_object_get(info, "shape"), out, &n_elements, err)) !=
            KVCSA_OK ||
        (st = parse_offsets(h, name, json_object_get(info, "data_offsets"), &begin, &end, err)) !=
            KVCSA_OK)
        return st;
    if (element && (!kvi_mul_size((size_t)n_elements, element, &want) || want != end - begin))
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "%s: %s has %llu bytes of data, dtype %s and shape give %llu elements",
                        h->shard, name, (unsigned long long)(end - begin), dtype,
                        (unsigned long long)n_elements);
    out->name = name;
    out->data = h->data + begin;
    out->n_bytes = end - begin;
    return KVCSA_OK;
}

static int compare_place(const void *x, const void *y)
{
    const kvi_tensor *a = x;
    const kvi_tensor *b = y;

    if (a->data != b->data)
        return a->data < b->data ? -1 : 1;
    if (a->n_bytes != b->n_bytes)
        return a->n_bytes < b->n_bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int compare_name(const void *x, const void *y)
{
    return strcmp(((const kvi_tensor *)x)->name, ((const kvi_tensor *)y)->name);
}

/* (S1); sorts the tensors of the shard by place. */
static kvcsa_status check_cover(const header *h, kvi_tensor *items, size_t n, kvcsa_error *err)
{
    uint64_t at = 0;

    if (n > 1)
        qsort(items, n, sizeof *items, compare_place);
    for (size_t i = 0; i < n; i++) {
        const uint64_t begin = (uint64_t)(items[i].data - h->data);

        if (begin != at)
            return kvi_fail(err, KVCSA_ERR_FORMAT,
                            "%s: %s begins at offset %llu, must begin at %llu where %s ends (%s)",
                            h->shard, items[i].name, (unsigned long long)begin,
                            (unsigned long long)at, i ? items[i - 1].name : "the header",
                            begin < at ? "overlap" : "hole");
        at = begin + items[i].n_bytes;
    }
    if (at != h->data_bytes)
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "%s: %llu bytes behind the last tensor belong to none", h->shard,
                        (unsigned long long)(h->data_bytes - at));
    return KVCSA_OK;
}

static kvcsa_status check_metadata(const header *h, const json_t *meta, kvcsa_error *err)
{
    const char *key;
    json_t     *value;
    int         ok = json_is_object(meta);

    json_object_foreach((json_t *)(uintptr_t)meta, key, value) ok = ok && json_is_string(value);
    if (!ok)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: __metadata__ must be an object of strings",
                        h->shard);
    return KVCSA_OK;
}

/* Length and JSON of the header; *root is the caller's to free. */
static kvcsa_status read_header(const uint8_t *file, uint64_t file_bytes, header *h, json_t **root,
                                kvcsa_error *err)
{
    uint64_t n_header;

    *root = NULL;
    if (file_bytes < 8)
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "%s: file size is %llu, a safetensors file has at least 8 bytes", h->shard,
                        (unsigned long long)file_bytes);
    n_header = kvi_load_u64(file);
    if (n_header > MAX_HEADER_BYTES || n_header > file_bytes - 8)
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "%s: header length is %llu, limit %llu (file size %llu)", h->shard,
                        (unsigned long long)n_header, (unsigned long long)MAX_HEADER_BYTES,
                        (unsigned long long)file_bytes);
    if (n_header == 0 || file[8] != '{')
        return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: the header must begin with '{'", h->shard);
    h->data = file + 8 + n_header;
    h->data_off = 8 + n_header;
    h->data_bytes = file_bytes - 8 - n_header;
    h->file_bytes = file_bytes;
    return kvi_json_parse(file + 8, (size_t)n_header, h->shard, root, err);
}

/* Copy the names into one block of the shard, so that they outlive the JSON. */
static kvcsa_status keep_names(kvi_tensors *t, shard *s, const char *shard_name, kvi_tensor *items,
                               size_t n, kvcsa_error *err)
{
    size_t total = strlen(shard_name) + 1;
    char  *at;

    for (size_t i = 0; i < n; i++)
        total += strlen(items[i].name) + 1; /* names came from at most 100 MiB of text */
    if (!(s->names = kvi_alloc(&t->a, total)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "%s: %zu bytes of tensor names", shard_name, total);
    s->n_names = total;
    at = s->names;
    memcpy(at, shard_name, strlen(shard_name) + 1);
    at += strlen(shard_name) + 1;
    for (size_t i = 0; i < n; i++) {
        const size_t n_bytes = strlen(items[i].name) + 1;

        memcpy(at, items[i].name, n_bytes);
        items[i].name = at;
        items[i].shard = s->names;
        at += n_bytes;
    }
    return KVCSA_OK;
}

/* Appends; leaves the table unsorted. On failure the table is as before. */
static kvcsa_status add_unsorted(kvi_tensors *t, const uint8_t *file, uint64_t file_bytes,
                                 const char *shard_name, shard **added, kvcsa_error *err)
{
    kvcsa_status st;
    header       h = {.shard = shard_name};
    json_t      *root = NULL;
    json_t      *info;
    const char  *name;
    shard       *s;
    kvi_tensor  *items;
    size_t       n = 0;

    if ((st = read_header(file, file_bytes, &h, &root, err)) != KVCSA_OK)
        return st;
    n = json_object_size(root);
    if (!kvi_buf_reserve(&t->a, &t->shards, sizeof(shard), t->n_shards, t->n_shards + 1) ||
        !kvi_buf_reserve(&t->a, &t->items, sizeof(kvi_tensor), t->n_items, t->n_items + n + 1)) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "%s: table of %zu tensors", shard_name, t->n_items + n);
        goto done;
    }
    s = (shard *)t->shards.data + t->n_shards;
    items = items_of(t) + t->n_items;
    memset(s, 0, sizeof *s);
    n = 0;
    json_object_foreach(root, name, info)
    {
        if (strcmp(name, "__metadata__") == 0)
            st = check_metadata(&h, info, err);
        else
            st = parse_tensor(&h, name, info, &items[n++], err);
        if (st != KVCSA_OK)
            goto done;
    }
    if ((st = check_cover(&h, items, n, err)) != KVCSA_OK ||
        (st = keep_names(t, s, shard_name, items, n, err)) != KVCSA_OK)
        goto done;
    t->n_items += n;
    t->n_shards++;
    *added = s;
done:
    json_decref(root);
    return st;
}

/* (S2) */
static kvcsa_status sort_table(kvi_tensors *t, kvcsa_error *err)
{
    kvi_tensor *items = items_of(t);

    if (t->n_items > 1)
        qsort(items, t->n_items, sizeof *items, compare_name);
    for (size_t i = 1; i < t->n_items; i++)
        if (strcmp(items[i - 1].name, items[i].name) == 0)
            return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: tensor %s is in %s too", items[i].shard,
                            items[i].name, items[i - 1].shard);
    return KVCSA_OK;
}

kvcsa_status kvi_tensors_add_file(kvi_tensors *t, const uint8_t *file, uint64_t file_bytes,
                                  const char *shard_name, kvcsa_error *err)
{
    shard       *s = NULL;
    kvcsa_status st = add_unsorted(t, file, file_bytes, shard_name, &s, err);

    return st == KVCSA_OK ? sort_table(t, err) : st;
}

/* ------------------------------------------------------------------ a directory */

static kvcsa_status open_shard(kvi_tensors *t, const char *dir, const char *name, int read,
                               kvcsa_error *err)
{
    kvcsa_status st;
    kvi_file     file = {0};
    shard       *s = NULL;
    char        *path = kvi_path_join(&t->a, dir, name);

    if (!path)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "%s: the path", name);
    if ((st = kvi_file_open(&t->a, path, name, MAX_SHARD_BYTES, !read, &file, err)) == KVCSA_OK &&
        (st = add_unsorted(t, file.data, file.n_bytes, name, &s, err)) == KVCSA_OK)
        s->file = file;
    else
        kvi_file_close(&t->a, &file);
    kvi_strfree(&t->a, path);
    return st;
}

/* A shard is a file of this very directory: an index must not make us open anything else. */
static int is_plain_name(const char *name)
{
    return name[0] && strlen(name) <= 255 && !strchr(name, '/') && strcmp(name, ".") != 0 &&
           !strstr(name, "..") && !has_control_character(name);
}

/* The distinct shards of a weight map, as keys of a JSON object (a set with a seeded hash: no
 * quadratic surprise). */
static kvcsa_status collect_shards(json_t *map, json_t *set, const char *index_name,
                                   kvcsa_error *err)
{
    const char *tensor;
    json_t     *value;

    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);

        if (!name || !is_plain_name(name))
            return kvi_fail(err, KVCSA_ERR_FORMAT,
                            "%s: shard \"%.80s\" of %s must be a plain file name", index_name,
                            name ? name : "", tensor);
        if (!json_object_get(set, name) && json_object_set_new(set, name, json_null()) != 0)
            return kvi_fail(err, KVCSA_ERR_NOMEM, "%s: list of shards", index_name);
        if (json_object_size(set) > MAX_SHARDS)
            return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: more than %u shards", index_name,
                            MAX_SHARDS);
    }
    return KVCSA_OK;
}

/* Index and headers must say the same. */
static kvcsa_status check_index(kvi_tensors *t, json_t *map, const char *index_name,
                                kvcsa_error *err)
{
    const char *tensor;
    json_t     *value;

    json_object_foreach(map, tensor, value)
    {
        const kvi_tensor *found = kvi_tensors_find(t, tensor);

        if (!found)
            return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: tensor %s is not in %s", index_name, tensor,
                            json_string_value(value));
        if (strcmp(found->shard, json_string_value(value)) != 0)
            return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: tensor %s is in %s, the index says %s",
                            index_name, tensor, found->shard, json_string_value(value));
    }
    for (size_t i = 0; i < t->n_items; i++)
        if (!json_object_get(map, items_of(t)[i].name))
            return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: tensor %s of %s is not in the index",
                            index_name, items_of(t)[i].name, items_of(t)[i].shard);
    return KVCSA_OK;
}

static kvcsa_status open_indexed(kvi_tensors *t, const char *dir, const char *path, int read,
                                 kvcsa_error *err)
{
    static const char index_name[] = "model.safetensors.index.json";
    kvcsa_status      st;
    kvi_file          file = {0};
    json_t           *root = NULL;
    json_t           *set = NULL;
    json_t           *map;
    json_t           *unused;
    const char       *name;

    if ((st = kvi_file_open(&t->a, path, index_name, MAX_INDEX_BYTES, 0, &file, err)) != KVCSA_OK)
        return st;
    st = kvi_json_parse(file.data, (size_t)file.n_bytes, index_name, &root, err);
    kvi_file_close(&t->a, &file);
    if (st != KVCSA_OK)
        goto done;
    map = json_object_get(root, "weight_map");
    if (!json_is_object(map)) {
        st = kvi_fail(err, KVCSA_ERR_FORMAT, "%s: weight_map must be an object", index_name);
        goto done;
    }
    if (!(set = json_object())) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "%s: list of shards", index_name);
        goto done;
    }
    if ((st = collect_shards(map, set, index_name, err)) != KVCSA_OK)
        goto done;
    json_object_foreach(set, name, unused)
    {
        (void)unused;
        if ((st = open_shard(t, dir, name, read, err)) != KVCSA_OK)
            goto done;
    }
    if ((st = sort_table(t, err)) == KVCSA_OK)
        st = check_index(t, map, index_name, err);
done:
    json_decref(set);
    json_decref(root);
    return st;
}

kvcsa_status kvi_tensors_open_dir(const kvcsa_allocator *a, const char *dir, int read,
                                  kvi_tensors **out, kvcsa_error *err)
{
    kvcsa_status st;
    kvi_tensors *t = NULL;
    char        *path = NULL;

    *out = NULL;
    if ((st = kvi_tensors_create(a, &t, err)) != KVCSA_OK)
        return st;
    if (!(path = kvi_path_join(a, dir, "model.safetensors.index.json"))) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "path of the index");
    } else if (kvi_path_exists(path)) {
        st = open_indexed(t, dir, path, read, err);
    } else if ((st = open_shard(t, dir, "model.safetensors", read, err)) == KVCSA_OK) {
        st = sort_table(t, err);
    }
    kvi_strfree(a, path);
    if (st == KVCSA_OK)
        *out = t;
    else
        kvi_tensors_destroy(t);
    return st;
}

void kvi_tensors_advise(kvi_tensors *t, int random)
{
    for (size_t i = 0; i < t->n_shards; i++) {
        const kvi_file *file = &((shard *)t->shards.data + i)->file;

        if (file->mapped)
            (void)madvise(file->data, (size_t)file->n_bytes, random ? MADV_RANDOM : MADV_NORMAL);
    }
}

/* ------------------------------------------------------------------ look-up */

size_t kvi_tensors_count(const kvi_tensors *t)
{
    return t->n_items;
}

kvi_tensor *kvi_tensors_at(kvi_tensors *t, size_t i)
{
    return items_of(t) + i;
}

kvi_tensor *kvi_tensors_find(kvi_tensors *t, const char *name)
{
    kvi_tensor key;

    if (t->n_items == 0)
        return NULL;
    memset(&key, 0, sizeof key);
    key.name = name;
    return bsearch(&key, t->items.data, t->n_items, sizeof key, compare_name);
}
