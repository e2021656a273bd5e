/* kvcsa score: bits per byte of a text, in windows that do not overlap. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>

typedef struct options {
    const char *model;
    const char *file;
    uint32_t    context;
    cli_pool    computer;
    uint32_t    limit; /* tokens; 0 = all */
    int         json;
    int         quiet;
} options;

typedef struct window {
    const int32_t *targets; /* [n]: the token that the row at position i predicts */
    size_t         n;
    size_t         seen;
    double         nll; /* nat */
} window;

/* -log softmax(logits)[target] in double; rows come in order, each once. */
static void on_logits(void *user, uint64_t position, const float *logits, uint32_t n_vocab)
{
    window *w = user;
    double  sum = 0;
    float   top = logits[0];

    if (position >= w->n)
        return;
    for (uint32_t i = 1; i < n_vocab; i++)
        if (logits[i] > top)
            top = logits[i];
    for (uint32_t i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - (double)top);
    w->nll += log(sum) + (double)top - (double)logits[w->targets[position]];
    w->seen++;
}

/* One window in a session of its own: the start token and all but the last text token go in. */
static int score_window(kvcsa_pool *pool, kvcsa_model *model, int32_t *input, window *w,
                        cli_progress *p)
{
    kvcsa_session      *session = NULL;
    kvcsa_append_params ap;
    kvcsa_step_params   sp;
    kvcsa_error         err;
    int                 rc = CLI_OK;

    kvcsa_append_params_default(&ap, sizeof ap);
    ap.logits = KVCSA_LOGITS_ALL;
    ap.on_logits = on_logits;
    ap.user = w;
    kvcsa_step_params_default(&sp, sizeof sp);
    sp.progress = cli_on_progress;
    sp.user = p;
    if (kvcsa_session_create(pool, model, NULL, &session, &err) != KVCSA_OK ||
        kvcsa_session_append(session, input, w->n, &ap, NULL, &err) != KVCSA_OK ||
        kvcsa_pool_step(pool, &session, 1, &sp, NULL, &err) != KVCSA_OK) {
        cli_progress_end(p);
        rc = cli_fail("score", &err);
    } else if (w->seen != w->n) {
        fprintf(stderr, "kvcsa: score: %zu rows of logits for %zu tokens\n", w->seen, w->n);
        rc = CLI_FAILED;
    }
    kvcsa_session_release(&session);
    return rc;
}

/* All windows. ids[0] is the start token, text tokens follow: a window's input is the token before
 * its first target, replaced by the start token for the call, and all its targets but the last. */
static int score_all(const options *o, kvcsa_model *model, cli_ids *ids, double *nll,
                     uint32_t *n_windows, cli_progress *p)
{
    const size_t  step = o->context - 1;
    const int32_t bos = ids->data[0];
    kvcsa_pool   *pool = NULL;
    int           rc;

    if ((rc = cli_open_pool("score", &o->computer, &pool)) != CLI_OK)
        return rc;
    for (size_t a = 1; a < ids->n && rc == CLI_OK; a += step) {
        window        w = {.targets = ids->data + a};
        const int32_t before = ids->data[a - 1];

        w.n = ids->n - a < step ? ids->n - a : step;
        ids->data[a - 1] = bos;
        p->offset = a - 1;
        rc = score_window(pool, model, ids->data + a - 1, &w, p);
        ids->data[a - 1] = before;
        *nll += w.nll;
        ++*n_windows;
    }
    kvcsa_pool_release(&pool);
    return rc;
}

static int print_result(const options *o, size_t n_tokens, size_t n_bytes, double nll,
                        uint32_t n_windows, int64_t ns)
{
    const double bits = nll / log(2.0);
    char         a[CLI_NUM];
    char         b[CLI_NUM];

    if (o->json)
        return cli_json_print(json_pack(
            "{s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:f,s:f}", "bits_per_byte", bits / (double)n_bytes,
            "bits_per_token", bits / (double)n_tokens, "nat_per_token", nll / (double)n_tokens,
            "tokens", (json_int_t)n_tokens, "bytes", (json_int_t)n_bytes, "context",
            (json_int_t)o->context, "windows", (json_int_t)n_windows, "seconds", (double)ns / 1e9,
            "tokens_per_second", cli_rate(n_tokens, ns)));
    printf("%.4f bits/byte  %.4f bits/token\n", bits / (double)n_bytes, bits / (double)n_tokens);
    if (!o->quiet)
        fprintf(stderr, "%s tokens, %s bytes, %u windows of %u; %.1f s, %.1f tokens/s\n",
                cli_num(a, n_tokens), cli_num(b, n_bytes), n_windows, o->context, (double)ns / 1e9,
                cli_rate(n_tokens, ns));
    return cli_finish_stdout();
}

static int score(const options *o, kvcsa_model *model, const kvcsa_model_info *info,
                 const cli_text *text)
{
    cli_ids      ids = {0};
    cli_progress p;
    kvcsa_error  err;
    size_t       n_bytes = text->n;
    double       nll = 0;
    uint32_t     n_windows = 0;
    int          rc;

    if (o->context < 2 || o->context > info->max_context_tokens)
        return cli_usage("score", "--context is %u, must be 2..%llu", o->context,
                         (unsigned long long)info->max_context_tokens);
    if (info->bos_token < 0) {
        fprintf(stderr, "kvcsa: score: this model has no start token\n");
        return CLI_FAILED;
    }
    if ((rc = cli_tokenize(model, text, 0, info->bos_token, &ids)) != CLI_OK)
        return rc;
    if (ids.n < 2) {
        fprintf(stderr, "kvcsa: score: the text is empty\n");
        rc = CLI_FAILED;
        goto done;
    }
    if (o->limit && o->limit < ids.n - 1) {
        ids.n = (size_t)o->limit + 1;
        if (kvcsa_model_detokenize(model, ids.data + 1, ids.n - 1, NULL, 0, &n_bytes, &err) !=
            KVCSA_OK) {
            rc = cli_fail("detokenize", &err);
            goto done;
        }
    }
    cli_progress_start(&p, "score", ids.n - 1, o->quiet);
    rc = score_all(o, model, &ids, &nll, &n_windows, &p);
    cli_progress_end(&p);
    if (rc == CLI_OK)
        rc = print_result(o, ids.n - 1, n_bytes, nll, n_windows, cli_now_ns() - p.started);
done:
    free(ids.data);
    return rc;
}

int cmd_score(int argc, char **argv)
{
    options       o = {.context = 512};
    const cli_opt opts[] = {
        {"-f", CLI_TEXT, &o.file},          {"--file", CLI_TEXT, &o.file},
        {"--context", CLI_U32, &o.context}, CLI_POOL_OPTS(&o.computer),
        {"--limit", CLI_U32, &o.limit},     {"--json", CLI_FLAG, &o.json},
        {"-q", CLI_FLAG, &o.quiet},         {"--quiet", CLI_FLAG, &o.quiet},
    };
    kvcsa_model     *model = NULL;
    kvcsa_model_info info;
    cli_text         text = {0};
    int              rc;

    rc = cli_parse("score", opts, sizeof opts / sizeof *opts, argc, argv, &o.model, 1);
    if (rc != CLI_OK)
        return rc;
    if (!o.file)
        return cli_usage("score", "which text? Name it with -f FILE (- is stdin)");
    cli_catch_interrupt();
    if ((rc = cli_read_text("score", NULL, o.file, &text)) == CLI_OK &&
        (rc = cli_open(o.model, 0, &model, &info)) == CLI_OK)
        rc = score(&o, model, &info, &text);
    kvcsa_model_release(&model);
    free(text.data);
    return rc;
}
