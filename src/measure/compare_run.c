/* Whole texts under a reference and under other settings. */
#include "measure/compare.h"

#include <stdio.h>
#include <string.h>

#include "api/api_call.h"
#include "base/checked.h"
#include "measure/side.h"

/* Sides of one call: the reference is number 0, test i is number i + 1. */
typedef struct run_set {
    kvcsa_allocator       allocator; /* of the reference's pool */
    kvi_side_progress     progress;
    kvi_side             *sides; /* [n_sides] */
    size_t                n_sides;
    uint64_t              window_tokens; /* largest append_tokens of all */
    const int32_t        *tokens;
    uint64_t              n_tokens;
    kvcsa_compare *const *compares; /* [n_sides - 1] */
} run_set;

/* ------------------------------------------------------------------ what both calls begin with */

/* Sides 1 .. of the tests, which lie as far apart as the caller's header says. */
static kvcsa_status init_tests(run_set *r, const kvcsa_setting *tests, kvcsa_error *err)
{
    const size_t stride = r->n_sides > 1 ? tests->struct_size : 0;
    kvcsa_status st = KVCSA_OK;

    if (stride % _Alignof(kvcsa_setting))
        return kvi_fail(err, KVCSA_ERR_ARG, "tests[0]: struct_size is %zu, not that of a struct",
                        stride);
    for (size_t i = 1; i < r->n_sides && st == KVCSA_OK; i++) {
        const void          *at = (const char *)tests + (i - 1) * stride;
        const kvcsa_setting *test = at;
        char                 name[40];

        snprintf(name, sizeof name, "tests[%zu]", i - 1);
        if (test->struct_size != stride)
            return kvi_fail(err, KVCSA_ERR_ARG, "%s: struct_size is %zu, that of tests[0] is %zu",
                            name, test->struct_size, stride);
        st = kvi_side_init(&r->sides[i], test, name, &r->progress, err);
    }
    return st;
}

/* The reference first: the rest of the memory comes from its pool's allocator. */
static kvcsa_status init_sides(run_set *r, const kvcsa_setting *reference,
                               const kvcsa_setting *tests, kvcsa_error *err)
{
    kvi_side     first;
    size_t       bytes;
    kvcsa_status st = kvi_side_init(&first, reference, "reference", &r->progress, err);

    if (st != KVCSA_OK)
        return st;
    r->allocator = *kvi_pool_allocator(first.set.pool);
    if (!kvi_mul_size(r->n_sides, sizeof *r->sides, &bytes) ||
        !(r->sides = kvi_zalloc(&r->allocator, bytes)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "%zu settings", r->n_sides);
    r->sides[0] = first;
    return init_tests(r, tests, err);
}

/* n_more: tokens behind the text. */
static kvcsa_status check_sides(run_set *r, uint64_t n_more, kvcsa_error *err)
{
    for (size_t i = 0; i < r->n_sides; i++)
        r->window_tokens = kvi_max_size(r->window_tokens, r->sides[i].set.append_tokens);
    for (size_t i = 0; i < r->n_sides; i++) {
        const kvi_side *side = &r->sides[i];

        if (r->window_tokens % side->set.append_tokens)
            return kvi_fail(err, KVCSA_ERR_ARG,
                            "append_tokens is %llu in one setting, must divide the largest, %llu",
                            (unsigned long long)side->set.append_tokens,
                            (unsigned long long)r->window_tokens);
        if (side->n_vocab != r->sides[0].n_vocab)
            return kvi_fail(err, KVCSA_ERR_ARG,
                            "tests[%zu]: the vocabulary is of %u tokens, the reference's of %u",
                            i - 1, side->n_vocab, r->sides[0].n_vocab);
        if (r->n_tokens > side->max_tokens || n_more > side->max_tokens - r->n_tokens)
            return kvi_fail(err, KVCSA_ERR_LIMIT,
                            "%llu tokens and %llu to come, the context limit is %llu",
                            (unsigned long long)r->n_tokens, (unsigned long long)n_more,
                            (unsigned long long)side->max_tokens);
    }
    return KVCSA_OK;
}

/* n_more: tokens behind the text that each side is fed. The caller gives r->tokens, n_tokens,
 * n_sides and compares; fini_set in every case. */
static kvcsa_status init_set(run_set *r, const kvcsa_setting *reference, const kvcsa_setting *tests,
                             uint64_t n_more, const kvcsa_compare_progress *progress,
                             kvcsa_error *err)
{
    const size_t n_tests = r->n_sides - 1;
    kvcsa_status st;

    KVI_REQUIRE(reference, err);
    if (n_tests) {
        KVI_REQUIRE(tests, err);
        KVI_REQUIRE(r->compares, err);
    }
    for (size_t i = 0; i < n_tests; i++)
        if (!r->compares[i])
            return kvi_fail(err, KVCSA_ERR_ARG, "compares[%zu] is NULL", i);
    if (!r->n_tokens)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_tokens is 0, must be at least 1");
    KVI_REQUIRE(r->tokens, err);
    if (progress)
        r->progress.hook = *progress;
    if ((st = init_sides(r, reference, tests, err)) != KVCSA_OK ||
        (st = check_sides(r, n_more, err)) != KVCSA_OK)
        return st;
    for (size_t i = 0; i < r->n_sides; i++)
        r->progress.n_rows += kvi_side_rows(&r->sides[i], r->n_tokens + n_more);
    return KVCSA_OK;
}

static void fini_set(run_set *r)
{
    for (size_t i = 0; r->sides && i < r->n_sides; i++)
        kvi_side_fini(&r->sides[i]);
    kvi_free(&r->allocator, r->sides, r->n_sides * sizeof *r->sides);
}

/* ------------------------------------------------------------------ fed the text's tokens */

/* The reference's rows of one window wait here for those of the tests. */
typedef struct text_run {
    run_set     set;
    uint64_t    first;  /* rows in front of it are not compared */
    uint64_t    begin;  /* of the window */
    uint64_t    n_rows; /* rows of logits that there is room for */
    float      *logits; /* f32 [n_rows, n_vocab] */
    size_t      logit_bytes;
    uint8_t    *has;   /* [n_rows]: the reference has that row */
    size_t      at;    /* side that runs */
    kvcsa_error error; /* of the first row that could not be added */
} text_run;

static void keep_row(void *user, uint64_t position, const float *logits, uint32_t n_vocab)
{
    text_run *t = user;

    memcpy(t->logits + (position - t->begin) * n_vocab, logits, n_vocab * sizeof *logits);
    t->has[position - t->begin] = 1;
}

static void compare_row(void *user, uint64_t position, const float *logits, uint32_t n_vocab)
{
    text_run      *t = user;
    const run_set *r = &t->set;
    const int32_t  next = position + 1 < r->n_tokens ? r->tokens[position + 1] : -1;

    if (t->error.status != KVCSA_OK || position < t->first || !t->has[position - t->begin])
        return;
    (void)kvcsa_compare_add(r->compares[t->at - 1], position, next,
                            t->logits + (position - t->begin) * n_vocab, logits, n_vocab,
                            &t->error);
}

/* One side through the window [t->begin, end). */
static kvcsa_status run_window(text_run *t, uint64_t end, kvcsa_error *err)
{
    kvi_side       *side = &t->set.sides[t->at];
    kvi_side_append a = {.on_logits = t->at ? compare_row : keep_row, .user = t};
    kvcsa_status    st = KVCSA_OK;

    for (a.from = t->begin; a.from < end && st == KVCSA_OK; a.from += a.n) {
        a.n = kvi_min_size(side->set.append_tokens, end - a.from);
        a.logits = a.from + a.n > t->first ? KVCSA_LOGITS_ALL : KVCSA_LOGITS_NONE;
        st = kvi_side_append_tokens(side, t->set.tokens, &a, err);
        if (st == KVCSA_OK && (st = t->error.status) != KVCSA_OK && err)
            *err = t->error;
    }
    return st;
}

static kvcsa_status make_rows(text_run *t, kvcsa_error *err)
{
    const run_set *r = &t->set;

    t->n_rows = kvi_min_size(r->window_tokens, r->n_tokens);
    if (!kvi_mul_size(t->n_rows, r->sides[0].n_vocab * sizeof *t->logits, &t->logit_bytes) ||
        !(t->logits = kvi_alloc(&r->allocator, t->logit_bytes)) ||
        !(t->has = kvi_alloc(&r->allocator, t->n_rows)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "%llu rows of logits", (unsigned long long)t->n_rows);
    return KVCSA_OK;
}

static kvcsa_status run_text(text_run *t, kvcsa_error *err)
{
    const run_set *r = &t->set;
    kvcsa_status   st = make_rows(t, err);

    for (size_t i = 0; i + 1 < r->n_sides && st == KVCSA_OK; i++)
        st = kvcsa_compare_begin(r->compares[i], err);
    for (t->begin = 0; t->begin < r->n_tokens && st == KVCSA_OK; t->begin += t->n_rows) {
        memset(t->has, 0, t->n_rows);
        for (t->at = 0; t->at < r->n_sides && st == KVCSA_OK; t->at++)
            st = run_window(t, kvi_min_size(t->begin + t->n_rows, r->n_tokens), err);
    }
    kvi_free(&r->allocator, t->logits, t->logit_bytes);
    kvi_free(&r->allocator, t->has, t->n_rows);
    return st;
}

kvcsa_status kvcsa_compare_text(const kvcsa_setting *reference, const kvcsa_setting *tests,
                                kvcsa_compare *const *compares, size_t n_tests,
                                const int32_t *tokens, size_t n_tokens, uint64_t first,
                                const kvcsa_compare_progress *progress, kvcsa_error *err)
{
    text_run     t = {.set = {.tokens = tokens,
                              .n_tokens = n_tokens,
                              .compares = compares,
                              .n_sides = n_tests + 1},
                      .first = first};
    kvcsa_status st;

    kvi_error_clear(err);
    if ((st = init_set(&t.set, reference, tests, 0, progress, err)) == KVCSA_OK)
        st = run_text(&t, err);
    fini_set(&t.set);
    return st;
}

/* ------------------------------------------------------------------ going on freely */

typedef struct greedy_run {
    run_set  set;
    size_t   n_generate;
    int32_t *lists; /* i32 [n_sides, n_tokens + n_generate]: the text, then what each side says */
    size_t   list_bytes; /* of one */
    size_t   lists_bytes;
    float   *logits; /* f32 [n_vocab]: scratch */
} greedy_run;

static int32_t *list_of(const greedy_run *g, size_t i)
{
    return (int32_t *)((char *)g->lists + i * g->list_bytes);
}

/* Prompt and continuation of one side. */
static kvcsa_status generate(greedy_run *g, size_t i, kvcsa_error *err)
{
    kvi_side       *side = &g->set.sides[i];
    int32_t        *list = list_of(g, i);
    const uint64_t  n = g->set.n_tokens;
    const uint64_t  end = n + g->n_generate;
    kvi_side_append a = {0};
    kvcsa_status    st = KVCSA_OK;

    memcpy(list, g->set.tokens, n * sizeof *list);
    for (; a.from < end - 1 && st == KVCSA_OK; a.from += a.n) { /* the last token is not fed */
        a.n = a.from < n ? kvi_min_size(side->set.append_tokens, n - a.from) : 1;
        a.logits = a.from + a.n < n ? KVCSA_LOGITS_NONE : KVCSA_LOGITS_LAST;
        st = kvi_side_append_tokens(side, list, &a, err);
        if (st == KVCSA_OK && a.from + a.n >= n)
            st = kvi_side_next_token(side, g->logits, &list[a.from + a.n], err);
    }
    return st;
}

static kvcsa_status run_greedy(greedy_run *g, int32_t *generated, kvcsa_error *err)
{
    const run_set *r = &g->set;
    const size_t   bytes = g->n_generate * sizeof *generated;
    kvcsa_status   st = KVCSA_OK;

    for (size_t i = 0; i < r->n_sides && st == KVCSA_OK; i++)
        st = generate(g, i, err);
    for (size_t i = 1; i < r->n_sides && st == KVCSA_OK; i++)
        st = kvcsa_compare_add_greedy(r->compares[i - 1], list_of(g, 0) + r->n_tokens,
                                      list_of(g, i) + r->n_tokens, g->n_generate, err);
    for (size_t i = 0; generated && i < r->n_sides && st == KVCSA_OK; i++)
        memcpy(generated + i * g->n_generate, list_of(g, i) + r->n_tokens, bytes);
    return st;
}

static kvcsa_status make_lists(greedy_run *g, kvcsa_error *err)
{
    size_t n;

    if (!kvi_add_size(g->set.n_tokens, g->n_generate, &n) ||
        !kvi_mul_size(n, sizeof *g->lists, &g->list_bytes) ||
        !kvi_mul_size(g->list_bytes, g->set.n_sides, &g->lists_bytes) ||
        !(g->lists = kvi_alloc(&g->set.allocator, g->lists_bytes)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "%zu lists of %llu + %zu tokens", g->set.n_sides,
                        (unsigned long long)g->set.n_tokens, g->n_generate);
    if (!(g->logits = kvi_alloc(&g->set.allocator, g->set.sides[0].n_vocab * sizeof *g->logits)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "logits of %u tokens", g->set.sides[0].n_vocab);
    return KVCSA_OK;
}

kvcsa_status kvcsa_compare_greedy(const kvcsa_setting *reference, const kvcsa_setting *tests,
                                  kvcsa_compare *const *compares, size_t n_tests,
                                  const int32_t *tokens, size_t n_tokens, size_t n_generate,
                                  int32_t *generated, const kvcsa_compare_progress *progress,
                                  kvcsa_error *err)
{
    greedy_run   g = {.set = {.tokens = tokens,
                              .n_tokens = n_tokens,
                              .compares = compares,
                              .n_sides = n_tests + 1},
                      .n_generate = n_generate};
    kvcsa_status st;

    kvi_error_clear(err);
    if (!n_generate)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_generate is 0, must be at least 1");
    if ((st = init_set(&g.set, reference, tests, n_generate - 1, progress, err)) == KVCSA_OK &&
        (st = make_lists(&g, err)) == KVCSA_OK)
        st = run_greedy(&g, generated, err);
    kvi_free(&g.set.allocator, g.lists, g.lists_bytes);
    if (g.logits)
        kvi_free(&g.set.allocator, g.logits, g.set.sides[0].n_vocab * sizeof *g.logits);
    fini_set(&g.set);
    return st;
}
