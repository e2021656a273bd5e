/* NULL anywhere, wrong sizes anywhere: an error code, never a crash, and outputs are NULL or 0. */
#include <math.h>

#include "support/host.h"

/* One pointer argument after the other is NULL; err is NULL every second time. */
#define assert_arg(call) assert_int_equal((call), KVCSA_ERR_ARG)

static void test_null_model(void **state)
{
    kvcsa_model     *m = (kvcsa_model *)1;
    kvcsa_model_info i = {.struct_size = sizeof i};
    kvcsa_plan_row   r = {.struct_size = sizeof r};
    kvcsa_cost       c = {.struct_size = sizeof c};
    kvcsa_estimate   e = {.struct_size = sizeof e};
    kvcsa_message    msg = {"user", "x"};
    const char      *text = "x";
    int32_t          ids[8] = {5};
    char             buf[8];
    size_t           n = 7;
    kvcsa_error      err;

    (void)state;
    kvcsa_model_params_default(NULL, sizeof(kvcsa_model_params));
    assert_arg(kvcsa_model_open(NULL, NULL, &m, NULL));
    assert_null(m);
    m = host_model(T1_DIR);
    assert_arg(kvcsa_model_get_info(NULL, &i, NULL));
    assert_arg(kvcsa_model_get_info(m, NULL, &err));
    assert_arg(kvcsa_model_plan_row(NULL, 0, &r, NULL));
    assert_arg(kvcsa_model_plan_row(m, 0, NULL, &err));
    assert_arg(kvcsa_model_plan_row(m, UINT32_MAX, &r, &err));
    assert_arg(kvcsa_model_cost(NULL, 0, &c, NULL));
    assert_arg(kvcsa_model_cost(m, 0, NULL, &err));
    assert_arg(kvcsa_model_estimate(NULL, NULL, 1, 1, 0, &e, NULL));
    assert_arg(kvcsa_model_estimate(m, NULL, 1, 1, 0, NULL, &err));
    assert_arg(kvcsa_model_estimate(m, NULL, 1, 1, 0, &(kvcsa_estimate){0}, &err));
    assert_int_equal(kvcsa_model_cost(m, UINT64_MAX, &c, &err), KVCSA_ERR_LIMIT);
    assert_arg(kvcsa_model_tokenize(NULL, "x", 1, 0, ids, 8, &n, NULL));
    assert_int_equal(n, 0);
    assert_arg(kvcsa_model_tokenize(m, NULL, 1, 0, ids, 8, &n, &err));
    assert_arg(kvcsa_model_tokenize(m, "x", 1, 0, NULL, 8, &n, &err));
    assert_arg(kvcsa_model_tokenize(m, "x", 1, 0, ids, 8, NULL, &err));
    assert_int_equal(kvcsa_model_tokenize(m, NULL, 0, 0, NULL, 0, &n, &err), KVCSA_OK);
    assert_int_equal(n, 0);
    assert_arg(kvcsa_model_token_text(NULL, 5, &text, &n, NULL));
    assert_null(text);
    assert_arg(kvcsa_model_token_text(m, 5, NULL, &n, &err));
    assert_arg(kvcsa_model_token_text(m, 5, &text, NULL, &err));
    assert_arg(kvcsa_model_token_text(m, INT32_MIN, &text, &n, &err));
    assert_arg(kvcsa_model_detokenize(NULL, ids, 1, buf, 8, &n, NULL));
    assert_arg(kvcsa_model_detokenize(m, NULL, 1, buf, 8, &n, &err));
    assert_arg(kvcsa_model_detokenize(m, ids, 1, NULL, 8, &n, &err));
    assert_arg(kvcsa_model_detokenize(m, ids, 1, buf, 8, NULL, &err));
    assert_arg(kvcsa_model_chat_prompt(NULL, &msg, 1, ids, 8, &n, NULL));
    assert_arg(kvcsa_model_chat_prompt(m, NULL, 1, ids, 8, &n, &err));
    assert_arg(kvcsa_model_chat_prompt(m, &msg, 1, NULL, 8, &n, &err));
    assert_arg(kvcsa_model_chat_prompt(m, &msg, 1, ids, 8, NULL, &err));
    assert_arg(kvcsa_model_chat_prompt(m, &(kvcsa_message){"user", NULL}, 1, ids, 8, &n, &err));
    assert_arg(kvcsa_model_chat_prompt(m, &(kvcsa_message){NULL, "x"}, 1, ids, 8, &n, &err));
    kvcsa_model_release(NULL);
    kvcsa_model_release(&m);
}

static void test_null_text_stream(void **state)
{
    kvcsa_model       *m = host_model(T1_DIR);
    kvcsa_text_stream *s = NULL;
    const char        *stops[] = {NULL}, *text = NULL, *empty[] = {""};
    size_t             n = 0;
    int32_t            stopped = 0;
    kvcsa_error        err;

    (void)state;
    assert_arg(kvcsa_text_stream_create(NULL, NULL, 0, &s, NULL));
    assert_arg(kvcsa_text_stream_create(m, NULL, 1, &s, &err));
    assert_arg(kvcsa_text_stream_create(m, stops, 1, &s, &err));
    assert_arg(kvcsa_text_stream_create(m, empty, 1, &s, &err));
    assert_arg(kvcsa_text_stream_create(m, NULL, 0, NULL, &err));
    assert_null(s);
    assert_ok(kvcsa_text_stream_create(m, NULL, 0, &s, &err));
    assert_arg(kvcsa_text_stream_push(NULL, 5, &text, &n, &stopped, NULL));
    assert_arg(kvcsa_text_stream_push(s, 5, NULL, &n, &stopped, &err));
    assert_arg(kvcsa_text_stream_push(s, 5, &text, NULL, &stopped, &err));
    assert_arg(kvcsa_text_stream_push(s, 5, &text, &n, NULL, &err));
    assert_arg(kvcsa_text_stream_push(s, 512, &text, &n, &stopped, &err));
    assert_arg(kvcsa_text_stream_finish(NULL, &text, &n, NULL));
    assert_arg(kvcsa_text_stream_finish(s, NULL, &n, &err));
    assert_arg(kvcsa_text_stream_finish(s, &text, NULL, &err));
    kvcsa_text_stream_release(&s);
    kvcsa_model_release(&m);
}

static void test_null_pool_and_session(void **state)
{
    kvcsa_model        *m = host_model(T1_DIR);
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *s = host_session(pool, m, 0), *none = NULL;
    kvcsa_pool_stats    ps = {.struct_size = sizeof ps};
    kvcsa_session_stats ss = {.struct_size = sizeof ss};
    float               logits[T1_VOCAB] = {0};
    int32_t             id = 5;
    size_t              n = 0;
    kvcsa_error         err;

    (void)state;
    kvcsa_pool_params_default(NULL, 1);
    kvcsa_session_params_default(NULL, 1);
    kvcsa_append_params_default(NULL, 1);
    kvcsa_step_params_default(NULL, 1);
    kvcsa_sampler_params_default(NULL, 1);
    assert_arg(kvcsa_pool_create(NULL, NULL, &err));
    assert_arg(kvcsa_pool_get_stats(NULL, &ps, NULL));
    assert_arg(kvcsa_pool_get_stats(pool, NULL, &err));
    assert_arg(kvcsa_pool_check(NULL, &err));
    assert_arg(kvcsa_session_create(NULL, m, NULL, &none, NULL));
    assert_arg(kvcsa_session_create(pool, NULL, NULL, &none, &err));
    assert_arg(kvcsa_session_create(pool, m, NULL, NULL, &err));
    assert_arg(kvcsa_session_append(NULL, &id, 1, NULL, NULL, NULL));
    assert_arg(kvcsa_session_append(s, NULL, 1, NULL, NULL, &err));
    assert_arg(kvcsa_pool_step(NULL, &s, 1, NULL, NULL, NULL));
    assert_arg(kvcsa_pool_step(pool, NULL, 1, NULL, NULL, &err));
    assert_arg(kvcsa_pool_step(pool, &none, 1, NULL, NULL, &err));
    assert_arg(kvcsa_pool_step(pool, &s, SIZE_MAX, NULL, NULL, &err));
    assert_arg(kvcsa_session_get_logits(NULL, logits, T1_VOCAB, NULL));
    assert_arg(kvcsa_session_get_logits(s, NULL, T1_VOCAB, &err));
    assert_arg(kvcsa_session_get_tokens(NULL, 0, &id, 1, &n, NULL));
    assert_arg(kvcsa_session_get_tokens(s, 0, NULL, 1, &n, &err));
    assert_arg(kvcsa_session_get_tokens(s, 0, &id, 1, NULL, &err));
    assert_arg(kvcsa_session_get_stats(NULL, &ss, NULL));
    assert_arg(kvcsa_session_get_stats(s, NULL, &err));
    assert_arg(kvcsa_session_sample(NULL, NULL, &id, NULL));
    assert_arg(kvcsa_session_sample(s, NULL, NULL, &err));
    assert_arg(kvcsa_session_sample(s, NULL, &id, &err)); /* no logits yet */
    assert_arg(kvcsa_sample_logits(NULL, T1_VOCAB, 0, NULL, &id, NULL));
    assert_arg(kvcsa_sample_logits(logits, T1_VOCAB, 0, NULL, NULL, &err));
    assert_arg(kvcsa_sample_logits(logits, 0, 0, NULL, &id, &err));
    logits[7] = NAN;
    assert_arg(kvcsa_sample_logits(logits, T1_VOCAB, 0, NULL, &id, &err));
    assert_int_equal(kvcsa_session_length(NULL), 0);
    kvcsa_session_cancel(NULL);
    kvcsa_session_release(NULL);
    kvcsa_pool_release(NULL);
    kvcsa_session_release(&s);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

/* One session with tokens, whose snapshot nobody gets to write. */
static int32_t no_write(void *user, const void *data, size_t n_bytes)
{
    (void)user;
    (void)data;
    (void)n_bytes;
    return 5;
}

static int64_t no_read(void *user, void *data, size_t n_bytes)
{
    (void)user;
    (void)data;
    (void)n_bytes;
    return -1;
}

static void test_null_reuse_fork_and_erase(void **state)
{
    kvcsa_model        *m = host_model(T1_DIR);
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *s = host_session(pool, m, 0), *f = (kvcsa_session *)1;
    kvcsa_append_params ap;
    kvcsa_reuse         r = {.struct_size = sizeof r}, unset = {0};
    uint64_t            freed = 7;
    int32_t             id = 5;
    size_t              n = 7;
    kvcsa_error         err;

    (void)state;
    assert_arg(kvcsa_pool_resize(NULL, 0, NULL));
    assert_arg(kvcsa_pool_trim(NULL, 0, &freed, NULL));
    assert_int_equal(freed, 0);
    assert_ok(kvcsa_pool_trim(pool, 0, NULL, &err));
    assert_ok(kvcsa_pool_resize(pool, 0, &err));
    assert_arg(kvcsa_session_get_reuse(NULL, &r, NULL));
    assert_arg(kvcsa_session_get_reuse(s, NULL, &err));
    assert_fails(kvcsa_session_get_reuse(s, &unset, &err), KVCSA_ERR_ARG, "struct_size is 0");
    assert_arg(kvcsa_session_common_prefix(NULL, &id, 1, &n, NULL));
    assert_int_equal(n, 0);
    assert_arg(kvcsa_session_common_prefix(s, NULL, 1, &n, &err));
    assert_arg(kvcsa_session_common_prefix(s, &id, 1, NULL, &err));
    assert_arg(kvcsa_session_fork(NULL, 0, NULL, &f, NULL));
    assert_null(f);
    assert_arg(kvcsa_session_fork(s, 0, NULL, NULL, &err));
    assert_arg(kvcsa_session_fork(s, 1, NULL, &f, &err));
    assert_arg(kvcsa_session_fork(s, UINT64_MAX, NULL, &f, &err));
    assert_null(f);
    assert_arg(kvcsa_session_rewind(NULL, 0, NULL));
    assert_arg(kvcsa_session_rewind(s, 1, &err));
    assert_arg(kvcsa_session_rewind(s, UINT64_MAX, &err));
    assert_arg(kvcsa_session_sync(NULL, &id, 1, NULL, NULL, NULL));
    assert_arg(kvcsa_session_sync(s, NULL, 1, NULL, NULL, &err));
    assert_arg(kvcsa_session_sync(s, &id, 1, NULL, &unset, &err)); /* before anything is queued */
    assert_arg(kvcsa_session_erase(NULL, 0, NULL));
    assert_fails(kvcsa_session_erase(s, 2, &err), KVCSA_ERR_UNSUPPORTED, "flags is 0x2");
    kvcsa_append_params_default(&ap, sizeof ap);
    ap.reuse = 4;
    assert_fails(kvcsa_session_append(s, &id, 1, &ap, NULL, &err), KVCSA_ERR_UNSUPPORTED,
                 "reuse is 4");
    assert_fails(kvcsa_session_sync(s, &id, 1, &ap, NULL, &err), KVCSA_ERR_UNSUPPORTED,
                 "reuse is 4");
    kvcsa_append_params_default(&ap, sizeof ap);
    ap.reserved = 1;
    assert_fails(kvcsa_session_append(s, &id, 1, &ap, NULL, &err), KVCSA_ERR_UNSUPPORTED,
                 "reserved is 1");
    assert_int_equal(kvcsa_session_length(s), 0);
    assert_ok(kvcsa_session_rewind(s, 0, &err)); /* nothing was queued by all that */
    kvcsa_session_release(&s);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

static void test_null_limits_and_counts(void **state)
{
    kvcsa_model     *m = host_model(T1_DIR);
    kvcsa_pool      *pool = host_pool(1, 0);
    kvcsa_session   *s = host_session(pool, m, 0);
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_work       step = {.n_rows = 7}, total = {.n_rows = 7};
    double           mass = 7;
    size_t           n = 7;
    kvcsa_error      err;

    (void)state;
    assert_ok(kvcsa_model_get_info(m, &info, &err));
    assert_int_equal(info.span_tokens, 16);
    assert_arg(kvcsa_session_layer_work(NULL, 0, &step, &total, NULL));
    assert_true(step.n_rows == 0 && total.n_rows == 0);
    assert_fails(kvcsa_session_layer_work(s, info.n_layers, &step, &total, &err), KVCSA_ERR_ARG,
                 "layer is 10");
    assert_ok(kvcsa_session_layer_work(s, 0, NULL, NULL, &err));
    assert_arg(kvcsa_session_hide(NULL, 0, 16, 1, NULL));
    assert_fails(kvcsa_session_hide(s, 8, 16, 1, &err), KVCSA_ERR_ARG, "begin is 8");
    assert_fails(kvcsa_session_hide(s, 16, 24, 1, &err), KVCSA_ERR_ARG, "end is 24");
    assert_fails(kvcsa_session_hide(s, 32, 16, 1, &err), KVCSA_ERR_ARG, "begin is 32");
    assert_fails(kvcsa_session_hide(s, 0, 16, 2, &err), KVCSA_ERR_ARG, "hidden is 2");
    assert_ok(kvcsa_session_hide(s, UINT64_MAX - 15, UINT64_MAX, 1, &err));
    assert_ok(kvcsa_session_hide(s, 0, UINT64_MAX, 0, &err));
    assert_ok(kvcsa_session_hide(s, 16, UINT64_MAX - 15, 1, &err));
    assert_arg(kvcsa_session_get_mass(NULL, &mass, 1, &n, 0, NULL));
    assert_int_equal(n, 0);
    assert_arg(kvcsa_session_get_mass(s, &mass, 1, NULL, 0, &err));
    assert_arg(kvcsa_session_get_mass(s, NULL, 1, &n, 0, &err));
    assert_fails(kvcsa_session_get_mass(s, &mass, 1, &n, 0, &err), KVCSA_ERR_ARG, "TRACK_MASS");
    assert_string_equal(kvcsa_format_name(0), "?");
    assert_string_equal(kvcsa_format_name(UINT32_MAX), "?");
    assert_string_equal(kvcsa_format_name(KVCSA_FORMAT_FP4_E4M3_G16), "fp4");
    kvcsa_session_release(&s);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

static void test_null_prefix(void **state)
{
    kvcsa_model       *m = host_model(T1_DIR), *plan = NULL;
    kvcsa_pool        *pool = host_pool(1, 0);
    kvcsa_session     *s = host_session(pool, m, 0);
    kvcsa_model_params mp;
    uint64_t           freed = 7;
    int32_t            id = 5;
    size_t             n = 7;
    kvcsa_error        err;

    (void)state;
    kvcsa_model_params_default(&mp, sizeof mp);
    mp.flags = KVCSA_MODEL_PLAN_ONLY;
    assert_ok(kvcsa_model_open(T1_DIR, &mp, &plan, &err));
    assert_arg(kvcsa_prefix_match(NULL, m, 0, &id, 1, &n, NULL));
    assert_int_equal(n, 0);
    assert_arg(kvcsa_prefix_match(pool, NULL, 0, &id, 1, &n, &err));
    assert_arg(kvcsa_prefix_match(pool, m, 0, NULL, 1, &n, &err));
    assert_arg(kvcsa_prefix_match(pool, m, 0, &id, 1, NULL, &err));
    n = 7;
    assert_ok(kvcsa_prefix_match(pool, plan, 0, &id, 1, &n, &err)); /* of cache-only sessions */
    assert_int_equal(n, 0);
    assert_arg(kvcsa_prefix_publish(NULL, &freed, NULL));
    assert_int_equal(freed, 0);
    assert_ok(kvcsa_prefix_publish(s, NULL, &err));
    n = 7;
    assert_arg(kvcsa_prefix_pin(NULL, m, 0, &id, 1, &n, NULL));
    assert_int_equal(n, 0);
    assert_arg(kvcsa_prefix_pin(pool, NULL, 0, &id, 1, &n, &err));
    assert_arg(kvcsa_prefix_pin(pool, m, 0, NULL, 1, &n, &err));
    assert_ok(kvcsa_prefix_pin(pool, m, 0, &id, 1, NULL, &err)); /* none is known: none is pinned */
    assert_ok(kvcsa_prefix_pin(pool, plan, 0, &id, 1, &n, &err));
    assert_arg(kvcsa_prefix_unpin(NULL, m, 0, &id, 1, NULL));
    assert_arg(kvcsa_prefix_unpin(pool, NULL, 0, &id, 1, &err));
    assert_arg(kvcsa_prefix_unpin(pool, m, 0, NULL, 1, &err));
    assert_arg(kvcsa_prefix_unpin(pool, m, 0, NULL, 0, &err));
    assert_fails(kvcsa_prefix_unpin(pool, m, 0, &id, 1, &err), KVCSA_ERR_ARG, "n_tokens is 1");
    freed = 7;
    assert_arg(kvcsa_prefix_forget(NULL, m, 0, &id, 1, &freed, NULL));
    assert_int_equal(freed, 0);
    assert_arg(kvcsa_prefix_forget(pool, m, 0, NULL, 1, &freed, &err));
    assert_fails(kvcsa_prefix_forget(pool, NULL, 0, &id, 1, &freed, &err), KVCSA_ERR_ARG,
                 "model is NULL");
    assert_arg(kvcsa_prefix_forget(pool, NULL, 0, NULL, 1, &freed, &err));
    assert_ok(kvcsa_prefix_forget(pool, plan, 0, &id, 1, &freed, &err));
    assert_ok(kvcsa_prefix_forget(pool, NULL, 0, NULL, 0, NULL, &err));
    assert_ok(kvcsa_prefix_forget(pool, m, 0, NULL, 0, &freed, &err));
    kvcsa_session_release(&s);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&plan);
    kvcsa_model_release(&m);
}

static void test_null_snapshot(void **state)
{
    kvcsa_model          *m = host_model(T1_DIR);
    kvcsa_pool           *pool = host_pool(1, 0);
    kvcsa_session        *s = host_session(pool, m, 0);
    const kvcsa_writer    w = {no_write, NULL}, no_w = {NULL, NULL};
    const kvcsa_reader    r = {no_read, NULL}, no_r = {NULL, NULL};
    kvcsa_snapshot_params p;
    kvcsa_snapshot_info   i = {.struct_size = sizeof i, .n_tokens = 7}, unset = {0};
    uint64_t              n = 7;
    kvcsa_error           err;

    (void)state;
    kvcsa_snapshot_params_default(NULL, 1);
    kvcsa_snapshot_params_default(&p, sizeof p);
    assert_int_equal(p.struct_size, sizeof p);
    assert_null(p.name);
    assert_arg(kvcsa_snapshot_size(NULL, &p, &n, NULL));
    assert_int_equal(n, 0);
    assert_arg(kvcsa_snapshot_size(s, &p, NULL, &err));
    assert_arg(kvcsa_snapshot_save(NULL, "x", &p, &i, NULL));
    assert_int_equal(i.n_tokens, 0);
    assert_arg(kvcsa_snapshot_save(s, NULL, &p, NULL, &err));
    assert_arg(kvcsa_snapshot_save(s, "no/such/folder/x", &p, &unset, &err));
    i.n_tokens = 7;
    assert_arg(kvcsa_snapshot_load(NULL, "x", &p, &i, NULL));
    assert_int_equal(i.n_tokens, 0);
    assert_arg(kvcsa_snapshot_load(s, NULL, &p, NULL, &err));
    assert_int_equal(kvcsa_snapshot_load(s, "no/such/file", NULL, &i, &err), KVCSA_ERR_IO);
    assert_arg(kvcsa_snapshot_load(s, "no/such/file", NULL, &unset, &err));
    assert_arg(kvcsa_snapshot_write(NULL, &w, &p, NULL, NULL));
    assert_arg(kvcsa_snapshot_write(s, NULL, &p, NULL, &err));
    assert_fails(kvcsa_snapshot_write(s, &no_w, &p, NULL, &err), KVCSA_ERR_ARG, "write is NULL");
    assert_int_equal(kvcsa_snapshot_write(s, &w, &p, NULL, &err), KVCSA_ERR_IO);
    assert_int_equal(err.detail, 5);
    assert_arg(kvcsa_snapshot_read(NULL, &r, &p, NULL, NULL));
    assert_arg(kvcsa_snapshot_read(s, NULL, &p, NULL, &err));
    assert_fails(kvcsa_snapshot_read(s, &no_r, &p, NULL, &err), KVCSA_ERR_ARG, "read is NULL");
    assert_int_equal(kvcsa_snapshot_read(s, &r, &p, NULL, &err), KVCSA_ERR_IO);
    assert_arg(kvcsa_snapshot_inspect(NULL, &p, &i, NULL));
    assert_arg(kvcsa_snapshot_inspect("no/such/file", &p, NULL, &err));
    assert_arg(kvcsa_snapshot_inspect("no/such/file", &p, &unset, &err));
    assert_int_equal(kvcsa_snapshot_inspect("no/such/file", NULL, &i, &err), KVCSA_ERR_IO);
    assert_arg(kvcsa_snapshot_remove(NULL, &p, NULL));
    assert_int_equal(kvcsa_snapshot_remove("no/such/file", &p, &err), KVCSA_ERR_IO);
    kvcsa_session_release(&s);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

/* Flags belong to functions; names are no paths. */
static void test_snapshot_params_are_checked(void **state)
{
    char                  too_long[66] = {0};
    const char *const     bad[] = {"", ".hidden", "..", "a/b", "a b", "\xc3\xa9", too_long};
    const uint32_t save = KVCSA_SNAPSHOT_WINDOW | KVCSA_SNAPSHOT_LOGITS;
    const uint32_t load =
        KVCSA_SNAPSHOT_ANY_MODEL | KVCSA_SNAPSHOT_ANY_NUMERICS | KVCSA_SNAPSHOT_SALVAGE;
    kvcsa_model          *m = host_model(T1_DIR);
    kvcsa_pool           *pool = host_pool(1, 0);
    kvcsa_session        *s = host_session(pool, m, 0);
    const kvcsa_reader    r = {no_read, NULL};
    kvcsa_snapshot_params p;
    kvcsa_snapshot_info   i = {.struct_size = sizeof i};
    uint64_t              n = 0;
    kvcsa_error           err;

    (void)state;
    memset(too_long, 'a', 65);
    kvcsa_snapshot_params_default(&p, sizeof p);
    for (uint32_t bit = 1; bit; bit <<= 1) {
        p.flags = bit;
        assert_int_equal(kvcsa_snapshot_size(s, &p, &n, &err),
                         bit & save ? KVCSA_OK : KVCSA_ERR_UNSUPPORTED);
        assert_int_equal(kvcsa_snapshot_save(s, "no/such/folder/x", &p, NULL, &err),
                         bit & save ? KVCSA_ERR_IO : KVCSA_ERR_UNSUPPORTED);
        assert_int_equal(kvcsa_snapshot_load(s, "no/such/file", &p, NULL, &err),
                         bit & load ? KVCSA_ERR_IO : KVCSA_ERR_UNSUPPORTED);
        assert_int_equal(kvcsa_snapshot_read(s, &r, &p, NULL, &err),
                         bit & load ? KVCSA_ERR_IO : KVCSA_ERR_UNSUPPORTED);
        assert_int_equal(kvcsa_snapshot_inspect("no/such/file", &p, &i, &err),
                         KVCSA_ERR_UNSUPPORTED);
        assert_int_equal(kvcsa_snapshot_remove("no/such/file", &p, &err), KVCSA_ERR_UNSUPPORTED);
    }
    kvcsa_snapshot_params_default(&p, sizeof p);
    p.reserved = 3;
    assert_fails(kvcsa_snapshot_size(s, &p, &n, &err), KVCSA_ERR_UNSUPPORTED, "reserved is 3");
    kvcsa_snapshot_params_default(&p, sizeof p);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        p.name = bad[k];
        assert_fails(kvcsa_snapshot_save(s, "no/such/folder/x", &p, NULL, &err), KVCSA_ERR_ARG,
                     "name is");
        assert_arg(kvcsa_snapshot_load(s, "no/such/file", &p, NULL, &err));
        assert_arg(kvcsa_snapshot_remove("no/such/file", &p, &err));
    }
    p.name = "turn-7_of.X";
    assert_int_equal(kvcsa_snapshot_load(s, "no/such/file", &p, NULL, &err), KVCSA_ERR_IO);
    p.struct_size = sizeof p - 1;
    assert_arg(kvcsa_snapshot_size(s, &p, &n, &err));
    kvcsa_session_release(&s);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

/* struct_size 0, 1, first size - 1, and a bad allocator. */
static void test_struct_sizes_are_checked(void **state)
{
    kvcsa_model       *m = NULL;
    kvcsa_pool        *pool = NULL;
    kvcsa_model_params mp;
    kvcsa_pool_params  pp;
    kvcsa_model_info   info = {0};
    kvcsa_allocator    half = {0};
    kvcsa_error        err;

    (void)state;
    kvcsa_model_params_default(&mp, sizeof mp);
    assert_int_equal(mp.struct_size, sizeof mp);
    for (size_t size = 0; size < offsetof(kvcsa_model_params, plan);
         size += offsetof(kvcsa_model_params, plan) - 1) {
        mp.struct_size = size;
        assert_arg(kvcsa_model_open(T1_DIR, &mp, &m, &err));
    }
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.flags = 1u << 31;
    assert_int_equal(kvcsa_pool_create(&pp, &pool, &err), KVCSA_ERR_UNSUPPORTED);
    kvcsa_pool_params_default(&pp, sizeof pp);
    half.alloc = (void *(*)(void *, size_t, size_t))0;
    half.free =
        (void (*)(void *, void *, size_t, size_t))(void (*)(void))test_struct_sizes_are_checked;
    pp.allocator = &half;
    assert_arg(kvcsa_pool_create(&pp, &pool, &err));
    assert_null(pool);
    m = host_model(T1_DIR);
    assert_arg(kvcsa_model_get_info(m, &info, &err)); /* struct_size not set */
    kvcsa_model_release(&m);
}

/* The sizes of structs that have grown, as a program has them that was built against 0.1. */
enum {
    OLD_POOL_PARAMS = 48,
    OLD_POOL_STATS = 96,
    OLD_SESSION_PARAMS = 16,
    OLD_APPEND_PARAMS = 40,
    OLD_SESSION_STATS = 80
};

/* Fields that the old caller does not have are rubbish here: they must be neither read nor
 * written. */
static void test_behaviour_44_structs_of_0_1(void **state)
{
    kvcsa_model         *m = host_model(T1_DIR);
    kvcsa_pool          *pool = NULL;
    kvcsa_session       *s = NULL;
    kvcsa_pool_params    pp;
    kvcsa_session_params sp;
    kvcsa_append_params  ap;
    kvcsa_pool_stats     ps;
    kvcsa_session_stats  ss;
    int32_t              ids[20];
    kvcsa_error          err;

    (void)state;
    memset(&pp, 0xee, sizeof pp);
    memset(&sp, 0xee, sizeof sp);
    memset(&ap, 0xee, sizeof ap);
    memset(&ps, 0xee, sizeof ps);
    memset(&ss, 0xee, sizeof ss);
    kvcsa_pool_params_default(&pp, OLD_POOL_PARAMS);
    kvcsa_session_params_default(&sp, OLD_SESSION_PARAMS);
    kvcsa_append_params_default(&ap, OLD_APPEND_PARAMS);
    assert_int_equal(pp.struct_size, OLD_POOL_PARAMS);
    assert_int_equal(pp.evict, 0xeeeeeeee); /* not written */
    assert_int_equal(sp.reuse, 0xeeeeeeee);
    assert_int_equal(ap.reserved, 0xeeeeeeee);
    assert_ok(kvcsa_pool_create(&pp, &pool, &err));
    assert_ok(kvcsa_session_create(pool, m, &sp, &s, &err));
    host_tokens(ids, 20, 44);
    assert_ok(kvcsa_session_append(s, ids, 20, &ap, NULL, &err));
    host_step(pool, s);
    ps.struct_size = OLD_POOL_STATS;
    ss.struct_size = OLD_SESSION_STATS;
    assert_ok(kvcsa_pool_get_stats(pool, &ps, &err));
    assert_ok(kvcsa_session_get_stats(s, &ss, &err));
    assert_int_equal(ps.n_sessions, 1);
    assert_true(ps.n_acquired > 0 && ps.n_released <= ps.n_acquired);
    assert_true(ps.evictable_bytes == UINT64_C(0xeeeeeeeeeeeeeeee));
    assert_int_equal(ss.n_tokens, 20);
    assert_int_equal(ss.n_computed_rows, 20);
    assert_true(ss.shared_bytes == UINT64_C(0xeeeeeeeeeeeeeeee));
    /* smaller than ever */
    pp.struct_size = OLD_POOL_PARAMS - 1;
    sp.struct_size = OLD_SESSION_PARAMS - 1;
    ap.struct_size = OLD_APPEND_PARAMS - 1;
    ps.struct_size = OLD_POOL_STATS - 1;
    ss.struct_size = OLD_SESSION_STATS - 1;
    assert_fails(kvcsa_pool_create(&pp, &(kvcsa_pool *){NULL}, &err), KVCSA_ERR_ARG, "at least 48");
    assert_fails(kvcsa_session_create(pool, m, &sp, &(kvcsa_session *){NULL}, &err), KVCSA_ERR_ARG,
                 "at least 16");
    assert_fails(kvcsa_session_append(s, ids, 1, &ap, NULL, &err), KVCSA_ERR_ARG, "at least 40");
    assert_fails(kvcsa_pool_get_stats(pool, &ps, &err), KVCSA_ERR_ARG, "at least 96");
    assert_fails(kvcsa_session_get_stats(s, &ss, &err), KVCSA_ERR_ARG, "at least 80");
    kvcsa_session_release(&s);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

/* Every new field of the params, one wrong value after the other. */
static void test_new_params_are_checked(void **state)
{
    const kvcsa_trace    deaf = {NULL, NULL};
    kvcsa_model         *m = host_model(T1_DIR);
    kvcsa_pool          *pool = NULL;
    kvcsa_session       *s = NULL;
    kvcsa_pool_params    pp;
    kvcsa_session_params sp;
    kvcsa_error          err;

    (void)state;
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.evict = 2;
    assert_fails(kvcsa_pool_create(&pp, &pool, &err), KVCSA_ERR_UNSUPPORTED, "evict is 2");
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.cpu_avoid = 1u << 31;
    assert_fails(kvcsa_pool_create(&pp, &pool, &err), KVCSA_ERR_UNSUPPORTED, "cpu_avoid is 0x80000000");
    assert_null(pool);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.trace = &deaf; /* like a log without a function: nobody listens */
    assert_ok(kvcsa_pool_create(&pp, &pool, &err));
#define REFUSED(field, value, status)                                                              \
    do {                                                                                           \
        kvcsa_session_params_default(&sp, sizeof sp);                                              \
        sp.field = (value);                                                                        \
        assert_fails(kvcsa_session_create(pool, m, &sp, &s, &err), status, #field " is ");         \
        assert_null(s);                                                                            \
    } while (0)
    REFUSED(mode, 2, KVCSA_ERR_UNSUPPORTED);
    REFUSED(reuse, 4, KVCSA_ERR_UNSUPPORTED);
    REFUSED(decoder_replay, 3, KVCSA_ERR_UNSUPPORTED);
    REFUSED(decoder_cut_layer, 1, KVCSA_ERR_ARG);
    REFUSED(decoder_cut_layer, UINT32_MAX, KVCSA_ERR_ARG);
    REFUSED(window_slack_tokens, 4097, KVCSA_ERR_ARG);
    REFUSED(window_store_tokens, 100, KVCSA_ERR_ARG);
    REFUSED(select_entries, 9, KVCSA_ERR_ARG); /* T1 selects 8 entries, of 3 blocks */
    REFUSED(candidate_blocks, 4, KVCSA_ERR_ARG);
#undef REFUSED
    kvcsa_session_params_default(&sp, sizeof sp);
    sp.flags = 16;
    assert_fails(kvcsa_session_create(pool, m, &sp, &s, &err), KVCSA_ERR_UNSUPPORTED, "0x10");
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_model),
        cmocka_unit_test(test_null_text_stream),
        cmocka_unit_test(test_null_pool_and_session),
        cmocka_unit_test(test_null_reuse_fork_and_erase),
        cmocka_unit_test(test_null_limits_and_counts),
        cmocka_unit_test(test_null_prefix),
        cmocka_unit_test(test_null_snapshot),
        cmocka_unit_test(test_snapshot_params_are_checked),
        cmocka_unit_test(test_struct_sizes_are_checked),
        cmocka_unit_test(test_behaviour_44_structs_of_0_1),
        cmocka_unit_test(test_new_params_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
