/* Snapshots as files and as streams of bytes: what is refused, that a refusal leaves the session as
 * it was, and what is known of a file beforehand. On the random checkpoint T1. What of a session
 * survives is in test_api_snapshot_state.c. */
#include <errno.h>
#include <fcntl.h>

#include "support/snap_fixture.h"

#define N 200u   /* tokens that are saved */
#define OLD 100u /* of the session that a load would replace */
#define FULL (KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS)

static int set_up(void **state)
{
    fixture *f = fixture_make(N, 301);

    snap_run_make(&f->old, f->model, 302);
    *state = f;
    return 0;
}

/* ------------------------------------------------------------------ callbacks */

typedef struct stream { /* of a writer or a reader */
    uint8_t *data;
    size_t   n, cap;
    size_t   n_calls, fail_at; /* 0 = never */
    size_t   most;             /* bytes that a read gives; 0 = all */
    int32_t  code;             /* of the failing write */
} stream;

static int32_t stream_write(void *user, const void *data, size_t n_bytes)
{
    stream *st = user;

    if (++st->n_calls == st->fail_at)
        return st->code;
    assert_true(n_bytes <= st->cap - st->n);
    memcpy(st->data + st->n, data, n_bytes);
    st->n += n_bytes;
    return 0;
}

static int64_t stream_read(void *user, void *data, size_t n_bytes)
{
    stream *st = user;
    size_t  n = st->cap - st->n;

    if (++st->n_calls == st->fail_at)
        return -5;
    n = n < n_bytes ? n : n_bytes;
    memcpy(data, st->data + st->n, n);
    st->n += n;
    return (int64_t)n;
}

static void test_callbacks_give_the_bytes_of_the_file(void **state)
{
    const fixture  *f = *state;
    const snap_path path = snap_in(&f->dir, "bytes");

    for (uint32_t flags = 0; flags <= FULL; flags += FULL) {
        const kvcsa_snapshot_params p = snap_params(NULL, flags), none = snap_params(NULL, 0);
        kvcsa_snapshot_info         info = {.struct_size = sizeof info}, saved;
        stream                      st = {0};
        kvcsa_pool                 *pool = host_pool(1, 0);
        kvcsa_session              *s = host_session(pool, f->small, 0);
        size_t                      n = 0;
        char                       *file;
        kvcsa_error                 err;

        saved = snap_save(f->small_saver, path.text, NULL, flags);
        file = read_file(path.text, &n);
        assert_non_null(st.data = malloc(n));
        st.cap = n;
        assert_ok(kvcsa_snapshot_write(f->small_saver, &(kvcsa_writer){stream_write, &st}, &p,
                                       &info, &err));
        assert_int_equal(st.n, n);
        assert_memory_equal(st.data, file, n);
        assert_int_equal(info.written_bytes, n);
        assert_memory_equal(&info, &saved, sizeof info);
        st.n = 0;
        assert_ok(kvcsa_snapshot_read(s, &(kvcsa_reader){stream_read, &st}, &none, &info, &err));
        assert_int_equal(info.n_tokens, N);
        assert_true(st.n <= n);
        snap_go_on(&f->run, pool, s, N + 3);
        free(st.data);
        free(file);
        kvcsa_session_release(&s);
        kvcsa_pool_release(&pool);
    }
    assert_int_equal(unlink(path.text), 0);
}

/* The n-th write or read fails; a read gives less than it was asked for: that is the end. */
static void test_callbacks_that_fail(void **state)
{
    const fixture              *f = *state;
    const kvcsa_snapshot_params p = snap_params(NULL, FULL), none = snap_params(NULL, 0);
    kvcsa_pool                 *pool = host_pool(1, 0);
    kvcsa_session              *s = snap_session(&f->old, pool, f->small, OLD);
    uint64_t                    size = 0;
    stream                      st = {.code = 77};
    size_t                      n_failed = 0;
    kvcsa_error                 err;
    kvcsa_status                status;

    assert_ok(kvcsa_snapshot_size(f->small_saver, &p, &size, &err));
    st.cap = size;
    assert_non_null(st.data = malloc(size));
    for (;;) { /* writes */
        st.n = st.n_calls = 0;
        st.fail_at = n_failed + 1;
        status = kvcsa_snapshot_write(f->small_saver, &(kvcsa_writer){stream_write, &st}, &p, NULL,
                                      &err);
        if (status == KVCSA_OK)
            break;
        assert_int_equal(status, KVCSA_ERR_IO);
        assert_int_equal(err.detail, 77);
        n_failed++;
    }
    assert_true(n_failed >= N / 16);
    snap_assert_untouched(&f->run, f->pool, f->small_saver, N);
    for (n_failed = 0;; n_failed++) { /* reads */
        st.n = st.n_calls = 0;
        st.fail_at = n_failed + 1;
        status = kvcsa_snapshot_read(s, &(kvcsa_reader){stream_read, &st}, &none, NULL, &err);
        if (status == KVCSA_OK)
            break;
        assert_int_equal(status, KVCSA_ERR_IO);
        snap_assert_untouched(&f->old, pool, s, OLD);
    }
    assert_true(n_failed >= N / 16);
    snap_assert_untouched(&f->run, pool, s, N);
    kvcsa_session_release(&s);
    s = snap_session(&f->old, pool, f->small, OLD);
    st.fail_at = 0;
    for (size_t n = 0; n < size; n += n < 100 ? 33 : 1999) { /* ends */
        st.n = st.n_calls = 0;
        st.cap = n;
        assert_fails(kvcsa_snapshot_read(s, &(kvcsa_reader){stream_read, &st}, &none, NULL, &err),
                     KVCSA_ERR_FORMAT, "truncated");
        snap_assert_untouched(&f->old, pool, s, OLD);
    }
    snap_go_on(&f->old, pool, s, OLD + 3);
    free(st.data);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
}

/* ------------------------------------------------------------------ what is refused */

/* A file cut anywhere is "truncated", and the session that it was to replace lives on. */
static void test_behaviour_01_truncated_file(void **state)
{
    const fixture              *f = *state;
    const snap_path             path = snap_in(&f->dir, "cut");
    const kvcsa_snapshot_params none = snap_params(NULL, 0);
    kvcsa_pool                 *pool = host_pool(1, 0);
    kvcsa_session              *s = snap_session(&f->old, pool, f->model, OLD);
    size_t                      size = 0;
    kvcsa_error                 err;
    char                       *file;

    snap_save(f->saver, path.text, NULL, FULL);
    file = read_file(path.text, &size);
    for (size_t i = 0; i < 3 * (size / SNAP_PAGE); i++) { /* each boundary and a byte beside it */
        const size_t n = size - i / 3 * SNAP_PAGE - (i % 3 == 0 ? 1 : SNAP_PAGE + i % 3 - 2);

        assert_int_equal(truncate(path.text, (off_t)n), 0);
        assert_fails(kvcsa_snapshot_load(s, path.text, &none, NULL, &err), KVCSA_ERR_FORMAT,
                     "truncated");
        snap_assert_untouched(&f->old, pool, s, OLD);
    }
    snap_write_file(path.text, file, size / 4 * 3);
    assert_fails(kvcsa_snapshot_load(s, path.text, &none, NULL, &err), KVCSA_ERR_FORMAT,
                 "truncated");
    snap_assert_untouched(&f->old, pool, s, OLD);
    snap_go_on(&f->old, pool, s, OLD + 5);
    /* more bytes than there should be are not the snapshot either */
    file = realloc(file, size + SNAP_PAGE);
    assert_non_null(file);
    memset(file + size, 0, SNAP_PAGE);
    snap_write_file(path.text, file, size + SNAP_PAGE);
    assert_int_equal(kvcsa_snapshot_load(s, path.text, &none, NULL, &err), KVCSA_ERR_FORMAT);
    snap_assert_untouched(&f->old, pool, s, OLD + 5);
    free(file);
    snap_put_away(&path, s, pool);
}

/* Nothing of a half is taken; what is whole in front of the cut can be had for the asking. */
static void test_behaviour_02_half_a_file(void **state)
{
    const fixture              *f = *state;
    const snap_path             path = snap_in(&f->dir, "half");
    const kvcsa_snapshot_params none = snap_params(NULL, 0),
                                salvage = snap_params(NULL, KVCSA_SNAPSHOT_SALVAGE);
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *s = snap_session(&f->old, pool, f->small, OLD);
    kvcsa_snapshot_info info = {.struct_size = sizeof info};
    size_t              size = 0;
    char               *file;
    kvcsa_error         err;

    snap_save(f->small_saver, path.text, NULL, FULL);
    file = read_file(path.text, &size);
    snap_write_file(path.text, file, size / 2);
    assert_fails(kvcsa_snapshot_load(s, path.text, &none, &info, &err), KVCSA_ERR_FORMAT,
                 "truncated");
    snap_assert_untouched(&f->old, pool, s, OLD);
    snap_go_on(&f->old, pool, s, OLD + 5);
    assert_ok(kvcsa_snapshot_load(s, path.text, &salvage, &info, &err));
    assert_true(info.n_tokens >= 32 && info.n_tokens < N);
    snap_assert_tokens(&f->run, s, info.n_tokens);
    snap_go_on(&f->run, pool, s, info.n_tokens + 20);
    free(file);
    snap_put_away(&path, s, pool);
}

/* Same shape, other weights: one byte of one tensor differs. */
static void test_behaviour_03_other_weights(void **state)
{
    const fixture              *f = *state;
    const snap_path             path = snap_in(&f->dir, "weights");
    const kvcsa_snapshot_params none = snap_params(NULL, 0);
    const uint8_t               byte = 0x3f;
    checkpoint                  c;
    kvcsa_model                *other = NULL;
    kvcsa_pool                 *pool = host_pool(1, 0);
    kvcsa_session              *s, *second;
    kvcsa_snapshot_info         info;
    float                       logits[T1_VOCAB];
    kvcsa_error                 err;

    checkpoint_copy(&c, T1_DIR);
    checkpoint_patch_data(&c, "head.weight", 0, &byte, 1);
    assert_ok(kvcsa_model_open(c.dir, NULL, &other, &err));
    s = snap_session(&f->old, pool, other, OLD);
    host_logits(s, logits, T1_VOCAB);
    snap_save(f->saver, path.text, NULL, 0);
    assert_fails(kvcsa_snapshot_load(s, path.text, &none, NULL, &err), KVCSA_ERR_MISMATCH, "model");
    snap_assert_tokens(&f->old, s, OLD);
    /* numerics are another question */
    assert_int_equal(
        kvcsa_snapshot_load(s, path.text,
                            &(kvcsa_snapshot_params){.struct_size = sizeof none,
                                                     .flags = KVCSA_SNAPSHOT_ANY_NUMERICS},
                            NULL, &err),
        KVCSA_ERR_MISMATCH);
    snap_assert_tokens(&f->old, s, OLD);
    info = snap_load(s, path.text, NULL, KVCSA_SNAPSHOT_ANY_MODEL);
    assert_int_equal(info.n_tokens, N);
    snap_assert_tokens(&f->run, s, N);
    host_run(pool, s, f->run.ids + N, 3, NULL);
    /* what it holds was not computed by this model: nobody else gets it */
    second = host_session(pool, other, 0);
    assert_ok(kvcsa_session_append(second, f->run.ids, N, NULL, NULL, &err));
    host_step(pool, second);
    assert_int_equal(snap_session_stats(second).n_adopted_tokens, 0);
    assert_ok(kvcsa_pool_check(pool, &err));
    kvcsa_session_release(&second);
    kvcsa_session_release(&s);
    kvcsa_model_release(&other);
    kvcsa_pool_release(&pool);
    checkpoint_remove(&c);
    assert_int_equal(unlink(path.text), 0);
}

/* Another geometry is refused whatever the flags say. */
static void test_other_block_size_is_a_mismatch(void **state)
{
    const fixture              *f = *state;
    const snap_path             path = snap_in(&f->dir, "geometry");
    const kvcsa_snapshot_params any =
        snap_params(NULL, KVCSA_SNAPSHOT_ANY_MODEL | KVCSA_SNAPSHOT_ANY_NUMERICS);
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = snap_session(&f->old, pool, f->small, OLD);
    kvcsa_error    err;

    snap_save(f->saver, path.text, NULL, 0);
    assert_int_equal(kvcsa_snapshot_load(s, path.text, NULL, NULL, &err), KVCSA_ERR_MISMATCH);
    assert_int_equal(kvcsa_snapshot_load(s, path.text, &any, NULL, &err), KVCSA_ERR_MISMATCH);
    snap_assert_untouched(&f->old, pool, s, OLD);
    snap_put_away(&path, s, pool);
}

/* 64 bytes flipped, page after page: refused before anything changes; what lies in front of the
 * damage can be had. */
static void test_behaviour_04_flipped_bytes(void **state)
{
    const fixture              *f = *state;
    const snap_path             path = snap_in(&f->dir, "flip");
    const kvcsa_snapshot_params none = snap_params(NULL, 0),
                                salvage = snap_params(NULL, KVCSA_SNAPSHOT_SALVAGE);
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *s = snap_session(&f->old, pool, f->small, OLD);
    kvcsa_snapshot_info info = {.struct_size = sizeof info};
    size_t              size = 0;
    uint64_t            last = 0;
    char               *file;
    kvcsa_error         err;

    snap_save(f->small_saver, path.text, NULL, 0);
    file = read_file(path.text, &size);
    for (size_t at = SNAP_PAGE + 1024; at < size; at += SNAP_PAGE) {
        kvcsa_pool    *other = host_pool(1, 0);
        kvcsa_session *t = host_session(other, f->small, 0);

        for (size_t i = 0; i < 64; i++)
            file[at + i] = (char)(file[at + i] ^ 1);
        snap_write_file(path.text, file, size);
        assert_fails(kvcsa_snapshot_load(s, path.text, &none, &info, &err), KVCSA_ERR_CORRUPT,
                     "checksum");
        snap_assert_untouched(&f->old, pool, s, OLD);
        assert_ok(kvcsa_snapshot_load(t, path.text, &salvage, &info, &err));
        last = (at / SNAP_PAGE - 1) * 16; /* a record of 16 tokens is a page */
        assert_int_equal(info.n_tokens, last);
        snap_assert_tokens(&f->run, t, last);
        if (last == 16 || last == 160) /* two of them to the end */
            snap_go_on(&f->run, other, t, last + 20);
        for (size_t i = 0; i < 64; i++)
            file[at + i] = (char)(file[at + i] ^ 1);
        kvcsa_session_release(&t);
        kvcsa_pool_release(&other);
    }
    assert_int_equal(last, N / 16 * 16); /* the tail was lost alone */
    snap_write_file(path.text, file, size);
    snap_load(s, path.text, NULL, 0); /* the file itself is good */
    free(file);
    snap_put_away(&path, s, pool);
}

/* Every byte of the header page, one after the other, each bit pattern once. */
static void test_no_byte_of_the_header_can_change(void **state)
{
    const fixture              *f = *state;
    const snap_path             path = snap_in(&f->dir, "header");
    const kvcsa_snapshot_params any = snap_params(
        NULL, KVCSA_SNAPSHOT_ANY_MODEL | KVCSA_SNAPSHOT_ANY_NUMERICS | KVCSA_SNAPSHOT_SALVAGE);
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = snap_session(&f->old, pool, f->small, 5);
    size_t         size = 0;
    int            fd;
    char          *file;
    kvcsa_error    err;

    snap_save(f->small_saver, path.text, NULL, 0);
    file = read_file(path.text, &size);
    assert_true((fd = open(path.text, O_WRONLY)) >= 0);
    for (off_t at = 0; at < (off_t)SNAP_PAGE; at += at < 256 ? 1 : 61) {
        const char   bad = (char)(file[at] ^ (1 << at % 8));
        kvcsa_status st;

        assert_int_equal(pwrite(fd, &bad, 1, at), 1);
        st = kvcsa_snapshot_load(s, path.text, &any, NULL, &err);
        if (st != KVCSA_ERR_FORMAT && st != KVCSA_ERR_CORRUPT && st != KVCSA_ERR_UNSUPPORTED)
            fail_msg("byte %d: %s", (int)at, kvcsa_status_name(st));
        assert_true(err.text[0] != 0);
        assert_int_equal(pwrite(fd, &file[at], 1, at), 1);
        snap_assert_tokens(&f->old, s, 5);
    }
    assert_int_equal(close(fd), 0);
    snap_load(s, path.text, NULL, 0);
    free(file);
    snap_put_away(&path, s, pool);
}

static void test_behaviour_10_empty_session(void **state)
{
    const fixture      *f = *state;
    const snap_path     path = snap_in(&f->dir, "empty");
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *empty = host_session(pool, f->model, 0);
    kvcsa_session      *s = snap_session(&f->old, pool, f->model, OLD);
    kvcsa_snapshot_info info;

    for (uint32_t flags = 0; flags <= FULL; flags++) {
        info = snap_save(empty, path.text, NULL, flags);
        assert_int_equal(info.n_tokens, 0);
        assert_int_equal(info.written_bytes, snap_file_size(path.text));
        assert_int_equal(snap_load(s, path.text, NULL, 0).n_tokens, 0);
        assert_int_equal(kvcsa_session_length(s), 0);
        snap_go_on(&f->run, pool, s, 3);
    }
    assert_int_equal(unlink(path.text), 0);
    kvcsa_session_release(&s);
    kvcsa_session_release(&empty);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
}

static void test_behaviour_11_missing_path(void **state)
{
    const fixture  *f = *state;
    const snap_path path = snap_in(&f->dir, "missing/too");
    const snap_dir  dir = snap_dir_make_in(&f->dir, "empty-dir");
    kvcsa_pool     *pool = host_pool(1, 0);
    kvcsa_session  *s = snap_session(&f->old, pool, f->model, OLD);
    kvcsa_error     err;

    assert_fails(kvcsa_snapshot_load(s, path.text, NULL, NULL, &err), KVCSA_ERR_IO, "missing/too");
    assert_int_equal(err.detail, ENOENT);
    snap_assert_untouched(&f->old, pool, s, OLD);
    assert_fails(kvcsa_snapshot_load(s, dir.path, NULL, NULL, &err), KVCSA_ERR_IO, "default");
    assert_int_equal(err.detail, ENOENT);
    assert_fails(kvcsa_snapshot_save(s, path.text, NULL, NULL, &err), KVCSA_ERR_IO, "missing");
    assert_int_equal(err.detail, ENOENT);
    assert_fails(kvcsa_snapshot_inspect(path.text, NULL, NULL, &err), KVCSA_ERR_ARG, "info");
    assert_int_equal(kvcsa_snapshot_remove(path.text, NULL, &err), KVCSA_ERR_IO);
    assert_int_equal(err.detail, ENOENT);
    snap_assert_untouched(&f->old, pool, s, OLD);
    snap_go_on(&f->old, pool, s, OLD + 3);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    assert_int_equal(rmdir(dir.path), 0);
}

/* The size is known before, exact, and near the bytes of the cache. */
static void test_behaviour_16_size(void **state)
{
    const fixture   *f = *state;
    const snap_path  path = snap_in(&f->dir, "size");
    kvcsa_session   *savers[2] = {f->saver, f->small_saver};
    kvcsa_pool_stats before = snap_pool_stats(f->pool), after;
    uint64_t         size = 0, total = 0;
    kvcsa_error      err;

    for (uint32_t flags = 0; flags <= FULL; flags++)
        for (size_t i = 0; i < 2; i++) {
            const kvcsa_snapshot_params p = snap_params(NULL, flags);
            kvcsa_snapshot_info         info;

            assert_ok(kvcsa_snapshot_size(savers[i], &p, &size, &err));
            info = snap_save(savers[i], path.text, NULL, flags);
            assert_int_equal(snap_file_size(path.text), size);
            assert_int_equal(info.total_bytes, size);
            assert_int_equal(info.written_bytes, size);
            assert_int_equal(info.n_written_records, info.n_records);
            assert_int_equal(info.sections, flags);
            total += size;
        }
    after = snap_pool_stats(f->pool);
    assert_int_equal(after.n_saved_bytes - before.n_saved_bytes, total);
    assert_ok(kvcsa_snapshot_size(f->saver, NULL, &size, &err));
    /* a header, and 176 bytes a token in blocks of 128 with their ids and a head, in whole pages */
    assert_int_equal(size, (1 + 2 * ((128 * 180 + 256 + SNAP_PAGE - 1) / SNAP_PAGE)) * SNAP_PAGE);
    assert_int_equal(unlink(path.text), 0);
}

/* Nothing is ever read that was not asked for. */
static void test_behaviour_17_a_new_session_is_empty(void **state)
{
    const fixture  *f = *state;
    const snap_path path = snap_in(&f->dir, "default");
    kvcsa_pool     *pool = host_pool(1, 0);
    kvcsa_session  *s;
    kvcsa_reuse     reuse = {.struct_size = sizeof reuse};
    kvcsa_error     err;

    snap_save(f->saver, path.text, NULL, 0);
    s = host_session(pool, f->model, 0);
    assert_int_equal(kvcsa_session_length(s), 0);
    assert_ok(kvcsa_session_append(s, f->run.ids, N, NULL, NULL, &err));
    assert_ok(kvcsa_session_get_reuse(s, &reuse, &err));
    assert_int_equal(reuse.n_adopted, 0);
    assert_int_equal(reuse.n_compute, N);
    host_step(pool, s);
    assert_int_equal(snap_pool_stats(pool).n_loaded_bytes, 0);
    snap_assert_untouched(&f->run, pool, s, N);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    assert_int_equal(unlink(path.text), 0);
}

static void test_a_pool_without_room_changes_nothing(void **state)
{
    const fixture  *f = *state;
    const snap_path path = snap_in(&f->dir, "room");
    kvcsa_estimate  e = {.struct_size = sizeof e};
    stream          st = {0};
    kvcsa_pool     *pool;
    kvcsa_session  *s;
    kvcsa_error     err;

    snap_save(f->small_saver, path.text, NULL, FULL);
    assert_ok(kvcsa_model_estimate(f->small, NULL, N - 17, 1, 0, &e, &err));
    pool = host_pool(1, e.used_bytes);
    s = snap_session(&f->old, pool, f->small, OLD);
    assert_fails(kvcsa_snapshot_load(s, path.text, NULL, NULL, &err), KVCSA_ERR_FULL, "budget");
    snap_assert_untouched(&f->old, pool, s, OLD);
    assert_int_equal(snap_pool_stats(pool).reserved_bytes, 0);
    st.data = (uint8_t *)read_file(path.text, &st.cap);
    assert_fails(kvcsa_snapshot_read(s, &(kvcsa_reader){stream_read, &st}, NULL, NULL, &err),
                 KVCSA_ERR_FULL, "budget");
    free(st.data);
    snap_assert_untouched(&f->old, pool, s, OLD);
    assert_int_equal(snap_pool_stats(pool).reserved_bytes, 0);
    snap_go_on(&f->old, pool, s, OLD + 3);
    /* with room for both it goes; the old blocks leave */
    assert_ok(kvcsa_pool_resize(pool, 4 * e.used_bytes, &err));
    snap_load(s, path.text, NULL, 0);
    snap_assert_untouched(&f->run, pool, s, N);
    snap_go_on(&f->run, pool, s, N + 3);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    assert_int_equal(unlink(path.text), 0);
}

static void test_inspect_reads_the_header_only(void **state)
{
    const fixture      *f = *state;
    const snap_path     path = snap_in(&f->dir, "inspect");
    kvcsa_model_info    mi = {.struct_size = sizeof mi};
    kvcsa_snapshot_info a, b = {.struct_size = sizeof b};
    size_t              n = 0;
    char               *file;
    kvcsa_error         err;

    assert_ok(kvcsa_model_get_info(f->small, &mi, &err));
    a = snap_save(f->small_saver, path.text, NULL, FULL);
    assert_ok(kvcsa_snapshot_inspect(path.text, NULL, &b, &err));
    assert_int_equal(b.n_tokens, N);
    assert_true(b.fingerprint == mi.fingerprint);
    assert_true(b.numerics == a.numerics);
    assert_int_equal(b.salt, 0);
    assert_int_equal(b.total_bytes, snap_file_size(path.text));
    assert_int_equal(b.n_records, a.n_records);
    assert_int_equal(b.written_bytes, 0);
    assert_int_equal(b.version, 1);
    assert_int_equal(b.sections, FULL);
    assert_int_equal(b.block_tokens, 16);
    assert_int_equal(b.exact, 1);
    file = read_file(path.text, &n);
    memset(file + n - SNAP_PAGE, 0x55, SNAP_PAGE); /* a record is damaged */
    snap_write_file(path.text, file, n);
    assert_ok(kvcsa_snapshot_inspect(path.text, NULL, &b, &err));
    memset(file, 0x55, n);
    snap_write_file(path.text, file, n);
    assert_fails(kvcsa_snapshot_inspect(path.text, NULL, &b, &err), KVCSA_ERR_FORMAT, "snapshot");
    /* what is no snapshot is not removed */
    assert_int_equal(kvcsa_snapshot_remove(path.text, NULL, &err), KVCSA_ERR_FORMAT);
    assert_int_equal(snap_file_size(path.text), n);
    snap_save(f->small_saver, path.text, NULL, 0);
    assert_ok(kvcsa_snapshot_remove(path.text, NULL, &err));
    assert_int_equal(access(path.text, F_OK), -1);
    free(file);
}

/* ------------------------------------------------------------------ wrong calls */

static void test_behaviour_46_wrong_calls(void **state)
{
    static const char *const names[] = {"", "../x", ".x", "a/b", "x y", "\xc3\xa9", "a\n"};
    const fixture           *f = *state;
    const snap_path          path = snap_in(&f->dir, "wrong");
    const snap_dir           dir = snap_dir_make_in(&f->dir, "names");
    kvcsa_pool              *pool = host_pool(1, 0);
    kvcsa_session           *s = snap_session(&f->old, pool, f->small, 20);
    kvcsa_snapshot_params    p = snap_params(NULL, 0);
    kvcsa_snapshot_info      info = {.struct_size = sizeof info};
    const kvcsa_writer       w = {0};
    const kvcsa_reader       r = {0};
    char                     text[80];
    uint64_t                 n = 7;
    kvcsa_error              err;

#define arg(call) assert_int_equal((call), KVCSA_ERR_ARG)
    arg(kvcsa_snapshot_size(NULL, NULL, &n, &err));
    arg(kvcsa_snapshot_size(s, NULL, NULL, &err));
    arg(kvcsa_snapshot_save(NULL, path.text, NULL, NULL, NULL));
    arg(kvcsa_snapshot_save(s, NULL, NULL, NULL, &err));
    assert_int_equal(kvcsa_snapshot_save(s, "", NULL, NULL, &err), KVCSA_ERR_IO);
    arg(kvcsa_snapshot_load(NULL, path.text, NULL, NULL, NULL));
    arg(kvcsa_snapshot_load(s, NULL, NULL, NULL, &err));
    assert_int_equal(kvcsa_snapshot_load(s, "", NULL, NULL, &err), KVCSA_ERR_IO);
    arg(kvcsa_snapshot_write(NULL, &w, NULL, NULL, &err));
    arg(kvcsa_snapshot_write(s, NULL, NULL, NULL, &err));
    arg(kvcsa_snapshot_write(s, &w, NULL, NULL, &err));
    arg(kvcsa_snapshot_read(NULL, &r, NULL, NULL, &err));
    arg(kvcsa_snapshot_read(s, NULL, NULL, NULL, &err));
    arg(kvcsa_snapshot_read(s, &r, NULL, NULL, &err));
    arg(kvcsa_snapshot_inspect(NULL, NULL, &info, &err));
    arg(kvcsa_snapshot_inspect(path.text, NULL, NULL, NULL));
    arg(kvcsa_snapshot_remove(NULL, NULL, NULL));
    kvcsa_snapshot_params_default(NULL, sizeof p);
    info.struct_size = 3;
    arg(kvcsa_snapshot_save(s, path.text, NULL, &info, &err));
    info.struct_size = sizeof info;
    p.struct_size = 2;
    arg(kvcsa_snapshot_save(s, path.text, &p, NULL, &err));
    p = snap_params(NULL, 1u << 9);
    assert_int_equal(kvcsa_snapshot_save(s, path.text, &p, NULL, &err), KVCSA_ERR_UNSUPPORTED);
    assert_int_equal(kvcsa_snapshot_load(s, path.text, &p, NULL, &err), KVCSA_ERR_UNSUPPORTED);
    assert_int_equal(kvcsa_snapshot_size(s, &p, &n, &err), KVCSA_ERR_UNSUPPORTED);
    memset(text, 'n', sizeof text);
    text[65] = 0;
    for (size_t i = 0; i <= sizeof names / sizeof *names; i++) {
        p = snap_params(i < sizeof names / sizeof *names ? names[i] : text, 0);
        assert_fails(kvcsa_snapshot_save(s, dir.path, &p, NULL, &err), KVCSA_ERR_ARG, "name");
        arg(kvcsa_snapshot_load(s, dir.path, &p, NULL, &err));
        arg(kvcsa_snapshot_inspect(dir.path, &p, &info, &err));
        arg(kvcsa_snapshot_remove(dir.path, &p, &err));
    }
    assert_int_equal(snap_dir_count(&dir), 0);
    text[64] = 0; /* the longest name */
    snap_save(s, dir.path, text, 0);
    assert_int_equal(snap_load(s, dir.path, text, 0).n_tokens, 20);
    assert_int_equal(access(path.text, F_OK), -1);
    snap_go_on(&f->old, pool, s, 23);
#undef arg
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
}

/* No file at all, a folder of another kind, bytes of another kind. */
static void test_other_files_are_no_snapshots(void **state)
{
    const fixture      *f = *state;
    const snap_path     fifo = snap_in(&f->dir, "fifo");
    kvcsa_snapshot_info info = {.struct_size = sizeof info};
    char               *far = malloc(5002);
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *s = snap_session(&f->old, pool, f->model, 20);
    const char *others[] = {T1_DIR "/config.json", T1_DIR "/model-00001-of-00002.safetensors"};
    kvcsa_error err;

    for (size_t i = 0; i < 2; i++)
        assert_fails(kvcsa_snapshot_load(s, others[i], NULL, NULL, &err), KVCSA_ERR_FORMAT,
                     "snapshot");
    assert_int_equal(kvcsa_snapshot_load(s, T1_DIR, NULL, NULL, &err), KVCSA_ERR_IO);
    assert_int_not_equal(kvcsa_snapshot_load(s, "/dev/null", NULL, NULL, &err), KVCSA_OK);
    assert_int_equal(mkfifo(fifo.text, 0600), 0); /* nobody will ever write */
    assert_int_not_equal(kvcsa_snapshot_load(s, fifo.text, NULL, NULL, &err), KVCSA_OK);
    assert_int_not_equal(kvcsa_snapshot_inspect(fifo.text, NULL, &info, &err), KVCSA_OK);
    assert_int_not_equal(kvcsa_snapshot_remove(fifo.text, NULL, &err), KVCSA_OK);
    assert_int_equal(unlink(fifo.text), 0);
    assert_non_null(far);
    memset(far, 'x', 5001);
    far[0] = '/';
    far[5001] = 0;
    assert_int_equal(kvcsa_snapshot_load(s, far, NULL, NULL, &err), KVCSA_ERR_IO);
    assert_int_equal(err.detail, ENAMETOOLONG);
    assert_int_equal(kvcsa_snapshot_save(s, far, NULL, NULL, &err), KVCSA_ERR_IO);
    assert_int_equal(err.detail, ENAMETOOLONG);
    free(far);
    snap_assert_untouched(&f->old, pool, s, 20);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_callbacks_give_the_bytes_of_the_file),
        cmocka_unit_test(test_callbacks_that_fail),
        cmocka_unit_test(test_behaviour_01_truncated_file),
        cmocka_unit_test(test_behaviour_02_half_a_file),
        cmocka_unit_test(test_behaviour_03_other_weights),
        cmocka_unit_test(test_other_block_size_is_a_mismatch),
        cmocka_unit_test(test_behaviour_04_flipped_bytes),
        cmocka_unit_test(test_no_byte_of_the_header_can_change),
        cmocka_unit_test(test_behaviour_10_empty_session),
        cmocka_unit_test(test_behaviour_11_missing_path),
        cmocka_unit_test(test_behaviour_16_size),
        cmocka_unit_test(test_behaviour_17_a_new_session_is_empty),
        cmocka_unit_test(test_a_pool_without_room_changes_nothing),
        cmocka_unit_test(test_inspect_reads_the_header_only),
        cmocka_unit_test(test_behaviour_46_wrong_calls),
        cmocka_unit_test(test_other_files_are_no_snapshots),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
