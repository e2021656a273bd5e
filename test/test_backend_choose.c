/* Which backend a pool takes and why; what a backend has kernels for, as text, and what it refuses. */
#include "support/host.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/backend_choose.h"
#include "net/net_features.h"

/* ------------------------------------------------------------------ the choice */

typedef struct heard {
    char text[512];
    int  n;
} heard;

static void hear(void *user, int32_t level, const char *text)
{
    heard *h = user;

    assert_int_equal(level, KVCSA_LOG_INFO);
    snprintf(h->text, sizeof h->text, "%s", text);
    h->n++;
}

static void make_folder(char *dir)
{
    assert_non_null(mkdtemp(dir));
}

static void test_auto_is_the_cpu_where_there_is_no_plugin(void **state)
{
    char                   dir[] = "/tmp/kvcsa-choose-XXXXXX";
    heard                  h = {.n = 0};
    const kvcsa_log        log = {hear, &h};
    const kvi_backend_wish wish = {.dir = dir, .log = &log};
    const kvi_backend_ops *ops = NULL;
    kvi_backend_choice     choice;
    kvcsa_error            err;

    (void)state;
    make_folder(dir);
    assert_ok(kvi_backend_choose(&wish, &ops, &choice, &err));
    assert_int_equal(choice.backend, KVCSA_BACKEND_CPU);
    assert_ptr_equal(ops, kvi_cpu_backend(0));
    assert_non_null(strstr(choice.why, "no plug-in"));
    assert_non_null(strstr(choice.why, dir));
    assert_int_equal(h.n, 1);
    assert_string_equal(h.text, choice.why);
    assert_int_equal(rmdir(dir), 0);
}

static void test_cpu_looks_for_nothing(void **state)
{
    heard                  h = {.n = 0};
    const kvcsa_log        log = {hear, &h};
    const kvi_backend_wish wish = {
        .backend = KVCSA_BACKEND_CPU, .dir = "no absolute path", .cpu_flags = kvi_cpu_flags(0), .log = &log};
    const kvi_backend_ops *ops = NULL;
    kvi_backend_choice     choice;
    kvcsa_error            err;

    (void)state;
    assert_ok(kvi_backend_choose(&wish, &ops, &choice, &err));
    assert_int_equal(choice.backend, KVCSA_BACKEND_CPU);
    assert_ptr_equal(ops, kvi_cpu_backend(wish.cpu_flags));
    assert_non_null(strstr(choice.why, "asked for"));
    assert_int_equal(h.n, 0);
}

static void test_cuda_or_nothing(void **state)
{
    char                   dir[] = "/tmp/kvcsa-choose-XXXXXX";
    char                   path[64];
    kvi_backend_wish       wish = {.backend = KVCSA_BACKEND_CUDA, .dir = dir};
    const kvi_backend_ops *ops = kvi_cpu_backend(0);
    kvi_backend_choice     choice;
    FILE                  *f;
    kvcsa_error            err;

    (void)state;
    make_folder(dir);
    assert_fails(kvi_backend_choose(&wish, &ops, &choice, &err), KVCSA_ERR_BACKEND, "no plug-in");
    assert_null(ops);
    snprintf(path, sizeof path, "%s/libkvcsa_cuda.so", dir);
    assert_non_null(f = fopen(path, "w"));
    fputs("no shared object\n", f);
    fclose(f);
    assert_fails(kvi_backend_choose(&wish, &ops, &choice, &err), KVCSA_ERR_BACKEND, "cuda: ");
    wish.backend = KVCSA_BACKEND_AUTO;
    assert_ok(kvi_backend_choose(&wish, &ops, &choice, &err));
    assert_int_equal(choice.backend, KVCSA_BACKEND_CPU);
    assert_non_null(strstr(choice.why, "cuda: "));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);

    wish.dir = "relative";
    wish.backend = KVCSA_BACKEND_CUDA;
    assert_fails(kvi_backend_choose(&wish, &ops, &choice, &err), KVCSA_ERR_BACKEND, "no absolute path");
    wish.backend = KVCSA_BACKEND_CUDA + 1;
    assert_fails(kvi_backend_choose(&wish, &ops, &choice, &err), KVCSA_ERR_UNSUPPORTED, "backend is 3");
    assert_null(ops);
}

/* ------------------------------------------------------------------ features */

static kvi_features cpu_features(void)
{
    kvi_features f = {0};

    kvi_cpu_backend(0)->features(&f);
    return f;
}

static void test_features_of_the_cpu(void **state)
{
    const kvi_features f = cpu_features();
    kvi_features       fused = {0};
    char               text[512];
    size_t             n;

    (void)state;
    kvi_cpu_backend(kvi_cpu_flags(0) | KVCSA_CPU_AVX2)->features(&fused);
    assert_memory_equal(&f, &fused, sizeof f);
    assert_true(f.reference);
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(f.entry_formats >> i & 1, i >= KVCSA_FORMAT_FP4_E4M3_G16 && i <= KVCSA_FORMAT_INT3_F16_G32);
    assert_int_equal(f.paged_formats, f.entry_formats);
    n = kvi_features_text(&f, text, sizeof text);
    assert_int_equal(n, strlen(text));
    assert_true(n < sizeof text - 1); /* nothing is cut: it fits into kvcsa_backend_info */
    assert_string_equal(
        text, "sparse latent attention (DeepSeek-V4.1): entries fp4, mxfp4, mxfp8, f32, f16, bf16, fp4-as-f32, q8_0, q4_0, int3; "
              "head width multiples of 32; window width multiples of 32; index width multiples of 32; copies 1 to 8; "
              "hidden multiples of 32; inner multiples of 32; weights f32, bf16, fp8, fp8-row, fp4. "
              "Ordinary attention: fp4, mxfp4, mxfp8, f32, f16, bf16, fp4-as-f32, q8_0, q4_0, int3; head width multiples of 32");
}

static void test_features_text_of_others(void **state)
{
    kvi_features f = {.entry_formats = 1u << KVCSA_FORMAT_BF16,
                      .heads = {4, 4, 1},
                      .head_width = {64, 512, 32},
                      .index_heads = {2, UINT32_MAX, 1},
                      .experts = {8, UINT32_MAX, 4},
                      .paged_width = {64, 64, 32}};
    char         text[512], cut[20];
    size_t       n = kvi_features_text(&f, text, sizeof text);

    (void)state;
    assert_int_equal(n, strlen(text));
    assert_non_null(strstr(text, "entries bf16; heads 4; head width 64 to 512 in steps of 32; window width none; "
                                 "index heads 2 and more;"));
    assert_non_null(strstr(text, "experts 8 and more in steps of 4;"));
    assert_non_null(strstr(text, "weights none. Ordinary attention: none; head width 64"));
    memset(cut, 'x', sizeof cut);
    assert_int_equal(kvi_features_text(&f, cut, sizeof cut), sizeof cut - 1);
    assert_string_equal(cut, "sparse latent atten");
    assert_int_equal(kvi_features_text(&f, NULL, 0), 0);
}

/* T1: 4 heads of 96, 4 index heads of 64, selections of 8, 3 candidate blocks of 4, 4 copies, hidden 160, inner 64, 3 of 12
 * experts. */
static void test_check_accepts_what_is_there(void **state)
{
    kvcsa_model *model = host_model(T1_DIR);
    kvi_features f = cpu_features();
    kvcsa_error  err;

    (void)state;
    assert_ok(kvi_net_check_features(&f, "cpu", model, &err));
    f = (kvi_features){.entry_formats = 1u << KVCSA_FORMAT_FP4_E4M3_G16,
                       .weight_kinds = f.weight_kinds,
                       .expert_kinds = f.expert_kinds,
                       .heads = {4, 4, 1},
                       .head_width = {96, 96, 1},
                       .window_width = {96, 96, 1},
                       .index_heads = {4, 4, 4},
                       .index_width = {64, 64, 64},
                       .select_entries = {8, 8, 1},
                       .candidate_blocks = {3, 3, 1},
                       .candidate_block_entries = {4, 4, 1},
                       .copies = {4, 4, 1},
                       .hidden = {160, 160, 1},
                       .inner = {64, 64, 1},
                       .experts = {12, 12, 1},
                       .experts_per_token = {3, 3, 1}};
    assert_ok(kvi_net_check_features(&f, "cuda", model, &err));
    kvcsa_model_release(&model);
}

static void test_check_refuses_what_is_not(void **state)
{
    static const kvi_sizes none = {0, 0, 0};
    kvcsa_model           *model = host_model(T1_DIR);
    kvi_features           f;
    kvcsa_error            err;

    (void)state;
#define CASE(field, text, ...)                                                                                                   \
    f = cpu_features();                                                                                                          \
    f.field = (kvi_sizes){__VA_ARGS__};                                                                                          \
    assert_fails(kvi_net_check_features(&f, "cuda", model, &err), KVCSA_ERR_UNSUPPORTED, text)
    CASE(head_width, "cuda: head width 96; it has kernels for 64 to 512 in steps of 64", 64, 512, 64);
    CASE(heads, "cuda: heads 4; it has kernels for 8 to 128", 8, 128, 1);
    CASE(window_width, "window width 96; it has kernels for 128", 128, 128, 128);
    CASE(index_heads, "index heads 4; it has kernels for 1 to 3", 1, 3, 1);
    CASE(index_width, "index width 64; it has kernels for multiples of 128", 128, UINT32_MAX, 128);
    CASE(select_entries, "selected entries 8; it has kernels for 16 to 2048", 16, 2048, 1);
    CASE(candidate_blocks, "candidate blocks 3; it has kernels for 1 to 2", 1, 2, 1);
    CASE(candidate_block_entries, "candidate blocks of 4; it has kernels for 8 to 64 in steps of 8", 8, 64, 8);
    CASE(copies, "copies 4; it has kernels for 1 to 2", 1, 2, 1);
    CASE(hidden, "hidden size 160; it has kernels for multiples of 64", 64, UINT32_MAX, 64);
    CASE(inner, "inner width of experts 64; it has kernels for 96 and more in steps of 32", 96, UINT32_MAX, 32);
    CASE(experts, "experts 12; it has kernels for 1 to 8", 1, 8, 1);
    CASE(experts_per_token, "experts of a token 3; it has kernels for none", 0, 0, 0);
#undef CASE
    f = cpu_features();
    f.entry_formats = 1u << KVCSA_FORMAT_BF16 | 1u << KVCSA_FORMAT_F16;
    assert_fails(kvi_net_check_features(&f, "cuda", model, &err), KVCSA_ERR_UNSUPPORTED,
                 "cuda: entries fp4; it has kernels for f16, bf16");
    f = cpu_features();
    f.expert_kinds &= ~(1u << KVI_W_FP4);
    assert_fails(kvi_net_check_features(&f, "cuda", model, &err), KVCSA_ERR_UNSUPPORTED, "cuda: weights fp4 (layers.0.");
    assert_non_null(strstr(err.text, "it has kernels for f32, bf16, fp8"));
    f = cpu_features();
    f.weight_kinds &= ~(1u << KVI_W_FP8);
    assert_fails(kvi_net_check_features(&f, "cuda", model, &err), KVCSA_ERR_UNSUPPORTED, "cuda: weights fp8 (");
    assert_non_null(strstr(err.text, "it has kernels for f32, bf16, fp8-row, fp4"));
    /* Ordinary attention is none of this model's business. */
    f = cpu_features();
    f.paged_formats = 0;
    f.paged_width = none;
    assert_ok(kvi_net_check_features(&f, "cuda", model, &err));
    kvcsa_model_release(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_is_the_cpu_where_there_is_no_plugin),
        cmocka_unit_test(test_cpu_looks_for_nothing),
        cmocka_unit_test(test_cuda_or_nothing),
        cmocka_unit_test(test_features_of_the_cpu),
        cmocka_unit_test(test_features_text_of_others),
        cmocka_unit_test(test_check_accepts_what_is_there),
        cmocka_unit_test(test_check_refuses_what_is_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
