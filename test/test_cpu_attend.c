/* Attention of the reference backend, the mass that it tells, and entries in every format that runs. Compared with implementations
 * written here from the specification, which share no code with the formats or the kernels; where op_params.h fixes the order of
 * a sum, bits are compared. Formats other than the model's are read by the library, which test_row.c holds to their description. */
#include "support/cache_ops.h"

#include "format/row.h"

/* ---------------------------------------------------------------- attention */

typedef struct scene {      /* a timeline of `n` positions and entries to select from */
    size_t   n;
    uint32_t n_heads;
    uint32_t width;
    uint32_t n_window;
    uint32_t row_bytes;
    uint32_t k;
    uint64_t floor;
    uint32_t flags;
    float    scale;
    float   *q;             /* [n, n_heads, width] */
    uint8_t *rows;          /* [n, row_bytes] of every position */
    int32_t *ids;           /* [n, k] */
    float   *sink;
    float   *mass;          /* [n, k] of a call, or NULL */
    float   *decoded;       /* [entries, width] where the entries are not in the model's format, else NULL */
    store    s;
} scene;

static void scene_init(scene *c, prng *r, size_t n, uint32_t n_heads, uint32_t width, uint32_t n_window, uint32_t k)
{
    *c = (scene){.n = n, .n_heads = n_heads, .width = width, .n_window = n_window, .row_bytes = width + width / 32, .k = k,
                 .scale = (float)(1 / sqrt((double)width))};
    c->q = get(n * n_heads * width * sizeof *c->q);
    c->rows = get(n * c->row_bytes);
    c->ids = get(n * k * sizeof *c->ids + 1);
    c->sink = get(n_heads * sizeof *c->sink);
    fill_normal(r, c->q, n * n_heads * width, 2.0f);
    fill_normal(r, c->sink, n_heads, 1.0f);
    for (size_t i = 0; i < n * c->row_bytes; i++) {
        const uint8_t code = (uint8_t)prng_range(r, 0x20, 0x48); /* up to 4 */

        c->rows[i] = i % c->row_bytes >= width ? (uint8_t)prng_range(r, 124, 127) : (uint8_t)(code | prng_below(r, 2) << 7);
    }
    store_init(&c->s, width, 32, 16, 96);
    store_fill(&c->s, r);
    for (size_t i = 0; i < n; i++) /* ascending, duplicates of window tokens and all, then -1; some in between too */
        for (size_t j = 0; j < k; j++)
            c->ids[i * k + j] = prng_below(r, 5) == 0 || j > i ? -1 : (int32_t)(j * 96 / k);
}

static void scene_fini(scene *c)
{
    store_fini(&c->s);
    free(c->q);
    free(c->rows);
    free(c->ids);
    free(c->sink);
    free(c->mass);
    free(c->decoded);
}

/* Key of a slot of the query at pos, as double; false = empty slot. */
static bool slot_key(const scene *c, uint64_t pos, size_t slot, double *key)
{
    uint64_t lo = pos + 1 > c->n_window ? pos + 1 - c->n_window : 0;

    lo = lo > c->floor ? lo : c->floor;
    if (slot < c->n_window) {
        const uint8_t *row = c->rows + (lo + slot) * c->row_bytes;

        for (size_t i = 0; i < c->width && lo + slot <= pos; i++)
            key[i] = e4m3(row[i]) * e8m0(row[c->width + i / 32]);
        return lo + slot <= pos;
    }
    const int32_t id = c->ids[pos * c->k + slot - c->n_window];
    for (size_t i = 0; i < c->width && id >= 0 && c->decoded; i++)
        key[i] = (double)c->decoded[(size_t)id * c->width + i];
    for (size_t i = 0; i < c->width && id >= 0 && !c->decoded; i++)
        key[i] = unpacked(main_row(&c->s, (size_t)id), main_row(&c->s, (size_t)id) + c->width / 2, i, 16);
    return id >= 0;
}

static float lane_dot(const float *a, const float *b, size_t n) /* the order of base/vec.h */
{
    float lane[16] = {0};

    for (size_t i = 0; i < n; i++)
        lane[i % 16] = lane[i % 16] + a[i] * b[i];
    for (size_t half = 8; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lane[i] = lane[i] + lane[i + half];
    return lane[0];
}

/* The tile algorithm with every slot in it, the empty ones as p = 0 of a zero key. The head's part of the mass [k] is added to
 * what is there; NULL = not wanted. */
static void naive_tiles(const scene *c, uint64_t pos, size_t head, float *out, float *mass)
{
    const size_t n_slots = c->n_window + c->k;
    const float *q = c->q + (pos * c->n_heads + head) * c->width;
    float       *keys = get(64 * c->width * sizeof *keys);
    double      *key = get(c->width * sizeof *key);
    float       *scores = get(n_slots * sizeof *scores);
    float        max = -1e30f;
    float        den = 0;

    memset(out, 0, c->width * sizeof *out);
    for (size_t t = 0; t < n_slots; t += 64) {
        const size_t n = n_slots - t < 64 ? n_slots - t : 64;
        float        s[64];
        float        next = max;
        float        sum = 0;

        for (size_t j = 0; j < n; j++) {
            const bool there = slot_key(c, pos, t + j, key);

            for (size_t i = 0; i < c->width; i++)
                keys[j * c->width + i] = there ? (float)key[i] : 0.0f;
            s[j] = (there ? lane_dot(q, keys + j * c->width, c->width) : -INFINITY) * c->scale;
            scores[t + j] = s[j];
            next = s[j] > next ? s[j] : next;
        }
        for (size_t i = 0; i < c->width; i++)
            out[i] = out[i] * kvi_expf(max - next);
        for (size_t j = 0; j < n; j++) {
            const float p = kvi_expf(s[j] - next);

            sum = sum + p;
            for (size_t i = 0; i < c->width; i++)
                out[i] = out[i] + (c->flags & KVI_OP_ROUND_BF16 ? bf16(p) : p) * keys[j * c->width + i];
        }
        den = den * kvi_expf(max - next) + sum;
        max = next;
    }
    den = den + kvi_expf(c->sink[head] - max);
    for (size_t i = 0; i < c->width; i++)
        out[i] = c->flags & KVI_OP_ROUND_BF16 ? bf16(out[i] / den) : out[i] / den;
    for (size_t j = 0; j < c->k && mass; j++)
        mass[j] = mass[j] + kvi_expf(scores[c->n_window + j] - max) / den;
    free(scores);
    free(keys);
    free(key);
}

/* Plain softmax in double. Returns the largest |out - naive| over the head's channels in units of sum p |key| / den. */
static double softmax_error(const scene *c, uint64_t pos, size_t head, const float *out)
{
    const size_t n_slots = c->n_window + c->k;
    const float *q = c->q + (pos * c->n_heads + head) * c->width;
    double      *key = get(c->width * sizeof *key);
    double      *acc = get(c->width * sizeof *acc);
    double      *size = get(c->width * sizeof *size);
    double       den = exp((double)c->sink[head]);
    double       worst = 0;

    for (size_t i = 0; i < c->width; i++)
        acc[i] = size[i] = 0;
    for (size_t slot = 0; slot < n_slots; slot++) {
        double s = 0;

        if (!slot_key(c, pos, slot, key))
            continue;
        for (size_t i = 0; i < c->width; i++)
            s += (double)q[i] * key[i];
        s = exp(s * (double)c->scale);
        den += s;
        for (size_t i = 0; i < c->width; i++) {
            acc[i] += s * key[i];
            size[i] += fabs(s * key[i]);
        }
    }
    for (size_t i = 0; i < c->width; i++)
        worst = fmax(worst, fabs((double)out[i] - acc[i] / den) / fmax(size[i] / den, 1e-30));
    free(key);
    free(acc);
    free(size);
    return worst;
}

/* The last ring rows in front of `first` in pages, as the session leaves them, this layer's rows not at the beginning of a
 * page; NaN where nothing was written, and no page at all where no row of it was. Page sizes and slack vary with `first`. */
typedef struct ring {
    uint8_t **pages;
    size_t    page_off;
    uint32_t  page_rows, n_pages;
} ring;

static ring ring_init(const scene *c, size_t first)
{
    static const uint32_t sizes[] = {1, 3, 16, 7, 64};
    const uint32_t rows = sizes[first % 5];
    ring           r = {.page_rows = rows, .page_off = 33 * (first % 3)};
    size_t         n;

    r.n_pages = (c->n_window + rows - 1) / rows + (uint32_t)(first % 2);
    n = (size_t)r.n_pages * rows;
    r.pages = get(r.n_pages * sizeof *r.pages);
    memset(r.pages, 0, r.n_pages * sizeof *r.pages);
    for (size_t p = first > n ? first - n : 0; p < first; p++) {
        uint8_t **page = &r.pages[p % n / rows];

        if (!*page) {
            *page = get(r.page_off + rows * c->row_bytes);
            memset(*page, 0xFF, r.page_off + rows * c->row_bytes);
        }
        memcpy(*page + r.page_off + p % n % rows * c->row_bytes, c->rows + p * c->row_bytes, c->row_bytes);
    }
    return r;
}

static void ring_fini(ring *r)
{
    for (uint32_t i = 0; i < r->n_pages; i++)
        free(r->pages[i]);
    free(r->pages);
}

/* Rows first .. first + n - 1 in one call: older rows in the ring. out [n, n_heads, width] */
static kvcsa_status attend_chunk(kvi_device *dev, const scene *c, size_t first, size_t n, float *out)
{
    uint64_t *pos = get(n * sizeof *pos);
    ring      r = ring_init(c, first);
    const size_t q_row = (size_t)c->n_heads * c->width;
    kvcsa_status st;

    for (size_t i = 0; i < n; i++)
        pos[i] = first + i;
    const kvi_attend_params p = {.q = c->q + first * q_row, .out = out, .pos = pos, .pages = r.pages,
                                 .page_off = r.page_off, .page_rows = r.page_rows, .n_pages = r.n_pages,
                                 .chunk = c->rows + first * c->row_bytes, .sink = c->sink,
                                 .ids = c->k ? c->ids + first * c->k : NULL,
                                 .mass = c->mass ? c->mass + first * c->k : NULL, .entries = entries_of(&c->s), .chunk_pos = first,
                                 .floor = c->floor, .n_rows = n, .n_heads = c->n_heads, .width = c->width,
                                 .n_window = c->n_window, .row_bytes = c->row_bytes, .k = c->k, .scale = c->scale,
                                 .flags = c->flags};
    st = kvi_cpu_attend(dev, &p, NULL);
    free(pos);
    ring_fini(&r);
    return st;
}

static void test_attend_vector_l(void **state)
{
    static const uint8_t codes[3][2] = {{0x38, 0}, {0, 0x38}, {0xb8, 0x40}}; /* (1, 0), (0, 1), (-1, 2) */
    uint8_t  rows[3 * 33] = {0};
    float    q[32] = {2};
    float    sink = .25f;
    uint64_t pos[3] = {2};
    float    out[32];
    uint8_t *pages[2] = {rows, NULL}; /* of two rows: positions 0 and 1 */

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        memcpy(rows + 33 * i, codes[i], 2);
        rows[33 * i + 32] = 127;
    }
    kvi_attend_params p = {.q = q, .out = out, .pos = pos, .pages = pages, .page_rows = 2, .n_pages = 2,
                           .chunk = rows + 66, .sink = &sink, .chunk_pos = 2,
                           .n_rows = 1, .n_heads = 1, .width = 32, .n_window = 3, .row_bytes = 33, .scale = .5f,
                           .flags = KVI_OP_ROUND_BF16};
    assert_int_equal(kvi_cpu_attend(&devices[0], &p, NULL), KVCSA_OK);
    assert_true(out[0] == 0.4375f && out[1] == 0.32421875f && out[2] == 0);
    p.flags = 0;
    assert_int_equal(kvi_cpu_attend(&devices[0], &p, NULL), KVCSA_OK);
    assert_true(fabs((double)out[0] - (1 - exp(-2)) / 1.9755813) < 1e-7);
    assert_true(fabs((double)out[1] - (exp(-1) + 2 * exp(-2)) / 1.9755813) < 1e-7);
}

static void test_attend_matches_tiles_bit_for_bit(void **state)
{
    static const uint32_t n_window[] = {16, 64, 100, 128};
    static const uint32_t k[] = {0, 24, 70, 5};
    prng r;

    (void)state;
    prng_init(&r, seed + 12);
    for (size_t t = 0; t < 8; t++) {
        const uint32_t width = t % 2 == 0 ? 32 : 96;
        const size_t   n = 150;
        const size_t   n_out = n * 3 * width;
        float         *out = get(n_out * sizeof *out);
        float         *want = get(width * sizeof *want);
        scene          c;

        scene_init(&c, &r, n, 3, width, n_window[t % 4], k[t % 4]);
        c.flags = t < 4 ? KVI_OP_ROUND_BF16 : 0;
        c.floor = t == 5 ? 60 : 0;
        c.q[5] *= 40; /* a maximum that moves a lot */
        assert_int_equal(attend_chunk(&devices[t % N_DEVICES], &c, 0, n, out), KVCSA_OK);
        check_guard(out, n_out * sizeof *out);
        for (size_t i = 0; i < n; i += t == 0 ? 1 : 7)
            for (size_t h = 0; h < 3; h++) {
                const float *got = out + (i * 3 + h) * width;

                naive_tiles(&c, i, h, want, NULL);
                for (size_t x = 0; x < width; x++) /* as numbers: an empty slot may turn -0 into 0 */
                    assert_true(got[x] == want[x]);
                /* n_slots + 20 roundings of the sums and as much again in the scores, which are below 40 */
                if (c.flags == 0)
                    assert_true(softmax_error(&c, i, h, got) < (198 + 40 * 20) * 0x1p-24);
                else
                    assert_true(softmax_error(&c, i, h, got) < 2.1 * 0x1p-8);
            }
        scene_fini(&c);
        free(out);
        free(want);
    }
}

static void test_attend_does_not_depend_on_chunks_or_threads(void **state)
{
    static const size_t lengths[] = {130, 190, 322};
    prng r;

    (void)state;
    prng_init(&r, seed + 13);
    for (size_t t = 0; t < 3; t++) {
        const size_t n = lengths[t];
        const size_t row = 2 * 64;
        float       *one = get(n * row * sizeof *one);
        float       *out = get(n * row * sizeof *out);
        scene        c;

        scene_init(&c, &r, n, 2, 64, 128, 40);
        c.flags = t == 1 ? KVI_OP_ROUND_BF16 : 0;
        c.floor = t == 2 ? 100 : 0;
        for (size_t i = 0; i < n; i++) /* decoding: all earlier positions are in the ring */
            assert_int_equal(attend_chunk(&devices[0], &c, i, 1, one + i * row), KVCSA_OK);
        for (size_t way = 0; way < 5; way++) {
            for (size_t i = 0; i < n;) {
                const size_t want = way == 0 ? n : way == 1 ? 64 : way == 2 ? 129 : prng_range(&r, 1, 40);
                const size_t rows = want < n - i ? want : n - i;

                assert_int_equal(attend_chunk(&devices[way % N_DEVICES], &c, i, rows, out + i * row), KVCSA_OK);
                i += rows;
            }
            assert_memory_equal(out, one, n * row * sizeof *out);
            check_guard(out, n * row * sizeof *out);
        }
        scene_fini(&c);
        free(one);
        free(out);
    }
}

static void test_attend_without_keys_gives_zero(void **state)
{
    prng  r;
    scene c;
    float out[10 * 2 * 32];

    (void)state;
    prng_init(&r, seed + 14);
    scene_init(&c, &r, 10, 2, 32, 16, 4);
    memset(c.ids, 0xFF, 10 * 4 * sizeof *c.ids);
    c.floor = 8; /* positions 0..7 see nothing, 8 sees itself */
    assert_int_equal(attend_chunk(&devices[0], &c, 0, 10, out), KVCSA_OK);
    for (size_t i = 0; i < 8 * 64; i++)
        assert_true(out[i] == 0);
    for (size_t i = 8 * 64; i < 10 * 64; i += 32) {
        double sum = 0;

        for (size_t x = 0; x < 32; x++)
            sum += fabs((double)out[i + x]);
        assert_true(sum > 0);
    }
    scene_fini(&c);
}

static void test_attend_shows_nan(void **state)
{
    enum { ROWS = 20, ROW = 2 * 32 };
    prng  r;
    scene c;
    float clean[ROWS * ROW];
    float out[ROWS * ROW];

    (void)state;
    prng_init(&r, seed + 15);
    scene_init(&c, &r, ROWS, 2, 32, 8, 3);
    assert_int_equal(attend_chunk(&devices[0], &c, 0, ROWS, clean), KVCSA_OK);
    c.q[(6 * 2 + 1) * 32 + 9] = NAN;    /* row 6, head 1 */
    c.rows[11 * c.row_bytes + 32] = 255; /* position 11: rows 11..18 see it */
    assert_int_equal(attend_chunk(&devices[0], &c, 0, ROWS, out), KVCSA_OK);
    for (size_t i = 0; i < ROWS * ROW; i++) {
        const size_t row = i / ROW;

        if ((row >= 11 && row <= 18) || (row == 6 && i % ROW >= 32))
            assert_true(isnan(out[i]));
        else
            assert_true(out[i] == clean[i] && !isnan(out[i]));
    }
    scene_fini(&c);
}

/* ---------------------------------------------------------------- mass */

static void want_mass(scene *c)
{
    c->mass = get(c->n * c->k * sizeof *c->mass);
}

/* Plain softmax in double, summed over the heads; *window what goes to window rows and *sinks to the
 * sinks. */
static void naive_mass(const scene *c, uint64_t pos, double *mass, double *window, double *sinks)
{
    const size_t n_slots = c->n_window + c->k;
    double      *key = get(c->width * sizeof *key);
    double      *p = get(n_slots * sizeof *p);

    *window = *sinks = 0;
    for (size_t j = 0; j < c->k; j++)
        mass[j] = 0;
    for (size_t h = 0; h < c->n_heads; h++) {
        const float *q = c->q + (pos * c->n_heads + h) * c->width;
        double       top = (double)c->sink[h];
        double       den = 0;

        for (size_t slot = 0; slot < n_slots; slot++) {
            p[slot] = -INFINITY;
            if (!slot_key(c, pos, slot, key))
                continue;
            p[slot] = 0;
            for (size_t i = 0; i < c->width; i++)
                p[slot] += (double)q[i] * key[i];
            p[slot] *= (double)c->scale;
            top = fmax(top, p[slot]);
        }
        for (size_t slot = 0; slot < n_slots; slot++)
            den += exp(p[slot] - top);
        den += exp((double)c->sink[h] - top);
        *sinks += exp((double)c->sink[h] - top) / den;
        for (size_t slot = 0; slot < c->n_window; slot++)
            *window += exp(p[slot] - top) / den;
        for (size_t j = 0; j < c->k; j++)
            mass[j] += exp(p[c->n_window + j] - top) / den;
    }
    free(key);
    free(p);
}

static void test_attend_mass_is_the_softmax(void **state)
{
    static const uint32_t n_window[] = {16, 64, 100, 128};
    static const uint32_t k[] = {1, 24, 70, 96};
    prng r;

    (void)state;
    prng_init(&r, seed + 17);
    for (size_t t = 0; t < 8; t++) {
        const size_t n = 120;
        float       *out = get(n * 5 * 64 * sizeof *out);
        float       *plain = get(n * 5 * 64 * sizeof *out);
        double       want[96];
        float        bits[96];
        scene        c;

        scene_init(&c, &r, n, 5, 64, n_window[t % 4], k[t % 4]);
        c.flags = t % 3 == 2 ? KVI_OP_ROUND_BF16 : 0;
        c.floor = t == 5 ? 60 : 0;
        assert_int_equal(attend_chunk(&devices[t % N_DEVICES], &c, 0, n, plain), KVCSA_OK);
        want_mass(&c);
        assert_int_equal(attend_chunk(&devices[t % N_DEVICES], &c, 0, n, out), KVCSA_OK);
        assert_memory_equal(out, plain, n * 5 * 64 * sizeof *out); /* no bit of it moves */
        check_guard(c.mass, n * c.k * sizeof *c.mass);
        for (size_t i = 0; i < n; i += 3) {
            double window;
            double sinks;
            double all = 0;

            naive_mass(&c, i, want, &window, &sinks);
            memset(bits, 0, sizeof bits);
            for (size_t h = 0; h < 5; h++)
                naive_tiles(&c, i, h, out, bits);
            for (size_t j = 0; j < c.k; j++) {
                const float got = c.mass[i * c.k + j];

                assert_memory_equal(&got, &bits[j], sizeof got);
                if (c.ids[i * c.k + j] < 0)
                    assert_true(got == 0 && !signbit(got));
                /* as in test_attend_matches_tiles_bit_for_bit, and the sum over heads */
                assert_true(fabs((double)got - want[j]) <= (n_window[t % 4] + c.k + 20 + 40 * 20 + 5) *
                                                               0x1p-24 * want[j]);
                all += (double)got;
            }
            assert_true(fabs(all + window + sinks - 5) < 1e-3);
        }
        scene_fini(&c);
        free(out);
        free(plain);
    }
}

/* The same bits from one row at a time (by heads), all rows (by rows) and random chunks, with any
 * number of threads. */
static void test_attend_mass_does_not_depend_on_chunks_or_threads(void **state)
{
    enum { N = 190, K = 70, HEADS = 3 };
    prng   r;
    scene  c;
    float *one = get(N * K * sizeof *one);
    float *out = get(N * HEADS * 64 * sizeof *out);

    (void)state;
    prng_init(&r, seed + 18);
    scene_init(&c, &r, N, HEADS, 64, 100, K);
    want_mass(&c);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(attend_chunk(&devices[0], &c, i, 1, out + i * HEADS * 64), KVCSA_OK);
    memcpy(one, c.mass, N * K * sizeof *one);
    for (size_t way = 0; way < 6; way++) {
        memset(c.mass, 0xA7, N * K * sizeof *c.mass);
        for (size_t i = 0; i < N;) {
            const size_t want = way == 0 ? N : way == 1 ? 64 : way == 2 ? 1 : prng_range(&r, 1, 40);
            const size_t n = want < N - i ? want : N - i;

            assert_int_equal(attend_chunk(&devices[way % N_DEVICES], &c, i, n, out + i * HEADS * 64),
                             KVCSA_OK);
            i += n;
        }
        assert_memory_equal(c.mass, one, N * K * sizeof *one);
        check_guard(c.mass, N * K * sizeof *one);
    }
    scene_fini(&c);
    free(one);
    free(out);
}

/* Scores far outside of what e^x can hold, and sinks: the best slot takes everything, or the sink
 * does. Rows that see no key give their mass to nobody. */
static void test_attend_mass_of_extreme_scores(void **state)
{
    enum { N = 60, K = 3, W = 32 };
    prng   r;
    scene  c;
    size_t n_taken = 0;
    float  out[N * 2 * W];

    (void)state;
    prng_init(&r, seed + 19);
    scene_init(&c, &r, N, 2, W, 4, K);
    want_mass(&c);
    c.floor = N; /* no window key */
    c.sink[0] = 1e30f;
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < K; j++)
            c.ids[i * K + j] = i < 2 ? -1 : (int32_t)(18 * j + i % 18);
        for (size_t x = 0; x < 2 * W; x++)
            c.q[i * 2 * W + x] *= i % 2 == 0 ? 1e30f : 1e-30f;
    }
    for (size_t d = 0; d < N_DEVICES; d++) {
        assert_int_equal(attend_chunk(&devices[d], &c, 0, N, out), KVCSA_OK);
        for (size_t i = 0; i < N; i++) {
            double want[K];
            double window;
            double sinks;

            naive_mass(&c, i, want, &window, &sinks);
            assert_true(window == 0);
            for (size_t j = 0; j < K; j++) {
                assert_true(fabs((double)c.mass[i * K + j] - want[j]) < 1e-6);
                assert_true(i >= 2 || c.mass[i * K + j] == 0);
                n_taken += want[j] == 1;
            }
        }
    }
    assert_true(n_taken > 20);
    scene_fini(&c);
}

static void test_attend_mass_shows_nan(void **state)
{
    enum { ROWS = 20, K = 3 };
    prng  r;
    scene c;
    float out[ROWS * 2 * 32];

    (void)state;
    prng_init(&r, seed + 20);
    scene_init(&c, &r, ROWS, 2, 32, 8, K);
    want_mass(&c);
    c.q[(6 * 2 + 1) * 32 + 9] = NAN; /* row 6, head 1 */
    for (size_t d = 0; d < N_DEVICES; d++) {
        assert_int_equal(attend_chunk(&devices[d], &c, 0, ROWS, out), KVCSA_OK);
        for (size_t i = 0; i < ROWS * K; i++)
            assert_true(isnan(c.mass[i]) ? i / K == 6 && c.ids[i] >= 0
                                         : i / K != 6 || c.ids[i] < 0);
    }
    scene_fini(&c);
}

/* ---------------------------------------------------------------- entries in other formats */

static const uint32_t formats[] = {
    KVCSA_FORMAT_FP4_E4M3_G16, KVCSA_FORMAT_FP4_AS_F32, KVCSA_FORMAT_FP4_E8M0_G32,
    KVCSA_FORMAT_FP8_E8M0_G32, KVCSA_FORMAT_F32,        KVCSA_FORMAT_F16,
    KVCSA_FORMAT_BF16,         KVCSA_FORMAT_Q8_0,       KVCSA_FORMAT_Q4_0,
    KVCSA_FORMAT_INT3_F16_G32,
};
enum { N_FORMATS = sizeof formats / sizeof *formats, N_ENTRIES = 96 };

/* The entries of a scene become these latents, written by the device's operator, in a format. */
static void scene_write(scene *c, const kvi_backend_ops *ops, kvi_device *dev, uint32_t format,
                        const float *latent)
{
    const uint32_t row_bytes = kvi_format_row_bytes(format, c->width);
    float         *key = get((size_t)N_ENTRIES * 32 * sizeof *key);

    assert_int_equal(kvi_row_can_run(format), 1);
    store_fini(&c->s);
    store_init_format(&c->s, format, row_bytes, c->width, 32, 16, N_ENTRIES);
    memset(key, 0, (size_t)N_ENTRIES * 32 * sizeof *key);
    for (size_t i = 0; i < N_ENTRIES;) { /* in pieces that begin and end inside blocks */
        const size_t n = i + 23 < N_ENTRIES ? 23 : N_ENTRIES - i;
        const kvi_entry_write_params p = {.to = entries_of(&c->s), .latent = latent + i * c->width,
                                          .key = key + i * 32, .first_entry = i, .n_rows = n};

        assert_int_equal(ops->entry_write(dev, &p, NULL), KVCSA_OK);
        i += n;
    }
    c->decoded = get((size_t)N_ENTRIES * c->width * sizeof *c->decoded);
    for (size_t e = 0; e < N_ENTRIES; e++) {
        uint8_t *row = get(row_bytes);

        (void)kvi_row_encode(format, latent + e * c->width, c->width, row);
        assert_memory_equal(main_row(&c->s, e), row, row_bytes);
        kvi_row_decode(format, row, c->width, c->decoded + e * c->width);
        check_guard(row, row_bytes);
        free(row);
    }
    free(key);
}

static void test_attend_reads_every_format(void **state)
{
    enum { N = 40, HEADS = 2, WIDTH = 64, OUT = N * HEADS * WIDTH };
    const kvi_backend_ops  *ops = kvi_cpu_backend(0);
    const kvi_device_params params = {.allocator = &memory.hook};
    float                  *latent = get((size_t)N_ENTRIES * WIDTH * sizeof *latent);
    float                  *out[2] = {get(OUT * sizeof(float)), get(OUT * sizeof(float))};
    float                  *mass = get(N * 30 * sizeof *mass);
    kvi_device             *dev;

    (void)state;
    assert_int_equal(ops->device_open(&params, &dev, NULL), KVCSA_OK);
    for (size_t f = 0; f < N_FORMATS; f++) {
        float *is = out[f > 0];
        prng   r;
        scene  c;

        prng_init(&r, seed + 21); /* the same scene for all formats */
        fill_normal(&r, latent, (size_t)N_ENTRIES * WIDTH, 1.5f);
        latent[3 * WIDTH + 5] = 40; /* an outlier */
        scene_init(&c, &r, N, HEADS, WIDTH, 16, 30);
        want_mass(&c);
        scene_write(&c, ops, dev, formats[f], latent);
        assert_int_equal(attend_chunk(dev, &c, 0, N, is), KVCSA_OK);
        check_guard(is, OUT * sizeof *is);
        for (size_t i = 0; i < N * HEADS; i++) {
            double want[30];
            double window;
            double sinks;

            assert_true(softmax_error(&c, i / HEADS, i % HEADS, is + i * WIDTH) <
                        (46 + 20 + 40 * 20) * 0x1p-24);
            naive_mass(&c, i / HEADS, want, &window, &sinks);
            for (size_t j = 0; j < 30; j++)
                assert_true(fabs((double)c.mass[i / HEADS * 30 + j] - want[j]) <=
                            (46 + 20 + 40 * 20 + HEADS) * 0x1p-24 * want[j]);
        }
        if (f == 0)
            memcpy(mass, c.mass, N * 30 * sizeof *mass);
        /* the same values in another place give the same bits, other values do not */
        if (f > 0 && formats[f] == KVCSA_FORMAT_FP4_AS_F32) {
            assert_memory_equal(is, out[0], OUT * sizeof *is);
            assert_memory_equal(c.mass, mass, N * 30 * sizeof *mass);
        } else if (f > 0) {
            assert_memory_not_equal(is, out[0], OUT * sizeof *is);
        }
        scene_fini(&c);
    }
    ops->device_close(dev);
    free(latent);
    free(out[0]);
    free(out[1]);
    free(mass);
}

/* A poisoned entry reaches exactly the rows that select it, in every format. */
static void test_attend_shows_poison_of_every_format(void **state)
{
    enum { N = 20, HEADS = 2, WIDTH = 32, OUT = N * HEADS * WIDTH, BAD = 64 };
    const kvi_backend_ops *ops = kvi_cpu_backend(0);
    float                  latent[N_ENTRIES * WIDTH];
    float                  out[OUT];
    prng                   r;

    (void)state;
    prng_init(&r, seed + 22);
    for (size_t f = 0; f < N_FORMATS; f++) {
        size_t n_nan = 0;
        scene  c;

        fill_normal(&r, latent, N_ENTRIES * WIDTH, 1.0f);
        latent[BAD * WIDTH + 9] = f % 2 == 0 ? INFINITY : NAN;
        scene_init(&c, &r, N, HEADS, WIDTH, 8, 3);
        scene_write(&c, ops, &devices[f % N_DEVICES], formats[f], latent);
        assert_int_equal(attend_chunk(&devices[f % N_DEVICES], &c, 0, N, out), KVCSA_OK);
        for (size_t i = 0; i < OUT; i++) {
            const size_t row = i / (HEADS * WIDTH);
            bool         hit = false;

            for (size_t j = 0; j < 3; j++)
                hit = hit || c.ids[row * 3 + j] == BAD;
            assert_int_equal(isnan(out[i]) != 0, hit);
            n_nan += hit;
        }
        assert_true(n_nan > 0);
        scene_fini(&c);
    }
}

/* ---------------------------------------------------------------- out of memory */

static kvcsa_status attend_some(kvi_device *dev, prng *r, size_t n)
{
    float       *out = get(n * 2 * 32 * sizeof *out);
    scene        c;
    kvcsa_status st;

    scene_init(&c, r, n, 2, 32, 128, 40);
    if (prng_below(r, 2) != 0)
        want_mass(&c);
    st = attend_chunk(dev, &c, 0, n, out);
    check_guard(out, n * 2 * 32 * sizeof *out);
    scene_fini(&c);
    free(out);
    return st;
}

static kvcsa_status attend_one(kvi_device *dev, prng *r)
{
    return attend_some(dev, r, 1);
}

static kvcsa_status attend_many(kvi_device *dev, prng *r)
{
    return attend_some(dev, r, 90);
}

static void test_scratch_failures_of_attention(void **state)
{
    prng r;

    (void)state;
    prng_init(&r, seed + 16);
    check_scratch_failures(attend_one, &r);
    check_scratch_failures(attend_many, &r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend_vector_l),
        cmocka_unit_test(test_attend_matches_tiles_bit_for_bit),
        cmocka_unit_test(test_attend_does_not_depend_on_chunks_or_threads),
        cmocka_unit_test(test_attend_without_keys_gives_zero),
        cmocka_unit_test(test_attend_shows_nan),
        cmocka_unit_test(test_attend_mass_is_the_softmax),
        cmocka_unit_test(test_attend_mass_does_not_depend_on_chunks_or_threads),
        cmocka_unit_test(test_attend_mass_of_extreme_scores),
        cmocka_unit_test(test_attend_mass_shows_nan),
        cmocka_unit_test(test_attend_reads_every_format),
        cmocka_unit_test(test_attend_shows_poison_of_every_format),
        cmocka_unit_test(test_scratch_failures_of_attention),
    };

    seed = prng_seed(argc, argv, 20261);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
