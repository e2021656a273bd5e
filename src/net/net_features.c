#include "net/net_features.h"

#include "base/status.h"
#include "plan/cache_plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define LIST_CAP 192u /* a message has room for no more */
#define N_FORMATS 64u /* bits */
#define NO_LIMIT (UINT32_C(1) << 24) /* no model has a size like this */

static const char *const kind_names[] = {
    [KVI_W_F32] = "f32",         [KVI_W_BF16] = "bf16", [KVI_W_FP8] = "fp8",
    [KVI_W_FP8_ROW] = "fp8-row", [KVI_W_FP4] = "fp4",
};
enum { N_KINDS = sizeof kind_names / sizeof *kind_names };

/* ------------------------------------------------------------------ lists */

typedef struct line {
    char  *out;
    size_t size;
    size_t n; /* below size; what does not fit is left out */
} line;

static void add(line *l, const char *format, ...) KVI_PRINTF(2, 3);

static void add(line *l, const char *format, ...)
{
    va_list args;
    int     n;

    va_start(args, format);
    n = vsnprintf(l->out + l->n, l->size - l->n, format, args);
    va_end(args);
    if (n > 0)
        l->n = (size_t)n < l->size - l->n ? l->n + (size_t)n : l->size - 1;
}

static int has_size(const kvi_sizes *s, uint32_t v)
{
    return s->step != 0 && v >= s->min && v <= s->max && v % s->step == 0;
}

static int is_any(const kvi_sizes *s)
{
    return s->max >= NO_LIMIT && s->step == 1 && s->min <= 1;
}

static void add_sizes(line *l, const kvi_sizes *s)
{
    if (s->step == 0 || s->min > s->max) {
        add(l, "none");
    } else if (s->min == s->max) {
        add(l, "%" PRIu32, s->min);
    } else if (s->max >= NO_LIMIT && s->step == s->min) {
        add(l, "multiples of %" PRIu32, s->step);
    } else {
        add(l, "%" PRIu32, s->min);
        if (s->max >= NO_LIMIT)
            add(l, " and more");
        else
            add(l, " to %" PRIu32, s->max);
        if (s->step > 1)
            add(l, " in steps of %" PRIu32, s->step);
    }
}

static void add_formats(line *l, uint64_t formats)
{
    const char *between = "";

    if (formats == 0)
        add(l, "none");
    for (uint32_t i = 0; i < N_FORMATS; i++) {
        if (formats >> i & 1) {
            add(l, "%s%s", between, kvi_format_name(i));
            between = ", ";
        }
    }
}

static void add_kinds(line *l, uint32_t kinds)
{
    const char *between = "";

    if (kinds == 0)
        add(l, "none");
    for (uint32_t i = 0; i < N_KINDS; i++) {
        if (kind_names[i] && kinds >> i & 1) {
            add(l, "%s%s", between, kind_names[i]);
            between = ", ";
        }
    }
}

size_t kvi_features_text(const kvi_features *f, char *out, size_t size)
{
    const struct {
        const char      *what;
        const kvi_sizes *sizes;
    } sparse[] = {
        {"heads", &f->heads},
        {"head width", &f->head_width},
        {"window width", &f->window_width},
        {"index heads", &f->index_heads},
        {"index width", &f->index_width},
        {"top-k", &f->select_entries},
        {"candidate blocks", &f->candidate_blocks},
        {"entries each", &f->candidate_block_entries},
        {"copies", &f->copies},
        {"hidden", &f->hidden},
        {"inner", &f->inner},
        {"experts", &f->experts},
        {"per token", &f->experts_per_token},
    };
    line l = {.out = out, .size = size};

    if (size == 0)
        return 0;
    out[0] = '\0';
    add(&l, "sparse latent attention (DeepSeek-V4.1): entries ");
    add_formats(&l, f->entry_formats);
    for (size_t i = 0; i < sizeof sparse / sizeof *sparse; i++) {
        if (is_any(sparse[i].sizes))
            continue;
        add(&l, "; %s ", sparse[i].what);
        add_sizes(&l, sparse[i].sizes);
    }
    add(&l, "; weights ");
    add_kinds(&l, f->weight_kinds);
    if (f->expert_kinds != (f->weight_kinds & ~(1u << KVI_W_FP8_ROW))) { /* rows are Engram's */
        add(&l, "; of experts ");
        add_kinds(&l, f->expert_kinds);
    }
    add(&l, ". Ordinary attention: ");
    add_formats(&l, f->paged_formats);
    add(&l, "; head width ");
    add_sizes(&l, &f->paged_width);
    return l.n;
}

/* ------------------------------------------------------------------ what a model asks for */

typedef struct check {
    const kvi_features *f;
    const char         *backend;
    kvcsa_error        *err;
} check;

/* 0 = the model has no such thing. */
static kvcsa_status want_size(const check *c, const char *what, uint32_t value,
                              const kvi_sizes *sizes)
{
    char list[LIST_CAP] = "";
    line l = {.out = list, .size = sizeof list};

    if (value == 0 || has_size(sizes, value))
        return KVCSA_OK;
    add_sizes(&l, sizes);
    return kvi_fail(c->err, KVCSA_ERR_UNSUPPORTED, "%s: %s %" PRIu32 "; it has kernels for %s",
                    c->backend, what, value, list);
}

static kvcsa_status want_format(const check *c, uint32_t format, uint64_t formats)
{
    char list[LIST_CAP] = "";
    line l = {.out = list, .size = sizeof list};

    if (format < N_FORMATS && formats >> format & 1)
        return KVCSA_OK;
    add_formats(&l, formats);
    return kvi_fail(c->err, KVCSA_ERR_UNSUPPORTED, "%s: entries %s; it has kernels for %s",
                    c->backend, kvi_format_name(format), list);
}

static int is_of_expert(const kvi_weight_tensor *t)
{
    return t->role == KVI_ROLE_EXPERT_IN || t->role == KVI_ROLE_EXPERT_OUT;
}

static kvcsa_status want_kind(const check *c, const kvi_weight_tensor *t)
{
    const uint32_t kinds = is_of_expert(t) ? c->f->expert_kinds : c->f->weight_kinds;
    char           list[LIST_CAP] = "";
    line           l = {.out = list, .size = sizeof list};

    if (kinds >> t->kind & 1)
        return KVCSA_OK;
    add_kinds(&l, kinds);
    return kvi_fail(c->err, KVCSA_ERR_UNSUPPORTED, "%s: weights %s (%.64s); it has kernels for %s",
                    c->backend,
                    t->kind < N_KINDS && kind_names[t->kind] ? kind_names[t->kind] : "?", t->name,
                    list);
}

static kvcsa_status check_row(const check *c, const kvi_plan_row *r)
{
    const kvi_features *f = c->f;
    kvcsa_status        st = KVCSA_OK;

    if (r->window_tokens)
        st = want_size(c, "window width", kvi_plan_window_width(r), &f->window_width);
    if (st != KVCSA_OK || r->ratio == 0)
        return st;
    if ((st = want_format(c, r->entry_format, f->entry_formats)) != KVCSA_OK ||
        (st = want_size(c, "head width", r->entry_width, &f->head_width)) != KVCSA_OK ||
        (st = want_size(c, "selected entries", r->select_entries, &f->select_entries)) != KVCSA_OK)
        return st;
    if (r->index_bytes &&
        ((st = want_size(c, "index heads", r->index_heads, &f->index_heads)) != KVCSA_OK ||
         (st = want_size(c, "index width", r->index_width, &f->index_width)) != KVCSA_OK))
        return st;
    if (r->candidates != KVCSA_CANDIDATES_NONE &&
        ((st = want_size(c, "candidate blocks", r->candidate_blocks, &f->candidate_blocks)) !=
             KVCSA_OK ||
         (st = want_size(c, "candidate blocks of", r->candidate_block_entries,
                         &f->candidate_block_entries)) != KVCSA_OK))
        return st;
    return KVCSA_OK;
}

static kvcsa_status check_config(const check *c, const kvi_config *cfg)
{
    const kvi_features *f = c->f;
    const struct {
        const char      *what;
        uint32_t         value;
        const kvi_sizes *sizes;
    } asked[] = {
        {"heads", cfg->n_heads, &f->heads},
        {"head width", cfg->head_dim, &f->head_width},
        {"copies", cfg->hc_copies, &f->copies},
        {"hidden size", cfg->hidden_size, &f->hidden},
        {"inner width of experts", cfg->moe_inner, &f->inner},
        {"experts", cfg->n_experts, &f->experts},
        {"experts of a token", cfg->n_experts_per_token, &f->experts_per_token},
    };
    kvcsa_status st = KVCSA_OK;

    for (size_t i = 0; i < sizeof asked / sizeof *asked && st == KVCSA_OK; i++)
        st = want_size(c, asked[i].what, asked[i].value, asked[i].sizes);
    return st;
}

/* Every kind once, of experts and of others: a model has thousands of tensors. */
static kvcsa_status check_weights(const check *c, const kvi_config *cfg)
{
    kvi_weight_iter   it = kvi_weight_first(cfg);
    kvi_weight_tensor t;
    uint32_t          seen[2] = {0};
    kvcsa_status      st = KVCSA_OK;

    while (st == KVCSA_OK && kvi_weight_next(&it, &t)) {
        uint32_t *kinds = &seen[is_of_expert(&t)];

        if (t.n_dims == 2 && !(*kinds >> t.kind & 1)) {
            *kinds |= 1u << t.kind;
            st = want_kind(c, &t);
        }
    }
    return st;
}

kvcsa_status kvi_net_check_plan(const kvi_features *f, const char *backend, const kvi_plan *plan,
                                kvcsa_error *err)
{
    const check  c = {.f = f, .backend = backend, .err = err};
    kvcsa_status st = KVCSA_OK;

    for (uint32_t l = 0; l < plan->n_layers && st == KVCSA_OK; l++) {
        const kvi_plan_row *r = &plan->rows[l];

        if (kvi_plan_row_kind(plan, l) != KVI_ROW_PAGED)
            st = check_row(&c, r);
        else if ((st = want_format(&c, r->entry_format, f->paged_formats)) == KVCSA_OK)
            st = want_size(&c, "head width", r->entry_width, &f->paged_width);
    }
    return st;
}

kvcsa_status kvi_net_check_features(const kvi_features *f, const char *backend,
                                    const kvcsa_model *model, kvcsa_error *err)
{
    const check  c = {.f = f, .backend = backend, .err = err};
    kvcsa_status st = check_config(&c, &model->config);

    for (uint32_t l = 0; l < model->plan.n_layers && st == KVCSA_OK; l++)
        st = check_row(&c, &model->plan.rows[l]);
    return st != KVCSA_OK ? st : check_weights(&c, &model->config);
}
