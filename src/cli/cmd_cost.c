/* kvcsa cost: what devices hold, read and write for many users, whether loading beats computing,
 * and agents in money. */
#include "plan_arg_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char cli_help_cost[] =
    "kvcsa cost (MODEL | config.json) [-n TOKENS] [serving options] [--resume ...] [--agent ...]\n"
    "kvcsa cost --agent --calls N --hit-price P --miss-price P --output-price P [...]\n"
    "\n"
    "Arithmetic on the cache plan; weights are not needed, and of many families config.json is\n"
    "enough. MODEL@KEY=VALUE,... changes the plan (kvcsa help plan).\n"
    "\n"
    "Serving: what devices hold and read for a number of equal sequences\n"
    "  -n TOKENS           context of each (4096)\n"
    "  --users U           sequences (1)\n"
    "  --shared S          their first S tokens are the same; whole blocks are kept once\n"
    "  --devices T         devices (1)\n"
    "  --attention tp|dp   heads of every sequence (tp, the default) or whole sequences (dp) are\n"
    "                      spread over them\n"
    "  --device-bytes B    free for caches on a device, as 80G: how many users fit\n"
    "  --tps R             tokens per second of each user: bytes per second\n"
    "  --dense-bytes B     weights that every step reads, beside the experts that it routes to\n"
    "\n"
    "--resume: load a sequence of TOKENS from another tier, or compute it again\n"
    "  --tier-speed B      bytes per second of the tier, as 5e9\n"
    "  --tier-bytes B      its capacity, as 2e12: how many sequences it holds\n"
    "  --flops-per-token F of a prefill: 2 x active parameters, as 16e9\n"
    "  --flops F           that a prefill reaches in a second, as 400e12\n"
    "  --replay N          tokens that are run again after a load, to rebuild windows (0)\n"
    "\n"
    "--agent: call after call on a growing context, in money. Needs no model\n"
    "  --calls N           calls\n"
    "  --context N         tokens in front of the first call (0)\n"
    "  --tool N            tokens that each result appends (0)\n"
    "  --generated N       tokens that each call writes (0)\n"
    "  --forget-generated  they are not in the context of later calls\n"
    "  --hit-price P --miss-price P --output-price P\n"
    "                      of a million tokens, in your currency\n"
    "\n"
    "  --json              one JSON object, with exact bytes\n"
    "\n"
    "Examples:\n"
    "  kvcsa cost config.json -n 1000000 --users 30 --tps 50\n"
    "  kvcsa cost config.json -n 100000 --users 64 --shared 20000 --devices 4 --attention dp\n"
    "  kvcsa cost config.json -n 50000 --resume --tier-speed 5e9 --flops-per-token 16e9 \\\n"
    "      --flops 400e12 --replay 128\n"
    "  kvcsa cost --agent --calls 50 --context 50000 --tool 1000 --generated 200 \\\n"
    "      --hit-price 0.003 --miss-price 0.15 --output-price 0.60\n";

enum { /* options that are decimal numbers */
    REAL_TPS,
    REAL_TIER_SPEED,
    REAL_TIER_BYTES,
    REAL_FLOPS_PER_TOKEN,
    REAL_FLOPS,
    REAL_HIT,
    REAL_MISS,
    REAL_OUTPUT,
    N_REALS
};

enum { MODE_ALWAYS, MODE_RESUME, MODE_AGENT, N_MODES }; /* what an option belongs to */

static const char *const modes[N_MODES] = {"", "--resume", "--agent"};

static const struct {
    const char *name;
    int         mode;
    int         needed;
} reals[N_REALS] = {
    {"--tps", MODE_ALWAYS, 0},
    {"--tier-speed", MODE_RESUME, 1},
    {"--tier-bytes", MODE_RESUME, 0},
    {"--flops-per-token", MODE_RESUME, 1},
    {"--flops", MODE_RESUME, 1},
    {"--hit-price", MODE_AGENT, 1},
    {"--miss-price", MODE_AGENT, 1},
    {"--output-price", MODE_AGENT, 1},
};

typedef struct options {
    const char         **words; /* NULL behind the last one */
    kvcsa_serving_params serving;
    kvcsa_resume_params  resume;
    kvcsa_agent_params   agent;
    const char          *attention;
    const char          *texts[N_REALS];
    double               values[N_REALS];
    int                  is_resume;
    int                  is_agent;
    int                  forget;
    int                  json;
} options;

/* ------------------------------------------------------------------ options */

static int read_reals(options *o)
{
    const int is_on[N_MODES] = {1, o->is_resume, o->is_agent};

    for (size_t i = 0; i < N_REALS; i++) {
        const char *text = o->texts[i];
        const int   mode = reals[i].mode;
        char       *end = NULL;

        if (!text && is_on[mode] && reals[i].needed)
            return cli_usage("cost", "%s wants %s", modes[mode], reals[i].name);
        if (!text)
            continue;
        if (!is_on[mode])
            return cli_usage("cost", "%s belongs to %s", reals[i].name, modes[mode]);
        o->values[i] = strtod(text, &end);
        if (end == text || *end || !isfinite(o->values[i]) || o->values[i] < 0)
            return cli_usage("cost", "%s is \"%s\", must be a number >= 0", reals[i].name, text);
    }
    o->serving.tokens_per_second = o->values[REAL_TPS];
    o->resume.tier_bytes_per_second = o->values[REAL_TIER_SPEED];
    o->resume.tier_bytes = o->values[REAL_TIER_BYTES];
    o->resume.flops_per_token = o->values[REAL_FLOPS_PER_TOKEN];
    o->resume.flops_per_second = o->values[REAL_FLOPS];
    o->agent.hit_price = o->values[REAL_HIT];
    o->agent.miss_price = o->values[REAL_MISS];
    o->agent.output_price = o->values[REAL_OUTPUT];
    return CLI_OK;
}

static int check_options(options *o)
{
    const int has_agent = o->agent.n_calls || o->agent.context_tokens || o->agent.tool_tokens ||
                          o->agent.generated_tokens || o->forget;

    if (o->words[0] && o->words[1])
        return cli_usage("cost", "\"%s\" is one word too many", o->words[1]);
    if (!o->words[0] && (!o->is_agent || o->is_resume))
        return cli_usage("cost", "which model? Name its directory or its config.json");
    if (has_agent && !o->is_agent)
        return cli_usage("cost", "--calls, --context, --tool, --generated and --forget-generated "
                                 "belong to --agent");
    if (o->resume.n_replay_tokens && !o->is_resume)
        return cli_usage("cost", "--replay belongs to --resume");
    if (o->is_agent && !o->agent.n_calls)
        return cli_usage("cost", "--agent wants --calls");
    if (o->attention && strcmp(o->attention, "dp") == 0)
        o->serving.attention = KVCSA_ATTENTION_DP;
    else if (o->attention && strcmp(o->attention, "tp") != 0)
        return cli_usage("cost", "--attention is \"%s\", must be tp or dp", o->attention);
    o->agent.reread_generated = !o->forget;
    return read_reals(o);
}

/* ------------------------------------------------------------------ text */

/* As cli_bytes; what no 64 bits hold, and infinity, in plain digits. */
static const char *show_bytes(char *buf, double v)
{
    if (v < 1e18)
        return cli_bytes(buf, (uint64_t)(v + 0.5));
    snprintf(buf, CLI_NUM, "%.3g B", v);
    return buf;
}

static const char *show_time(char *buf, double s)
{
    static const struct {
        double      from, unit;
        const char *name;
    } units[] = {{1, 1, "s"}, {1e-3, 1e-3, "ms"}, {1e-6, 1e-6, "us"}, {0, 1e-9, "ns"}};
    size_t u = 0;

    while (s < units[u].from)
        u++;
    snprintf(buf, CLI_NUM, "%.3g %s", s / units[u].unit, units[u].name);
    return buf;
}

static void line(const char *what, const char *value, const char *meaning)
{
    printf("  %-13s %12s   %s\n", what, value, meaning);
}

static void print_serving(const kvcsa_serving_params *p, const kvcsa_serving_cost *c)
{
    char a[CLI_NUM];
    char n[CLI_NUM];
    char text[3 * CLI_NUM];

    printf("%s sequence%s of %s tokens", cli_num(a, p->n_users), p->n_users == 1 ? "" : "s",
           cli_num(n, p->n_tokens));
    if (p->n_shared_tokens)
        printf(", the first %s the same", cli_num(n, p->n_shared_tokens));
    printf(", %u device%s%s\n", p->n_devices, p->n_devices == 1 ? "" : "s",
           p->n_devices == 1                          ? ""
           : p->attention == KVCSA_ATTENTION_DP       ? ", sequences spread (DP)"
                                                      : ", heads spread (TP)");
    line("resident", show_bytes(a, (double)c->resident_bytes), "caches of all");
    line("read", show_bytes(a, (double)c->read_bytes), "from caches, by one step of all");
    line("written", show_bytes(a, c->written_bytes), "to caches, by one step of all");
    line("parked", show_bytes(a, (double)c->parked_bytes), "to keep elsewhere so that all resume");
    if (p->n_devices > 1) {
        line("on a device", show_bytes(a, (double)c->device_resident_bytes),
             "resident on the fullest");
        line("", show_bytes(a, (double)c->device_read_bytes), "read by one step on the busiest");
    }
    snprintf(text, sizeof text, "%s B", cli_real(a, c->device_rate));
    line("per token", text, "that one more token of a sequence takes on a device that holds it");
    if (p->device_bytes) {
        snprintf(text, sizeof text, "fit into %s on every device",
                 cli_bytes(n, p->device_bytes));
        line("sequences", cli_num(a, c->max_users), text);
    }
    if (p->tokens_per_second > 0) {
        char rate[2 * CLI_NUM];

        snprintf(rate, sizeof rate, "%s/s", show_bytes(a, c->read_bytes_per_second));
        snprintf(text, sizeof text, "from caches, at %.6g tokens/s of each", p->tokens_per_second);
        line("bandwidth", rate, text);
    }
    if (c->distinct_experts > 0) {
        snprintf(a, sizeof a, "%.1f", c->distinct_experts);
        line("experts", a, "distinct ones of a layer that one step reads, if routing is uniform");
    }
    if (c->weight_bytes > 0)
        line("weights", show_bytes(a, c->weight_bytes),
             p->dense_bytes ? "read by one step, experts included" : "of experts, by one step");
}

static void print_resume(const kvcsa_resume_params *p, const kvcsa_resume_cost *c)
{
    char a[CLI_NUM];
    char b[CLI_NUM];
    char text[4 * CLI_NUM];

    printf("Resume %s tokens\n", cli_num(a, p->n_tokens));
    snprintf(text, sizeof text, "%s at %s/s", cli_bytes(a, c->n_bytes),
             show_bytes(b, p->tier_bytes_per_second));
    line("load", show_time(b, c->load_seconds), text);
    if (c->replay_seconds > 0) {
        snprintf(text, sizeof text, "run %u tokens again for the windows", p->n_replay_tokens);
        line("replay", show_time(b, c->replay_seconds), text);
    }
    snprintf(text, sizeof text, "at %.4g TFLOP/s", p->flops_per_second / 1e12);
    line("recompute", show_time(b, c->recompute_seconds), text);
    snprintf(text, sizeof text, "%.4g x", c->ratio);
    line("ratio", text, "recompute / (load + replay)");
    if (isfinite(c->break_even_bytes_per_second))
        snprintf(text, sizeof text, "%s/s", show_bytes(a, c->break_even_bytes_per_second));
    else
        snprintf(text, sizeof text, "never");
    line("break even", text, "speed of a tier from which loading only just pays");
    if (p->tier_bytes > 0) {
        snprintf(text, sizeof text, "%.10g", c->n_parked);
        line("parked", text, "such sequences in the tier");
    }
}

static void print_money(const char *what, uint64_t n, double cost, double total)
{
    char a[CLI_NUM];

    printf("  %-13s %16s   %10.4g  %5.1f %%\n", what, cli_num(a, n), cost,
           total > 0 ? 100 * cost / total : 0);
}

static void print_agent(const kvcsa_agent_params *p, const kvcsa_agent_cost *c)
{
    char a[CLI_NUM];

    printf("An agent's session of %s calls\n", cli_num(a, p->n_calls));
    printf("  %-13s %16s   %10s\n", "", "tokens", "cost");
    print_money("hits", c->n_hit_tokens, c->hit_cost, c->cost);
    print_money("misses", c->n_miss_tokens, c->miss_cost, c->cost);
    print_money("output", c->n_output_tokens, c->output_cost, c->cost);
    printf("  %-13s %16s   %10.4g\n", "all", "", c->cost);
    printf("  %-13s %16s   %10.4g", "without cache", "", c->uncached_cost);
    if (c->cost > 0)
        printf("  %.1f x", c->uncached_cost / c->cost);
    putchar('\n');
}

/* ------------------------------------------------------------------ JSON */

static void set_uint(json_t *to, const char *key, uint64_t v)
{
    json_object_set_new(to, key, json_integer((json_int_t)v));
}

/* null where JSON has no number */
static void set_real(json_t *to, const char *key, double v)
{
    json_object_set_new(to, key, isfinite(v) ? cli_json_rate(v) : json_null());
}

static json_t *serving_json(const kvcsa_serving_params *p, const kvcsa_serving_cost *c)
{
    json_t *j = json_object();

    set_uint(j, "n_tokens", p->n_tokens);
    set_uint(j, "n_users", p->n_users);
    set_uint(j, "n_shared_tokens", p->n_shared_tokens);
    set_uint(j, "n_devices", p->n_devices);
    json_object_set_new(j, "attention",
                        json_string(p->attention == KVCSA_ATTENTION_DP ? "dp" : "tp"));
    set_uint(j, "resident", c->resident_bytes);
    set_uint(j, "device_resident", c->device_resident_bytes);
    set_uint(j, "read", c->read_bytes);
    set_uint(j, "device_read", c->device_read_bytes);
    set_uint(j, "parked", c->parked_bytes);
    if (p->device_bytes)
        set_uint(j, "max_users", c->max_users);
    set_real(j, "written", c->written_bytes);
    set_real(j, "distinct_experts", c->distinct_experts);
    set_real(j, "weight_bytes", c->weight_bytes);
    set_real(j, "read_per_second", c->read_bytes_per_second);
    set_real(j, "device_rate", c->device_rate);
    return j;
}

static json_t *resume_json(const kvcsa_resume_params *p, const kvcsa_resume_cost *c)
{
    json_t *j = json_object();

    set_uint(j, "n_tokens", p->n_tokens);
    set_uint(j, "n_bytes", c->n_bytes);
    set_real(j, "load_seconds", c->load_seconds);
    set_real(j, "replay_seconds", c->replay_seconds);
    set_real(j, "recompute_seconds", c->recompute_seconds);
    set_real(j, "ratio", c->ratio);
    set_real(j, "break_even_bytes_per_second", c->break_even_bytes_per_second);
    if (p->tier_bytes > 0)
        set_real(j, "n_parked", c->n_parked);
    return j;
}

static json_t *agent_json(const kvcsa_agent_params *p, const kvcsa_agent_cost *c)
{
    json_t *j = json_object();

    set_uint(j, "n_calls", p->n_calls);
    set_uint(j, "n_hit_tokens", c->n_hit_tokens);
    set_uint(j, "n_miss_tokens", c->n_miss_tokens);
    set_uint(j, "n_output_tokens", c->n_output_tokens);
    set_real(j, "hit_cost", c->hit_cost);
    set_real(j, "miss_cost", c->miss_cost);
    set_real(j, "output_cost", c->output_cost);
    set_real(j, "cost", c->cost);
    set_real(j, "uncached_cost", c->uncached_cost);
    return j;
}

/* ------------------------------------------------------------------ all of it */

typedef struct results {
    cli_plan           plan;
    kvcsa_serving_cost serving;
    kvcsa_resume_cost  resume;
    kvcsa_agent_cost   agent;
} results;

static int compute(options *o, results *r)
{
    kvcsa_error err;
    uint64_t    n = o->serving.n_tokens;
    int         rc;

    r->serving.struct_size = sizeof r->serving;
    r->resume.struct_size = sizeof r->resume;
    r->agent.struct_size = sizeof r->agent;
    if (o->is_agent && kvcsa_agent_get_cost(&o->agent, &r->agent, &err) != KVCSA_OK)
        return cli_fail("agent", &err);
    if (!o->words[0])
        return CLI_OK;
    if ((rc = cli_plan_open("cost", o->words[0], &r->plan)) != CLI_OK)
        return rc;
    if (n == UINT64_MAX)
        n = r->plan.info.max_context_tokens < 4096 ? r->plan.info.max_context_tokens : 4096;
    o->serving.n_tokens = o->resume.n_tokens = n;
    if (kvcsa_model_serving_cost(r->plan.model, &o->serving, &r->serving, &err) != KVCSA_OK)
        return cli_fail("serving", &err);
    if (o->is_resume &&
        kvcsa_model_resume_cost(r->plan.model, &o->resume, &r->resume, &err) != KVCSA_OK)
        return cli_fail("resume", &err);
    return CLI_OK;
}

static int print_json(const options *o, const results *r)
{
    json_t *root = json_object();

    if (r->plan.model) {
        json_object_set_new(root, "model", cli_json_text(r->plan.word, strlen(r->plan.word)));
        json_object_set_new(root, "cost_only", json_boolean(r->plan.info.cost_only));
        json_object_set_new(root, "serving", serving_json(&o->serving, &r->serving));
    }
    if (o->is_resume)
        json_object_set_new(root, "resume", resume_json(&o->resume, &r->resume));
    if (o->is_agent)
        json_object_set_new(root, "agent", agent_json(&o->agent, &r->agent));
    return cli_json_print(root);
}

static int print_text(const options *o, const results *r)
{
    if (r->plan.model) {
        printf("%s%s\n\n", r->plan.info.architecture,
               r->plan.info.cost_only ? "; cost only, this version does not run it" : "");
        print_serving(&o->serving, &r->serving);
    }
    if (o->is_resume) {
        putchar('\n');
        print_resume(&o->resume, &r->resume);
    }
    if (o->is_agent && r->plan.model)
        putchar('\n');
    if (o->is_agent)
        print_agent(&o->agent, &r->agent);
    return cli_finish_stdout();
}

static int parse_options(int argc, char **argv, options *o)
{
    const cli_opt opts[] = {
        {"", CLI_TEXT, o->words},
        {"-n", CLI_U64, &o->serving.n_tokens},
        {"--tokens", CLI_U64, &o->serving.n_tokens},
        {"--users", CLI_U64, &o->serving.n_users},
        {"--shared", CLI_U64, &o->serving.n_shared_tokens},
        {"--devices", CLI_U32, &o->serving.n_devices},
        {"--attention", CLI_TEXT, &o->attention},
        {"--device-bytes", CLI_BYTES, &o->serving.device_bytes},
        {"--dense-bytes", CLI_BYTES, &o->serving.dense_bytes},
        {"--tps", CLI_TEXT, &o->texts[REAL_TPS]},
        {"--resume", CLI_FLAG, &o->is_resume},
        {"--tier-speed", CLI_TEXT, &o->texts[REAL_TIER_SPEED]},
        {"--tier-bytes", CLI_TEXT, &o->texts[REAL_TIER_BYTES]},
        {"--flops-per-token", CLI_TEXT, &o->texts[REAL_FLOPS_PER_TOKEN]},
        {"--flops", CLI_TEXT, &o->texts[REAL_FLOPS]},
        {"--replay", CLI_U32, &o->resume.n_replay_tokens},
        {"--agent", CLI_FLAG, &o->is_agent},
        {"--calls", CLI_U64, &o->agent.n_calls},
        {"--context", CLI_U64, &o->agent.context_tokens},
        {"--tool", CLI_U64, &o->agent.tool_tokens},
        {"--generated", CLI_U64, &o->agent.generated_tokens},
        {"--forget-generated", CLI_FLAG, &o->forget},
        {"--hit-price", CLI_TEXT, &o->texts[REAL_HIT]},
        {"--miss-price", CLI_TEXT, &o->texts[REAL_MISS]},
        {"--output-price", CLI_TEXT, &o->texts[REAL_OUTPUT]},
        {"--json", CLI_FLAG, &o->json},
    };
    int rc;

    kvcsa_serving_params_default(&o->serving, sizeof o->serving);
    kvcsa_resume_params_default(&o->resume, sizeof o->resume);
    kvcsa_agent_params_default(&o->agent, sizeof o->agent);
    o->serving.n_tokens = UINT64_MAX; /* not given */
    rc = cli_parse("cost", opts, sizeof opts / sizeof *opts, argc, argv, NULL, 0);
    return rc == CLI_OK ? check_options(o) : rc;
}

int cmd_cost(int argc, char **argv)
{
    options o = {.words = calloc((size_t)argc + 1, sizeof *o.words)};
    results r = {0};
    int     rc;

    if (!o.words)
        return cli_no_memory();
    if ((rc = parse_options(argc, argv, &o)) == CLI_OK && (rc = compute(&o, &r)) == CLI_OK)
        rc = o.json ? print_json(&o, &r) : print_text(&o, &r);
    kvcsa_model_release(&r.plan.model);
    free(o.words);
    return rc;
}
