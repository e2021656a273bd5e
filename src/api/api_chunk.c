/* A network of the host's own. */
#include "api/api_call.h"
#include "base/fpenv.h"
#include "session/hosted.h"

KVI_NO_TAIL_PADDING(kvcsa_chunk_info, replay);
KVI_NO_TAIL_PADDING(kvcsa_chunk_rows, reserved);
KVI_NO_TAIL_PADDING(kvcsa_chunk_queries, reserved);
KVI_NO_TAIL_PADDING(kvcsa_chunk_attention, reserved);
_Static_assert(sizeof(kvcsa_rows) == 24, "kvcsa_rows is frozen");

kvcsa_status kvcsa_chunk_begin(kvcsa_session *session, uint32_t max_rows, kvcsa_chunk_info *info,
                               kvcsa_error *err)
{
    kvcsa_chunk_info i = {.struct_size = sizeof i};
    kvcsa_status     st;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(info, err);
    /* before anything changes: a struct that cannot be filled fails the call */
    if ((st = KVI_EXPORT(i, info, "kvcsa_chunk_info", err)) != KVCSA_OK ||
        (st = kvi_session_enter(session, err)) != KVCSA_OK)
        return st;
    st = kvi_hosted_begin(session, max_rows, &i, err);
    kvi_session_leave(session);
    return st == KVCSA_OK ? KVI_EXPORT(i, info, "kvcsa_chunk_info", err) : st;
}

kvcsa_status kvcsa_chunk_write(kvcsa_session *session, uint32_t layer, const kvcsa_chunk_rows *rows,
                               kvcsa_error *err)
{
    kvcsa_chunk_rows r = {.struct_size = sizeof r};
    kvcsa_status     st;
    uint64_t         mode;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(rows, err);
    if ((st = KVI_IMPORT(r, rows, "kvcsa_chunk_rows", err)) != KVCSA_OK ||
        (st = kvi_session_enter_chunk(session, err)) != KVCSA_OK)
        return st;
    mode = kvi_fp_enter();
    st = kvi_hosted_write(session, layer, &r, err);
    kvi_fp_leave(mode);
    kvi_session_leave(session);
    return st;
}

kvcsa_status kvcsa_chunk_select(kvcsa_session *session, uint32_t layer,
                                const kvcsa_chunk_queries *queries, kvcsa_error *err)
{
    kvcsa_chunk_queries q = {.struct_size = sizeof q};
    kvcsa_status        st;
    uint64_t            mode;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(queries, err);
    if ((st = KVI_IMPORT(q, queries, "kvcsa_chunk_queries", err)) != KVCSA_OK ||
        (st = kvi_session_enter_chunk(session, err)) != KVCSA_OK)
        return st;
    mode = kvi_fp_enter();
    st = kvi_hosted_select(session, layer, &q, err);
    kvi_fp_leave(mode);
    kvi_session_leave(session);
    return st;
}

kvcsa_status kvcsa_chunk_attend(kvcsa_session *session, uint32_t layer,
                                const kvcsa_chunk_attention *attention, kvcsa_error *err)
{
    kvcsa_chunk_attention a = {.struct_size = sizeof a};
    kvcsa_status          st;
    uint64_t              mode;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    KVI_REQUIRE(attention, err);
    if ((st = KVI_IMPORT(a, attention, "kvcsa_chunk_attention", err)) != KVCSA_OK ||
        (st = kvi_session_enter_chunk(session, err)) != KVCSA_OK)
        return st;
    mode = kvi_fp_enter();
    st = kvi_hosted_attend(session, layer, &a, err);
    kvi_fp_leave(mode);
    kvi_session_leave(session);
    return st;
}

kvcsa_status kvcsa_chunk_commit(kvcsa_session *session, kvcsa_error *err)
{
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    if ((st = kvi_session_enter_chunk(session, err)) != KVCSA_OK)
        return st;
    st = kvi_hosted_commit(session, err);
    kvi_session_leave(session);
    return st;
}

void kvcsa_chunk_abandon(kvcsa_session *session)
{
    if (!session || kvi_session_enter_chunk(session, NULL) != KVCSA_OK)
        return;
    kvi_hosted_abandon(session);
    kvi_session_leave(session);
}

kvcsa_status kvcsa_session_read_rows(kvcsa_session *session, uint32_t layer, uint32_t what,
                                     uint64_t first, uint64_t n, float *out, size_t cap,
                                     kvcsa_error *err)
{
    kvcsa_status st;
    uint64_t     mode;

    kvi_error_clear(err);
    KVI_REQUIRE(session, err);
    if (n)
        KVI_REQUIRE(out, err);
    if ((st = kvi_session_enter_chunk(session, err)) != KVCSA_OK)
        return st;
    mode = kvi_fp_enter();
    st = kvi_session_read_rows(session, layer, what, first, n, out, cap, err);
    kvi_fp_leave(mode);
    kvi_session_leave(session);
    return st;
}
