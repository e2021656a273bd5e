/* Names and manifests of a directory of snapshots: see snapshot_dir.c. */
#include "session/snapshot_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/status.h"

/* ------------------------------------------------------------------ names */

void kvi_segment_name(uint64_t number, char *name)
{
    snprintf(name, KVI_SEGMENT_NAME_BYTES, "%06" PRIu64 KVI_SEGMENT_SUFFIX, number);
}

char *kvi_snap_path(const kvcsa_allocator *a, const char *dir, const char *name, const char *suffix,
                    size_t *n_bytes)
{
    char *path;

    *n_bytes = strlen(dir) + 1 + strlen(name) + strlen(suffix) + 1;
    if ((path = kvi_alloc(a, *n_bytes)))
        snprintf(path, *n_bytes, "%s/%s%s", dir, name, suffix);
    return path;
}

kvcsa_status kvi_dir_open(const kvi_fs *fs, const char *path, int op, int *out, kvcsa_error *err)
{
    const int    fd = fs->open(fs->user, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    kvcsa_status st = KVCSA_OK;
    int          rc = 0;

    *out = -1;
    if (fd < 0)
        return kvi_fs_fail(err, "open", path);
    do
        rc = flock(fd, op);
    while (rc != 0 && errno == EINTR);
    if (rc != 0 && op == LOCK_EX) { /* a reader does without where there are no locks */
        st = kvi_fs_fail(err, "lock", path);
        fs->close(fs->user, fd);
        return st;
    }
    *out = fd;
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ manifests */

void kvi_manifest_free(const kvcsa_allocator *a, kvi_manifest *m)
{
    kvi_free(a, m->table, m->table_bytes);
    *m = (kvi_manifest){0};
}

kvi_snap_entry kvi_manifest_entry(const kvi_manifest *m, uint64_t i)
{
    kvi_snap_entry e;

    (void)kvi_snap_entry_decode(m->table + i * KVI_SNAP_ENTRY_BYTES, &m->h, i, &e, NULL);
    return e;
}

static kvcsa_status read_table(const kvi_fs *fs, const kvcsa_allocator *a, int fd, const char *path,
                               kvi_manifest *m, kvcsa_error *err)
{
    const uint64_t want = kvi_snap_pad(m->h.n_records * KVI_SNAP_ENTRY_BYTES);
    kvi_snap_entry e;
    struct stat    sb;
    kvcsa_status   st = KVCSA_OK;
    ssize_t        n;

    if (fstat(fd, &sb) != 0)
        return kvi_fs_fail(err, "read", path);
    if ((uint64_t)sb.st_size < KVI_SNAP_UNIT + want)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "truncated snapshot: manifest is %lld bytes of %llu",
                        (long long)sb.st_size, (unsigned long long)(KVI_SNAP_UNIT + want));
    if (!(m->table = kvi_alloc(a, (size_t)want)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "manifest of %llu bytes", (unsigned long long)want);
    m->table_bytes = (size_t)want;
    if ((n = kvi_fs_read_at(fs, fd, m->table, m->table_bytes, KVI_SNAP_UNIT)) < 0)
        return kvi_fs_fail(err, "read", path);
    if ((size_t)n < m->table_bytes)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "truncated snapshot: manifest");
    if (!kvi_hash128_equal(m->h.table_sum, kvi_hash128_of(m->table, m->table_bytes, 0)))
        return kvi_fail(err, KVCSA_ERR_CORRUPT, "snapshot manifest: checksum of the table differs");
    for (uint64_t i = 0; i < m->h.n_records && st == KVCSA_OK; i++)
        st = kvi_snap_entry_decode(m->table + i * KVI_SNAP_ENTRY_BYTES, &m->h, i, &e, err);
    return st;
}

kvcsa_status kvi_manifest_read(const kvi_fs *fs, const kvcsa_allocator *a, const char *path,
                               kvi_manifest *out, kvcsa_error *err)
{
    uint8_t      page[KVI_SNAP_UNIT];
    kvcsa_status st;
    ssize_t      n;
    const int    fd = fs->open(fs->user, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);

    *out = (kvi_manifest){0};
    if (fd < 0)
        return kvi_fs_fail(err, "open", path);
    if ((n = kvi_fs_read_at(fs, fd, page, sizeof page, 0)) < 0)
        st = kvi_fs_fail(err, "read", path);
    else
        st = kvi_snap_header_decode(page, (size_t)n, KVI_SNAP_MANIFEST, &out->h, err);
    if (st == KVCSA_OK)
        st = read_table(fs, a, fd, path, out, err);
    fs->close(fs->user, fd);
    if (st != KVCSA_OK)
        kvi_manifest_free(a, out);
    return st;
}
