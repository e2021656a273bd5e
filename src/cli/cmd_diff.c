/* kvcsa diff: a text under a reference and under settings that save something, side by side. */
#include "diff_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_CONTEXT 2048u
#define DEFAULT_APPEND 128u  /* of kvcsa_setting */

const char cli_help_diff[] =
    "kvcsa diff MODEL (-f FILE | --ids FILE) --set SETTING [--set SETTING ...] [options]\n"
    "\n"
    "What a saving does to the answers: runs the text under a reference and under each setting,\n"
    "fed the same tokens, and compares the logits of every position. The first line, the noise\n"
    "floor, is the reference against itself in another pool, with other chunks, appends and\n"
    "threads; on the CPU it is 0. docs/measuring.md says what the figures mean.\n"
    "\n"
    "  -f FILE            the text; - is stdin\n"
    "  --ids FILE         token ids instead, as they are\n"
    "  --set SETTING      a way to run it; up to 16 times\n"
    "  --ref SETTING      what they are compared with (exact)\n"
    "  --context N        the text is cut into windows of N tokens, each with a start token\n"
    "                     (2048, or the model's limit)\n"
    "  --skip TOKENS      begin behind so many tokens of the text (0)\n"
    "  --limit TOKENS     only so many tokens\n"
    "  --first N          the first N positions of each window are not compared (0)\n"
    "  --greedy N         let every setting go on with prompts from the text for N tokens, too\n"
    "  --prompts K        so many prompts (8)\n"
    "  --prompt TOKENS    of so many tokens (context - N)\n"
    "  --noise            the noise floor alone\n"
    "  --plot FILE.svg    draw KL against position, and against bytes per token\n"
    "  --rows FILE.csv    every position of every setting\n"
    "  --json             one JSON object instead of the tables\n"
    "  --threads N        threads (one per core); does not change results\n"
    "  --portable         kernels in portable C: results of numerics 1, see kvcsa info\n"
    "  --backend B        what computes: auto (a device, if there is one), cpu or cuda\n"
    "  --backend-dir DIR  where libkvcsa_cuda.so is (beside the library)\n"
    "  -q, --quiet        no progress on stderr\n"
    "\n"
    "SETTING is one of these, or several joined by +:\n"
    "  exact              what is computed without any saving\n"
    "  replay:N           a prefix hit every N tokens, windows rebuilt exactly\n"
    "  bounded:N[:chain]  likewise, rebuilt from the last window only; chain: each hit finds what\n"
    "                     the hits before it have made, else each is the first\n"
    "  decoder[:N]        decoder layers run the last window of each append of N (256) only\n"
    "  window             nothing but the window is read\n"
    "  top:K              at most K entries are selected\n"
    "  candidates:B       at most B candidate blocks\n"
    "  entries:FORMAT     entries are stored as f32, bf16, f16, mxfp8, q8_0, q4_0, mxfp4, ...\n"
    "  keep:FIRST:LAST    entries of all tokens but these are dropped in front of each append\n"
    "  mass:F             likewise all but the part F that received most attention so far\n"
    "  drop:BEGIN:END     entries of these tokens (END may be the word end) are not there\n"
    "  append:N, chunk:N  the text comes in appends of N tokens (128), is computed in chunks of N\n"
    "\n"
    "Examples:\n"
    "  kvcsa diff examples/models/tiny -f test/data/heldout.txt --limit 8000 --set bounded:64\n"
    "  kvcsa diff examples/models/tiny -f test/data/heldout.txt --limit 8000 --set window \\\n"
    "      --set entries:q4_0 --set keep:16:256+entries:bf16 --greedy 64 --plot diff.svg\n";

static int read_options(int argc, char **argv, diff_options *o)
{
    const cli_opt opts[] = {
        {"-f", CLI_TEXT, &o->file},
        {"--file", CLI_TEXT, &o->file},
        {"--ids", CLI_TEXT, &o->ids},
        {"--set", CLI_LIST, &o->sets},
        {"--ref", CLI_TEXT, &o->ref},
        {"--context", CLI_U64, &o->context},
        {"--skip", CLI_U64, &o->skip},
        {"--limit", CLI_U64, &o->limit},
        {"--first", CLI_U64, &o->first},
        {"--greedy", CLI_U64, &o->greedy},
        {"--prompts", CLI_U64, &o->prompts},
        {"--prompt", CLI_U64, &o->prompt_tokens},
        {"--noise", CLI_FLAG, &o->noise},
        {"--plot", CLI_TEXT, &o->plot},
        {"--rows", CLI_TEXT, &o->rows},
        {"--json", CLI_FLAG, &o->json},
        CLI_POOL_OPTS(&o->computer),
        {"--portable", CLI_FLAG, &o->computer.portable},
        {"-q", CLI_FLAG, &o->quiet},
        {"--quiet", CLI_FLAG, &o->quiet},
    };
    int rc;

    memset(o, 0, sizeof *o);
    o->ref = "exact";
    o->prompts = 8;
    rc = cli_parse("diff", opts, sizeof opts / sizeof *opts, argc, argv, &o->model, 1);
    if (rc != CLI_OK)
        return rc;
    if (!o->file == !o->ids)
        return cli_usage("diff", "which text? Name it with -f FILE or --ids FILE");
    if (o->noise && o->sets.n)
        return cli_usage("diff", "--noise is the noise floor alone; it is measured with --set too");
    if (!o->noise && !o->sets.n)
        return cli_usage("diff", "compare with what? Name it with --set SETTING");
    if (!o->greedy && o->prompt_tokens)
        return cli_usage("diff", "--prompt belongs to --greedy");
    if (o->greedy && (!o->prompts || o->prompts > 4096))
        return cli_usage("diff", "--prompts is %llu, must be 1..4096",
                         (unsigned long long)o->prompts);
    return CLI_OK;
}

/* ------------------------------------------------------------------ the text */

static int read_ids(const char *file, const cli_text *text, cli_ids *out)
{
    const char *p = text->data;
    char       *end = NULL;

    if (!(out->data = malloc((text->n / 2 + 1) * sizeof *out->data))) /* an id and a space each */
        return cli_no_memory();
    for (;;) {
        long long v;

        p += strspn(p, " \t\r\n");
        if (p == text->data + text->n)
            return CLI_OK;
        v = strtoll(p, &end, 10);
        if (end == p || v < 0 || v > INT32_MAX || (*end && !strchr(" \t\r\n", *end)) ||
            (!*end && end != text->data + text->n)) {
            fprintf(stderr, "kvcsa: %s: number %zu is not a token id\n", file, out->n + 1);
            return CLI_FAILED;
        }
        out->data[out->n++] = (int32_t)v;
        p = end;
    }
}

static int read_tokens(diff *d)
{
    const char *file = d->o.file ? d->o.file : d->o.ids;
    cli_text    text = {0};
    int         rc = cli_read_text("diff", NULL, file, &text);

    if (rc != CLI_OK)
        return rc;
    d->bos = d->o.file ? d->info.bos_token : -1;
    rc = d->o.file ? cli_tokenize(d->model, &text, 0, -1, &d->ids)
                   : read_ids(file, &text, &d->ids);
    free(text.data);
    if (rc != CLI_OK)
        return rc;
    if (d->o.skip) {
        const size_t skip = d->o.skip < d->ids.n ? (size_t)d->o.skip : d->ids.n;

        d->ids.n -= skip;
        memmove(d->ids.data, d->ids.data + skip, d->ids.n * sizeof *d->ids.data);
    }
    if (d->o.limit && d->o.limit < d->ids.n)
        d->ids.n = (size_t)d->o.limit;
    return CLI_OK;
}

size_t diff_step(const diff *d)
{
    return (size_t)d->o.context - (d->bos >= 0);
}

/* Windows, prompts and the text's length fit each other. */
static int settle_lengths(diff *d)
{
    diff_options  *o = &d->o;
    const uint64_t limit = d->info.max_context_tokens;
    size_t         last;

    if (!o->context)
        o->context = limit < DEFAULT_CONTEXT ? limit : DEFAULT_CONTEXT;
    if (o->context < 2 || o->context > limit)
        return cli_usage("diff", "--context is %llu, must be 2..%llu",
                         (unsigned long long)o->context, (unsigned long long)limit);
    if (d->ids.n == 0) {
        fprintf(stderr, "kvcsa: diff: the text is empty\n");
        return CLI_FAILED;
    }
    if (d->ids.n < diff_step(d))
        o->context = d->ids.n + (d->bos >= 0);
    if (o->first >= o->context)
        return cli_usage("diff", "--first is %llu, must be below the %llu tokens of a window",
                         (unsigned long long)o->first, (unsigned long long)o->context);
    d->n_windows = (d->ids.n + diff_step(d) - 1) / diff_step(d);
    last = d->ids.n - (d->n_windows - 1) * diff_step(d) + (d->bos >= 0);
    if (last <= o->first) /* nothing of it would be compared */
        d->ids.n = --d->n_windows * diff_step(d);
    if (!o->greedy)
        return CLI_OK;
    if (!o->prompt_tokens && o->greedy < o->context)
        o->prompt_tokens = o->context - o->greedy;
    if (o->prompt_tokens < 1 || o->prompt_tokens > d->ids.n || o->greedy > limit ||
        o->prompt_tokens + o->greedy > limit)
        return cli_usage("diff",
                         "prompts of %llu tokens and %llu more do not fit into the context (%llu) "
                         "or the text (%zu)",
                         (unsigned long long)o->prompt_tokens, (unsigned long long)o->greedy,
                         (unsigned long long)limit, d->ids.n);
    return CLI_OK;
}

/* ------------------------------------------------------------------ settings */

/* The size of appends is part of what is measured. */
static int depends_on_append(const cli_setting *s)
{
    return s->setting.keep_last_tokens ||
           (s->setting.keep_fraction > 0 && s->setting.keep_fraction < 1) ||
           s->session.decoder_replay == KVCSA_DECODER_REPLAY_ON;
}

static cli_setting *setting_of(diff *d, size_t i)
{
    return i == 0 ? &d->ref : &d->tests[i - 1].how;
}

/* kvcsa_compare_text wants appends that divide the largest: settings that do not care take it. */
static int settle_appends(diff *d)
{
    uint64_t    largest = 0;
    const char *whose = "";

    for (size_t i = 0; i <= d->n_tests; i++) {
        cli_setting *s = setting_of(d, i);

        if (!s->setting.append_tokens && depends_on_append(s))
            s->setting.append_tokens = DEFAULT_APPEND;
        if (s->setting.append_tokens > largest) {
            largest = s->setting.append_tokens;
            whose = s->text;
        }
    }
    if (!largest)
        largest = DEFAULT_APPEND;
    for (size_t i = 0; i <= d->n_tests; i++) {
        cli_setting *s = setting_of(d, i);

        if (!s->setting.append_tokens)
            s->setting.append_tokens = largest;
        if (largest % s->setting.append_tokens)
            return cli_usage("diff",
                             "%s comes in appends of %llu tokens, which do not divide the %llu of "
                             "%s; choose others with append:N",
                             s->text, (unsigned long long)s->setting.append_tokens,
                             (unsigned long long)largest, whose);
    }
    return CLI_OK;
}

/* Everything that must not change a bit is another: pool, threads, chunks, appends. */
static void disturb(const cli_setting *ref, cli_setting *noise)
{
    const uint64_t append = ref->setting.append_tokens;

    noise->session.chunk_tokens = ref->session.chunk_tokens == 48 ? 80 : 48;
    if (depends_on_append(ref))
        return;
    noise->setting.append_tokens = 1;
    for (uint64_t a = append / 2; a > 1; a--)
        if (append % a == 0) {
            noise->setting.append_tokens = a;
            break;
        }
}

static int open_pools(diff *d)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    cli_pool   how = d->o.computer;
    int        rc;

    if (!how.threads)
        how.threads = cores > 0 ? (uint32_t)cores : 1;
    if ((rc = cli_open_pool("diff", &how, &d->pool)) != CLI_OK)
        return rc;
    how.threads = how.threads > 1 ? how.threads - 1 : 2;
    return cli_open_pool("diff", &how, &d->noise_pool);
}

static int open_test(diff *d, const char *label, const char *text, kvcsa_pool *pool)
{
    diff_test  *t = &d->tests[d->n_tests++];
    kvcsa_error err;
    int         rc = cli_setting_open("diff", text, d->o.model, d->model, pool, &t->how);

    if (rc != CLI_OK)
        return rc;
    t->label = label ? label : t->how.text;
    if (kvcsa_compare_create(NULL, &t->compare, &err) != KVCSA_OK)
        return cli_fail("compare", &err);
    t->rate = cli_setting_rate(&t->how, d->o.context);
    return CLI_OK;
}

static int open_settings(diff *d)
{
    int rc = cli_setting_open("diff", d->o.ref, d->o.model, d->model, d->pool, &d->ref);

    if (rc == CLI_OK)
        rc = open_test(d, "noise floor", d->o.ref, d->noise_pool);
    for (size_t i = 0; i < d->o.sets.n && rc == CLI_OK; i++)
        rc = open_test(d, NULL, d->o.sets.items[i], d->pool);
    if (rc != CLI_OK || (rc = settle_appends(d)) != CLI_OK)
        return rc;
    d->ref_rate = cli_setting_rate(&d->ref, d->o.context);
    disturb(&d->ref, &d->tests[0].how);
    return CLI_OK;
}

/* ------------------------------------------------------------------ running */

typedef struct run {
    kvcsa_setting  settings[DIFF_MAX_TESTS];
    kvcsa_compare *compares[DIFF_MAX_TESTS];
    int32_t       *tokens;   /* of one window or prompt */
    cli_progress   progress;
    uint64_t       n_tokens; /* of what runs now */
} run;

static int32_t on_progress(void *user, uint64_t n_done, uint64_t n_rows)
{
    run *r = user;

    if (n_rows)
        cli_progress_update(&r->progress,
                            (uint64_t)((double)n_done / (double)n_rows * (double)r->n_tokens));
    return cli_interrupted();
}

/* Tokens of the text from `from` on, behind a start token; their number. */
static size_t take_tokens(const diff *d, size_t from, size_t n, int32_t *out)
{
    size_t k = 0;

    if (d->bos >= 0)
        out[k++] = d->bos;
    memcpy(out + k, d->ids.data + from, n * sizeof *out);
    return k + n;
}

static int run_windows(diff *d, run *r)
{
    const kvcsa_compare_progress p = {on_progress, r};
    kvcsa_error                  err;

    for (size_t w = 0; w < d->n_windows; w++) {
        const size_t from = w * diff_step(d);
        const size_t left = d->ids.n - from;
        const size_t n =
            take_tokens(d, from, left < diff_step(d) ? left : diff_step(d), r->tokens);

        r->n_tokens = n;
        if (kvcsa_compare_text(&d->ref.setting, r->settings, r->compares, d->n_tests, r->tokens, n,
                               d->o.first, &p, &err) != KVCSA_OK) {
            cli_progress_end(&r->progress);
            return cli_fail("diff", &err);
        }
        r->progress.offset += n;
    }
    return CLI_OK;
}

/* Prompts from all over the text. */
static int run_prompts(diff *d, run *r)
{
    const kvcsa_compare_progress p = {on_progress, r};
    const size_t                 n = (size_t)d->o.prompt_tokens - (d->bos >= 0);
    kvcsa_error                  err;

    for (uint64_t k = 0; d->o.greedy && k < d->o.prompts; k++) {
        const double part = d->o.prompts > 1 ? (double)k / (double)(d->o.prompts - 1) : 0;
        const size_t n_prompt =
            take_tokens(d, (size_t)(part * (double)(d->ids.n - n)), n, r->tokens);

        r->n_tokens = n_prompt + d->o.greedy;
        if (kvcsa_compare_greedy(&d->ref.setting, r->settings, r->compares, d->n_tests, r->tokens,
                                 n_prompt, (size_t)d->o.greedy, NULL, &p, &err) != KVCSA_OK) {
            cli_progress_end(&r->progress);
            return cli_fail("diff", &err);
        }
        r->progress.offset += r->n_tokens;
    }
    return CLI_OK;
}

static int run_all(diff *d)
{
    const uint64_t greedy = d->o.greedy ? d->o.prompts * (d->o.prompt_tokens + d->o.greedy) : 0;
    const uint64_t longest =
        d->o.context > d->o.prompt_tokens ? d->o.context : d->o.prompt_tokens;
    run r = {0};
    int rc;

    if (!(r.tokens = malloc((size_t)longest * sizeof *r.tokens)))
        return cli_no_memory();
    for (size_t i = 0; i < d->n_tests; i++) {
        r.settings[i] = d->tests[i].how.setting;
        r.compares[i] = d->tests[i].compare;
    }
    cli_progress_start(&r.progress, "diff", d->ids.n + d->n_windows * (d->bos >= 0) + greedy,
                       d->o.quiet);
    if ((rc = run_windows(d, &r)) == CLI_OK)
        rc = run_prompts(d, &r);
    cli_progress_end(&r.progress);
    d->seconds = (double)(cli_now_ns() - r.progress.started) / 1e9;
    free(r.tokens);
    return rc;
}

/* ------------------------------------------------------------------ results */

/* Bytes of the token behind a row; 0 where none follows in its window. */
static size_t next_bytes(const diff *d, const kvcsa_compare_row *row)
{
    const size_t i = row->run * diff_step(d) + (size_t)row->position + (d->bos < 0);
    const char  *text = NULL;
    size_t       n = 0;

    if (isnan(row->ref_log_prob) || i >= d->ids.n ||
        kvcsa_model_token_text(d->model, d->ids.data[i], &text, &n, NULL) != KVCSA_OK)
        return 0;
    return n;
}

static void find_bits(const diff *d, diff_test *t)
{
    const kvcsa_compare_result *r = &t->result;
    const double nat = (double)r->n_text_rows / log(2.0);
    size_t       bytes = 0;

    for (size_t i = 0; i < t->n_rows; i++)
        bytes += next_bytes(d, &t->rows[i]);
    t->ref_bits = bytes ? r->ref_nll * nat / (double)bytes : (double)NAN;
    t->test_bits = bytes ? r->test_nll * nat / (double)bytes : (double)NAN;
}

static int get_result(const diff *d, diff_test *t)
{
    kvcsa_error err;

    t->result.struct_size = sizeof t->result;
    if (kvcsa_compare_get_result(t->compare, &t->result, &err) != KVCSA_OK ||
        kvcsa_compare_get_greedy(t->compare, NULL, 0, &t->n_same, &err) != KVCSA_OK ||
        kvcsa_compare_get_rows(t->compare, 0, NULL, 0, &t->n_rows, &err) != KVCSA_OK)
        return cli_fail("compare", &err);
    t->rows = calloc(t->n_rows + 1, sizeof *t->rows);
    t->same = calloc(t->n_same + 1, sizeof *t->same);
    if (!t->rows || !t->same)
        return cli_no_memory();
    if (kvcsa_compare_get_rows(t->compare, 0, t->rows, t->n_rows, &t->n_rows, &err) != KVCSA_OK ||
        kvcsa_compare_get_greedy(t->compare, t->same, t->n_same, &t->n_same, &err) != KVCSA_OK)
        return cli_fail("compare", &err);
    find_bits(d, t);
    return CLI_OK;
}

static int report(const diff *d)
{
    if (d->o.rows && diff_write_rows(d) != CLI_OK)
        return CLI_FAILED;
    if (d->o.plot && diff_write_plot(d) != CLI_OK)
        return CLI_FAILED;
    return d->o.json ? diff_print_json(d) : diff_print_table(d);
}

static int run_diff(diff *d)
{
    int rc;

    if ((rc = cli_open(d->o.model, 0, &d->model, &d->info)) != CLI_OK ||
        (rc = read_tokens(d)) != CLI_OK || (rc = settle_lengths(d)) != CLI_OK ||
        (rc = open_pools(d)) != CLI_OK || (rc = open_settings(d)) != CLI_OK ||
        (rc = run_all(d)) != CLI_OK)
        return rc;
    for (size_t i = 0; i < d->n_tests; i++)
        if ((rc = get_result(d, &d->tests[i])) != CLI_OK)
            return rc;
    return report(d);
}

int cmd_diff(int argc, char **argv)
{
    diff *d = calloc(1, sizeof *d);
    int   rc;

    if (!d)
        return cli_no_memory();
    if ((rc = read_options(argc, argv, &d->o)) == CLI_OK) {
        cli_catch_interrupt();
        rc = run_diff(d);
    }
    for (size_t i = 0; i < d->n_tests; i++) {
        kvcsa_compare_release(&d->tests[i].compare);
        cli_setting_close(&d->tests[i].how);
        free(d->tests[i].rows);
        free(d->tests[i].same);
    }
    cli_setting_close(&d->ref);
    kvcsa_pool_release(&d->noise_pool);
    kvcsa_pool_release(&d->pool);
    kvcsa_model_release(&d->model);
    free(d->ids.data);
    free(d);
    return rc;
}
