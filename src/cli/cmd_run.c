/* kvcsa run: prefill, the five figures, then generated text as it comes. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char          *model;
    const char          *prompt;
    const char          *file;
    const char          *system;
    uint32_t             n;
    uint32_t             chunk;
    cli_pool             computer;
    int                  chat;
    int                  special;
    int                  json;
    int                  quiet;
    cli_list             stops;
    kvcsa_sampler_params sampler;
} options;

typedef struct run_state {
    kvcsa_model        *model;
    kvcsa_pool         *pool;
    kvcsa_session      *session;
    kvcsa_text_stream  *stream;
    kvcsa_model_info    info;
    cli_text            text;
    cli_ids             ids; /* prompt */
    cli_text            out; /* what was generated; kept for --json */
    size_t              out_cap;
    int                 line_open; /* what was shown last does not end its line */
    int32_t            *made;      /* ids that were generated */
    uint32_t            n_made;
    uint32_t            n_steps; /* tokens computed after the prompt */
    int64_t             prefill_ns;
    int64_t             decode_ns;
    const char         *ended; /* "eos", "stop", "limit", "context", "cancelled" */
    kvcsa_cost          cost;
    kvcsa_pool_stats    pool_stats;
    kvcsa_session_stats stats;
} run_state;

static int read_options(int argc, char **argv, options *o)
{
    const cli_opt opts[] = {
        {"-p", CLI_TEXT, &o->prompt},
        {"--prompt", CLI_TEXT, &o->prompt},
        {"-f", CLI_TEXT, &o->file},
        {"--file", CLI_TEXT, &o->file},
        {"-n", CLI_U32, &o->n},
        {"--chat", CLI_FLAG, &o->chat},
        {"--system", CLI_TEXT, &o->system},
        {"--special", CLI_FLAG, &o->special},
        {"--stop", CLI_LIST, &o->stops},
        {"--temp", CLI_F32, &o->sampler.temperature},
        {"--top-p", CLI_F32, &o->sampler.top_p},
        {"--top-k", CLI_U32, &o->sampler.top_k},
        {"--min-p", CLI_F32, &o->sampler.min_p},
        {"--seed", CLI_U64, &o->sampler.seed},
        CLI_POOL_OPTS(&o->computer),
        {"--chunk", CLI_U32, &o->chunk},
        {"--budget", CLI_BYTES, &o->computer.budget},
        {"--json", CLI_FLAG, &o->json},
        {"-q", CLI_FLAG, &o->quiet},
        {"--quiet", CLI_FLAG, &o->quiet},
    };
    int rc;

    memset(o, 0, sizeof *o);
    o->n = 64;
    kvcsa_sampler_params_default(&o->sampler, sizeof o->sampler);
    rc = cli_parse("run", opts, sizeof opts / sizeof *opts, argc, argv, &o->model, 1);
    if (rc != CLI_OK)
        return rc;
    for (size_t i = 0; i < o->stops.n; i++)
        if (!o->stops.items[i][0])
            return cli_usage("run", "--stop is empty");
    if (o->system && !o->chat)
        return cli_usage("run", "--system belongs to --chat");
    if (o->chat && o->special)
        return cli_usage("run", "--special and --chat exclude each other: text in a chat is text");
    if (o->sampler.top_p > 1 || o->sampler.min_p > 1)
        return cli_usage("run", "--top-p and --min-p are shares, at most 1");
    return CLI_OK;
}

/* ------------------------------------------------------------------ preparing */

static int open_session(const options *o, run_state *r)
{
    kvcsa_session_params sp;
    kvcsa_error          err;
    int                  rc;

    if ((rc = cli_open_pool("run", &o->computer, &r->pool)) != CLI_OK)
        return rc;
    kvcsa_session_params_default(&sp, sizeof sp);
    sp.chunk_tokens = o->chunk;
    if (kvcsa_session_create(r->pool, r->model, &sp, &r->session, &err) != KVCSA_OK)
        return cli_fail("create session", &err);
    if (kvcsa_text_stream_create(r->model, o->stops.items, o->stops.n, &r->stream, &err) !=
        KVCSA_OK)
        return cli_fail("create text stream", &err);
    return CLI_OK;
}

static int prepare(const options *o, run_state *r)
{
    const uint32_t flags = o->special ? KVCSA_TOKENIZE_SPECIAL : 0;
    int            rc;

    if ((rc = cli_read_text("run", o->prompt, o->file, &r->text)) != CLI_OK ||
        (rc = cli_open(o->model, 0, &r->model, &r->info)) != CLI_OK)
        return rc;
    rc = o->chat ? cli_chat_ids(r->model, o->system, &r->text, &r->ids)
                 : cli_tokenize(r->model, &r->text, flags, r->info.bos_token, &r->ids);
    if (rc != CLI_OK)
        return rc;
    if (r->ids.n == 0) {
        fprintf(stderr, "kvcsa: the text is empty, and this model has no start token\n");
        return CLI_FAILED;
    }
    r->made = calloc((size_t)o->n + 1, sizeof *r->made);
    if (!r->made) {
        fprintf(stderr, "kvcsa: out of memory for %u tokens\n", o->n);
        return CLI_FAILED;
    }
    return open_session(o, r);
}

/* ------------------------------------------------------------------ prefill */

static int compute(run_state *r, const int32_t *tokens, size_t n, cli_progress *p)
{
    kvcsa_step_params sp;
    kvcsa_error       err;

    if (kvcsa_session_append(r->session, tokens, n, NULL, NULL, &err) != KVCSA_OK)
        return cli_fail("append", &err);
    kvcsa_step_params_default(&sp, sizeof sp);
    sp.progress = cli_on_progress;
    sp.user = p;
    if (kvcsa_pool_step(r->pool, &r->session, 1, &sp, NULL, &err) == KVCSA_OK)
        return CLI_OK;
    if (err.status == KVCSA_ERR_CANCELLED) {
        r->ended = "cancelled";
        return CLI_FAILED;
    }
    return cli_fail("step", &err);
}

static void print_prefill(const options *o, const run_state *r)
{
    char a[CLI_NUM];
    char b[CLI_NUM];

    fprintf(stderr, "prompt    %s tokens of %s bytes%s\n", cli_num(a, r->ids.n),
            cli_num(b, r->text.n), o->chat ? ", in the chat format" : "");
    fprintf(stderr, "cache\n");
    cli_print_cost(stderr, &r->cost);
    fprintf(stderr, "prefill   %s tokens in %.2f s: %.1f tokens/s\n", cli_num(a, r->ids.n),
            (double)r->prefill_ns / 1e9, cli_rate(r->ids.n, r->prefill_ns));
}

static int prefill(const options *o, run_state *r)
{
    cli_progress p;
    kvcsa_error  err;
    int          rc;

    r->cost.struct_size = sizeof r->cost;
    if (kvcsa_model_cost(r->model, r->ids.n, &r->cost, &err) != KVCSA_OK)
        return cli_fail("this text", &err);
    cli_progress_start(&p, "prefill", r->ids.n, o->quiet);
    rc = compute(r, r->ids.data, r->ids.n, &p);
    r->prefill_ns = cli_now_ns() - p.started;
    cli_progress_end(&p);
    if (rc != CLI_OK) {
        if (r->ended)
            fprintf(stderr, "kvcsa: cancelled during prefill\n");
        return rc;
    }
    if (!o->quiet)
        print_prefill(o, r);
    return CLI_OK;
}

/* ------------------------------------------------------------------ generating */

/* Show text at once, or keep it for --json. */
static int emit(const options *o, run_state *r, const char *text, size_t n)
{
    if (!o->json) {
        fwrite(text, 1, n, stdout);
        if (n)
            r->line_open = text[n - 1] != '\n';
        return cli_finish_stdout();
    }
    if (n > r->out_cap - r->out.n || !r->out.data) {
        size_t cap = (r->out.n + n) * 2 + 256;
        char  *d = realloc(r->out.data, cap);

        if (!d)
            return cli_no_memory();
        r->out.data = d;
        r->out_cap = cap;
    }
    memcpy(r->out.data + r->out.n, text, n);
    r->out.n += n;
    return CLI_OK;
}

/* One token: choose, show, and say in r->ended whether it was the last. */
static int next_token(const options *o, run_state *r)
{
    const char *text = NULL;
    size_t      n = 0;
    int32_t     token = 0;
    int32_t     stopped = -1;
    kvcsa_error err;

    if (kvcsa_session_sample(r->session, &o->sampler, &token, &err) != KVCSA_OK)
        return cli_fail("sample", &err);
    if (token == r->info.eos_token) {
        r->ended = "eos";
        return CLI_OK;
    }
    r->made[r->n_made++] = token;
    if (kvcsa_text_stream_push(r->stream, token, &text, &n, &stopped, &err) != KVCSA_OK)
        return cli_fail("text stream", &err);
    if (emit(o, r, text, n) != CLI_OK)
        return CLI_FAILED;
    if (stopped >= 0)
        r->ended = "stop";
    else if (r->n_made == o->n)
        r->ended = "limit";
    else if (kvcsa_session_length(r->session) == r->info.max_context_tokens)
        r->ended = "context";
    else if (cli_interrupted())
        r->ended = "cancelled";
    return CLI_OK;
}

static int generate(const options *o, run_state *r)
{
    const int64_t started = cli_now_ns();
    const char   *text = NULL;
    size_t        n = 0;
    kvcsa_error   err;
    int           rc = CLI_OK;

    if (o->n == 0)
        r->ended = "limit";
    while (!r->ended) {
        if ((rc = next_token(o, r)) != CLI_OK || r->ended)
            break;
        rc = compute(r, &r->made[r->n_made - 1], 1, NULL);
        r->n_steps += rc == CLI_OK;
        if (rc != CLI_OK)
            break;
    }
    r->decode_ns = cli_now_ns() - started;
    if (!r->ended)
        return rc;
    if (kvcsa_text_stream_finish(r->stream, &text, &n, &err) != KVCSA_OK)
        return cli_fail("text stream", &err);
    if (emit(o, r, text, n) != CLI_OK)
        return CLI_FAILED;
    if (r->line_open)
        putchar('\n');
    return cli_finish_stdout();
}

/* ------------------------------------------------------------------ figures at the end */

static void print_end(const options *o, const run_state *r)
{
    char a[CLI_NUM];
    char b[CLI_NUM];
    char c[CLI_NUM];

    fprintf(stderr, "decode    %s tokens in %.2f s: %.1f tokens/s; ended by %s\n",
            cli_num(a, r->n_made), (double)r->decode_ns / 1e9, cli_rate(r->n_steps, r->decode_ns),
            r->ended);
    fprintf(stderr, "pool      %s in use of %s: %s in %llu blocks, %s of windows; ",
            cli_bytes(a, r->pool_stats.used_bytes),
            o->computer.budget ? cli_bytes(b, o->computer.budget) : "no limit",
            cli_bytes(c, r->stats.block_bytes),
            (unsigned long long)r->stats.n_blocks,
            cli_bytes((char[CLI_NUM]){0}, r->pool_stats.window_bytes));
    fprintf(stderr, "%s tokens, %s entries\n", cli_num(a, r->stats.n_tokens),
            cli_num(b, r->stats.n_entries));
}

static json_t *speed(uint64_t n, int64_t ns)
{
    return json_pack("{s:I,s:f,s:f}", "tokens", (json_int_t)n, "seconds", (double)ns / 1e9,
                     "tokens_per_second", cli_rate(n, ns));
}

static int print_json(const run_state *r)
{
    json_t *root = json_object();
    json_t *cache = json_object();
    json_t *ids = json_array();

    for (uint32_t i = 0; i < r->n_made; i++)
        json_array_append_new(ids, json_integer(r->made[i]));
    cli_json_cost(cache, &r->cost);
    json_object_set_new(root, "text", cli_json_text(r->out.data ? r->out.data : "", r->out.n));
    json_object_set_new(root, "ids", ids);
    json_object_set_new(root, "ended", json_string(r->ended));
    json_object_set_new(root, "prompt_tokens", json_integer((json_int_t)r->ids.n));
    json_object_set_new(root, "generated_tokens", json_integer(r->n_made));
    json_object_set_new(root, "cache", cache);
    json_object_set_new(root, "prefill", speed(r->ids.n, r->prefill_ns));
    json_object_set_new(root, "decode", speed(r->n_steps, r->decode_ns));
    json_object_set_new(
        root, "pool",
        json_pack("{s:I,s:I,s:I,s:I,s:I}", "budget_bytes", (json_int_t)r->pool_stats.budget_bytes,
                  "used_bytes", (json_int_t)r->pool_stats.used_bytes, "window_bytes",
                  (json_int_t)r->pool_stats.window_bytes, "block_bytes",
                  (json_int_t)r->stats.block_bytes, "blocks", (json_int_t)r->stats.n_blocks));
    json_object_set_new(root, "session",
                        json_pack("{s:I,s:I,s:I,s:I}", "tokens", (json_int_t)r->stats.n_tokens,
                                  "entries", (json_int_t)r->stats.n_entries, "entry_bytes",
                                  (json_int_t)r->stats.entry_bytes, "workspace_bytes",
                                  (json_int_t)r->stats.workspace_bytes));
    return cli_json_print(root);
}

static int finish(const options *o, run_state *r)
{
    kvcsa_error err;

    r->pool_stats.struct_size = sizeof r->pool_stats;
    r->stats.struct_size = sizeof r->stats;
    if (kvcsa_pool_get_stats(r->pool, &r->pool_stats, &err) != KVCSA_OK ||
        kvcsa_session_get_stats(r->session, &r->stats, &err) != KVCSA_OK)
        return cli_fail("figures", &err);
    if (!o->quiet)
        print_end(o, r);
    if (o->json && print_json(r) != CLI_OK)
        return CLI_FAILED;
    return strcmp(r->ended, "cancelled") == 0 ? CLI_FAILED : CLI_OK;
}

int cmd_run(int argc, char **argv)
{
    options   o;
    run_state r;
    int       rc = read_options(argc, argv, &o);

    if (rc != CLI_OK)
        return rc;
    memset(&r, 0, sizeof r);
    cli_catch_interrupt();
    if ((rc = prepare(&o, &r)) == CLI_OK && (rc = prefill(&o, &r)) == CLI_OK &&
        (rc = generate(&o, &r)) == CLI_OK)
        rc = finish(&o, &r);
    kvcsa_text_stream_release(&r.stream);
    kvcsa_session_release(&r.session);
    kvcsa_pool_release(&r.pool);
    kvcsa_model_release(&r.model);
    free(r.made);
    free(r.ids.data);
    free(r.text.data);
    free(r.out.data);
    return rc;
}
