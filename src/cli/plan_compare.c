/* kvcsa plan A B ... --compare: what plans cost, side by side. */
#include "plan_arg_int.h"

#include <stdlib.h>
#include <string.h>

#define FAMILY 18

typedef struct subject { /* one model of the comparison */
    cli_plan           plan;
    char               label[CLI_LABEL];
    char               family[FAMILY];
    int                too_long; /* n_tokens is above its limit: nothing is known there */
    kvcsa_cost         cost;     /* at n_tokens; at 0 if that is too long */
    kvcsa_serving_cost tp;       /* of one device */
    kvcsa_serving_cost dp;
} subject;

/* "DeepseekV41ForCausalLM" -> "DeepseekV41" */
static void name_family(char *buf, const char *architecture)
{
    const char  *end = strstr(architecture, "For");
    const size_t n = end ? (size_t)(end - architecture) : strlen(architecture);

    snprintf(buf, FAMILY, "%.*s", (int)(n < FAMILY ? n : FAMILY - 1), architecture);
}

static int serving_cost(const subject *s, const cli_compare *c, uint32_t attention,
                        kvcsa_serving_cost *out)
{
    kvcsa_serving_params p;
    kvcsa_error          err;

    kvcsa_serving_params_default(&p, sizeof p);
    p.n_tokens = c->n_tokens;
    p.n_users = c->n_users;
    p.n_devices = c->n_devices;
    p.attention = attention;
    out->struct_size = sizeof *out;
    if (kvcsa_model_serving_cost(s->plan.model, &p, out, &err) != KVCSA_OK)
        return cli_fail(s->plan.word, &err);
    return CLI_OK;
}

static int measure_subject(subject *s, const cli_compare *c)
{
    kvcsa_error err;

    cli_plan_label(s->label, s->plan.word);
    name_family(s->family, s->plan.info.architecture);
    s->too_long = c->n_tokens > s->plan.info.max_context_tokens;
    s->cost.struct_size = sizeof s->cost;
    if (kvcsa_model_cost(s->plan.model, s->too_long ? 0 : c->n_tokens, &s->cost, &err) != KVCSA_OK)
        return cli_fail(s->plan.word, &err);
    if (s->too_long)
        return CLI_OK;
    if (serving_cost(s, c, KVCSA_ATTENTION_TP, &s->tp) != CLI_OK)
        return CLI_FAILED;
    return serving_cost(s, c, KVCSA_ATTENTION_DP, &s->dp);
}

static double index_share(const kvcsa_cost *c)
{
    return c->read_bytes ? (double)c->index_read_bytes / (double)c->read_bytes : 0;
}

/* ------------------------------------------------------------------ text */

static void print_factors(const subject *s, size_t n, int width)
{
    char a[CLI_NUM];
    char b[CLI_NUM];
    char ratio[CLI_NUM];

    printf("%-*s %-*s %6s  %8s x %9s x %6s = %11s %13s %8s\n", width, "model", FAMILY - 1, "family",
           "layers", "entry B", "per token", "owners", "rate B", "const B", "ratio");
    for (size_t i = 0; i < n; i++) {
        const kvcsa_cost *c = &s[i].cost;

        snprintf(ratio, sizeof ratio, s[0].cost.rate > 0 ? "%.4g" : "-",
                 c->rate / (s[0].cost.rate > 0 ? s[0].cost.rate : 1));
        printf("%-*s %-*s %5u%s  %8.6g x %9.6g x %6u = %11s %13s %8s\n", width, s[i].label,
               FAMILY - 1, s[i].family, s[i].plan.info.n_layers,
               s[i].plan.info.cost_only ? "*" : " ", c->entry_bytes, c->sequence_factor,
               c->n_kv_layers, cli_real(a, c->rate), cli_num(b, c->const_bytes), ratio);
    }
}

static void print_lengths(const subject *s, size_t n, int width, const cli_compare *c)
{
    char b[5][CLI_NUM];

    printf("\n%-*s %10s %10s %7s %10s %12s %12s\n", width, "", "resident", "read", "index",
           "persist", "device, TP", "device, DP");
    for (size_t i = 0; i < n; i++) {
        const kvcsa_cost *k = &s[i].cost;

        if (s[i].too_long) {
            printf("%-*s (its limit is %s tokens; @max_tokens=%llu lifts it)\n", width, s[i].label,
                   cli_num(b[0], s[i].plan.info.max_context_tokens),
                   (unsigned long long)c->n_tokens);
            continue;
        }
        printf("%-*s %10s %10s %6.1f%% %10s %12s %12s\n", width, s[i].label,
               cli_bytes(b[0], k->resident_bytes), cli_bytes(b[1], k->read_bytes),
               100 * index_share(k), cli_bytes(b[2], k->persist_bytes),
               cli_bytes(b[3], s[i].tp.device_resident_bytes),
               cli_bytes(b[4], s[i].dp.device_resident_bytes));
    }
    printf("\nrate, const: bytes of a sequence that each token adds, and that do not grow.\n"
           "rate = bytes of an entry and its index key x entries per token x layers that own any;\n"
           "ratio: of rates, to the first. resident, read by one step (index: part of it that is\n"
           "index keys), persist: one sequence of %s tokens.\n",
           cli_num(b[0], c->n_tokens));
    printf("device: what the fullest of %u devices holds for %s such sequences, with heads (TP)\n"
           "or whole sequences (DP) spread over them.\n",
           c->n_devices, cli_num(b[0], c->n_users));
}

static int print_text(const subject *s, size_t n, const cli_compare *c)
{
    int width = 5;
    int any = 0;

    for (size_t i = 0; i < n; i++) {
        width = (int)strlen(s[i].label) > width ? (int)strlen(s[i].label) : width;
        any |= s[i].plan.info.cost_only != 0;
    }
    print_factors(s, n, width);
    print_lengths(s, n, width, c);
    if (any)
        printf("*: cost only, this version does not run the model.\n");
    return cli_finish_stdout();
}

/* ------------------------------------------------------------------ JSON */

static void set_uint(json_t *to, const char *key, uint64_t v)
{
    json_object_set_new(to, key, json_integer((json_int_t)v));
}

static json_t *subject_json(const subject *s, double first_rate)
{
    json_t *j = json_object();

    json_object_set_new(j, "model", cli_json_text(s->plan.word, strlen(s->plan.word)));
    json_object_set_new(
        j, "architecture",
        cli_json_text(s->plan.info.architecture, strlen(s->plan.info.architecture)));
    json_object_set_new(j, "cost_only", json_boolean(s->plan.info.cost_only));
    set_uint(j, "n_layers", s->plan.info.n_layers);
    set_uint(j, "max_context_tokens", s->plan.info.max_context_tokens);
    cli_json_cost(j, &s->cost);
    json_object_set_new(j, "ratio",
                        first_rate > 0 ? cli_json_rate(s->cost.rate / first_rate) : json_null());
    json_object_set_new(j, "too_long", json_boolean(s->too_long));
    json_object_set_new(j, "index_share", json_real(index_share(&s->cost)));
    set_uint(j, "device_resident_tp", s->tp.device_resident_bytes);
    set_uint(j, "device_resident_dp", s->dp.device_resident_bytes);
    json_object_set_new(j, "device_rate_tp", cli_json_rate(s->tp.device_rate));
    json_object_set_new(j, "device_rate_dp", cli_json_rate(s->dp.device_rate));
    return j;
}

static int print_json(const subject *s, size_t n, const cli_compare *c)
{
    json_t *root = json_object();
    json_t *models = json_array();

    set_uint(root, "n_tokens", c->n_tokens);
    set_uint(root, "n_devices", c->n_devices);
    set_uint(root, "n_users", c->n_users);
    json_object_set_new(root, "models", models);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(models, subject_json(&s[i], s[0].cost.rate));
    return cli_json_print(root);
}

/* ------------------------------------------------------------------ all of it */

static int open_subjects(subject *s, cli_compare *c)
{
    int rc;

    for (size_t i = 0; i < c->n_words; i++)
        if ((rc = cli_plan_open("plan", c->words[i], &s[i].plan)) != CLI_OK)
            return rc;
    if (c->n_tokens == UINT64_MAX) {
        c->n_tokens = 4096;
        for (size_t i = 0; i < c->n_words; i++)
            if (s[i].plan.info.max_context_tokens < c->n_tokens)
                c->n_tokens = s[i].plan.info.max_context_tokens;
    }
    if (!c->n_users)
        c->n_users = c->n_devices;
    for (size_t i = 0; i < c->n_words; i++)
        if ((rc = measure_subject(&s[i], c)) != CLI_OK)
            return rc;
    return CLI_OK;
}

int cli_compare_plans(const cli_compare *compare)
{
    cli_compare c = *compare;
    subject    *s = calloc(c.n_words, sizeof *s);
    int         rc;

    if (!s)
        return cli_no_memory();
    if ((rc = open_subjects(s, &c)) == CLI_OK)
        rc = c.json ? print_json(s, c.n_words, &c) : print_text(s, c.n_words, &c);
    for (size_t i = 0; i < c.n_words; i++)
        kvcsa_model_release(&s[i].plan.model);
    free(s);
    return rc;
}
