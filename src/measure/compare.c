/* The comparison as an object: its lists, and the figures of them. */
#include "measure/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_call.h"
#include "base/checked.h"
#include "base/fpenv.h"

_Static_assert(sizeof(kvcsa_compare_row) == 48, "rows are frozen");
KVI_NO_TAIL_PADDING(kvcsa_compare_row, equal);
KVI_NO_TAIL_PADDING(kvcsa_compare_result, first_divergence);

static kvcsa_compare_row *rows_of(const kvcsa_compare *c)
{
    return c->rows.data;
}

static kvi_greedy *greedy_of(const kvcsa_compare *c)
{
    return c->greedy.data;
}

/* ------------------------------------------------------------------ lifetime */

kvcsa_status kvcsa_compare_create(const kvcsa_allocator *allocator, kvcsa_compare **out,
                                  kvcsa_error *err)
{
    kvcsa_allocator a;
    kvcsa_status    st;

    kvi_error_clear(err);
    KVI_REQUIRE(out, err);
    *out = NULL;
    if ((st = kvi_allocator_import(allocator, &a, err)) != KVCSA_OK)
        return st;
    if (!(*out = kvi_zalloc(&a, sizeof **out)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "comparison of %zu bytes", sizeof **out);
    (*out)->allocator = a;
    return KVCSA_OK;
}

void kvcsa_compare_release(kvcsa_compare **compare)
{
    kvcsa_allocator a;

    if (!compare || !*compare)
        return;
    a = (*compare)->allocator;
    kvi_buf_free(&a, &(*compare)->rows, sizeof(kvcsa_compare_row));
    kvi_buf_free(&a, &(*compare)->greedy, sizeof(kvi_greedy));
    kvi_free(&a, *compare, sizeof **compare);
    *compare = NULL;
}

/* ------------------------------------------------------------------ adding */

kvcsa_status kvcsa_compare_begin(kvcsa_compare *compare, kvcsa_error *err)
{
    kvi_error_clear(err);
    KVI_REQUIRE(compare, err);
    compare->run += compare->has_rows ? 1 : 0;
    compare->has_rows = 0;
    return KVCSA_OK;
}

kvcsa_status kvcsa_compare_add(kvcsa_compare *compare, uint64_t position, int32_t next_token,
                               const float *ref, const float *test, uint32_t n_vocab,
                               kvcsa_error *err)
{
    kvcsa_compare_row row = {.position = position};
    uint64_t          mode;
    kvcsa_status      st;

    kvi_error_clear(err);
    KVI_REQUIRE(compare, err);
    KVI_REQUIRE(ref, err);
    KVI_REQUIRE(test, err);
    if (!n_vocab)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_vocab is 0, must be at least 1");
    mode = kvi_fp_enter();
    st = kvi_compare_logits(next_token, ref, test, n_vocab, &row, err);
    kvi_fp_leave(mode);
    if (st != KVCSA_OK)
        return st;
    row.run = compare->run;
    if (!kvi_buf_reserve(&compare->allocator, &compare->rows, sizeof row, compare->n_rows,
                         compare->n_rows + 1))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "row %zu of a comparison", compare->n_rows);
    rows_of(compare)[compare->n_rows++] = row;
    compare->has_rows = 1;
    return KVCSA_OK;
}

kvcsa_status kvcsa_compare_add_greedy(kvcsa_compare *compare, const int32_t *ref,
                                      const int32_t *test, size_t n_tokens, kvcsa_error *err)
{
    kvi_greedy g = {.n_tokens = n_tokens};

    kvi_error_clear(err);
    KVI_REQUIRE(compare, err);
    KVI_REQUIRE(ref, err);
    KVI_REQUIRE(test, err);
    if (!n_tokens)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_tokens is 0, must be at least 1");
    while (g.n_same < n_tokens && ref[g.n_same] == test[g.n_same])
        g.n_same++;
    if (!kvi_buf_reserve(&compare->allocator, &compare->greedy, sizeof g, compare->n_greedy,
                         compare->n_greedy + 1))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "greedy run %zu of a comparison", compare->n_greedy);
    greedy_of(compare)[compare->n_greedy++] = g;
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ figures */

double kvi_nearest_rank(const double *ascending, size_t n, uint32_t part, uint32_t whole)
{
    /* ceil(n part / whole) without the product, which may overflow */
    const size_t rank = n / whole * part + kvi_div_up(n % whole * part, whole);

    return ascending[rank ? rank - 1 : 0];
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static kvcsa_status get_percentiles(const kvcsa_compare *c, kvcsa_compare_result *r,
                                    kvcsa_error *err)
{
    const size_t n = c->n_rows; /* rows are larger: the product fits */
    double      *kl;

    if (!n)
        return KVCSA_OK;
    if (!(kl = kvi_alloc(&c->allocator, n * sizeof *kl)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "figures of %zu rows", n);
    for (size_t i = 0; i < n; i++)
        kl[i] = rows_of(c)[i].kl;
    qsort(kl, n, sizeof *kl, compare_doubles);
    r->kl_median = kvi_nearest_rank(kl, n, 1, 2);
    r->kl_p99 = kvi_nearest_rank(kl, n, 99, 100);
    r->kl_p999 = kvi_nearest_rank(kl, n, 999, 1000);
    kvi_free(&c->allocator, kl, n * sizeof *kl);
    return KVCSA_OK;
}

static void count_flips(const kvcsa_compare_row *row, kvcsa_compare_result *r)
{
    const uint64_t flip = row->ref_top != row->test_top ? 1 : 0;

    r->n_flips += flip;
    if (row->margin > 0.1f) {
        r->n_margin_01++;
        r->n_flips_01 += flip;
    }
    if (row->margin > 1.0f) {
        r->n_margin_10++;
        r->n_flips_10 += flip;
    }
}

static void sum_rows(const kvcsa_compare *c, kvcsa_compare_result *r)
{
    for (size_t i = 0; i < c->n_rows; i++) {
        const kvcsa_compare_row *row = &rows_of(c)[i];

        r->n_equal_rows += row->equal;
        r->kl_mean += row->kl;
        if (i == 0 || row->kl > r->kl_max) {
            r->kl_max = row->kl;
            r->kl_max_position = row->position;
            r->kl_max_run = row->run;
        }
        if (row->max_difference > r->max_difference)
            r->max_difference = row->max_difference;
        count_flips(row, r);
        if (isnan(row->ref_log_prob))
            continue;
        r->n_text_rows++;
        r->ref_nll -= (double)row->ref_log_prob;
        r->test_nll -= (double)row->test_log_prob;
    }
    r->n_rows = c->n_rows;
    r->kl_mean /= c->n_rows ? (double)c->n_rows : 1;
    r->ref_nll /= r->n_text_rows ? (double)r->n_text_rows : 1;
    r->test_nll /= r->n_text_rows ? (double)r->n_text_rows : 1;
}

static void sum_greedy(const kvcsa_compare *c, kvcsa_compare_result *r)
{
    r->n_greedy = c->n_greedy;
    r->first_divergence = UINT64_MAX;
    for (size_t i = 0; i < c->n_greedy; i++) {
        const kvi_greedy *g = &greedy_of(c)[i];

        r->n_greedy_same += g->n_same;
        r->n_greedy_tokens += g->n_tokens;
        if (g->n_same == g->n_tokens)
            continue;
        r->n_diverged++;
        r->first_divergence = kvi_min_size(r->first_divergence, g->n_same);
    }
}

kvcsa_status kvcsa_compare_get_result(const kvcsa_compare *compare, kvcsa_compare_result *result,
                                      kvcsa_error *err)
{
    kvcsa_compare_result r = {.struct_size = sizeof r};
    kvcsa_status         st;

    kvi_error_clear(err);
    KVI_REQUIRE(compare, err);
    KVI_REQUIRE(result, err);
    if ((st = get_percentiles(compare, &r, err)) != KVCSA_OK)
        return st;
    sum_rows(compare, &r);
    sum_greedy(compare, &r);
    return KVI_EXPORT(r, result, "kvcsa_compare_result", err);
}

/* ------------------------------------------------------------------ lists */

kvcsa_status kvcsa_compare_get_rows(const kvcsa_compare *compare, uint64_t from,
                                    kvcsa_compare_row *rows, size_t cap, size_t *n_rows,
                                    kvcsa_error *err)
{
    kvi_error_clear(err);
    KVI_REQUIRE(n_rows, err);
    *n_rows = 0;
    KVI_REQUIRE(compare, err);
    if (cap)
        KVI_REQUIRE(rows, err);
    if (from > compare->n_rows)
        return kvi_fail(err, KVCSA_ERR_ARG, "from is %llu, the comparison has %zu rows",
                        (unsigned long long)from, compare->n_rows);
    *n_rows = compare->n_rows - (size_t)from;
    if (cap && *n_rows)
        memcpy(rows, rows_of(compare) + from, kvi_min_size(cap, *n_rows) * sizeof *rows);
    return KVCSA_OK;
}

kvcsa_status kvcsa_compare_get_greedy(const kvcsa_compare *compare, uint64_t *n_same, size_t cap,
                                      size_t *n_greedy, kvcsa_error *err)
{
    kvi_error_clear(err);
    KVI_REQUIRE(n_greedy, err);
    *n_greedy = 0;
    KVI_REQUIRE(compare, err);
    if (cap)
        KVI_REQUIRE(n_same, err);
    *n_greedy = compare->n_greedy;
    for (size_t i = 0; i < cap && i < compare->n_greedy; i++)
        n_same[i] = greedy_of(compare)[i].n_same;
    return KVCSA_OK;
}
