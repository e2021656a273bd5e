/* A checkpoint of random weights, written tensor by tensor.
 *
 * What is held in memory: the configuration, two buffers of a megabyte, 32 rows of the widest
 * matrix, and the header of one shard. Tensors are never listed: an iterator over the table of
 * model/weights.h says what is next, and a copy of it remembers where a shard begins.
 *
 * (W1) Files are created in the order of file_name() and never overwrite one that is there, so the
 *      first n_files names are ours and nothing else is.
 * (W2) config.json gets its name last, by a rename: a directory that has it holds everything,
 *      also when the process was killed or the power was lost.
 * (W3) After a failure the files of (W1) are removed, and the directory if we made it.
 */
#include "model/synth.h"

#include "base/checked.h"
#include "model/engram_hash.h"
#include "model/layer_plan.h"
#include "model/model_int.h"
#include "model/synth_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_CONFIG_BYTES ((uint64_t)16 << 20)
#define MAX_NAME 64 /* of a file, with the 0 */
#define DEFAULT_SHARD_BYTES ((uint64_t)4 << 30)

typedef struct writer {
    kvi_synth_out    out;
    kvcsa_allocator  a;
    kvi_config       config;
    kvi_synth_vocab  vocab;
    char            *config_text; /* u8 [config_bytes], from libc: jansson's */
    size_t           config_bytes;
    kvcsa_synth_info info;
    uint64_t         shard_bytes;
    size_t           band_elements; /* of the largest band */
    float           *scratch;       /* f32 [band_elements] */
    uint8_t         *band;          /* u8 [4 * band_elements] */
    uint8_t         *scales;        /* u8 [KVI_SYNTH_KEPT_SCALES], of the weight before */
    char            *target;        /* what config.json.tmp is renamed to */
    uint32_t         n_files;       /* (W1) */
    int              made_tmp;
    int              made_directory;
} writer;

/* ------------------------------------------------------------------ output */

/* Full, or the end of a file. The caller is asked here whether to go on. */
static void flush(kvi_synth_out *o)
{
    struct iovec piece = {.iov_base = o->buffer, .iov_len = o->used};

    if (o->st != KVCSA_OK)
        return;
    if (kvi_fs_write_all(o->fs, o->fd, &piece, 1) != 0)
        o->st = kvi_fs_fail(o->err, "write", o->path);
    o->used = 0;
    if (o->st == KVCSA_OK && o->params->progress &&
        o->params->progress(o->params->user, o->n_payload, o->n_total))
        o->st = kvi_fail(o->err, KVCSA_ERR_CANCELLED, "cancelled by the progress function");
}

void kvi_synth_put(kvi_synth_out *o, const void *data, size_t n)
{
    const uint8_t *p = data;

    while (n > 0 && o->st == KVCSA_OK) {
        const size_t part = kvi_min_size(n, KVI_SYNTH_BUFFER_BYTES - o->used);

        memcpy(o->buffer + o->used, p, part);
        o->used += part;
        p += part;
        n -= part;
        if (o->used == KVI_SYNTH_BUFFER_BYTES)
            flush(o);
    }
}

void kvi_synth_print(kvi_synth_out *o, const char *format, ...)
{
    char    text[512]; /* the longest is an expression of the tokenizer, about 250 */
    va_list args;
    int     n;

    va_start(args, format);
    n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    KVI_ASSERT(n >= 0 && n < (int)sizeof text);
    kvi_synth_put(o, text, (size_t)n);
}

/* ------------------------------------------------------------------ files */

/* Shards, then these three. */
static void file_name(const writer *w, uint32_t i, char out[MAX_NAME])
{
    static const char *const others[] = {"model.safetensors.index.json", "tokenizer.json",
                                         "config.json"};
    const uint32_t           n = w->info.n_shards;

    if (i < n)
        (void)snprintf(out, MAX_NAME, "model-%05u-of-%05u.safetensors", i + 1, n);
    else
        (void)snprintf(out, MAX_NAME, "%s", others[i - n]);
}

static void set_name(writer *w, const char *name)
{
    (void)snprintf(w->out.path + w->out.n_dir, w->out.path_bytes - w->out.n_dir, "%s", name);
}

static void open_file(writer *w, const char *name)
{
    kvi_synth_out *o = &w->out;

    if (o->st != KVCSA_OK)
        return;
    set_name(w, name);
    o->fd = o->fs->open(o->fs->user, o->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (o->fd < 0)
        o->st = errno == EEXIST ? kvi_fail(o->err, KVCSA_ERR_ARG,
                                           "%s is there already; nothing is overwritten", o->path)
                                : kvi_fs_fail(o->err, "create", o->path);
}

static void close_file(writer *w)
{
    kvi_synth_out *o = &w->out;

    if (o->fd < 0)
        return;
    if (o->used)
        flush(o);
    o->used = 0;
    if (o->st == KVCSA_OK && o->fs->fsync(o->fs->user, o->fd) != 0)
        o->st = kvi_fs_fail(o->err, "fsync", o->path);
    if (o->fs->close(o->fs->user, o->fd) != 0 && o->st == KVCSA_OK)
        o->st = kvi_fs_fail(o->err, "close", o->path);
    o->fd = -1;
}

static void begin_file(writer *w)
{
    char name[MAX_NAME];

    file_name(w, w->n_files, name);
    open_file(w, name);
    w->n_files += w->out.fd >= 0;
}

/* ------------------------------------------------------------------ shards */

/* Tensors of the shard that begins at `it`, at least one; 0 = there are no more. `it` moves to its
 * end. */
static uint32_t next_shard(const writer *w, kvi_weight_iter *it, uint64_t *n_bytes)
{
    kvi_weight_iter   ahead = *it;
    kvi_weight_tensor t;
    uint32_t          n = 0;

    *n_bytes = 0;
    while (kvi_weight_next(&ahead, &t)) {
        const uint64_t bytes = kvi_weight_bytes(&t);

        if (n > 0 && bytes > w->shard_bytes - kvi_min_size(*n_bytes, w->shard_bytes))
            break;
        *n_bytes += bytes;
        n++;
        *it = ahead;
    }
    return n;
}

/* What there is to write. */
static void count(writer *w)
{
    kvi_weight_iter   it = kvi_weight_first(&w->config);
    kvi_weight_tensor t;
    uint64_t          bytes;
    uint32_t          n;

    while (kvi_weight_next(&it, &t)) {
        const size_t rows = kvi_min_size(t.rows, KVI_SYNTH_BAND_ROWS);

        w->band_elements = kvi_max_size(w->band_elements, rows * t.cols);
    }
    it = kvi_weight_first(&w->config);
    while ((n = next_shard(w, &it, &bytes)) > 0) {
        w->info.n_tensors += n;
        w->info.n_shards++;
        w->info.total_bytes += bytes;
    }
}

/* Grows by what is printed to it. */
typedef struct text {
    kvi_buf buf;
    size_t  n;
} text;

static int add_text(const kvcsa_allocator *a, text *t, const char *s)
{
    const size_t n = strlen(s);

    if (!kvi_buf_reserve(a, &t->buf, 1, t->n, t->n + n))
        return 0;
    memcpy((char *)t->buf.data + t->n, s, n);
    t->n += n;
    return 1;
}

/* The header: u64 length, JSON, blanks up to a multiple of 8. */
static void put_header(writer *w, kvi_weight_iter it, uint32_t n_tensors)
{
    kvi_synth_out    *o = &w->out;
    text              header = {0};
    kvi_weight_tensor t;
    uint64_t          at = 0;
    uint64_t          length;
    int               ok = add_text(o->a, &header, "{\"__metadata__\":{\"format\":\"pt\"}");

    for (uint32_t i = 0; i < n_tensors && ok && kvi_weight_next(&it, &t); i++) {
        const uint64_t end = at + kvi_weight_bytes(&t);
        char           second[24] = "";
        char           entry[256];

        if (t.n_dims > 1)
            (void)snprintf(second, sizeof second, ",%" PRIu64, t.shape[1]);
        (void)snprintf(entry, sizeof entry,
                       ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64 "%s],"
                       "\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                       t.name, kvi_dtype_name(t.dtype), t.shape[0], second, at, end);
        ok = add_text(o->a, &header, entry);
        at = end;
    }
    ok = ok && add_text(o->a, &header, "}");
    while (ok && header.n % 8)
        ok = add_text(o->a, &header, " ");
    length = header.n;
    if (!ok && o->st == KVCSA_OK)
        o->st = kvi_fail(o->err, KVCSA_ERR_NOMEM, "header of %u tensors", n_tensors);
    kvi_synth_put(o, &length, sizeof length);
    kvi_synth_put(o, header.buf.data, header.n);
    kvi_buf_free(o->a, &header.buf, 1);
}

/* Scales are made with their weight and kept for the next tensor, unless there are too many to keep
 * (tables of Engram): then they are made from the same numbers once more. */
static void put_tensor(writer *w, const kvi_weight_tensor *t)
{
    kvi_synth_out *o = &w->out;
    const uint64_t height = t->kind == KVI_W_FP8 ? KVI_SYNTH_BAND_ROWS : 1; /* of a tile */
    const uint64_t n_scales = kvi_div_up(t->rows, height) * (t->cols / 32);
    const int      keep = n_scales <= KVI_SYNTH_KEPT_SCALES;
    uint8_t       *scales = keep ? w->scales : NULL;

    if (t->is_scale && keep) {
        o->n_payload += kvi_weight_bytes(t);
        kvi_synth_put(o, scales, (size_t)kvi_weight_bytes(t));
        return;
    }
    for (uint64_t row = 0; row < t->rows && o->st == KVCSA_OK; row += KVI_SYNTH_BAND_ROWS) {
        const uint32_t n_rows = (uint32_t)kvi_min_size(KVI_SYNTH_BAND_ROWS, t->rows - row);
        const size_t   n = kvi_synth_band(&w->config, t, o->params->seed, (uint32_t)row, n_rows,
                                          w->scratch, w->band, scales);

        o->n_payload += n;
        kvi_synth_put(o, w->band, n);
        if (scales)
            scales += kvi_div_up(n_rows, height) * (t->cols / 32);
    }
}

static void write_shards(writer *w)
{
    kvi_weight_iter   it = kvi_weight_first(&w->config);
    kvi_weight_iter   end = it;
    kvi_weight_tensor t;
    uint64_t          bytes;
    uint32_t          n;

    while (w->out.st == KVCSA_OK && (n = next_shard(w, &end, &bytes)) > 0) {
        begin_file(w);
        put_header(w, it, n);
        for (uint32_t i = 0; i < n && w->out.st == KVCSA_OK && kvi_weight_next(&it, &t); i++)
            put_tensor(w, &t);
        close_file(w);
        it = end;
    }
}

static void write_index(writer *w)
{
    kvi_synth_out    *o = &w->out;
    kvi_weight_iter   it = kvi_weight_first(&w->config);
    kvi_weight_iter   end = it;
    kvi_weight_tensor t;
    uint64_t          bytes;
    char              name[MAX_NAME];

    begin_file(w);
    kvi_synth_print(o, "{\"metadata\": {\"total_size\": %" PRIu64 "},\n\"weight_map\": {\n",
                    w->info.total_bytes);
    for (uint32_t shard = 0; o->st == KVCSA_OK && shard < w->info.n_shards; shard++) {
        const uint32_t n = next_shard(w, &end, &bytes);

        file_name(w, shard, name);
        for (uint32_t i = 0; i < n && kvi_weight_next(&it, &t); i++)
            kvi_synth_print(o, "%s\"%s\": \"%s\"", shard || i ? ",\n" : "", t.name, name);
    }
    kvi_synth_print(o, "}}\n");
    close_file(w);
}

/* ------------------------------------------------------------------ the other files */

static void write_tokenizer(writer *w)
{
    begin_file(w);
    kvi_synth_put_tokenizer(&w->out, &w->vocab);
    close_file(w);
}

/* (W2) */
static void write_config(writer *w)
{
    static const char tmp[] = "config.json.tmp";
    kvi_synth_out    *o = &w->out;
    char              name[MAX_NAME];

    open_file(w, tmp);
    w->made_tmp = o->fd >= 0;
    kvi_synth_put(o, w->config_text, w->config_bytes);
    close_file(w);
    if (o->st == KVCSA_OK && kvi_fs_sync_dir(o->fs, o->path) != 0)
        o->st = kvi_fs_fail(o->err, "sync the directory of", o->path);
    if (o->st != KVCSA_OK)
        return;
    file_name(w, w->n_files, name);
    (void)snprintf(w->target, o->path_bytes, "%.*s%s", (int)o->n_dir, o->path, name);
    if (o->fs->rename(o->fs->user, o->path, w->target) != 0) {
        o->st = kvi_fs_fail(o->err, "rename", o->path);
        return;
    }
    w->made_tmp = 0;
    w->n_files++;
    if (kvi_fs_sync_dir(o->fs, o->path) != 0)
        o->st = kvi_fs_fail(o->err, "sync the directory of", o->path);
}

/* (W3) */
static void remove_all(writer *w)
{
    kvi_synth_out *o = &w->out;
    char           name[MAX_NAME];

    if (w->made_tmp)
        o->fs->unlink(o->fs->user, o->path);
    while (w->n_files > 0) {
        file_name(w, --w->n_files, name);
        set_name(w, name);
        o->fs->unlink(o->fs->user, o->path);
    }
    set_name(w, "");
    if (w->made_directory)
        (void)rmdir(o->path);
}

/* ------------------------------------------------------------------ the configuration */

/* Parse, and what opening the model would find wrong with it. */
static kvcsa_status check_config(writer *w, const char *json, size_t n_bytes, const char *name,
                                 kvcsa_error *err)
{
    kvi_engram_hash hash = {0};
    kvi_plan        plan = {0};
    kvi_config     *c = &w->config;
    kvcsa_status    st = kvi_config_parse(json, n_bytes, name, c, err);

    if (st != KVCSA_OK)
        return st;
    if (strcmp(c->architecture, "DeepseekV41ForCausalLM") != 0)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "%s: architectures is \"%s\", checkpoints are written for "
                        "\"DeepseekV41ForCausalLM\"",
                        name, c->architecture);
    if ((st = kvi_layer_plan_build(c, 0, &w->a, &plan, err)) == KVCSA_OK)
        st = kvi_engram_hash_init(&hash, c, 0, &w->a, err);
    kvi_engram_hash_fini(&hash, c, &w->a);
    kvi_layer_plan_fini(&plan, &w->a);
    return st;
}

/* A configuration with Engram and without the size of the compressed vocabulary is for us to
 * complete: text_config, to which it is added, else NULL. */
static json_t *find_incomplete(json_t *root)
{
    json_t *text_config = json_object_get(root, "text_config");

    if (json_array_size(json_object_get(text_config, "engram_layer_ids")) == 0 ||
        json_is_integer(json_object_get(text_config, "engram_compressed_vocab_size")))
        return NULL;
    return json_is_object(text_config) ? text_config : NULL;
}

/* root with that size, as w->config_text. */
static kvcsa_status set_compressed(writer *w, json_t *root, json_t *text_config, uint32_t size,
                                   kvcsa_error *err)
{
    free(w->config_text);
    w->config_text = NULL;
    if (json_object_set_new(text_config, "engram_compressed_vocab_size", json_integer(size)) == 0)
        w->config_text = json_dumps(root, JSON_INDENT(1));
    if (!w->config_text)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "text of the configuration");
    w->config_bytes = strlen(w->config_text);
    return KVCSA_OK;
}

static kvcsa_status complete_config(writer *w, json_t *root, json_t *text_config, const char *name,
                                    kvcsa_error *err)
{
    kvcsa_status st = set_compressed(w, root, text_config, 1, err);

    if (st != KVCSA_OK ||
        (st = check_config(w, w->config_text, w->config_bytes, name, err)) != KVCSA_OK)
        return st;
    w->config.engram_compressed_vocab = 0; /* = choose */
    if ((st = kvi_synth_vocab_init(&w->config, &w->vocab, err)) != KVCSA_OK)
        return st;
    w->config.engram_compressed_vocab = kvi_synth_vocab_compressed(&w->vocab);
    return set_compressed(w, root, text_config, w->config.engram_compressed_vocab, err);
}

static kvcsa_status load_config(writer *w, const char *path, kvcsa_error *err)
{
    const char  *slash = strrchr(path, '/');
    const char  *name = slash ? slash + 1 : path;
    kvi_file     file = {0};
    json_t      *root = NULL;
    json_t      *incomplete;
    kvcsa_status st = kvi_file_open(&w->a, path, name, MAX_CONFIG_BYTES, 0, &file, err);

    if (st != KVCSA_OK)
        return st;
    if ((st = kvi_json_parse(file.data, (size_t)file.n_bytes, name, &root, err)) != KVCSA_OK)
        goto done;
    if ((incomplete = find_incomplete(root))) {
        st = complete_config(w, root, incomplete, name, err);
        goto done;
    }
    if ((st = check_config(w, (const char *)file.data, (size_t)file.n_bytes, name, err)) !=
            KVCSA_OK ||
        (st = kvi_synth_vocab_init(&w->config, &w->vocab, err)) != KVCSA_OK)
        goto done;
    if ((w->config_text = malloc((size_t)file.n_bytes))) {
        memcpy(w->config_text, file.data, (size_t)file.n_bytes);
        w->config_bytes = (size_t)file.n_bytes;
    } else {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "text of the configuration");
    }
done:
    json_decref(root);
    kvi_file_close(&w->a, &file);
    return st;
}

/* ------------------------------------------------------------------ all of it */

static kvcsa_status prepare_directory(writer *w, const char *directory, kvcsa_error *err)
{
    const size_t   n = strlen(directory);
    kvi_synth_out *o = &w->out;

    o->n_dir = n + 1;
    o->path_bytes = n + 1 + MAX_NAME;
    if (!(o->path = kvi_alloc(&w->a, o->path_bytes)) ||
        !(w->target = kvi_alloc(&w->a, o->path_bytes)) ||
        !(o->buffer = kvi_alloc(&w->a, KVI_SYNTH_BUFFER_BYTES)) ||
        !(w->scratch = kvi_alloc(&w->a, w->band_elements * sizeof *w->scratch)) ||
        !(w->band = kvi_alloc(&w->a, w->band_elements * sizeof *w->scratch)) ||
        !(w->scales = kvi_alloc(&w->a, KVI_SYNTH_KEPT_SCALES)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "buffers for rows of %zu weights", w->band_elements);
    memcpy(o->path, directory, n);
    o->path[n] = '/';
    set_name(w, "config.json");
    if (kvi_path_exists(o->path))
        return kvi_fail(err, KVCSA_ERR_ARG, "%s is there already; nothing is overwritten", o->path);
    if (mkdir(directory, 0777) == 0)
        w->made_directory = 1;
    else if (errno != EEXIST)
        return kvi_fs_fail(err, "create", directory);
    return KVCSA_OK;
}

static void fini(writer *w)
{
    kvi_synth_out *o = &w->out;

    kvi_free(&w->a, o->path, o->path_bytes);
    kvi_free(&w->a, w->target, o->path_bytes);
    kvi_free(&w->a, o->buffer, KVI_SYNTH_BUFFER_BYTES);
    kvi_free(&w->a, w->scratch, w->band_elements * sizeof *w->scratch);
    kvi_free(&w->a, w->band, w->band_elements * sizeof *w->scratch);
    kvi_free(&w->a, w->scales, KVI_SYNTH_KEPT_SCALES);
    free(w->config_text);
}

static kvcsa_status write_all(writer *w, const char *directory, kvcsa_error *err)
{
    kvi_synth_out *o = &w->out;
    kvcsa_status   st = prepare_directory(w, directory, err);

    if (st != KVCSA_OK)
        return st;
    o->n_total = w->info.total_bytes;
    write_shards(w);
    write_index(w);
    write_tokenizer(w);
    write_config(w);
    if (o->st == KVCSA_OK && w->made_directory && kvi_fs_sync_dir(o->fs, directory) != 0)
        o->st = kvi_fs_fail(err, "sync the directory of", directory);
    if (o->st != KVCSA_OK)
        remove_all(w);
    return o->st;
}

kvcsa_status kvi_synth_checkpoint(const char *config, const char *directory,
                                  const kvcsa_synth_params *params, const kvi_fs *fs,
                                  kvcsa_synth_info *info, kvcsa_error *err)
{
    kvcsa_allocator a;
    kvcsa_status    st;
    writer         *w;

    if ((st = kvi_allocator_import(params->allocator, &a, err)) != KVCSA_OK)
        return st;
    if (!(w = kvi_zalloc(&a, sizeof *w)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "writer of %zu bytes", sizeof *w);
    w->a = a;
    w->out = (kvi_synth_out){.fs = fs, .a = &w->a, .fd = -1, .err = err, .params = params};
    w->shard_bytes = params->shard_bytes ? params->shard_bytes : DEFAULT_SHARD_BYTES;
    w->info.struct_size = sizeof w->info;
    if ((st = load_config(w, config, err)) == KVCSA_OK) {
        count(w);
        st = directory ? write_all(w, directory, err) : KVCSA_OK;
    }
    if (st == KVCSA_OK)
        *info = w->info;
    fini(w);
    kvi_free(&a, w, sizeof *w);
    return st;
}
