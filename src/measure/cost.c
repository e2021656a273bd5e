/* What caches cost many sequences, a sequence that comes back, and an agent: arithmetic on the five
 * figures of a plan (docs/measuring.md "Cost"). Whole bytes are exact; whatever depends on a speed,
 * a price or a mean is a double.
 *
 * What one device holds under tensor parallelism is a plan again, with smaller rows; its figures
 * come from the same sums as those of the whole. */
#include "api/api_call.h"
#include "base/alloc.h"
#include "base/checked.h"
#include "model/model.h"
#include "plan/plan_cost.h"

#include <math.h>
#include <string.h>

#define LIMIT ((uint64_t)INT64_MAX)

KVI_NO_TAIL_PADDING(kvcsa_serving_params, reserved);
KVI_NO_TAIL_PADDING(kvcsa_serving_cost, device_rate);
KVI_NO_TAIL_PADDING(kvcsa_resume_params, reserved);
KVI_NO_TAIL_PADDING(kvcsa_resume_cost, n_parked);
KVI_NO_TAIL_PADDING(kvcsa_agent_params, output_price);
KVI_NO_TAIL_PADDING(kvcsa_agent_cost, uncached_cost);

static const kvcsa_serving_params default_serving = {
    .struct_size = sizeof(kvcsa_serving_params), .n_users = 1, .n_devices = 1};
static const kvcsa_resume_params default_resume = {.struct_size = sizeof(kvcsa_resume_params)};
static const kvcsa_agent_params  default_agent = {.struct_size = sizeof(kvcsa_agent_params),
                                                  .reread_generated = 1};

void kvcsa_serving_params_default(kvcsa_serving_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_serving, sizeof default_serving);
}

void kvcsa_resume_params_default(kvcsa_resume_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_resume, sizeof default_resume);
}

void kvcsa_agent_params_default(kvcsa_agent_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_agent, sizeof default_agent);
}

static kvcsa_status too_much(const char *what, kvcsa_error *err)
{
    return kvi_fail(err, KVCSA_ERR_LIMIT, "%s is above 2^63 - 1", what);
}

static kvcsa_status reserved_is_0(uint32_t reserved, kvcsa_error *err)
{
    if (reserved)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "reserved is %u, must be 0", reserved);
    return KVCSA_OK;
}

static kvcsa_status length_fits(const kvcsa_model *model, uint64_t n_tokens, kvcsa_error *err)
{
    if (n_tokens > model->plan.max_tokens)
        return kvi_fail(err, KVCSA_ERR_LIMIT, "n_tokens is %llu, the context limit is %llu",
                        (unsigned long long)n_tokens, (unsigned long long)model->plan.max_tokens);
    return KVCSA_OK;
}

/* NaN fails every comparison. */
static kvcsa_status not_negative(const char *field, double v, kvcsa_error *err)
{
    if (!(v >= 0) || !isfinite(v))
        return kvi_fail(err, KVCSA_ERR_ARG, "%s is %g, must be a number >= 0", field, v);
    return KVCSA_OK;
}

static kvcsa_status positive(const char *field, double v, kvcsa_error *err)
{
    if (!(v > 0) || !isfinite(v))
        return kvi_fail(err, KVCSA_ERR_ARG, "%s is %g, must be a number > 0", field, v);
    return KVCSA_OK;
}

/* a x b + c x d in *out; false if it is above 2^63 - 1. */
static bool sum_of_products(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t *out)
{
    uint64_t left = 0;
    uint64_t right = 0;

    return kvi_mul_size(a, b, &left) && kvi_mul_size(c, d, &right) &&
           kvi_add_size(left, right, out) && *out <= LIMIT;
}

/* ------------------------------------------------------------------ serving */

/* Bytes of one of n_devices that share a row of n_heads equal heads evenly: nobody holds a part of
 * a head, and with more devices than heads some hold the same one. n_heads 0: the layer has no such
 * row. */
static uint64_t share_of(uint64_t bytes, uint32_t n_heads, uint32_t n_devices)
{
    const uint64_t heads = n_heads ? n_heads : 1;

    KVI_ASSERT(bytes % heads == 0);
    return bytes / heads * kvi_div_up(heads, n_devices);
}

/* The plan of one device under tensor parallelism: its heads of entries, windows and states, and
 * all index keys. The caller frees out->rows. */
static kvcsa_status split_plan(const kvcsa_model *model, uint32_t n_devices, kvi_plan *out,
                               kvcsa_error *err)
{
    const kvi_plan *plan = &model->plan;

    *out = *plan;
    if (!(out->rows = kvi_alloc(&model->allocator, plan->n_layers * sizeof *out->rows)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "plan of one device, %u layers", plan->n_layers);
    memcpy(out->rows, plan->rows, plan->n_layers * sizeof *out->rows);
    for (uint32_t l = 0; l < plan->n_layers; l++) {
        kvi_plan_row *r = &out->rows[l];

        r->entry_bytes = (uint32_t)share_of(r->entry_bytes, r->kv_heads, n_devices);
        r->window_bytes = (uint32_t)share_of(r->window_bytes, r->kv_heads, n_devices);
        r->state_bytes = share_of(r->state_bytes, r->state_heads, n_devices);
    }
    return KVCSA_OK;
}

typedef struct spread { /* how the sequences lie on the devices */
    kvcsa_cost whole;        /* one sequence */
    kvcsa_cost part;         /* what one device has of one sequence that it holds */
    uint64_t   copies;       /* sequences x the devices that hold (a part of) each */
    uint64_t   holders;      /* devices that hold anything */
    uint64_t   fullest;      /* sequences on the fullest device */
    uint64_t   shared_bytes; /* of whole blocks that all sequences share, on one device */
    uint64_t   own_bytes;    /* of one sequence on one device, without them */
} spread;

static kvcsa_status spread_out(const kvcsa_model *model, const kvcsa_serving_params *p, spread *s,
                               kvcsa_error *err)
{
    const int    split = p->attention == KVCSA_ATTENTION_TP && p->n_devices > 1;
    kvi_plan     part;
    kvcsa_status st;

    memset(s, 0, sizeof *s);
    kvi_plan_cost(&model->plan, p->n_tokens, &s->whole);
    s->part = s->whole;
    if (split) {
        if ((st = split_plan(model, p->n_devices, &part, err)) != KVCSA_OK)
            return st;
        kvi_plan_cost(&part, p->n_tokens, &s->part);
        kvi_free(&model->allocator, part.rows, part.n_layers * sizeof *part.rows);
    }
    s->shared_bytes = p->n_shared_tokens / s->part.block_tokens * s->part.block_bytes;
    s->own_bytes = s->part.resident_bytes - s->shared_bytes;
    if (p->attention == KVCSA_ATTENTION_DP) {
        s->copies = p->n_users;
        s->holders = p->n_users < p->n_devices ? p->n_users : p->n_devices;
        s->fullest = kvi_div_up(p->n_users, p->n_devices);
    } else {
        s->holders = p->n_devices;
        s->fullest = p->n_users;
        if (!kvi_mul_size(p->n_users, p->n_devices, &s->copies))
            return too_much("n_users x n_devices", err);
    }
    return KVCSA_OK;
}

static kvcsa_status sum_bytes(const kvcsa_serving_params *p, const spread *s, kvcsa_serving_cost *c,
                              kvcsa_error *err)
{
    const uint64_t shared = p->n_shared_tokens / s->whole.block_tokens * s->whole.block_bytes;

    if (!sum_of_products(s->copies, s->own_bytes, s->holders, s->shared_bytes, &c->resident_bytes))
        return too_much("resident_bytes", err);
    if (!sum_of_products(s->copies, s->part.read_bytes, 0, 0, &c->read_bytes))
        return too_much("read_bytes", err);
    if (!sum_of_products(p->n_users, s->whole.persist_bytes - shared, 1, shared, &c->parked_bytes))
        return too_much("parked_bytes", err);
    /* parts of sums that fit */
    c->device_resident_bytes = s->fullest * s->own_bytes + s->shared_bytes;
    c->device_read_bytes = s->fullest * s->part.read_bytes;
    return KVCSA_OK;
}

/* Sequences that fit into device_bytes on every device; 2^63 - 1 where they take nothing. */
static uint64_t count_users(const kvcsa_serving_params *p, const spread *s)
{
    uint64_t n;

    if (p->device_bytes < s->shared_bytes)
        return 0;
    if (s->own_bytes == 0)
        return LIMIT;
    n = (p->device_bytes - s->shared_bytes) / s->own_bytes;
    if (p->attention == KVCSA_ATTENTION_DP && !kvi_mul_size(n, p->n_devices, &n))
        return LIMIT;
    return n < LIMIT ? n : LIMIT;
}

/* base^n by squaring: without libm, whose last bits differ between machines. */
static double power(double base, uint64_t n)
{
    double out = 1;

    for (; n; n >>= 1, base *= base)
        if (n & 1)
            out *= base;
    return out;
}

/* What was left open is the model's. */
static kvcsa_status complete_experts(const kvcsa_model *model, kvcsa_serving_params *p,
                                     kvcsa_error *err)
{
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_status     st;

    if ((st = kvcsa_model_get_info(model, &info, err)) != KVCSA_OK)
        return st;
    if (!p->expert_bytes)
        p->expert_bytes = info.expert_bytes;
    if (!p->n_experts)
        p->n_experts = info.n_experts;
    if (!p->n_experts_per_token)
        p->n_experts_per_token = info.n_experts_per_token;
    if (!p->n_moe_layers)
        p->n_moe_layers = info.n_moe_layers;
    if (p->n_experts_per_token > p->n_experts)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_experts_per_token is %u, must be at most %u",
                        p->n_experts_per_token, p->n_experts);
    return KVCSA_OK;
}

/* An expert is left out by one token with probability 1 - k/E, by B with its B-th power. */
static double distinct_experts(const kvcsa_serving_params *p)
{
    if (p->n_experts == 0)
        return 0;
    return p->n_experts *
           (1 - power(1 - (double)p->n_experts_per_token / p->n_experts, p->n_users));
}

static kvcsa_status check_serving(const kvcsa_model *model, const kvcsa_serving_params *p,
                                  kvcsa_error *err)
{
    kvcsa_status st;

    if ((st = reserved_is_0(p->reserved, err)) != KVCSA_OK ||
        (st = length_fits(model, p->n_tokens, err)) != KVCSA_OK)
        return st;
    if (p->n_users == 0 || p->n_devices == 0)
        return kvi_fail(err, KVCSA_ERR_ARG, "%s is 0, must be at least 1",
                        p->n_users ? "n_devices" : "n_users");
    if (p->n_shared_tokens > p->n_tokens)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_shared_tokens is %llu, must be at most %llu",
                        (unsigned long long)p->n_shared_tokens, (unsigned long long)p->n_tokens);
    if (p->attention > KVCSA_ATTENTION_DP)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "attention is %u, must be at most %u",
                        p->attention, (uint32_t)KVCSA_ATTENTION_DP);
    return not_negative("tokens_per_second", p->tokens_per_second, err);
}

kvcsa_status kvcsa_model_serving_cost(const kvcsa_model *model, const kvcsa_serving_params *params,
                                      kvcsa_serving_cost *cost, kvcsa_error *err)
{
    kvcsa_serving_params p = default_serving;
    kvcsa_serving_cost   c = {.struct_size = sizeof c};
    spread               s;
    kvcsa_status         st;

    kvi_error_clear(err);
    KVI_REQUIRE(cost, err);
    if ((st = KVI_EXPORT(c, cost, "kvcsa_serving_cost", err)) != KVCSA_OK)
        return st;
    KVI_REQUIRE(model, err);
    if ((st = KVI_IMPORT(p, params, "kvcsa_serving_params", err)) != KVCSA_OK ||
        (st = check_serving(model, &p, err)) != KVCSA_OK ||
        (st = complete_experts(model, &p, err)) != KVCSA_OK ||
        (st = spread_out(model, &p, &s, err)) != KVCSA_OK ||
        (st = sum_bytes(&p, &s, &c, err)) != KVCSA_OK)
        return st;
    c.max_users = p.device_bytes ? count_users(&p, &s) : 0;
    c.written_bytes = (double)s.copies * s.part.written_bytes;
    c.distinct_experts = distinct_experts(&p);
    c.weight_bytes = (double)p.dense_bytes +
                     (double)p.n_moe_layers * (double)p.expert_bytes * c.distinct_experts;
    c.read_bytes_per_second = (double)c.read_bytes * p.tokens_per_second;
    c.device_rate = s.part.rate;
    if (!isfinite(c.read_bytes_per_second))
        return too_much("read_bytes_per_second", err);
    return KVI_EXPORT(c, cost, "kvcsa_serving_cost", err);
}

/* ------------------------------------------------------------------ load or recompute */

static kvcsa_status check_resume(const kvcsa_model *model, const kvcsa_resume_params *p,
                                 kvcsa_error *err)
{
    kvcsa_status st;

    if ((st = reserved_is_0(p->reserved, err)) != KVCSA_OK ||
        (st = length_fits(model, p->n_tokens, err)) != KVCSA_OK ||
        (st = positive("tier_bytes_per_second", p->tier_bytes_per_second, err)) != KVCSA_OK ||
        (st = positive("flops_per_token", p->flops_per_token, err)) != KVCSA_OK ||
        (st = positive("flops_per_second", p->flops_per_second, err)) != KVCSA_OK)
        return st;
    return not_negative("tier_bytes", p->tier_bytes, err);
}

kvcsa_status kvcsa_model_resume_cost(const kvcsa_model *model, const kvcsa_resume_params *params,
                                     kvcsa_resume_cost *cost, kvcsa_error *err)
{
    kvcsa_resume_params p = default_resume;
    kvcsa_resume_cost   c = {.struct_size = sizeof c};
    kvcsa_cost          whole = {0};
    double              taken; /* seconds of load and replay */
    double              saved; /* seconds of computing that a load makes unnecessary */
    kvcsa_status        st;

    kvi_error_clear(err);
    KVI_REQUIRE(cost, err);
    if ((st = KVI_EXPORT(c, cost, "kvcsa_resume_cost", err)) != KVCSA_OK)
        return st;
    KVI_REQUIRE(model, err);
    if ((st = KVI_IMPORT(p, params, "kvcsa_resume_params", err)) != KVCSA_OK ||
        (st = check_resume(model, &p, err)) != KVCSA_OK)
        return st;
    kvi_plan_cost(&model->plan, p.n_tokens, &whole);
    c.n_bytes = whole.persist_bytes;
    c.load_seconds = (double)c.n_bytes / p.tier_bytes_per_second;
    /* no more can be replayed than there is */
    c.replay_seconds = (double)(p.n_replay_tokens < p.n_tokens ? p.n_replay_tokens : p.n_tokens) *
                       p.flops_per_token / p.flops_per_second;
    c.recompute_seconds = (double)p.n_tokens * p.flops_per_token / p.flops_per_second;
    if (!isfinite(c.load_seconds) || !isfinite(c.recompute_seconds))
        return kvi_fail(err, KVCSA_ERR_LIMIT, "a time is too long for a double: %g and %g s",
                        c.load_seconds, c.recompute_seconds);
    taken = c.load_seconds + c.replay_seconds;
    if (p.n_tokens) /* of nothing, neither way takes time: 0 */
        c.ratio = taken > 0 ? c.recompute_seconds / taken : INFINITY;
    saved = c.recompute_seconds - c.replay_seconds;
    c.break_even_bytes_per_second = saved > 0 ? (double)c.n_bytes / saved : INFINITY;
    if (p.tier_bytes > 0)
        c.n_parked = c.n_bytes ? floor(p.tier_bytes / (double)c.n_bytes) : INFINITY;
    return KVI_EXPORT(c, cost, "kvcsa_resume_cost", err);
}

/* ------------------------------------------------------------------ agents */

/* 0 + 1 + ... + (n - 1) in *out; false if it is above 2^64 - 1. */
static bool sum_below(uint64_t n, uint64_t *out)
{
    *out = 0;
    if (n == 0)
        return true;
    return n % 2 ? kvi_mul_size(n, (n - 1) / 2, out) : kvi_mul_size(n / 2, n - 1, out);
}

/* Call i of T (from 0) has in its context what was there in front of the first call, i results and
 * i generated texts. All of it but the newest result was there in the call before, or was generated
 * by it: hits. So hits are
 *   sum over i = 1 .. T-1 of  C + generated i + tool (i - 1)  */
static bool count_tokens(const kvcsa_agent_params *p, kvcsa_agent_cost *c)
{
    const uint64_t later = p->n_calls - 1;
    const uint64_t reread = p->reread_generated ? p->generated_tokens : 0;
    uint64_t       results = 0; /* times that an older result is read again */
    uint64_t       texts = 0;   /* times that a generated text is */
    uint64_t       hits = 0;
    uint64_t       all = 0;

    return sum_below(p->n_calls, &texts) && sum_below(later, &results) &&
           sum_of_products(reread, texts, p->tool_tokens, results, &hits) &&
           sum_of_products(p->context_tokens, later, 1, hits, &c->n_hit_tokens) &&
           sum_of_products(p->tool_tokens, later, 1, p->context_tokens, &c->n_miss_tokens) &&
           sum_of_products(p->generated_tokens, p->n_calls, 0, 0, &c->n_output_tokens) &&
           sum_of_products(1, c->n_hit_tokens, 1, c->n_miss_tokens, &all);
}

kvcsa_status kvcsa_agent_get_cost(const kvcsa_agent_params *params, kvcsa_agent_cost *cost,
                                  kvcsa_error *err)
{
    kvcsa_agent_params p = default_agent;
    kvcsa_agent_cost   c = {.struct_size = sizeof c};
    kvcsa_status       st;

    kvi_error_clear(err);
    KVI_REQUIRE(cost, err);
    if ((st = KVI_EXPORT(c, cost, "kvcsa_agent_cost", err)) != KVCSA_OK ||
        (st = KVI_IMPORT(p, params, "kvcsa_agent_params", err)) != KVCSA_OK ||
        (st = reserved_is_0(p.reserved, err)) != KVCSA_OK ||
        (st = not_negative("hit_price", p.hit_price, err)) != KVCSA_OK ||
        (st = not_negative("miss_price", p.miss_price, err)) != KVCSA_OK ||
        (st = not_negative("output_price", p.output_price, err)) != KVCSA_OK)
        return st;
    if (p.n_calls == 0)
        return kvi_fail(err, KVCSA_ERR_ARG, "n_calls is 0, must be at least 1");
    if (p.reread_generated > 1)
        return kvi_fail(err, KVCSA_ERR_ARG, "reread_generated is %u, must be 0 or 1",
                        p.reread_generated);
    if (!count_tokens(&p, &c))
        return too_much("the number of tokens", err);
    c.hit_cost = (double)c.n_hit_tokens * p.hit_price / 1e6;
    c.miss_cost = (double)c.n_miss_tokens * p.miss_price / 1e6;
    c.output_cost = (double)c.n_output_tokens * p.output_price / 1e6;
    c.cost = c.hit_cost + c.miss_cost + c.output_cost;
    c.uncached_cost =
        (double)(c.n_hit_tokens + c.n_miss_tokens) * p.miss_price / 1e6 + c.output_cost;
    if (!isfinite(c.cost) || !isfinite(c.uncached_cost))
        return kvi_fail(err, KVCSA_ERR_LIMIT, "the cost is too large for a double");
    return KVI_EXPORT(c, cost, "kvcsa_agent_cost", err);
}
