#include "compare.h"

#include "boundary.h"
#include "compare_int.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LAYERS 256u

/* ------------------------------------------------------------------ geometry */

/* Integer of the text configuration in lo..hi. */
static int get(json_t *c, const char *key, json_int_t lo, json_int_t hi, json_int_t *out, char *err, size_t n_err)
{
    json_t *v = json_object_get(c, key);

    *out = json_is_integer(v) ? json_integer_value(v) : lo - 1;
    if (*out >= lo && *out <= hi)
        return 0;
    snprintf(err, n_err, "%s is %lld, must be %lld..%lld", key, (long long)*out, (long long)lo, (long long)hi);
    return -1;
}

static int geometry_read(json_t *root, compare_geometry *g, char *err, size_t n_err)
{
    json_t    *c = json_object_get(root, "text_config");
    json_t    *ratios = json_object_get(c, "compress_ratios");
    json_t    *owners = json_object_get(c, "kv_source_layer_ids");
    json_int_t cand;
    struct { const char *key; json_int_t lo, hi; uint32_t *to; } const u[] = {
        {"num_hidden_layers", 1, MAX_LAYERS, &g->n_layers},
        {"vocab_size", 1, 1 << 24, &g->n_vocab},
        {"head_dim", 16, 65536, &g->head_dim},
        {"index_head_dim", 32, 65536, &g->index_dim},
        {"sliding_window", 1, 1 << 20, &g->window},
        {"index_topk", 1, 1 << 20, &g->topk},
        {"n_routed_experts", 1, 65536, &g->n_experts},
        {"num_experts_per_tok", 1, 65536, &g->n_used},
        {"candidate_topk_blocks", 1, 1 << 20, &g->candidate_blocks},
        {"candidate_block_size", 1, 1 << 20, &g->candidate_block},
    };

    memset(g, 0, sizeof *g);
    for (size_t i = 0; i < sizeof u / sizeof *u; i++) {
        json_int_t v;

        if (get(c, u[i].key, u[i].lo, u[i].hi, &v, err, n_err) != 0)
            return -1;
        *u[i].to = (uint32_t)v;
    }
    if (get(c, "candidate_source_layer_id", -1, (json_int_t)g->n_layers - 1, &cand, err, n_err) != 0)
        return -1;
    g->candidate_source = (int32_t)cand;
    if (g->head_dim % 32 || g->index_dim % 32 || json_array_size(ratios) < g->n_layers) {
        snprintf(err, n_err, "head_dim, index_head_dim or compress_ratios is not what it should be");
        return -1;
    }
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const json_int_t r = json_integer_value(json_array_get(ratios, l));
        json_t          *o;
        size_t           i;

        if (r < 0 || r > 4096) {
            snprintf(err, n_err, "compress_ratios[%u] is %lld", l, (long long)r);
            return -1;
        }
        g->ratio[l] = (uint32_t)r;
        g->kv_owner[l] = -1;
        json_array_foreach(owners, i, o)
            if (json_integer_value(o) <= (json_int_t)l && json_integer_value(o) > g->kv_owner[l])
                g->kv_owner[l] = (int32_t)json_integer_value(o);
    }
    if (g->candidate_source >= 0 && g->ratio[g->candidate_source] == 0) {
        snprintf(err, n_err, "candidate_source_layer_id is %d, a layer without entries", g->candidate_source);
        return -1;
    }
    return 0;
}

int compare_geometry_load(const char *config_path, compare_geometry *g, char *err, size_t n_err)
{
    json_error_t je;
    char         why[200] = "";
    json_t      *root = json_load_file(config_path, JSON_REJECT_DUPLICATES, &je);
    int          rc;

    if (!root) {
        snprintf(err, n_err, "%s: %s", config_path, je.text);
        return -1;
    }
    rc = geometry_read(root, g, why, sizeof why);
    if (rc)
        snprintf(err, n_err, "%s: %s", config_path, why);
    json_decref(root);
    return rc;
}

void compare_params_default(compare_params *p)
{
    memset(p, 0, sizeof *p);
    p->eps = 1e-5;
    p->bound = 1e-3;
    p->bound_kl = 0.01;
    p->bound_kl_exempt = 0.001;
    p->max_lines = 100;
    p->out = stdout;
}

/* ------------------------------------------------------------------ report lines */

static void line(comparer *k, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void line(comparer *k, const char *format, ...)
{
    va_list ap;

    if (k->lines++ >= k->p->max_lines)
        return;
    va_start(ap, format);
    vfprintf(k->p->out, format, ap);
    va_end(ap);
    fputc('\n', k->p->out);
}

#define fault(k, ...) ((k)->t->n_faults++, line(k, "FAULT " __VA_ARGS__))

static void print_exception(comparer *k, const exception *x)
{
    static const char *const what[] = {"window row", "main entry", "index key", "selection", "router"};
    static const char *const verdict[] = {"UNJUSTIFIED", "near", "follows", "hidden"};
    char                     place[64] = "";
    char                     how_far[96] = "distance unknown";

    if (x->kind == KIND_MAIN || x->kind == KIND_IKEY)
        snprintf(place, sizeof place, ", entry %u", x->at);
    if (x->kind <= KIND_IKEY)
        snprintf(place + strlen(place), sizeof place - strlen(place), ", %s %u", x->is_scale ? "scale from channel" : "channel",
                 x->channel);
    if (x->distance >= 0)
        snprintf(how_far, sizeof how_far, "distance %.2g of value %.6g (%.2g is near)", x->distance, x->value,
                 tolerance(k, x->value));
    if (x->verdict == VERDICT_FOLLOWS && !k->p->list_all)
        return;
    line(k, "%s step %u position %u layer %u: %s%s: %s: %s%s%s", k->c->name, x->step, x->pos, x->layer, what[x->kind], place,
         how_far, verdict[x->verdict], x->note[0] ? "; " : "", x->note);
}

/* ------------------------------------------------------------------ gathering exceptions */

static exception *add(comparer *k, int kind, uint32_t step, uint32_t layer, uint32_t pos, uint32_t at)
{
    if (k->n_ex == k->cap_ex) {
        const size_t cap = k->cap_ex ? k->cap_ex * 2 : 256;
        exception   *e = realloc(k->ex, cap * sizeof *e);

        if (!e) {
            fprintf(stderr, "compare: out of memory\n");
            exit(1);
        }
        k->ex = e;
        k->cap_ex = cap;
    }
    k->ex[k->n_ex] = (exception){.kind = kind, .step = step, .layer = layer, .pos = pos, .at = at, .distance = -1};
    return &k->ex[k->n_ex++];
}

static float e2m1_at(const uint8_t *values, uint32_t channel)
{
    return e2m1_value((uint8_t)(values[channel / 2] >> channel % 2 * 4 & 15));
}

/* One row of packed values and scales. -0 equals 0, since the values do. */
static void compare_fp4(comparer *k, int kind, uint32_t layer, uint32_t entry, uint32_t width, const uint8_t *a,
                        const uint8_t *b)
{
    const uint32_t group = kind == KIND_MAIN ? 16 : 32;
    const uint32_t pos = (entry + 1) * k->p->geometry->ratio[layer] - 1;
    uint32_t       step = 0;

    while (step + 1 < k->c->n_steps && cases_step_start(k->c, step) + k->c->steps[step].n <= pos)
        step++;
    for (uint32_t c = 0; c < width; c += group) {
        const uint8_t sa = a[width / 2 + c / group];
        const uint8_t sb = b[width / 2 + c / group];
        const float   va = kind == KIND_MAIN ? e4m3_value(sa) : e8m0_value(sa);
        const float   vb = kind == KIND_MAIN ? e4m3_value(sb) : e8m0_value(sb);

        if (sa != sb) {
            exception *x = add(k, kind, step, layer, pos, entry);

            x->is_scale = 1;
            x->channel = c;
            x->golden = va;
            x->ours = vb;
            continue;
        }
        for (uint32_t i = c; i < c + group; i++) {
            exception *x;

            if (e2m1_at(a, i) == e2m1_at(b, i))
                continue;
            x = add(k, kind, step, layer, pos, entry);
            x->channel = i;
            x->scale = va;
            x->golden = e2m1_at(a, i);
            x->ours = e2m1_at(b, i);
        }
    }
}

static void gather_entries(comparer *k)
{
    const compare_geometry *g = k->p->geometry;
    const uint32_t          main_bytes = g->head_dim / 2 + g->head_dim / 16;
    const uint32_t          record = main_bytes + g->index_dim / 2 + g->index_dim / 32;
    char                    name[128];

    for (uint32_t l = 0; l < g->n_layers; l++) {
        const st_tensor *a;
        const st_tensor *b;

        snprintf(name, sizeof name, "%s.entries.%u", k->c->name, l);
        a = st_find(k->p->golden, name);
        b = st_find(k->p->ours, name);
        if (!a || !b)
            continue; /* that ours is missing has been reported */
        if (!g->ratio[l] || a->n_dims != 2 || a->shape[1] != record || strcmp(a->dtype, "U8") != 0) {
            fault(k, "%s: not records of %u bytes", name, record);
            continue;
        }
        for (uint32_t j = 0; j < a->shape[0]; j++) {
            const uint8_t *x = (const uint8_t *)a->data + (size_t)j * record;
            const uint8_t *y = (const uint8_t *)b->data + (size_t)j * record;

            if (memcmp(x, y, record) == 0)
                continue;
            compare_fp4(k, KIND_MAIN, l, j, g->head_dim, x, y);
            compare_fp4(k, KIND_IKEY, l, j, g->index_dim, x + main_bytes, y + main_bytes);
        }
    }
}

static void gather_topk(comparer *k, uint32_t step)
{
    const uint32_t end = cases_step_start(k->c, step) + k->c->steps[step].n;

    for (uint32_t l = 0; l < k->p->geometry->n_layers; l++) {
        const st_tensor *a = step_tensor(k->p->golden, k->c, step, "topk", (int32_t)l);
        const st_tensor *b = step_tensor(k->p->ours, k->c, step, "topk", (int32_t)l);

        if (!a || !b)
            continue;
        for (uint32_t r = 0; r < a->shape[0]; r++) {
            const size_t   width = a->shape[1] * sizeof(int32_t);
            const uint32_t pos = end - (uint32_t)a->shape[0] + r;

            if (memcmp((const char *)a->data + r * width, (const char *)b->data + r * width, width) != 0)
                add(k, KIND_TOPK, step, l, pos, pos);
        }
    }
}

static void compare_window_row(comparer *k, uint32_t step, uint32_t layer, uint32_t pos, const evidence *a, const evidence *b)
{
    for (uint32_t c = 0; c + 32 <= a->width; c += 32) {
        stair s = {STAIR_WINDOW_SCALE, 0};
        float ma = 0;
        float mb = 0;
        float sa;
        float sb;

        for (uint32_t i = c; i < c + 32; i++) {
            ma = fmaxf(ma, fabsf(a->row[i]));
            mb = fmaxf(mb, fabsf(b->row[i]));
        }
        sa = stair_value(&s, ma);
        sb = stair_value(&s, mb);
        if (sa != sb) {
            exception *x = add(k, KIND_WINDOW, step, layer, pos, pos);

            x->is_scale = 1;
            x->channel = c;
            x->golden = sa;
            x->ours = sb;
            continue;
        }
        s = (stair){STAIR_E4M3, sa};
        for (uint32_t i = c; i < c + 32; i++) {
            const float va = stair_value(&s, a->row[i]);
            const float vb = stair_value(&s, b->row[i]);

            if (va != vb) {
                exception *x = add(k, KIND_WINDOW, step, layer, pos, pos);

                x->channel = i;
                x->scale = sa;
                x->golden = va;
                x->ours = vb;
            }
        }
    }
}

static void compare_router_row(comparer *k, uint32_t step, uint32_t layer, uint32_t pos, const evidence *a, const evidence *b)
{
    const uint32_t used = k->p->geometry->n_used;
    uint8_t       *in = calloc(2, (size_t)a->width + 1);

    if (!in)
        return;
    top_set(a->row, a->width, used, in);
    top_set(b->row, a->width, used, in + a->width);
    if (memcmp(in, in + a->width, a->width) != 0)
        add(k, KIND_ROUTER, step, layer, pos, pos);
    free(in);
}

/* Window rows and routers, where both sides tell. The bits of a position do not depend on how the tokens before it were cut
 * into steps, so a case with the same beginning may tell for this one. */
static void gather_told(comparer *k, uint32_t step)
{
    const uint32_t start = cases_step_start(k->c, step);

    for (uint32_t pos = start; pos < start + k->c->steps[step].n; pos++)
        for (uint32_t l = 0; l < k->p->geometry->n_layers; l++) {
            evidence a;
            evidence b;

            if (evidence_golden(k, "window", l, pos, pos, &a) == 0 && evidence_ours(k, "window", l, pos, pos, &b) == 0 &&
                a.width == b.width)
                compare_window_row(k, step, l, pos, &a, &b);
            if (evidence_golden(k, "router", l, pos, pos, &a) == 0 && evidence_ours(k, "router", l, pos, pos, &b) == 0 &&
                a.width == b.width)
                compare_router_row(k, step, l, pos, &a, &b);
        }
}

/* ------------------------------------------------------------------ logits */

static uint32_t argmax(const float *v, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (v[i] > v[best])
            best = i;
    return best;
}

/* NaN and infinities count as an infinite difference. */
static double max_diff(const float *a, const float *b, uint32_t n)
{
    double m = 0;

    for (uint32_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);

        if (!(d <= m))
            m = isfinite(d) ? d : INFINITY;
    }
    return m;
}

static double log_sum(const float *v, uint32_t n)
{
    const double top = (double)v[argmax(v, n)];
    double       sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)v[i] - top);
    return log(sum) + top;
}

static double kl(const float *a, const float *b, uint32_t n)
{
    const double za = log_sum(a, n);
    const double zb = log_sum(b, n);
    double       sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)a[i] - za) * ((double)a[i] - za - (double)b[i] + zb);
    return isfinite(sum) ? sum : INFINITY;
}

static int is_exempt(const comparer *k, uint32_t pos)
{
    for (size_t i = 0; i < k->n_ex; i++)
        if (k->ex[i].pos <= pos && k->ex[i].verdict != VERDICT_UNJUSTIFIED)
            return 1;
    return 0;
}

static int has_root(const comparer *k, uint32_t pos)
{
    for (size_t i = 0; i < k->n_ex; i++)
        if (k->ex[i].pos == pos && k->ex[i].is_root)
            return 1;
    return 0;
}

/* One row of an f32 case. */
static void judge_row(comparer *k, uint32_t step, uint32_t pos, const float *a, const float *b, uint32_t n)
{
    const double d = max_diff(a, b, n);
    const int    same = argmax(a, n) == argmax(b, n);
    int          exempt = is_exempt(k, pos);
    char         note[96];

    k->t->n_rows++;
    k->t->n_argmax_equal += (uint64_t)same;
    if (!exempt && (!same || !(d <= k->p->bound))) {
        if (!is_open(k, pos) && find_hidden(k, pos, k->p->geometry->n_layers, note, sizeof note) == 0) {
            exception *x = add(k, KIND_WINDOW, step, k->p->geometry->n_layers, pos, pos);

            x->verdict = VERDICT_HIDDEN;
            x->is_root = 1;
            k->t->n_hidden++;
            line(k, "%s step %u position %u: logits differ by %.3g: hidden; %s", k->c->name, step, pos, d, note);
            exempt = 1;
        } else {
            fault(k, "%s step %u position %u: logits differ by %.3g, likeliest token %u and %u", k->c->name, step, pos, d,
                  argmax(a, n), argmax(b, n));
        }
    }
    k->t->n_exempt += (uint64_t)exempt;
    k->t->n_root += (uint64_t)has_root(k, pos);
    if (exempt) {
        k->t->max_diff_exempt = fmax(k->t->max_diff_exempt, d);
        k->kl_exempt += kl(a, b, n);
        k->rows_exempt++;
    } else
        k->t->max_diff = fmax(k->t->max_diff, d);
}

/* Exempt rows of the case together: an exception moves them a little, a fault by much. */
static void judge_exempt(comparer *k)
{
    const double mean = k->rows_exempt ? k->kl_exempt / (double)k->rows_exempt : 0;

    if (!(mean <= k->p->bound_kl_exempt))
        fault(k, "%s: mean KL of the exempt rows is %.4g nat, must be at most %.4g", k->c->name, mean, k->p->bound_kl_exempt);
    k->t->mean_kl_exempt = fmax(k->t->mean_kl_exempt, mean);
}

/* Logits of the case; bf16 cases by their mean KL. */
static void compare_logits(comparer *k)
{
    double   sum = 0;
    uint64_t rows = 0;

    k->kl_exempt = 0;
    k->rows_exempt = 0;
    for (uint32_t s = 0; s < k->c->n_steps; s++) {
        const st_tensor *a = step_tensor(k->p->golden, k->c, s, "logits", -1);
        const st_tensor *b = step_tensor(k->p->ours, k->c, s, "logits", -1);
        const case_step *cs = &k->c->steps[s];
        const uint32_t   start = cases_step_start(k->c, s);

        if (!a || !b)
            continue;
        if (strcmp(a->dtype, "F32") != 0 || a->n_dims != 2 || a->shape[1] != k->p->geometry->n_vocab ||
            a->shape[0] > cs->n || (cs->has_rows && a->shape[0] != cs->n_rows)) {
            fault(k, "%s step %u: logits are not rows of %u", k->c->name, s, k->p->geometry->n_vocab);
            continue;
        }
        for (uint32_t r = 0; r < a->shape[0]; r++) {
            const uint32_t n = k->p->geometry->n_vocab;
            const float   *x = (const float *)a->data + (size_t)r * n;
            const float   *y = (const float *)b->data + (size_t)r * n;
            const uint32_t pos = cs->has_rows ? start + cs->rows[r] : start + cs->n - (uint32_t)a->shape[0] + r;

            if (!k->c->round_bf16) {
                judge_row(k, s, pos, x, y, n);
                continue;
            }
            sum += kl(x, y, n);
            rows++;
            k->t->n_argmax_equal += argmax(x, n) == argmax(y, n);
        }
    }
    judge_exempt(k);
    if (!rows)
        return;
    k->t->n_rows += rows;
    /* flips add up along a text; the other mode's rounding gives two to ten times as much */
    const double bound = rows > 100 ? 2 * k->p->bound_kl : k->p->bound_kl;

    if (!(sum / (double)rows <= bound))
        fault(k, "%s: mean KL is %.4g nat, must be at most %.4g", k->c->name, sum / (double)rows, bound);
    k->t->mean_kl_bf16 = fmax(k->t->mean_kl_bf16, sum / (double)rows);
}

/* ------------------------------------------------------------------ one case */

/* Everything that the golden file says about the case must be there, except values in front of decisions. */
static void check_presence(comparer *k)
{
    const size_t n = strlen(k->c->name);
    size_t       found = 0;

    for (size_t i = 0; i < st_count(k->p->golden); i++) {
        const st_tensor *a = st_at(k->p->golden, i);
        const st_tensor *b;

        if (strncmp(a->name, k->c->name, n) != 0 || a->name[n] != '.' || strstr(a->name, ".pre."))
            continue;
        found++;
        b = st_find(k->p->ours, a->name);
        if (!b)
            fault(k, "%s is missing", a->name);
        else if (strcmp(a->dtype, b->dtype) != 0 || a->n_dims != b->n_dims ||
                 memcmp(a->shape, b->shape, a->n_dims * sizeof *a->shape) != 0)
            fault(k, "%s has another shape or type", a->name);
    }
    if (!found)
        fault(k, "%s is not in the golden file", k->c->name);
}

static void check_ids(comparer *k)
{
    const st_file *files[] = {k->p->golden, k->p->ours};
    char           name[128];

    snprintf(name, sizeof name, "%s.ids", k->c->name);
    for (size_t i = 0; i < 2; i++) {
        const st_tensor *t = st_find(files[i], name);

        if (t && (strcmp(t->dtype, "I32") != 0 || t->n_bytes != k->c->n_ids * sizeof *k->c->ids ||
                  memcmp(t->data, k->c->ids, t->n_bytes) != 0))
            fault(k, "%s of %s are not the case's", name, i ? "ours" : "golden");
    }
}

/* Replay and prefix hits may be unsupported; nothing else may. */
static int is_skipped(comparer *k)
{
    char             name[128];
    const st_tensor *t;

    snprintf(name, sizeof name, "%s.unsupported", k->c->name);
    if (!(t = st_find(k->p->ours, name)))
        return 0;
    for (uint32_t s = 0; s < k->c->n_steps; s++)
        if (k->c->steps[s].has_hit || k->c->steps[s].decoder_replay) {
            fprintf(k->p->out, "%s: skipped, step %u is not supported\n", k->c->name, s);
            k->t->n_skipped++;
            return 1;
        }
    fault(k, "%s is called unsupported, but has neither a prefix hit nor replay", k->c->name);
    return 1;
}

static void compare_case(comparer *k)
{
    const uint64_t faults = k->t->n_faults;

    k->n_ex = 0;
    if (is_skipped(k))
        return;
    k->t->n_cases++;
    check_presence(k);
    check_ids(k);
    if (k->t->n_faults != faults)
        return; /* shapes are relied on below */
    if (!k->c->round_bf16) {
        gather_entries(k);
        for (uint32_t s = 0; s < k->c->n_steps; s++) {
            gather_topk(k, s);
            gather_told(k, s);
        }
        judge(k);
    }
    for (size_t i = 0; i < k->n_ex; i++) {
        print_exception(k, &k->ex[i]);
        k->t->n_near += k->ex[i].verdict == VERDICT_NEAR;
        k->t->n_follows += k->ex[i].verdict == VERDICT_FOLLOWS;
        k->t->n_hidden += k->ex[i].verdict == VERDICT_HIDDEN;
        k->t->n_unjustified += k->ex[i].verdict == VERDICT_UNJUSTIFIED;
    }
    compare_logits(k);
}

/* ------------------------------------------------------------------ all of it */

/* Tensors that nobody asked for are a sign that one of the files is another run's. */
static void check_strays(comparer *k)
{
    for (size_t i = 0; i < st_count(k->p->ours); i++) {
        const char *name = st_at(k->p->ours, i)->name;

        if (!st_find(k->p->golden, name) && !strstr(name, ".pre.") && !strstr(name, ".topk.") &&
            !strstr(name, ".unsupported"))
            fault(k, "%s is not in the golden file", name);
    }
}

static void print_totals(const comparer *k, int bad)
{
    const compare_totals *t = k->t;
    FILE                 *out = k->p->out;

    if (k->lines > k->p->max_lines)
        fprintf(out, "... and %u lines more\n", k->lines - k->p->max_lines);
    fprintf(out, "cases       %u compared, %u skipped\n", t->n_cases, t->n_skipped);
    fprintf(out, "rows        %llu; an exception begins in %llu (at most 2 in 100), %llu are exempt by their history\n",
            (unsigned long long)t->n_rows, (unsigned long long)t->n_root, (unsigned long long)t->n_exempt);
    fprintf(out, "exceptions  %llu near, %llu follow, %llu hidden, %llu unjustified; %llu faults\n", (unsigned long long)t->n_near,
            (unsigned long long)t->n_follows, (unsigned long long)t->n_hidden, (unsigned long long)t->n_unjustified,
            (unsigned long long)t->n_faults);
    fprintf(out, "logits      differ by %.3g at most (%.3g in exempt rows); likeliest token equal in %llu rows\n", t->max_diff,
            t->max_diff_exempt, (unsigned long long)t->n_argmax_equal);
    if (t->n_exempt)
        fprintf(out, "exempt      mean KL of the worst case %.3g nat (at most %g)\n", t->mean_kl_exempt,
                k->p->bound_kl_exempt);
    if (t->mean_kl_bf16 > 1e-15) /* rounding of the logarithms alone is below */
        fprintf(out, "bf16        mean KL of the worst case %.4g nat\n", t->mean_kl_bf16);
    fprintf(out, "%s\n", bad ? "DIFFERENT" : "EQUAL");
}

int compare_run(const compare_params *p, compare_totals *totals)
{
    comparer k = {.p = p, .t = totals};
    int      bad;

    memset(totals, 0, sizeof *totals);
    for (uint32_t i = 0; i < p->cases->n; i++) {
        k.c = &p->cases->items[i];
        compare_case(&k);
    }
    check_strays(&k);
    bad = totals->n_faults || totals->n_unjustified || totals->n_rows == 0 || totals->n_root * 50 > totals->n_rows;
    print_totals(&k, bad);
    free(k.ex);
    return bad;
}
