/* The bytes of snapshots: hostile ones, those of other versions, and how many there are at the
 * release's geometry.
 *
 * Started as `test_snapshot_bytes --make-golden DIR` the program writes the files that
 * test/golden/snapshot/README.md describes. */
#include "format/container.h"
#include "session/session.h"
#include "support/snap.h"

#define FULL (KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS)
#define NA 60u
#define NB 75u

typedef struct fixture {
    kvcsa_model   *model; /* blocks of 16 tokens */
    snap_run       run;
    kvcsa_pool    *pool;
    kvcsa_session *a;     /* run.ids[NA] */
    kvcsa_session *b;     /* run.ids[NB] */
    snap_dir       dir;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->model = host_model_in_blocks(16);
    snap_run_make(&f->run, f->model, 321);
    f->pool = host_pool(1, 0);
    f->a = snap_session(&f->run, f->pool, f->model, NA);
    f->b = snap_session(&f->run, f->pool, f->model, NB);
    f->dir = snap_dir_make();
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    kvcsa_session_release(&f->a);
    kvcsa_session_release(&f->b);
    kvcsa_pool_release(&f->pool);
    kvcsa_model_release(&f->model);
    snap_run_free(&f->run);
    snap_dir_remove(&f->dir);
    free(f);
    return 0;
}

/* ------------------------------------------------------------------ hostile bytes */

/* Bytes that somebody has made, checksums and all. Whatever comes of it, it is a status; after a
 * refusal the session is as it was, else it holds what the header says and can go on. */
static kvcsa_status try_bytes(const fixture *f, snap_bytes *b, const char *dir)
{
    const kvcsa_snapshot_params none = snap_params(NULL, 0);
    kvcsa_pool                 *pool = host_pool(1, 0);
    kvcsa_session              *s = host_session(pool, f->model, 0);
    kvcsa_snapshot_info         info = {.struct_size = sizeof info};
    kvcsa_error                 err;
    kvcsa_status                st;

    assert_ok(kvcsa_session_append(s, f->run.ids, 1, NULL, NULL, &err));
    host_step(pool, s);
    b->at = 0;
    st = dir ? kvcsa_snapshot_load(s, dir, &none, &info, &err)
             : kvcsa_snapshot_read(s, &(kvcsa_reader){snap_give, b}, &none, &info, &err);
    if (st != KVCSA_OK) {
        snap_assert_untouched(&f->run, pool, s, 1);
        assert_true(st == KVCSA_ERR_FORMAT || st == KVCSA_ERR_CORRUPT || st == KVCSA_ERR_LIMIT ||
                    st == KVCSA_ERR_MISMATCH || st == KVCSA_ERR_UNSUPPORTED ||
                    st == KVCSA_ERR_IO);
    } else {
        assert_int_equal(kvcsa_session_length(s), info.n_tokens);
        assert_ok(kvcsa_pool_check(pool, &err));
        assert_ok(kvcsa_session_append(s, f->run.ids, 2, NULL, NULL, &err));
        host_step(pool, s);
    }
    kvcsa_session_release(&s);
    assert_ok(kvcsa_pool_check(pool, &err));
    kvcsa_pool_release(&pool);
    return st;
}

static const uint64_t hostile[] = {
    0, 1, 15, 0x7FFFFFFF, 0xFFFFFFFF, 0x100000000, 0x7FFFFFFFFFFFFFFF, UINT64_MAX};
#define N_HOSTILE (sizeof hostile / sizeof *hostile)

/* Every field of the header and of a head of each kind, with values that break arithmetic. */
static void test_behaviour_46_hostile_headers(void **state)
{
    const fixture  *f = *state;
    snap_bytes           b = {.data = malloc(1 << 20), .n = 1 << 20};
    uint8_t         unit[SNAP_PAGE];
    kvi_snap_header h;
    uint32_t        n_refused = 0;
    kvcsa_error     err;
    const kvcsa_snapshot_params full = snap_params(NULL, FULL);

    assert_non_null(b.data);
    assert_ok(kvcsa_snapshot_write(f->b, &(kvcsa_writer){snap_take, &b}, &full, NULL, &err));
    b.n = b.at;
    assert_int_equal(try_bytes(f, &b, NULL), KVCSA_OK);
    assert_ok(kvi_snap_header_decode(b.data, b.n, KVI_SNAP_FILE, &h, &err));
    /* 2^32 - 1 tokens, and everything else to fit */
    memcpy(unit, b.data, sizeof unit);
    h.n_tokens = 0xFFFFFFFF;
    h.window_lo = h.n_tokens - 16;
    h.raw_lo = h.n_tokens - 1;
    assert_ok(kvi_snap_header_count(&h, &err));
    kvi_snap_header_encode(&h, b.data);
    assert_int_equal(try_bytes(f, &b, NULL), KVCSA_ERR_LIMIT);
    memcpy(b.data, unit, sizeof unit);
    assert_ok(kvi_snap_header_decode(b.data, b.n, KVI_SNAP_FILE, &h, &err));
    for (size_t at = 12; at < 176; at += 4)
        for (size_t v = 0; v < N_HOSTILE; v++) {
            memcpy(unit, b.data, sizeof unit);
            memcpy(b.data + at, &hostile[v], at < 112 ? 4 : 8);
            kvi_snap_mend_header(b.data);
            n_refused += try_bytes(f, &b, NULL) != KVCSA_OK;
            memcpy(b.data, unit, sizeof unit);
        }
    assert_true(n_refused > 200);
    n_refused = 0;
    for (uint32_t kind = KVI_RECORD_BLOCK; kind <= KVI_RECORD_LOGITS; kind++) {
        kvi_snap_record r;
        uint64_t        off = 0;

        assert_true(kvi_snap_first(&h, kind) < h.n_records);
        kvi_snap_expect(&h, kvi_snap_first(&h, kind), &r, &off);
        for (size_t at = 8; at < 160; at += 4)
            for (size_t v = 2; v < N_HOSTILE; v += 2) {
                memcpy(unit, b.data + off, KVI_SNAP_HEAD_BYTES);
                memcpy(b.data + off + at, &hostile[v], at < 48 ? 4 : 8);
                kvi_snap_mend_record(b.data + off);
                n_refused += try_bytes(f, &b, NULL) != KVCSA_OK;
                memcpy(b.data + off, unit, KVI_SNAP_HEAD_BYTES);
            }
    }
    assert_true(n_refused > 300);
    /* token ids that no vocabulary has */
    for (size_t v = 4; v < N_HOSTILE; v++) {
        const uint32_t  id = v == 4 ? 511 : (uint32_t)hostile[v]; /* 511 is the image token */
        const size_t    off = SNAP_PAGE;
        kvi_hash128     sum;

        memcpy(unit, b.data + off, SNAP_PAGE);
        memcpy(b.data + off + KVI_SNAP_HEAD_BYTES, &id, 4);
        sum = kvi_hash128_of(b.data + off + KVI_SNAP_HEAD_BYTES, 16 * 4, 0);
        memcpy(b.data + off + 80, &sum, sizeof sum);
        kvi_snap_mend_record(b.data + off);
        assert_true(try_bytes(f, &b, NULL) != KVCSA_OK);
        memcpy(b.data + off, unit, SNAP_PAGE);
    }
    assert_int_equal(try_bytes(f, &b, NULL), KVCSA_OK);
    free(b.data);
}

/* Every field of an entry, with the checksum of the table made right. */
static void test_behaviour_46_hostile_manifests(void **state)
{
    const fixture  *f = *state;
    snap_dir        dir = snap_dir_make_in(&f->dir, "manifest");
    const snap_path man = snap_in(&dir, "default.kvman");
    uint32_t        n_refused = 0;
    size_t          n = 0;
    uint8_t        *good;

    snap_save(f->b, dir.path, NULL, FULL);
    good = (uint8_t *)read_file(man.text, &n);
    assert_int_equal(n, 2 * SNAP_PAGE);
    for (size_t entry = 0; entry < 7; entry += 3)
        for (size_t at = 0; at < 64; at += 4)
            for (size_t v = 0; v < N_HOSTILE; v += 3) {
                uint8_t     bad[2 * SNAP_PAGE];
                kvi_hash128 sum;

                memcpy(bad, good, n);
                memcpy(bad + SNAP_PAGE + entry * 64 + at, &hostile[v], at < 48 ? 8 : 4);
                sum = kvi_hash128_of(bad + SNAP_PAGE, SNAP_PAGE, 0);
                memcpy(bad + 160, &sum, sizeof sum);
                kvi_snap_mend_header(bad);
                snap_write_file(man.text, bad, n);
                n_refused += try_bytes(f, &(snap_bytes){0}, dir.path) != KVCSA_OK;
            }
    assert_true(n_refused > 100);
    snap_write_file(man.text, good, n);
    assert_int_equal(try_bytes(f, &(snap_bytes){0}, dir.path), KVCSA_OK);
    free(good);
    snap_dir_remove(&dir);
}

/* ------------------------------------------------------------------ versions */

#define GOLDEN_DIR "test/golden/snapshot"
#define N_GOLDEN 33u

/* What this version writes, for test/golden/snapshot/README.md. */
static int make_golden(const char *out)
{
    kvcsa_model_params mp;
    kvcsa_model       *model = NULL;
    kvcsa_pool        *pool = NULL;
    kvcsa_session     *s = NULL;
    int32_t            ids[N_GOLDEN];
    char               file[512];
    kvcsa_error        err = {0};
    const kvcsa_snapshot_params p = {.struct_size = sizeof p, .name = "golden", .flags = FULL};

    kvcsa_model_params_default(&mp, sizeof mp);
    mp.block_tokens = 16;
    host_tokens(ids, N_GOLDEN, 321);
    (void)snprintf(file, sizeof file, "%s/version-1.kvs", out);
    if (kvcsa_model_open(T1_DIR, &mp, &model, &err) != KVCSA_OK ||
        kvcsa_pool_create(NULL, &pool, &err) != KVCSA_OK ||
        kvcsa_session_create(pool, model, NULL, &s, &err) != KVCSA_OK ||
        kvcsa_session_append(s, ids, N_GOLDEN, NULL, NULL, &err) != KVCSA_OK ||
        kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err) != KVCSA_OK ||
        kvcsa_snapshot_save(s, file, &p, NULL, &err) != KVCSA_OK ||
        kvcsa_snapshot_save(s, out, &p, NULL, &err) != KVCSA_OK)
        fprintf(stderr, "%s\n", err.text);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&model);
    return err.status != KVCSA_OK;
}

/* Files of version 1 are read for ever. As long as the numerics are those that made them, they are
 * written the same, too. */
static void test_behaviour_52_version_1_is_read(void **state)
{
    const fixture  *f = *state;
    const snap_path again = snap_in(&f->dir, "again");

    for (int i = 0; i < 2; i++) {
        const char         *path = i ? GOLDEN_DIR : GOLDEN_DIR "/version-1.kvs";
        kvcsa_pool         *pool = host_pool(1, 0);
        kvcsa_session      *s = host_session(pool, f->model, 0);
        kvcsa_snapshot_info info, now;
        float               logits[T1_VOCAB];

        now = snap_save(f->a, again.text, NULL, 0);
        info = snap_load(s, path, "golden", KVCSA_SNAPSHOT_ANY_NUMERICS);
        assert_int_equal(info.version, 1);
        assert_int_equal(info.sections, FULL);
        assert_true(info.fingerprint == now.fingerprint);
        snap_assert_tokens(&f->run, s, N_GOLDEN);
        host_logits(s, logits, T1_VOCAB);
        for (uint32_t k = 0; k < T1_VOCAB; k++)
            assert_float_equal(logits[k], snap_row(&f->run, N_GOLDEN - 1)[k], 1e-3f);
        if (info.numerics == now.numerics) {
            snap_assert_untouched(&f->run, pool, s, N_GOLDEN);
            snap_save(s, again.text, NULL, FULL);
            if (!i)
                snap_assert_files_equal(again.text, path);
            snap_go_on(&f->run, pool, s, N_GOLDEN + 8);
        }
        assert_int_equal(unlink(again.text), 0);
        kvcsa_session_release(&s);
        kvcsa_pool_release(&pool);
    }
}

/* Another version says which it is, and nothing is written over it. */
static void test_behaviour_52_another_version_is_refused_by_name(void **state)
{
    const fixture      *f = *state;
    kvcsa_snapshot_info info = {.struct_size = sizeof info};
    kvcsa_error         err;

    for (int is_dir = 0; is_dir < 2; is_dir++) {
        snap_dir        dir = snap_dir_make_in(&f->dir, "version");
        const snap_path at = snap_in(&dir, is_dir ? "." : "file");
        const snap_path file = is_dir ? snap_in(&dir, "default.kvman") : at;
        kvcsa_pool     *pool = host_pool(1, 0);
        kvcsa_session  *s = snap_session(&f->run, pool, f->model, 20);
        size_t          n = 0, n_now = 0;
        char           *text, *now;

            snap_save(f->a, at.text, NULL, 0);
        text = read_file(file.text, &n);
        text[8] = 2;
        snap_write_file(file.text, text, n);
        assert_fails(kvcsa_snapshot_load(s, at.text, NULL, NULL, &err), KVCSA_ERR_UNSUPPORTED,
                     "version is 2");
        snap_assert_untouched(&f->run, pool, s, 20);
        assert_fails(kvcsa_snapshot_inspect(at.text, NULL, &info, &err),
                     KVCSA_ERR_UNSUPPORTED, "version is 2");
        if (is_dir) {
            assert_true(kvcsa_snapshot_save(s, at.text, NULL, NULL, &err) != KVCSA_OK);
            now = read_file(file.text, &n_now);
            assert_int_equal(n_now, n);
            assert_memory_equal(now, text, n);
            free(now);
        }
        free(text);
        kvcsa_session_release(&s);
        kvcsa_pool_release(&pool);
        snap_dir_remove(&dir);
    }
}

/* ------------------------------------------------------------------ the release's figures */

typedef struct large { /* the released plan; blocks are not computed */
    kvcsa_model   *model;
    kvcsa_pool    *pool;
    kvcsa_session *s;
} large;

static large large_make(void)
{
    large                l = {0};
    kvcsa_model_params   mp;
    kvcsa_session_params sp;
    kvcsa_error          err;

    kvcsa_model_params_default(&mp, sizeof mp);
    mp.flags = KVCSA_MODEL_PLAN_ONLY;
    assert_ok(kvcsa_model_open(RELEASE_CONFIG, &mp, &l.model, &err));
    l.pool = host_pool(1, 0);
    kvcsa_session_params_default(&sp, sizeof sp);
    sp.chunk_tokens = 512;
    assert_ok(kvi_session_create(l.pool, l.model, &sp, 1, &l.s, &err));
    return l;
}

static void large_release(large *l)
{
    kvcsa_session_release(&l->s);
    kvcsa_pool_release(&l->pool);
    kvcsa_model_release(&l->model);
}

static void large_run(large *l, size_t n, uint64_t seed)
{
    int32_t *ids = malloc(n * sizeof *ids);

    assert_non_null(ids);
    host_tokens(ids, n, seed);
    host_run(l->pool, l->s, ids, n, NULL);
    free(ids);
}

/* Twenty turns of 512 tokens with a checkpoint at each: about one copy is written. */
static void test_behaviour_20_twenty_turns(void **state)
{
    const fixture   *f = *state;
    snap_dir         d = snap_dir_make_in(&f->dir, "turns");
    large            l = large_make();
    uint64_t         written = 0, size = 0;
    kvcsa_pool_stats st;
    kvcsa_error      err;

    for (uint64_t turn = 0; turn < 20; turn++) {
        kvcsa_snapshot_info info;

        large_run(&l, 512, 400 + turn);
        info = snap_save(l.s, d.path, NULL, 0);
        assert_int_equal(info.n_written_records, 4);
        assert_int_equal(info.n_shared_records, 4 * turn);
        written += info.written_bytes;
    }
    assert_ok(kvcsa_snapshot_size(l.s, NULL, &size, &err));
    st = snap_pool_stats(l.pool);
    assert_int_equal(st.n_saved_bytes, written);
    assert_int_equal(st.n_saved_records, 80);
    assert_true(written >= 80u * 114688);
    assert_true(written < size + size / 25); /* 1.04 copies: 80 records, 20 times three pages */
    assert_true(snap_dir_bytes(&d) < size + size / 50);
    large_release(&l);
    snap_dir_remove(&d);
}

/* 890 bytes a token, a header page, and a record of 128 tokens is 114,688 bytes. */
static void test_behaviour_16_size_at_release_geometry(void **state)
{
    const fixture  *f = *state;
    const snap_path path = snap_in(&f->dir, "large");
    large           l = large_make();
    uint64_t        size = 0, before = 0;
    kvcsa_error     err;

    large_run(&l, 300, 7);
    assert_ok(kvcsa_snapshot_size(l.s, NULL, &size, &err));
    snap_save(l.s, path.text, NULL, 0);
    assert_int_equal(snap_file_size(path.text), size);
    assert_int_equal(size, SNAP_PAGE + 3 * 114688); /* the third block holds 44 tokens */
    large_run(&l, 84, 8);
    assert_ok(kvcsa_snapshot_size(l.s, NULL, &before, &err));
    large_run(&l, 128 * 3, 9);
    assert_ok(kvcsa_snapshot_size(l.s, NULL, &size, &err));
    assert_int_equal(size - before, 3 * 114688);
    large_release(&l);
    assert_int_equal(unlink(path.text), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_behaviour_46_hostile_headers),
        cmocka_unit_test(test_behaviour_46_hostile_manifests),
        cmocka_unit_test(test_behaviour_52_version_1_is_read),
        cmocka_unit_test(test_behaviour_52_another_version_is_refused_by_name),
        cmocka_unit_test(test_behaviour_20_twenty_turns),
        cmocka_unit_test(test_behaviour_16_size_at_release_geometry),
    };

    if (argc == 3 && strcmp(argv[1], "--make-golden") == 0)
        return make_golden(argv[2]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
