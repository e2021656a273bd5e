#include "cli.h"

#include <string.h>

static const char overview[] =
    "kvcsa runs language models in the DeepSeek-V4.1 format around a very small KV cache.\n"
    "\n"
    "  kvcsa run MODEL -p TEXT      continue a text, and say what the cache costs\n"
    "  kvcsa plan MODEL             what each layer keeps and reads, from config.json alone\n"
    "  kvcsa plan A B --compare     models side by side\n"
    "  kvcsa tokenize MODEL -p TEXT text to tokens\n"
    "  kvcsa score MODEL -f FILE    bits per byte of a text\n"
    "  kvcsa info MODEL             what is in a checkpoint\n"
    "\n"
    "  kvcsa cost MODEL             what devices hold, read and write for many users, in money\n"
    "  kvcsa diff MODEL -f FILE     what a saving does to the answers\n"
    "  kvcsa needle MODEL ITEMS     which facts are still found\n"
    "  kvcsa need MODEL ITEMS       how much of the cache the answers need\n"
    "  kvcsa synth CONFIG DIR       write a checkpoint of random weights\n"
    "\n"
    "  kvcsa version                version of the library\n"
    "  kvcsa help COMMAND           more about one of them\n"
    "\n"
    "MODEL is a directory with config.json, tokenizer.json and safetensors files.\n"
    "\n"
    "Try, in the source tree:\n"
    "  kvcsa run examples/models/tiny -p \"In the beginning\" -n 40\n"
    "  kvcsa run examples/models/tiny -f examples/texts/moby-dick.txt -n 60\n"
    "  kvcsa plan examples/models/tiny\n"
    "\n"
    "Text goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong "
    "usage.\n";

static const char run[] =
    "kvcsa run MODEL (-p TEXT | -f FILE) [options]\n"
    "\n"
    "Reads the text into the cache (prefill), prints the five cache figures, then writes on.\n"
    "\n"
    "  -p TEXT          the text\n"
    "  -f FILE          the text is in a file; - is stdin\n"
    "  -n N             write at most N tokens (64); 0 = only read\n"
    "  --chat           the text is a question: wrap it in the model's chat format\n"
    "  --system TEXT    with --chat: what comes before the question\n"
    "  --special        names of special tokens in the text mean these tokens\n"
    "  --stop STR       stop before this string; may be repeated\n"
    "\n"
    "  --temp T         temperature; 0 (the default) always takes the likeliest token\n"
    "  --top-k K        only the K likeliest tokens\n"
    "  --top-p P        only the likeliest tokens that make up P\n"
    "  --min-p P        only tokens at least P times as likely as the likeliest\n"
    "  --seed S         another draw; the same seed gives the same text (0)\n"
    "\n"
    "  --threads N      threads (one per core); does not change the text\n"
    "  --backend B      what computes: auto (a device, if there is one), cpu or cuda\n"
    "  --backend-dir D  where libkvcsa_cuda.so is (beside the library)\n"
    "  --chunk N        tokens computed at once (128); does not change the text\n"
    "  --budget BYTES   limit of the cache, as 500K, 64M, 2G\n"
    "  --json           one JSON object on stdout instead of the text\n"
    "  -q, --quiet      no figures on stderr\n"
    "\n"
    "Examples:\n"
    "  kvcsa run examples/models/tiny -p \"The whale\" -n 40\n"
    "  kvcsa run examples/models/tiny -p \"The whale\" --temp 0.8 --top-p 0.95 --seed 7\n"
    "  kvcsa run examples/models/tiny -f examples/texts/moby-dick.txt -n 60 --stop \"CHAPTER\"\n"
    "  kvcsa run examples/models/tiny -f notes.txt -n 0 --json\n"
    "\n"
    "Ctrl-C stops cleanly and still prints the figures; the exit code is then 1.\n";

static const char tokenize[] =
    "kvcsa tokenize MODEL (-p TEXT | -f FILE) [--special] [--ids | --json]\n"
    "\n"
    "One line per token: id and text. Nothing is put in front.\n"
    "\n"
    "  --special   names of special tokens in the text mean these tokens\n"
    "  --ids       only the ids, on one line\n"
    "  --json      one JSON object\n"
    "\n"
    "Examples:\n"
    "  kvcsa tokenize examples/models/tiny -p \"Call me Ishmael.\"\n"
    "  kvcsa tokenize examples/models/tiny -f notes.txt --ids | wc -w\n";

static const char score[] =
    "kvcsa score MODEL -f FILE [--context N] [--limit TOKENS] [--threads N] [--json]\n"
    "            [--backend auto|cpu|cuda] [--backend-dir DIR]\n"
    "\n"
    "How well the model predicts a text, in bits per byte (lower is better). The text is cut into\n"
    "windows that do not overlap; each is a start token and N - 1 text tokens (N = 512), so every\n"
    "text token is predicted once.\n"
    "\n"
    "  --limit TOKENS  only so many tokens from the beginning\n"
    "\n"
    "Examples:\n"
    "  kvcsa score examples/models/tiny -f test/data/heldout.txt\n"
    "  kvcsa score examples/models/tiny -f test/data/heldout.txt --context 2048 --json\n";

static const char info[] =
    "kvcsa info [MODEL] [--backend auto|cpu|cuda] [--backend-dir DIR] [--json]\n"
    "\n"
    "Size of the model, its special tokens, and the tensors that this version leaves alone; the\n"
    "processor, which instruction sets the kernels use, and why; what computes (the processor, or a\n"
    "device of a plug-in: libkvcsa_cuda.so in DIR, or beside the library), what it has kernels for,\n"
    "and why it was chosen. Without MODEL the latter only.\n"
    "\n"
    "Example:\n"
    "  kvcsa info examples/models/tiny\n";

static const char version[] = "kvcsa version\n\nVersion of the library and of the header.\n";
static const char help[] = "kvcsa help [COMMAND]\n";

const char *cli_help_text(const char *command)
{
    static const struct {
        const char *name, *text;
    } all[] = {
        {"run", run},           {"plan", cli_help_plan}, {"tokenize", tokenize},
        {"score", score},       {"info", info},          {"cost", cli_help_cost},
        {"diff", cli_help_diff}, {"needle", cli_help_needle}, {"need", cli_help_need},
        {"synth", cli_help_synth}, {"version", version}, {"help", help},
    };

    if (!command)
        return overview;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(command, all[i].name) == 0)
            return all[i].text;
    return NULL;
}
