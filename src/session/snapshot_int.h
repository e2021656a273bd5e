/* What the files of snapshots share: snapshot.c makes records, snapshot_file.c puts them into a
 * file, snapshot_dir.c into a directory, snapshot_load.c and snapshot_blocks.c read them. */
#ifndef KVI_SNAPSHOT_INT_H
#define KVI_SNAPSHOT_INT_H

#include "base/file.h"
#include "format/container.h"
#include "session/session_int.h"
#include "session/snapshot.h"

#include <limits.h>

/* ------------------------------------------------------------------ a save: snapshot.c */

typedef struct kvi_save {
    kvcsa_session  *s;
    kvi_snap_header h;
    kvi_hash128     last_key; /* of the block made last */
    uint8_t        *scratch;  /* of a record that does not lie in the session as it is written */
    size_t          scratch_bytes;
    uint8_t        *seen;     /* where the pool's memory is apart: parts of blocks, or a page; else
                               * NULL */
    size_t          seen_bytes;
    uint64_t        seen_first, n_seen; /* blocks whose parts it holds */
    uint64_t        n_ahead;            /* so many with one wait */
} kvi_save;

typedef struct kvi_save_record { /* bytes are borrowed from the session or the scratch */
    kvi_snap_record  r;
    const void      *ids;
    const void      *parts[KVI_SNAP_PARTS];
    const kvi_block *block;      /* parts are to be looked at: kvi_save_see; NULL = they are here */
    uint64_t         at;         /* of a block: which */
    int              in_scratch; /* the next record may overwrite it */
} kvi_save_record;

/* kind: KVI_SNAP_FILE or KVI_SNAP_MANIFEST. The session does not change until fini. fini accepts a
 * zeroed one. */
kvcsa_status kvi_save_init(kvi_save *v, kvcsa_session *s, uint32_t flags, uint32_t kind,
                           kvcsa_error *err);
void         kvi_save_fini(kvi_save *v);
/* Record i; they are made in order, each once. Parts of a full block are left out: a directory may
 * have them already. ERR_BACKEND, where the memory is a device's; likewise below. */
kvcsa_status kvi_save_make(kvi_save *v, uint64_t i, kvi_save_record *out, kvcsa_error *err);
/* With all its parts, for the sink. */
kvcsa_status kvi_save_see(kvi_save *v, kvi_save_record *rec, kvcsa_error *err);

enum { KVI_SINK_IOVS = 64, KVI_SINK_PER_RECORD = 6 };

typedef struct kvi_sink { /* where bytes go: a file, in few large writes, or a callback */
    const kvcsa_writer *writer; /* NULL = a file */
    const kvi_fs       *fs;
    const char         *path;   /* for messages */
    int                 fd;
    int                 n_iov;
    uint32_t            n_heads;
    uint64_t            n_bytes; /* given to it so far */
    struct iovec        iov[KVI_SINK_IOVS];
    uint8_t             heads[KVI_SINK_IOVS / KVI_SINK_PER_RECORD][KVI_SNAP_HEAD_BYTES];
} kvi_sink;

/* data stays until the next flush. ERR_IO. */
kvcsa_status kvi_sink_put(kvi_sink *k, const void *data, size_t n, kvcsa_error *err);
/* It has been seen. */
kvcsa_status kvi_sink_record(kvi_sink *k, const kvi_save_record *rec, kvcsa_error *err);
kvcsa_status kvi_sink_flush(kvi_sink *k, kvcsa_error *err);
/* Header page and all records. */
kvcsa_status kvi_save_all(kvi_save *v, kvi_sink *k, kvcsa_error *err);

/* What info says of a header; the counters of a call are set to 0. */
void kvi_snap_fill_info(const kvi_snap_header *h, kvcsa_snapshot_info *info);
/* Counters of the pool and the trace. */
void kvi_save_count(const kvi_save *v, uint64_t n_bytes, uint64_t n_records, uint64_t n_shared,
                    kvcsa_snapshot_info *info);

/* Raw rows of tokens [lo, n), at most the last `slots` of each owner, between a page of this
 * session's, in the host's memory, and the bytes of a record. Returns the record's bytes; bytes
 * NULL: nothing is copied. */
uint64_t kvi_snap_copy_raw(const kvcsa_session *s, uint64_t n, uint64_t lo, uint32_t slots,
                           uint8_t *page, uint8_t *bytes, int to_page);

/* ------------------------------------------------------------------ files: snapshot_file.c */

typedef struct kvi_tmp { /* a file that is to take the place of `target` */
    const kvi_fs          *fs;
    const kvcsa_allocator *a;
    const char            *target;
    char                  *path; /* [path_bytes] */
    size_t                 path_bytes;
    int                    fd;   /* locked while its writer lives */
} kvi_tmp;

/* Beside target. ERR_IO, ERR_NOMEM. */
kvcsa_status kvi_tmp_create(kvi_tmp *t, const kvi_fs *fs, const kvcsa_allocator *a,
                            const char *target, kvcsa_error *err);
/* To disk, and over target; in_place says if it got there, which it can although this fails (fsync
 * of the directory). The temporary file is gone in any case. */
kvcsa_status kvi_tmp_commit(kvi_tmp *t, int *in_place, kvcsa_error *err);
void         kvi_tmp_drop(kvi_tmp *t); /* not committed */
/* Is `name` that of a temporary file of a target of this name (n bytes)? */
int          kvi_tmp_is_name(const char *name, const char *target, size_t n);

/* ------------------------------------------------------------------ directories:
 * snapshot_manifest.c, snapshot_dir.c */

#define KVI_MANIFEST_SUFFIX ".kvman"
#define KVI_SEGMENT_SUFFIX ".kvseg"

typedef struct kvi_manifest {
    kvi_snap_header h;
    uint8_t        *table; /* u8 [h.n_records, KVI_SNAP_ENTRY_BYTES], checked */
    size_t          table_bytes;
} kvi_manifest;

enum { KVI_SEGMENT_NAME_BYTES = 32 };
void kvi_segment_name(uint64_t number, char *name); /* [KVI_SEGMENT_NAME_BYTES] */
/* dir/name + suffix, from `a`, of *n_bytes. NULL = out of memory. */
char *kvi_snap_path(const kvcsa_allocator *a, const char *dir, const char *name,
                    const char *suffix, size_t *n_bytes);
kvcsa_status kvi_manifest_read(const kvi_fs *fs, const kvcsa_allocator *a, const char *path,
                               kvi_manifest *out, kvcsa_error *err);
void         kvi_manifest_free(const kvcsa_allocator *a, kvi_manifest *m); /* accepts zeros */
/* An entry of a manifest that was read. */
kvi_snap_entry kvi_manifest_entry(const kvi_manifest *m, uint64_t i);

/* A directory, locked: op is LOCK_EX or LOCK_SH. kvi_fs.close unlocks. ERR_IO. */
kvcsa_status kvi_dir_open(const kvi_fs *fs, const char *path, int op, int *out, kvcsa_error *err);

kvcsa_status kvi_save_to_dir(kvcsa_session *s, const char *path, const char *name, uint32_t flags,
                             kvcsa_snapshot_info *info, kvcsa_error *err);
kvcsa_status kvi_dir_remove(const kvi_fs *fs, const kvcsa_allocator *a, const char *path,
                            const char *name, kvcsa_error *err);

/* ------------------------------------------------------------------ a load: snapshot_load.c */

typedef struct kvi_load {
    kvcsa_session      *s;
    uint32_t            flags;
    kvi_snap_header     h;
    int                 foreign;     /* other weights or numerics: nothing may be published */
    int                 same_domain; /* keys must come out as they were */
    /* where the bytes are */
    const kvcsa_reader *reader;      /* NULL = files */
    const kvi_fs       *fs;
    const char         *path;        /* file, or directory with a manifest */
    const kvi_manifest *manifest;    /* NULL = one file */
    int                 fd;
    uint64_t            segment;     /* that fd is open on */
    int32_t             open_code;   /* errno, if it could not be opened */
    /* what has been made of them */
    kvi_state           st;
    uint64_t            n_blocks;    /* to be kept */
    int                 damaged;     /* something was left out (salvage) */
    uint64_t            taint_pos;
    kvi_hash128         last_key;    /* of the record in front */
    uint64_t            n_reserved;  /* blocks */
    kvi_block         **blocks;      /* files: [n_all], acquired, not yet in st; some NULL */
    uint64_t            n_all;
    int                 has_window;  /* the stored one is of use */
    uint64_t            window_lo;
    kvi_logits         *logits;
    uint8_t            *buffer;      /* of a record that is no block, or of skipped bytes */
    size_t              buffer_bytes;
    uint8_t            *staged;      /* where the pool's memory is apart: parts or a page on their
                                      * way; else NULL */
    size_t              staged_bytes;
    int                 half;        /* of it that is filled next */
    uint64_t            n_shared;
    uint64_t            n_bytes;     /* read */
    uint64_t            n_records;
} kvi_load;

/* ------------------------------------------------------------------ its bytes and blocks:
 * snapshot_blocks.c */

/* Logits of a record; 0 where the host has them. */
static inline uint32_t kvi_snap_vocab(const kvcsa_session *s)
{
    return s->set.flags & KVCSA_SESSION_CACHE_ONLY ? 0 : s->model->config.vocab_size;
}

/* The first bad record: with KVCSA_SNAPSHOT_SALVAGE the end of what is kept, else of the load. */
kvcsa_status kvi_load_salvage(kvi_load *ld, kvcsa_status st, uint64_t n_blocks);
/* From a callback: the next n bytes. `record` is for messages. ERR_FORMAT truncated; ERR_IO. */
kvcsa_status kvi_load_next(kvi_load *ld, uint64_t record, void *data, size_t n, kvcsa_error *err);
kvcsa_status kvi_load_skip(kvi_load *ld, uint64_t record, uint64_t n, kvcsa_error *err);
/* From files: fd is on that of record i from now on; where it stands; n bytes from there. */
kvcsa_status kvi_load_open(kvi_load *ld, uint64_t i, kvcsa_error *err);
uint64_t     kvi_load_offset(const kvi_load *ld, uint64_t i);
kvcsa_status kvi_load_at(const kvi_load *ld, uint64_t record, void *data, size_t n, uint64_t at,
                         kvcsa_error *err);
kvcsa_status kvi_load_bad_sum(kvcsa_error *err, uint64_t i);
/* Blocks whose parts are staged together; while those of one half are on their way, the other is
 * filled. */
enum { KVI_LOAD_STAGED = 32, KVI_LOAD_HALVES = 2 };
/* All blocks, up to damage that is left out, into the state. */
kvcsa_status kvi_load_blocks_from_files(kvi_load *ld, kvcsa_error *err);
kvcsa_status kvi_load_blocks_from_reader(kvi_load *ld, kvcsa_error *err);

#endif
