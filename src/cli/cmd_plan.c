/* kvcsa plan: the cache plan as a table, and what it costs. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *model;
    uint64_t    n;
    int         json;
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

static const char *pool_cell(char *buf, const kvcsa_plan_row *r)
{
    if (r->candidates == KVCSA_CANDIDATES_NONE)
        return "-";
    snprintf(buf, CLI_NUM, "%s %ux%u", r->candidates == KVCSA_CANDIDATES_SOURCE ? "makes" : "in",
             r->candidate_blocks, r->candidate_block_entries);
    return buf;
}

static void print_line(const kvcsa_plan_row *r, int32_t first)
{
    char layers[CLI_NUM];
    char a[CLI_NUM];
    char b[CLI_NUM];
    char c[CLI_NUM];
    char ratio[CLI_NUM] = "-";
    char sel[2 * CLI_NUM] = "-";
    char entry[CLI_NUM] = "-";
    char index[CLI_NUM] = "-";
    char window[CLI_NUM] = "-";

    if (first == r->layer)
        snprintf(layers, sizeof layers, "%d", r->layer);
    else
        snprintf(layers, sizeof layers, "%d-%d", first, r->layer);
    if (r->ratio)
        snprintf(ratio, sizeof ratio, "%u", r->ratio);
    if (r->select != KVCSA_SELECT_NONE)
        snprintf(sel, sizeof sel, "%s, %u", owner(b, r->select_owner, r->layer), r->select_entries);
    if (r->entry_bytes)
        snprintf(entry, sizeof entry, "%u ch %u B", r->entry_width, r->entry_bytes);
    if (r->index_bytes)
        snprintf(index, sizeof index, "%u ch %u B", r->index_width, r->index_bytes);
    if (r->window_tokens)
        snprintf(window, sizeof window, "%u x %u B", r->window_tokens, r->window_bytes);
    printf("%-8s %-5s %-8s %-11s %-15s %-14s %-13s %s\n", layers, ratio,
           owner(a, r->kv_owner, r->layer), sel, pool_cell(c, r), entry, index, window);
}

static int print_table(const kvcsa_model *model, const kvcsa_model_info *info)
{
    kvcsa_plan_row row;
    kvcsa_plan_row next;
    int32_t        first = 0;

    printf("%-8s %-5s %-8s %-11s %-15s %-14s %-13s %s\n", "layers", "ratio", "entries", "selection",
           "candidates", "entry", "index key", "window");
    if (info->n_layers == 0 || read_row(model, 0, &row) != CLI_OK)
        return CLI_FAILED;
    for (uint32_t l = 1; l < info->n_layers; l++) {
        if (read_row(model, l, &next) != CLI_OK)
            return CLI_FAILED;
        if (!same_line(&row, &next)) {
            print_line(&row, first);
            first = next.layer;
        }
        row = next;
    }
    print_line(&row, first);
    printf("\nratio: tokens per entry. entries, selection: made here (own) or read from a layer.\n"
           "entry, index key: one cached row, where the layer makes any.\n");
    return CLI_OK;
}

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
    };

    json_object_set_new(j, "layer", json_integer(r->layer));
    json_object_set_new(j, "kv_owner", json_integer(r->kv_owner));
    json_object_set_new(j, "select_owner", json_integer(r->select_owner));
    json_object_set_new(j, "select", json_string(select_name(r->select)));
    json_object_set_new(j, "candidates", json_string(candidates_name(r->candidates)));
    json_object_set_new(j, "entry_format", json_string(cli_format_name(r->entry_format)));
    json_object_set_new(j, "index_format", json_string(cli_format_name(r->index_format)));
    json_object_set_new(j, "window_format", json_string(cli_format_name(r->window_format)));
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

int cmd_plan(int argc, char **argv)
{
    options       o = {0};
    const cli_opt opts[] = {
        {"-n", CLI_U64, &o.n}, {"--tokens", CLI_U64, &o.n}, {"--json", CLI_FLAG, &o.json}};
    kvcsa_model     *model = NULL;
    kvcsa_model_info info;
    kvcsa_cost       cost = {.struct_size = sizeof cost};
    kvcsa_error      err;
    char             a[CLI_NUM];
    int              rc;

    o.n = UINT64_MAX; /* not given */
    rc = cli_parse("plan", opts, sizeof opts / sizeof *opts, argc, argv, &o.model, 1);
    if (rc != CLI_OK || (rc = cli_open(o.model, KVCSA_MODEL_PLAN_ONLY, &model, &info)) != CLI_OK)
        return rc;
    if (o.n == UINT64_MAX)
        o.n = info.max_context_tokens < 4096 ? info.max_context_tokens : 4096;
    if (kvcsa_model_cost(model, o.n, &cost, &err) != KVCSA_OK) {
        rc = cli_fail("cost", &err);
    } else if (o.json) {
        rc = print_json(model, &info, &cost);
    } else {
        printf("%s, context limit %s tokens\n\n", info.architecture,
               cli_num(a, info.max_context_tokens));
        if ((rc = print_table(model, &info)) == CLI_OK) {
            putchar('\n');
            cli_print_cost(stdout, &cost);
            rc = cli_finish_stdout();
        }
    }
    kvcsa_model_release(&model);
    return rc;
}
