/* kvcsa need: the smallest part of the cache with which the answers do not change. */
#include "need_int.h"

#include <stdlib.h>
#include <string.h>

#define MAX_GENERATE 4096u

const char cli_help_need[] =
    "kvcsa need MODEL ITEMS.jsonl [options]\n"
    "\n"
    "How much of the cache do the answers need? Reads each document once and lets the questions\n"
    "at its end be answered. Then hides spans of the document and looks for the smallest number\n"
    "of spans that must stay so that no answer changes: in orders that were known before the\n"
    "questions, and in one that only the answers tell (hindsight). docs/measuring.md says how,\n"
    "and where the limits are.\n"
    "\n"
    "  --by ORDER       mass (what attention received while the document was read), recent\n"
    "                   (newest first), first (oldest first); may be repeated (all three).\n"
    "                   hindsight is always there\n"
    "  --questions LIST how many of the questions must be right together (1,4,16,64, and all)\n"
    "  --generate T     tokens of each answer (8)\n"
    "  --margin M       tokens that the reference chose by M nat or less do not count (0.1)\n"
    "  --epsilon E      so large a part of the counting tokens may change (0)\n"
    "  --prune          leave spans of the smallest set out one by one, too\n"
    "  --special        names of added tokens in texts mean these tokens\n"
    "  --limit N        only the first N documents\n"
    "  --plot FILE.svg  draw the part of the cache against the number of questions\n"
    "  --json           one JSON object instead of the tables\n"
    "  --threads N      threads (one per core); does not change results\n"
    "  --backend B      what computes: auto (a device, if there is one), cpu or cuda\n"
    "  --backend-dir D  where libkvcsa_cuda.so is (beside the library)\n"
    "  -q, --quiet      no progress on stderr\n"
    "\n"
    "An item is a JSON object on one line. A text in it is a string or a list of token ids.\n"
    "  {\"document\": T, \"questions\": [T, ...]}\n"
    "  {\"filler\": T, \"length\": N, \"needles\": [{\"text\": T, \"depth\": D}],\n"
    "   \"questions\": [T, ...]}\n"
    "                   a document of N tokens is built: see kvcsa help needle\n"
    "\n"
    "Examples:\n"
    "  kvcsa need test/data/recall test/data/needles/doors.jsonl --special --generate 1\n"
    "  kvcsa need examples/models/tiny notes.jsonl --questions 1,4,16 --plot need.svg\n";

/* ------------------------------------------------------------------ options */

static int read_orders(need_options *o)
{
    const char *names[NEED_ORDERS - 1];

    for (size_t k = NEED_MASS; k < NEED_ORDERS; k++) {
        names[k - 1] = need_order_names[k];
        o->use[k] = o->by.n == 0;
    }
    o->use[NEED_HINDSIGHT] = 1;
    for (size_t i = 0; i < o->by.n; i++) {
        const char *near = cli_nearest(o->by.items[i], names, NEED_ORDERS - 1);
        size_t      k = 0;

        while (k < NEED_ORDERS && strcmp(o->by.items[i], need_order_names[k]) != 0)
            k++;
        if (k == NEED_ORDERS)
            return cli_usage("need", "--by is \"%s\", must be mass, recent or first%s%s%s",
                             o->by.items[i], near ? "; did you mean " : "", near ? near : "",
                             near ? "?" : "");
        o->use[k] = 1;
    }
    return CLI_OK;
}

/* "1,4,16": ascending numbers from 1 on. */
static int read_questions(need_options *o)
{
    const char *p = o->questions;
    size_t      last = 0;

    for (;;) {
        char               *end = NULL;
        const unsigned long k = *p >= '0' && *p <= '9' ? strtoul(p, &end, 10) : 0;

        if (k <= last || k > 1u << 20 || (*end && *end != ',') || o->n_ks == NEED_MAX_UNIONS)
            return cli_usage("need",
                             "--questions is \"%s\", must be at most %u ascending numbers "
                             "with commas between them",
                             o->questions, NEED_MAX_UNIONS);
        o->ks[o->n_ks++] = last = k;
        if (!*end)
            return CLI_OK;
        p = end + 1;
    }
}

static int read_options(int argc, char **argv, need_options *o)
{
    const cli_opt opts[] = {
        {"--by", CLI_LIST, &o->by},
        {"--questions", CLI_TEXT, &o->questions},
        {"--margin", CLI_F32, &o->margin},
        {"--epsilon", CLI_F32, &o->epsilon},
        {"--generate", CLI_U32, &o->generate},
        {"--prune", CLI_FLAG, &o->prune},
        {"--special", CLI_FLAG, &o->special},
        {"--limit", CLI_U64, &o->limit},
        {"--plot", CLI_TEXT, &o->plot},
        {"--json", CLI_FLAG, &o->json},
        CLI_POOL_OPTS(&o->computer),
        {"-q", CLI_FLAG, &o->quiet},
        {"--quiet", CLI_FLAG, &o->quiet},
    };
    int rc;

    memset(o, 0, sizeof *o);
    o->questions = "1,4,16,64";
    o->margin = 0.1f;
    o->generate = 8;
    rc = cli_parse("need", opts, sizeof opts / sizeof *opts, argc, argv, o->words, 2);
    if (rc != CLI_OK || (rc = read_orders(o)) != CLI_OK || (rc = read_questions(o)) != CLI_OK)
        return rc;
    if (o->generate < 1 || o->generate > MAX_GENERATE)
        return cli_usage("need", "--generate is %u, must be 1..%u", o->generate, MAX_GENERATE);
    if (o->epsilon > 1)
        return cli_usage("need", "--epsilon is %g, must be at most 1", (double)o->epsilon);
    return CLI_OK;
}

/* ------------------------------------------------------------------ all of it */

static int open_all(need *n)
{
    kvcsa_error err;
    int         rc = cli_open(n->o.words[0], 0, &n->model, &n->info);

    if (rc != CLI_OK)
        return rc;
    if (!n->info.span_tokens) {
        fprintf(stderr, "kvcsa need: nothing of this model's cache can be hidden, it has no "
                        "index\n");
        return CLI_FAILED;
    }
    n->cost.struct_size = sizeof n->cost;
    if (kvcsa_model_cost(n->model, 0, &n->cost, &err) != KVCSA_OK)
        return cli_fail("cost", &err);
    return cli_open_pool("need", &n->o.computer, &n->pool);
}

static int examine_all(need *n)
{
    uint64_t total = 0;
    int      rc = CLI_OK;

    for (size_t i = 0; i < n->n_docs; i++)
        total += n->docs[i].ids.n;
    cli_progress_start(&n->progress, "need", total, n->o.quiet);
    for (size_t i = 0; i < n->n_docs && rc == CLI_OK; i++)
        rc = need_examine(n, &n->docs[i]);
    cli_progress_end(&n->progress);
    n->seconds = (double)(cli_now_ns() - n->progress.started) / 1e9;
    return rc;
}

int cmd_need(int argc, char **argv)
{
    need *n = calloc(1, sizeof *n);
    int   rc;

    if (!n)
        return cli_no_memory();
    if ((rc = read_options(argc, argv, &n->o)) == CLI_OK) {
        cli_catch_interrupt();
        if ((rc = open_all(n)) == CLI_OK && (rc = need_read_items(n)) == CLI_OK &&
            (rc = examine_all(n)) == CLI_OK) {
            if (n->o.plot)
                rc = need_write_plot(n);
            if (rc == CLI_OK)
                rc = n->o.json ? need_print_json(n) : need_print_table(n);
        }
    }
    need_free_items(n);
    kvcsa_pool_release(&n->pool);
    kvcsa_model_release(&n->model);
    free(n);
    return rc;
}
