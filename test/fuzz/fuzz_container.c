/* A snapshot file, read into a session: once as it is, once with checksums, counts and the domain
 * mended, so that what lies behind them is reached too. Whatever the bytes, the session is as
 * before or holds a snapshot that can be saved again, and the pool's counts hold.
 *
 * The session is one of test/data/t1 without weights: chunks are committed uncomputed. The stored
 * inputs are what kvcsa_snapshot_write gave for sessions of that checkpoint, block_tokens 16. */
#include "format/container.h"
#include "session/session.h"
#include "session/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNIT KVI_SNAP_UNIT
#define HELD 21u /* tokens that the session holds before: a block and a tail */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

typedef struct source {
    const uint8_t *data;
    size_t         n, at;
} source;

static int64_t read_source(void *user, void *data, size_t n)
{
    source      *s = user;
    const size_t left = s->n - s->at;
    const size_t k = left < n ? left : n;

    memcpy(data, s->data + s->at, k);
    s->at += k;
    return (int64_t)k;
}

static int32_t count_bytes(void *user, const void *data, size_t n)
{
    volatile uint8_t last = n ? ((const uint8_t *)data)[n - 1] : 0;

    (void)last;
    *(uint64_t *)user += n;
    return 0;
}

static void must(int ok, const char *what, const kvcsa_error *err)
{
    if (ok)
        return;
    fprintf(stderr, "%s: %s\n", what, err->text);
    abort();
}

static void hold_tokens(kvcsa_pool *pool, kvcsa_session *s)
{
    int32_t     ids[HELD];
    kvcsa_error err = {0};

    for (int32_t i = 0; i < (int32_t)HELD; i++)
        ids[i] = 3 + i;
    kvcsa_prefix_forget(pool, NULL, 0, NULL, 0, NULL, &err);
    must(kvcsa_session_erase(s, 0, &err) == KVCSA_OK &&
             kvcsa_session_append(s, ids, HELD, NULL, NULL, &err) == KVCSA_OK &&
             kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err) == KVCSA_OK,
         "a session of its own tokens", &err);
}

static kvcsa_session *make_session(kvcsa_pool **out)
{
    kvcsa_model_params   mp;
    kvcsa_pool_params    pp;
    kvcsa_session_params sp;
    kvcsa_model         *model = NULL;
    kvcsa_session       *s = NULL;
    kvcsa_error          err = {0};

    kvcsa_model_params_default(&mp, sizeof mp);
    mp.flags = KVCSA_MODEL_PLAN_ONLY;
    mp.block_tokens = 16;
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.n_threads = 1;
    pp.budget_bytes = 1u << 20; /* too little for some inputs */
    pp.flags = KVCSA_POOL_FILL_FREED;
    kvcsa_session_params_default(&sp, sizeof sp);
    sp.window_slack_tokens = 4;
    must(kvcsa_model_open("test/data/t1/config.json", &mp, &model, &err) == KVCSA_OK &&
             kvcsa_pool_create(&pp, out, &err) == KVCSA_OK &&
             kvi_session_create(*out, model, &sp, 1, &s, &err) == KVCSA_OK,
         "session", &err);
    kvcsa_model_release(&model);
    hold_tokens(*out, s);
    return s;
}

static void put_hash(uint8_t *p, kvi_hash128 v)
{
    memcpy(p, &v.lo, 8);
    memcpy(p + 8, &v.hi, 8);
}

/* Header of this session's domain, checksums of all records that are there. */
static void mend(uint8_t *bytes, size_t n, const kvcsa_session *s)
{
    const kvi_domain *d = kvi_prefix_root_domain(s->root);
    const uint64_t    words[] = {d->weights, d->adapter, d->plan, d->numerics};
    kvi_snap_header   h;

    if (n < UNIT)
        return;
    memcpy(bytes + 24, words, sizeof words);
    memcpy(bytes + 64, &d->version, 8);
    kvi_snap_mend_header(bytes);
    if (kvi_snap_header_decode(bytes, n, KVI_SNAP_FILE, &h, NULL) != KVCSA_OK)
        return;
    for (uint64_t i = 0; i < h.n_records; i++) {
        kvi_snap_record r;
        uint64_t        at = 0;
        uint8_t        *head;
        uint8_t        *data;

        kvi_snap_expect(&h, i, &r, &at);
        if (at > n || kvi_snap_record_bytes(&r) > n - at)
            return;
        head = bytes + at;
        data = head + KVI_SNAP_HEAD_BYTES;
        put_hash(head + 80, r.ids_bytes ? kvi_hash128_of(data, r.ids_bytes, 0) : (kvi_hash128){0});
        data += r.ids_bytes;
        for (int p = 0; p < KVI_SNAP_PARTS; p++) {
            if (r.part_bytes[p])
                put_hash(head + 96 + 16 * p, kvi_hash128_of(data, r.part_bytes[p], 0));
            data += r.part_bytes[p];
        }
        kvi_snap_mend_record(head);
    }
}

static void try_bytes(kvcsa_pool *pool, kvcsa_session *s, const uint8_t *data, size_t n)
{
    const uint32_t      flags = (uint32_t)(n % 8) << 2; /* ANY_MODEL, ANY_NUMERICS, SALVAGE */
    source              src = {data, n, 0};
    const kvcsa_reader  reader = {.read = read_source, .user = &src};
    uint64_t            written = 0;
    uint64_t            size = 0;
    const kvcsa_writer  writer = {.write = count_bytes, .user = &written};
    kvcsa_snapshot_info info = {.struct_size = sizeof info};
    kvcsa_error         err = {0};
    const kvcsa_status  st = kvi_snapshot_read(s, &reader, flags, &info, &err);

    if (st == KVCSA_OK) {
        const uint32_t all = KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS;

        must(info.n_tokens == s->now.n_tokens, "length", &err);
        must(kvi_snapshot_size(s, all, &size, &err) == KVCSA_OK &&
                 kvi_snapshot_write(s, &writer, all, NULL, &err) == KVCSA_OK && size == written,
             "saved again", &err);
        /* the next step may not find room; it must not find nonsense */
        (void)kvcsa_pool_step(pool, &s, 1, NULL, NULL, NULL);
    } else {
        must(s->now.n_tokens == HELD, "the session has changed", &err);
    }
    must(kvcsa_pool_check(pool, &err) == KVCSA_OK, "pool", &err);
    if (st == KVCSA_OK)
        hold_tokens(pool, s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static kvcsa_pool    *pool;
    static kvcsa_session *s;
    uint8_t              *copy = malloc(n_bytes ? n_bytes : 1);

    if (!s)
        s = make_session(&pool);
    try_bytes(pool, s, data, n_bytes);
    if (copy) {
        memcpy(copy, data, n_bytes);
        mend(copy, n_bytes, s);
        try_bytes(pool, s, copy, n_bytes);
    }
    free(copy);
    return 0;
}
