/* kvcsa plan: the cache plan as a table, and what it costs. */
#include "plan_arg_int.h"

#include <stdlib.h>
#include <string.h>

const char cli_help_plan[] =
    "kvcsa plan (MODEL | config.json) [-n TOKENS] [--json]\n"
    "kvcsa plan A B ... --compare [-n TOKENS] [--devices T] [--users U] [--json]\n"
    "\n"
    "What every layer keeps and reads, and what a sequence of TOKENS (4096) costs. Weights are\n"
    "not needed: the config.json of a model that does not fit your disk will do, and of many\n"
    "families that this version cannot run (docs/formats.md lists them).\n"
    "\n"
    "  rate      bytes of cache that each further token costs\n"
    "  const     bytes per sequence that do not grow: windows of raw rows, states of linear\n"
    "            attention\n"
    "  resident  const, and whole blocks for TOKENS\n"
    "  read      bytes that one decode step fetches from the cache\n"
    "  persist   bytes to keep so that the sequence can be taken up again\n"
    "\n"
    "What stands behind an @ changes the plan, here and in `kvcsa cost`: KEY=VALUE,... or a JSON\n"
    "object. docs/formats.md \"Plan overrides\" has the keys.\n"
    "\n"
    "  --compare    models side by side: rate = entry x sequence x layers (bytes of an entry\n"
    "               and its index key, entries per token, layers that own entries), const,\n"
    "               the ratio of rates to the first, and the figures at TOKENS\n"
    "  --devices T  with --compare: what the fullest of T devices (4) holds when attention heads\n"
    "               are spread over them (TP), and when whole sequences are (DP)\n"
    "  --users U    for so many sequences of TOKENS (T)\n"
    "\n"
    "Examples:\n"
    "  kvcsa plan examples/models/tiny\n"
    "  kvcsa plan config.json -n 1000000 --json\n"
    "  kvcsa plan config.json config.json@entry_format=bf16 --compare -n 131072\n";

typedef struct options {
    const char **words; /* NULL behind the last one */
    size_t       n_words;
    uint64_t     n;
    uint64_t     users;
    uint32_t     devices;
    int          compare;
    int          json;
} options;

static const char *select_name(int32_t select)
{
    switch (select) {
    case KVCSA_SELECT_NONE:
        return "none";
    case KVCSA_SELECT_OWN:
        return "own";
    case KVCSA_SELECT_REINDEX:
        return "reindex";
    case KVCSA_SELECT_INHERITED:
        return "inherited";
    case KVCSA_SELECT_ALL:
        return "all";
    default:
        return "?";
    }
}

static const char *candidates_name(int32_t candidates)
{
    switch (candidates) {
    case KVCSA_CANDIDATES_NONE:
        return "none";
    case KVCSA_CANDIDATES_SOURCE:
        return "source";
    case KVCSA_CANDIDATES_CONSUMER:
        return "consumer";
    default:
        return "?";
    }
}

static const char *value_name(uint32_t kind)
{
    switch (kind) {
    case KVCSA_VALUE_ALIAS:
        return "alias";
    case KVCSA_VALUE_OWN:
        return "own";
    case KVCSA_VALUE_PREFIX:
        return "prefix";
    default:
        return "?";
    }
}

static const char *pooling_name(uint32_t kind)
{
    switch (kind) {
    case KVCSA_POOLING_NONE:
        return "none";
    case KVCSA_POOLING_GATED:
        return "gated";
    case KVCSA_POOLING_OVERLAP:
        return "overlap";
    case KVCSA_POOLING_WIDE:
        return "wide";
    default:
        return "?";
    }
}

static int read_row(const kvcsa_model *model, uint32_t layer, kvcsa_plan_row *row)
{
    kvcsa_error err;

    memset(row, 0, sizeof *row);
    row->struct_size = sizeof *row;
    if (kvcsa_model_plan_row(model, layer, row, &err) != KVCSA_OK)
        return cli_fail("plan row", &err);
    return CLI_OK;
}

/* Two neighbours share a line when only the number of the layer differs. */
static int same_line(const kvcsa_plan_row *a, const kvcsa_plan_row *b)
{
    kvcsa_plan_row x = *a;

    x.layer = b->layer;
    return memcmp(&x, b, sizeof x) == 0;
}

static const char *owner(char *buf, int32_t owner_layer, int32_t layer)
{
    if (owner_layer < 0)
        return "-";
    if (owner_layer == layer)
        return "own";
    snprintf(buf, CLI_NUM, "of %d", owner_layer);
    return buf;
}

/* ------------------------------------------------------------------ table */

enum { COL_LAYERS, COL_RATIO, COL_OWNER, COL_SELECT, COL_POOL, COL_ENTRY, COL_INDEX, COL_WINDOW,
       COL_STATE, N_COLS };

typedef char cells[N_COLS][2 * CLI_NUM];

static const char *const heads[N_COLS] = {"layers", "ratio", "entries",   "selection", "candidates",
                                          "entry",  "index key", "window", "state"};

static void selection_cell(char *buf, size_t size, const kvcsa_plan_row *r)
{
    char from[CLI_NUM];

    if (r->select == KVCSA_SELECT_ALL)
        snprintf(buf, size, "all");
    else if (r->select != KVCSA_SELECT_NONE)
        snprintf(buf, size, "%s, %u", owner(from, r->select_owner, r->layer), r->select_entries);
}

static void candidates_cell(char *buf, size_t size, const kvcsa_plan_row *r)
{
    if (r->candidates != KVCSA_CANDIDATES_NONE)
        snprintf(buf, size, "%s %ux%u", r->candidates == KVCSA_CANDIDATES_SOURCE ? "makes" : "in",
                 r->candidate_blocks, r->candidate_block_entries);
}

/* Channels of a key, of a key and a value that stands beside it, or of so many heads of both. */
static void entry_cell(char *buf, size_t size, const kvcsa_plan_row *r)
{
    char channels[CLI_NUM];

    if (!r->entry_bytes)
        return;
    if (r->value_kind == KVCSA_VALUE_OWN)
        snprintf(channels, sizeof channels, "%u+%u", r->entry_width, r->value_width);
    else
        snprintf(channels, sizeof channels, "%u", r->entry_width);
    if (r->kv_heads > 1)
        snprintf(buf, size, "%u x %s ch %u B", r->kv_heads, channels, r->entry_bytes);
    else
        snprintf(buf, size, "%s ch %u B", channels, r->entry_bytes);
}

static void fill_cells(cells c, const kvcsa_plan_row *r, int32_t first)
{
    const size_t size = sizeof c[0];
    char         from[CLI_NUM];

    for (size_t k = 0; k < N_COLS; k++)
        snprintf(c[k], size, "-");
    if (first == r->layer)
        snprintf(c[COL_LAYERS], size, "%d", r->layer);
    else
        snprintf(c[COL_LAYERS], size, "%d-%d", first, r->layer);
    if (r->ratio)
        snprintf(c[COL_RATIO], size, "%u", r->ratio);
    snprintf(c[COL_OWNER], size, "%s", owner(from, r->kv_owner, r->layer));
    selection_cell(c[COL_SELECT], size, r);
    candidates_cell(c[COL_POOL], size, r);
    entry_cell(c[COL_ENTRY], size, r);
    if (r->index_bytes)
        snprintf(c[COL_INDEX], size, "%u ch %u B", r->index_width, r->index_bytes);
    if (r->window_tokens)
        snprintf(c[COL_WINDOW], size, "%u x %u B", r->window_tokens, r->window_bytes);
    if (r->state_bytes)
        snprintf(c[COL_STATE], size, "%llu B", (unsigned long long)r->state_bytes);
}

/* Columns widen to what stands in them; the last one is there only if a layer has a state. */
typedef struct table {
    int width[N_COLS];
    int has_state;
    int measuring;
} table;

static void take_line(table *t, cells c)
{
    const size_t n = t->has_state ? N_COLS : N_COLS - 1;

    for (size_t k = 0; k < N_COLS && t->measuring; k++)
        if ((int)strlen(c[k]) > t->width[k])
            t->width[k] = (int)strlen(c[k]);
    for (size_t k = 0; k < n && !t->measuring; k++)
        printf("%-*s%s", k + 1 < n ? t->width[k] + 1 : 0, c[k], k + 1 < n ? "" : "\n");
}

/* All lines, measured or printed. */
static int walk(const kvcsa_model *model, const kvcsa_model_info *info, table *t)
{
    kvcsa_plan_row row;
    kvcsa_plan_row next;
    cells          c;
    int32_t        first = 0;

    if (info->n_layers == 0 || read_row(model, 0, &row) != CLI_OK)
        return CLI_FAILED;
    for (uint32_t l = 1; l < info->n_layers; l++) {
        if (read_row(model, l, &next) != CLI_OK)
            return CLI_FAILED;
        t->has_state |= row.state_bytes != 0;
        if (!same_line(&row, &next)) {
            fill_cells(c, &row, first);
            take_line(t, c);
            first = next.layer;
        }
        row = next;
    }
    t->has_state |= row.state_bytes != 0;
    fill_cells(c, &row, first);
    take_line(t, c);
    return CLI_OK;
}

static int print_table(const kvcsa_model *model, const kvcsa_model_info *info)
{
    table t = {{8, 5, 8, 11, 15, 14, 13, 12, 0}, 0, 1};
    cells c;

    for (size_t k = 0; k < N_COLS; k++)
        snprintf(c[k], sizeof c[k], "%s", heads[k]);
    if (walk(model, info, &t) != CLI_OK)
        return CLI_FAILED;
    t.measuring = 0;
    take_line(&t, c);
    if (walk(model, info, &t) != CLI_OK)
        return CLI_FAILED;
    printf("\nratio: tokens per entry. entries, selection: made here (own) or read from a layer.\n"
           "entry, index key: one cached row, where the layer makes any.\n");
    return CLI_OK;
}

/* ------------------------------------------------------------------ JSON */

static json_t *row_json(const kvcsa_plan_row *r)
{
    json_t *j = json_object();
    const struct {
        const char *key;
        uint32_t    v;
    } numbers[] = {
        {"ratio", r->ratio},
        {"entry_width", r->entry_width},
        {"entry_bytes", r->entry_bytes},
        {"index_heads", r->index_heads},
        {"index_width", r->index_width},
        {"index_bytes", r->index_bytes},
        {"select_entries", r->select_entries},
        {"candidate_blocks", r->candidate_blocks},
        {"candidate_block_entries", r->candidate_block_entries},
        {"window_tokens", r->window_tokens},
        {"window_bytes", r->window_bytes},
        {"pending_bytes", r->pending_bytes},
        {"kv_heads", r->kv_heads},
        {"value_width", r->value_width},
        {"state_heads", r->state_heads},
    };

    json_object_set_new(j, "layer", json_integer(r->layer));
    json_object_set_new(j, "kv_owner", json_integer(r->kv_owner));
    json_object_set_new(j, "select_owner", json_integer(r->select_owner));
    json_object_set_new(j, "select", json_string(select_name(r->select)));
    json_object_set_new(j, "candidates", json_string(candidates_name(r->candidates)));
    json_object_set_new(j, "entry_format", json_string(cli_format_name(r->entry_format)));
    json_object_set_new(j, "index_format", json_string(cli_format_name(r->index_format)));
    json_object_set_new(j, "window_format", json_string(cli_format_name(r->window_format)));
    json_object_set_new(j, "index_owner", json_integer(r->index_owner));
    json_object_set_new(j, "value", json_string(value_name(r->value_kind)));
    json_object_set_new(j, "value_format", json_string(cli_format_name(r->value_format)));
    json_object_set_new(j, "pooling", json_string(pooling_name(r->pool_kind)));
    json_object_set_new(j, "state_bytes", json_integer((json_int_t)r->state_bytes));
    json_object_set_new(j, "cost_only", json_boolean(r->cost_only));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(j, numbers[i].key, json_integer(numbers[i].v));
    return j;
}

static int print_json(const kvcsa_model *model, const kvcsa_model_info *info,
                      const kvcsa_cost *cost)
{
    json_t        *root = json_object();
    json_t        *layers = json_array();
    kvcsa_plan_row row;

    cli_json_cost(root, cost);
    json_object_set_new(root, "max_context_tokens",
                        json_integer((json_int_t)info->max_context_tokens));
    json_object_set_new(
        root, "architecture",
        cli_json_text(info->architecture, strlen(info->architecture)));
    json_object_set_new(root, "cost_only", json_boolean(info->cost_only));
    json_object_set_new(root, "layers", layers);
    for (uint32_t l = 0; l < info->n_layers; l++) {
        if (read_row(model, l, &row) != CLI_OK) {
            json_decref(root);
            return CLI_FAILED;
        }
        json_array_append_new(layers, row_json(&row));
    }
    return cli_json_print(root);
}

/* ------------------------------------------------------------------ all of it */

static int print_text(const cli_plan *plan, const kvcsa_cost *cost)
{
    char a[CLI_NUM];

    printf("%s, context limit %s tokens%s\n\n", plan->info.architecture,
           cli_num(a, plan->info.max_context_tokens),
           plan->info.cost_only ? "; cost only, this version does not run it" : "");
    if (print_table(plan->model, &plan->info) != CLI_OK)
        return CLI_FAILED;
    putchar('\n');
    cli_print_cost(stdout, cost);
    printf("\nrate = %.10g B of an entry x %.10g entries per token x %u layers that own any\n",
           cost->entry_bytes, cost->sequence_factor, cost->n_kv_layers);
    return cli_finish_stdout();
}

static int show_plan(const options *o)
{
    cli_plan    plan;
    kvcsa_cost  cost = {.struct_size = sizeof cost};
    uint64_t    n = o->n;
    kvcsa_error err;
    int         rc = cli_plan_open("plan", o->words[0], &plan);

    if (rc != CLI_OK)
        return rc;
    if (n == UINT64_MAX)
        n = plan.info.max_context_tokens < 4096 ? plan.info.max_context_tokens : 4096;
    if (kvcsa_model_cost(plan.model, n, &cost, &err) != KVCSA_OK)
        rc = cli_fail("cost", &err);
    else if (o->json)
        rc = print_json(plan.model, &plan.info, &cost);
    else
        rc = print_text(&plan, &cost);
    kvcsa_model_release(&plan.model);
    return rc;
}

static int check_and_run(options *o)
{
    const cli_compare c = {
        o->words, o->n_words, o->n, o->users, o->devices ? o->devices : 4, o->json};

    if (o->n_words == 0)
        return cli_usage("plan", "which model? Name its directory");
    if (o->compare)
        return cli_compare_plans(&c);
    if (o->n_words > 1)
        return cli_usage("plan", "\"%s\" is one word too many without --compare", o->words[1]);
    if (o->devices || o->users)
        return cli_usage("plan", "%s belongs to --compare", o->devices ? "--devices" : "--users");
    return show_plan(o);
}

int cmd_plan(int argc, char **argv)
{
    options       o = {.words = calloc((size_t)argc + 1, sizeof *o.words), .n = UINT64_MAX};
    const cli_opt opts[] = {{"", CLI_TEXT, o.words},
                            {"-n", CLI_U64, &o.n},
                            {"--tokens", CLI_U64, &o.n},
                            {"--compare", CLI_FLAG, &o.compare},
                            {"--devices", CLI_U32, &o.devices},
                            {"--users", CLI_U64, &o.users},
                            {"--json", CLI_FLAG, &o.json}};
    int           rc;

    if (!o.words)
        return cli_no_memory();
    rc = cli_parse("plan", opts, sizeof opts / sizeof *opts, argc, argv, NULL, 0);
    while (o.words[o.n_words])
        o.n_words++;
    if (rc == CLI_OK)
        rc = check_and_run(&o);
    free(o.words);
    return rc;
}
