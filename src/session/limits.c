/* What a session lets selection see below what the plan says; and what it counts: work of layers,
 * attention by spans of tokens. */
#include <string.h>

#include "base/status.h"
#include "session/session_int.h"

/* ------------------------------------------------------------------ limits */

int kvi_session_is_limited(const kvcsa_session *s)
{
    const kvi_select_limits *l = &s->limits;

    return l->select_entries || l->candidate_blocks || l->window_only || l->n_hidden ||
           l->rest_hidden;
}

void kvi_session_init_limits(kvcsa_session *s)
{
    s->limits = (kvi_select_limits){
        .select_entries = s->set.select_entries,
        .candidate_blocks = s->set.candidate_blocks,
        .window_only = (s->set.flags & KVCSA_SESSION_WINDOW_ONLY) != 0,
        .span_tokens = kvi_plan_span_tokens(&s->model->plan),
    };
}

kvcsa_status kvi_session_copy_limits(kvcsa_session *to, const kvcsa_session *from, kvcsa_error *err)
{
    const size_t n = from->limits.n_hidden;

    if (!kvi_buf_reserve(&to->allocator, &to->hidden, 1, 0, n))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of %zu hidden spans", n);
    if (n)
        memcpy(to->hidden.data, from->hidden.data, n);
    to->limits.hidden = to->hidden.data;
    to->limits.n_hidden = n;
    to->limits.rest_hidden = from->limits.rest_hidden;
    return KVCSA_OK;
}

void kvi_session_clear_mass(kvcsa_session *s)
{
    if (s->mass.data)
        memset(s->mass.data, 0, s->mass.cap * sizeof(double));
    s->n_mass = 0;
}

void kvi_session_clear_limits(kvcsa_session *s)
{
    kvi_session_init_limits(s);
    kvi_session_clear_mass(s);
}

static kvcsa_status check_span(const kvcsa_session *s, const char *field, uint64_t position,
                               kvcsa_error *err)
{
    if (position % s->limits.span_tokens == 0)
        return KVCSA_OK;
    return kvi_fail(err, KVCSA_ERR_ARG, "%s is %llu, must be a multiple of %u", field,
                    (unsigned long long)position, s->limits.span_tokens);
}

/* Spans at the end that are as the rest is need not be listed. */
static void shorten_list(kvi_select_limits *l)
{
    while (l->n_hidden && l->hidden[l->n_hidden - 1] == (l->rest_hidden ? 1 : 0))
        l->n_hidden--;
}

kvcsa_status kvi_session_hide(kvcsa_session *s, uint64_t begin, uint64_t end, int hidden,
                              kvcsa_error *err)
{
    kvi_select_limits *l = &s->limits;
    const uint64_t     most = kvi_div_up(s->model->plan.max_tokens, l->span_tokens);
    const int          rest = end == UINT64_MAX;
    uint8_t           *list;
    size_t             first;
    size_t             last;
    kvcsa_status       st;

    if ((st = check_span(s, "begin", begin, err)) != KVCSA_OK ||
        (!rest && (st = check_span(s, "end", end, err)) != KVCSA_OK))
        return st;
    if (begin > end)
        return kvi_fail(err, KVCSA_ERR_ARG, "begin is %llu, end is %llu", (unsigned long long)begin,
                        (unsigned long long)end);
    if (s->n_queued)
        return kvi_fail(err, KVCSA_ERR_ARG, "hide: %zu tokens are queued", s->n_queued);
    first = kvi_min_size(begin / l->span_tokens, most);
    last = rest ? kvi_max_size(first, l->n_hidden) : kvi_min_size(end / l->span_tokens, most);
    if (!kvi_buf_reserve(&s->allocator, &s->hidden, 1, l->n_hidden, last))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of %zu hidden spans", last);
    list = s->hidden.data;
    if (last > l->n_hidden) {
        memset(list + l->n_hidden, l->rest_hidden ? 1 : 0, last - l->n_hidden);
        l->n_hidden = last;
    }
    if (last > first)
        memset(list + first, hidden ? 1 : 0, last - first);
    l->hidden = list;
    if (rest)
        l->rest_hidden = hidden ? 1 : 0;
    shorten_list(l);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ counts */

kvcsa_status kvi_session_prepare_counts(kvcsa_session *s, uint64_t end, kvcsa_error *err)
{
    const size_t n_layers = s->model->plan.n_layers;
    const size_t n_held = kvi_div_up(s->now.n_tokens, s->limits.span_tokens);
    const size_t n_spans = kvi_div_up(end, s->limits.span_tokens);
    const size_t had = s->mass.cap;

    if ((!s->cache_only || s->set.flags & KVCSA_SESSION_CACHE_ONLY) && !s->work &&
        !(s->work = kvi_zalloc(&s->allocator, 2 * n_layers * sizeof *s->work)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "counts of %zu layers", n_layers);
    if (!(s->set.flags & KVCSA_SESSION_TRACK_MASS))
        return KVCSA_OK;
    if (s->n_mass > n_held) { /* of tokens that are no more, or of a chunk that came to nothing */
        memset((double *)s->mass.data + n_held, 0, (s->n_mass - n_held) * sizeof(double));
        s->n_mass = n_held;
    }
    if (!kvi_buf_reserve(&s->allocator, &s->mass, sizeof(double), s->n_mass, n_spans))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "attention of %zu spans", n_spans);
    if (s->mass.cap > had)
        memset((double *)s->mass.data + s->n_mass, 0, (s->mass.cap - s->n_mass) * sizeof(double));
    s->n_mass = kvi_max_size(s->n_mass, n_spans);
    return KVCSA_OK;
}

/* Every field is a count of 64 bits. */
static void add_work(kvcsa_work *to, const kvcsa_work *from)
{
    enum { N = sizeof(kvcsa_work) / sizeof(uint64_t) };
    uint64_t a[N];
    uint64_t b[N];

    memcpy(a, to, sizeof a);
    memcpy(b, from, sizeof b);
    for (int i = 0; i < N; i++)
        a[i] += b[i];
    memcpy(to, a, sizeof a);
}

void kvi_session_begin_work(kvcsa_session *s)
{
    const uint32_t n_layers = s->model->plan.n_layers;

    if (!s->work)
        return;
    for (uint32_t l = 0; l < n_layers; l++)
        add_work(&s->work[n_layers + l], &s->work[l]);
    memset(s->work, 0, n_layers * sizeof *s->work);
}

void kvi_session_layer_work(const kvcsa_session *s, uint32_t layer, kvcsa_work *step,
                            kvcsa_work *total)
{
    static const kvcsa_work none = {0};
    const uint32_t          n_layers = s->model->plan.n_layers;
    const kvcsa_work       *now = s->work ? &s->work[layer] : &none;

    if (step)
        *step = *now;
    if (!total)
        return;
    *total = s->work ? s->work[n_layers + layer] : none;
    add_work(total, now);
}

static uint32_t group_of(const kvi_plan_row *row)
{
    switch (row->select) {
    case KVCSA_SELECT_NONE:
        return KVCSA_LAYERS_WINDOW;
    case KVCSA_SELECT_OWN:
    case KVCSA_SELECT_ALL:
        return KVCSA_LAYERS_FULL;
    case KVCSA_SELECT_REINDEX:
        return KVCSA_LAYERS_REINDEX;
    default:
        return KVCSA_LAYERS_REUSE;
    }
}

void kvi_session_group_work(const kvcsa_session *s, kvcsa_work *step, kvcsa_work *total)
{
    memset(step, 0, KVCSA_N_LAYER_GROUPS * sizeof *step);
    memset(total, 0, KVCSA_N_LAYER_GROUPS * sizeof *total);
    for (uint32_t l = 0; l < s->model->plan.n_layers; l++) {
        const uint32_t g = group_of(&s->model->plan.rows[l]);
        kvcsa_work     one;
        kvcsa_work     all;

        kvi_session_layer_work(s, l, &one, &all);
        add_work(&step[g], &one);
        add_work(&total[g], &all);
    }
}

size_t kvi_session_get_mass(kvcsa_session *s, double *mass, size_t cap, int reset)
{
    const size_t n = kvi_div_up(s->now.n_tokens, s->limits.span_tokens);

    for (size_t i = 0; i < kvi_min_size(n, cap); i++)
        mass[i] = i < s->n_mass ? ((const double *)s->mass.data)[i] : 0;
    if (reset && s->n_mass)
        memset(s->mass.data, 0, s->n_mass * sizeof(double));
    return n;
}
