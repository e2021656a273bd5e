/* Opening whole checkpoints: what is bound, what is refused, what is released. Numbers of T1 come
 * from its files, read with another program (python, numpy). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"
#include "support/checkpoint.h"
#include "support/fault_alloc.h"

typedef struct log_record {
    int  n[4]; /* by level */
    char last[4][512];
} log_record;

static void record(void *user, int32_t level, const char *text)
{
    log_record *r = user;

    assert_true(level >= KVCSA_LOG_ERROR && level <= KVCSA_LOG_DEBUG);
    r->n[level]++;
    (void)snprintf(r->last[level], sizeof r->last[level], "%s", text);
}

static kvcsa_status open_as(const char *path, uint32_t flags, const kvcsa_allocator *a,
                            kvcsa_model **out, kvcsa_error *err)
{
    kvcsa_model_params p = {.struct_size = sizeof p, .flags = flags, .allocator = a};

    return kvi_model_open(path, &p, out, err);
}

static kvcsa_model *open_good(const char *path, uint32_t flags)
{
    kvcsa_model *m = NULL;
    kvcsa_error  err = {0};

    if (open_as(path, flags, NULL, &m, &err) != KVCSA_OK)
        fail_msg("%s: %s", path, err.text);
    return m;
}

/* Opening must fail with this status and text, and leave nothing behind. */
static void expect_refused(const char *path, uint32_t flags, kvcsa_status want, const char *says)
{
    fault_alloc  fa;
    kvcsa_model *m = (kvcsa_model *)(uintptr_t)8;
    kvcsa_error  err = {0};
    kvcsa_status st;

    fault_alloc_init(&fa);
    st = open_as(path, flags, &fa.hook, &m, &err);
    if (st != want || err.status != want || !strstr(err.text, says))
        fail_msg("wanted %d \"%s\", got %d \"%s\"", want, says, st, err.text);
    assert_null(m);
    assert_true(fault_alloc_is_clean(&fa));
}

/* ------------------------------------------------------------------ good ones */

static void test_model_open_counts_t1(void **state)
{
    log_record         log = {0};
    kvcsa_log          hook = {record, &log};
    kvcsa_model_params p = {.struct_size = sizeof p, .log = &hook};
    kvcsa_model       *m = NULL;
    const char        *line;
    uint32_t           n_lines = 0;

    (void)state;
    assert_int_equal(kvi_model_open(T1_DIR, &p, &m, NULL), KVCSA_OK);
    assert_int_equal(m->n_tensors, 1051);
    assert_int_equal(m->n_skipped, 161); /* two draft stages: 80 + 81 */
    assert_int_equal(m->weight_bytes, 5816258);
    assert_int_equal(m->skipped_bytes, 6751147 - 5816258);
    for (line = m->skipped_names; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        assert_memory_equal(line, "mtp.", 4);
        n_lines++;
    }
    assert_int_equal(n_lines, 161);
    assert_int_equal(m->plan.n_layers, 10);
    assert_int_equal(m->plan.block_tokens, 128);
    assert_int_equal(m->layout.index_part_bytes + m->layout.main_part_bytes, 22528);
    assert_non_null(m->token_map);
    assert_int_equal(m->token_map[17], 15);
    assert_int_equal(m->token_map[200], 171);
    assert_int_equal(m->engram.pad, 2);
    assert_int_equal(log.n[KVCSA_LOG_INFO], 1);
    assert_int_equal(log.n[KVCSA_LOG_WARN] + log.n[KVCSA_LOG_ERROR], 0);
    assert_non_null(strstr(log.last[KVCSA_LOG_INFO],
                           "1051 tensors in use (5816258 bytes), 161 skipped (934889 bytes)"));
    kvi_model_release(m);
}

static void test_model_open_counts_tiny(void **state)
{
    kvcsa_model *m = open_good(TINY_DIR, 0);

    (void)state;
    assert_int_equal(m->n_tensors, 643);
    assert_int_equal(m->n_skipped, 0);
    assert_string_equal(m->skipped_names, "");
    assert_int_equal(m->weight_bytes, 7056286);
    assert_int_equal(kvi_tokenizer_size(m->tokenizer), 1536);
    kvi_model_release(m);
}

static void test_model_open_binds_weights(void **state)
{
    static const float       scale[3] = {0x1.c0c3240000000p-2f, 0x1.5f43c00000000p-2f,
                                         0x1.f283d80000000p-2f};
    static const uint8_t     row_end[4] = {0xec, 0xf6, 0xda, 0x79};
    static const uint8_t     w2[4] = {0x4a, 0x30, 0x3a, 0x45};
    kvcsa_model             *m = open_good(T1_DIR, 0);
    const kvi_weights       *w = &m->weights;
    const kvi_matrix        *x;
    const kvi_layer_weights *l;

    (void)state;
    assert_true(w->norm[0] == 0x1.e6p-1f && w->norm[159] == 0x1.24p+0f);
    assert_true(w->layers[2].comp_norm[95] == 0x1.c6p-1f);
    assert_true(w->layers[9].attn_sink[3] == -0x1.03e472p-1f);
    assert_memory_equal(w->layers[9].mix_ffn.scale, scale, sizeof scale);
    assert_true(w->layers[1].engram_qk[3] == 0x1.f74p-1f &&
                w->layers[1].engram_qk[639] == 0x1.20cp+0f);

    x = &w->layers[4].engram_table;
    assert_int_equal(x->kind, KVI_W_FP8_ROW);
    assert_int_equal(x->rows, 964);
    assert_int_equal(x->cols, 64);
    assert_memory_equal(x->data + 963 * 64 + 60, row_end, 4);
    assert_int_equal(x->scale[963 * 2 + 1], 0x77);
    x = &w->layers[3].experts[11].w2;
    assert_int_equal(x->kind, KVI_W_FP4);
    assert_int_equal(x->rows, 160);
    assert_int_equal(x->cols, 64);
    assert_memory_equal(x->data, w2, 4);
    x = &w->layers[0].wo_a; /* [G O, H d / G] */
    assert_int_equal(x->kind, KVI_W_FP8);
    assert_int_equal(x->rows, 64);
    assert_int_equal(x->cols, 192);
    x = &w->layers[7].mix_attn.fn;
    assert_int_equal(x->kind, KVI_W_F32);
    assert_int_equal(x->rows, 24);
    assert_int_equal(x->cols, 640);
    x = &w->layers[1].engram_wkv; /* [(copies + 1) D, columns x width] */
    assert_int_equal(x->rows, 800);
    assert_int_equal(x->cols, 256);
    for (uint32_t i = 0; i < 10; i++) {
        const int kv = i == 2 || i == 4 || i == 5;

        l = &w->layers[i];
        assert_int_equal(l->comp_wkv.kind, kv ? KVI_W_BF16 : KVI_W_NONE);
        assert_int_equal(l->comp_wgate.kind,
                         i == 2 || i == 4 ? KVI_W_BF16 : KVI_W_NONE); /* layer 5 has ratio 1 */
        assert_int_equal(l->index_k_norm != NULL, kv);
        assert_int_equal(l->index_wq_b.kind, kv || i == 7 ? KVI_W_FP8 : KVI_W_NONE);
        assert_int_equal(l->engram_index, i == 1 ? 0 : i == 4 ? 1 : -1);
        assert_int_equal(l->engram_qk != NULL, i == 1 || i == 4);
    }
    kvi_model_release(m);
}

static void test_model_open_reads_as_it_maps(void **state)
{
    kvcsa_model *mapped = open_good(T1_DIR, 0);
    kvcsa_model *read = open_good(T1_DIR, KVCSA_MODEL_READ);
    kvcsa_model *tiny = open_good(TINY_DIR, 0);

    (void)state;
    assert_int_equal(mapped->fingerprint, read->fingerprint);
    assert_int_not_equal(mapped->fingerprint, tiny->fingerprint);
    assert_int_equal(read->n_tensors, 1051);
    for (size_t i = 0; i < kvi_tensors_count(mapped->tensors); i++) {
        const kvi_tensor *x = kvi_tensors_at(mapped->tensors, i);
        const kvi_tensor *y = kvi_tensors_at(read->tensors, i);

        assert_int_equal(x->used, y->used);
        assert_memory_equal(x->data, y->data, (size_t)x->n_bytes);
    }
    kvi_model_release(tiny);
    kvi_model_release(read);
    kvi_model_release(mapped);
}

static void test_model_open_plan_only_needs_config_only(void **state)
{
    checkpoint   c;
    kvcsa_model *m = open_good(RELEASE_CONFIG, KVCSA_MODEL_PLAN_ONLY);

    (void)state;
    assert_int_equal(m->plan.n_layers, 40);
    assert_int_equal(m->plan_only, 1);
    assert_null(m->tensors);
    assert_null(m->tokenizer);
    assert_string_equal(m->skipped_names, "");
    assert_int_not_equal(m->fingerprint, 0);
    kvi_model_release(m);

    checkpoint_copy(&c, T1_DIR);
    checkpoint_drop(&c, "tokenizer.json");
    checkpoint_drop(&c, "model.safetensors.index.json");
    m = open_good(c.dir, KVCSA_MODEL_PLAN_ONLY);
    assert_int_equal(m->plan.n_layers, 10);
    kvi_model_release(m);
    checkpoint_edit_config(&c, "text_config/engram_num_embeddings/0", "891");
    expect_refused(c.dir, KVCSA_MODEL_PLAN_ONLY, KVCSA_ERR_FORMAT,
                   "engram_num_embeddings is 891 for layer 1");
    checkpoint_remove(&c);
}

static void test_model_retain_keeps_alive(void **state)
{
    fault_alloc  fa;
    kvcsa_model *m = NULL;

    (void)state;
    fault_alloc_init(&fa);
    assert_int_equal(open_as(T1_DIR, 0, &fa.hook, &m, NULL), KVCSA_OK);
    assert_ptr_equal(kvi_model_retain(m), m);
    kvi_model_release(m);
    assert_int_equal(m->n_tensors, 1051);
    kvi_model_release(m);
    assert_true(fault_alloc_is_clean(&fa));
    kvi_model_release(NULL);
}

/* ------------------------------------------------------------------ fingerprint */

static uint64_t fingerprint_of(const checkpoint *c)
{
    kvcsa_model *m = open_good(c->dir, 0);
    uint64_t     h = m->fingerprint;

    kvi_model_release(m);
    return h;
}

static void test_model_fingerprint_sees_changes(void **state)
{
    static const uint8_t changed = 0x55;
    checkpoint           c;
    kvcsa_model         *m = open_good(T1_DIR, 0);
    const uint64_t       original = m->fingerprint;
    uint64_t             h;

    (void)state;
    kvi_model_release(m);
    checkpoint_copy(&c, T1_DIR); /* the same files elsewhere */
    assert_int_equal(fingerprint_of(&c), original);
    checkpoint_edit_config(&c, "transformers_version", "\"9\""); /* a key that we do not read */
    assert_int_equal(fingerprint_of(&c), original);
    checkpoint_edit_config(&c, "text_config/rope_theta", "10001");
    assert_int_not_equal(h = fingerprint_of(&c), original);
    checkpoint_edit_config(&c, "text_config/rope_theta", "10000");
    assert_int_equal(fingerprint_of(&c), original);
    checkpoint_patch_data(&c, "layers.5.ffn.experts.3.w1.weight", 1, &changed, 1);
    assert_int_not_equal(fingerprint_of(&c), original);
    assert_int_not_equal(fingerprint_of(&c), h);
    checkpoint_remove(&c);
}

/* ------------------------------------------------------------------ refused ones */

static void test_model_open_refuses_paths(void **state)
{
    kvcsa_model *m = NULL;
    checkpoint   c;

    (void)state;
    assert_int_equal(open_as(NULL, 0, NULL, &m, NULL), KVCSA_ERR_ARG);
    expect_refused("", 0, KVCSA_ERR_ARG, "path is empty");
    expect_refused("test/data/none", 0, KVCSA_ERR_IO,
                   "test/data/none: cannot open, errno 2 (no such file)");
    expect_refused("test/data/none", KVCSA_MODEL_PLAN_ONLY, KVCSA_ERR_IO, "cannot open, errno 2");
    expect_refused(RELEASE_CONFIG, 0, KVCSA_ERR_IO, "is a file, must be a checkpoint directory");
    expect_refused("/dev/null", KVCSA_MODEL_PLAN_ONLY, KVCSA_ERR_IO, "must be a regular file");

    checkpoint_copy(&c, T1_DIR);
    checkpoint_write(&c, "config.json", "", 0);
    expect_refused(c.dir, 0, KVCSA_ERR_FORMAT, "config.json: file size is 0");
    checkpoint_write(&c, "config.json", "{\"architectures\":[\"LlamaForCausalLM\"]}", 38);
    expect_refused(c.dir, 0, KVCSA_ERR_UNSUPPORTED, "architectures is \"LlamaForCausalLM\"");
    checkpoint_remove(&c);
}

static void test_model_open_refuses_half_an_allocator(void **state)
{
    kvcsa_allocator half = {fault_alloc_alloc, NULL, NULL};
    kvcsa_model    *m = NULL;

    (void)state;
    assert_int_equal(open_as(T1_DIR, 0, &half, &m, NULL), KVCSA_ERR_ARG);
}

static void test_model_open_refuses_missing_and_cut_files(void **state)
{
    checkpoint c;

    (void)state;
    checkpoint_copy(&c, T1_DIR);
    checkpoint_cut(&c, "model-00002-of-00002.safetensors", 1500000);
    expect_refused(c.dir, 0, KVCSA_ERR_FORMAT, "the file has only 1500000 bytes");
    checkpoint_drop(&c, "model-00002-of-00002.safetensors");
    expect_refused(c.dir, 0, KVCSA_ERR_IO, "model-00002-of-00002.safetensors: cannot open");
    checkpoint_drop(&c, "tokenizer.json");
    expect_refused(c.dir, 0, KVCSA_ERR_IO, "tokenizer.json: cannot open");
    checkpoint_remove(&c);
}

static void test_model_open_compares_sizes(void **state)
{
    static const char map[] = "{\"vocab_size\": 512, \"compressed_vocab_size\": 1, \"map\": [0";
    checkpoint        c;
    char             *text = malloc(4096);
    size_t            at = sizeof map - 1;

    (void)state;
    assert_non_null(text);
    checkpoint_copy(&c, T1_DIR);
    checkpoint_edit_config(&c, "text_config/engram_compressed_vocab_size", "425");
    expect_refused(c.dir, 0, KVCSA_ERR_FORMAT,
                   "gives 426 compressed ids, engram_compressed_vocab_size is 425");
    checkpoint_edit_config(&c, "text_config/engram_compressed_vocab_size", "426");
    checkpoint_edit_config(&c, "text_config/vocab_size", "513");
    expect_refused(c.dir, 0, KVCSA_ERR_FORMAT,
                   "tokenizer.json: has 512 ids, vocab_size of config.json is 513");
    checkpoint_edit_config(&c, "text_config/vocab_size", "512");

    /* a side file counts instead of the tokenizer's strings */
    memcpy(text, map, at);
    for (int i = 1; i < 512; i++, at += 2)
        memcpy(text + at, ",0", 2);
    memcpy(text + at, "]}", 2);
    checkpoint_write(&c, "engram_token_map.json", text, at + 2);
    expect_refused(
        c.dir, 0, KVCSA_ERR_FORMAT,
        "engram_token_map.json: gives 1 compressed ids, engram_compressed_vocab_size is");
    checkpoint_write(&c, "engram_token_map.json", "{}", 2);
    expect_refused(c.dir, 0, KVCSA_ERR_FORMAT, "engram_token_map.json");
    free(text);
    checkpoint_remove(&c);
}

typedef struct bad_tensor {
    const char *tensor;
    const char *path;
    const char *value;
    const char *says;
} bad_tensor;

static const bad_tensor bad_tensors[] = {
    /* sizes in bytes stay, so that the header itself is sound */
    {"layers.0.attn.wq_a.weight", "dtype", "\"I8\"",
     "wq_a.weight is I8 [128, 160], must be F8_E4M3 [128, 160]"},
    {"layers.0.attn.wq_a.scale", "dtype", "\"U8\"",
     "wq_a.scale is U8 [4, 5], must be F8_E8M0 [4, 5]"},
    {"layers.0.attn.wq_a.scale", "shape", "[5, 4]",
     "wq_a.scale is F8_E8M0 [5, 4], must be F8_E8M0 [4, 5]"},
    {"layers.3.ffn.experts.7.w1.weight", "dtype", "\"U8\"",
     "experts.7.w1.weight is U8 [64, 80], must be I8 [64, 80]"},
    {"layers.3.ffn.experts.7.w2.scale", "shape", "[320]",
     "w2.scale is F8_E8M0 [320], must be F8_E8M0 [160, 2]"},
    {"layers.9.attn.attn_sink", "shape", "[2, 2]",
     "layers.9.attn.attn_sink is F32 [2, 2], must be F32 [4]"},
    {"embed.weight", "dtype", "\"F16\"", "embed.weight is F16 [512, 160], must be BF16 [512, 160]"},
    {"norm.weight", "shape", "[160, 1]", "norm.weight is BF16 [160, 1], must be BF16 [160]"},
    {"layers.4.engram.wkv.weight", "shape", "[256, 800]",
     "engram.wkv.weight is F8_E4M3 [256, 800], must be F8_E4M3 [800, 256]"},
    {"layers.4.engram.embed.scale", "shape", "[482, 4]",
     "embed.scale is F8_E8M0 [482, 4], must be F8_E8M0 [964, 2]"},
    {"layers.6.hc_attn_fn", "shape", "[640, 24]",
     "hc_attn_fn is F32 [640, 24], must be F32 [24, 640]"},
    {"layers.5.attn.indexer.wk.weight", "shape", "[96, 64]",
     "indexer.wk.weight is BF16 [96, 64], must be BF16 [64, 96]"},
};

static void test_model_open_names_bad_tensor(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_tensors / sizeof bad_tensors[0]; i++) {
        const bad_tensor *b = &bad_tensors[i];
        checkpoint        c;
        char              shard[256];

        checkpoint_copy(&c, T1_DIR);
        checkpoint_edit_tensor(&c, b->tensor, b->path, b->value);
        checkpoint_shard_of(&c, b->tensor, shard, sizeof shard);
        expect_refused(c.dir, 0, KVCSA_ERR_FORMAT, b->says);
        expect_refused(c.dir, 0, KVCSA_ERR_FORMAT, shard);
        checkpoint_remove(&c);
    }
}

/* One width of the configuration changed: the first tensor that shows it is named. */
static void test_model_open_names_absent_tensor(void **state)
{
    checkpoint c;

    (void)state;
    checkpoint_copy(&c, T1_DIR);
    checkpoint_edit_config(&c, "text_config/n_routed_experts", "13");
    expect_refused(c.dir, 0, KVCSA_ERR_FORMAT,
                   "layers.0.ffn.gate.weight is BF16 [12, 160], must be BF16 [13, 160]");
    checkpoint_edit_config(&c, "text_config/n_routed_experts", "12");
    checkpoint_edit_config(&c, "text_config/index_source_layer_ids", "[2, 4, 5, 6, 7]");
    expect_refused(
        c.dir, 0, KVCSA_ERR_FORMAT,
        "tensor layers.6.attn.indexer.wq_b.weight is absent, must be F8_E4M3 [256, 128]");
    checkpoint_remove(&c);
}

static void test_model_open_refuses_values_that_are_not_finite(void **state)
{
    static const uint8_t bf16_nan[2] = {0xc0, 0x7f};
    static const uint8_t bf16_inf[2] = {0x80, 0xff};
    static const uint8_t f32_inf[4] = {0, 0, 0x80, 0x7f};
    static const struct {
        const char    *tensor;
        size_t         off;
        const uint8_t *bytes;
        size_t         n;
        const char    *says;
    } bad[] = {
        {"layers.0.attn_norm.weight", 2 * 159, bf16_nan, 2,
         "element 159 of tensor layers.0.attn_norm.weight is not finite"},
        {"norm.weight", 0, bf16_inf, 2, "element 0 of tensor norm.weight is not finite"},
        {"layers.9.attn.attn_sink", 12, f32_inf, 4,
         "element 3 of tensor layers.9.attn.attn_sink is not finite"},
        {"layers.2.ffn.gate.bias", 4, f32_inf, 4,
         "element 1 of tensor layers.2.ffn.gate.bias is not finite"},
        {"layers.2.hc_ffn_scale", 8, f32_inf, 4,
         "element 2 of tensor layers.2.hc_ffn_scale is not finite"},
        {"layers.2.hc_attn_base", 92, f32_inf, 4,
         "element 23 of tensor layers.2.hc_attn_base is not finite"},
        {"layers.1.engram.q_weight", 2, bf16_nan, 2,
         "element 1 of tensor layers.1.engram.q_weight is not finite"},
        {"layers.1.engram.k_weight", 4, bf16_nan, 2,
         "element 2 of tensor layers.1.engram.k_weight is not finite"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        checkpoint c;

        checkpoint_copy(&c, T1_DIR);
        checkpoint_patch_data(&c, bad[i].tensor, bad[i].off, bad[i].bytes, bad[i].n);
        expect_refused(c.dir, 0, KVCSA_ERR_FORMAT, bad[i].says);
        checkpoint_remove(&c);
    }
}

/* A tensor of no known family is skipped, listed and reported; bias_vl of a vision model is skipped
 * quietly. */
static void test_model_open_skips_what_it_does_not_know(void **state)
{
    static const char  empty[] = "{\"dtype\": \"F32\", \"shape\": [0], \"data_offsets\": [0, 0]}";
    log_record         log = {0};
    kvcsa_log          hook = {record, &log};
    kvcsa_model_params p = {.struct_size = sizeof p, .log = &hook};
    kvcsa_model       *m = NULL;
    checkpoint         c;

    (void)state;
    checkpoint_copy(&c, T1_DIR);
    checkpoint_edit_index(&c, "weight_map/vision.norm.weight",
                          "\"model-00001-of-00002.safetensors\"");
    checkpoint_edit_tensor(&c, "vision.norm.weight", "", empty);
    checkpoint_edit_index(&c, "weight_map/layers.0.ffn.gate.bias_vl",
                          "\"model-00001-of-00002.safetensors\"");
    checkpoint_edit_tensor(&c, "layers.0.ffn.gate.bias_vl", "", empty);
    checkpoint_edit_index(&c, "weight_map/layers.0.attn.q_head_norm.weight",
                          "\"model-00001-of-00002.safetensors\"");
    checkpoint_edit_tensor(&c, "layers.0.attn.q_head_norm.weight", "", empty);
    assert_int_equal(kvi_model_open(c.dir, &p, &m, NULL), KVCSA_OK);
    assert_int_equal(m->n_tensors, 1051);
    assert_int_equal(m->n_skipped, 164);
    assert_int_equal(log.n[KVCSA_LOG_WARN], 1);
    assert_non_null(strstr(log.last[KVCSA_LOG_WARN],
                           "tensor layers.0.attn.q_head_norm.weight is not part of the format"));
    assert_non_null(strstr(m->skipped_names, "layers.0.attn.q_head_norm.weight\n"));
    assert_non_null(strstr(m->skipped_names, "\nvision.norm.weight"));
    kvi_model_release(m);
    checkpoint_remove(&c);
}

/* ------------------------------------------------------------------ out of memory */

/* Some calls may fail without harm: those of PCRE2's just-in-time compiler; a pattern of the
 * tokenizer is then interpreted. */
static void test_model_open_frees_on_failure(void **state)
{
    fault_alloc  fa;
    kvcsa_model *m = NULL;
    uint64_t     total;

    (void)state;
    fault_alloc_init(&fa);
    fault_alloc_fail_at(&fa, 0);
    assert_int_equal(open_as(T1_DIR, 0, &fa.hook, &m, NULL), KVCSA_OK);
    total = fa.n_calls;
    kvi_model_release(m);
    assert_true(fault_alloc_is_clean(&fa));
    assert_true(total > 20);
    for (uint64_t n = 1; n <= total; n++) {
        kvcsa_error  err = {0};
        kvcsa_status st;

        fault_alloc_fail_at(&fa, n);
        st = open_as(T1_DIR, 0, &fa.hook, &m, &err);
        assert_true(fault_alloc_hit(&fa));
        if (st == KVCSA_OK) {
            assert_int_equal(m->n_tensors, 1051);
            kvi_model_release(m);
            m = NULL;
            assert_true(n > 10 && n + 20 < total); /* of the tokenizer, not ours */
        } else if (st != KVCSA_ERR_NOMEM || err.status != KVCSA_ERR_NOMEM) {
            fail_msg("call %llu of %llu: status %d, \"%s\"", (unsigned long long)n,
                     (unsigned long long)total, st, err.text);
        }
        assert_null(m);
        assert_true(fault_alloc_is_clean(&fa));
    }
    fault_alloc_fail_at(&fa, total + 1);
    assert_int_equal(open_as(T1_DIR, 0, &fa.hook, &m, NULL), KVCSA_OK);
    kvi_model_release(m);
    assert_true(fault_alloc_is_clean(&fa));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_open_counts_t1),
        cmocka_unit_test(test_model_open_counts_tiny),
        cmocka_unit_test(test_model_open_binds_weights),
        cmocka_unit_test(test_model_open_reads_as_it_maps),
        cmocka_unit_test(test_model_open_plan_only_needs_config_only),
        cmocka_unit_test(test_model_retain_keeps_alive),
        cmocka_unit_test(test_model_fingerprint_sees_changes),
        cmocka_unit_test(test_model_open_refuses_paths),
        cmocka_unit_test(test_model_open_refuses_half_an_allocator),
        cmocka_unit_test(test_model_open_refuses_missing_and_cut_files),
        cmocka_unit_test(test_model_open_compares_sizes),
        cmocka_unit_test(test_model_open_names_bad_tensor),
        cmocka_unit_test(test_model_open_names_absent_tensor),
        cmocka_unit_test(test_model_open_refuses_values_that_are_not_finite),
        cmocka_unit_test(test_model_open_skips_what_it_does_not_know),
        cmocka_unit_test(test_model_open_frees_on_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
