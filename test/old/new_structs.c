/* A program of today that calls functions of 0.1 only, with today's structs, so that any library will load. Fields that the
 * library does not know are refused by name of their struct if they are set, and are 0 where it fills them in; nothing is
 * ignored.
 *
 *   new_structs MODEL VERSION     VERSION: of the library that it has to find, as kvcsa_version_number()
 */
#include <kvcsa.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t    library; /* its version */
static int         n_refused, n_taken;
static kvcsa_error err;

static void need(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "%s: %s\n", what, err.text);
    exit(1);
}
#define NEED(x) need((x), #x)

/* A call with a field that came in release `since` (200 = 0.2). */
static void judge(const char *field, uint32_t since, kvcsa_status st, const void *out)
{
    const size_t n = strcspn(field, ".");

    if (library >= since) {
        need(st == KVCSA_OK && out != NULL, field);
        n_taken++;
    } else {
        need(st == KVCSA_ERR_UNSUPPORTED && err.status == st && out == NULL, field);
        need(!strncmp(err.text, field, n) || strstr(err.text, "reserved"), field); /* cpu_avoid was reserved */
        n_refused++;
    }
}

static void try_model(const char *path)
{
    kvcsa_model_params p;
    kvcsa_model       *m = NULL;
    kvcsa_status       st;

    kvcsa_model_params_default(&p, sizeof p);
    p.plan = "{\"entry_format\": \"bf16\"}";
    st = kvcsa_model_open(path, &p, &m, &err);
    judge("kvcsa_model_params.plan", 300, st, m);
    kvcsa_model_release(&m);
}

static void try_pools(void)
{
    kvcsa_pool_params p;
    kvcsa_pool       *pool = NULL;
    kvcsa_status      st;

    kvcsa_pool_params_default(&p, sizeof p);
    p.evict = KVCSA_EVICT_LRU;
    st = kvcsa_pool_create(&p, &pool, &err);
    judge("kvcsa_pool_params.evict", 200, st, pool);
    kvcsa_pool_release(&pool);
    kvcsa_pool_params_default(&p, sizeof p);
    p.backend = KVCSA_BACKEND_CPU;
    st = kvcsa_pool_create(&p, &pool, &err);
    judge("kvcsa_pool_params.backend", 400, st, pool);
    kvcsa_pool_release(&pool);
    kvcsa_pool_params_default(&p, sizeof p);
    p.cpu_avoid = KVCSA_CPU_AVX512 | KVCSA_CPU_DOTPROD;
    st = kvcsa_pool_create(&p, &pool, &err);
    judge("kvcsa_pool_params.cpu_avoid", 400, st, pool);
    kvcsa_pool_release(&pool);
}

static void try_sessions(kvcsa_pool *pool, kvcsa_model *model)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_status         st;

    kvcsa_session_params_default(&p, sizeof p);
    p.window_slack_tokens = 8;
    st = kvcsa_session_create(pool, model, &p, &s, &err);
    judge("kvcsa_session_params.window_slack_tokens", 200, st, s);
    kvcsa_session_release(&s);
    kvcsa_session_params_default(&p, sizeof p);
    p.select_entries = 4;
    st = kvcsa_session_create(pool, model, &p, &s, &err);
    judge("kvcsa_session_params.select_entries", 300, st, s);
    kvcsa_session_release(&s);
}

static void try_append(kvcsa_session *s)
{
    kvcsa_append_params p;
    const int32_t       token = 300;
    uint64_t            length = 0;
    kvcsa_status        st;

    kvcsa_append_params_default(&p, sizeof p);
    p.reuse = KVCSA_REUSE_NONE;
    st = kvcsa_session_append(s, &token, 1, &p, &length, &err);
    judge("kvcsa_append_params.reuse", 200, st, length ? &length : NULL);
    if (st != KVCSA_OK) /* and without the field */
        NEED(kvcsa_session_append(s, &token, 1, NULL, &length, &err) == KVCSA_OK);
    NEED(length == 1);
}

/* What an older library does not know is 0 behind what it fills in. */
static void look(kvcsa_pool *pool, kvcsa_session *s, const kvcsa_model *model)
{
    kvcsa_pool_stats    ps;
    kvcsa_session_stats ss;
    kvcsa_model_info    info;

    memset(&ps, 0xEE, sizeof ps);
    memset(&ss, 0xEE, sizeof ss);
    memset(&info, 0xEE, sizeof info);
    ps.struct_size = sizeof ps;
    ss.struct_size = sizeof ss;
    info.struct_size = sizeof info;
    NEED(kvcsa_pool_get_stats(pool, &ps, &err) == KVCSA_OK && kvcsa_session_get_stats(s, &ss, &err) == KVCSA_OK &&
         kvcsa_model_get_info(model, &info, &err) == KVCSA_OK);
    NEED(ps.struct_size == sizeof ps && ps.n_sessions == 1 && ps.used_bytes > 0);
    NEED(ss.n_tokens == 1 && ss.n_computed_rows == 1 && info.n_layers > 0);
    NEED((ps.record_bytes > 0) == (library >= 200));
    NEED(ps.host_budget_bytes == 0 && ps.n_moved_in_blocks == 0);
    NEED((ss.total[0].n_rows + ss.total[1].n_rows + ss.total[2].n_rows + ss.total[3].n_rows > 0) == (library >= 300));
    NEED((info.span_tokens > 0) == (library >= 300));
}

int main(int argc, char **argv)
{
    kvcsa_model_params   mp;
    kvcsa_pool_params    pp;
    kvcsa_session_params sp;
    kvcsa_model         *model = NULL;
    kvcsa_pool          *pool = NULL;
    kvcsa_session       *s = NULL;
    int32_t              token = -1;

    NEED(argc == 3);
    library = kvcsa_version_number();
    NEED(library == (uint32_t)strtoul(argv[2], NULL, 10));
    /* Today's structs with nothing new in them are welcome everywhere. */
    kvcsa_model_params_default(&mp, sizeof mp);
    kvcsa_pool_params_default(&pp, sizeof pp);
    kvcsa_session_params_default(&sp, sizeof sp);
    pp.n_threads = 2;
    NEED(kvcsa_model_open(argv[1], &mp, &model, &err) == KVCSA_OK);
    NEED(kvcsa_pool_create(&pp, &pool, &err) == KVCSA_OK);
    NEED(kvcsa_session_create(pool, model, &sp, &s, &err) == KVCSA_OK);
    try_model(argv[1]);
    try_pools();
    try_sessions(pool, model);
    try_append(s);
    NEED(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err) == KVCSA_OK);
    NEED(kvcsa_session_sample(s, NULL, &token, &err) == KVCSA_OK && token >= 0);
    look(pool, s, model);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&model);
    printf("library %u: %d new fields taken, %d refused\n", library, n_taken, n_refused);
    return 0;
}
