/* A program of 0.1: everything that release had. */
#include "old_host.h"

enum { MAX = 400, GENERATED = 24 };

typedef struct counts {
    uint64_t n_rows, n_progress;
    int32_t  cancel;
} counts;

static void on_row(void *user, uint64_t position, const float *logits, uint32_t n_vocab)
{
    counts *c = user;

    (void)position, (void)logits, (void)n_vocab;
    c->n_rows++;
}

static int32_t on_progress(void *user, kvcsa_session *s, uint64_t n_done, uint64_t n_queued)
{
    counts *c = user;

    (void)s, (void)n_done, (void)n_queued;
    c->n_progress++;
    return c->cancel;
}

static void *host_alloc(void *user, size_t size, size_t align)
{
    ++*(int64_t *)user;
    return aligned_alloc(align, (size + align - 1) / align * align);
}

static void host_free(void *user, void *p, size_t size, size_t align)
{
    (void)size, (void)align;
    --*(int64_t *)user;
    free(p);
}

static void describe(const kvcsa_model *model)
{
    GUARDED(kvcsa_model_info) info;
    GUARDED(kvcsa_plan_row) row;
    GUARDED(kvcsa_cost) cost;
    kvcsa_error err;

    PREPARE(info), PREPARE(row), PREPARE(cost);
    info.s.struct_size = sizeof info.s;
    row.s.struct_size = sizeof row.s;
    cost.s.struct_size = sizeof cost.s;
    OK(kvcsa_model_get_info(model, &info.s, &err));
    OK(kvcsa_model_cost(model, 1000, &cost.s, &err));
    for (uint32_t i = 0; i < info.s.n_layers; i++)
        OK(kvcsa_model_plan_row(model, i, &row.s, &err));
    FAILS(kvcsa_model_plan_row(model, info.s.n_layers, &row.s, &err), KVCSA_ERR_ARG);
    UNTOUCHED(info);
    UNTOUCHED(row);
    UNTOUCHED(cost);
    printf("model: %s, %u layers, %u ids, %g bytes a token, %llu at 1000\n", info.s.architecture, info.s.n_layers,
           info.s.vocab_tokens,
           (double)cost.s.rate_bytes_per_token, (unsigned long long)cost.s.resident_bytes);
}

static kvcsa_pool *make_pool(const kvcsa_allocator *allocator)
{
    GUARDED(kvcsa_pool_params) pp;
    kvcsa_pool *pool = NULL;
    kvcsa_error err;

    PREPARE(pp);
    kvcsa_pool_params_default(&pp.s, sizeof pp.s);
    UNTOUCHED(pp);
    pp.s.allocator = allocator;
    pp.s.n_threads = 2;
    pp.s.budget_bytes = 1u << 26;
    pp.s.flags = KVCSA_POOL_FILL_FREED;
    OK(kvcsa_pool_create(&pp.s, &pool, &err));
    pp.s.flags = 1u << 31;
    kvcsa_pool *none = NULL;
    FAILS(kvcsa_pool_create(&pp.s, &none, &err), KVCSA_ERR_UNSUPPORTED);
    return pool;
}

static void generate(kvcsa_pool *pool, kvcsa_model *model, kvcsa_session *s, int32_t *ids)
{
    const char        *stops[] = {"\n\n\n"}, *text;
    kvcsa_text_stream *stream = NULL;
    GUARDED(kvcsa_sampler_params) sampler;
    kvcsa_error err;
    size_t      n;
    int32_t     stopped;

    PREPARE(sampler);
    kvcsa_sampler_params_default(&sampler.s, sizeof sampler.s);
    UNTOUCHED(sampler);
    OK(kvcsa_text_stream_create(model, stops, 1, &stream, &err));
    for (int i = 0; i < GENERATED; i++) {
        OK(kvcsa_session_sample(s, &sampler.s, &ids[i], &err));
        OK(kvcsa_text_stream_push(stream, ids[i], &text, &n, &stopped, &err));
        OK(kvcsa_session_append(s, &ids[i], 1, NULL, NULL, &err));
        OK(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err));
    }
    OK(kvcsa_text_stream_finish(stream, &text, &n, &err));
    kvcsa_text_stream_release(&stream);
    say_tokens("generated", ids, GENERATED);
}

static void look_back(kvcsa_pool *pool, const kvcsa_model *model, kvcsa_session *s, size_t n_want)
{
    static float   logits[1 << 18];
    static int32_t ids[MAX];
    GUARDED(kvcsa_session_stats) ss;
    GUARDED(kvcsa_pool_stats) ps;
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_error      err;
    size_t           n = 0;
    int32_t          token;

    PREPARE(ss), PREPARE(ps);
    ss.s.struct_size = sizeof ss.s;
    ps.s.struct_size = sizeof ps.s;
    OK(kvcsa_session_get_stats(s, &ss.s, &err));
    OK(kvcsa_pool_get_stats(pool, &ps.s, &err));
    UNTOUCHED(ss);
    UNTOUCHED(ps);
    OK(kvcsa_session_get_tokens(s, 0, ids, MAX, &n, &err));
    NEED(n == n_want && ss.s.n_tokens == n && kvcsa_session_length(s) == n);
    NEED(ps.s.n_sessions == 1 && ps.s.used_bytes <= ps.s.budget_bytes);
    OK(kvcsa_model_get_info(model, &info, &err));
    NEED(info.vocab_tokens <= 1 << 18);
    OK(kvcsa_session_get_logits(s, logits, info.vocab_tokens, &err));
    OK(kvcsa_sample_logits(logits, info.vocab_tokens, n, NULL, &token, &err));
    OK(kvcsa_pool_check(pool, &err));
    printf("length: %zu, next: %d\n", n, (int)token);
}

/* Row limits, deadlines and cancelling. */
static void steer(kvcsa_pool *pool, kvcsa_session *s, const int32_t *ids, size_t n_ids, uint64_t length)
{
    GUARDED(kvcsa_step_params) sp;
    kvcsa_step_result result;
    counts            c = {0, 0, 0};
    kvcsa_error       err;

    PREPARE(sp);
    kvcsa_step_params_default(&sp.s, sizeof sp.s);
    UNTOUCHED(sp);
    OK(kvcsa_session_append(s, ids, n_ids, NULL, NULL, &err));
    sp.s.max_rows = 1;
    OK(kvcsa_pool_step(pool, &s, 1, &sp.s, &result, &err));
    NEED(result.n_computed + result.n_queued == n_ids && result.n_queued > 0);
    sp.s.max_rows = 0;
    sp.s.progress = on_progress;
    sp.s.user = &c;
    c.cancel = 1;
    FAILS(kvcsa_pool_step(pool, &s, 1, &sp.s, &result, &err), KVCSA_ERR_CANCELLED);
    NEED(c.n_progress == 1 && kvcsa_session_length(s) == length);
    OK(kvcsa_session_append(s, ids, n_ids, NULL, NULL, &err));
    kvcsa_session_cancel(s);
    FAILS(kvcsa_pool_step(pool, &s, 1, NULL, &result, &err), KVCSA_ERR_CANCELLED);
    NEED(kvcsa_session_length(s) == length);
}

int main(int argc, char **argv)
{
    int64_t               n_blocks = 0;
    const kvcsa_allocator allocator = {host_alloc, host_free, &n_blocks};
    const kvcsa_message   message = {"user", "Hello"};
    GUARDED(kvcsa_model_params) mp;
    GUARDED(kvcsa_session_params) sp;
    GUARDED(kvcsa_append_params) ap;
    kvcsa_model   *model = NULL;
    kvcsa_pool    *pool;
    kvcsa_session *s = NULL;
    kvcsa_error    err;
    int32_t        ids[MAX], more[GENERATED];
    char           text[MAX];
    const char    *bytes;
    counts         c = {0, 0, 0};
    uint64_t       length = 0;
    size_t         n, n_bytes;

    NEED(argc == 2);
    NEED(kvcsa_version_number() >= KVCSA_VERSION_NUMBER && kvcsa_version_string()[0] == '0');
    NEED(!strcmp(kvcsa_status_name(KVCSA_ERR_FULL), "KVCSA_ERR_FULL"));
    PREPARE(mp), PREPARE(sp), PREPARE(ap);
    kvcsa_model_params_default(&mp.s, sizeof mp.s);
    kvcsa_session_params_default(&sp.s, sizeof sp.s);
    kvcsa_append_params_default(&ap.s, sizeof ap.s);
    UNTOUCHED(mp);
    UNTOUCHED(sp);
    UNTOUCHED(ap);
    mp.s.allocator = &allocator;
    OK(kvcsa_model_open(argv[1], &mp.s, &model, &err));
    describe(model);
    pool = make_pool(&allocator);
    sp.s.chunk_tokens = 16;
    OK(kvcsa_session_create(pool, model, &sp.s, &s, &err));
    OK(kvcsa_model_tokenize(model, "In the beginning God created", 28, 0, ids, MAX, &n, &err));
    OK(kvcsa_model_detokenize(model, ids, n, text, MAX, &n_bytes, &err));
    NEED(n_bytes == 28 && !memcmp(text, "In the beginning God created", 28));
    OK(kvcsa_model_token_text(model, ids[0], &bytes, &n_bytes, &err));
    ap.s.on_logits = on_row;
    ap.s.user = &c;
    ap.s.logits = KVCSA_LOGITS_ALL;
    OK(kvcsa_session_append(s, ids, n, &ap.s, &length, &err));
    NEED(length == n);
    OK(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err));
    NEED(c.n_rows == n);
    generate(pool, model, s, more);
    look_back(pool, model, s, n + GENERATED);
    steer(pool, s, ids, n, n + GENERATED);
    FAILS(kvcsa_session_append(s, (const int32_t[]){-5}, 1, NULL, NULL, &err), KVCSA_ERR_ARG);
    n = 0;
    if (kvcsa_model_chat_prompt(model, &message, 1, ids, MAX, &n, &err) != KVCSA_OK)
        NEED(err.status == KVCSA_ERR_UNSUPPORTED && n == 0);
    kvcsa_model_release(&model);
    kvcsa_pool_release(&pool);
    kvcsa_session_release(&s);
    NEED(n_blocks == 0);
    printf("0.1: everything was given back\n");
    return 0;
}
