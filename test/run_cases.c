/* run_cases [--pre] MODEL CASES.json OUT.safetensors [THREADS [CHUNK]]
 *
 * Runs the oracle's case files (test/golden/README.md) and writes the tensors that the oracle
 * writes:
 *   CASE.ids, CASE.stepN.logits, CASE.stepN.topk.L,
 *   CASE.stepN.pre.{window,main,ikey,score,router}.L, CASE.entries.L
 * With --pre every step gets its pre tensors, not only those whose case asks for them:
 * compare_cases can then tell how near a decision of ours was to its boundary where the golden file
 * does not say it.
 * A prefix hit is a rewind with bounded replay: the entries below are kept, the windows forgotten. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/swa_replay.h"
#include "base/fmath.h"
#include "session/session_int.h"
#include "support/cases.h"
#include "support/st_io.h"

#define N_KINDS (KVI_TAP_TOPK + 1)

static const char *const kind_names[N_KINDS] = {"window", "main", "ikey", "score", "router", NULL};

typedef struct seen { /* rows of one kind and layer, of any widths */
    float  *data;
    size_t  n_floats, cap;
    size_t *widths;
    size_t  n_rows, cap_rows;
} seen;

typedef struct runner {
    kvcsa_model     *model;
    kvcsa_pool      *pool;
    kvcsa_session   *session;
    st_writer       *out;
    const case_item *item;
    seen            *seen;   /* [N_KINDS, layers] */
    float           *logits; /* rows of the step */
    size_t           n_logits;
} runner;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "run_cases: %s: %s\n", what, why);
    exit(1);
}

static void *grow(void *p, size_t *cap, size_t need, size_t elem)
{
    if (need <= *cap)
        return p;
    *cap = need + need / 2 + 16;
    if (!(p = realloc(p, *cap * elem)))
        die("memory", "out of it");
    return p;
}

static void see(void *user, uint32_t kind, uint32_t layer, const void *data, size_t n_rows,
                size_t width)
{
    runner *r = user;
    seen   *s;

    if (kind >= N_KINDS) /* the oracle does not store it */
        return;
    s = &r->seen[kind * r->model->config.n_layers + layer];
    s->data = grow(s->data, &s->cap, s->n_floats + n_rows * width, sizeof(float));
    s->widths = grow(s->widths, &s->cap_rows, s->n_rows + n_rows, sizeof(size_t));
    if (n_rows && width)
        memcpy(s->data + s->n_floats, data, n_rows * width * sizeof(float));
    s->n_floats += n_rows * width;
    for (size_t i = 0; i < n_rows; i++)
        s->widths[s->n_rows++] = width;
}

static void on_logits(void *user, uint64_t position, const float *logits, uint32_t n_vocab)
{
    runner *r = user;

    (void)position;
    memcpy(r->logits + r->n_logits++ * n_vocab, logits, n_vocab * sizeof(float));
}

static void add(runner *r, const char *name, const char *dtype, uint64_t rows, uint64_t cols,
                const void *data)
{
    const uint64_t shape[2] = {rows, cols};

    if (st_add(r->out, name, dtype, 2, shape, data) != 0)
        die(name, "cannot be written");
}

/* The oracle stores sqrt(softplus(z)) + bias. */
static void finish_router(const runner *r, uint32_t layer, seen *s)
{
    const float   *bias = r->model->weights.layers[layer].gate_bias;
    const uint32_t n = r->model->config.n_experts;

    for (size_t i = 0; i < s->n_floats; i++) {
        const float z = s->data[i];

        s->data[i] = kvi_sqrtf(z > 20.0f ? z : kvi_log1pf(kvi_expf(z))) + bias[i % n];
    }
}

/* Rows of different widths into a rectangle, -inf behind them. */
static void write_scores(runner *r, const char *name, const seen *s, size_t width)
{
    float *all = malloc((s->n_rows * width + 1) * sizeof(float));

    if (!all)
        die("memory", "out of it");
    for (size_t i = 0, at = 0; i < s->n_rows; at += s->widths[i++])
        for (size_t k = 0; k < width; k++)
            all[i * width + k] = k < s->widths[i] ? s->data[at + k] : -INFINITY;
    add(r, name, "F32", s->n_rows, width, all);
    free(all);
}

/* The oracle's lists are min(top-k, entries) wide. */
static void write_topk(runner *r, const char *name, const seen *s, size_t width)
{
    int32_t *all = malloc((s->n_rows * width + 1) * sizeof(int32_t));

    if (!all)
        die("memory", "out of it");
    for (size_t i = 0; i < s->n_rows; i++)
        memcpy(all + i * width, s->data + i * s->widths[i], width * sizeof(int32_t));
    add(r, name, "I32", s->n_rows, width, all);
    free(all);
}

static void write_step(runner *r, uint32_t step, const case_step *cs)
{
    const kvi_config *c = &r->model->config;
    const uint32_t    vocab = c->vocab_size;
    char              name[256];

    snprintf(name, sizeof name, "%s.step%u.logits", r->item->name, step);
    if (cs->has_rows)
        for (uint32_t i = 0; i < cs->n_rows; i++)
            memmove(r->logits + (size_t)i * vocab, r->logits + (size_t)cs->rows[i] * vocab,
                    vocab * sizeof(float));
    add(r, name, "F32", cs->has_rows ? cs->n_rows : r->n_logits, vocab, r->logits);
    for (uint32_t kind = 0; kind < N_KINDS; kind++)
        for (uint32_t l = 0; l < c->n_layers; l++) {
            seen               *s = &r->seen[kind * c->n_layers + l];
            const kvi_plan_row *row = &r->model->plan.rows[l];
            const size_t        entries = row->ratio ? r->session->now.n_tokens / row->ratio : 0;

            if (s->n_rows && kind == KVI_TAP_TOPK && cs->taps) {
                snprintf(name, sizeof name, "%s.step%u.topk.%u", r->item->name, step, l);
                write_topk(r, name, s,
                           entries < row->select_entries ? entries : row->select_entries);
            } else if (s->n_rows && kind != KVI_TAP_TOPK && cs->pre &&
                       !(kind == KVI_TAP_SCORE && entries == 0)) {
                snprintf(name, sizeof name, "%s.step%u.pre.%s.%u", r->item->name, step,
                         kind_names[kind], l);
                if (kind == KVI_TAP_ROUTER)
                    finish_router(r, l, s);
                if (kind == KVI_TAP_SCORE)
                    write_scores(r, name, s, entries);
                else
                    add(r, name, "F32", s->n_rows, s->widths[0], s->data);
            }
            s->n_rows = s->n_floats = 0;
        }
}

static void write_entries(runner *r)
{
    const kvi_kv_layout *layout = &r->model->layout;
    uint8_t *const      *index;
    uint8_t *const      *main;
    kvcsa_error          err;

    if (kvi_session_view(r->session, 0, &err) != KVCSA_OK)
        die("block table", err.text);
    index = r->session->index_parts.data;
    main = r->session->main_parts.data;

    for (uint32_t i = 0; i < layout->n_owners; i++) {
        const kvi_kv_owner *o = &layout->owners[i];
        const size_t        n = r->session->now.n_tokens / o->ratio;
        const size_t        record = o->main_row_bytes + o->index_row_bytes;
        uint8_t            *all = malloc(n * record + 1);
        char                name[256];

        if (!all)
            die("memory", "out of it");
        for (size_t j = 0; j < n; j++) {
            const size_t   b = j / o->rows_per_block;
            const uint32_t row = (uint32_t)(j % o->rows_per_block);
            uint8_t       *to = all + j * record;

            memcpy(to, main[b] + kvi_kv_main_row_off(o, row), o->main_row_bytes);
            memcpy(to + o->main_row_bytes, index[b] + kvi_kv_index_values_off(o, row),
                   o->index_value_bytes);
            memcpy(to + o->main_row_bytes + o->index_value_bytes,
                   index[b] + kvi_kv_index_scales_off(o, row),
                   o->index_row_bytes - o->index_value_bytes);
        }
        snprintf(name, sizeof name, "%s.entries.%u", r->item->name, o->layer);
        add(r, name, "U8", n, record, all);
        free(all);
    }
}

static void run_case(runner *r, uint32_t chunk)
{
    const case_item     *item = r->item;
    const uint32_t       vocab = r->model->config.vocab_size;
    const kvi_tap        tap = {.see = see, .user = r};
    kvcsa_session_params sp;
    kvcsa_append_params  ap;
    kvcsa_error          err;
    char                 name[256];
    size_t               at = 0;

    kvcsa_session_params_default(&sp, sizeof sp);
    sp.chunk_tokens = chunk;
    if (kvcsa_session_create(r->pool, r->model, &sp, &r->session, &err) != KVCSA_OK)
        die(item->name, err.text);
    snprintf(name, sizeof name, "%s.ids", item->name);
    if (st_add(r->out, name, "I32", 1, &(uint64_t){item->n_ids}, item->ids) != 0)
        die(name, "cannot be written");
    kvcsa_append_params_default(&ap, sizeof ap);
    ap.logits = KVCSA_LOGITS_ALL;
    ap.on_logits = on_logits;
    ap.user = r;
    for (uint32_t i = 0; i < item->n_steps; i++) {
        const case_step *cs = &item->steps[i];
        const int        tapped = cs->taps || cs->pre;

        kvi_session_set_reference(r->session,
                                  (item->round_bf16 ? KVI_OP_ROUND_BF16 : 0u) |
                                      (item->act_quant ? KVI_OP_ACT_QUANT : 0u),
                                  tapped ? &tap : NULL);
        kvi_session_set_decoder_cut(
            r->session, cs->decoder_replay ? kvi_replay_default_cut(&r->model->plan) : 0);
        if (cs->has_hit) {
            at = cs->hit;
            if (kvi_session_rewind(r->session, at, KVI_REPLAY_BOUNDED, &err) != KVCSA_OK)
                die(item->name, err.text);
        }
        r->n_logits = 0;
        free(r->logits);
        if (!(r->logits = malloc((size_t)cs->n * vocab * sizeof(float))))
            die("memory", "out of it");
        if (kvcsa_session_append(r->session, item->ids + at, cs->n, &ap, NULL, &err) != KVCSA_OK ||
            kvcsa_pool_step(r->pool, &r->session, 1, NULL, NULL, &err) != KVCSA_OK)
            die(item->name, err.text);
        write_step(r, i, cs);
        at += cs->n;
    }
    write_entries(r);
    kvcsa_session_release(&r->session);
    printf("%s done, %zu tokens\n", item->name, at);
}

int main(int argc, char **argv)
{
    runner            r = {0};
    case_list         cases = {0};
    kvcsa_pool_params pp;
    kvcsa_error       err;
    char              text[512];
    size_t            n_seen;
    int               all_pre = 0;
    int               portable = 0;

    for (; argc > 1 && strncmp(argv[1], "--", 2) == 0; argv++, argc--) {
        all_pre |= strcmp(argv[1], "--pre") == 0;
        portable |= strcmp(argv[1], "--portable") == 0;
    }
    if (argc < 4 || argc > 6) {
        fprintf(stderr,
                "usage: run_cases [--pre] [--portable] MODEL CASES.json OUT.safetensors [THREADS "
                "[CHUNK]]\n");
        return 2;
    }
    if (cases_load(argv[2], &cases, text, sizeof text) != 0)
        die(argv[2], text);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.cpu_avoid = portable ? KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512 | KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD
                            : 0;
    pp.n_threads = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 0;
    if (kvcsa_model_open(argv[1], NULL, &r.model, &err) != KVCSA_OK ||
        kvcsa_pool_create(&pp, &r.pool, &err) != KVCSA_OK)
        die(argv[1], err.text);
    n_seen = (size_t)N_KINDS * r.model->config.n_layers;
    if (!(r.seen = calloc(n_seen, sizeof *r.seen)) || !(r.out = st_create()))
        die("memory", "out of it");
    for (uint32_t i = 0; i < cases.n; i++) {
        r.item = &cases.items[i];
        for (uint32_t k = 0; all_pre && k < r.item->n_steps; k++)
            cases.items[i].steps[k].pre = 1;
        run_case(&r, argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0);
    }
    if (st_write(r.out, argv[3], text, sizeof text) != 0)
        die(argv[3], text);
    for (size_t i = 0; i < n_seen; i++) {
        free(r.seen[i].data);
        free(r.seen[i].widths);
    }
    free(r.seen);
    free(r.logits);
    st_destroy(r.out);
    cases_free(&cases);
    kvcsa_pool_release(&r.pool);
    kvcsa_model_release(&r.model);
    return 0;
}
