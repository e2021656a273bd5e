/* The smallest number of spans, in a given order, with which no answer changes.
 *
 * A search keeps the first c spans of its order and asks whether an answer changed. It bisects:
 * c = 0 first, then between the largest c that changed one (lo) and the smallest that did not (hi).
 * That finds the smallest c only if more spans never change an answer again, which nothing
 * promises. So it goes on with a few c above hi; where one of them changes an answer, it bisects
 * again from there. Searches go in rounds, each with one c, so that their questions are run
 * together. */
#include "need_int.h"

#include <stdlib.h>
#include <string.h>

const char *const need_order_names[NEED_ORDERS] = {"hindsight", "mass", "recent", "first"};

#define MAX_RESTARTS 4u

enum { AT_ZERO, BISECTING, PROBING, DONE };

typedef struct search {
    const uint32_t *order;     /* u32 [n_spans] */
    size_t          from, end; /* questions */
    need_found     *found;
    uint8_t        *visible; /* u8 [n_spans] */
    size_t          lo, hi;
    size_t          count; /* spans kept in this round */
    size_t          n_probes;
    size_t          changed_at; /* largest probe above hi that changed an answer; 0 = none */
    size_t          same_at;    /* smallest probe above that which did not */
    size_t          n_restarts;
    int             at;
} search;

/* ------------------------------------------------------------------ one search */

static void next_middle(search *s, size_t n_spans);

/* All probes of this hi are done. */
static void end_probes(search *s, size_t n_spans)
{
    s->found->stable = s->hi;
    if (!s->changed_at) {
        s->at = DONE;
        return;
    }
    s->found->again = s->changed_at;
    s->found->stable = s->same_at;
    s->lo = s->changed_at;
    s->hi = s->same_at;
    if (s->n_restarts++ == MAX_RESTARTS) {
        s->at = DONE;
        return;
    }
    s->at = BISECTING;
    next_middle(s, n_spans);
}

/* The next c above hi. */
static void next_probe(search *s, size_t n_spans)
{
    const size_t left = n_spans - s->hi;

    while (s->n_probes < NEED_PROBES) {
        const size_t last = s->count;
        const size_t c = s->n_probes == 0 ? s->hi + 1 : s->hi + left * s->n_probes / NEED_PROBES;

        s->n_probes++;
        if (c > s->hi && c < n_spans && c != last) {
            s->count = c;
            return;
        }
    }
    end_probes(s, n_spans);
}

static void next_middle(search *s, size_t n_spans)
{
    if (s->hi - s->lo > 1) {
        s->count = s->lo + (s->hi - s->lo) / 2;
        return;
    }
    if (!s->n_restarts)
        s->found->kept = s->hi;
    s->count = s->hi;
    s->n_probes = 0;
    s->changed_at = 0;
    s->same_at = n_spans;
    s->at = PROBING;
    next_probe(s, n_spans);
}

static void start(search *s, size_t n_spans)
{
    *s->found = (need_found){0};
    s->lo = 0;
    s->hi = n_spans;
    s->count = 0;
    s->at = n_spans ? AT_ZERO : DONE;
}

static void go_on(search *s, int changed, size_t n_spans)
{
    switch (s->at) {
    case AT_ZERO:
        if (!changed)
            s->hi = 0;
        s->at = BISECTING;
        next_middle(s, n_spans);
        break;
    case BISECTING:
        if (changed)
            s->lo = s->count;
        else
            s->hi = s->count;
        next_middle(s, n_spans);
        break;
    default:
        if (changed) {
            s->changed_at = s->count;
            s->same_at = n_spans;
        } else if (s->changed_at && s->same_at == n_spans) {
            s->same_at = s->count;
        }
        next_probe(s, n_spans);
    }
}

/* ------------------------------------------------------------------ rounds */

static size_t fill_jobs(const need_doc *d, search *s, need_job *jobs)
{
    size_t n_jobs = 0;

    memset(s->visible, 0, d->n_spans);
    for (size_t i = 0; i < s->count; i++)
        s->visible[s->order[i]] = 1;
    for (size_t q = s->from; q < s->end; q++)
        jobs[n_jobs++] = (need_job){.visible = s->visible, .question = &d->questions[q]};
    return n_jobs;
}

/* Flips of all questions together, against the sure tokens of all. */
static int has_changed(const need *n, const need_job *jobs, size_t n_jobs)
{
    size_t flips = 0;
    size_t sure = 0;

    for (size_t i = 0; i < n_jobs; i++) {
        flips += jobs[i].n_flips;
        sure += jobs[i].n_sure;
    }
    return (double)flips > (double)n->o.epsilon * (double)sure;
}

static int run_round(need *n, need_doc *d, search *all, size_t n_all, need_job *jobs, size_t *left)
{
    size_t n_jobs = 0;
    int    rc;

    for (size_t i = 0; i < n_all; i++)
        if (all[i].at != DONE)
            n_jobs += fill_jobs(d, &all[i], jobs + n_jobs);
    if ((rc = need_run_jobs(n, d, jobs, n_jobs)) != CLI_OK)
        return rc;
    *left = 0;
    for (size_t i = 0; i < n_all; i++) {
        const size_t mine = all[i].end - all[i].from;

        if (all[i].at == DONE)
            continue;
        go_on(&all[i], has_changed(n, jobs, mine), d->n_spans);
        jobs += mine;
        *left += all[i].at != DONE;
    }
    return CLI_OK;
}

/* Searches whose order, questions and found are set. */
static int run_searches(need *n, need_doc *d, search *all, size_t n_all)
{
    size_t    n_jobs = 0;
    size_t    left = d->n_spans ? n_all : 0;
    need_job *jobs;
    int       rc = CLI_OK;

    for (size_t i = 0; i < n_all && rc == CLI_OK; i++) {
        start(&all[i], d->n_spans);
        n_jobs += all[i].end - all[i].from;
        if (!(all[i].visible = malloc(d->n_spans + 1)))
            rc = cli_no_memory();
    }
    if (!(jobs = malloc((n_jobs + 1) * sizeof *jobs)))
        rc = cli_no_memory();
    while (rc == CLI_OK && left)
        rc = run_round(n, d, all, n_all, jobs, &left);
    for (size_t i = 0; i < n_all; i++)
        free(all[i].visible);
    free(jobs);
    return rc;
}

/* ------------------------------------------------------------------ leaving spans out */

/* The order that needs least; a set that any order has found is one that hindsight may take. */
static size_t best_order(const need *n, const need_union *u)
{
    size_t best = NEED_HINDSIGHT;

    for (size_t o = 0; o < NEED_ORDERS; o++)
        if (n->o.use[o] && u->found[o].kept < u->found[best].kept)
            best = o;
    return best;
}

/* Of the best set the least important go first; whoever is not missed stays out. */
static int prune(need *n, need_doc *d, need_union *u, uint8_t *visible)
{
    need_job *jobs = malloc(u->k * sizeof *jobs);
    size_t    left = 0;
    int       rc = jobs ? CLI_OK : cli_no_memory();

    for (size_t i = u->best; i-- > 0 && rc == CLI_OK;) {
        for (size_t q = 0; q < u->k; q++)
            jobs[q] = (need_job){.visible = visible, .question = &d->questions[q]};
        visible[u->best_set[i]] = 0;
        rc = need_run_jobs(n, d, jobs, u->k);
        if (rc == CLI_OK && has_changed(n, jobs, u->k))
            visible[u->best_set[i]] = 1;
    }
    for (size_t i = 0; i < u->best && rc == CLI_OK; i++)
        if (visible[u->best_set[i]])
            u->best_set[left++] = u->best_set[i];
    if (rc == CLI_OK)
        u->best = left;
    free(jobs);
    return rc;
}

static int take_best_set(need *n, need_doc *d, need_union *u)
{
    const size_t o = best_order(n, u);
    uint8_t     *visible = calloc(d->n_spans + 1, 1);
    int          rc = CLI_OK;

    u->best = u->found[o].kept;
    u->best_set = malloc((u->best + 1) * sizeof *u->best_set);
    if (!visible || !u->best_set)
        rc = cli_no_memory();
    for (size_t i = 0; i < u->best && rc == CLI_OK; i++) {
        u->best_set[i] = d->orders[o][i];
        visible[d->orders[o][i]] = 1;
    }
    if (rc == CLI_OK && n->o.prune)
        rc = prune(n, d, u, visible);
    free(visible);
    return rc;
}

/* ------------------------------------------------------------------ orders */

typedef struct ranked {
    double   mass;
    uint32_t span;
} ranked;

/* More attention first; of equals the newer one. */
static int compare_ranked(const void *a, const void *b)
{
    const ranked *x = a;
    const ranked *y = b;

    if (x->mass != y->mass)
        return x->mass > y->mass ? -1 : 1;
    return x->span > y->span ? -1 : x->span < y->span;
}

static int order_by_mass(const double *mass, size_t n_spans, uint32_t **order)
{
    ranked *r = malloc((n_spans + 1) * sizeof *r);

    if (!*order)
        *order = malloc((n_spans + 1) * sizeof **order);
    if (!r || !*order) {
        free(r);
        return cli_no_memory();
    }
    for (size_t i = 0; i < n_spans; i++)
        r[i] = (ranked){mass[i], (uint32_t)i};
    qsort(r, n_spans, sizeof *r, compare_ranked);
    for (size_t i = 0; i < n_spans; i++)
        (*order)[i] = r[i].span;
    free(r);
    return CLI_OK;
}

/* Hindsight for the first k questions: the largest share that one of them gave. */
static int order_for_union(need_doc *d, size_t k)
{
    double *mass = calloc(d->n_spans + 1, sizeof *mass);
    int     rc;

    if (!mass)
        return cli_no_memory();
    for (size_t q = 0; q < k; q++)
        for (size_t i = 0; i < d->n_spans; i++)
            if (d->questions[q].mass[i] > mass[i])
                mass[i] = d->questions[q].mass[i];
    rc = order_by_mass(mass, d->n_spans, &d->orders[NEED_HINDSIGHT]);
    free(mass);
    return rc;
}

static int make_orders(need_doc *d, const double *mass)
{
    int rc = order_by_mass(mass, d->n_spans, &d->orders[NEED_MASS]);

    for (size_t q = 0; q < d->n_questions && rc == CLI_OK; q++)
        rc = order_by_mass(d->questions[q].mass, d->n_spans, &d->questions[q].order);
    for (size_t o = NEED_RECENT; o <= NEED_FIRST && rc == CLI_OK; o++) {
        if (!(d->orders[o] = malloc((d->n_spans + 1) * sizeof *d->orders[o])))
            return cli_no_memory();
        for (size_t i = 0; i < d->n_spans; i++)
            d->orders[o][i] = (uint32_t)(o == NEED_FIRST ? i : d->n_spans - 1 - i);
    }
    return rc;
}

/* ------------------------------------------------------------------ a document */

/* Each question alone, by one order. */
static int find_each(need *n, need_doc *d, size_t o)
{
    search *all = calloc(d->n_questions, sizeof *all);
    int     rc = all ? CLI_OK : cli_no_memory();

    for (size_t q = 0; q < d->n_questions && rc == CLI_OK; q++) {
        all[q].order = o == NEED_HINDSIGHT ? d->questions[q].order : d->orders[o];
        all[q].from = q;
        all[q].end = q + 1;
        all[q].found = &d->questions[q].found[o];
    }
    if (rc == CLI_OK)
        rc = run_searches(n, d, all, d->n_questions);
    free(all);
    return rc;
}

/* The first u->k questions together, by all orders. */
static int find_union(need *n, need_doc *d, need_union *u)
{
    search all[NEED_ORDERS];
    size_t n_all = 0;
    int    rc = order_for_union(d, u->k);

    memset(all, 0, sizeof all);
    for (size_t o = 0; o < NEED_ORDERS; o++) {
        if (!n->o.use[o])
            continue;
        all[n_all].order = d->orders[o];
        all[n_all].end = u->k;
        all[n_all].found = &u->found[o];
        n_all++;
    }
    if (rc == CLI_OK)
        rc = run_searches(n, d, all, n_all);
    return rc == CLI_OK ? take_best_set(n, d, u) : rc;
}

/* The ks that there are questions for, and all of them. */
static void list_unions(const need *n, need_doc *d)
{
    for (size_t i = 0; i < n->o.n_ks && n->o.ks[i] < d->n_questions; i++)
        d->unions[d->n_unions++].k = n->o.ks[i];
    if (d->n_unions < NEED_MAX_UNIONS)
        d->unions[d->n_unions++].k = d->n_questions;
}

/* With nothing hidden every answer must come again. */
static int check_reference(need *n, need_doc *d)
{
    need_job *jobs = malloc(d->n_questions * sizeof *jobs);
    uint8_t  *visible = malloc(d->n_spans + 1);
    size_t    flips = 0;
    int       rc = jobs && visible ? CLI_OK : cli_no_memory();

    if (rc == CLI_OK) {
        memset(visible, 1, d->n_spans + 1);
        for (size_t q = 0; q < d->n_questions; q++)
            jobs[q] = (need_job){.visible = visible, .question = &d->questions[q]};
        rc = need_run_jobs(n, d, jobs, d->n_questions);
    }
    for (size_t q = 0; q < d->n_questions && rc == CLI_OK; q++) {
        flips += jobs[q].n_flips;
        d->n_sure += jobs[q].n_sure;
        d->n_answer_tokens += d->questions[q].n_answer;
    }
    if (flips) {
        cli_progress_end(&n->progress);
        fprintf(stderr,
                "kvcsa need: line %zu: %zu tokens of the answers do not come again with "
                "nothing hidden\n",
                d->line, flips);
        rc = CLI_FAILED;
    }
    free(jobs);
    free(visible);
    return rc;
}

int need_examine(need *n, need_doc *d)
{
    double *mass = malloc((d->n_spans + 1) * sizeof *mass);
    int     rc = mass ? CLI_OK : cli_no_memory();

    list_unions(n, d);
    if (rc == CLI_OK && (rc = need_run_document(n, d, mass)) == CLI_OK &&
        (rc = check_reference(n, d)) == CLI_OK)
        rc = make_orders(d, mass);
    for (size_t o = 0; o < NEED_ORDERS && rc == CLI_OK; o++)
        if (n->o.use[o])
            rc = find_each(n, d, o);
    for (size_t i = 0; i < d->n_unions && rc == CLI_OK; i++)
        rc = find_union(n, d, &d->unions[i]);
    kvcsa_session_release(&n->base);
    free(mass);
    return rc;
}
