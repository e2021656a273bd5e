/* Experts on the device beside the CPU's. */
#include "cuda/cuda_check.h"

#include <stdio.h>

enum { EXPERTS = 6 };

typedef struct job {
    test_matrix w[3 * (EXPERTS + 1)]; /* w1, w2, w3 of each, the shared one last */
    float      *x, *weights;
    uint32_t   *ids;
    size_t      first, n_rows;
    uint32_t    n_experts, k, width, inner;
    float       limit;
    bool        graph;
} job;

static const uint8_t *bytes_to_device(const kvi_matrix *m, bool scale)
{
    const size_t n = (size_t)m->rows * m->cols;
    const size_t data = m->kind == KVI_W_F32 ? 4 * n : m->kind == KVI_W_BF16 ? 2 * n : m->kind == KVI_W_FP4 ? n / 2 : n;

    if (!scale)
        return to_device(m->data, data);
    if (m->kind < KVI_W_FP8)
        return NULL;
    return to_device(m->scale, m->kind == KVI_W_FP8 ? (size_t)(m->rows + 31) / 32 * (m->cols / 32) : n / 32);
}

static kvi_expert expert_of(const job *j, uint32_t e, bool device)
{
    kvi_expert  out = {.w1 = j->w[3 * e].m, .w2 = j->w[3 * e + 1].m, .w3 = j->w[3 * e + 2].m};
    kvi_matrix *each[3] = {&out.w1, &out.w2, &out.w3};

    for (size_t i = 0; device && i < 3; i++) {
        const kvi_matrix host = *each[i];

        each[i]->data = bytes_to_device(&host, false);
        each[i]->scale = bytes_to_device(&host, true);
    }
    return out;
}

static kvi_moe_params params_of(const job *j, kvi_expert *experts, bool device)
{
    const size_t at = j->first, n = j->n_rows;

    for (uint32_t e = 0; e < j->n_experts; e++)
        experts[e] = expert_of(j, e, device);
    experts[j->n_experts] = expert_of(j, EXPERTS, device);
    kvi_moe_params p = {.x = j->x + at * j->width, .experts = j->ids + at * j->k, .weights = j->weights + at * j->k,
                        .routed = experts, .shared = experts + j->n_experts, .n_rows = n, .n_experts = j->n_experts, .k = j->k,
                        .width = j->width, .inner = j->inner, .limit = j->limit};
    if (device) {
        p.x = to_device(p.x, n * j->width * sizeof *p.x);
        p.experts = to_device(p.experts, n * j->k * sizeof *p.experts);
        p.weights = to_device(p.weights, n * j->k * sizeof *p.weights);
        p.y = to_device(NULL, n * j->width * sizeof *p.y);
    }
    return p;
}

static void run(const void *arg, void *out)
{
    const job     *j = arg;
    kvi_expert     experts[EXPERTS + 1];
    kvi_moe_params p = params_of(j, experts, true);
    kvi_graph     *graph = NULL;
    kvcsa_error    err = {0};
    const size_t   size = j->n_rows * j->width * sizeof *p.y;

    GPU(moe, &p);
    if (j->graph) { /* recorded, the host's array of experts changed, run twice */
        must(gpu_ops->mem_fill(gpu, p.y, 0, size, &err), &err);
        must(gpu_ops->graph_begin(gpu, &err), &err);
        GPU(moe, &p);
        must(gpu_ops->graph_end(gpu, &graph, &err), &err);
        memset(experts, 0, sizeof experts);
        must(gpu_ops->graph_run(gpu, graph, &err), &err);
        must(gpu_ops->graph_run(gpu, graph, &err), &err);
        must(gpu_ops->sync(gpu, &err), &err);
        gpu_ops->graph_free(gpu, graph);
    }
    from_device(out, p.y, size);
    device_free_all();
}

static job job_new(uint32_t routed, uint32_t shared, uint32_t width, uint32_t inner, uint32_t k, size_t n_rows)
{
    job j = {.n_rows = n_rows, .n_experts = k ? EXPERTS : 0, .k = k, .width = width, .inner = inner, .limit = 0.75f};

    for (uint32_t e = 0; e <= EXPERTS; e++) {
        const uint32_t kind = e == EXPERTS ? shared : routed;

        j.w[3 * e] = matrix_new(kind, inner, width);
        j.w[3 * e + 1] = matrix_new(kind, width, inner);
        j.w[3 * e + 2] = matrix_new(kind, inner, width);
    }
    j.x = calloc(n_rows * width + 1, sizeof *j.x);
    j.ids = calloc(n_rows * k + 1, sizeof *j.ids);
    j.weights = calloc(n_rows * k + 1, sizeof *j.weights);
    assert_true(j.x && j.ids && j.weights);
    fill(j.x, n_rows * width, 0.3f);
    for (size_t r = 0; r < n_rows; r++) {
        uint32_t e = 0;

        for (uint32_t i = 0; i < k; i++, e++) { /* ascending; expert 2 gets nobody unless k needs it */
            e += prng() % (EXPERTS - e - (k - 1 - i));
            if (e == 2 && k < 4)
                e = 3;
            j.ids[r * k + i] = e;
            j.weights[r * k + i] = 0.1f + fabsf(uniform(1.0f));
        }
    }
    return j;
}

static void job_free(job *j)
{
    for (size_t i = 0; i < 3 * (EXPERTS + 1); i++)
        matrix_free(&j->w[i]);
    free(j->x);
    free(j->ids);
    free(j->weights);
}

/* |error| of one product: the device's (product.cuh) or the CPU's, whose own is below it. */
static double relative(uint32_t cols)
{
    return 0x1p-17 + 2.2 * cols * 0x1p-23 + 0x1p-20;
}

/* Bound of one row's outputs: from |g|, |u| as sums of sizes G = sum |x w1|, W = sum |x w3|, off by r G, r W. silu(g) u: the derivative of
 * silu is at most 1.1, |silu(g)| <= |g|: |error of h| <= w (1.1 r G |u| + |g| r W + 1.1 r^2 G W + 8 U |g u|), clamps only shrink it. Then y:
 * sum |w2| (error of h) + r sum |w2 h|; the sum over k + 1 experts (k + 2) U of the sizes. All for both sides: twice. */
static void add_bounds(const job *j, uint32_t e, const float *x, double weight, double *bound, double *size)
{
    const double *w1 = j->w[3 * e].values, *w2 = j->w[3 * e + 1].values, *w3 = j->w[3 * e + 2].values;
    const double  r = relative(j->width), r2 = relative(j->inner);

    for (uint32_t i = 0; i < j->inner; i++) {
        double g = 0, u = 0, big_g = 0, big_u = 0, h, error;

        for (uint32_t c = 0; c < j->width; c++) {
            const double a = (double)x[c] * w1[(size_t)i * j->width + c], b = (double)x[c] * w3[(size_t)i * j->width + c];

            g += a;
            u += b;
            big_g += fabs(a);
            big_u += fabs(b);
        }
        h = weight * fabs(g) * fabs(u);
        error = weight * (1.1 * r * big_g * fabs(u) + fabs(g) * r * big_u + 1.1 * r * r * big_g * big_u) + 8 * U * h;
        for (uint32_t c = 0; c < j->width; c++) {
            const double w = fabs(w2[(size_t)c * j->inner + i]);

            bound[c] += 2 * w * (error + r2 * (h + error));
            size[c] += w * (h + error);
        }
    }
}

static void compare(uint32_t routed, uint32_t shared, uint32_t width, uint32_t inner, uint32_t k, size_t n_rows, float limit)
{
    job          j = job_new(routed, shared, width, inner, k, n_rows);
    const size_t n = n_rows * width;
    float       *want = calloc(n + 1, sizeof *want), *got = calloc(n + 1, sizeof *got);
    double      *bound = calloc(2 * (size_t)width, sizeof *bound);
    kvi_expert   experts[EXPERTS + 1];

    j.limit = limit;
    kvi_moe_params p = params_of(&j, experts, false);
    p.y = want;
    CPU(moe, &p);
    gpu_run(run, &j, got, n * sizeof *got);
    for (size_t i = 0; i < n_rows; i++) {
        memset(bound, 0, 2 * width * sizeof *bound);
        for (uint32_t q = 0; q < k; q++)
            add_bounds(&j, j.ids[i * k + q], j.x + i * width, (double)j.weights[i * k + q], bound, bound + width);
        add_bounds(&j, EXPERTS, j.x + i * width, 1.0, bound, bound + width);
        for (uint32_t c = 0; c < width; c++)
            assert_within(got[i * width + c], (double)want[i * width + c], bound[c] + 2 * (k + 2) * U * bound[width + c]);
    }
    free(want);
    free(got);
    free(bound);
    job_free(&j);
}

static void test_moe_near_cpu(void **state)
{
    static const size_t counts[] = {1, 8, 9};

    (void)state;
    for (size_t r = 0; r < 3; r++) {
        compare(KVI_W_FP4, KVI_W_FP8, 64, 32, 2, counts[r], 0.75f);
        compare(KVI_W_FP4, KVI_W_FP4, 32, 64, 3, counts[r], 0.0f);
        compare(KVI_W_FP8, KVI_W_FP8, 96, 32, 1, counts[r], 0.05f);
        compare(KVI_W_BF16, KVI_W_BF16, 35, 21, 2, counts[r], 0.75f); /* odd widths */
        compare(KVI_W_BF16, KVI_W_FP4, 32, 32, 2, counts[r], 0.75f);
        compare(KVI_W_FP8, KVI_W_BF16, 32, 32, 6, counts[r], 0.75f); /* every expert */
    }
    compare(KVI_W_FP4, KVI_W_FP8, 160, 96, 3, 3, 0.75f);
    compare(KVI_W_FP4, KVI_W_FP8, 32, 32, 0, 2, 0.75f); /* the shared expert alone */
    compare(KVI_W_FP4, KVI_W_FP8, 32, 32, 2, 0, 0.75f);
}

/* More than 32 slots an expert: the body for many rows. */
static void test_moe_many_rows(void **state)
{
    (void)state;
    compare(KVI_W_FP4, KVI_W_FP8, 64, 32, 3, 70, 0.75f);
    compare(KVI_W_BF16, KVI_W_BF16, 32, 80, 3, 68, 0.75f);
}

static void rows_of(job *j, size_t first, size_t n, float *out)
{
    j->first = first;
    j->n_rows = n;
    run(j, out + first * j->width);
}

static void test_moe_does_not_depend_on_rows(void **state)
{
    enum { ROWS = 66, WIDTH = 160, INNER = 64 };
    job    j = job_new(KVI_W_FP4, KVI_W_FP8, WIDTH, INNER, 4, ROWS);
    float *all = calloc(ROWS * WIDTH, sizeof *all), *part = calloc(ROWS * WIDTH, sizeof *part);

    (void)state;
    rows_of(&j, 0, ROWS, all); /* many */
    rows_of(&j, 0, 40, part);  /* up to 32 a tile */
    rows_of(&j, 40, 15, part);
    rows_of(&j, 55, 8, part); /* up to 8 */
    rows_of(&j, 63, 1, part);
    rows_of(&j, 64, 2, part);
    assert_bits(part, all, ROWS * WIDTH);
    free(all);
    free(part);
    job_free(&j);
}

/* Experts in any order, and one twice: summed in ascending order, as the CPU does. */
static void test_moe_order_of_experts(void **state)
{
    job    j = job_new(KVI_W_FP4, KVI_W_FP8, 32, 32, 3, 4);
    float  a[4 * 32], b[4 * 32];

    (void)state;
    gpu_run(run, &j, a, sizeof a);
    for (size_t r = 0; r < 4; r++) { /* 0 1 2 -> 2 0 1 */
        const uint32_t id = j.ids[3 * r + 2];
        const float    w = j.weights[3 * r + 2];

        memmove(j.ids + 3 * r + 1, j.ids + 3 * r, 2 * sizeof *j.ids);
        memmove(j.weights + 3 * r + 1, j.weights + 3 * r, 2 * sizeof *j.weights);
        j.ids[3 * r] = id;
        j.weights[3 * r] = w;
    }
    gpu_run(run, &j, b, sizeof b);
    assert_bits(b, a, 4 * 32);
    j.ids[1] = j.ids[0]; /* twice */
    gpu_run(run, &j, b, sizeof b);
    assert_bits(b + 32, a + 32, 3 * 32);
    job_free(&j);
}

static void test_moe_replays_in_a_graph(void **state)
{
    job   j = job_new(KVI_W_FP4, KVI_W_FP8, 64, 32, 2, 3);
    float a[3 * 64], b[3 * 64];

    (void)state;
    run(&j, a);
    j.graph = true;
    run(&j, b);
    assert_bits(b, a, 3 * 64);
    job_free(&j);
}

/* A row with NaN or infinity does not reach its neighbours. */
static void test_moe_hostile_rows(void **state)
{
    job    j = job_new(KVI_W_FP4, KVI_W_FP8, 32, 32, 2, 10);
    float  a[10 * 32], b[10 * 32];

    (void)state;
    run(&j, a);
    j.x[2 * 32 + 7] = NAN;
    j.x[5 * 32 + 31] = INFINITY;
    gpu_run(run, &j, b, sizeof b);
    for (size_t i = 0; i < 10; i++) {
        if (i == 2)
            for (size_t c = 0; c < 32; c++)
                assert_true(isnan(b[i * 32 + c]));
        else if (i != 5)
            assert_bits(b + i * 32, a + i * 32, 32);
    }
    job_free(&j);
}

static void test_moe_refuses(void **state)
{
    job            j = job_new(KVI_W_FP4, KVI_W_FP8, 32, 32, 2, 1);
    kvi_expert     experts[EXPERTS + 1];
    kvi_moe_params p = params_of(&j, experts, true);
    kvcsa_error    err = {0};

    (void)state;
    p.flags = KVI_OP_ROUND_BF16;
    assert_int_equal(gpu_ops->moe(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    p.flags = 0;
    p.n_experts = 513;
    assert_int_equal(gpu_ops->moe(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "at most 512"));
    p.n_experts = EXPERTS;
    experts[3].w2.kind = KVI_W_FP8;
    assert_int_equal(gpu_ops->moe(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    experts[3].w2.kind = KVI_W_FP4;
    experts[3].w1.rows = 31;
    assert_int_equal(gpu_ops->moe(gpu, &p, &err), KVCSA_ERR_ARG);
    experts[3].w1.rows = 32;
    experts[EXPERTS].w1.kind = KVI_W_F32;
    assert_int_equal(gpu_ops->moe(gpu, &p, &err), KVCSA_ERR_UNSUPPORTED);
    device_free_all();
    job_free(&j);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_moe_near_cpu),         cmocka_unit_test(test_moe_many_rows),
    cmocka_unit_test(test_moe_does_not_depend_on_rows), cmocka_unit_test(test_moe_order_of_experts),
    cmocka_unit_test(test_moe_replays_in_a_graph), cmocka_unit_test(test_moe_hostile_rows),
    cmocka_unit_test(test_moe_refuses),
};

CUDA_MAIN(tests)
