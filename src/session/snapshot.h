/* Sessions as bytes: docs/formats.md "Snapshot". Public semantics: kvcsa.h. */
#ifndef KVI_SNAPSHOT_H
#define KVI_SNAPSHOT_H

#include "session/session.h"

/* The caller is inside the session; flags and names have been checked; info may be NULL,
 * struct_size is not touched. */
kvcsa_status kvi_snapshot_size(kvcsa_session *s, uint32_t flags, uint64_t *n_bytes,
                               kvcsa_error *err);
kvcsa_status kvi_snapshot_write(kvcsa_session *s, const kvcsa_writer *w, uint32_t flags,
                                kvcsa_snapshot_info *info, kvcsa_error *err);
kvcsa_status kvi_snapshot_read(kvcsa_session *s, const kvcsa_reader *r, uint32_t flags,
                               kvcsa_snapshot_info *info, kvcsa_error *err);
kvcsa_status kvi_snapshot_save(kvcsa_session *s, const char *path, const char *name,
                               uint32_t flags, kvcsa_snapshot_info *info, kvcsa_error *err);
kvcsa_status kvi_snapshot_load(kvcsa_session *s, const char *path, const char *name,
                               uint32_t flags, kvcsa_snapshot_info *info, kvcsa_error *err);

/* No session: memory comes from libc, files from POSIX. */
kvcsa_status kvi_snapshot_inspect(const char *path, const char *name, kvcsa_snapshot_info *info,
                                  kvcsa_error *err);
kvcsa_status kvi_snapshot_remove(const char *path, const char *name, kvcsa_error *err);

/* 1..64 of A-Z a-z 0-9 . _ - not beginning with a dot. */
int kvi_snapshot_name_is_valid(const char *name);

#endif
