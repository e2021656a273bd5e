/* kvcsa synth: a checkpoint of random weights. */
#include "cli.h"

#include <string.h>
#include <unistd.h>

const char cli_help_synth[] =
    "kvcsa synth CONFIG DIR [--seed N] [--shard-size BYTES] [-q] [--json]\n"
    "kvcsa synth CONFIG --dry-run [--shard-size BYTES] [--json]\n"
    "\n"
    "Write a checkpoint of random weights for a config.json of DeepSeek-V4.1, in the released\n"
    "format: weights, their index, a tokenizer of bytes and made-up words, and a copy of CONFIG.\n"
    "It runs like a trained one and knows nothing: for tests and measurements of any size. The\n"
    "same CONFIG and seed give the same bytes on every machine.\n"
    "\n"
    "  DIR                  is made; if it is there it must hold no checkpoint\n"
    "  --seed N             another N, other weights (0)\n"
    "  --shard-size BYTES   largest file, suffixes K, M and G (4G)\n"
    "  --dry-run            only count; nothing is written\n"
    "  -q                   no progress\n"
    "\n"
    "Whatever fails, or Ctrl-C, leaves nothing behind.\n"
    "\n"
    "Examples:\n"
    "  kvcsa synth config.json random --seed 1 && kvcsa run random -p \"badu koki\" -n 20\n"
    "  kvcsa synth config.json --dry-run\n";

typedef struct display {
    int64_t shown; /* ns */
    int     quiet;
    int     drawn;
} display;

static int32_t on_progress(void *user, uint64_t n_done, uint64_t n_total)
{
    display      *d = user;
    const int64_t now = cli_now_ns();
    char          done[CLI_NUM];
    char          total[CLI_NUM];

    if (!d->quiet && now - d->shown > 200000000) {
        fprintf(stderr, "\rwriting %s of %s, %.0f %% ", cli_bytes(done, n_done),
                cli_bytes(total, n_total), 100.0 * (double)n_done / (double)n_total);
        d->shown = now;
        d->drawn = 1;
    }
    return cli_interrupted();
}

static int print_info(const kvcsa_synth_info *i, int json)
{
    char a[CLI_NUM];
    char b[CLI_NUM];
    char c[CLI_NUM];

    if (json)
        return cli_json_print(json_pack("{s:I,s:I,s:I}", "tensors", (json_int_t)i->n_tensors,
                                        "bytes", (json_int_t)i->total_bytes, "shards",
                                        (json_int_t)i->n_shards));
    printf("%s tensors, %s B, shards: %s\n", cli_num(a, i->n_tensors), cli_num(b, i->total_bytes),
           cli_num(c, i->n_shards));
    return cli_finish_stdout();
}

static int has_word(int argc, char **argv, const char *word)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], word) == 0)
            return 1;
    return 0;
}

int cmd_synth(int argc, char **argv)
{
    const int          dry_run = has_word(argc, argv, "--dry-run");
    const char        *words[2] = {NULL, NULL};
    display            d = {.quiet = !isatty(STDERR_FILENO)};
    int                json = 0;
    int                unused = 0;
    kvcsa_synth_params p;
    kvcsa_synth_info   info = {.struct_size = sizeof info};
    kvcsa_error        err;
    const cli_opt      opts[] = {{"--seed", CLI_U64, &p.seed},
                                 {"--shard-size", CLI_BYTES, &p.shard_bytes},
                                 {"--dry-run", CLI_FLAG, &unused},
                                 {"-q", CLI_FLAG, &d.quiet},
                                 {"--json", CLI_FLAG, &json}};
    int                rc;

    kvcsa_synth_params_default(&p, sizeof p);
    rc = cli_parse("synth", opts, sizeof opts / sizeof *opts, argc, argv, words, dry_run ? 1 : 2);
    if (rc != CLI_OK)
        return rc;
    p.progress = on_progress;
    p.user = &d;
    cli_catch_interrupt();
    rc = kvcsa_synth_checkpoint(words[0], words[1], &p, &info, &err);
    if (d.drawn)
        fprintf(stderr, "\r%60s\r", "");
    return rc == KVCSA_OK ? print_info(&info, json) : cli_fail(words[0], &err);
}
