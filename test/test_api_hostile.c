/* Weights are bytes from outside: NaN, infinity and huge scales in any matrix must not crash, hang
 * or leave the session in a state that another session can feel. */
#include <math.h>

#include "support/host.h"

typedef struct poison {
    const char *tensor;
    uint8_t     byte;
    size_t      n_bytes;
} poison;

/* E4M3 0x7f and E8M0 0xff are NaN, E8M0 0xfe is 2^127, BF16 0xffff is NaN and 0x7f7f is about 3e38.
 */
static const poison poisons[] = {
    {"embed.weight", 0xff, 160 * 2 * 40},
    {"head.weight", 0xff, 1000},
    {"layers.0.attn.wq_a.weight", 0x7f, 64},
    {"layers.0.attn.wkv.scale", 0xff, 4},
    {"layers.0.attn.wkv.scale", 0xfe, 15},
    {"layers.2.attn.compressor.wgate.weight", 0xff, 320},
    {"layers.2.attn.compressor.wkv.weight", 0x7f, 3000},
    {"layers.2.attn.indexer.wk.weight", 0xff, 64},
    {"layers.2.attn.indexer.wq_b.scale", 0xfe, 8},
    {"layers.5.attn.indexer.wk.weight", 0x7f, 4000},
    {"layers.5.attn.indexer.weights_proj.weight", 0xff, 100},
    {"layers.7.attn.indexer.wq_b.weight", 0x7f, 500},
    {"layers.7.attn.indexer.weights_proj.weight", 0x7f, 300},
    {"layers.3.ffn.gate.weight", 0xff, 640},
    {"layers.3.ffn.gate.weight", 0x7f, 640},
    {"layers.4.ffn.experts.3.w2.scale", 0xff, 20},
    {"layers.4.ffn.shared_experts.w1.scale", 0xfe, 6},
    {"layers.1.engram.embed.scale", 0xff, 900},
    {"layers.4.engram.wkv.weight", 0x7f, 900},
    {"layers.6.hc_attn_fn", 0xff, 4000},
    {"layers.6.hc_ffn_fn", 0x7f, 40000},
    {"layers.8.attn.wo_a.scale", 0xff, 8},
    {"layers.8.attn.wo_b.scale", 0xfe, 8},
};

static void test_poisoned_weights_do_no_harm(void **state)
{
    enum { N = 90 };
    kvcsa_model   *good = host_model(T1_DIR);
    kvcsa_pool    *pool = host_pool(2, 0);
    kvcsa_session *witness = host_session(pool, good, 0);
    int32_t        ids[N];
    float          want[T1_VOCAB], got[T1_VOCAB];
    uint32_t       n_bad = 0;
    kvcsa_error    err;

    (void)state;
    host_tokens(ids, N, 61);
    host_run(pool, witness, ids, N, NULL);
    host_logits(witness, want, T1_VOCAB);
    kvcsa_session_release(&witness);
    for (size_t k = 0; k < sizeof poisons / sizeof *poisons; k++) {
        uint8_t       *bytes = malloc(poisons[k].n_bytes);
        checkpoint     c;
        kvcsa_model   *m = NULL;
        kvcsa_session *s;
        int32_t        token = -1;
        kvcsa_status   st;

        assert_non_null(bytes);
        memset(bytes, poisons[k].byte, poisons[k].n_bytes);
        checkpoint_copy(&c, T1_DIR);
        checkpoint_patch_data(&c, poisons[k].tensor, 0, bytes, poisons[k].n_bytes);
        free(bytes);
        assert_ok(kvcsa_model_open(c.dir, NULL, &m, &err));
        s = host_session(pool, m, 16);
        host_run(pool, s, ids, N, NULL);
        host_logits(s, got, T1_VOCAB);
        n_bad += memcmp(got, want, sizeof got) != 0;
        /* NaN is refused by the sampler, not turned into a token */
        st = kvcsa_session_sample(s, NULL, &token, &err);
        for (uint32_t i = 0; i < T1_VOCAB; i++)
            if (isnan(got[i])) {
                assert_int_equal(st, KVCSA_ERR_ARG);
                break;
            }
        if (st == KVCSA_OK)
            assert_in_range(token, 0, T1_VOCAB - 1);
        assert_ok(kvcsa_pool_check(pool, &err));
        kvcsa_session_release(&s);
        kvcsa_model_release(&m);
        checkpoint_remove(&c);
    }
    assert_true(n_bad >= sizeof poisons / sizeof *poisons - 3); /* they were felt */
    /* blocks that held poison are used again: nothing of it is left */
    witness = host_session(pool, good, 16);
    host_run(pool, witness, ids, N, NULL);
    host_logits(witness, got, T1_VOCAB);
    assert_memory_equal(got, want, sizeof got);
    kvcsa_session_release(&witness);
    host_pool_is_idle(pool);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poisoned_weights_do_no_harm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
