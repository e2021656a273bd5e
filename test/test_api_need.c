/* The recall checkpoint (test/data/recall) and what `kvcsa need` stands on: an answer needs the
 * span that holds its fact, and no other. Every right answer is known here. */
#include "support/host.h"

#include <math.h>
#include <stdio.h>

#define RECALL "test/data/recall"
#define N_DOORS 64u
#define N_RULES 8u
#define N_COLOURS 6u
#define SPAN 8u
#define GAP 40u /* tokens of filler between two statements: no two in one span */

#define FILLER                                                                                     \
    " The harbour was quiet in the morning. A boat lay at the wall, and the men on the boat "      \
    "mended the nets and said little."

static const char *const colours[N_COLOURS] = {"red", "green", "blue", "white", "black", "gold"};

typedef struct story { /* a document in a session, and where its statements are */
    kvcsa_model   *model;
    kvcsa_pool    *pool;
    kvcsa_session *session;
    int32_t        filler[64];
    size_t         n_filler;
    int32_t        ids[16384];
    size_t         n;
    uint64_t       door_at[N_DOORS]; /* positions */
    uint64_t       rule_at[N_RULES];
    uint64_t       void_at[N_RULES]; /* UINT64_MAX = there is no clause */
    int32_t        unknown;
} story;

static size_t tokenize(const kvcsa_model *m, const char *text, int32_t *ids, size_t cap)
{
    kvcsa_error err;
    size_t      n = 0;

    assert_ok(
        kvcsa_model_tokenize(m, text, strlen(text), KVCSA_TOKENIZE_SPECIAL, ids, cap, &n, &err));
    assert_true(n <= cap);
    return n;
}

/* The one token that a text is. */
static int32_t token_of(const kvcsa_model *m, const char *text)
{
    int32_t id = -1;

    assert_int_equal(tokenize(m, text, &id, 1), 1);
    return id;
}

static void say(story *s, const char *text)
{
    s->n += tokenize(s->model, text, s->ids + s->n, 64);
}

static void say_filler(story *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        s->ids[s->n++] = s->filler[i % s->n_filler];
}

/* Door d is of colour d + shift; odd rules are void. */
static void tell(story *s, uint32_t shift)
{
    char text[64];

    s->n = 0;
    s->ids[s->n++] = 0;
    for (uint32_t d = 0; d < N_DOORS; d++) {
        say_filler(s, GAP);
        s->door_at[d] = s->n;
        snprintf(text, sizeof text, " Door %02u is %s.", d, colours[(d + shift) % N_COLOURS]);
        say(s, text);
    }
    for (uint32_t r = 0; r < N_RULES; r++) {
        say_filler(s, GAP);
        s->rule_at[r] = s->n;
        snprintf(text, sizeof text, " Rule %u: yes.", r);
        say(s, text);
    }
    for (uint32_t r = 0; r < N_RULES; r++) {
        s->void_at[r] = UINT64_MAX;
        if (r % 2 == 0)
            continue;
        say_filler(s, GAP);
        s->void_at[r] = s->n;
        snprintf(text, sizeof text, " Rule %u is void.", r);
        say(s, text);
    }
    say_filler(s, GAP);
}

static void open_story(story *s, uint32_t shift)
{
    kvcsa_session_params p;
    kvcsa_error          err;

    memset(s, 0, sizeof *s);
    s->model = host_model(RECALL);
    s->pool = host_pool(2, 0);
    s->n_filler = tokenize(s->model, FILLER, s->filler, 64);
    s->unknown = token_of(s->model, " unknown");
    tell(s, shift);
    kvcsa_session_params_default(&p, sizeof p);
    p.flags = KVCSA_SESSION_PRIVATE | KVCSA_SESSION_TRACK_MASS;
    assert_ok(kvcsa_session_create(s->pool, s->model, &p, &s->session, &err));
    host_run(s->pool, s->session, s->ids, s->n, NULL);
}

static void close_story(story *s)
{
    kvcsa_session_release(&s->session);
    kvcsa_pool_release(&s->pool);
    kvcsa_model_release(&s->model);
}

static kvcsa_session *fork_end(const story *s)
{
    kvcsa_session *f = NULL;
    kvcsa_error    err;

    assert_ok(kvcsa_session_fork(s->session, s->n, NULL, &f, &err));
    return f;
}

static void hide_span(kvcsa_session *f, uint64_t position, int32_t hidden)
{
    const uint64_t begin = position / SPAN * SPAN;
    kvcsa_error    err;

    assert_ok(kvcsa_session_hide(f, begin, begin + SPAN, hidden, &err));
}

static void hide_document(const story *s, kvcsa_session *f)
{
    kvcsa_error err;

    assert_ok(kvcsa_session_hide(f, 0, s->n / SPAN * SPAN, 1, &err));
}

/* What a fork says to a question; the fork is released. */
static int32_t ask(const story *s, kvcsa_session *f, const char *question)
{
    const int32_t id = token_of(s->model, question);
    int32_t       answer = -1;
    kvcsa_error   err;

    host_run(s->pool, f, &id, 1, NULL);
    assert_ok(kvcsa_session_sample(f, NULL, &answer, &err));
    kvcsa_session_release(&f);
    return answer;
}

static const char *door_question(uint32_t d)
{
    static char text[32];

    snprintf(text, sizeof text, " Door %02u?", d);
    return text;
}

static const char *rule_question(uint32_t r)
{
    static char text[32];

    snprintf(text, sizeof text, " Rule %u?", r);
    return text;
}

static int32_t colour_of(const story *s, uint32_t d, uint32_t shift)
{
    char text[16];

    snprintf(text, sizeof text, " %s", colours[(d + shift) % N_COLOURS]);
    return token_of(s->model, text);
}

/* ------------------------------------------------------------------ recall */

/* All 384 facts, all rules, with and without their clause, at distances up to 3,500 tokens. */
static void test_recall_of_every_fact(void **state)
{
    (void)state;
    for (uint32_t shift = 0; shift < N_COLOURS; shift++) {
        story s;

        open_story(&s, shift);
        for (uint32_t d = 0; d < N_DOORS; d++)
            assert_int_equal(ask(&s, fork_end(&s), door_question(d)), colour_of(&s, d, shift));
        for (uint32_t r = 0; r < N_RULES; r++)
            assert_int_equal(ask(&s, fork_end(&s), rule_question(r)),
                             token_of(s.model, r % 2 ? " no" : " yes"));
        close_story(&s);
    }
}

/* Logits behind the last token, from the independent reference ("round": "f32"); see
 * test/data/recall/README.md. */
static void test_recall_logits_are_the_reference_s(void **state)
{
    static const struct {
        const char *last; /* what stands behind the common text */
        const char *best, *second;
        float       best_logit, second_logit;
    } cases[] = {
        {" Door 07?", " red", " unknown", 16.1446f, 3.5877f},
        {" Door 63?", " gold", " unknown", 16.1446f, 3.5877f},
        {" Door 12?", " unknown", " gold", 11.6417f, 0.0f},
        {" Rule 3?", " yes", " unknown", 16.1446f, 3.5877f},
        {" Rule 3 is void." FILLER " Rule 3?", " no", " unknown", 16.1433f, 3.5904f},
        {" Rule 2 is void. Rule 3?", " yes", " unknown", 16.1446f, 3.5877f},
        {" Door 12 is blue. Door 12?", " blue", " unknown", 16.1446f, 3.5877f},
        {"", ".", " red", 40.0f, 0.0f},
    };
    kvcsa_model *m = host_model(RECALL);
    kvcsa_pool  *pool = host_pool(1, 0);
    float        logits[1024];
    int32_t      ids[256] = {0};
    char         text[1024];
    kvcsa_error  err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvcsa_session *s = host_session(pool, m, 0);
        size_t         n;

        snprintf(text, sizeof text, " Door 07 is red. Rule 3: yes.%s Door 63 is gold.%s%s", FILLER,
                 FILLER, cases[i].last);
        n = 1 + tokenize(m, text, ids + 1, 255);
        host_run(pool, s, ids, n, NULL);
        assert_ok(kvcsa_session_get_logits(s, logits, 860, &err));
        for (uint32_t k = 0; k < 860; k++)
            assert_true(logits[k] <= logits[token_of(m, cases[i].best)]);
        assert_float_equal(logits[token_of(m, cases[i].best)], cases[i].best_logit, 1e-3);
        assert_float_equal(logits[token_of(m, cases[i].second)], cases[i].second_logit, 1e-3);
        kvcsa_session_release(&s);
    }
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&m);
}

/* ------------------------------------------------------------------ what an answer needs */

/* Without its span the answer is gone; with nothing but its span it stays. */
static void test_need_is_the_span_of_the_fact(void **state)
{
    story s;

    (void)state;
    open_story(&s, 0);
    for (uint32_t d = 0; d < N_DOORS; d++) {
        kvcsa_session *without = fork_end(&s);
        kvcsa_session *alone = fork_end(&s);

        hide_span(without, s.door_at[d], 1);
        hide_document(&s, alone);
        hide_span(alone, s.door_at[d], 0);
        assert_int_equal(ask(&s, without, door_question(d)), s.unknown);
        assert_int_equal(ask(&s, alone, door_question(d)), colour_of(&s, d, 0));
    }
    close_story(&s);
}

/* One by one, no other span of the document matters; that of the fact does. */
static void test_need_of_every_single_span(void **state)
{
    static const uint32_t doors[] = {0, 31, 63};
    story                 s;

    (void)state;
    open_story(&s, 3);
    for (size_t i = 0; i < sizeof doors / sizeof *doors; i++) {
        for (uint64_t at = 0; at + SPAN <= s.n; at += SPAN) {
            kvcsa_session *f = fork_end(&s);
            const int      mine = at == s.door_at[doors[i]] / SPAN * SPAN;

            hide_span(f, at, 1);
            assert_int_equal(ask(&s, f, door_question(doors[i])),
                             mine ? s.unknown : colour_of(&s, doors[i], 3));
        }
    }
    close_story(&s);
}

/* A clause that is dropped turns no into yes; the rule itself is not missed where a clause is. */
static void test_need_of_a_clause(void **state)
{
    story   s;
    int32_t yes;
    int32_t no;

    (void)state;
    open_story(&s, 0);
    yes = token_of(s.model, " yes");
    no = token_of(s.model, " no");
    for (uint32_t r = 0; r < N_RULES; r++) {
        kvcsa_session *without_rule = fork_end(&s);

        hide_span(without_rule, s.rule_at[r], 1);
        assert_int_equal(ask(&s, without_rule, rule_question(r)), r % 2 ? no : s.unknown);
        if (r % 2) {
            kvcsa_session *without_clause = fork_end(&s);
            kvcsa_session *without_both = fork_end(&s);

            hide_span(without_clause, s.void_at[r], 1);
            hide_span(without_both, s.void_at[r], 1);
            hide_span(without_both, s.rule_at[r], 1);
            assert_int_equal(ask(&s, without_clause, rule_question(r)), yes);
            assert_int_equal(ask(&s, without_both, rule_question(r)), s.unknown);
        }
    }
    close_story(&s);
}

/* A question gives all its attention, once a layer, to the span of its fact. */
static void test_mass_of_a_question_is_at_its_fact(void **state)
{
    story       s;
    double      mass[1024];
    size_t      n_spans = 0;
    kvcsa_error err;

    (void)state;
    open_story(&s, 0);
    for (uint32_t d = 0; d < N_DOORS; d++) {
        kvcsa_session *f = fork_end(&s);
        const int32_t  id = token_of(s.model, door_question(d));

        host_run(s.pool, f, &id, 1, NULL);
        assert_ok(kvcsa_session_get_mass(f, mass, 1024, &n_spans, 0, &err));
        assert_int_equal(n_spans, (s.n + 1 + SPAN - 1) / SPAN);
        for (size_t i = 0; i < n_spans; i++) {
            if (i == s.door_at[d] / SPAN)
                assert_true(fabs(mass[i] - 2.0) < 1e-3);
            else
                assert_true(mass[i] >= 0 && mass[i] < 1e-6);
        }
        kvcsa_session_release(&f);
    }
    close_story(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recall_of_every_fact),
        cmocka_unit_test(test_recall_logits_are_the_reference_s),
        cmocka_unit_test(test_need_is_the_span_of_the_fact),
        cmocka_unit_test(test_need_of_every_single_span),
        cmocka_unit_test(test_need_of_a_clause),
        cmocka_unit_test(test_mass_of_a_question_is_at_its_fact),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
