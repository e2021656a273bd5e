/* The mass that spans receive, against attention done once more in double precision. */
#include "pool/pool_int.h"
#include "support/work_world.h"

#include "base/checked.h"
#include "format/fp8.h"
#include "format/row.h"

#include <math.h>

#define HEADS 4u
#define WIDTH 96u
#define ENTRY_LAYERS 8u /* that read entries */

/* The pool's operators, but attention is done once more in double precision. */
typedef struct naive {
    const kvi_backend_ops *real;
    double                 spans[N_SPANS]; /* of entries */
    double                 rest;           /* window and sink */
    uint64_t               n_rows;         /* that could select */
} naive;
static naive the_naive; /* an operator has no user pointer */

static const uint8_t *window_row(const kvi_attend_params *p, uint64_t pos)
{
    const uint64_t slot = pos % ((uint64_t)p->page_rows * p->n_pages);

    if (pos >= p->chunk_pos)
        return p->chunk + (pos - p->chunk_pos) * p->row_bytes;
    return p->pages[slot / p->page_rows] + p->page_off + slot % p->page_rows * p->row_bytes;
}

static double score_of(const kvi_attend_params *p, size_t row, size_t head, const float *key)
{
    const float *q = p->q + (row * p->n_heads + head) * p->width;
    double       dot = 0;

    for (uint32_t c = 0; c < p->width; c++)
        dot += (double)q[c] * (double)key[c];
    return exp(dot * (double)p->scale);
}

/* The call of one row: the fields say what the tables say of its slice. */
static kvi_attend_params of_row(const kvi_attend_params *p, size_t row)
{
    const kvi_slice      *s = &p->of.slices[row / p->of.each];
    const kvi_slice_rows *r = &p->of.rows[row / p->of.each];
    kvi_attend_params     one = *p;

    one.pages = s->pages;
    one.entries.main_parts = s->main_parts;
    one.chunk += r->row * p->row_bytes;
    one.chunk_pos = r->pos;
    one.floor = r->floor;
    return one;
}

/* One head of a row: probabilities of its selected entries are added to their spans. */
static void attend_naively(const kvi_attend_params *p, size_t row, size_t head, double *slots)
{
    const kvi_kv_owner *o = p->entries.owner;
    const uint64_t      pos = p->pos[row];
    const uint64_t      lo = pos + 1 > p->n_window ? pos + 1 - p->n_window : 0;
    double              e[TOP_K] = {0};
    double              rest = exp((double)p->sink[head]);
    double              sum;
    float               key[WIDTH];

    for (uint64_t at = kvi_max_size(lo, p->floor); at <= pos; at++) {
        const uint8_t *bytes = window_row(p, at);

        kvi_dequant_window(bytes, bytes + p->width, p->width, key);
        rest += score_of(p, row, head, key);
    }
    sum = rest;
    for (uint32_t j = 0; j < p->k && p->ids[row * p->k + j] >= 0; j++) {
        const uint32_t id = (uint32_t)p->ids[row * p->k + j];

        kvi_row_decode(o->entry_format,
                       p->entries.main_parts[id / o->rows_per_block] +
                           kvi_kv_main_row_off(o, id % o->rows_per_block),
                       p->width, key);
        sum += e[j] = score_of(p, row, head, key);
    }
    for (uint32_t j = 0; j < p->k && p->ids[row * p->k + j] >= 0; j++) {
        slots[j] += e[j] / sum;
        the_naive.spans[(uint32_t)p->ids[row * p->k + j] * o->ratio / SPAN] += e[j] / sum;
    }
    the_naive.rest += rest / sum;
}

static kvcsa_status attend_twice(kvi_device *dev, const kvi_attend_params *p, kvcsa_error *err)
{
    const kvcsa_status st = the_naive.real->attend(dev, p, err);

    for (size_t i = 0; i < p->n_rows && p->mass; i++) {
        const kvi_attend_params one = of_row(p, i);
        double                  slots[TOP_K] = {0};

        for (size_t h = 0; h < p->n_heads; h++)
            attend_naively(&one, i, h, slots);
        for (uint32_t j = 0; j < p->k; j++)
            assert_true(fabs(slots[j] - (double)p->mass[i * p->k + j]) < 1e-4);
        the_naive.n_rows++;
    }
    return st;
}

/* The spans of s received what double precision says. */
static void check_mass(kvcsa_session *s)
{
    const uint64_t n_rows = the_naive.n_rows;
    double         mass[N_SPANS];
    double         sum = 0;
    size_t         n = 0;
    kvcsa_error    err;

    assert_ok(kvcsa_session_get_mass(s, mass, N_SPANS, &n, 0, &err));
    assert_int_equal(n, (kvcsa_session_length(s) + SPAN - 1) / SPAN);
    for (size_t i = 0; i < n; i++) {
        assert_true(fabs(mass[i] - the_naive.spans[i]) < 1e-3);
        sum += mass[i];
    }
    assert_true(sum > 0);
    assert_true(fabs(sum + the_naive.rest - (double)(n_rows * HEADS)) < 1e-2);
}

static void test_mass_is_what_attention_gave(void **state)
{
    const world         *w = *state;
    kvcsa_pool          *pool = host_pool(1, 0);
    kvi_backend_ops      ops = *pool->ops;
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s;
    kvcsa_session       *f;
    double               mass[N_SPANS];
    size_t               n = 0;
    kvcsa_error          err;

    the_naive = (naive){.real = pool->ops};
    ops.attend = attend_twice;
    pool->ops = &ops;
    p.flags = KVCSA_SESSION_TRACK_MASS;
    p.chunk_tokens = 50;
    s = make_session(pool, w->model, &p);
    host_run(pool, s, w->ids, 200, NULL);
    assert_int_equal(the_naive.n_rows, 200 * ENTRY_LAYERS);
    check_mass(s);
    for (uint64_t i = 200; i < 230; i++)
        host_run(pool, s, w->ids + i, 1, NULL);
    assert_int_equal(the_naive.n_rows, 230 * ENTRY_LAYERS);
    check_mass(s);
    /* a fork begins at zero, and so does a session that asks for it */
    f = fork_session(s, 230);
    assert_ok(kvcsa_session_get_mass(f, mass, N_SPANS, &n, 0, &err));
    assert_int_equal(n, 15);
    for (size_t i = 0; i < n; i++)
        assert_true(mass[i] == 0);
    assert_ok(kvcsa_session_get_mass(s, NULL, 0, &n, 1, &err));
    the_naive = (naive){.real = the_naive.real};
    assert_ok(kvcsa_session_hide(s, 0, 208, 1, &err)); /* what is hidden receives nothing */
    host_run(pool, s, w->ids + 230, 40, NULL);
    check_mass(s);
    assert_ok(kvcsa_session_get_mass(s, mass, N_SPANS, &n, 0, &err));
    for (size_t i = 0; i < n; i++)
        assert_true(i < 13 ? mass[i] == 0 : mass[i] > 0);
    kvcsa_session_release(&s);
    kvcsa_session_release(&f);
    pool->ops = the_naive.real;
    kvcsa_pool_release(&pool);
}

/* Sessions of one batch, of which one counts it. */
static void test_mass_of_a_batch(void **state)
{
    const world         *w = *state;
    kvcsa_session_params p = session_defaults();
    kvcsa_session       *s[3];
    double               solo[N_SPANS];
    double               mass[N_SPANS];
    size_t               n = 0;
    kvcsa_error          err;

    p.reuse = KVCSA_REUSE_NONE;
    p.flags = KVCSA_SESSION_TRACK_MASS;
    s[1] = make_session(w->pool, w->model, &p);
    host_run(w->pool, s[1], w->ids, 120, NULL);
    assert_ok(kvcsa_session_get_mass(s[1], solo, N_SPANS, &n, 0, &err));
    kvcsa_session_release(&s[1]);
    for (int i = 0; i < 3; i++) {
        p.flags = i == 1 ? KVCSA_SESSION_TRACK_MASS : 0;
        s[i] = make_session(w->pool, w->model, &p);
        assert_ok(kvcsa_session_append(s[i], w->ids + (i == 1 ? 0 : 9), 120, NULL, NULL, &err));
    }
    assert_ok(kvcsa_pool_step(w->pool, s, 3, NULL, NULL, &err));
    assert_ok(kvcsa_session_get_mass(s[1], mass, N_SPANS, &n, 0, &err));
    assert_int_equal(n, 8);
    assert_memory_equal(mass, solo, n * sizeof *mass);
    for (int i = 0; i < 3; i++)
        kvcsa_session_release(&s[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mass_is_what_attention_gave),
        cmocka_unit_test(test_mass_of_a_batch),
    };

    return cmocka_run_group_tests(tests, world_set_up, world_tear_down);
}
