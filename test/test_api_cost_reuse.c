/* What is saved by keeping a cache: kvcsa_model_resume_cost (load or recompute) and
 * kvcsa_agent_get_cost, by figures that were worked out by hand elsewhere, and every wrong call. */
#include "support/cost_case.h"
#include "support/prng.h"

static uint64_t seed = 1;

/* ------------------------------------------------------------------ load or recompute */

static kvcsa_resume_params resume_params(uint64_t n_tokens)
{
    kvcsa_resume_params p;

    kvcsa_resume_params_default(&p, sizeof p);
    p.n_tokens = n_tokens;
    p.tier_bytes_per_second = 5e9;
    p.flops_per_token = 16e9;
    p.flops_per_second = 400e12;
    return p;
}

static kvcsa_resume_cost resume(const kvcsa_model *m, const kvcsa_resume_params *p)
{
    kvcsa_resume_cost c = {.struct_size = sizeof c};
    kvcsa_error       err;

    assert_ok(kvcsa_model_resume_cost(m, p, &c, &err));
    return c;
}

static void test_v41_load_or_recompute(void **state)
{
    kvcsa_model        *m = host_plan(V41_CONFIG, NULL, NULL);
    kvcsa_resume_params p = resume_params(50000);
    kvcsa_resume_cost   c = resume(m, &p);

    (void)state;
    assert_int_equal(c.n_bytes, 44500000);
    assert_printed(c.load_seconds / 50000 * 1e6, 0.18, 0.005);
    assert_printed(c.recompute_seconds / 50000 * 1e6, 40, 1e-9);
    assert_true(c.ratio > 200);
    assert_double(c.ratio, c.recompute_seconds / c.load_seconds);
    assert_true(c.replay_seconds == 0 && c.n_parked == 0);
    assert_double(c.break_even_bytes_per_second, 44500000 / 2.0);
    p.n_replay_tokens = 128;
    p.tier_bytes = 100e6;
    c = resume(m, &p);
    assert_double(c.replay_seconds, 128 * 40e-6);
    assert_double(c.ratio, 2 / (0.0089 + 0.00512));
    assert_true(c.n_parked == 2);
    p.tier_bytes_per_second = c.break_even_bytes_per_second;
    assert_double(resume(m, &p).ratio, 1);
    p.n_tokens = MI;
    p.n_replay_tokens = 0;
    p.tier_bytes_per_second = 64e9;
    assert_printed(resume(m, &p).load_seconds, 0.015, 0.0005);
    p.tier_bytes_per_second = 5e9;
    assert_printed(resume(m, &p).load_seconds, 0.19, 0.005);
    assert_int_equal(cost_of(m, MI).index_part_bytes, 170 * 128); /* what must stay near */
    kvcsa_model_release(&m);
}

/* A hit of 50,000 tokens, in MB as printed. */
static void test_bytes_of_a_hit(void **state)
{
    static const struct {
        const char *file;
        double      megabytes, half_digit;
    } models[] = {{V41_CONFIG, 44.5, 0.05},
                  {CONFIGS "deepseek-v4-flash.json", 175.7, 0.05},
                  {CONFIGS "deepseek-v3.2.json", 2400, 5},
                  {CONFIGS "deepseek-67b.json", 19500, 50}};

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        kvcsa_model              *m = host_plan(models[i].file, ANY_LENGTH, NULL);
        const kvcsa_resume_params p = resume_params(50000);

        assert_printed((double)resume(m, &p).n_bytes / 1e6, models[i].megabytes,
                       models[i].half_digit);
        kvcsa_model_release(&m);
    }
}

/* A dense model of 67 billion parameters with grouped queries: four times, not two hundred. */
static void test_67b_load_or_recompute(void **state)
{
    kvcsa_model        *m = host_plan(CONFIGS "deepseek-67b.json", NULL, NULL);
    kvcsa_resume_params p = resume_params(1000);
    kvcsa_resume_cost   c;

    (void)state;
    p.flops_per_token = 134e9;
    c = resume(m, &p);
    assert_printed(c.load_seconds / 1000 * 1e6, 78, 0.5);
    assert_printed(c.recompute_seconds / 1000 * 1e6, 335, 0.5);
    assert_printed(c.ratio, 4, 0.5);
    kvcsa_model_release(&m);
}

/* Nothing but windows: nothing to load, and all of them to run again. */
static void test_resume_of_windows_only(void **state)
{
    kvcsa_model        *m = host_plan(CONFIGS "mistral-7b-v0.1.json", NULL, NULL);
    kvcsa_resume_params p = resume_params(8192);
    kvcsa_resume_cost   c = resume(m, &p);

    (void)state;
    assert_int_equal(c.n_bytes, 0);
    assert_true(isinf(c.ratio) && c.break_even_bytes_per_second == 0);
    p.n_replay_tokens = 4096;
    assert_double(resume(m, &p).ratio, 2);
    kvcsa_model_release(&m);
}

static void test_resume_that_never_pays(void **state)
{
    kvcsa_model        *m = host_plan(V41_CONFIG, NULL, NULL);
    kvcsa_resume_params p = resume_params(100);
    kvcsa_resume_cost   c;

    (void)state;
    p.n_replay_tokens = 128; /* no more than there are */
    c = resume(m, &p);
    assert_double(c.replay_seconds, c.recompute_seconds);
    assert_true(isinf(c.break_even_bytes_per_second));
    assert_true(c.ratio > 0 && c.ratio < 1);
    p.n_tokens = 0;
    p.tier_bytes = 1;
    c = resume(m, &p);
    assert_int_equal(c.n_bytes, 0);
    assert_true(c.ratio == 0 && c.load_seconds == 0 && c.recompute_seconds == 0);
    assert_true(isinf(c.break_even_bytes_per_second) && isinf(c.n_parked));
    kvcsa_model_release(&m);
}

static void test_resume_refuses(void **state)
{
    kvcsa_model              *m = host_plan(V41_CONFIG, NULL, NULL);
    const kvcsa_resume_params p = resume_params(1000);
    kvcsa_resume_params       bad;
    kvcsa_resume_cost         c = {.struct_size = sizeof c};
    kvcsa_error               err;

    (void)state;
#define REFUSED(change, status, fragment)                                                          \
    REFUSED_BY(kvcsa_model_resume_cost(m, &bad, &c, &err), c.n_bytes == 0 && c.n_parked == 0,      \
               change, status, fragment)
    REFUSED(bad.n_tokens = MI + 1, KVCSA_ERR_LIMIT, "n_tokens");
    REFUSED(bad.tier_bytes_per_second = 0, KVCSA_ERR_ARG, "tier_bytes_per_second is 0");
    REFUSED(bad.tier_bytes_per_second = -5, KVCSA_ERR_ARG, "tier_bytes_per_second is -5");
    REFUSED(bad.tier_bytes_per_second = NAN, KVCSA_ERR_ARG, "tier_bytes_per_second");
    REFUSED(bad.tier_bytes_per_second = INFINITY, KVCSA_ERR_ARG, "tier_bytes_per_second");
    REFUSED(bad.tier_bytes_per_second = 1e-308, KVCSA_ERR_LIMIT, "too long");
    REFUSED(bad.flops_per_second = 0, KVCSA_ERR_ARG, "flops_per_second");
    REFUSED(bad.flops_per_second = NAN, KVCSA_ERR_ARG, "flops_per_second");
    REFUSED(bad.flops_per_second = 1e-300, KVCSA_ERR_LIMIT, "too long");
    REFUSED(bad.flops_per_token = 0, KVCSA_ERR_ARG, "flops_per_token");
    REFUSED(bad.flops_per_token = -INFINITY, KVCSA_ERR_ARG, "flops_per_token");
    REFUSED(bad.flops_per_token = 1e308, KVCSA_ERR_LIMIT, "too long");
    REFUSED(bad.tier_bytes = -1, KVCSA_ERR_ARG, "tier_bytes");
    REFUSED(bad.tier_bytes = NAN, KVCSA_ERR_ARG, "tier_bytes");
    REFUSED(bad.reserved = 7, KVCSA_ERR_UNSUPPORTED, "reserved is 7");
    REFUSED(bad.struct_size = 8, KVCSA_ERR_ARG, "struct_size");
#undef REFUSED
    assert_fails(kvcsa_model_resume_cost(m, NULL, &c, &err), KVCSA_ERR_ARG, "must be a number > 0");
    assert_fails(kvcsa_model_resume_cost(NULL, &p, &c, &err), KVCSA_ERR_ARG, "model is NULL");
    assert_fails(kvcsa_model_resume_cost(m, &p, NULL, &err), KVCSA_ERR_ARG, "cost is NULL");
    c.struct_size = 1;
    assert_fails(kvcsa_model_resume_cost(m, &p, &c, &err), KVCSA_ERR_ARG, "struct_size");
    kvcsa_resume_params_default(NULL, sizeof p);
    kvcsa_model_release(&m);
}

/* ------------------------------------------------------------------ agents */

static kvcsa_agent_params agent_params(uint64_t n_calls, uint64_t context, uint64_t tool,
                                       uint64_t generated)
{
    kvcsa_agent_params p;

    kvcsa_agent_params_default(&p, sizeof p);
    p.n_calls = n_calls;
    p.context_tokens = context;
    p.tool_tokens = tool;
    p.generated_tokens = generated;
    return p;
}

static kvcsa_agent_cost agent(const kvcsa_agent_params *p)
{
    kvcsa_agent_cost c = {.struct_size = sizeof c};
    kvcsa_error      err;

    assert_ok(kvcsa_agent_get_cost(p, &c, &err));
    return c;
}

static void test_agent_at_list_prices(void **state)
{
    static const struct {
        uint64_t tool;
        uint32_t reread;
        double   hit, miss, output;         /* prices of a million tokens */
        double   hits, misses, out;         /* tokens */
        double   cost, share;               /* of hits, in percent */
        double   uncached, factor;          /* 0 = not printed */
        double   half_cost, half_uncached;  /* half of the last printed digit */
    } rows[] = {
        {0, 0, 0.003, 0.15, 0.60, 2.450e6, 50e3, 10e3, 0.0209, 35, 0.381, 18.3, 5e-5, 5e-4},
        {0, 0, 0.022, 0.66, 1.98, 2.450e6, 50e3, 10e3, 0.1067, 51, 1.670, 15.6, 5e-5, 5e-4},
        {1000, 1, 0.003, 0.15, 0.60, 3.871e6, 99e3, 10e3, 0.0325, 36, 0, 0, 5e-5, 0},
        {1000, 1, 0.022, 0.66, 1.98, 3.871e6, 99e3, 10e3, 0.1703, 50, 0, 0, 5e-5, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kvcsa_agent_params p = agent_params(50, 50000, rows[i].tool, 200);
        kvcsa_agent_cost   c;

        p.reread_generated = rows[i].reread;
        p.hit_price = rows[i].hit;
        p.miss_price = rows[i].miss;
        p.output_price = rows[i].output;
        c = agent(&p);
        assert_int_equal(c.n_hit_tokens, (uint64_t)rows[i].hits);
        assert_int_equal(c.n_miss_tokens, (uint64_t)rows[i].misses);
        assert_int_equal(c.n_output_tokens, (uint64_t)rows[i].out);
        assert_printed(c.cost, rows[i].cost, rows[i].half_cost);
        assert_printed(100 * c.hit_cost / c.cost, rows[i].share, 0.5);
        assert_double(c.cost, c.hit_cost + c.miss_cost + c.output_cost);
        if (rows[i].uncached > 0) {
            assert_printed(c.uncached_cost, rows[i].uncached, rows[i].half_uncached);
            assert_printed(c.uncached_cost / c.cost, rows[i].factor, 0.05);
        }
    }
}

/* Call by call: a token of the context is a hit if the cache has it. */
static void test_agent_equals_a_simulation(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed + 2);
    for (int i = 0; i < 500; i++) {
        kvcsa_agent_params p = agent_params(1 + prng_below(&r, 40), prng_below(&r, 1000),
                                            prng_below(&r, 100), prng_below(&r, 100));
        uint64_t           cached = 0;
        uint64_t           context = p.context_tokens;
        uint64_t           hits = 0;
        uint64_t           misses = 0;
        kvcsa_agent_cost   c;

        p.reread_generated = (uint32_t)prng_below(&r, 2);
        p.hit_price = 1;
        p.miss_price = 10;
        p.output_price = 100;
        for (uint64_t call = 0; call < p.n_calls; call++) {
            hits += cached;
            misses += context - cached;
            context += p.reread_generated ? p.generated_tokens : 0;
            cached = context;
            context += p.tool_tokens;
        }
        c = agent(&p);
        assert_int_equal(c.n_hit_tokens, hits);
        assert_int_equal(c.n_miss_tokens, misses);
        assert_int_equal(c.n_output_tokens, p.n_calls * p.generated_tokens);
        assert_double(c.cost * 1e6, (double)(hits + 10 * misses + 100 * c.n_output_tokens));
        assert_double(c.uncached_cost * 1e6,
                      (double)(10 * (hits + misses) + 100 * c.n_output_tokens));
    }
}

static void test_agent_refuses(void **state)
{
    const kvcsa_agent_params p = agent_params(50, 50000, 1000, 200);
    kvcsa_agent_params       bad;
    kvcsa_agent_cost         c = {.struct_size = sizeof c};
    kvcsa_error              err;

    (void)state;
    assert_int_equal(p.reread_generated, 1);
#define REFUSED(change, status, fragment)                                                          \
    REFUSED_BY(kvcsa_agent_get_cost(&bad, &c, &err), c.n_hit_tokens == 0 && c.uncached_cost == 0,  \
               change, status, fragment)
    REFUSED(bad.n_calls = 0, KVCSA_ERR_ARG, "n_calls is 0");
    REFUSED(bad.reread_generated = 2, KVCSA_ERR_ARG, "reread_generated is 2");
    REFUSED(bad.hit_price = NAN, KVCSA_ERR_ARG, "hit_price");
    REFUSED(bad.miss_price = -0.1, KVCSA_ERR_ARG, "miss_price");
    REFUSED(bad.output_price = INFINITY, KVCSA_ERR_ARG, "output_price");
    REFUSED(bad.reserved = 1, KVCSA_ERR_UNSUPPORTED, "reserved");
    REFUSED(bad.n_calls = UINT64_MAX, KVCSA_ERR_LIMIT, "2^63");
    REFUSED(bad.context_tokens = UINT64_MAX, KVCSA_ERR_LIMIT, "2^63");
    REFUSED(bad.tool_tokens = UINT64_MAX / 49, KVCSA_ERR_LIMIT, "2^63");
    REFUSED(bad.generated_tokens = UINT64_C(1) << 62, KVCSA_ERR_LIMIT, "2^63");
    REFUSED((bad.n_calls = 1, bad.context_tokens = UINT64_C(1) << 63), KVCSA_ERR_LIMIT, "2^63");
    /* hits and misses fit, and their sum does not */
    REFUSED((bad = agent_params(2, UINT64_C(1) << 62, 0, 0)), KVCSA_ERR_LIMIT, "2^63");
    REFUSED(bad.hit_price = 1e308, KVCSA_ERR_LIMIT, "cost");
    REFUSED(bad.struct_size = sizeof bad - 8, KVCSA_ERR_ARG, "struct_size");
#undef REFUSED
    assert_fails(kvcsa_agent_get_cost(NULL, &c, &err), KVCSA_ERR_ARG, "n_calls");
    assert_fails(kvcsa_agent_get_cost(&p, NULL, &err), KVCSA_ERR_ARG, "cost is NULL");
    c.struct_size = sizeof c - 8;
    assert_fails(kvcsa_agent_get_cost(&p, &c, &err), KVCSA_ERR_ARG, "struct_size");
    kvcsa_agent_params_default(NULL, sizeof p);
    bad = agent_params(1, INT64_MAX, 5, 0); /* just fits */
    assert_int_equal(agent(&bad).n_miss_tokens, INT64_MAX);
    bad = agent_params(1, 0, 0, 0);
    assert_int_equal(agent(&bad).n_hit_tokens + agent(&bad).n_miss_tokens, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v41_load_or_recompute),
        cmocka_unit_test(test_bytes_of_a_hit),
        cmocka_unit_test(test_67b_load_or_recompute),
        cmocka_unit_test(test_resume_of_windows_only),
        cmocka_unit_test(test_resume_that_never_pays),
        cmocka_unit_test(test_resume_refuses),
        cmocka_unit_test(test_agent_at_list_prices),
        cmocka_unit_test(test_agent_equals_a_simulation),
        cmocka_unit_test(test_agent_refuses),
    };

    seed = prng_seed(argc, argv, 20260101);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
