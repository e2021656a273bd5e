#include "api/api_call.h"
#include "session/snapshot.h"

KVI_NO_TAIL_PADDING(kvcsa_snapshot_params, reserved);
KVI_NO_TAIL_PADDING(kvcsa_snapshot_info, exact);

#define SAVE_FLAGS ((uint32_t)(KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS))
#define LOAD_FLAGS                                                                                 \
    ((uint32_t)(KVCSA_SNAPSHOT_ANY_MODEL | KVCSA_SNAPSHOT_ANY_NUMERICS | KVCSA_SNAPSHOT_SALVAGE))
#define NO_FLAGS 0u

static const kvcsa_snapshot_params default_snapshot_params = {
    .struct_size = sizeof(kvcsa_snapshot_params)};

void kvcsa_snapshot_params_default(kvcsa_snapshot_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_snapshot_params,
                       sizeof default_snapshot_params);
}

/* ours becomes theirs with a name, or the defaults; `known` are the flags of this function. */
static kvcsa_status import_params(kvcsa_snapshot_params *ours, const kvcsa_snapshot_params *theirs,
                                  uint32_t known, kvcsa_error *err)
{
    kvcsa_status st;

    *ours = default_snapshot_params;
    if ((st = KVI_IMPORT(*ours, theirs, "kvcsa_snapshot_params", err)) != KVCSA_OK)
        return st;
    if (ours->flags & ~known)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "flags is 0x%x, this function knows 0x%x",
                        ours->flags, known);
    if (ours->reserved)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "reserved is %u, must be 0", ours->reserved);
    if (!ours->name)
        ours->name = "default";
    if (!kvi_snapshot_name_is_valid(ours->name))
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "name is \"%.80s\", must be 1..64 of A-Z a-z 0-9 . _ - without a dot first",
                        ours->name);
    return KVCSA_OK;
}

/* Zeros for the caller, before anything changes: a struct that cannot be filled fails the call. */
static kvcsa_status clear_info(kvcsa_snapshot_info *info, kvcsa_error *err)
{
    const kvcsa_snapshot_info none = {.struct_size = sizeof none};

    return info ? KVI_EXPORT(none, info, "kvcsa_snapshot_info", err) : KVCSA_OK;
}

/* Its size has been checked by clear_info. */
static kvcsa_status give_info(kvcsa_status st, const kvcsa_snapshot_info *ours,
                              kvcsa_snapshot_info *theirs, kvcsa_error *err)
{
    if (st != KVCSA_OK || !theirs)
        return st;
    return KVI_EXPORT(*ours, theirs, "kvcsa_snapshot_info", err);
}

kvcsa_status kvcsa_snapshot_size(kvcsa_session *session, const kvcsa_snapshot_params *params,
                                 uint64_t *n_bytes, kvcsa_error *err)
{
    kvcsa_snapshot_params p;
    kvcsa_status          st;

    kvi_error_clear(err);
    KVI_REQUIRE(n_bytes, err);
    *n_bytes = 0;
    KVI_REQUIRE(session, err);
    if ((st = import_params(&p, params, SAVE_FLAGS, err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    st = kvi_snapshot_size(session, p.flags, n_bytes, err);
    kvi_session_leave(session);
    return st;
}

kvcsa_status kvcsa_snapshot_save(kvcsa_session *session, const char *path,
                                 const kvcsa_snapshot_params *params, kvcsa_snapshot_info *info,
                                 kvcsa_error *err)
{
    kvcsa_snapshot_params p;
    kvcsa_snapshot_info   i = {.struct_size = sizeof i};
    kvcsa_status          st;

    kvi_error_clear(err);
    if ((st = clear_info(info, err)) != KVCSA_OK)
        return st;
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(path, err);
    if ((st = import_params(&p, params, SAVE_FLAGS, err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    st = kvi_snapshot_save(session, path, p.name, p.flags, &i, err);
    kvi_session_leave(session);
    return give_info(st, &i, info, err);
}

kvcsa_status kvcsa_snapshot_load(kvcsa_session *session, const char *path,
                                 const kvcsa_snapshot_params *params, kvcsa_snapshot_info *info,
                                 kvcsa_error *err)
{
    kvcsa_snapshot_params p;
    kvcsa_snapshot_info   i = {.struct_size = sizeof i};
    kvcsa_status          st;

    kvi_error_clear(err);
    if ((st = clear_info(info, err)) != KVCSA_OK)
        return st;
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(path, err);
    if ((st = import_params(&p, params, LOAD_FLAGS, err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    st = kvi_snapshot_load(session, path, p.name, p.flags, &i, err);
    kvi_session_leave(session);
    return give_info(st, &i, info, err);
}

kvcsa_status kvcsa_snapshot_write(kvcsa_session *session, const kvcsa_writer *writer,
                                  const kvcsa_snapshot_params *params, kvcsa_snapshot_info *info,
                                  kvcsa_error *err)
{
    kvcsa_snapshot_params p;
    kvcsa_snapshot_info   i = {.struct_size = sizeof i};
    kvcsa_status          st;

    kvi_error_clear(err);
    if ((st = clear_info(info, err)) != KVCSA_OK)
        return st;
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(writer, err);
    KVI_REQUIRE(writer->write, err);
    if ((st = import_params(&p, params, SAVE_FLAGS, err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    st = kvi_snapshot_write(session, writer, p.flags, &i, err);
    kvi_session_leave(session);
    return give_info(st, &i, info, err);
}

kvcsa_status kvcsa_snapshot_read(kvcsa_session *session, const kvcsa_reader *reader,
                                 const kvcsa_snapshot_params *params, kvcsa_snapshot_info *info,
                                 kvcsa_error *err)
{
    kvcsa_snapshot_params p;
    kvcsa_snapshot_info   i = {.struct_size = sizeof i};
    kvcsa_status          st;

    kvi_error_clear(err);
    if ((st = clear_info(info, err)) != KVCSA_OK)
        return st;
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(reader, err);
    KVI_REQUIRE(reader->read, err);
    if ((st = import_params(&p, params, LOAD_FLAGS, err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    st = kvi_snapshot_read(session, reader, p.flags, &i, err);
    kvi_session_leave(session);
    return give_info(st, &i, info, err);
}

kvcsa_status kvcsa_snapshot_inspect(const char *path, const kvcsa_snapshot_params *params,
                                    kvcsa_snapshot_info *info, kvcsa_error *err)
{
    kvcsa_snapshot_params p;
    kvcsa_snapshot_info   i = {.struct_size = sizeof i};
    kvcsa_status          st;

    kvi_error_clear(err);
    KVI_REQUIRE(info, err);
    if ((st = clear_info(info, err)) != KVCSA_OK)
        return st;
    KVI_REQUIRE(path, err);
    if ((st = import_params(&p, params, NO_FLAGS, err)) != KVCSA_OK)
        return st;
    return give_info(kvi_snapshot_inspect(path, p.name, &i, err), &i, info, err);
}

kvcsa_status kvcsa_snapshot_remove(const char *path, const kvcsa_snapshot_params *params,
                                   kvcsa_error *err)
{
    kvcsa_snapshot_params p;
    kvcsa_status          st;

    kvi_error_clear(err);
    KVI_REQUIRE(path, err);
    if ((st = import_params(&p, params, NO_FLAGS, err)) != KVCSA_OK)
        return st;
    return kvi_snapshot_remove(path, p.name, err);
}
