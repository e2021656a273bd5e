/* Buckets, multipliers and rows of Engram. Source: docs/formats.md, "Engram"; the random numbers
 * are those of numpy's default_rng (SeedSequence, PCG64 XSL-RR 128/64, Lemire's bounded integers),
 * so that they equal the ones the tables were trained with. Everything is 64-bit integer
 * arithmetic: multipliers of small vocabularies exceed 2^53. */
#include "model/engram_hash.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"

#include <string.h>

__extension__ typedef unsigned __int128 kvi_u128;

/* ------------------------------------------------------------------ primes */

static uint64_t mul_mod(uint64_t a, uint64_t b, uint64_t m)
{
    return (uint64_t)((kvi_u128)a * b % m);
}

static uint64_t pow_mod(uint64_t base, uint64_t e, uint64_t m)
{
    uint64_t r = 1;

    for (base %= m; e; e >>= 1) {
        if (e & 1)
            r = mul_mod(r, base, m);
        base = mul_mod(base, base, m);
    }
    return r;
}

/* Miller-Rabin; the first twelve primes as bases decide every n below 2^64 (Sorenson and Webster).
 */
static int is_prime(uint64_t n)
{
    static const uint64_t bases[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
    uint64_t              d = n - 1;
    unsigned              s = 0;

    if (n < 2)
        return 0;
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++)
        if (n % bases[i] == 0)
            return n == bases[i];
    for (; d % 2 == 0; d /= 2)
        s++;
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        uint64_t x = pow_mod(bases[i], d, n);
        unsigned k = 0;

        if (x == 1)
            continue;
        for (; x != n - 1 && k + 1 < s; k++)
            x = mul_mod(x, x, n);
        if (x != n - 1)
            return 0;
    }
    return 1;
}

/* ------------------------------------------------------------------ numpy's default_rng */

typedef struct pcg64 {
    kvi_u128 state;
    kvi_u128 inc;
} pcg64;

static uint32_t hash_word(uint32_t v, uint32_t *hc, uint32_t factor)
{
    v ^= *hc;
    *hc *= factor;
    v *= *hc;
    return v ^ (v >> 16);
}

static uint32_t mix_words(uint32_t x, uint32_t y)
{
    const uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;

    return r ^ (r >> 16);
}

static void step(pcg64 *g)
{
    const kvi_u128 m = (kvi_u128)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u;

    g->state = g->state * m + g->inc;
}

static void seed(pcg64 *g, uint32_t entropy)
{
    uint32_t pool[4];
    uint64_t word[4];
    uint32_t hc = 0x43b0d7e5u;

    for (uint32_t i = 0; i < 4; i++)
        pool[i] = hash_word(i == 0 ? entropy : 0, &hc, 0x931e8875u);
    for (uint32_t src = 0; src < 4; src++)
        for (uint32_t dst = 0; dst < 4; dst++)
            if (src != dst)
                pool[dst] = mix_words(pool[dst], hash_word(pool[src], &hc, 0x931e8875u));
    hc = 0x8b51f9ddu;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t low = hash_word(pool[2 * i % 4], &hc, 0x58f38dedu);
        const uint32_t high = hash_word(pool[(2 * i + 1) % 4], &hc, 0x58f38dedu);

        word[i] = (uint64_t)high << 32 | low;
    }
    g->inc = ((kvi_u128)word[2] << 64 | word[3]) << 1 | 1;
    g->state = 0;
    step(g);
    g->state += (kvi_u128)word[0] << 64 | word[1];
    step(g);
}

static uint64_t next(pcg64 *g)
{
    uint64_t x;
    unsigned rot;

    step(g);
    x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    rot = (unsigned)(g->state >> 122);
    return x >> rot | x << ((64 - rot) & 63);
}

/* Uniform in 0..n-1. numpy takes another path for n <= 2^32, which no vocabulary of at most 2^24
 * leads to. */
static uint64_t bounded(pcg64 *g, uint64_t n)
{
    kvi_u128 p = (kvi_u128)next(g) * n;

    if ((uint64_t)p < n) {
        const uint64_t threshold = (0 - n) % n;

        while ((uint64_t)p < threshold)
            p = (kvi_u128)next(g) * n;
    }
    return (uint64_t)(p >> 64);
}

void kvi_engram_multipliers(uint32_t layer, uint32_t compressed_vocab, uint32_t ngram,
                            uint64_t *out)
{
    const uint64_t most = (uint64_t)INT64_MAX / (compressed_vocab ? compressed_vocab : 1) / 2;
    pcg64          g;

    seed(&g, 10007u * layer);
    for (uint32_t i = 0; i < ngram; i++)
        out[i] = 2 * bounded(&g, most ? most : 1) + 1;
}

/* ------------------------------------------------------------------ tables and rows */

kvcsa_status kvi_engram_hash_init(kvi_engram_hash *h, const kvi_config *c, uint32_t pad,
                                  const kvcsa_allocator *a, kvcsa_error *err)
{
    size_t   n;
    uint64_t prime = c->engram_vocab - 1; /* the search starts behind it */

    memset(h, 0, sizeof *h);
    if (c->n_engram_layers == 0)
        return KVCSA_OK;
    h->ngram = c->engram_ngram;
    h->heads = c->engram_heads;
    h->n_columns = (c->engram_ngram - 1) * c->engram_heads;
    h->pad = pad;
    n = (size_t)c->n_engram_layers * h->n_columns * sizeof(uint64_t);
    if (!(h->primes = kvi_alloc(a, n)) || !(h->offsets = kvi_alloc(a, n))) {
        kvi_engram_hash_fini(h, c, a);
        return kvi_fail(err, KVCSA_ERR_NOMEM, "Engram buckets of %zu bytes", n);
    }
    for (uint32_t i = 0; i < c->n_engram_layers; i++) {
        uint64_t rows = 0;

        /* The rule is "smallest prime above the last that no column has yet", restarting at
         * engram_vocab for every n-gram size. Columns take primes in order from the start, so that
         * is simply the next prime. */
        for (uint32_t col = 0; col < h->n_columns; col++) {
            do
                prime++;
            while (!is_prime(prime));
            h->primes[(size_t)i * h->n_columns + col] = prime;
            h->offsets[(size_t)i * h->n_columns + col] = rows;
            rows += prime;
        }
        if (rows != c->engram_rows[i]) {
            kvi_engram_hash_fini(h, c, a);
            return kvi_fail(err, KVCSA_ERR_FORMAT,
                            "engram_num_embeddings is %llu for layer %u, the primes from "
                            "engram_vocab_size %llu add up to "
                            "%llu",
                            (unsigned long long)c->engram_rows[i], c->engram_layers[i],
                            (unsigned long long)c->engram_vocab, (unsigned long long)rows);
        }
        kvi_engram_multipliers(c->engram_layers[i], c->engram_compressed_vocab, h->ngram,
                               h->multipliers[i]);
    }
    return KVCSA_OK;
}

void kvi_engram_hash_fini(kvi_engram_hash *h, const kvi_config *c, const kvcsa_allocator *a)
{
    const size_t n = (size_t)c->n_engram_layers * h->n_columns * sizeof(uint64_t);

    kvi_free(a, h->primes, n);
    kvi_free(a, h->offsets, n);
    memset(h, 0, sizeof *h);
}

void kvi_engram_rows(const kvi_engram_hash *h, uint32_t engram_index, const uint32_t *history,
                     uint32_t n_history, uint64_t *rows)
{
    const uint64_t *m = h->multipliers[engram_index];
    const uint64_t *primes = h->primes + (size_t)engram_index * h->n_columns;
    const uint64_t *offsets = h->offsets + (size_t)engram_index * h->n_columns;
    uint64_t        roll = 0;
    int             blocked = 0; /* sticky: nothing behind a gap or before the start is seen */

    for (uint32_t s = 0; s < h->ngram; s++) {
        blocked = blocked || s >= n_history || history[s] == KVI_ENGRAM_DEAD;
        roll ^= (blocked ? h->pad : history[s]) * m[s];
        for (uint32_t j = 0; s > 0 && j < h->heads; j++) {
            const uint32_t col = (s - 1) * h->heads + j;

            rows[col] = roll % primes[col] + offsets[col];
        }
    }
}
