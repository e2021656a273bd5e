/* The numbers of a synthetic checkpoint.
 *
 * Element i of a tensor is a function of (seed, name of the tensor, i): no state goes from one to
 * the next, so it does not matter in which order, in which shard or by whom they are written.
 * Integers, and the functions of base/fmath.h: the same bytes on every machine.
 *
 * The spread of each kind of weight is that of the released model where it was measured
 * (docs/formats.md, "Synthetic checkpoints"). With unit gains of the norms, as one would first
 * think of, the experts swamp the residual stream. */
#include "model/synth_int.h"

#include "base/checked.h"
#include "base/fmath.h"
#include "base/hash.h"
#include "format/dtype.h"

#include <string.h>

/* ------------------------------------------------------------------ random numbers */

/* Output number i of the splitmix64 generator (Steele, Lea, Flood 2014) that starts at `key`: its
 * state is a counter, so any output can be had directly. */
static uint64_t random_at(uint64_t key, uint64_t i)
{
    uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Box and Muller 1958: two uniform numbers give two normal ones. u is in (0, 1], so r is at most
 * 8.6. */
static void normal_pair(uint64_t key, uint64_t i, float *x, float *y)
{
    const double u = (double)((random_at(key, 2 * i) >> 11) + 1) * 0x1p-53;
    const float  angle = (float)(random_at(key, 2 * i + 1) >> 40) * 0x1.921fb6p-22f; /* 2 pi/2^24 */
    const float  r = kvi_sqrtf((float)(-2.0 * kvi_ln(u)));
    float        s;
    float        c;

    kvi_sincosf(angle, &s, &c);
    *x = r * c;
    *y = r * s;
}

void kvi_synth_normal(uint64_t key, uint64_t first, size_t n, float *out)
{
    float last;

    KVI_ASSERT(first % 2 == 0);
    for (size_t i = 0; i + 1 < n; i += 2)
        normal_pair(key, (first + i) / 2, &out[i], &out[i + 1]);
    if (n % 2)
        normal_pair(key, (first + n - 1) / 2, &out[n - 1], &last);
}

/* ------------------------------------------------------------------ spread of weights */

enum { GAIN, PLAIN, FAN_IN };

typedef struct spread {
    uint8_t how;  /* GAIN: mean `size`, a tenth of it as deviation. PLAIN: deviation `size` around
                   * `mean`. FAN_IN: deviation `size` / sqrt(columns) */
    float   size;
    float   mean;
} spread;

static const spread spreads[KVI_N_ROLES] = {
    [KVI_ROLE_EMBED] = {PLAIN, 0.12f, 0},
    [KVI_ROLE_HEAD] = {FAN_IN, 1.5f, 0},
    [KVI_ROLE_NORM] = {GAIN, 1.0f, 0},
    [KVI_ROLE_ATTN_NORM] = {GAIN, 0.025f, 0},
    [KVI_ROLE_FFN_NORM] = {GAIN, 0.2f, 0},
    [KVI_ROLE_SINK] = {PLAIN, 0.5f, 2.5f},
    [KVI_ROLE_Q_NORM] = {GAIN, 0.97f, 0},
    [KVI_ROLE_KV_NORM] = {GAIN, 0.4f, 0},
    [KVI_ROLE_WQ_A] = {FAN_IN, 1.6f, 0},
    [KVI_ROLE_WQ_B] = {FAN_IN, 0.95f, 0},
    [KVI_ROLE_WKV] = {FAN_IN, 1.8f, 0},
    [KVI_ROLE_WO_A] = {FAN_IN, 1.6f, 0},
    [KVI_ROLE_WO_B] = {FAN_IN, 1.9f, 0},
    [KVI_ROLE_COMP_WKV] = {FAN_IN, 1.8f, 0},
    [KVI_ROLE_COMP_WGATE] = {FAN_IN, 40.0f, 0},
    [KVI_ROLE_COMP_NORM] = {GAIN, 0.6f, 0},
    [KVI_ROLE_INDEX_WK] = {FAN_IN, 1.5f, 0},
    [KVI_ROLE_INDEX_K_NORM] = {GAIN, 0.5f, 0},
    [KVI_ROLE_INDEX_WQ_B] = {FAN_IN, 1.3f, 0},
    [KVI_ROLE_INDEX_WEIGHTS] = {FAN_IN, 40.0f, 0},
    [KVI_ROLE_GATE] = {FAN_IN, 2.9f, 0},
    [KVI_ROLE_GATE_BIAS] = {PLAIN, 0.05f, 0},
    [KVI_ROLE_EXPERT_IN] = {FAN_IN, 1.5f, 0},
    [KVI_ROLE_EXPERT_OUT] = {FAN_IN, 1.05f, 0},
    [KVI_ROLE_HC_FN] = {FAN_IN, 0.6f, 0},
    [KVI_ROLE_HC_BASE] = {PLAIN, 0.3f, 0},
    [KVI_ROLE_HC_SCALE] = {PLAIN, 0.05f, 0.4f},
    [KVI_ROLE_ENGRAM_TABLE] = {PLAIN, 0.3f, 0},
    [KVI_ROLE_ENGRAM_WKV] = {FAN_IN, 1.0f, 0},
    [KVI_ROLE_ENGRAM_QK] = {GAIN, 1.0f, 0},
};

/* A weight and its scales draw from one stream. */
static uint64_t key_of(const kvi_weight_tensor *t, uint64_t seed)
{
    const char  *end = strrchr(t->name, '.');
    const size_t n = strlen(t->name);
    const int    scaled = t->is_scale || t->dtype == KVI_ST_I8 || t->dtype == KVI_ST_F8_E4M3;

    return kvi_hash64(t->name, scaled && end ? (size_t)(end - t->name) : n, seed);
}

/* Mixing begins near the identity: a stream mostly stays itself. base is [pre, post, C] with C
 * [copies, copies]. */
static void add_identity(uint32_t copies, float *base)
{
    for (uint32_t i = 0; i < copies; i++)
        base[2 * copies + i * copies + i] += 2.0f;
}

/* The logarithm of the keys that a query attends: a sink of that size takes half of an even
 * attention. Random heads attend evenly; what they bring is nearly the same for every token, and
 * without sinks it would drown what tells tokens apart within a few layers. */
static float sink_level(const kvi_config *c)
{
    return (float)kvi_ln((double)c->window + (double)c->index_topk);
}

/* x f32 [n_rows, cols]. */
static void fill(const kvi_config *c, const kvi_weight_tensor *t, uint64_t seed, uint32_t row0,
                 uint32_t n_rows, float *x)
{
    const spread s = spreads[t->role];
    const size_t n = (size_t)n_rows * t->cols;
    const float  size = s.how == GAIN     ? 0.1f * s.size
                        : s.how == FAN_IN ? s.size / kvi_sqrtf((float)t->cols)
                                          : s.size;
    const float  mean = s.how == GAIN              ? s.size
                        : t->role == KVI_ROLE_SINK ? s.mean + sink_level(c)
                                                   : s.mean;

    kvi_synth_normal(key_of(t, seed), (uint64_t)row0 * t->cols, n, x);
    for (size_t i = 0; i < n; i++)
        x[i] = mean + size * x[i];
    if (t->role == KVI_ROLE_HC_BASE)
        add_identity(c->hc_copies, x);
}

/* ------------------------------------------------------------------ bytes */

static void put_u16(uint8_t *out, uint16_t v)
{
    memcpy(out, &v, sizeof v);
}

static void put_plain(const kvi_weight_tensor *t, const float *x, size_t n, uint8_t *out)
{
    if (t->dtype == KVI_ST_F32)
        memcpy(out, x, n * sizeof *x);
    for (size_t i = 0; i < n && t->dtype == KVI_ST_BF16; i++)
        put_u16(out + 2 * i, kvi_f32_to_bf16(x[i]));
}

/* Scale of a tile of n_rows x 32: the least power of two by which everything in it fits. */
static uint8_t tile_scale(const float *x, size_t stride, uint32_t n_rows, float largest)
{
    float amax = 1e-8f;

    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < 32; i++) {
            const float v = x[r * stride + i];

            amax = v > amax ? v : -v > amax ? -v : amax;
        }
    return kvi_f32_to_e8m0_up(amax / largest);
}

/* 32 columns of a row. */
static void put_codes(const float *x, uint8_t scale, int fp4, uint8_t *out)
{
    const float to_code = kvi_e8m0_to_f32((uint8_t)(254 - scale)); /* 1 / 2^(scale - 127) */

    if (!fp4) {
        for (uint32_t i = 0; i < 32; i++)
            out[i] = kvi_f32_to_e4m3(x[i] * to_code);
        return;
    }
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t low = kvi_f32_to_e2m1(x[2 * i] * to_code);
        const uint32_t high = kvi_f32_to_e2m1(x[2 * i + 1] * to_code);

        out[i] = (uint8_t)(low | high << 4);
    }
}

/* Codes to `codes`, scales to `scales`; either may be NULL. */
static void put_scaled(const kvi_weight_tensor *t, const float *x, uint32_t n_rows, uint8_t *codes,
                       uint8_t *scales)
{
    const int      fp4 = t->kind == KVI_W_FP4;
    const uint32_t tile_rows = t->kind == KVI_W_FP8 ? KVI_SYNTH_BAND_ROWS : 1;
    const size_t   width = fp4 ? t->cols / 2 : t->cols; /* bytes of a row of codes */
    const size_t   tile_bytes = fp4 ? 16 : 32;

    for (uint32_t row = 0; row < n_rows; row += tile_rows) {
        const uint32_t height = (uint32_t)kvi_min_size(tile_rows, n_rows - row);

        for (uint32_t tile = 0; tile < t->cols / 32; tile++) {
            const float  *at = x + (size_t)row * t->cols + 32 * (size_t)tile;
            const uint8_t scale = tile_scale(at, t->cols, height, fp4 ? 6.0f : 448.0f);

            if (scales)
                *scales++ = scale;
            for (uint32_t r = 0; r < height && codes; r++)
                put_codes(at + (size_t)r * t->cols, scale, fp4,
                          codes + (row + r) * width + tile * tile_bytes);
        }
    }
}

size_t kvi_synth_band(const kvi_config *c, const kvi_weight_tensor *t, uint64_t seed,
                      uint32_t row0, uint32_t n_rows, float *scratch, uint8_t *out, uint8_t *scales)
{
    const uint64_t rows = t->is_scale && t->kind == KVI_W_FP8 ? 1 : n_rows;

    fill(c, t, seed, row0, n_rows, scratch);
    if (t->is_scale)
        put_scaled(t, scratch, n_rows, NULL, out);
    else if (t->dtype == KVI_ST_I8 || t->dtype == KVI_ST_F8_E4M3)
        put_scaled(t, scratch, n_rows, out, scales);
    else
        put_plain(t, scratch, (size_t)n_rows * t->cols, out);
    return (size_t)(t->n_dims == 1 ? kvi_weight_bytes(t)
                                   : kvi_weight_bytes(t) / t->shape[0] * rows);
}
