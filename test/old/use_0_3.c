/* A program of 0.3: counted work, hiding, comparisons, costs, with the structs of that release. */
#include "old_host.h"

enum { N = 256 };

static kvcsa_error err;

static void costs(const kvcsa_model *model)
{
    GUARDED(kvcsa_serving_params) sp;
    GUARDED(kvcsa_serving_cost) sc;
    GUARDED(kvcsa_resume_params) rp;
    GUARDED(kvcsa_resume_cost) rc;
    GUARDED(kvcsa_agent_params) ap;
    GUARDED(kvcsa_agent_cost) ac;
    GUARDED(kvcsa_synth_params) yp;

    PREPARE(sp), PREPARE(sc), PREPARE(rp), PREPARE(rc), PREPARE(ap), PREPARE(ac), PREPARE(yp);
    sc.s.struct_size = sizeof sc.s;
    rc.s.struct_size = sizeof rc.s;
    ac.s.struct_size = sizeof ac.s;
    kvcsa_serving_params_default(&sp.s, sizeof sp.s);
    kvcsa_resume_params_default(&rp.s, sizeof rp.s);
    kvcsa_agent_params_default(&ap.s, sizeof ap.s);
    kvcsa_synth_params_default(&yp.s, sizeof yp.s);
    sp.s.n_tokens = rp.s.n_tokens = ap.s.context_tokens = 1000;
    rp.s.tier_bytes_per_second = rp.s.flops_per_token = 1e9;
    rp.s.flops_per_second = 1e12;
    ap.s.n_calls = 10;
    OK(kvcsa_model_serving_cost(model, &sp.s, &sc.s, &err));
    OK(kvcsa_model_resume_cost(model, &rp.s, &rc.s, &err));
    OK(kvcsa_agent_get_cost(&ap.s, &ac.s, &err));
    UNTOUCHED(sp);
    UNTOUCHED(sc);
    UNTOUCHED(rp);
    UNTOUCHED(rc);
    UNTOUCHED(ap);
    UNTOUCHED(ac);
    UNTOUCHED(yp);
    printf("cost: %llu bytes, %llu to load, %llu tokens missed\n", (unsigned long long)sc.s.resident_bytes,
           (unsigned long long)rc.s.n_bytes, (unsigned long long)ac.s.n_miss_tokens);
}

static void work(kvcsa_pool *pool, kvcsa_model *model, const int32_t *ids)
{
    GUARDED(kvcsa_session_params) sp;
    GUARDED(kvcsa_session_stats) ss;
    kvcsa_session *s = NULL;
    kvcsa_work     total;
    double         mass[N];
    size_t         n_spans = 0;

    PREPARE(sp), PREPARE(ss);
    ss.s.struct_size = sizeof ss.s;
    kvcsa_session_params_default(&sp.s, sizeof sp.s);
    UNTOUCHED(sp);
    sp.s.flags = KVCSA_SESSION_TRACK_MASS;
    OK(kvcsa_session_create(pool, model, &sp.s, &s, &err));
    OK(kvcsa_session_append(s, ids, N, NULL, NULL, &err));
    OK(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err));
    OK(kvcsa_session_layer_work(s, 0, NULL, &total, &err));
    OK(kvcsa_session_get_mass(s, mass, N, &n_spans, 0, &err));
    OK(kvcsa_session_hide(s, 0, UINT64_MAX, 1, &err));
    OK(kvcsa_session_get_stats(s, &ss.s, &err));
    UNTOUCHED(ss);
    printf("work: %llu rows of layer 0, %zu spans\n", (unsigned long long)total.n_rows, n_spans);
    kvcsa_session_release(&s);
}

static void compare(kvcsa_pool *pool, kvcsa_model *model, const int32_t *ids)
{
    GUARDED(kvcsa_setting) reference, test;
    GUARDED(kvcsa_session_params) sp;
    GUARDED(kvcsa_compare_result) result;
    kvcsa_compare    *c = NULL;
    kvcsa_compare_row row;
    int32_t           generated[8];
    uint64_t          same;
    size_t            n = 0;

    PREPARE(reference), PREPARE(test), PREPARE(sp), PREPARE(result);
    kvcsa_setting_default(&reference.s, sizeof reference.s);
    kvcsa_setting_default(&test.s, sizeof test.s);
    kvcsa_session_params_default(&sp.s, sizeof sp.s);
    result.s.struct_size = sizeof result.s;
    reference.s.model = test.s.model = model;
    reference.s.pool = test.s.pool = pool;
    sp.s.flags = KVCSA_SESSION_WINDOW_ONLY;
    test.s.session = &sp.s;
    OK(kvcsa_compare_create(NULL, &c, &err));
    OK(kvcsa_compare_text(&reference.s, &test.s, &c, 1, ids, N, 0, NULL, &err));
    OK(kvcsa_compare_greedy(&reference.s, &test.s, &c, 1, ids, 32, 4, generated, NULL, &err));
    OK(kvcsa_compare_get_result(c, &result.s, &err));
    OK(kvcsa_compare_get_rows(c, 0, &row, 1, &n, &err));
    NEED(n == result.s.n_rows && n > 0);
    OK(kvcsa_compare_get_greedy(c, &same, 1, &n, &err));
    NEED(n == 1 && result.s.n_greedy == 1);
    UNTOUCHED(reference);
    UNTOUCHED(test);
    UNTOUCHED(result);
    printf("compared: %llu rows, %llu flips\n", (unsigned long long)result.s.n_rows, (unsigned long long)result.s.n_flips);
    say_tokens("greedy", generated, 8);
    kvcsa_compare_release(&c);
}

int main(int argc, char **argv)
{
    static int32_t ids[N];
    GUARDED(kvcsa_model_params) mp;
    kvcsa_model *model = NULL;
    kvcsa_pool  *pool = NULL;

    NEED(argc == 2);
    NEED(kvcsa_version_number() >= KVCSA_VERSION_NUMBER);
    NEED(!strcmp(kvcsa_format_name(KVCSA_FORMAT_BF16), "bf16"));
    PREPARE(mp);
    kvcsa_model_params_default(&mp.s, sizeof mp.s);
    UNTOUCHED(mp);
    mp.s.plan = "{\"entry_format\": \"bf16\"}";
    OK(kvcsa_model_open(argv[1], &mp.s, &model, &err));
    OK(kvcsa_pool_create(NULL, &pool, &err));
    for (int i = 0; i < N; i++)
        ids[i] = 260 + i * 37 % 200;
    costs(model);
    work(pool, model, ids);
    compare(pool, model, ids);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&model);
    printf("0.3: done\n");
    return 0;
}
