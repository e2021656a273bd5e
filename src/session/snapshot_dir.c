/* Snapshots in a directory: records lie in segments that are written once, a manifest for each name
 * says which of them are its snapshot.
 *
 * (D1) Whoever writes or removes holds the directory's lock (flock, exclusive); whoever loads holds
 *      it shared, so that no segment goes while it is read.
 * (D2) A manifest is renamed into place when the segments that it names are on the disk. A crash
 *      leaves the old manifest or the new one, and perhaps a segment that nobody names.
 * (D3) A segment goes when no manifest names it. A manifest that cannot be read may name any: then
 *      all stay.
 * (D4) A record of the directory is taken instead of written if its head and token ids are, byte by
 *      byte, those that would be written; the keys only say where to look.
 */
#include "session/snapshot_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/status.h"

/* ------------------------------------------------------------------ names */

/* 1 = the file is a segment. Only names that we would write. */
static int parse_segment_name(const char *name, uint64_t *number)
{
    char again[KVI_SEGMENT_NAME_BYTES];

    if (name[0] < '0' || name[0] > '9' || strlen(name) >= sizeof again)
        return 0;
    errno = 0;
    *number = strtoull(name, NULL, 10);
    if (errno || *number > (uint64_t)INT64_MAX)
        return 0;
    kvi_segment_name(*number, again);
    return strcmp(name, again) == 0;
}

static int has_suffix(const char *name, const char *suffix)
{
    const size_t n = strlen(name);
    const size_t m = strlen(suffix);

    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* ------------------------------------------------------------------ what a directory holds */

typedef struct place { /* of a record */
    kvi_hash128 key;
    uint64_t    segment;
    uint64_t    offset;
    uint64_t    n_bytes; /* 0 = an empty slot */
} place;

typedef struct catalogue {
    const kvi_fs          *fs;
    const kvcsa_allocator *a;
    const char            *dir;
    const char            *own;  /* file name of the manifest that is being replaced */
    char                  *path; /* [path_bytes] dir, a slash, and room for a name */
    size_t                 path_bytes;
    place                 *slots; /* [n_slots] by key; a power of two, at most half full */
    size_t                 n_slots;
    size_t                 n_places;
    kvi_buf                named; /* u64: segments that manifests name */
    size_t                 n_named;
    kvi_buf                segments; /* u64: those that are there */
    size_t                 n_segments;
    uint64_t               next;     /* number of a new one */
    int                    keep_all; /* (D3) */
} catalogue;

/* Path of a file of the directory, until the next call. */
static const char *path_of(catalogue *c, const char *name)
{
    const size_t n = strlen(c->dir) + 1;

    snprintf(c->path + n, c->path_bytes - n, "%s", name);
    return c->path;
}

static kvcsa_status init_catalogue(catalogue *c, kvcsa_error *err)
{
    c->path_bytes = strlen(c->dir) + 1 + NAME_MAX + 1;
    if (!(c->path = kvi_alloc(c->a, c->path_bytes)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "names of a directory");
    snprintf(c->path, c->path_bytes, "%s/", c->dir);
    return KVCSA_OK;
}

static void free_catalogue(catalogue *c)
{
    kvi_free(c->a, c->path, c->path_bytes);
    kvi_free(c->a, c->slots, c->n_slots * sizeof *c->slots);
    kvi_buf_free(c->a, &c->named, sizeof(uint64_t));
    kvi_buf_free(c->a, &c->segments, sizeof(uint64_t));
}

static kvcsa_status push_number(const kvcsa_allocator *a, kvi_buf *buf, size_t *n, uint64_t number,
                                kvcsa_error *err)
{
    uint64_t *list = buf->data;

    if (*n && list[*n - 1] == number)
        return KVCSA_OK;
    if (!kvi_buf_reserve(a, buf, sizeof(uint64_t), *n, *n + 1))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of %zu segments", *n + 1);
    list = buf->data;
    list[(*n)++] = number;
    return KVCSA_OK;
}

static place *find_slot(place *slots, size_t n_slots, kvi_hash128 key, uint64_t n_bytes)
{
    size_t i = key.lo & (n_slots - 1);

    while (slots[i].n_bytes &&
           !(kvi_hash128_equal(slots[i].key, key) && slots[i].n_bytes == n_bytes))
        i = (i + 1) & (n_slots - 1);
    return &slots[i];
}

static kvcsa_status grow_slots(catalogue *c, size_t n_places, kvcsa_error *err)
{
    size_t n = kvi_max_size(c->n_slots, 64);
    place *slots;

    while (n < 2 * n_places)
        n *= 2;
    if (n == c->n_slots)
        return KVCSA_OK;
    if (!(slots = kvi_zalloc(c->a, n * sizeof *slots)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "table of %zu records", n);
    for (size_t i = 0; i < c->n_slots; i++)
        if (c->slots[i].n_bytes)
            *find_slot(slots, n, c->slots[i].key, c->slots[i].n_bytes) = c->slots[i];
    kvi_free(c->a, c->slots, c->n_slots * sizeof *slots);
    c->slots = slots;
    c->n_slots = n;
    return KVCSA_OK;
}

/* Its records are known from now on; its segments are named unless it is going to be replaced. */
static kvcsa_status add_manifest(catalogue *c, const kvi_manifest *m, int replaced,
                                 kvcsa_error *err)
{
    kvcsa_status st = grow_slots(c, c->n_places + (size_t)m->h.n_records, err);

    for (uint64_t i = 0; i < m->h.n_records && st == KVCSA_OK; i++) {
        const kvi_snap_entry e = kvi_manifest_entry(m, i);
        place               *p = find_slot(c->slots, c->n_slots, e.key, e.n_bytes);

        if (!p->n_bytes) {
            *p = (place){e.key, e.segment, e.offset, e.n_bytes};
            c->n_places++;
        }
        if (!replaced)
            st = push_number(c->a, &c->named, &c->n_named, e.segment, err);
    }
    return st;
}

static kvcsa_status look_at_manifest(catalogue *c, const char *name, int known, kvcsa_error *err)
{
    const int    is_own = strcmp(name, c->own) == 0;
    kvi_manifest m = {0};
    const char  *path = path_of(c, name);
    kvcsa_status st;

    if (is_own && !known)
        return KVCSA_OK;
    st = kvi_manifest_read(c->fs, c->a, path, &m, is_own ? err : NULL);
    if (st == KVCSA_OK) {
        st = add_manifest(c, &m, is_own, err);
    } else if (is_own) { /* the caller of save is told, and can remove it */
        st = st == KVCSA_ERR_CORRUPT ? kvi_fail(err, KVCSA_ERR_FORMAT, "damaged manifest %s", path)
                                     : st;
    } else if (st == KVCSA_ERR_NOMEM) {
        kvi_fail(err, st, "manifest %s", path);
    } else {
        c->keep_all = 1;
        st = KVCSA_OK;
    }
    kvi_manifest_free(c->a, &m);
    return st;
}

/* Temporary manifests; whoever wrote them is gone, by (D1). */
static int is_litter(const char *name)
{
    for (const char *at = name; (at = strstr(at, KVI_MANIFEST_SUFFIX ".")); at++)
        if (kvi_tmp_is_name(name, name, (size_t)(at - name) + strlen(KVI_MANIFEST_SUFFIX)))
            return 1;
    return 0;
}

/* known 0: only what other manifests name is wanted. */
static kvcsa_status read_directory(catalogue *c, int known, kvcsa_error *err)
{
    kvcsa_status   st = KVCSA_OK;
    struct dirent *e;
    DIR           *dir = opendir(c->dir);
    uint64_t       number;

    if (!dir)
        return kvi_fs_fail(err, "read", c->dir);
    for (errno = 0; st == KVCSA_OK && (e = readdir(dir)); errno = 0) {
        if (parse_segment_name(e->d_name, &number)) {
            st = push_number(c->a, &c->segments, &c->n_segments, number, err);
            if (number >= c->next)
                c->next = number + 1;
        } else if (has_suffix(e->d_name, KVI_MANIFEST_SUFFIX)) {
            st = look_at_manifest(c, e->d_name, known, err);
        } else if (is_litter(e->d_name)) {
            c->fs->unlink(c->fs->user, path_of(c, e->d_name));
        }
    }
    if (st == KVCSA_OK && errno)
        st = kvi_fs_fail(err, "read", c->dir);
    closedir(dir);
    if (st == KVCSA_OK && c->next > (uint64_t)INT64_MAX)
        st = kvi_fail(err, KVCSA_ERR_FORMAT, "%s has no number left for a segment", c->dir);
    return st;
}

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* (D3) What cannot be removed stays for the next time. */
static void remove_unnamed(catalogue *c)
{
    const uint64_t *segments = c->segments.data;
    char            name[KVI_SEGMENT_NAME_BYTES];

    if (c->keep_all)
        return;
    if (c->n_named)
        qsort(c->named.data, c->n_named, sizeof(uint64_t), compare_numbers);
    for (size_t i = 0; i < c->n_segments; i++) {
        if (c->n_named &&
            bsearch(&segments[i], c->named.data, c->n_named, sizeof(uint64_t), compare_numbers))
            continue;
        kvi_segment_name(segments[i], name);
        c->fs->unlink(c->fs->user, path_of(c, name));
    }
}

/* ------------------------------------------------------------------ save */

typedef struct new_segment {
    kvi_sink sink;
    char    *path; /* [path_bytes]; NULL = there is none yet */
    size_t   path_bytes;
    uint64_t number;
} new_segment;

enum { LASTING = 0, PASSING = 1, N_NEW = 2 };

typedef struct dir_save {
    catalogue   c;
    kvi_save    v;
    new_segment out[N_NEW]; /* full blocks; what the next save will replace, so that it can go */
    uint8_t    *table;
    size_t      table_bytes;
    uint8_t    *probe; /* head and token ids of a record of the directory */
    size_t      probe_bytes;
    int         known_fd; /* segment that was looked into last */
    uint64_t    known_segment;
    uint64_t    n_written, n_shared;
} dir_save;

/* (D4) */
static int is_on_disk(dir_save *d, const place *p, const kvi_save_record *rec)
{
    const kvi_fs *fs = d->c.fs;
    const size_t  n = KVI_SNAP_HEAD_BYTES + rec->r.ids_bytes;
    uint8_t       head[KVI_SNAP_HEAD_BYTES];
    struct stat   sb;

    if (d->known_fd < 0 || d->known_segment != p->segment) {
        char name[KVI_SEGMENT_NAME_BYTES];

        if (d->known_fd >= 0)
            fs->close(fs->user, d->known_fd);
        kvi_segment_name(p->segment, name);
        d->known_fd = fs->open(fs->user, path_of(&d->c, name),
                               O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
        d->known_segment = p->segment;
    }
    if (d->known_fd < 0 || fstat(d->known_fd, &sb) != 0 ||
        (uint64_t)sb.st_size < p->offset + p->n_bytes ||
        kvi_fs_read_at(fs, d->known_fd, d->probe, n, p->offset) != (ssize_t)n)
        return 0;
    kvi_snap_record_encode(&rec->r, head);
    return memcmp(d->probe, head, sizeof head) == 0 &&
           (rec->r.ids_bytes == 0 ||
            memcmp(d->probe + sizeof head, rec->ids, rec->r.ids_bytes) == 0);
}

/* A new file of the next number: nobody names it yet, so it needs no renaming. */
static kvcsa_status begin_segment(dir_save *d, new_segment *out, kvcsa_error *err)
{
    const kvi_fs   *fs = d->c.fs;
    kvi_snap_header h = d->v.h;
    uint8_t         page[KVI_SNAP_UNIT];
    char            name[KVI_SEGMENT_NAME_BYTES];
    kvcsa_status    st;

    out->number = d->c.next;
    kvi_segment_name(out->number, name);
    if (!(out->path = kvi_snap_path(d->c.a, d->c.dir, name, "", &out->path_bytes)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "name of a segment");
    out->sink = (kvi_sink){.fs = fs, .path = out->path};
    out->sink.fd = fs->open(fs->user, out->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (out->sink.fd < 0)
        return kvi_fs_fail(err, "create", out->path);
    d->c.next++;
    /* how many records there will be is not known yet, and no reader asks */
    h.kind = KVI_SNAP_SEGMENT;
    h.sections = 0;
    h.flags = 0;
    h.n_tokens = h.window_lo = h.raw_lo = h.n_records = h.total_bytes = 0;
    h.raw_slots = h.raw_bytes = 0;
    h.exact_tokens = KVI_SNAP_EXACT;
    kvi_snap_header_encode(&h, page);
    st = kvi_sink_put(&out->sink, page, sizeof page, err);
    return st == KVCSA_OK ? kvi_sink_flush(&out->sink, err) : st;
}

static kvcsa_status save_record(dir_save *d, uint64_t i, kvcsa_error *err)
{
    kvi_save_record rec;
    kvi_snap_entry  e;
    new_segment    *out;
    const place    *p;
    kvcsa_status    st = KVCSA_OK;

    if ((st = kvi_save_make(&d->v, i, &rec, err)) != KVCSA_OK)
        return st;
    e = (kvi_snap_entry){.key = rec.r.key,
                         .n_bytes = kvi_snap_record_bytes(&rec.r),
                         .position = rec.r.position,
                         .kind = rec.r.kind,
                         .n_tokens = rec.r.n_tokens,
                         .flags = rec.r.flags};
    p = d->c.n_slots ? find_slot(d->c.slots, d->c.n_slots, e.key, e.n_bytes) : NULL;
    if (p && p->n_bytes && is_on_disk(d, p, &rec)) {
        e.segment = p->segment;
        e.offset = p->offset;
        d->n_shared++;
    } else {
        out = &d->out[e.kind == KVI_RECORD_BLOCK && !(e.flags & KVI_RECORD_PARTIAL) ? LASTING
                                                                                   : PASSING];
        if ((st = kvi_save_see(&d->v, &rec, err)) != KVCSA_OK ||
            (!out->path && (st = begin_segment(d, out, err)) != KVCSA_OK))
            return st;
        e.segment = out->number;
        e.offset = out->sink.n_bytes;
        st = kvi_sink_record(&out->sink, &rec, err);
        d->n_written++;
    }
    kvi_snap_entry_encode(&e, d->table + i * KVI_SNAP_ENTRY_BYTES);
    if (st == KVCSA_OK)
        st = push_number(d->c.a, &d->c.named, &d->c.n_named, e.segment, err);
    return st;
}

/* (D2): on the disk, their names too. */
static kvcsa_status end_segments(dir_save *d, kvcsa_error *err)
{
    const kvi_fs *fs = d->c.fs;
    const char   *path = NULL;
    kvcsa_status  st;

    for (int i = 0; i < N_NEW; i++) {
        if (!d->out[i].path)
            continue;
        path = d->out[i].path;
        if ((st = kvi_sink_flush(&d->out[i].sink, err)) != KVCSA_OK)
            return st;
        if (fs->fsync(fs->user, d->out[i].sink.fd) != 0)
            return kvi_fs_fail(err, "fsync", path);
    }
    if (path && kvi_fs_sync_dir(fs, path) != 0)
        return kvi_fs_fail(err, "sync the directory of", path);
    return KVCSA_OK;
}

static kvcsa_status write_manifest(dir_save *d, const char *path, int *in_place, kvcsa_error *err)
{
    const kvi_fs *fs = d->c.fs;
    kvi_sink      sink = {.fs = fs};
    uint8_t       page[KVI_SNAP_UNIT];
    kvi_tmp       tmp;
    kvcsa_status  st = kvi_tmp_create(&tmp, fs, d->c.a, path, err);

    if (st != KVCSA_OK)
        return st;
    d->v.h.table_sum = kvi_hash128_of(d->table, d->table_bytes, 0);
    kvi_snap_header_encode(&d->v.h, page);
    sink.fd = tmp.fd;
    sink.path = tmp.path;
    if ((st = kvi_sink_put(&sink, page, sizeof page, err)) != KVCSA_OK ||
        (st = kvi_sink_put(&sink, d->table, d->table_bytes, err)) != KVCSA_OK ||
        (st = kvi_sink_flush(&sink, err)) != KVCSA_OK) {
        kvi_tmp_drop(&tmp);
        return st;
    }
    return kvi_tmp_commit(&tmp, in_place, err);
}

static kvcsa_status alloc_save(dir_save *d, kvcsa_error *err)
{
    d->table_bytes = (size_t)kvi_snap_pad(d->v.h.n_records * KVI_SNAP_ENTRY_BYTES);
    d->probe_bytes = KVI_SNAP_HEAD_BYTES + d->v.h.block_tokens * sizeof(int32_t);
    d->table = kvi_zalloc(d->c.a, d->table_bytes);
    d->probe = kvi_alloc(d->c.a, d->probe_bytes);
    if (!d->table || !d->probe)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "manifest of %zu bytes", d->table_bytes);
    return KVCSA_OK;
}

/* keep: the manifest that names the new segments is in place. */
static void free_save(dir_save *d, int keep)
{
    const kvi_fs *fs = d->c.fs;

    if (d->known_fd >= 0)
        fs->close(fs->user, d->known_fd);
    for (int i = 0; i < N_NEW; i++) {
        new_segment *out = &d->out[i];

        if (out->path && out->sink.fd >= 0) {
            fs->close(fs->user, out->sink.fd);
            if (!keep)
                fs->unlink(fs->user, out->path);
        }
        kvi_free(d->c.a, out->path, out->path_bytes);
    }
    kvi_free(d->c.a, d->table, d->table_bytes);
    kvi_free(d->c.a, d->probe, d->probe_bytes);
    kvi_save_fini(&d->v);
    free_catalogue(&d->c);
}

kvcsa_status kvi_save_to_dir(kvcsa_session *s, const char *path, const char *name, uint32_t flags,
                             kvcsa_snapshot_info *info, kvcsa_error *err)
{
    const kvi_fs          *fs = kvi_pool_fs(s->pool);
    const kvcsa_allocator *a = &s->allocator;
    dir_save               d = {.c = {.fs = fs, .a = a, .dir = path, .next = 1},
                                .known_fd = -1};
    size_t                 n = 0;
    char                  *manifest = kvi_snap_path(a, path, name, KVI_MANIFEST_SUFFIX, &n);
    int                    in_place = 0;
    int                    lock = -1;
    kvcsa_status           st;

    if (!manifest)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "name of a manifest");
    d.c.own = manifest + strlen(path) + 1;
    if ((st = kvi_dir_open(fs, path, LOCK_EX, &lock, err)) != KVCSA_OK ||
        (st = init_catalogue(&d.c, err)) != KVCSA_OK ||
        (st = kvi_save_init(&d.v, s, flags, KVI_SNAP_MANIFEST, err)) != KVCSA_OK ||
        (st = read_directory(&d.c, 1, err)) != KVCSA_OK || (st = alloc_save(&d, err)) != KVCSA_OK)
        goto done;
    for (uint64_t i = 0; i < d.v.h.n_records && st == KVCSA_OK; i++)
        st = save_record(&d, i, err);
    if (st == KVCSA_OK)
        st = end_segments(&d, err);
    if (st == KVCSA_OK)
        st = write_manifest(&d, manifest, &in_place, err);
    if (st != KVCSA_OK)
        goto done;
    remove_unnamed(&d.c);
    kvi_save_count(&d.v,
                   d.out[LASTING].sink.n_bytes + d.out[PASSING].sink.n_bytes + KVI_SNAP_UNIT +
                       d.table_bytes,
                   d.n_written, d.n_shared, info);
done:
    free_save(&d, in_place);
    if (lock >= 0)
        fs->close(fs->user, lock);
    kvi_free(a, manifest, n);
    return st;
}

/* ------------------------------------------------------------------ remove */

static kvcsa_status remove_manifest(const kvi_fs *fs, const char *path, kvcsa_error *err)
{
    uint8_t   begin[KVI_SNAP_MAGIC_BYTES];
    const int fd = fs->open(fs->user, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    ssize_t   n;

    if (fd < 0)
        return kvi_fs_fail(err, "open", path);
    n = kvi_fs_read_at(fs, fd, begin, sizeof begin, 0);
    fs->close(fs->user, fd);
    if (n < 0)
        return kvi_fs_fail(err, "read", path);
    if (!kvi_snap_is_ours(begin, (size_t)n, KVI_SNAP_MANIFEST))
        return kvi_fail(err, KVCSA_ERR_FORMAT, "%s is not a manifest", path);
    if (fs->unlink(fs->user, path) != 0)
        return kvi_fs_fail(err, "remove", path);
    if (kvi_fs_sync_dir(fs, path) != 0)
        return kvi_fs_fail(err, "sync the directory of", path);
    return KVCSA_OK;
}

kvcsa_status kvi_dir_remove(const kvi_fs *fs, const kvcsa_allocator *a, const char *path,
                            const char *name, kvcsa_error *err)
{
    catalogue    c = {.fs = fs, .a = a, .dir = path};
    size_t       n = 0;
    char        *manifest = kvi_snap_path(a, path, name, KVI_MANIFEST_SUFFIX, &n);
    int          lock = -1;
    kvcsa_status st;

    if (!manifest)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "name of a manifest");
    c.own = manifest + strlen(path) + 1;
    if ((st = kvi_dir_open(fs, path, LOCK_EX, &lock, err)) == KVCSA_OK)
        st = remove_manifest(fs, manifest, err);
    /* it is gone; segments that cannot be removed now are left to the next save */
    if (st == KVCSA_OK && init_catalogue(&c, NULL) == KVCSA_OK &&
        read_directory(&c, 0, NULL) == KVCSA_OK)
        remove_unnamed(&c);
    free_catalogue(&c);
    if (lock >= 0)
        fs->close(fs->user, lock);
    kvi_free(a, manifest, n);
    return st;
}
