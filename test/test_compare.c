/* The comparing tool itself: golden results against copies with planted faults. A tool that cannot fail proves nothing. */
#include "support/boundary.h"
#include "support/compare.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN "test/golden/t1/t1-f32"
#define CONFIG "test/data/t1/config.json"
#define RECORD 88u /* 48 + 6 + 32 + 2 */

typedef struct fixture {
    st_file         *golden;
    case_list        cases;
    compare_geometry g;
} fixture;

/* A change: bytes of one tensor, or drop it, or add one. */
typedef struct plant {
    const char *name;
    size_t      off;
    const void *bytes;
    size_t      n;
    int         drop;
} plant;

typedef struct verdict {
    int            bad;
    compare_totals t;
} verdict;

static int load(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    char     err[256];

    assert_non_null(f);
    *state = f;
    if (!(f->golden = st_open(GOLDEN ".safetensors", err, sizeof err)) ||
        cases_load(GOLDEN ".json", &f->cases, err, sizeof err) != 0 ||
        compare_geometry_load(CONFIG, &f->g, err, sizeof err) != 0) {
        print_error("%s\n", err);
        return -1;
    }
    return 0;
}

static int unload(void **state)
{
    fixture *f = *state;

    st_close(f->golden);
    cases_free(&f->cases);
    free(f);
    return 0;
}

/* The golden file with changes, through a real file. keep_pre: ours tells the values in front of its decisions. */
static st_file *planted(const fixture *f, int keep_pre, const plant *plants, size_t n)
{
    char       path[] = "/tmp/kvcsa-compare-XXXXXX";
    char       err[256];
    const int  fd = mkstemp(path);
    st_writer *w = st_create();
    st_file   *out;

    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < st_count(f->golden); i++) {
        const st_tensor *t = st_at(f->golden, i);
        uint8_t         *copy = malloc(t->n_bytes + 1);
        int              drop = !keep_pre && strstr(t->name, ".pre.");

        memcpy(copy, t->data, t->n_bytes);
        for (size_t k = 0; k < n; k++)
            if (strcmp(plants[k].name, t->name) == 0) {
                drop |= plants[k].drop;
                assert_true(plants[k].off + plants[k].n <= t->n_bytes);
                if (plants[k].n)
                    memcpy(copy + plants[k].off, plants[k].bytes, plants[k].n);
            }
        if (!drop)
            assert_int_equal(st_add(w, t->name, t->dtype, t->n_dims, t->shape, copy), 0);
        free(copy);
    }
    for (size_t k = 0; k < n; k++)
        if (!st_find(f->golden, plants[k].name)) {
            const uint64_t shape = plants[k].n / 4;

            assert_int_equal(st_add(w, plants[k].name, "I32", 1, &shape, plants[k].bytes), 0);
        }
    assert_int_equal(st_write(w, path, err, sizeof err), 0);
    st_destroy(w);
    out = st_open(path, err, sizeof err);
    unlink(path);
    assert_non_null(out);
    return out;
}

static verdict judged(const fixture *f, double eps, int keep_pre, const plant *plants, size_t n)
{
    compare_params p;
    verdict        v;
    FILE          *nowhere = fopen("/dev/null", "w");
    st_file       *ours = planted(f, keep_pre, plants, n);

    assert_non_null(nowhere);
    compare_params_default(&p);
    p.golden = f->golden;
    p.ours = ours;
    p.cases = &f->cases;
    p.geometry = &f->g;
    p.eps = eps;
    p.out = nowhere;
    v.bad = compare_run(&p, &v.t);
    st_close(ours);
    fclose(nowhere);
    return v;
}

static const uint8_t *record_at(const fixture *f, const char *name, uint32_t entry)
{
    const st_tensor *t = st_find(f->golden, name);

    assert_non_null(t);
    return (const uint8_t *)t->data + (size_t)entry * RECORD;
}

static uint8_t code_at(const uint8_t *values, uint32_t channel)
{
    return values[channel / 2] >> channel % 2 * 4 & 15;
}

/* The next code up or down of one channel, as the byte that holds it. */
static uint8_t moved(const uint8_t *values, uint32_t channel, uint8_t code)
{
    const unsigned shift = channel % 2 * 4;

    return (uint8_t)((values[channel / 2] & ~(15u << shift)) | (unsigned)code << shift);
}

/* The main channel of T1's layer 2 or 5 that is nearest to another code, and that code. */
typedef struct tie {
    uint32_t layer, entry, channel;
    uint8_t  code;
    double   distance; /* in units of max(1, |value|) */
    char     entries[32];
    uint8_t  byte;
    size_t   off;
} tie;

static tie find_tie(const fixture *f, uint32_t layer, uint32_t last_entry, int farthest)
{
    tie              best = {.layer = layer, .distance = farthest ? -1 : INFINITY};
    char             name[64];
    const st_tensor *pre;

    snprintf(name, sizeof name, "oneshot61.step0.pre.main.%u", layer);
    snprintf(best.entries, sizeof best.entries, "oneshot61.entries.%u", layer);
    pre = st_find(f->golden, name);
    assert_non_null(pre);
    for (uint32_t j = 0; j <= last_entry; j++)
        for (uint32_t c = 0; c < f->g.head_dim; c++) {
            const uint8_t *r = record_at(f, best.entries, j);
            const float    v = ((const float *)pre->data)[j * f->g.head_dim + c];
            const stair    s = {STAIR_E2M1, e4m3_value(r[f->g.head_dim / 2 + c / 16])};
            const uint8_t  code = code_at(r, c);

            for (int step = -1; step <= 1; step += 2) {
                const uint8_t other = (uint8_t)(code + step);
                double        d;

                if ((code & 7) + step < 0 || (code & 7) + step > 7)
                    continue;
                d = stair_distance(&s, v, e2m1_value(other)) / fmax(1, fabs((double)v));
                if (farthest ? d > best.distance : d < best.distance) {
                    best.distance = d;
                    best.entry = j;
                    best.channel = c;
                    best.code = other;
                    best.byte = moved(r, c, other);
                    best.off = (size_t)j * RECORD + c / 2;
                }
            }
        }
    return best;
}

/* ------------------------------------------------------------------ the readers */

/* The fuzzer's stored inputs say in their names what must become of them. */
static void test_readers_refuse_what_is_bad(void **state)
{
    static const char dir[] = "test/fuzz/corpus/case";
    DIR              *d = opendir(dir);
    struct dirent    *e;
    int               n_good = 0;
    int               n_bad = 0;

    (void)state;
    assert_non_null(d);
    while ((e = readdir(d))) {
        char      path[512];
        char      err[256] = "";
        case_list list;
        int       rc;

        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strstr(e->d_name, ".json")) {
            rc = cases_load(path, &list, err, sizeof err);
            cases_free(&list);
        } else {
            st_file *f = st_open(path, err, sizeof err);

            rc = f ? 0 : -1;
            st_close(f);
        }
        if ((rc == 0) != (strncmp(e->d_name, "good", 4) == 0) || (rc != 0 && !strstr(err, e->d_name)))
            fail_msg("%s: %d, \"%s\"", e->d_name, rc, err);
        n_good += rc == 0;
        n_bad += rc != 0;
    }
    closedir(d);
    assert_true(n_good >= 2 && n_bad >= 15);
}

static void test_writer_refuses_what_it_cannot_write(void **state)
{
    const uint64_t shape[9] = {2, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint64_t huge[2] = {UINT64_C(1) << 40, UINT64_C(1) << 40};
    const float    data[2] = {1, 2};
    char           err[256] = "";
    st_writer     *w = st_create();

    (void)state;
    assert_int_equal(st_add(w, "a", "F32", 1, shape, data), 0);
    assert_int_equal(st_add(w, "a", "F32", 1, shape, data), -1);
    assert_int_equal(st_add(w, "b", "F33", 1, shape, data), -1);
    assert_int_equal(st_add(w, "c", "F32", 9, shape, data), -1);
    assert_int_equal(st_add(w, "d", "F32", 2, huge, data), -1);
    assert_int_equal(st_add(w, "__metadata__", "F32", 1, shape, data), -1);
    assert_int_equal(st_write(w, "/nowhere/at/all", err, sizeof err), -1);
    assert_non_null(strstr(err, "/nowhere/at/all"));
    st_destroy(w);
}

/* ------------------------------------------------------------------ boundaries */

static void check_stairs(const fixture *f, uint32_t layer, int index)
{
    const uint32_t   width = index ? f->g.index_dim : f->g.head_dim;
    const uint32_t   group = index ? 32 : 16;
    char             name[64];
    const st_tensor *pre;

    snprintf(name, sizeof name, "oneshot61.step0.pre.%s.%u", index ? "ikey" : "main", layer);
    pre = st_find(f->golden, name);
    assert_non_null(pre);
    snprintf(name, sizeof name, "oneshot61.entries.%u", layer);
    for (uint32_t j = 0; j < pre->shape[0]; j++) {
        const uint8_t *r = record_at(f, name, j) + (index ? f->g.head_dim / 2 + f->g.head_dim / 16 : 0);
        const float   *v = (const float *)pre->data + (size_t)j * width;

        for (uint32_t c = 0; c < width; c++) {
            stair s = {index ? STAIR_INDEX_SCALE : STAIR_MAIN_SCALE, 0};
            float amax = 0;

            for (uint32_t i = c / group * group; i < (c / group + 1) * group; i++)
                amax = fmaxf(amax, fabsf(v[i]));
            s.scale = stair_value(&s, amax);
            assert_true(s.scale == (index ? e8m0_value : e4m3_value)(r[width / 2 + c / group]));
            s.kind = STAIR_E2M1;
            assert_true(stair_value(&s, v[c]) == e2m1_value(code_at(r, c)));
        }
    }
}

static void test_boundary_stairs_give_the_golden_bytes(void **state)
{
    const uint32_t owners[] = {2, 4, 5};

    for (size_t i = 0; i < 3; i++) {
        check_stairs(*state, owners[i], 0);
        check_stairs(*state, owners[i], 1);
    }
}

static void test_boundary_distance_is_that_of_the_midpoint(void **state)
{
    const stair half = {STAIR_E2M1, 0.5f};   /* codes 1 and 1.5 part at 1.25, that is 0.625 */
    const stair one = {STAIR_E4M3, 1};       /* 1 and 1.125 part at 1.0625, which belongs to 1 (even) */
    const stair pow = {STAIR_WINDOW_SCALE, 0};

    (void)state;
    /* bf16 values near 0.625 are 2^-8 apart: what rounds to 0.625 + 2^-8 begins half way */
    assert_true(fabs(stair_distance(&half, 0.6f, 1.5f) - (0.625 + 0x1p-9 - 0.6)) < 1e-6);
    assert_true(stair_value(&half, 0.625f) == 1);
    assert_true(stair_value(&one, 1.0625f) == 1 && stair_value(&one, 1.0703125f) == 1.125f);
    assert_true(stair_distance(&one, 1.0f, 1.0f) == 0);
    assert_true(stair_value(&pow, 448) == 1 && stair_value(&pow, 450) == 2);
    assert_true(stair_near(&pow, 448.9f, 0.2) && !stair_near(&pow, 440, 0.2));
}

/* ------------------------------------------------------------------ equal */

static void test_compare_golden_with_itself_is_equal(void **state)
{
    const verdict v = judged(*state, 1e-5, 1, NULL, 0);
    const verdict w = judged(*state, 1e-5, 0, NULL, 0);

    assert_int_equal(v.bad, 0);
    assert_int_equal(w.bad, 0);
    assert_int_equal(v.t.n_cases, 14);
    assert_int_equal(v.t.n_argmax_equal, v.t.n_rows);
    assert_int_equal(v.t.n_exempt, 0);
    assert_true(v.t.n_rows > 1000 && v.t.max_diff == 0);
}

static void test_compare_negative_zero_equals_zero(void **state)
{
    const fixture *f = *state;
    const uint8_t *r;
    uint32_t       j = 0;
    uint32_t       c = 0;
    uint8_t        byte;
    plant          p = {.name = "oneshot61.entries.5", .bytes = &byte, .n = 1};

    for (; j < 61; j++) {
        r = record_at(f, p.name, j);
        for (c = 0; c < 96 && code_at(r, c) % 8 != 0; c++)
            ;
        if (c < 96)
            break;
    }
    assert_true(j < 61);
    byte = moved(r, c, code_at(r, c) ^ 8);
    p.off = (size_t)j * RECORD + c / 2;
    assert_int_equal(judged(f, 1e-5, 1, &p, 1).bad, 0);
}

/* ------------------------------------------------------------------ faults are seen */

static void test_compare_sees_a_flipped_code(void **state)
{
    const fixture *f = *state;
    const tie      t = find_tie(f, 5, 60, 1);
    const plant    p = {.name = t.entries, .off = t.off, .bytes = &t.byte, .n = 1};
    const verdict  v = judged(f, 1e-5, 1, &p, 1);

    assert_true(v.bad);
    assert_int_equal(v.t.n_unjustified, 1);
}

static void test_compare_counts_a_flipped_scale_once(void **state)
{
    const uint8_t *r = record_at(*state, "oneshot61.entries.4", 7);
    const uint8_t  main_scale = (uint8_t)(r[48] + 1);
    const uint8_t  index_scale = (uint8_t)(r[86] + 1);
    const plant    p[] = {{.name = "oneshot61.entries.4", .off = 7 * RECORD + 48, .bytes = &main_scale, .n = 1},
                          {.name = "oneshot61.entries.4", .off = 7 * RECORD + 86, .bytes = &index_scale, .n = 1}};

    assert_int_equal(judged(*state, 1e-5, 1, p, 1).t.n_unjustified, 1);
    assert_int_equal(judged(*state, 1e-5, 1, p, 2).t.n_unjustified, 2);
}

static void test_compare_sees_another_selection(void **state)
{
    const st_tensor *t = st_find(((fixture *)*state)->golden, "oneshot61.step0.topk.5");
    const int32_t   *row = (const int32_t *)t->data + 50 * t->shape[1];
    int32_t          ids[8];
    int32_t          other = 50; /* an entry that is visible and not chosen */
    plant            p = {.name = t->name, .off = 50 * 8 * sizeof(int32_t), .bytes = ids, .n = sizeof ids};
    verdict          v;

    assert_int_equal(t->shape[1], 8);
    memcpy(ids, row, sizeof ids);
    for (int i = 7; i >= 0; i--)
        other -= ids[i] == other;
    ids[0] = other;
    v = judged(*state, 1e-5, 1, &p, 1);
    assert_true(v.bad);
    assert_int_equal(v.t.n_unjustified, 1);
    ids[0] = 61; /* not an entry at all */
    assert_true(judged(*state, 10, 1, &p, 1).bad);
}

static void test_compare_holds_logits_to_the_bound(void **state)
{
    const st_tensor *t = st_find(((fixture *)*state)->golden, "prefill37.step0.logits");
    const float      was = ((const float *)t->data)[20 * 512 + 3];
    float            now = was + 9e-4f;
    const plant      p = {.name = t->name, .off = (20 * 512 + 3) * sizeof(float), .bytes = &now, .n = sizeof now};
    verdict          v = judged(*state, 1e-5, 1, &p, 1);

    assert_int_equal(v.bad, 0);
    assert_true(v.t.max_diff > 8e-4 && v.t.max_diff <= 1e-3);
    now = was - 2e-3f;
    v = judged(*state, 1e-5, 1, &p, 1);
    assert_true(v.bad);
    assert_int_equal(v.t.n_faults, 1);
    now = NAN;
    assert_int_equal(judged(*state, 1e-5, 1, &p, 1).t.n_faults, 1);
}

static void test_compare_sees_another_likeliest_token(void **state)
{
    const st_tensor *t = st_find(((fixture *)*state)->golden, "prefill16.step0.logits");
    const float     *row = t->data;
    uint32_t         top = 0;
    float            more;
    plant            p = {.name = t->name, .bytes = &more, .n = sizeof more};
    verdict          v;

    for (uint32_t i = 1; i < 512; i++)
        if (row[i] > row[top])
            top = i;
    more = row[top] + 1;
    p.off = (top == 5 ? 6 : 5) * sizeof(float);
    v = judged(*state, 1e-5, 1, &p, 1);
    assert_true(v.bad);
    assert_int_equal(v.t.n_argmax_equal, v.t.n_rows - 1);
}

static void test_compare_wants_every_tensor(void **state)
{
    const int32_t other = 7;
    const plant   gone = {.name = "chunks61.step2.logits", .drop = 1};
    const plant   stray = {.name = "chunks61.step9.logits", .bytes = &other, .n = 4};
    const plant   ids = {.name = "prefill15.ids", .off = 8, .bytes = &other, .n = 4};

    assert_int_equal(judged(*state, 1e-5, 1, &gone, 1).t.n_faults, 1);
    assert_int_equal(judged(*state, 1e-5, 1, &stray, 1).t.n_faults, 1);
    assert_true(judged(*state, 1e-5, 1, &ids, 1).bad);
}

static void test_compare_skips_replay_only(void **state)
{
    const int32_t step = 1;
    const plant   hit = {.name = "hit12.unsupported", .bytes = &step, .n = 4};
    const plant   plain = {.name = "oneshot61.unsupported", .bytes = &step, .n = 4};
    const verdict v = judged(*state, 1e-5, 1, &hit, 1);

    assert_int_equal(v.bad, 0);
    assert_int_equal(v.t.n_skipped, 1);
    assert_int_equal(v.t.n_cases, 13);
    assert_true(judged(*state, 1e-5, 1, &plain, 1).bad);
}

/* ------------------------------------------------------------------ what is justified */

static void test_compare_justifies_a_near_code(void **state)
{
    const fixture *f = *state;
    const tie      t = find_tie(f, 5, 60, 0);
    const plant    p = {.name = t.entries, .off = t.off, .bytes = &t.byte, .n = 1};
    verdict        v = judged(f, t.distance * 1.01, 1, &p, 1);

    assert_int_equal(v.bad, 0);
    assert_int_equal(v.t.n_near, 1);
    assert_int_equal(v.t.n_root, 1);
    assert_int_equal(v.t.n_exempt, 61 - t.entry); /* ratio 1: this row and all later ones of the case */
    v = judged(f, t.distance * 0.99, 1, &p, 1);
    assert_true(v.bad);
    assert_int_equal(v.t.n_unjustified, 1);
}

static void test_compare_takes_evidence_from_a_case_with_the_same_beginning(void **state)
{
    const fixture *f = *state;
    const tie      t = find_tie(f, 5, 60, 0);
    const plant    sibling = {.name = "decode61.entries.5", .off = t.off, .bytes = &t.byte, .n = 1};
    const uint8_t *r = record_at(f, "oneshot190.entries.5", t.entry);
    const uint8_t  byte = moved(r, t.channel, code_at(r, t.channel) & 7 ? code_at(r, t.channel) - 1 : 1);
    const plant    stranger = {.name = "oneshot190.entries.5", .off = t.off, .bytes = &byte, .n = 1};

    assert_int_equal(judged(f, t.distance * 1.5, 1, &sibling, 1).t.n_near, 1);
    assert_int_equal(judged(f, t.distance * 1.5, 1, &stranger, 1).t.n_unjustified, 1);
}

static void test_compare_exempts_only_what_comes_later(void **state)
{
    const fixture *f = *state;
    const tie      t = find_tie(f, 5, 60, 0);
    const float    wrong = 0.25f;
    plant          p[2] = {{.name = t.entries, .off = t.off, .bytes = &t.byte, .n = 1},
                           {.name = "oneshot61.step0.logits", .bytes = &wrong, .n = sizeof wrong}};

    assert_true(t.entry > 0);
    p[1].off = t.entry * 512 * sizeof(float);
    assert_int_equal(judged(f, t.distance * 1.01, 1, p, 2).bad, 0);
    p[1].off = (t.entry - 1) * 512 * sizeof(float);
    assert_true(judged(f, t.distance * 1.01, 1, p, 2).bad);
    p[1].name = "decode61.step0.logits"; /* another case */
    p[1].off = 39 * 512 * sizeof(float);
    assert_true(judged(f, t.distance * 1.01, 1, p, 2).bad);
}

/* One logit of one row is 30 too high: 1 nat and more in that row, far above a thousandth over the sixty. */
static void test_compare_bounds_exempt_rows(void **state)
{
    const fixture *f = *state;
    const tie      t = find_tie(f, 5, 60, 0);
    const float    wrong = 30.0f;
    plant          p[2] = {{.name = t.entries, .off = t.off, .bytes = &t.byte, .n = 1},
                           {.name = "oneshot61.step0.logits", .bytes = &wrong, .n = sizeof wrong}};
    verdict        v;

    p[1].off = (t.entry * 512 + 7) * sizeof(float);
    v = judged(f, t.distance * 1.01, 1, p, 2);
    assert_true(v.bad);
    assert_true(v.t.mean_kl_exempt > 0.01);
    assert_int_equal(v.t.n_faults, 1);
}

static void test_compare_knows_what_can_follow(void **state)
{
    const fixture *f = *state;
    const tie      low = find_tie(f, 2, 5, 0);   /* positions up to 11 */
    const tie      far = find_tie(f, 5, 60, 1);
    const tie      high = find_tie(f, 5, 10, 0);
    const tie      below = find_tie(f, 4, 29, 1);
    const plant    up[] = {{.name = low.entries, .off = low.off, .bytes = &low.byte, .n = 1},
                           {.name = far.entries, .off = far.off, .bytes = &far.byte, .n = 1}};
    const plant    down[] = {{.name = high.entries, .off = high.off, .bytes = &high.byte, .n = 1},
                             {.name = below.entries, .off = below.off, .bytes = &below.byte, .n = 1}};
    verdict        v;

    assert_true(far.entry > 2 * low.entry + 1 && far.distance > 1e-2 && below.distance > 1e-2);
    v = judged(f, low.distance * 1.01, 1, up, 2);
    assert_int_equal(v.bad, 0);
    assert_int_equal(v.t.n_follows, 1);
    v = judged(f, high.distance * 1.01, 1, down, 2); /* layer 5 does not reach layer 4 */
    assert_true(v.bad);
    assert_int_equal(v.t.n_unjustified, 1);
}

static void test_compare_excuses_hidden_causes_only_where_they_are_hidden(void **state)
{
    const float   wrong = 0.25f;
    const plant   p = {.name = "oneshot61.step0.logits", .off = 30 * 512 * sizeof(float), .bytes = &wrong, .n = sizeof wrong};
    const verdict told = judged(*state, 1e-3, 1, &p, 1);
    const verdict hidden = judged(*state, 1e-3, 0, &p, 1);
    const verdict exact = judged(*state, 1e-12, 0, &p, 1);

    assert_true(told.bad && told.t.n_faults == 1);
    assert_int_equal(hidden.bad, 0);
    assert_int_equal(hidden.t.n_hidden, 1);
    assert_true(exact.bad && exact.t.n_faults == 1);
}

static void test_compare_sees_other_window_rows_and_routers(void **state)
{
    const st_tensor *w = st_find(((fixture *)*state)->golden, "oneshot61.step0.pre.window.3");
    const st_tensor *r = st_find(((fixture *)*state)->golden, "oneshot61.step0.pre.router.8");
    const float      x = ((const float *)w->data)[40 * 96 + 17] * 0.75f;
    float            swapped[12];
    plant            p[] = {{.name = w->name, .off = (40 * 96 + 17) * sizeof(float), .bytes = &x, .n = sizeof x},
                            {.name = r->name, .off = 40 * 12 * sizeof(float), .bytes = swapped, .n = sizeof swapped}};

    for (int i = 0; i < 12; i++)
        swapped[i] = -((const float *)r->data)[40 * 12 + i];
    assert_true(judged(*state, 1e-5, 1, p, 1).t.n_unjustified >= 1);
    /* the row is that of decode61 and chunks61 too, which begin with the same tokens */
    assert_int_equal(judged(*state, 1e-5, 1, p + 1, 1).t.n_unjustified, 3);
}

static void test_compare_allows_two_rows_in_a_hundred(void **state)
{
    const fixture *f = *state;
    plant          p[60];
    uint8_t        bytes[60];
    verdict        v;

    for (uint32_t j = 0; j < 60; j++) {
        const uint8_t *r = record_at(f, "oneshot61.entries.5", j);
        const uint8_t  code = code_at(r, 0);

        bytes[j] = moved(r, 0, code & 7 ? (uint8_t)(code - 1) : (uint8_t)(code + 1));
        p[j] = (plant){.name = "oneshot61.entries.5", .off = (size_t)j * RECORD, .bytes = &bytes[j], .n = 1};
    }
    v = judged(f, 100, 1, p, 10); /* with such an eps everything is near */
    assert_int_equal(v.bad, 0);
    assert_int_equal(v.t.n_root, 10);
    v = judged(f, 100, 1, p, 60);
    assert_int_equal(v.t.n_unjustified, 0);
    assert_true(v.bad);
}

static void test_compare_holds_bf16_cases_to_a_mean_kl(void **state)
{
    fixture     f = *(fixture *)*state;
    char        err[256];
    case_list   cases;
    float       noise[512];
    st_file    *golden = st_open("test/golden/t1/t1-bf16.safetensors", err, sizeof err);
    const plant p = {.name = "prefill37.step0.logits", .bytes = noise, .n = sizeof noise};
    verdict     v;

    assert_non_null(golden);
    assert_int_equal(cases_load("test/golden/t1/t1-bf16.json", &cases, err, sizeof err), 0);
    f.golden = golden;
    f.cases = cases;
    v = judged(&f, 1e-5, 0, NULL, 0);
    assert_int_equal(v.bad, 0);
    assert_true(v.t.n_rows > 300);
    for (int i = 0; i < 512; i++)
        noise[i] = i == 9 ? 30 : 0; /* a row that is sure of something else: some 30 nat / 37 rows */
    v = judged(&f, 1e-5, 0, &p, 1);
    assert_true(v.bad && v.t.mean_kl_bf16 > 0.01);
    cases_free(&cases);
    st_close(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers_refuse_what_is_bad),
        cmocka_unit_test(test_writer_refuses_what_it_cannot_write),
        cmocka_unit_test(test_boundary_stairs_give_the_golden_bytes),
        cmocka_unit_test(test_boundary_distance_is_that_of_the_midpoint),
        cmocka_unit_test(test_compare_golden_with_itself_is_equal),
        cmocka_unit_test(test_compare_negative_zero_equals_zero),
        cmocka_unit_test(test_compare_sees_a_flipped_code),
        cmocka_unit_test(test_compare_counts_a_flipped_scale_once),
        cmocka_unit_test(test_compare_sees_another_selection),
        cmocka_unit_test(test_compare_holds_logits_to_the_bound),
        cmocka_unit_test(test_compare_sees_another_likeliest_token),
        cmocka_unit_test(test_compare_wants_every_tensor),
        cmocka_unit_test(test_compare_skips_replay_only),
        cmocka_unit_test(test_compare_justifies_a_near_code),
        cmocka_unit_test(test_compare_takes_evidence_from_a_case_with_the_same_beginning),
        cmocka_unit_test(test_compare_exempts_only_what_comes_later),
        cmocka_unit_test(test_compare_bounds_exempt_rows),
        cmocka_unit_test(test_compare_knows_what_can_follow),
        cmocka_unit_test(test_compare_excuses_hidden_causes_only_where_they_are_hidden),
        cmocka_unit_test(test_compare_sees_other_window_rows_and_routers),
        cmocka_unit_test(test_compare_allows_two_rows_in_a_hundred),
        cmocka_unit_test(test_compare_holds_bf16_cases_to_a_mean_kl),
    };

    return cmocka_run_group_tests(tests, load, unload);
}
