/* A document, and questions that are asked at its end: each is a fork of the session that holds the
 * document, so that the document is computed once. Forks are stepped together. */
#include "need_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOGETHER 64u /* forks in one step */

typedef struct asked { /* one fork */
    const need    *n;
    kvcsa_session *session;
    need_job      *job;
    uint64_t       first; /* position of the row that predicts the answer's first token */
} asked;

static int32_t on_step(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued)
{
    (void)user;
    (void)session;
    (void)n_done;
    (void)n_queued;
    return cli_interrupted();
}

static int step(need *n, kvcsa_session *const *sessions, size_t n_sessions, kvcsa_progress_fn fn)
{
    kvcsa_step_params sp;
    kvcsa_error       err;

    kvcsa_step_params_default(&sp, sizeof sp);
    sp.progress = fn;
    sp.user = &n->progress;
    if (kvcsa_pool_step(n->pool, sessions, n_sessions, &sp, NULL, &err) == KVCSA_OK)
        return CLI_OK;
    cli_progress_end(&n->progress);
    return cli_fail("need", &err);
}

static int append(need *n, kvcsa_session *s, const cli_ids *ids, const kvcsa_append_params *ap)
{
    kvcsa_error err;

    if (kvcsa_session_append(s, ids->data, ids->n, ap, NULL, &err) == KVCSA_OK)
        return CLI_OK;
    cli_progress_end(&n->progress);
    return cli_fail("need", &err);
}

/* Share of the attention that went to whole spans: f64 [n_spans], sum 1 (or all 0). */
static int read_mass(need *n, kvcsa_session *s, size_t n_spans, double *mass)
{
    size_t      n_all = 0;
    double      sum = 0;
    kvcsa_error err;

    memset(mass, 0, n_spans * sizeof *mass);
    if (kvcsa_session_get_mass(s, mass, n_spans, &n_all, 0, &err) != KVCSA_OK) {
        cli_progress_end(&n->progress);
        return cli_fail("need", &err);
    }
    for (size_t i = 0; i < n_spans; i++)
        sum += mass[i];
    for (size_t i = 0; i < n_spans && sum > 0; i++)
        mass[i] /= sum;
    return CLI_OK;
}

/* ------------------------------------------------------------------ the reference */

static int read_document(need *n, const need_doc *d, double *mass)
{
    kvcsa_session_params p;
    kvcsa_append_params  ap;
    kvcsa_error          err;
    int                  rc;

    kvcsa_session_params_default(&p, sizeof p);
    p.flags = KVCSA_SESSION_PRIVATE | KVCSA_SESSION_TRACK_MASS;
    kvcsa_append_params_default(&ap, sizeof ap);
    ap.logits = KVCSA_LOGITS_NONE;
    ap.reuse = KVCSA_REUSE_NONE;
    if (kvcsa_session_create(n->pool, n->model, &p, &n->base, &err) != KVCSA_OK) {
        cli_progress_end(&n->progress);
        return cli_fail("need", &err);
    }
    if ((rc = append(n, n->base, &d->ids, &ap)) == CLI_OK)
        rc = step(n, &n->base, 1, cli_on_progress);
    n->progress.offset += d->ids.n;
    return rc == CLI_OK ? read_mass(n, n->base, d->n_spans, mass) : rc;
}

/* The likeliest token that can be fed (ties to the lower id), and how far it is ahead. */
static int32_t take_best(const need *n, const float *logits, float *margin)
{
    int32_t best = -1;
    float   second = -HUGE_VALF;

    for (uint32_t i = 0; i < n->info.vocab_tokens; i++) {
        if ((int32_t)i == n->info.image_token)
            continue;
        if (best < 0 || logits[i] > logits[best]) {
            second = best < 0 ? second : logits[best];
            best = (int32_t)i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    *margin = best < 0 ? 0 : logits[best] - second;
    return best;
}

static int has_ended(const need *n, const need_question *q)
{
    return q->n_answer == n->o.generate ||
           (q->n_answer && q->answer[q->n_answer - 1] == n->info.eos_token);
}

/* One more token of each answer that has not ended; those are left in `going`. */
static int answer_on(need *n, need_question *qs, kvcsa_session **forks, size_t n_qs, float *logits,
                     kvcsa_session **going, size_t *n_going)
{
    kvcsa_error err;
    int         rc = CLI_OK;

    *n_going = 0;
    for (size_t i = 0; i < n_qs && rc == CLI_OK; i++) {
        need_question *q = &qs[i];
        cli_ids        next;

        if (has_ended(n, q))
            continue;
        if (kvcsa_session_get_logits(forks[i], logits, n->info.vocab_tokens, &err) != KVCSA_OK)
            return cli_fail("need", &err);
        q->answer[q->n_answer] = take_best(n, logits, &q->margins[q->n_answer]);
        next = (cli_ids){&q->answer[q->n_answer++], 1};
        if (has_ended(n, q))
            continue;
        rc = append(n, forks[i], &next, NULL);
        going[(*n_going)++] = forks[i];
    }
    return rc;
}

/* Free answers to a few questions. */
static int answer(need *n, need_doc *d, size_t from, size_t n_qs, float *logits)
{
    need_question *qs = d->questions + from;
    kvcsa_session *forks[MAX_TOGETHER] = {0};
    kvcsa_session *going[MAX_TOGETHER];
    size_t         n_going = n_qs;
    kvcsa_error    err;
    int            rc = CLI_OK;

    for (size_t i = 0; i < n_qs && rc == CLI_OK; i++) {
        if (kvcsa_session_fork(n->base, d->ids.n, NULL, &forks[i], &err) != KVCSA_OK)
            rc = cli_fail("need", &err);
        else
            rc = append(n, forks[i], &qs[i].ids, NULL);
        going[i] = forks[i];
    }
    while (rc == CLI_OK && n_going) {
        if ((rc = step(n, going, n_going, on_step)) == CLI_OK)
            rc = answer_on(n, qs, forks, n_qs, logits, going, &n_going);
    }
    for (size_t i = 0; i < n_qs; i++) {
        if (rc == CLI_OK)
            rc = read_mass(n, forks[i], d->n_spans, qs[i].mass);
        kvcsa_session_release(&forks[i]);
    }
    return rc;
}

static int make_room(const need *n, need_doc *d)
{
    for (size_t i = 0; i < d->n_questions; i++) {
        need_question *q = &d->questions[i];

        q->answer = malloc(n->o.generate * sizeof *q->answer);
        q->margins = malloc(n->o.generate * sizeof *q->margins);
        q->mass = malloc((d->n_spans + 1) * sizeof *q->mass);
        if (!q->answer || !q->margins || !q->mass)
            return cli_no_memory();
    }
    return CLI_OK;
}

int need_run_document(need *n, need_doc *d, double *mass)
{
    float *logits = malloc(n->info.vocab_tokens * sizeof *logits);
    int    rc = logits ? make_room(n, d) : cli_no_memory();

    if (rc == CLI_OK)
        rc = read_document(n, d, mass);
    for (size_t i = 0; i < d->n_questions && rc == CLI_OK; i += MAX_TOGETHER)
        rc = answer(n, d, i, d->n_questions - i < MAX_TOGETHER ? d->n_questions - i : MAX_TOGETHER,
                    logits);
    free(logits);
    return rc;
}

/* ------------------------------------------------------------------ with something hidden */

static void on_logits(void *user, uint64_t position, const float *logits, uint32_t n_vocab)
{
    const asked *a = user;
    const size_t i = (size_t)(position - a->first);
    float        unused;

    (void)n_vocab; /* the model's */
    if (position < a->first || i >= a->job->question->n_answer ||
        !(a->job->question->margins[i] > a->n->o.margin))
        return;
    a->job->n_sure++;
    a->job->n_flips += take_best(a->n, logits, &unused) != a->job->question->answer[i];
}

/* Runs of spans that are not visible. */
static kvcsa_status hide(kvcsa_session *s, const uint8_t *visible, size_t n_spans, uint64_t span,
                         kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    for (size_t i = 0, end; i < n_spans && st == KVCSA_OK; i = end) {
        end = i + 1;
        while (end < n_spans && visible[end] == visible[i])
            end++;
        if (!visible[i])
            st = kvcsa_session_hide(s, i * span, end * span, 1, err);
    }
    return st;
}

/* The question and the answer's tokens but the last; logits from the question's last token on. */
static int queue_job(need *n, const need_doc *d, asked *a)
{
    const need_question *q = a->job->question;
    kvcsa_append_params  ap;
    cli_ids              ids = {malloc((q->ids.n + q->n_answer) * sizeof *ids.data), 0};
    uint32_t            *rows = malloc(q->n_answer * sizeof *rows);
    int                  rc = CLI_FAILED;

    if (!ids.data || !rows) {
        free(ids.data);
        free(rows);
        return cli_no_memory();
    }
    memcpy(ids.data, q->ids.data, q->ids.n * sizeof *ids.data);
    memcpy(ids.data + q->ids.n, q->answer, (q->n_answer - 1) * sizeof *ids.data);
    ids.n = q->ids.n + q->n_answer - 1;
    for (size_t i = 0; i < q->n_answer; i++)
        rows[i] = (uint32_t)(q->ids.n - 1 + i);
    kvcsa_append_params_default(&ap, sizeof ap);
    ap.logits = KVCSA_LOGITS_ROWS;
    ap.rows = rows;
    ap.n_rows = (uint32_t)q->n_answer;
    ap.on_logits = on_logits;
    ap.user = a;
    a->first = d->ids.n + q->ids.n - 1;
    rc = append(n, a->session, &ids, &ap);
    free(ids.data);
    free(rows);
    return rc;
}

static int open_job(need *n, const need_doc *d, need_job *job, asked *a)
{
    kvcsa_session_params p;
    kvcsa_error          err;

    *a = (asked){.n = n, .job = job};
    job->n_sure = 0;
    job->n_flips = 0;
    kvcsa_session_params_default(&p, sizeof p);
    p.flags = KVCSA_SESSION_PRIVATE;
    if (kvcsa_session_fork(n->base, d->ids.n, &p, &a->session, &err) != KVCSA_OK ||
        hide(a->session, job->visible, d->n_spans, n->info.span_tokens, &err) != KVCSA_OK) {
        cli_progress_end(&n->progress);
        return cli_fail("need", &err);
    }
    return queue_job(n, d, a);
}

static int run_some(need *n, const need_doc *d, need_job *jobs, size_t n_jobs)
{
    asked          all[MAX_TOGETHER] = {{0}};
    kvcsa_session *sessions[MAX_TOGETHER];
    int            rc = CLI_OK;

    for (size_t i = 0; i < n_jobs && rc == CLI_OK; i++) {
        rc = open_job(n, d, &jobs[i], &all[i]);
        sessions[i] = all[i].session;
    }
    if (rc == CLI_OK)
        rc = step(n, sessions, n_jobs, on_step);
    for (size_t i = 0; i < n_jobs; i++)
        kvcsa_session_release(&all[i].session);
    return rc;
}

int need_run_jobs(need *n, need_doc *d, need_job *jobs, size_t n_jobs)
{
    int rc = CLI_OK;

    for (size_t i = 0; i < n_jobs && rc == CLI_OK; i += MAX_TOGETHER)
        rc = run_some(n, d, jobs + i, n_jobs - i < MAX_TOGETHER ? n_jobs - i : MAX_TOGETHER);
    d->n_runs += n_jobs;
    return rc;
}
