/* kvcsa needle: which facts are still found, under a reference and under settings that save. */
#include "needle_int.h"

#include <stdlib.h>
#include <string.h>

const char cli_help_needle[] =
    "kvcsa needle MODEL ITEMS.jsonl [--set SETTING ...] [options]\n"
    "\n"
    "Does the model still find what it was told? Each line of ITEMS is a prompt and the right\n"
    "answer. An item is right if every token of the answer is the likeliest one where the tokens\n"
    "before it are given. Says how many are right under the reference and under each setting, by\n"
    "distance and depth, which items differ, and whether that is more than chance (McNemar).\n"
    "\n"
    "  --set SETTING   a way to run it (window); up to 16 times. kvcsa help diff lists them.\n"
    "                  With decoder the prompt is one append\n"
    "  --ref SETTING   what they are compared with (exact)\n"
    "  --special       names of added tokens in texts mean these tokens\n"
    "  --greedy        let every setting answer freely, too, and compare the tokens\n"
    "  --limit N       only the first N items\n"
    "  --json          one JSON object instead of the tables\n"
    "  --threads N     threads (one per core); does not change results\n"
    "  --backend B     what computes: auto (a device, if there is one), cpu or cuda\n"
    "  --backend-dir D where libkvcsa_cuda.so is (beside the library)\n"
    "  -q, --quiet     no progress on stderr\n"
    "\n"
    "An item is a JSON object on one line. A text in it is a string or a list of token ids.\n"
    "  {\"prompt\": T, \"answer\": T}\n"
    "      and \"distance\": tokens, \"depth\": 0..1, \"kind\": any word, if you know them\n"
    "  {\"filler\": T, \"length\": N, \"needle\": T, \"depth\": 0..1, \"question\": T,\n"
    "   \"answer\": T}\n"
    "      a prompt of N tokens is built: the filler, repeated, with the needle in it, and the\n"
    "      question; and, if they are there,\n"
    "      \"before\": T                            in front of all\n"
    "      \"needles\": [{\"text\": T, \"depth\": D}]  others in the filler\n"
    "      \"absent\": T                            the answer that is right without the needle:\n"
    "                                             the item is run with the needle hidden, too\n"
    "\n"
    "Examples:\n"
    "  kvcsa needle examples/models/tiny test/data/needles/tiny.jsonl --set bounded:64 --greedy\n"
    "  kvcsa needle test/data/recall test/data/needles/recall.jsonl --special --set window\n";

static int read_options(int argc, char **argv, needle_options *o)
{
    const cli_opt opts[] = {
        {"--set", CLI_LIST, &o->sets},        {"--ref", CLI_TEXT, &o->ref},
        {"--special", CLI_FLAG, &o->special}, {"--greedy", CLI_FLAG, &o->greedy},
        {"--limit", CLI_U64, &o->limit},      {"--json", CLI_FLAG, &o->json},
        CLI_POOL_OPTS(&o->computer),          {"-q", CLI_FLAG, &o->quiet},
        {"--quiet", CLI_FLAG, &o->quiet},
    };
    int rc;

    memset(o, 0, sizeof *o);
    o->ref = "exact";
    rc = cli_parse("needle", opts, sizeof opts / sizeof *opts, argc, argv, o->words, 2);
    if (rc == CLI_OK && !o->sets.n)
        o->sets.items[o->sets.n++] = "window";
    return rc;
}

static int open_run(needle *n, const char *text)
{
    needle_run *r = &n->runs[n->n_runs++];
    const int   rc = cli_setting_open("needle", text, n->o.words[0], n->model, n->pool, &r->how);

    r->label = r->how.text;
    return rc;
}

static int open_runs(needle *n)
{
    int rc = open_run(n, n->o.ref);

    for (size_t i = 0; i < n->o.sets.n && rc == CLI_OK; i++)
        rc = open_run(n, n->o.sets.items[i]);
    return rc;
}

int cmd_needle(int argc, char **argv)
{
    needle *n = calloc(1, sizeof *n);
    int     rc;

    if (!n)
        return cli_no_memory();
    if ((rc = read_options(argc, argv, &n->o)) == CLI_OK) {
        cli_catch_interrupt();
        if ((rc = cli_open(n->o.words[0], 0, &n->model, &n->info)) == CLI_OK &&
            (rc = cli_open_pool("needle", &n->o.computer, &n->pool)) == CLI_OK &&
            (rc = open_runs(n)) == CLI_OK && (rc = needle_read_items(n)) == CLI_OK &&
            (rc = needle_run_items(n)) == CLI_OK)
            rc = n->o.json ? needle_print_json(n) : needle_print_table(n);
    }
    for (size_t i = 0; i < n->n_runs; i++)
        cli_setting_close(&n->runs[i].how);
    needle_free_items(n);
    kvcsa_pool_release(&n->pool);
    kvcsa_model_release(&n->model);
    free(n);
    return rc;
}
