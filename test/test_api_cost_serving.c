/* kvcsa_model_serving_cost: figures that were worked out by hand elsewhere, naive sums beside the
 * formulas, and every wrong call. */
#include "support/cost_case.h"
#include "support/fault_alloc.h"
#include "support/prng.h"

#define V41_EXPERT UINT64_C(18800640) /* 3 x 5120 x 2304 channels of FP4 with a scale per 32 */

static uint64_t seed = 1;

static kvcsa_serving_params serving_params(uint64_t n_tokens, uint64_t n_users)
{
    kvcsa_serving_params p;

    kvcsa_serving_params_default(&p, sizeof p);
    p.n_tokens = n_tokens;
    p.n_users = n_users;
    return p;
}

static kvcsa_serving_cost serve(const kvcsa_model *m, const kvcsa_serving_params *p)
{
    kvcsa_serving_cost c = {.struct_size = sizeof c};
    kvcsa_error        err;

    assert_ok(kvcsa_model_serving_cost(m, p, &c, &err));
    return c;
}

/* Bytes that one step of one sequence reads; 0 = not to the byte, but as printed, in GB. */
static void test_reads_per_step(void **state)
{
    static const struct {
        const char *file;
        uint64_t    bytes[4];
        double      printed[4], half_digit[4];
    } models[] = {
        {V41_CONFIG, {10117120, 21263136, 35045376, 191021056}, {0}, {0}},
        {CONFIGS "deepseek-v4-flash.json",
         {11329536, 0, 68246528, 479517696},
         {0, 0.0319},
         {0, 0.00005}},
        {CONFIGS "deepseek-v4-pro.json",
         {25168640, 0, 107885568, 705582080},
         {0, 0.0551},
         {0, 0.00005}},
        {CONFIGS "deepseek-v3.2.json",
         {114933760, 484552768, 1137344512, 8525086720},
         {0},
         {0}},
        {CONFIGS "deepseek-v3.json",
         {287834112, 0, 0, 0},
         {0, 3.51, 9.21, 73.7},
         {0, 0.005, 0.005, 0.05}},
        {CONFIGS "llama3-8b.json",
         {536870912, 0, 0, 0},
         {0, 6.55, 17.2, 137},
         {0, 0.005, 0.05, 0.5}},
        {CONFIGS "deepseek-67b.json",
         {1593835520, 0, 0, 0},
         {0, 19.5, 51.0, 408},
         {0, 0.05, 0.05, 0.5}},
    };
    static const uint64_t lengths[4] = {4096, 50000, 131072, MI};
    static const uint64_t v41_index[4] = {1810432, 12956448, 26738688, 182714368};

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        kvcsa_model *m = host_plan(models[i].file, ANY_LENGTH, NULL);

        for (size_t k = 0; k < 4; k++) {
            const kvcsa_serving_params p = serving_params(lengths[k], 1);
            const kvcsa_serving_cost   c = serve(m, &p);

            if (models[i].bytes[k])
                assert_int_equal(c.read_bytes, models[i].bytes[k]);
            else
                assert_printed((double)c.read_bytes / 1e9, models[i].printed[k],
                               models[i].half_digit[k]);
            assert_int_equal(c.device_read_bytes, c.read_bytes);
            if (i == 0)
                assert_int_equal(cost_of(m, lengths[k]).index_read_bytes, v41_index[k]);
        }
        kvcsa_model_release(&m);
    }
}

/* Caches of 30 sequences of 2^20 tokens without windows, and what a step of all reads, in GB; at 50
 * tokens per second of each, in GB/s. */
static void test_thirty_users_of_every_generation(void **state)
{
    static const struct {
        const char *file;
        double      rate_part, read, bandwidth; /* as printed, with half of the last digit */
        double      half_part, half_read, half_bandwidth;
    } models[] = {
        {V41_CONFIG, 28.0, 5.73, 287, 0.05, 0.005, 0.5},
        {CONFIGS "deepseek-v4-flash.json", 110.5, 14.4, 719, 0.05, 0.05, 0.5},
        {CONFIGS "deepseek-v4-pro.json", 158.3, 21.2, 1060, 0.05, 0.05, 5},
        {CONFIGS "deepseek-v3.2.json", 1510, 256, 12800, 5, 0.5, 50},
        {CONFIGS "deepseek-v3.json", 2210, 2210, 111000, 5, 5, 500},
        {CONFIGS "llama3-8b.json", 4120, 4120, 206000, 5, 5, 500},
        {CONFIGS "deepseek-67b.json", 12200, 12200, 612000, 50, 50, 500},
    };

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        kvcsa_model         *m = host_plan(models[i].file, ANY_LENGTH, NULL);
        kvcsa_serving_params p = serving_params(MI, 30);
        const uint64_t       windows = 30 * cost_of(m, MI).const_bytes;
        kvcsa_serving_cost   c;

        p.tokens_per_second = 50;
        c = serve(m, &p);
        assert_printed((double)(c.resident_bytes - windows) / 1e9, models[i].rate_part,
                       models[i].half_part);
        assert_printed((double)c.read_bytes / 1e9, models[i].read, models[i].half_read);
        assert_printed(c.read_bytes_per_second / 1e9, models[i].bandwidth,
                       models[i].half_bandwidth);
        kvcsa_model_release(&m);
    }
}

static void test_thirty_users_at_a_million(void **state)
{
    kvcsa_model         *m = host_plan(V41_CONFIG, NULL, NULL);
    kvcsa_serving_params p = serving_params(MI, 30);
    kvcsa_serving_cost   c;
    double               left_out = 1;

    (void)state;
    p.tokens_per_second = 50;
    p.n_experts = 384;
    p.n_experts_per_token = 6;
    p.n_moe_layers = 40;
    p.expert_bytes = V41_EXPERT;
    c = serve(m, &p);
    assert_int_equal(c.resident_bytes, 30 * 890 * MI + 30 * UINT64_C(2703360));
    assert_printed((double)(30 * 890 * MI) / 1e9, 28.0, 0.05);
    assert_int_equal(c.device_resident_bytes, c.resident_bytes);
    assert_int_equal(c.parked_bytes, 30 * 890 * MI);
    assert_printed((double)c.read_bytes / 1e9, 5.73, 0.005);
    assert_printed(c.read_bytes_per_second / 1e9, 287, 0.5);
    for (int i = 0; i < 30; i++)
        left_out *= 1 - 6.0 / 384;
    assert_double(c.distinct_experts, 384 * (1 - left_out));
    assert_printed(c.distinct_experts, 144.6, 0.05);
    assert_printed(c.weight_bytes / 1e9, 109, 0.5);
    assert_printed(c.weight_bytes / (double)c.read_bytes, 19, 0.5);
    p.n_users = 1;
    p.dense_bytes = 1000;
    c = serve(m, &p);
    assert_true(c.distinct_experts == 6);
    assert_true(c.weight_bytes == 40.0 * 6 * V41_EXPERT + 1000);
    p.n_users = 1000000; /* all of them */
    assert_printed(serve(m, &p).weight_bytes / 1e9, 289, 0.5);
    kvcsa_model_release(&m);
}

/* What is left at 0 is the model's. */
static void test_experts_of_the_model(void **state)
{
    kvcsa_model         *m = host_plan(V41_CONFIG, NULL, NULL);
    kvcsa_model_info     info = {.struct_size = sizeof info};
    kvcsa_serving_params p = serving_params(1000, 1);
    kvcsa_error          err;

    (void)state;
    assert_ok(kvcsa_model_get_info(m, &info, &err));
    assert_int_equal(info.expert_bytes, V41_EXPERT);
    assert_int_equal(info.n_experts, 384);
    assert_true(serve(m, &p).distinct_experts == 6);
    assert_true(serve(m, &p).weight_bytes == 40.0 * 6 * V41_EXPERT);
    p.n_experts_per_token = 12;
    assert_true(serve(m, &p).distinct_experts == 12);
    p.n_experts_per_token = 384;
    assert_true(serve(m, &p).distinct_experts == 384);
    kvcsa_model_release(&m);
}

/* One latent for all heads: every device of a tensor-parallel group holds all of it. */
static void test_v41_on_four_devices(void **state)
{
    kvcsa_model         *m = host_plan(V41_CONFIG, NULL, NULL);
    kvcsa_serving_params p = serving_params(128000, 8);
    kvcsa_serving_params longer = serving_params(128128, 8);
    const uint64_t       one = cost_of(m, 128000).resident_bytes;
    const uint64_t       read = cost_of(m, 128000).read_bytes;
    kvcsa_serving_cost   c;

    (void)state;
    p.n_devices = longer.n_devices = 4;
    c = serve(m, &p);
    assert_int_equal(c.device_resident_bytes, 8 * one);
    assert_int_equal(c.resident_bytes, 32 * one);
    assert_int_equal(c.device_read_bytes, 8 * read);
    assert_int_equal(c.read_bytes, 32 * read);
    assert_true(c.device_rate == 890);
    assert_int_equal(serve(m, &longer).resident_bytes - c.resident_bytes, 8 * 128 * 3560);
    p.attention = longer.attention = KVCSA_ATTENTION_DP;
    c = serve(m, &p);
    assert_int_equal(c.device_resident_bytes, 2 * one);
    assert_int_equal(c.resident_bytes, 8 * one);
    assert_int_equal(c.device_read_bytes, 2 * read);
    assert_int_equal(c.read_bytes, 8 * read);
    assert_true(c.device_rate == 890);
    assert_int_equal(serve(m, &longer).resident_bytes - c.resident_bytes, 8 * 128 * 890);
    kvcsa_model_release(&m);
}

static uint64_t share(uint64_t bytes, uint32_t heads, uint32_t n_devices)
{
    const uint64_t held = (heads + n_devices - 1) / n_devices;

    assert_int_equal(bytes % heads, 0);
    return bytes / heads * held;
}

/* Row by row: a device holds whole heads of entries, windows and states, and every index key. */
static uint64_t held_by_a_device(const kvcsa_model *m, uint64_t n, uint32_t n_devices)
{
    const kvcsa_cost k = cost_of(m, n);
    const uint64_t   n_blocks = (n + k.block_tokens - 1) / k.block_tokens;
    kvcsa_model_info info = {.struct_size = sizeof info};
    uint64_t         bytes = 0;
    kvcsa_error      err;

    assert_ok(kvcsa_model_get_info(m, &info, &err));
    for (uint32_t l = 0; l < info.n_layers; l++) {
        kvcsa_plan_row r = {.struct_size = sizeof r};
        uint32_t       heads;

        assert_ok(kvcsa_model_plan_row(m, l, &r, &err));
        heads = r.kv_heads ? r.kv_heads : 1;
        if (r.kv_owner == (int32_t)l)
            bytes += n_blocks * (k.block_tokens / r.ratio) *
                     (share(r.entry_bytes, heads, n_devices) + r.index_bytes);
        bytes += (n < r.window_tokens ? n : r.window_tokens) *
                 share(r.window_bytes, heads, n_devices);
        if (r.state_bytes)
            bytes += share(r.state_bytes, r.state_heads, n_devices);
    }
    return bytes;
}

static void test_heads_over_devices(void **state)
{
    static const struct {
        const char *file;
        uint32_t    kv_heads, state_heads;
    } models[] = {
        {V41_CONFIG, 1, 1},
        {CONFIGS "llama3-8b.json", 8, 1},
        {CONFIGS "falcon-7b.json", 1, 1},
        {CONFIGS "gemma3-27b.json", 16, 1},
        {CONFIGS "gpt-oss-120b.json", 8, 1},
        {CONFIGS "mistral-7b-v0.1.json", 8, 1},
        {CONFIGS "minimax-text-01.json", 8, 64},
        {CONFIGS "minimax-m3.json", 4, 1},
        {CONFIGS "deepseek-v3.json", 1, 1},
        {CONFIGS "kimi-k3.json", 1, 96},
        {CONFIGS "deepseek-v4-flash.json", 1, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        kvcsa_model     *m = host_plan(models[i].file, ANY_LENGTH, NULL);
        const kvcsa_cost k = cost_of(m, 3000);
        const uint64_t   split = k.read_bytes - k.index_read_bytes - k.state_bytes;

        for (uint32_t t = 1; t <= 130; t++) {
            kvcsa_serving_params p = serving_params(3000, 5);
            kvcsa_serving_cost   c;
            uint64_t             read;

            p.n_devices = t;
            c = serve(m, &p);
            read = k.index_read_bytes + share(split, models[i].kv_heads, t) +
                   share(k.state_bytes, models[i].state_heads, t);
            assert_int_equal(c.device_resident_bytes, 5 * held_by_a_device(m, 3000, t));
            assert_int_equal(c.resident_bytes, t * c.device_resident_bytes);
            assert_int_equal(c.device_read_bytes, 5 * read);
            assert_int_equal(c.read_bytes, t * c.device_read_bytes);
            assert_int_equal(c.parked_bytes, 5 * k.persist_bytes); /* one copy */
        }
        kvcsa_model_release(&m);
    }
}

/* Eight heads: halves, quarters and eighths; three devices hold three each, sixteen one each. */
static void test_rate_on_a_device(void **state)
{
    static const struct {
        uint32_t n_devices;
        double   rate;
    } rows[] = {{1, 131072}, {2, 65536}, {3, 49152}, {4, 32768}, {8, 16384}, {16, 16384}};
    kvcsa_model *m = host_plan(CONFIGS "llama3-8b.json", NULL, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kvcsa_serving_params p = serving_params(100, 1);

        p.n_devices = rows[i].n_devices;
        assert_true(serve(m, &p).device_rate == rows[i].rate);
        p.attention = KVCSA_ATTENTION_DP;
        assert_true(serve(m, &p).device_rate == 131072);
    }
    kvcsa_model_release(&m);
}

/* Devices as arrays: sequences are dealt one by one, and whatever lies on a device is added up. */
static void add_up(const kvcsa_model *m, const kvcsa_serving_params *p, kvcsa_serving_cost *want)
{
    const kvcsa_cost k = cost_of(m, p->n_tokens);
    const uint64_t   shared = p->n_shared_tokens / k.block_tokens * k.block_bytes;
    uint64_t         users[64] = {0};

    for (uint64_t u = 0; u < p->n_users; u++)
        for (uint32_t d = 0; d < p->n_devices; d++)
            if (p->attention == KVCSA_ATTENTION_TP || u % p->n_devices == d)
                users[d]++;
    memset(want, 0, sizeof *want);
    want->parked_bytes = k.persist_bytes * p->n_users - shared * (p->n_users - 1);
    for (uint32_t d = 0; d < p->n_devices; d++) {
        const uint64_t held = users[d] ? users[d] * k.resident_bytes - (users[d] - 1) * shared : 0;
        const uint64_t read = users[d] * k.read_bytes;

        want->resident_bytes += held;
        want->read_bytes += read;
        want->written_bytes += (double)users[d] * k.written_bytes;
        if (held > want->device_resident_bytes)
            want->device_resident_bytes = held;
        if (read > want->device_read_bytes)
            want->device_read_bytes = read;
    }
}

static void test_serving_equals_a_naive_sum(void **state)
{
    kvcsa_model *m = host_plan(V41_CONFIG, NULL, NULL); /* one head: a device has all of what it holds */
    prng         r;

    (void)state;
    prng_init(&r, seed);
    for (int i = 0; i < 2000; i++) {
        kvcsa_serving_params p = serving_params(prng_below(&r, 3000), 1 + prng_below(&r, 70));
        kvcsa_serving_cost   want;
        kvcsa_serving_cost   got;

        p.n_devices = 1 + (uint32_t)prng_below(&r, 64);
        p.attention = (uint32_t)prng_below(&r, 2);
        p.n_shared_tokens = prng_below(&r, p.n_tokens + 1);
        got = serve(m, &p);
        add_up(m, &p, &want);
        if (got.resident_bytes != want.resident_bytes ||
            got.device_resident_bytes != want.device_resident_bytes ||
            got.read_bytes != want.read_bytes ||
            got.device_read_bytes != want.device_read_bytes ||
            got.parked_bytes != want.parked_bytes)
            fail_msg("%s of %llu tokens (%llu shared) for %llu users on %u devices",
                     p.attention ? "DP" : "TP", (unsigned long long)p.n_tokens,
                     (unsigned long long)p.n_shared_tokens, (unsigned long long)p.n_users,
                     p.n_devices);
        assert_double(got.written_bytes, want.written_bytes);
    }
    kvcsa_model_release(&m);
}

/* max_users fit, and one more does not. */
static void test_max_users_is_where_memory_ends(void **state)
{
    kvcsa_model *m = host_plan(V41_CONFIG, NULL, NULL);
    prng         r;

    (void)state;
    prng_init(&r, seed + 1);
    for (int i = 0; i < 500; i++) {
        kvcsa_serving_params p = serving_params(1 + prng_below(&r, 100000), 1);
        uint64_t             n;

        p.n_devices = 1 + (uint32_t)prng_below(&r, 9);
        p.attention = (uint32_t)prng_below(&r, 2);
        p.n_shared_tokens = prng_below(&r, p.n_tokens + 1);
        p.device_bytes = 1 + prng_below(&r, UINT64_C(2000000000));
        n = serve(m, &p).max_users;
        p.n_users = n ? n : 1;
        assert_true(n == 0 || serve(m, &p).device_resident_bytes <= p.device_bytes);
        p.n_users = n + 1;
        assert_true(serve(m, &p).device_resident_bytes > p.device_bytes);
        assert_int_equal(serve(m, &p).max_users, n); /* whatever n_users says */
    }
    kvcsa_model_release(&m);
}

static void test_serving_nothing(void **state)
{
    kvcsa_model         *m = host_plan(V41_CONFIG, NULL, NULL);
    kvcsa_serving_params p = serving_params(0, 1);
    kvcsa_serving_cost   c = {.struct_size = sizeof c};
    kvcsa_error          err;

    (void)state;
    assert_ok(kvcsa_model_serving_cost(m, NULL, &c, &err)); /* all defaults: no token, one user */
    assert_int_equal(c.resident_bytes, cost_of(m, 0).resident_bytes);
    assert_int_equal(c.read_bytes, 0);
    assert_int_equal(c.parked_bytes, 0);
    assert_int_equal(c.max_users, 0); /* not asked */
    assert_true(c.read_bytes_per_second == 0);
    p.device_bytes = 1;
    c = serve(m, &p);
    assert_int_equal(c.max_users, cost_of(m, 0).resident_bytes ? 0 : INT64_MAX);
    kvcsa_model_release(&m);
}

static void test_serving_refuses(void **state)
{
    kvcsa_model         *m = host_plan(V41_CONFIG, NULL, NULL);
    kvcsa_serving_params p = serving_params(1000, 2);
    kvcsa_serving_params bad;
    kvcsa_serving_cost   c = {.struct_size = sizeof c};
    kvcsa_error          err;

    (void)state;
#define REFUSED(change, status, fragment)                                                          \
    REFUSED_BY(kvcsa_model_serving_cost(m, &bad, &c, &err), c.resident_bytes == 0 && c.device_rate == 0,\
               change, status, fragment)
    REFUSED(bad.n_users = 0, KVCSA_ERR_ARG, "n_users is 0");
    REFUSED(bad.n_devices = 0, KVCSA_ERR_ARG, "n_devices is 0");
    REFUSED(bad.n_shared_tokens = 1001, KVCSA_ERR_ARG, "n_shared_tokens is 1001");
    REFUSED(bad.n_tokens = MI + 1, KVCSA_ERR_LIMIT, "n_tokens is 1048577");
    REFUSED(bad.n_tokens = UINT64_MAX, KVCSA_ERR_LIMIT, "n_tokens");
    REFUSED(bad.attention = 2, KVCSA_ERR_UNSUPPORTED, "attention is 2");
    REFUSED(bad.reserved = 1, KVCSA_ERR_UNSUPPORTED, "reserved");
    REFUSED(bad.tokens_per_second = NAN, KVCSA_ERR_ARG, "tokens_per_second");
    REFUSED(bad.tokens_per_second = INFINITY, KVCSA_ERR_ARG, "tokens_per_second");
    REFUSED(bad.tokens_per_second = -1, KVCSA_ERR_ARG, "tokens_per_second");
    REFUSED(bad.tokens_per_second = 1e308, KVCSA_ERR_LIMIT, "read_bytes_per_second");
    REFUSED(bad.n_users = UINT64_MAX, KVCSA_ERR_LIMIT, "2^63");
    REFUSED(bad.n_users = INT64_MAX, KVCSA_ERR_LIMIT, "2^63");
    REFUSED((bad.n_users = UINT64_C(1) << 40, bad.n_devices = UINT32_MAX), KVCSA_ERR_LIMIT, "2^63");
    REFUSED((bad.n_users = UINT64_C(1) << 60, bad.attention = KVCSA_ATTENTION_DP), KVCSA_ERR_LIMIT,
            "2^63");
    REFUSED((bad.n_experts = 4, bad.n_experts_per_token = 5), KVCSA_ERR_ARG, "n_experts_per_token");
    REFUSED(bad.struct_size = sizeof bad - 1, KVCSA_ERR_ARG, "struct_size");
    REFUSED(bad.struct_size = 0, KVCSA_ERR_ARG, "struct_size");
#undef REFUSED
    assert_fails(kvcsa_model_serving_cost(NULL, &p, &c, &err), KVCSA_ERR_ARG, "model is NULL");
    assert_fails(kvcsa_model_serving_cost(m, &p, NULL, &err), KVCSA_ERR_ARG, "cost is NULL");
    assert_int_equal(kvcsa_model_serving_cost(NULL, NULL, NULL, NULL), KVCSA_ERR_ARG);
    c.struct_size = sizeof c - 1;
    assert_fails(kvcsa_model_serving_cost(m, &p, &c, &err), KVCSA_ERR_ARG, "struct_size");
    kvcsa_serving_params_default(NULL, sizeof p);
    kvcsa_model_release(&m);
}

/* Of 2^63 - 1 bytes: the last sum that fits, and one sequence more. */
static void test_serving_up_to_the_limit(void **state)
{
    kvcsa_model         *m = host_plan(V41_CONFIG, NULL, NULL);
    const uint64_t       read = cost_of(m, 1000).read_bytes;
    const uint64_t       held = cost_of(m, 10).resident_bytes; /* a whole block for ten tokens */
    kvcsa_serving_params p = serving_params(1000, INT64_MAX / read);
    kvcsa_serving_cost   c = {.struct_size = sizeof c};
    kvcsa_error          err;

    (void)state;
    assert_true(read > cost_of(m, 1000).resident_bytes);
    assert_int_equal(serve(m, &p).read_bytes, INT64_MAX / read * read);
    p.n_users++;
    assert_fails(kvcsa_model_serving_cost(m, &p, &c, &err), KVCSA_ERR_LIMIT, "read_bytes");
    assert_true(held > cost_of(m, 10).read_bytes);
    p = serving_params(10, INT64_MAX / held);
    assert_int_equal(serve(m, &p).resident_bytes, INT64_MAX / held * held);
    p.n_users++;
    assert_fails(kvcsa_model_serving_cost(m, &p, &c, &err), KVCSA_ERR_LIMIT, "resident_bytes");
    kvcsa_model_release(&m);
}

static void test_serving_without_memory(void **state)
{
    fault_alloc          fa;
    kvcsa_serving_params p = serving_params(1000, 2);
    kvcsa_serving_cost   c = {.struct_size = sizeof c};
    kvcsa_model         *m;
    kvcsa_error          err;
    uint64_t             n = 0;
    kvcsa_status         st;

    (void)state;
    fault_alloc_init(&fa);
    m = host_plan(V41_CONFIG, NULL, &fa.hook);
    p.n_devices = 3;
    do {
        fault_alloc_fail_at(&fa, ++n);
        st = kvcsa_model_serving_cost(m, &p, &c, &err);
        assert_int_equal(st, fault_alloc_hit(&fa) ? KVCSA_ERR_NOMEM : KVCSA_OK);
        assert_true(st == KVCSA_OK || c.resident_bytes == 0);
    } while (st != KVCSA_OK);
    assert_int_equal(n, 2); /* the plan of one device, nothing else */
    fault_alloc_fail_at(&fa, 0);
    kvcsa_model_release(&m);
    assert_true(fault_alloc_is_clean(&fa));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_per_step),
        cmocka_unit_test(test_thirty_users_of_every_generation),
        cmocka_unit_test(test_thirty_users_at_a_million),
        cmocka_unit_test(test_experts_of_the_model),
        cmocka_unit_test(test_v41_on_four_devices),
        cmocka_unit_test(test_heads_over_devices),
        cmocka_unit_test(test_rate_on_a_device),
        cmocka_unit_test(test_serving_equals_a_naive_sum),
        cmocka_unit_test(test_max_users_is_where_memory_ends),
        cmocka_unit_test(test_serving_nothing),
        cmocka_unit_test(test_serving_refuses),
        cmocka_unit_test(test_serving_up_to_the_limit),
        cmocka_unit_test(test_serving_without_memory),
    };

    seed = prng_seed(argc, argv, 20260101);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
