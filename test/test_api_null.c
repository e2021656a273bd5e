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
    for (size_t size = 0; size < sizeof mp; size += sizeof mp - 1) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_model),
        cmocka_unit_test(test_null_text_stream),
        cmocka_unit_test(test_null_pool_and_session),
        cmocka_unit_test(test_struct_sizes_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
