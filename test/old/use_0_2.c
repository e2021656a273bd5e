/* A program of 0.2: forks, rewinds, prefixes, snapshots, with the structs of that release. */
#include "old_host.h"

enum { N = 300, CUT = 200, GENERATED = 12 };

static kvcsa_pool  *pool;
static kvcsa_model *model;
static uint64_t     n_events;
static kvcsa_error  err;

static void on_event(void *user, const kvcsa_trace_event *event)
{
    (void)user;
    NEED(event->struct_size >= sizeof *event && event->kind >= 1);
    n_events++;
}

static kvcsa_session *new_session(void)
{
    GUARDED(kvcsa_session_params) sp;
    kvcsa_session *s = NULL;

    PREPARE(sp);
    kvcsa_session_params_default(&sp.s, sizeof sp.s);
    UNTOUCHED(sp);
    sp.s.window_slack_tokens = 32;
    OK(kvcsa_session_create(pool, model, &sp.s, &s, &err));
    return s;
}

static void generate(const char *what, kvcsa_session *s)
{
    int32_t ids[GENERATED];

    OK(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err));
    for (int i = 0; i < GENERATED; i++) {
        OK(kvcsa_session_sample(s, NULL, &ids[i], &err));
        OK(kvcsa_session_append(s, &ids[i], 1, NULL, NULL, &err));
        OK(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err));
    }
    say_tokens(what, ids, GENERATED);
}

static void make_pool(void)
{
    const kvcsa_trace trace = {on_event, NULL};
    GUARDED(kvcsa_pool_params) pp;

    PREPARE(pp);
    kvcsa_pool_params_default(&pp.s, sizeof pp.s);
    UNTOUCHED(pp);
    pp.s.n_threads = 1;
    pp.s.trace = &trace;
    pp.s.evict = KVCSA_EVICT_LRU;
    OK(kvcsa_pool_create(&pp.s, &pool, &err));
}

static void prefixes(const int32_t *ids, kvcsa_session *s)
{
    GUARDED(kvcsa_reuse) reuse;
    GUARDED(kvcsa_append_params) ap;
    kvcsa_session *t = new_session();
    size_t         n = 0, n_pinned = 0;
    uint64_t       n_published = 0, freed = 0;

    PREPARE(reuse), PREPARE(ap);
    reuse.s.struct_size = sizeof reuse.s;
    kvcsa_append_params_default(&ap.s, sizeof ap.s);
    UNTOUCHED(ap);
    ap.s.reuse = KVCSA_REUSE_EXACT;
    OK(kvcsa_prefix_publish(s, &n_published, &err));
    OK(kvcsa_prefix_match(pool, model, 0, ids, N, &n, &err));
    NEED(n >= n_published && n_published > 0);
    OK(kvcsa_prefix_pin(pool, model, 0, ids, N, &n_pinned, &err));
    OK(kvcsa_session_append(t, ids, N, &ap.s, NULL, &err));
    OK(kvcsa_session_get_reuse(t, &reuse.s, &err));
    UNTOUCHED(reuse);
    printf("reuse: %llu adopted, %llu to compute\n", (unsigned long long)reuse.s.n_adopted, (unsigned long
           long)reuse.s.n_compute);
    generate("on a prefix", t);
    OK(kvcsa_prefix_unpin(pool, model, 0, ids, n_pinned, &err));
    kvcsa_session_release(&t);
    OK(kvcsa_prefix_forget(pool, model, 0, ids, N, &freed, &err));
    OK(kvcsa_pool_trim(pool, 0, &freed, &err));
    OK(kvcsa_pool_resize(pool, 1u << 27, &err));
}

static void timelines(const int32_t *ids, kvcsa_session *s)
{
    GUARDED(kvcsa_reuse) reuse;
    kvcsa_session *t = NULL;
    size_t         n_common = 0;

    PREPARE(reuse);
    reuse.s.struct_size = sizeof reuse.s;
    OK(kvcsa_session_fork(s, CUT, NULL, &t, &err));
    generate("forked", t);
    OK(kvcsa_session_rewind(t, CUT, &err));
    generate("rewound", t);
    OK(kvcsa_session_common_prefix(t, ids, N, &n_common, &err));
    OK(kvcsa_session_sync(t, ids, N, NULL, &reuse.s, &err));
    UNTOUCHED(reuse);
    NEED(n_common >= CUT && reuse.s.n_kept + reuse.s.n_adopted + reuse.s.n_compute == N);
    generate("synced", t);
    OK(kvcsa_session_erase(t, KVCSA_ERASE_SECURE, &err));
    NEED(kvcsa_session_length(t) == 0);
    kvcsa_session_release(&t);
}

static void snapshots(kvcsa_session *s, const char *path)
{
    GUARDED(kvcsa_snapshot_params) sp;
    GUARDED(kvcsa_snapshot_info) info;
    kvcsa_session *t = new_session();
    uint64_t       n_bytes = 0;

    PREPARE(sp), PREPARE(info);
    info.s.struct_size = sizeof info.s;
    kvcsa_snapshot_params_default(&sp.s, sizeof sp.s);
    UNTOUCHED(sp);
    sp.s.flags = KVCSA_SNAPSHOT_WINDOW;
    OK(kvcsa_snapshot_size(s, &sp.s, &n_bytes, &err));
    OK(kvcsa_snapshot_save(s, path, &sp.s, &info.s, &err));
    NEED(info.s.total_bytes == n_bytes && info.s.n_tokens == kvcsa_session_length(s));
    OK(kvcsa_snapshot_inspect(path, NULL, &info.s, &err));
    OK(kvcsa_snapshot_load(t, path, NULL, &info.s, &err));
    UNTOUCHED(info);
    generate("loaded", t);
    OK(kvcsa_snapshot_remove(path, NULL, &err));
    FAILS(kvcsa_snapshot_load(t, path, NULL, NULL, &err), KVCSA_ERR_IO);
    kvcsa_session_release(&t);
}

static void figures(kvcsa_session *s)
{
    GUARDED(kvcsa_estimate) estimate;
    GUARDED(kvcsa_session_stats) ss;
    GUARDED(kvcsa_pool_stats) ps;

    PREPARE(estimate), PREPARE(ss), PREPARE(ps);
    estimate.s.struct_size = sizeof estimate.s;
    ss.s.struct_size = sizeof ss.s;
    ps.s.struct_size = sizeof ps.s;
    OK(kvcsa_model_estimate(model, NULL, N, 1, 0, &estimate.s, &err));
    OK(kvcsa_session_get_stats(s, &ss.s, &err));
    OK(kvcsa_pool_get_stats(pool, &ps.s, &err));
    UNTOUCHED(estimate);
    UNTOUCHED(ss);
    UNTOUCHED(ps);
    NEED(estimate.s.block_bytes > 0 && ss.s.block_bytes > 0 && ps.s.used_bytes > 0 && n_events > 0);
    OK(kvcsa_pool_check(pool, &err));
}

int main(int argc, char **argv)
{
    static int32_t ids[N];
    kvcsa_session *s;

    NEED(argc == 3);
    NEED(kvcsa_version_number() >= KVCSA_VERSION_NUMBER);
    OK(kvcsa_model_open(argv[1], NULL, &model, &err));
    for (int i = 0; i < N; i++)
        ids[i] = 260 + i * 37 % 200;
    make_pool();
    s = new_session();
    OK(kvcsa_session_append(s, ids, N, NULL, NULL, &err));
    OK(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err));
    figures(s);
    timelines(ids, s);
    snapshots(s, argv[2]);
    prefixes(ids, s);
    generate("the first session", s);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&model);
    printf("0.2: done\n");
    return 0;
}
