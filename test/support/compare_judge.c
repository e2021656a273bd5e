/* Which exceptions are justified. */
#include "compare_int.h"

#include "boundary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double tolerance(const comparer *k, double value)
{
    return k->p->eps * fmax(1, fabs(value));
}

const st_tensor *step_tensor(const st_file *f, const case_item *c, uint32_t step, const char *kind, int32_t layer)
{
    char name[160];

    if (layer < 0)
        snprintf(name, sizeof name, "%s.step%u.%s", c->name, step, kind);
    else
        snprintf(name, sizeof name, "%s.step%u.%s.%d", c->name, step, kind, layer);
    return st_find(f, name);
}

/* ------------------------------------------------------------------ evidence */

static int evidence_in(const comparer *k, const st_file *f, const case_item *c, const char *kind, uint32_t layer, uint32_t at,
                evidence *e)
{
    const uint32_t ratio = strcmp(kind, "main") == 0 || strcmp(kind, "ikey") == 0 ? k->p->geometry->ratio[layer] : 1;
    char           full[32];

    snprintf(full, sizeof full, "pre.%s", kind);
    for (uint32_t s = c->n_steps; f && ratio && s-- > 0;) {
        const st_tensor *t = step_tensor(f, c, s, full, (int32_t)layer);
        const uint64_t   end = (cases_step_start(c, s) + c->steps[s].n) / ratio; /* the last row belongs to the step's end */

        if (!t || strcmp(t->dtype, "F32") != 0 || t->n_dims != 2 || t->shape[0] > end || t->shape[1] > UINT32_MAX)
            continue;
        if (at < end - t->shape[0] || at >= end)
            continue;
        e->width = (uint32_t)t->shape[1];
        e->row = (const float *)t->data + (at - (end - t->shape[0])) * t->shape[1];
        return 0;
    }
    return -1;
}

/* Positions from here on were computed in another way than from the beginning. */
static uint32_t exact_until(const case_item *c)
{
    uint32_t until = c->n_ids;

    for (uint32_t s = 0; s < c->n_steps; s++) {
        if (c->steps[s].has_hit && c->steps[s].hit < until)
            until = c->steps[s].hit;
        if (c->steps[s].decoder_replay && cases_step_start(c, s) < until)
            until = cases_step_start(c, s);
    }
    return until;
}

static int same_beginning(const case_item *a, const case_item *b, uint32_t pos)
{
    return a->round_bf16 == b->round_bf16 && a->act_quant == b->act_quant && pos < exact_until(a) && pos < exact_until(b) &&
           memcmp(a->ids, b->ids, ((size_t)pos + 1) * sizeof *a->ids) == 0;
}

/* In the case itself, or else in one with the same beginning. */
static int find_in(const comparer *k, const st_file *f, const char *kind, uint32_t layer, uint32_t at, uint32_t pos,
                   evidence *e)
{
    if (evidence_in(k, f, k->c, kind, layer, at, e) == 0)
        return 0;
    for (uint32_t i = 0; i < k->p->cases->n; i++) {
        const case_item *o = &k->p->cases->items[i];

        if (o != k->c && same_beginning(o, k->c, pos) && evidence_in(k, f, o, kind, layer, at, e) == 0)
            return 0;
    }
    return -1;
}

int evidence_golden(const comparer *k, const char *kind, uint32_t layer, uint32_t at, uint32_t pos, evidence *e)
{
    e->from_ours = 0;
    return find_in(k, k->p->golden, kind, layer, at, pos, e) == 0 ? 0 : find_in(k, k->p->extra, kind, layer, at, pos, e);
}

int evidence_ours(const comparer *k, const char *kind, uint32_t layer, uint32_t at, uint32_t pos, evidence *e)
{
    e->from_ours = 1;
    return find_in(k, k->p->ours, kind, layer, at, pos, e);
}

static int evidence_any(const comparer *k, const char *kind, uint32_t layer, uint32_t at, uint32_t pos, evidence *e)
{
    return evidence_golden(k, kind, layer, at, pos, e) == 0 ? 0 : evidence_ours(k, kind, layer, at, pos, e);
}

int is_open(const comparer *k, uint32_t pos)
{
    evidence e;

    return evidence_ours(k, "window", 0, pos, pos, &e) == 0 && evidence_ours(k, "router", 0, pos, pos, &e) == 0 &&
           evidence_golden(k, "window", 0, pos, pos, &e) == 0 && evidence_golden(k, "router", 0, pos, pos, &e) == 0;
}

/* ------------------------------------------------------------------ ranks */

int top_set(const float *score, uint32_t n, uint32_t k, uint8_t *in)
{
    uint32_t taken = 0;

    memset(in, 0, n);
    while (taken < k) {
        int64_t best = -1;

        for (uint32_t i = 0; i < n; i++)
            if (!in[i] && score[i] > -INFINITY && (best < 0 || score[i] > score[best]))
                best = i;
        if (best < 0)
            break;
        in[best] = 1;
        taken++;
    }
    return (int)taken;
}

/* Gap between the lowest score in the top k and the highest outside; infinite if there is no rival. *edge: the former. */
static double rank_gap(const float *score, uint32_t n, uint32_t k, float *edge, float *rival)
{
    uint8_t *in = malloc(n + 1);

    *edge = INFINITY;
    *rival = -INFINITY;
    if (in && (uint32_t)top_set(score, n, k, in) == k)
        for (uint32_t i = 0; i < n; i++) {
            if (in[i] && score[i] < *edge)
                *edge = score[i];
            if (!in[i] && score[i] > *rival)
                *rival = score[i];
        }
    free(in);
    return (double)*edge - (double)*rival;
}

/* Values by which the source ranks its candidate blocks at a position; the newest visible block is always kept. */
static uint32_t block_values(const comparer *k, const evidence *e, uint32_t pos, float **out)
{
    const compare_geometry *g = k->p->geometry;
    const uint32_t          size = g->candidate_block;
    uint32_t                n = (pos + 1) / g->ratio[g->candidate_source];
    uint32_t                blocks;

    if (n > e->width)
        n = e->width;
    blocks = (n + size - 1) / size;
    if (!n || !(*out = malloc(blocks * sizeof **out)))
        return 0;
    for (uint32_t b = 0; b < blocks; b++) {
        (*out)[b] = -INFINITY;
        for (uint32_t i = b * size; i < n && i < (b + 1) * size; i++)
            (*out)[b] = fmaxf((*out)[b], e->row[i]);
    }
    (*out)[blocks - 1] = INFINITY;
    return blocks;
}

/* Bits of `mark` for entries of blocks that a near tie could exchange. Returns the gap; < 0 = unknown. */
static double candidate_gap(const comparer *k, uint32_t pos, uint8_t *mark, uint32_t n, double *value)
{
    const compare_geometry *g = k->p->geometry;
    evidence                e;
    float                  *v = NULL;
    float                   edge;
    float                   rival;
    uint32_t                blocks;
    double                  gap;

    if (g->candidate_source < 0 || evidence_any(k, "score", (uint32_t)g->candidate_source, pos, pos, &e) != 0 ||
        !(blocks = block_values(k, &e, pos, &v)))
        return -1;
    gap = rank_gap(v, blocks, g->candidate_blocks, &edge, &rival);
    *value = (double)rival;
    for (uint32_t b = 0; isfinite(gap) && b < blocks; b++)
        if (fabs((double)v[b] - (double)edge) <= tolerance(k, (double)edge) ||
            fabs((double)v[b] - (double)rival) <= tolerance(k, (double)rival))
            for (uint32_t i = b * g->candidate_block; i < n && i < (b + 1) * g->candidate_block; i++)
                mark[i] = 1;
    free(v);
    return isfinite(gap) ? gap : -1;
}

/* ------------------------------------------------------------------ one exception */

static const char *kind_name(int kind)
{
    static const char *const names[] = {"window", "main", "ikey", "score", "router"};

    return names[kind];
}

static void measure_code(const comparer *k, exception *x)
{
    static const int code_stair[] = {STAIR_E4M3, STAIR_E2M1, STAIR_E2M1};
    static const int scale_stair[] = {STAIR_WINDOW_SCALE, STAIR_MAIN_SCALE, STAIR_INDEX_SCALE};
    const uint32_t   group = x->kind == KIND_MAIN ? 16 : 32;
    const stair      s = {x->is_scale ? scale_stair[x->kind] : code_stair[x->kind], x->scale};
    evidence         e;
    float            v;

    if (evidence_any(k, kind_name(x->kind), x->layer, x->at, x->pos, &e) != 0 || x->channel >= e.width ||
        x->channel + group * (uint32_t)x->is_scale > e.width)
        return;
    v = e.row[x->channel];
    if (x->is_scale)
        for (uint32_t i = 0; i < group; i++)
            v = i ? fmaxf(v, fabsf(e.row[x->channel + i])) : fabsf(v);
    x->value = (double)v;
    x->distance = stair_distance(&s, v, e.from_ours ? x->golden : x->ours);
    if (e.from_ours)
        snprintf(x->note, sizeof x->note, "by our value");
}

/* Largest gap between an entry that only one side chose and one that only the other did. */
static double exchange_gap(const float *score, const uint8_t *a, const uint8_t *b, uint32_t n, double *value, int *zeros)
{
    double gap = -1;

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; a[i] && !b[i] && j < n; j++)
            if (b[j] && !a[j]) {
                const double d = fabs((double)score[i] - (double)score[j]);

                *zeros |= score[i] == 0 && score[j] == 0;
                if (!(d <= gap)) {
                    gap = d;
                    *value = (double)score[i];
                }
            }
    return gap;
}

static int chosen(const comparer *k, const st_file *f, const exception *x, uint8_t *in, uint32_t n)
{
    const st_tensor *t = step_tensor(f, k->c, x->step, "topk", (int32_t)x->layer);
    const uint64_t   end = cases_step_start(k->c, x->step) + k->c->steps[x->step].n;
    const int32_t   *ids;

    memset(in, 0, n);
    if (!t || t->n_dims != 2 || x->pos < end - t->shape[0])
        return -1;
    ids = (const int32_t *)t->data + (x->pos - (end - t->shape[0])) * t->shape[1];
    for (uint64_t i = 0; i < t->shape[1]; i++) {
        if (ids[i] >= (int32_t)n)
            return -1;
        if (ids[i] >= 0)
            in[ids[i]] = 1;
    }
    return 0;
}

static void measure_topk(const comparer *k, exception *x)
{
    const compare_geometry *g = k->p->geometry;
    evidence                e;
    uint8_t                *a = NULL; /* golden's choice, ours, blocks that may have been exchanged */
    uint8_t                *b;
    uint8_t                *mark;
    uint32_t                only_a = 0;
    uint32_t                only_b = 0;
    uint32_t                marked_a = 0;
    uint32_t                marked_b = 0;
    int                     zeros = 0;
    double                  cand;
    double                  cand_value = 0;

    if (evidence_any(k, "score", x->layer, x->pos, x->pos, &e) != 0 || !(a = calloc(3, (size_t)e.width + 1)))
        return;
    b = a + e.width + 1;
    mark = b + e.width + 1;
    if (chosen(k, k->p->golden, x, a, e.width) != 0 || chosen(k, k->p->ours, x, b, e.width) != 0)
        goto done;
    x->distance = exchange_gap(e.row, a, b, e.width, &x->value, &zeros);
    if (zeros) { /* zeros are exact in any implementation: the lower entry must win */
        snprintf(x->note, sizeof x->note, "a tie of exact zeros goes to the lower entry");
        x->distance = INFINITY;
        x->firm = 1;
    }
    if (g->candidate_source < 0 || x->layer <= (uint32_t)g->candidate_source)
        goto done;
    cand = candidate_gap(k, x->pos, mark, e.width, &cand_value);
    for (uint32_t i = 0; i < e.width; i++) {
        only_a += a[i] && !b[i];
        only_b += b[i] && !a[i];
        marked_a += a[i] && !b[i] && mark[i];
        marked_b += b[i] && !a[i] && mark[i];
    }
    if (cand >= 0 && cand <= tolerance(k, cand_value) &&
        ((only_a && only_a == marked_a) || (only_b && only_b == marked_b))) {
        x->distance = cand;
        x->value = cand_value;
        snprintf(x->note, sizeof x->note, "rank of a candidate block");
    }
done:
    free(a);
}

static void measure_router(const comparer *k, exception *x)
{
    const uint32_t used = k->p->geometry->n_used;
    evidence       e;
    evidence       o;
    uint8_t       *a = NULL;
    int            zeros = 0;

    if (evidence_golden(k, "router", x->layer, x->pos, x->pos, &e) != 0 ||
        evidence_ours(k, "router", x->layer, x->pos, x->pos, &o) != 0 || o.width != e.width ||
        !(a = calloc(2, e.width)))
        return;
    top_set(e.row, e.width, used, a);
    top_set(o.row, e.width, used, a + e.width);
    x->distance = exchange_gap(e.row, a, a + e.width, e.width, &x->value, &zeros);
    free(a);
}

/* ------------------------------------------------------------------ causes */

static int may_move(const exception *cause, const exception *effect)
{
    if (cause->pos > effect->pos || cause->layer > effect->layer)
        return 0;
    if (cause->layer < effect->layer)
        return 1;
    return (effect->kind == KIND_ROUTER && cause->kind != KIND_ROUTER) ||
           (effect->kind == KIND_TOPK && cause->kind == KIND_IKEY);
}

/* First channel of a window row whose code or scale a hair could turn; -1 = none. */
static int near_window(const comparer *k, const evidence *e)
{
    for (uint32_t c = 0; c + 32 <= e->width; c += 32) {
        float amax = 0;
        stair s = {STAIR_WINDOW_SCALE, 0};

        for (uint32_t i = 0; i < 32; i++)
            amax = fmaxf(amax, fabsf(e->row[c + i]));
        if (stair_near(&s, amax, tolerance(k, (double)amax)))
            return (int)c;
        s = (stair){STAIR_E4M3, stair_value(&s, amax)};
        for (uint32_t i = 0; i < 32; i++)
            if (stair_near(&s, e->row[c + i], tolerance(k, (double)e->row[c + i])))
                return (int)(c + i);
    }
    return -1;
}

/* A router or a selection of this row that a hair could turn. */
static int near_rank(const comparer *k, const char *kind, uint32_t layer, uint32_t pos, uint32_t take)
{
    evidence e;
    float    edge;
    float    rival;
    double   gap;

    if (evidence_any(k, kind, layer, pos, pos, &e) != 0)
        return 0;
    gap = rank_gap(e.row, e.width, take, &edge, &rival);
    return isfinite(gap) && gap <= tolerance(k, (double)edge);
}

int find_hidden(const comparer *k, uint32_t pos, uint32_t below_layer, char *note, size_t n_note)
{
    const compare_geometry *g = k->p->geometry;
    const uint32_t          first = pos + 1 > g->window ? pos + 1 - g->window : 0;

    for (uint32_t q = pos + 1; q-- > first;)
        for (uint32_t l = 0; l < below_layer; l++) {
            evidence e;
            int      c;

            if (evidence_any(k, "window", l, q, q, &e) == 0 &&
                (c = near_window(k, &e)) >= 0) {
                snprintf(note, n_note, "window row of position %u, layer %u, channel %d is near a step", q, l, c);
                return 0;
            }
            if (near_rank(k, "router", l, q, g->n_used)) {
                snprintf(note, n_note, "router of position %u, layer %u is near a tie", q, l);
                return 0;
            }
            if (!k->c->steps[0].taps && near_rank(k, "score", l, q, g->topk)) {
                snprintf(note, n_note, "selection of position %u, layer %u is near a tie", q, l);
                return 0;
            }
        }
    return -1;
}

static int by_place(const void *a, const void *b)
{
    const exception *x = a;
    const exception *y = b;

    if (x->pos != y->pos)
        return x->pos < y->pos ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return (x->channel > y->channel) - (x->channel < y->channel);
}

/* The earliest justified exception that can have moved x; NULL = none. */
static const exception *cause_of(const comparer *k, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (k->ex[j].verdict != VERDICT_UNJUSTIFIED && may_move(&k->ex[j], &k->ex[i]))
            return &k->ex[j];
    return NULL;
}

void judge(comparer *k)
{
    if (k->n_ex)
        qsort(k->ex, k->n_ex, sizeof *k->ex, by_place);
    for (size_t i = 0; i < k->n_ex; i++) {
        exception       *x = &k->ex[i];
        const exception *cause = cause_of(k, i);

        x->distance = -1;
        if (x->kind == KIND_TOPK)
            measure_topk(k, x);
        else if (x->kind == KIND_ROUTER)
            measure_router(k, x);
        else
            measure_code(k, x);
        if (x->distance >= 0 && x->distance <= tolerance(k, x->value)) {
            x->verdict = VERDICT_NEAR;
        } else if (cause) {
            x->verdict = VERDICT_FOLLOWS;
            snprintf(x->note, sizeof x->note, "follows the one at position %u, layer %u", cause->pos, cause->layer);
        } else if (!x->firm && !is_open(k, x->pos) && find_hidden(k, x->pos, x->layer, x->note, sizeof x->note) == 0) {
            x->verdict = VERDICT_HIDDEN;
        }
        x->is_root = x->verdict != VERDICT_UNJUSTIFIED && !cause;
    }
}
