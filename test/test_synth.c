/* Synthetic checkpoints from inside: the random numbers, the list of tensors, the vocabulary, the
 * spread of weights and what a network of them does. Files that fail: test_synth_io.c. */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/hash.h"
#include "format/dtype.h"
#include "format/fp4.h"
#include "format/fp8.h"
#include "model/synth.h"
#include "model/synth_int.h"
#include "session/session.h"
#include "support/prng.h"
#include "support/snap.h"
#include "text/token_map.h"

#include <math.h>

#define SMALL_CONFIG "test/data/synth-small.json"
#define CACHE_CONFIG "test/data/synth-released-cache.json"
#define T2_CONFIG "test/golden/large/t2-config.json"

/* ------------------------------------------------------------------ random numbers */

/* The generator's definition once more, one state after the other, with libm in double. */
static void test_normal_numbers_are_box_muller_of_splitmix(void **state)
{
    uint64_t s = 1234567;
    float    x[2000];

    (void)state;
    kvi_synth_normal(1234567, 0, 2000, x);
    for (size_t i = 0; i < 2000; i += 2) {
        const double u = (double)((prng_splitmix(&s) >> 11) + 1) / 0x1p53;
        const double turn = (double)(prng_splitmix(&s) >> 40) / 0x1p24;
        const double angle = 2.0 * 3.14159265358979323846 * turn;
        const double r = sqrt(-2.0 * log(u));

        assert_true(fabs(x[i] - r * cos(angle)) < 3e-6);
        assert_true(fabs(x[i + 1] - r * sin(angle)) < 3e-6);
    }
    /* from a program in another language */
    assert_true(fabs(x[0] - 0.6687420963211005) < 1e-6);
    assert_true(fabs(x[7] - 1.0132669182295537) < 1e-6);
}

static void test_normal_numbers_come_in_any_pieces(void **state)
{
    float whole[999];
    float piece[999];

    (void)state;
    kvi_synth_normal(42, 100, 999, whole);
    for (size_t at = 0; at < 999; at += 74)
        kvi_synth_normal(42, 100 + at, kvi_min_size(74, 999 - at), piece + at);
    assert_memory_equal(whole, piece, sizeof whole);
    kvi_synth_normal(43, 100, 999, piece);
    for (size_t i = 0; i < 999; i++)
        assert_true(whole[i] != piece[i]);
}

/* Standard errors for n = 2^20: mean 0.001, variance 0.0014, fourth moment 0.0096 x 3; a count of
 * probability p has sqrt(p (1 - p) / n). Bounds are five of them. */
static void test_normal_numbers_are_normal(void **state)
{
    static const double at[] = {-3, -2, -1, 0, 1, 2, 3};
    enum { N = 1 << 20 };
    float *x = malloc(N * sizeof *x);
    double sum = 0;
    double sum2 = 0;
    double sum4 = 0;
    double lag = 0;

    (void)state;
    assert_non_null(x);
    kvi_synth_normal(7, 0, N, x);
    for (size_t i = 0; i < N; i++) {
        sum += x[i];
        sum2 += (double)x[i] * x[i];
        sum4 += (double)x[i] * x[i] * x[i] * x[i];
        lag += i ? (double)x[i] * x[i - 1] : 0;
    }
    assert_true(fabs(sum / N) < 0.005);
    assert_true(fabs(sum2 / N - 1) < 0.007);
    assert_true(fabs(sum4 / N - 3) < 0.05);
    assert_true(fabs(lag / N) < 0.005);
    for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
        const double p = 0.5 * erfc(-at[k] / sqrt(2.0));
        double       n = 0;

        for (size_t i = 0; i < N; i++)
            n += x[i] < at[k];
        assert_true(fabs(n / N - p) < 5 * sqrt(p * (1 - p) / N));
    }
    free(x);
}

/* ------------------------------------------------------------------ the list of tensors */

static void read_config(const char *path, kvi_config *c)
{
    size_t      n = 0;
    char       *json = read_file(path, &n);
    kvcsa_error err;

    assert_ok(kvi_config_parse(json, n, path, c, &err));
    free(json);
}

/* Counted by a script from the formulas of docs/formats.md, which knows nothing of the table. */
static void test_the_list_has_what_the_format_says(void **state)
{
    static const struct {
        const char *config;
        uint32_t    n;
        uint64_t    n_bytes;
    } want[] = {
        {RELEASE_CONFIG, 93378, UINT64_C(501382549968)},
        {T2_CONFIG, 23371, 190246800},
        {CACHE_CONFIG, 3138, 80422844},
        {T1_DIR "/config.json", 1051, 5816258},
        {TINY_DIR "/config.json", 643, 7056286},
    };

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        kvi_config        c;
        kvi_weight_tensor t;
        kvi_weight_iter   it;
        uint64_t          n_bytes = 0;
        uint32_t          n = 0;

        read_config(want[i].config, &c);
        for (it = kvi_weight_first(&c); kvi_weight_next(&it, &t); n++)
            n_bytes += kvi_weight_bytes(&t);
        assert_int_equal(n, want[i].n);
        assert_int_equal(n_bytes, want[i].n_bytes);
        assert_int_equal(kvi_weight_next(&it, &t), 0); /* the end stays the end */
    }
}

/* Against checkpoints that we did not write: each tensor of the list is there once, with its dtype
 * and shape, and what is left over is draft stages. */
static void test_the_list_is_that_of_other_writers(void **state)
{
    static const char *const dirs[] = {T1_DIR, TINY_DIR};
    kvcsa_allocator          a;
    kvcsa_error              err;

    (void)state;
    assert_ok(kvi_allocator_import(NULL, &a, &err));
    for (size_t i = 0; i < 2; i++) {
        kvi_tensors      *files = NULL;
        kvi_config        c;
        kvi_weight_tensor t;
        char              path[512];

        (void)snprintf(path, sizeof path, "%s/config.json", dirs[i]);
        read_config(path, &c);
        assert_ok(kvi_tensors_open_dir(&a, dirs[i], 0, &files, &err));
        for (kvi_weight_iter it = kvi_weight_first(&c); kvi_weight_next(&it, &t);) {
            kvi_tensor *f = kvi_tensors_find(files, t.name);

            assert_non_null(f);
            assert_int_equal(f->used, 0);
            assert_int_equal(f->dtype, t.dtype);
            assert_int_equal(f->n_dims, t.n_dims);
            assert_int_equal(f->shape[0], t.shape[0]);
            if (t.n_dims > 1)
                assert_int_equal(f->shape[1], t.shape[1]);
            assert_int_equal(f->n_bytes, kvi_weight_bytes(&t));
            f->used = 1;
        }
        for (size_t k = 0; k < kvi_tensors_count(files); k++)
            if (!kvi_tensors_at(files, k)->used)
                assert_int_equal(strncmp(kvi_tensors_at(files, k)->name, "mtp.", 4), 0);
        kvi_tensors_destroy(files);
    }
}

/* ------------------------------------------------------------------ vocabularies */

typedef struct capture { /* what is written to a file */
    kvi_synth_out      out;
    kvi_fs             fs;
    kvcsa_allocator    a;
    kvcsa_synth_params params;
    char              *text;
    size_t             n;
} capture;

static ssize_t capture_writev(void *user, int fd, const struct iovec *iov, int n)
{
    capture *c = user;

    (void)fd;
    assert_int_equal(n, 1);
    c->text = realloc(c->text, c->n + iov->iov_len + 1);
    assert_non_null(c->text);
    memcpy(c->text + c->n, iov->iov_base, iov->iov_len);
    c->n += iov->iov_len;
    return (ssize_t)iov->iov_len;
}

static void capture_tokenizer(capture *c, const kvi_synth_vocab *v)
{
    static uint8_t buffer[KVI_SYNTH_BUFFER_BYTES];
    struct iovec   rest = {buffer, 0};

    memset(c, 0, sizeof *c);
    kvi_allocator_import(NULL, &c->a, NULL);
    c->fs.writev = capture_writev;
    c->fs.user = c;
    c->out = (kvi_synth_out){.fs = &c->fs, .params = &c->params, .buffer = buffer};
    kvi_synth_put_tokenizer(&c->out, v);
    assert_int_equal(c->out.st, KVCSA_OK);
    rest.iov_len = c->out.used;
    capture_writev(c, 0, &rest, 1);
    c->text[c->n] = '\0';
}

/* Every token that is text is the encoding of its own text, so all of a vocabulary is reached. */
static void check_words(const kvi_tokenizer *t)
{
    for (int32_t id = 0; id < (int32_t)kvi_tokenizer_size(t); id++) {
        const uint8_t *bytes = NULL;
        size_t         n = 0;
        size_t         n_ids = 0;
        int32_t        ids[8];
        kvcsa_error    err;

        assert_true(kvi_tokenizer_bytes(t, id, &bytes, &n));
        assert_true(n > 0);
        assert_ok(kvi_tokenizer_encode(t, (const char *)bytes, n, KVCSA_TOKENIZE_SPECIAL, ids, 8,
                                       &n_ids, &err));
        assert_int_equal(n_ids, 1);
        assert_int_equal(ids[0], id);
    }
}

static void check_vocab(const kvi_config *c)
{
    capture         text;
    kvi_synth_vocab v;
    kvi_tokenizer  *t = NULL;
    kvcsa_error     err;
    uint32_t        n_compressed = 0;
    uint32_t       *map = malloc(c->vocab_size * sizeof *map);

    assert_non_null(map);
    assert_ok(kvi_synth_vocab_init(c, &v, &err));
    capture_tokenizer(&text, &v);
    assert_ok(kvi_tokenizer_open(&text.a, text.text, text.n, "made", &t, &err));
    assert_int_equal(kvi_tokenizer_size(t), c->vocab_size);
    assert_ok(kvi_token_map_build(&text.a, t, c->vocab_size, map, &n_compressed, &err));
    assert_int_equal(n_compressed, kvi_synth_vocab_compressed(&v));
    if (c->engram_compressed_vocab)
        assert_int_equal(n_compressed, c->engram_compressed_vocab);
    check_words(t);
    if (c->bos >= 0)
        assert_true(kvi_tokenizer_is_special(t, c->bos));
    if (c->image >= 0)
        assert_true(kvi_tokenizer_is_special(t, c->image));
    assert_true(kvi_tokenizer_find_added(t, "<\xEF\xBD\x9CUser\xEF\xBD\x9C>") >= 0);
    assert_true(kvi_tokenizer_find_added(t, "</think>") >= 0);
    kvi_tokenizer_destroy(t);
    free(text.text);
    free(map);
}

/* 9 special tokens and 227 keys of bytes; the rest is made up. */
static void test_vocabularies_of_many_sizes(void **state)
{
    static const struct {
        uint32_t n, compressed; /* 0 = chosen */
        int32_t  bos, eos, pad, image;
    } made[] = {
        {265, 236, 0, 1, 2, 264},         /* no words */
        {266, 237, 0, 1, 2, 265},         /* one */
        {269, 237, 0, 1, 2, 268},         /* one, with all its variants */
        {512, 400, 0, 1, 2, 511},
        {512, 426, 0, 1, 2, 511},
        {512, 483, 300, 17, 17, 0},       /* no variants; ids anywhere, two names for one */
        {512, 298, 0, 1, 2, 511},         /* every word with all variants */
        {300, 0, -1, -1, -1, -1},
        {2000, 0, 1999, 1998, 1997, 1996},
        {129280, 99092, 0, 1, 2, 129264}, /* the release */
    };

    (void)state;
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        check_vocab(&(kvi_config){.vocab_size = made[i].n,
                                  .engram_compressed_vocab = made[i].compressed,
                                  .bos = made[i].bos,
                                  .eos = made[i].eos,
                                  .pad = made[i].pad,
                                  .image = made[i].image});
}

static void test_vocabularies_that_cannot_be(void **state)
{
    static const struct {
        uint32_t    n, compressed;
        const char *says;
    } bad[] = {
        {264, 0, "vocab_size is 264, a made-up vocabulary has 265..2097152 ids"},
        {(1u << 21) + 1, 0, "vocab_size is 2097153"},
        {265, 235,
         "engram_compressed_vocab_size is 235, a made-up vocabulary of 265 ids has 236..236"},
        {265, 237, "236..236"},
        {270, 237,
         "engram_compressed_vocab_size is 237, a made-up vocabulary of 270 ids has 238..241"},
        {512, 297, "298..483"},
        {512, 484, "298..483"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const kvi_config c = {.vocab_size = bad[i].n,
                              .engram_compressed_vocab = bad[i].compressed,
                              .eos = 1,
                              .pad = 2,
                              .image = 3};
        kvi_synth_vocab  v;
        kvcsa_error      err;

        assert_fails(kvi_synth_vocab_init(&c, &v, &err), KVCSA_ERR_UNSUPPORTED, bad[i].says);
    }
}

/* ------------------------------------------------------------------ weights in a file */

typedef struct made { /* a checkpoint in a folder of its own */
    snap_dir        parent, dir;
    kvcsa_allocator a;
    kvi_config      c;
    kvi_tensors    *t;
} made;

static void make(made *m, const char *config, uint64_t seed)
{
    const kvcsa_synth_params params = {.struct_size = sizeof params, .seed = seed};
    kvcsa_synth_info         info;
    kvcsa_error              err;
    snap_path                path;

    m->parent = snap_dir_make();
    (void)snprintf(m->dir.path, sizeof m->dir.path, "%.240s/made", m->parent.path);
    assert_ok(kvi_allocator_import(NULL, &m->a, &err));
    assert_ok(kvi_synth_checkpoint(config, m->dir.path, &params, kvi_fs_posix(), &info, &err));
    path = snap_in(&m->dir, "config.json");
    read_config(path.text, &m->c);
    assert_ok(kvi_tensors_open_dir(&m->a, m->dir.path, 0, &m->t, &err));
    assert_int_equal(kvi_tensors_count(m->t), info.n_tensors);
}

static void unmake(made *m)
{
    kvi_tensors_destroy(m->t);
    snap_dir_remove(&m->parent);
}

/* The bytes are a promise: of the configuration and the seed alone, on any machine. (config.json of
 * this one was completed, and how reals are printed is for the JSON library to say.) */
static void test_bytes_are_frozen(void **state)
{
    static const struct {
        const char *file;
        uint64_t    hash;
    } want[] = {
        {"model-00001-of-00001.safetensors", UINT64_C(0xcca80441102e4e31)},
        {"model.safetensors.index.json", UINT64_C(0x39bee6ed6a577486)},
        {"tokenizer.json", UINT64_C(0x46660b446ed5bc3a)},
    };
    made m;

    (void)state;
    make(&m, SMALL_CONFIG, 1);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const snap_path path = snap_in(&m.dir, want[i].file);
        size_t          n = 0;
        char           *bytes = read_file(path.text, &n);

        if (kvi_hash64(bytes, n, 0) != want[i].hash)
            fail_msg("%s has hash 0x%llx", want[i].file,
                     (unsigned long long)kvi_hash64(bytes, n, 0));
        free(bytes);
    }
    unmake(&m);
}

static float value_at(const kvi_weight_tensor *w, const kvi_tensor *t, const kvi_tensor *scale,
                      size_t row, size_t col)
{
    const size_t  i = row * w->cols + col;
    const size_t  scale_row = w->kind == KVI_W_FP8 ? row / 32 : row;
    const size_t  at = scale_row * (w->cols / 32) + col / 32;
    const float   s = scale ? kvi_e8m0_to_f32(scale->data[at]) : 1;
    const uint8_t byte = t->data[w->kind == KVI_W_FP4 ? i / 2 : i];

    switch (t->dtype) {
    case KVI_ST_F32: return kvi_load_f32(t->data + 4 * i);
    case KVI_ST_BF16: return kvi_bf16_to_f32(kvi_load_u16(t->data + 2 * i));
    case KVI_ST_I8: return s * kvi_e2m1_to_f32(i % 2 ? byte >> 4 : byte & 15);
    default: return s * kvi_e4m3_to_f32(byte);
    }
}

static const kvi_tensor *find_scale(const made *m, const kvi_weight_tensor *w)
{
    char name[128];

    if (w->dtype != KVI_ST_F8_E4M3 && w->dtype != KVI_ST_I8)
        return NULL;
    (void)snprintf(name, sizeof name, "%.*s.scale", (int)(strrchr(w->name, '.') - w->name),
                   w->name);
    return kvi_tensors_find(m->t, name);
}

/* Scales in a file were kept from when their weight was made; alone they come out the same, which
 * is how those of a table too large to keep are written. */
static void test_scales_are_made_alone_too(void **state)
{
    made              m;
    kvi_weight_tensor w;
    uint32_t          n = 0;

    (void)state;
    make(&m, SMALL_CONFIG, 2);
    for (kvi_weight_iter it = kvi_weight_first(&m.c); kvi_weight_next(&it, &w);) {
        const kvi_tensor *t = kvi_tensors_find(m.t, w.name);
        const uint8_t    *at = t->data;
        float            *scratch = malloc((size_t)32 * w.cols * sizeof *scratch);
        uint8_t          *out = malloc((size_t)32 * w.cols * sizeof *scratch);

        assert_true(scratch && out);
        for (uint32_t row = 0; row < w.rows; row += 32) {
            const uint32_t n_rows = (uint32_t)kvi_min_size(32, w.rows - row);
            const size_t   n_bytes = kvi_synth_band(&m.c, &w, 2, row, n_rows, scratch, out, NULL);

            assert_memory_equal(at, out, n_bytes);
            at += n_bytes;
        }
        assert_ptr_equal(at, t->data + t->n_bytes);
        n += w.is_scale;
        free(scratch);
        free(out);
    }
    assert_true(n > 50);
    unmake(&m);
}

typedef struct moments {
    double n, sum, sum2;
} moments;

/* x in units of the spread, so that tensors of several widths can be added. */
static void add_tensor(const made *m, const kvi_weight_tensor *w, int fan_in, moments *to)
{
    const kvi_tensor *t = kvi_tensors_find(m->t, w->name);
    const kvi_tensor *scale = find_scale(m, w);
    const uint32_t    k = m->c.hc_copies;
    const double      unit = fan_in ? 1 / sqrt((double)w->cols) : 1;

    for (uint32_t row = 0; row < w->rows; row++)
        for (uint32_t col = 0; col < w->cols; col++) {
            const int diagonal = w->role == KVI_ROLE_HC_BASE && col >= 2 * k &&
                                 (col - 2 * k) % (k + 1) == 0;
            const double x = ((double)value_at(w, t, scale, row, col) - 2 * diagonal) / unit;

            to->n++;
            to->sum += x;
            to->sum2 += x * x;
        }
}

/* The table of docs/formats.md. */
static const struct {
    uint8_t role, fan_in;
    double  mean, deviation;
} spreads[] = {
    {KVI_ROLE_EMBED, 0, 0, 0.12},
    {KVI_ROLE_HEAD, 1, 0, 1.5},
    {KVI_ROLE_NORM, 0, 1, 0.1},
    {KVI_ROLE_ATTN_NORM, 0, 0.025, 0.0025},
    {KVI_ROLE_FFN_NORM, 0, 0.2, 0.02},
    {KVI_ROLE_SINK, 0, 2.5 + 3.1780538, 0.5}, /* ln (16 + 8) */
    {KVI_ROLE_Q_NORM, 0, 0.97, 0.097},
    {KVI_ROLE_KV_NORM, 0, 0.4, 0.04},
    {KVI_ROLE_WQ_A, 1, 0, 1.6},
    {KVI_ROLE_WQ_B, 1, 0, 0.95},
    {KVI_ROLE_WKV, 1, 0, 1.8},
    {KVI_ROLE_WO_A, 1, 0, 1.6},
    {KVI_ROLE_WO_B, 1, 0, 1.9},
    {KVI_ROLE_COMP_WKV, 1, 0, 1.8},
    {KVI_ROLE_COMP_WGATE, 1, 0, 40},
    {KVI_ROLE_COMP_NORM, 0, 0.6, 0.06},
    {KVI_ROLE_INDEX_WK, 1, 0, 1.5},
    {KVI_ROLE_INDEX_K_NORM, 0, 0.5, 0.05},
    {KVI_ROLE_INDEX_WQ_B, 1, 0, 1.3},
    {KVI_ROLE_INDEX_WEIGHTS, 1, 0, 40},
    {KVI_ROLE_GATE, 1, 0, 2.9},
    {KVI_ROLE_GATE_BIAS, 0, 0, 0.05},
    {KVI_ROLE_EXPERT_IN, 1, 0, 1.5},
    {KVI_ROLE_EXPERT_OUT, 1, 0, 1.05},
    {KVI_ROLE_HC_FN, 1, 0, 0.6},
    {KVI_ROLE_HC_BASE, 0, 0, 0.3},
    {KVI_ROLE_HC_SCALE, 0, 0.4, 0.05},
    {KVI_ROLE_ENGRAM_TABLE, 0, 0, 0.3},
    {KVI_ROLE_ENGRAM_WKV, 1, 0, 1},
    {KVI_ROLE_ENGRAM_QK, 0, 1, 0.1},
};

/* Standard errors are d / sqrt(n) of the mean and d / sqrt(2 n) of the deviation; five of them, and
 * 2 % for the roundings to FP4, FP8 and bf16. */
static void test_weights_are_spread_as_documented(void **state)
{
    made m;

    (void)state;
    assert_int_equal(sizeof spreads / sizeof *spreads, KVI_N_ROLES);
    make(&m, T1_DIR "/config.json", 5);
    for (size_t i = 0; i < KVI_N_ROLES; i++) {
        const double      d = spreads[i].deviation;
        moments           sum = {0};
        kvi_weight_tensor w;
        double            mean;
        double            deviation;

        for (kvi_weight_iter it = kvi_weight_first(&m.c); kvi_weight_next(&it, &w);)
            if (w.role == (kvi_weight_role)spreads[i].role && !w.is_scale)
                add_tensor(&m, &w, spreads[i].fan_in, &sum);
        assert_true(sum.n > 0);
        mean = sum.sum / sum.n;
        deviation = sqrt(sum.sum2 / sum.n - mean * mean);
        if (fabs(mean - spreads[i].mean) > 5 * d / sqrt(sum.n) + 0.02 * d ||
            fabs(deviation - d) > 5 * d / sqrt(2 * sum.n) + 0.02 * d)
            fail_msg("role %u: mean %g, deviation %g, must be %g and %g", spreads[i].role, mean,
                     deviation, spreads[i].mean, d);
    }
    unmake(&m);
}

typedef struct codes {
    uint64_t n;
    uint64_t seen[256]; /* by code */
    uint8_t  scales[256];
} codes;

/* Every tile: its largest code is in the upper half of the format's range, so that the scale could
 * not have been the next smaller one, nor need have been larger. */
static void check_tiles(const made *m, const kvi_weight_tensor *w, codes *all)
{
    const kvi_tensor *t = kvi_tensors_find(m->t, w->name);
    const kvi_tensor *scale = find_scale(m, w);
    const uint32_t    height = w->kind == KVI_W_FP8 ? 32 : 1;
    const float       half = w->kind == KVI_W_FP4 ? 3.0f : 224.0f;

    for (uint32_t row = 0; row < w->rows; row += height)
        for (uint32_t col = 0; col < w->cols; col += 32) {
            const uint8_t s = scale->data[(size_t)row / height * (w->cols / 32) + col / 32];
            float         most = 0;

            for (uint32_t r = row; r < row + height && r < w->rows; r++)
                for (uint32_t k = col; k < col + 32; k++)
                    most = fmaxf(most, fabsf(value_at(w, t, scale, r, k)) / kvi_e8m0_to_f32(s));
            assert_true(most >= half && most <= 2 * half);
            all->scales[s] = 1;
        }
    for (size_t i = 0; i < t->n_bytes; i++) {
        if (w->kind == KVI_W_FP4) {
            all->seen[t->data[i] & 15]++;
            all->seen[t->data[i] >> 4]++;
            all->n += 2;
        } else {
            assert_true((t->data[i] & 0x7f) != 0x7f);
            all->seen[t->data[i]]++;
            all->n++;
        }
    }
}

static void test_scales_fit_and_all_codes_are_used(void **state)
{
    static codes      fp8;
    static codes      fp4;
    made              m;
    kvi_weight_tensor w;
    uint32_t          n_scales[2] = {0, 0};
    uint32_t          n_codes = 0;

    (void)state;
    make(&m, T1_DIR "/config.json", 6);
    for (kvi_weight_iter it = kvi_weight_first(&m.c); kvi_weight_next(&it, &w);)
        if (w.dtype == KVI_ST_I8)
            check_tiles(&m, &w, &fp4);
        else if (w.dtype == KVI_ST_F8_E4M3)
            check_tiles(&m, &w, &fp8);
    for (uint32_t i = 0; i < 256; i++) {
        n_codes += fp8.seen[i] > 0;
        n_scales[0] += fp8.scales[i];
        n_scales[1] += fp4.scales[i];
    }
    assert_int_equal(n_codes, 254); /* all but the two NaN */
    for (uint32_t i = 0; i < 16; i++)
        assert_true(fp4.seen[i] > fp4.n / 250);
    assert_true(n_scales[0] >= 4);
    assert_true(n_scales[1] >= 2);
    unmake(&m);
}

/* ------------------------------------------------------------------ what such a network does */

#define N_RUN 160u

typedef struct watch {
    const kvcsa_model *model;
    uint64_t  loads[40][16];      /* [layer, expert] tokens */
    double    scores[40][3];      /* [layer] number, sum, sum of squares, of the last row */
    double    same[40][2];        /* [layer] entries that a row and the one before it select, all */
    int32_t   last[40][64];       /* selection of the row before */
    uint64_t  main_codes[16];
    uint64_t  n_main;
    uint8_t   window_codes[256];
} watch;

static void see_router(watch *w, uint32_t layer, const float *z, size_t n_rows, size_t n)
{
    const float *bias = w->model->weights.layers[layer].gate_bias;

    for (size_t row = 0; row < n_rows; row++, z += n)
        for (size_t e = 0; e < n; e++) {
            const double s = sqrt(log1p(exp(z[e]))) + bias[e];
            uint32_t     rank = 0;

            for (size_t o = 0; o < n; o++)
                rank += sqrt(log1p(exp(z[o]))) + bias[o] > s;
            w->loads[layer][e] += rank < w->model->config.n_experts_per_token;
        }
}

static void see_score(watch *w, uint32_t layer, const float *x, size_t n)
{
    double *to = w->scores[layer];

    to[0] = (double)n;
    to[1] = to[2] = 0;
    for (size_t i = 0; i < n; i++) {
        to[1] += x[i];
        to[2] += (double)x[i] * x[i];
    }
}

static void see_topk(watch *w, uint32_t layer, const int32_t *ids, size_t n_rows, size_t n)
{
    int32_t *last = w->last[layer];

    for (size_t row = 0; row < n_rows; row++, ids += n) {
        for (size_t i = 0; i < n && ids[n - 1] >= 0 && last[n - 1] > 0; i++) {
            w->same[layer][1]++;
            for (size_t k = 0; k < n; k++)
                w->same[layer][0] += ids[i] == last[k];
        }
        memcpy(last, ids, n * sizeof *ids);
    }
}

static void see(void *user, uint32_t kind, uint32_t layer, const void *data, size_t n_rows,
                size_t width)
{
    watch  *w = user;
    uint8_t values[512];
    uint8_t scales[64];

    if (kind == KVI_TAP_ROUTER)
        see_router(w, layer, data, n_rows, width);
    if (kind == KVI_TAP_SCORE)
        see_score(w, layer, data, width);
    if (kind == KVI_TAP_TOPK)
        see_topk(w, layer, data, n_rows, width);
    for (size_t i = 0; i < n_rows && kind == KVI_TAP_MAIN; i++) {
        assert_int_equal(kvi_quant_main((const float *)data + i * width, width, values, scales), 0);
        for (size_t k = 0; k < width; k++)
            w->main_codes[k % 2 ? values[k / 2] >> 4 : values[k / 2] & 15]++;
        w->n_main += width;
    }
    for (size_t i = 0; i < n_rows && kind == KVI_TAP_WINDOW; i++) {
        kvi_quant_window((const float *)data + i * width, width, values, scales);
        for (size_t k = 0; k < width; k++)
            w->window_codes[values[k]] = 1;
    }
}

static host_rows run_watched(kvcsa_model *model, watch *w, const int32_t *ids)
{
    const kvi_tap  tap = {.see = see, .user = w};
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = host_session(pool, model, 0);
    host_rows      rows = host_rows_make(N_RUN, model->config.vocab_size);

    w->model = model;
    kvi_session_set_reference(s, 0, &tap);
    host_run(pool, s, ids, N_RUN, &rows);
    assert_int_equal(rows.n, N_RUN);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    return rows;
}

/* Logits: finite, of deviation 1.5 (unit rows through a head of 1.5), different from row to row. */
static void check_logits(const host_rows *rows)
{
    const size_t n = rows->vocab;
    double       alike = 0;
    size_t       n_pairs = 0;

    for (size_t r = 0; r < rows->n; r++) {
        double sum2 = 0;

        for (size_t i = 0; i < n; i++) {
            assert_true(isfinite(rows->data[r * n + i]));
            sum2 += (double)rows->data[r * n + i] * rows->data[r * n + i];
        }
        assert_in_range((uint64_t)(1000 * sqrt(sum2 / (double)n)), 1200, 1800);
    }
    for (size_t r = 40; r + 7 < rows->n; r += 3, n_pairs++) {
        double dot = 0;

        for (size_t i = 0; i < n; i++)
            dot += (double)rows->data[r * n + i] * rows->data[(r + 7) * n + i];
        alike += dot / (double)n / 2.25;
    }
    if (fabs(alike / (double)n_pairs) > 0.25)
        fail_msg("rows of logits correlate: %g", alike / (double)n_pairs);
}

static void check_watch(const watch *w)
{
    const kvi_config *c = &w->model->config;
    uint32_t          n_window = 0;

    for (uint32_t l = 0; l < c->n_layers; l++) {
        const double *s = w->scores[l];
        const double  mean = s[0] > 0 ? s[1] / s[0] : 0;

        for (uint32_t e = 0; e < c->n_experts; e++) /* even would be a fourth of the tokens */
            assert_in_range(w->loads[l][e], 1, N_RUN * 3 / 4);
        if (!c->index_source[l])
            continue;
        assert_true(s[0] >= N_RUN / 2);
        assert_true(sqrt(s[2] / s[0] - mean * mean) > 0.05);
        assert_true(w->same[l][1] > 100);
        assert_true(w->same[l][0] < 0.6 * w->same[l][1]);
    }
    for (uint32_t i = 0; i < 16; i++)
        assert_true(w->main_codes[i] > w->n_main / 100);
    for (uint32_t i = 0; i < 256; i++)
        n_window += w->window_codes[i];
    assert_true(n_window > 200);
}

/* Another token early on is noticed far behind the window and the n-grams: through entries. */
static void check_memory(kvcsa_model *model, int32_t *ids, const host_rows *rows)
{
    static watch w;
    host_rows    other;
    double       most = 0;

    ids[2] = ids[2] == 7 ? 8 : 7;
    memset(&w, 0, sizeof w);
    other = run_watched(model, &w, ids);
    for (size_t i = (N_RUN - 20) * (size_t)rows->vocab; i < rows->n * rows->vocab; i++)
        most = fmax(most, fabs((double)rows->data[i] - other.data[i]));
    if (most < 1e-3)
        fail_msg("an early token changes the last logits by %g only", most);
    free(other.data);
}

static void check_network(const char *config)
{
    static watch w;
    made         m;
    kvcsa_model *model;
    int32_t      ids[N_RUN];
    host_rows    rows;

    make(&m, config, 3);
    model = host_model(m.dir.path);
    host_tokens(ids, N_RUN, 11);
    memset(&w, 0, sizeof w);
    rows = run_watched(model, &w, ids);
    check_logits(&rows);
    check_watch(&w);
    check_memory(model, ids, &rows);
    free(rows.data);
    kvcsa_model_release(&model);
    unmake(&m);
}

static void test_t1_runs_like_a_model(void **state)
{
    (void)state;
    check_network(T1_DIR "/config.json");
}

/* The schedule of the release's 40 layers: what is nearly the same for all tokens would have grown
 * from layer to layer. */
static void test_forty_layers_do_not_collapse(void **state)
{
    static const struct {
        const char *key, *value;
    } narrow[] = {
        {"text_config/head_dim", "64"},      {"text_config/qk_rope_head_dim", "16"},
        {"text_config/hidden_size", "128"},  {"text_config/num_attention_heads", "4"},
        {"text_config/o_groups", "2"},       {"text_config/o_lora_rank", "32"},
        {"text_config/index_n_heads", "4"},  {"text_config/index_head_dim", "32"},
        {"text_config/index_topk", "16"},    {"text_config/sliding_window", "16"},
    };
    size_t    n = 0;
    char     *json = read_file(CACHE_CONFIG, &n);
    snap_dir  d = snap_dir_make();
    snap_path path = snap_in(&d, "narrow.json");

    (void)state;
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
        char *next = edit_json(json, strlen(json), narrow[i].key, narrow[i].value);

        free(json);
        json = next;
    }
    snap_write_file(path.text, json, strlen(json));
    free(json);
    check_network(path.text);
    snap_dir_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normal_numbers_are_box_muller_of_splitmix),
        cmocka_unit_test(test_normal_numbers_come_in_any_pieces),
        cmocka_unit_test(test_normal_numbers_are_normal),
        cmocka_unit_test(test_the_list_has_what_the_format_says),
        cmocka_unit_test(test_the_list_is_that_of_other_writers),
        cmocka_unit_test(test_vocabularies_of_many_sizes),
        cmocka_unit_test(test_vocabularies_that_cannot_be),
        cmocka_unit_test(test_bytes_are_frozen),
        cmocka_unit_test(test_scales_are_made_alone_too),
        cmocka_unit_test(test_weights_are_spread_as_documented),
        cmocka_unit_test(test_scales_fit_and_all_codes_are_used),
        cmocka_unit_test(test_t1_runs_like_a_model),
        cmocka_unit_test(test_forty_layers_do_not_collapse),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
