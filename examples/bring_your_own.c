/* A network of your own around our cache: the host computes, the pool keeps keys and values.
 *
 *   cc bring_your_own.c $(pkg-config --cflags --libs kvcsa) -lm -o bring_your_own
 *   ./bring_your_own [FORMAT]     of entries, f32 if not given; bf16, f16, q8_0, q4_0, ...
 *
 * The network stands in this file: four layers, eight query heads on two KV heads, rotations, a
 * gated MLP, bytes as tokens, and weights that a generator makes (so what it writes means nothing,
 * but it is always the same). `forward` does not know where keys and values lie: it hands them to a
 * function. One such function has the pool behind it, the other looks at all rows again and keeps
 * nothing. Whatever the sessions do (share a prompt, fork, go back, be saved and loaded), both must
 * write the same text. With entries that are rounded they need not; then the sessions must agree
 * with one that shares nothing. */
#include <kvcsa.h>

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_LAYERS = 4,
    N_HEADS = 8,
    N_KV = 2,
    WIDTH = 64, /* channels of a head */
    N_HIDDEN = 128,
    N_MLP = 256,
    N_VOCAB = 256,
    N_QUERY = N_HEADS * WIDTH,
    N_KEY = N_KV * WIDTH,
    N_ANSWER = 48,
    N_CHUNK = 64,     /* rows that go through the network at once, where it has a cache */
    MAX_TOKENS = 1024
};
#define MAX_DIFFERENCE 2e-3f /* of logits of about 10: sums are taken in another order */

static const char common[] =
    "It was the mate who kept the log, for the captain would not write of weather. Wind north by "
    "west, he wrote, and a sea from the south that nobody could account for. The men asked for "
    "nothing. At four bells they saw a light where there was no land, and the boy who had the "
    "wheel held for it until he was told to let it be. ";
static const char *questions[] = {"What did the boy see?", "Who wrote of the wind?"};

/* ------------------------------------------------------------------ the host's side */

static atomic_llong held; /* bytes that the library has of us */

static void *count_alloc(void *user, size_t size, size_t align)
{
    unsigned char *p = size < SIZE_MAX - align - sizeof p ? malloc(size + align + sizeof p) : NULL;
    uintptr_t      at = (uintptr_t)p + sizeof p;

    (void)user;
    if (!p)
        return NULL;
    at += (align - at % align) % align;
    memcpy((unsigned char *)at - sizeof p, &p, sizeof p);
    atomic_fetch_add(&held, (long long)size);
    return (void *)at;
}

static void count_free(void *user, void *ptr, size_t size, size_t align)
{
    unsigned char *p;

    (void)user, (void)align;
    if (!ptr)
        return;
    memcpy(&p, (unsigned char *)ptr - sizeof p, sizeof p);
    atomic_fetch_sub(&held, (long long)size);
    free(p);
}

static const kvcsa_allocator counting = {count_alloc, count_free, NULL};

static kvcsa_status complain(kvcsa_error *err, const char *what)
{
    snprintf(err->text, sizeof err->text, "%s", what);
    return err->status = KVCSA_ERR_INTERNAL;
}

/* ------------------------------------------------------------------ the network */

typedef struct layer {
    float query[N_QUERY * N_HIDDEN], key[N_KEY * N_HIDDEN], value[N_KEY * N_HIDDEN];
    float out[N_HIDDEN * N_QUERY];
    float gate[N_MLP * N_HIDDEN], up[N_MLP * N_HIDDEN], down[N_HIDDEN * N_MLP];
} layer;

static struct {
    float embed[N_VOCAB * N_HIDDEN];
    layer layers[N_LAYERS];
    float head[N_VOCAB * N_HIDDEN];
} net;

static struct { /* of the rows that are being computed */
    float x[MAX_TOKENS][N_HIDDEN], query[MAX_TOKENS][N_QUERY], key[MAX_TOKENS][N_KEY];
    float value[MAX_TOKENS][N_KEY], out[MAX_TOKENS][N_QUERY];
} rows;

/* What attention needs of one layer of the rows at `position`; key and value are its own. */
typedef kvcsa_status attend_fn(void *user, uint32_t l, uint32_t n_rows, kvcsa_error *err);

/* Uniform, so wide that what goes in with a variance of one comes out with that of `gain`. */
static void make_weights(float *w, size_t n, size_t n_in, float gain, uint64_t *seed)
{
    const float wide = gain * sqrtf(12.0f / (float)n_in);

    for (size_t i = 0; i < n; i++) { /* splitmix64 */
        uint64_t z = *seed += 0x9e3779b97f4a7c15u;

        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        w[i] = wide * ((float)((z ^ (z >> 31)) >> 40) / 16777216.0f - 0.5f);
    }
}

static void make_network(uint64_t seed)
{
    make_weights(net.embed, N_VOCAB * N_HIDDEN, 1, 1.0f, &seed);
    for (int i = 0; i < N_LAYERS; i++) {
        layer *l = &net.layers[i];

        make_weights(l->query, N_QUERY * N_HIDDEN, N_HIDDEN, 4.0f, &seed);
        make_weights(l->key, N_KEY * N_HIDDEN, N_HIDDEN, 2.0f, &seed);
        make_weights(l->value, N_KEY * N_HIDDEN, N_HIDDEN, 2.0f, &seed);
        make_weights(l->out, N_HIDDEN * N_QUERY, N_QUERY, 2.0f, &seed);
        make_weights(l->gate, N_MLP * N_HIDDEN, N_HIDDEN, 1.0f, &seed);
        make_weights(l->up, N_MLP * N_HIDDEN, N_HIDDEN, 1.0f, &seed);
        make_weights(l->down, N_HIDDEN * N_MLP, N_MLP, 1.0f, &seed);
    }
    make_weights(net.head, N_VOCAB * N_HIDDEN, N_HIDDEN, 4.0f, &seed);
}

static void multiply(const float *w, const float *x, size_t n_in, float *y, size_t n_out)
{
    for (size_t o = 0; o < n_out; o++, w += n_in) {
        float sum[8] = {0}; /* side by side, so that none waits for the one before */

        for (size_t i = 0; i < n_in; i += 8)
            for (size_t k = 0; k < 8; k++)
                sum[k] += w[i + k] * x[i + k];
        y[o] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    }
}

static void normalise(const float *x, float *y)
{
    float sum = 0.0f;

    for (int i = 0; i < N_HIDDEN; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < N_HIDDEN; i++)
        y[i] = x[i] / sqrtf(sum / N_HIDDEN + 1e-6f);
}

/* Rotations are the host's: what goes into the cache is rotated already. */
static void rotate(float *x, int n_heads, uint64_t position)
{
    for (int i = 0; i < WIDTH / 2; i++) {
        const double angle = (double)position * pow(10000.0, -2.0 * i / WIDTH);
        const float  c = (float)cos(angle), s = (float)sin(angle);

        for (int h = 0; h < n_heads; h++) {
            float      *a = x + h * WIDTH + i, *b = a + WIDTH / 2;
            const float was = *a;

            *a = was * c - *b * s;
            *b = *b * c + was * s;
        }
    }
}

static void mlp(const layer *l, float *x)
{
    float h[N_HIDDEN], gate[N_MLP], up[N_MLP], down[N_HIDDEN];

    normalise(x, h);
    multiply(l->gate, h, N_HIDDEN, gate, N_MLP);
    multiply(l->up, h, N_HIDDEN, up, N_MLP);
    for (int i = 0; i < N_MLP; i++)
        up[i] *= gate[i] / (1.0f + expf(-gate[i]));
    multiply(l->down, up, N_MLP, down, N_HIDDEN);
    for (int i = 0; i < N_HIDDEN; i++)
        x[i] += down[i];
}

/* Leaves in rows.x what the last layer gives. A row's bits do not depend on the rows beside it. */
static kvcsa_status forward(const int32_t *tokens, uint64_t position, uint32_t n_rows,
                            attend_fn *attend, void *user, kvcsa_error *err)
{
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(rows.x[r], net.embed + (size_t)tokens[r] * N_HIDDEN, sizeof rows.x[r]);
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        const layer *l = &net.layers[i];
        float        h[N_HIDDEN];
        kvcsa_status st;

        for (uint32_t r = 0; r < n_rows; r++) {
            normalise(rows.x[r], h);
            multiply(l->query, h, N_HIDDEN, rows.query[r], N_QUERY);
            multiply(l->key, h, N_HIDDEN, rows.key[r], N_KEY);
            multiply(l->value, h, N_HIDDEN, rows.value[r], N_KEY);
            rotate(rows.query[r], N_HEADS, position + r);
            rotate(rows.key[r], N_KV, position + r);
        }
        if ((st = attend(user, i, n_rows, err)) != KVCSA_OK)
            return st;
        for (uint32_t r = 0; r < n_rows; r++) {
            multiply(l->out, rows.out[r], N_QUERY, h, N_HIDDEN);
            for (int k = 0; k < N_HIDDEN; k++)
                rows.x[r][k] += h[k];
            mlp(l, rows.x[r]);
        }
    }
    return KVCSA_OK;
}

static void logits_of(uint32_t row, float *logits)
{
    float h[N_HIDDEN];

    normalise(rows.x[row], h);
    multiply(net.head, h, N_HIDDEN, logits, N_VOCAB);
}

/* Of the bytes that can be shown. */
static int32_t best_token(const float *logits)
{
    int32_t best = ' ';

    for (int32_t i = ' '; i <= '~'; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* ------------------------------------------------------------------ attention, twice */

/* All rows from the first token on, without a cache. */
static kvcsa_status attend_naive(void *user, uint32_t l, uint32_t n_rows, kvcsa_error *err)
{
    static double weight[MAX_TOKENS];

    (void)user, (void)l, (void)err;
    for (uint32_t r = 0; r < n_rows; r++)
        for (int h = 0; h < N_HEADS; h++) {
            const int kv = h / (N_HEADS / N_KV) * WIDTH;
            double    most = -INFINITY, sum = 0.0;

            for (uint32_t j = 0; j <= r; j++) {
                double dot = 0.0;

                for (int c = 0; c < WIDTH; c++)
                    dot += (double)rows.query[r][h * WIDTH + c] * (double)rows.key[j][kv + c];
                weight[j] = dot / sqrt(WIDTH);
                most = fmax(most, weight[j]);
            }
            for (uint32_t j = 0; j <= r; j++)
                sum += weight[j] = exp(weight[j] - most);
            for (int c = 0; c < WIDTH; c++) {
                double out = 0.0;

                for (uint32_t j = 0; j <= r; j++)
                    out += weight[j] * (double)rows.value[j][kv + c];
                rows.out[r][h * WIDTH + c] = (float)(out / sum);
            }
        }
    return KVCSA_OK;
}

typedef struct open_chunk {
    kvcsa_session   *session;
    kvcsa_chunk_info info;
} open_chunk;

/* The cache keeps keys and values of the rows, and attends to all there are. Rows of a replay are
 * in the cache already; they are run again for what comes out of them. */
static kvcsa_status attend_cached(void *user, uint32_t l, uint32_t n_rows, kvcsa_error *err)
{
    const open_chunk     *c = user;
    kvcsa_chunk_rows      write = {.struct_size = sizeof write};
    kvcsa_chunk_attention attend = {.struct_size = sizeof attend};
    kvcsa_status          st = KVCSA_OK;

    (void)n_rows; /* the chunk's */
    write.key.data = rows.key[0];
    write.value.data = rows.value[0];
    attend.query.data = rows.query[0];
    attend.out = rows.out[0];
    attend.n_heads = N_HEADS;
    if (!c->info.replay)
        st = kvcsa_chunk_write(c->session, l, &write, err);
    return st == KVCSA_OK ? kvcsa_chunk_attend(c->session, l, &attend, err) : st;
}

/* ------------------------------------------------------------------ sessions */

typedef struct host {
    kvcsa_model *model;
    kvcsa_pool  *pool;
    uint64_t     n_rows;          /* computed, all in all */
    float        logits[N_VOCAB]; /* of the last row that was computed */
    float        worst;           /* largest difference of logits */
    int          n_texts;         /* that were compared with the naive run */
    int          n_other;         /* of them, those that are not the same */
    int          rounds;          /* entries are rounded */
} host;

typedef struct text {
    int32_t  tokens[MAX_TOKENS];
    size_t   n_prompt, n;
    uint64_t n_adopted, n_rows;
    float    logits[N_VOCAB]; /* behind the last token */
} text;

/* What is queued, or a row that is wanted again for its logits. */
static kvcsa_status compute(host *h, kvcsa_session *session, kvcsa_error *err)
{
    open_chunk   c = {session, {.struct_size = sizeof c.info}};
    kvcsa_status st;

    while ((st = kvcsa_chunk_begin(session, 0, &c.info, err)) == KVCSA_OK && c.info.n_rows > 0) {
        st = forward(c.info.tokens, c.info.position, c.info.n_rows, attend_cached, &c, err);
        if (st != KVCSA_OK) {
            kvcsa_chunk_abandon(session);
            return st;
        }
        logits_of(c.info.n_rows - 1, h->logits);
        h->n_rows += c.info.n_rows;
        if ((st = kvcsa_chunk_commit(session, err)) != KVCSA_OK)
            return st;
    }
    return st;
}

static void set_prompt(text *t, const char *prompt)
{
    for (size_t i = 0; prompt[i]; i++)
        t->tokens[t->n++] = (unsigned char)prompt[i];
    t->n_prompt = t->n;
}

/* Make the session hold the text, and let it go on for N_ANSWER tokens. */
static kvcsa_status go_on(host *h, kvcsa_session *session, text *t, kvcsa_error *err)
{
    const uint64_t n_rows = h->n_rows;
    kvcsa_reuse    reuse = {.struct_size = sizeof reuse};
    kvcsa_status   st = kvcsa_session_sync(session, t->tokens, t->n, NULL, &reuse, err);

    t->n_adopted = reuse.n_adopted;
    memcpy(h->logits, t->logits, sizeof t->logits); /* they hold if nothing is to be computed */
    if (st == KVCSA_OK)
        st = compute(h, session, err);
    for (int k = 0; k < N_ANSWER && st == KVCSA_OK; k++) {
        const int32_t token = best_token(h->logits);

        t->tokens[t->n++] = token;
        if ((st = kvcsa_session_append(session, &token, 1, NULL, NULL, err)) == KVCSA_OK)
            st = compute(h, session, err);
    }
    memcpy(t->logits, h->logits, sizeof t->logits);
    t->n_rows = h->n_rows - n_rows;
    return st;
}

/* The same text by a session that knows nothing and leaves nothing behind. */
static kvcsa_status compare_alone(host *h, const text *t, kvcsa_error *err)
{
    kvcsa_session_params params;
    kvcsa_session       *alone = NULL;
    text                 again = {.n = t->n - N_ANSWER, .n_prompt = t->n_prompt};
    kvcsa_status         st;

    kvcsa_session_params_default(&params, sizeof params);
    params.flags = KVCSA_SESSION_CACHE_ONLY | KVCSA_SESSION_PRIVATE;
    params.reuse = KVCSA_REUSE_NONE;
    memcpy(again.tokens, t->tokens, again.n * sizeof *again.tokens);
    if ((st = kvcsa_session_create(h->pool, h->model, &params, &alone, err)) == KVCSA_OK)
        st = go_on(h, alone, &again, err);
    if (st == KVCSA_OK && (again.n_adopted || again.n != t->n ||
                           memcmp(again.tokens, t->tokens, t->n * sizeof *t->tokens) != 0 ||
                           memcmp(again.logits, t->logits, sizeof t->logits) != 0))
        st = complain(err, "a session that shares nothing writes another text, or other bits");
    kvcsa_session_release(&alone);
    return st;
}

/* The same text without a cache. One pass over all of it is enough: where each token is the best
 * one behind those in front of it, it is what a naive run writes. */
static kvcsa_status compare_naive(host *h, const text *t, kvcsa_error *err)
{
    float        logits[N_VOCAB];
    size_t       n_same = 0;
    kvcsa_status st = forward(t->tokens, 0, (uint32_t)t->n, attend_naive, NULL, err);

    for (size_t i = t->n - N_ANSWER; i < t->n && st == KVCSA_OK; i++) {
        logits_of((uint32_t)i - 1, logits);
        if (best_token(logits) != t->tokens[i])
            break;
        n_same++;
    }
    h->n_texts++;
    h->n_other += n_same < N_ANSWER;
    logits_of((uint32_t)t->n - 1, logits);
    for (int i = 0; i < N_VOCAB; i++)
        h->worst = fmaxf(h->worst, fabsf(logits[i] - t->logits[i]));
    if (st == KVCSA_OK && !h->rounds && (n_same < N_ANSWER || !(h->worst < MAX_DIFFERENCE)))
        st = complain(err, "a run without a cache writes another text");
    return st;
}

/* Show it, and compare it with the runs that share nothing. */
static kvcsa_status check(host *h, const char *who, const text *t, kvcsa_error *err)
{
    char         shown[N_ANSWER + 1] = "";
    kvcsa_status st;

    for (int i = 0; i < N_ANSWER; i++)
        shown[i] = (char)t->tokens[t->n - N_ANSWER + (size_t)i];
    printf("%-16s %6zu %8llu %5llu   %.40s\n", who, t->n, (unsigned long long)t->n_adopted,
           (unsigned long long)t->n_rows, shown);
    if ((st = compare_alone(h, t, err)) != KVCSA_OK)
        return st;
    return compare_naive(h, t, err);
}

/* ------------------------------------------------------------------ what is shown */

/* A layer keeps keys and values of all its KV heads, of every token, and attends to all of them. */
static kvcsa_status open_all(host *h, uint32_t format, uint64_t identity, kvcsa_model **model,
                             kvcsa_error *err)
{
    kvcsa_plan_row    plan[N_LAYERS];
    kvcsa_plan_params mp;
    kvcsa_pool_params pp;
    kvcsa_status      st;

    for (int32_t i = 0; i < N_LAYERS; i++)
        plan[i] = (kvcsa_plan_row){.struct_size = sizeof plan[i],
                                   .layer = i,
                                   .kv_owner = i,
                                   .select_owner = -1,
                                   .index_owner = -1,
                                   .select = KVCSA_SELECT_ALL,
                                   .ratio = 1,
                                   .kv_heads = N_KV,
                                   .entry_width = WIDTH,
                                   .entry_format = format,
                                   .value_kind = KVCSA_VALUE_OWN,
                                   .value_width = WIDTH,
                                   .value_format = format};
    kvcsa_plan_params_default(&mp, sizeof mp);
    mp.allocator = &counting;
    mp.name = "bring_your_own";
    mp.identity = identity;
    mp.max_tokens = MAX_TOKENS;
    mp.vocab_tokens = N_VOCAB;
    st = kvcsa_model_from_plan(plan, N_LAYERS, &mp, model, err);
    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.allocator = &counting;
    return st == KVCSA_OK && !h->pool ? kvcsa_pool_create(&pp, &h->pool, err) : st;
}

static kvcsa_status new_session(kvcsa_pool *pool, kvcsa_model *model, kvcsa_session **out,
                                kvcsa_error *err)
{
    kvcsa_session_params params;

    kvcsa_session_params_default(&params, sizeof params);
    params.flags = KVCSA_SESSION_CACHE_ONLY;
    params.chunk_tokens = N_CHUNK;
    return kvcsa_session_create(pool, model, &params, out, err);
}

/* Two conversations with one beginning; and a third of other weights, which must not share it. */
static kvcsa_status share(host *h, kvcsa_model *other, kvcsa_session *first, text *a,
                          kvcsa_error *err)
{
    static text    b, c;
    kvcsa_session *second = NULL, *third = NULL;
    const size_t   whole = sizeof common / 128 * 128; /* tokens of full blocks, so many at least */
    kvcsa_status   st;

    set_prompt(a, common);
    set_prompt(a, questions[0]);
    set_prompt(&b, common);
    set_prompt(&b, questions[1]);
    c = b;
    if ((st = go_on(h, first, a, err)) != KVCSA_OK ||
        (st = check(h, "first", a, err)) != KVCSA_OK ||
        (st = new_session(h->pool, h->model, &second, err)) != KVCSA_OK ||
        (st = go_on(h, second, &b, err)) != KVCSA_OK ||
        (st = check(h, "second", &b, err)) != KVCSA_OK ||
        (st = new_session(h->pool, other, &third, err)) != KVCSA_OK ||
        (st = go_on(h, third, &c, err)) != KVCSA_OK)
        goto done;
    printf("%-16s %6zu %8llu\n", "other weights", c.n_prompt, (unsigned long long)c.n_adopted);
    if (b.n_adopted < whole || b.n_adopted >= b.n_prompt || c.n_adopted > 0 ||
        b.n_rows + b.n_adopted != b.n)
        st = complain(err, "more or less was shared than there is to share");
done:
    kvcsa_session_release(&second);
    kvcsa_session_release(&third);
    return st;
}

/* Another end of the first conversation; then the first one goes back and says the same again. */
static kvcsa_status turn_back(host *h, kvcsa_session *first, const text *a, kvcsa_error *err)
{
    static text    b, again;
    kvcsa_session *fork = NULL;
    kvcsa_status   st;

    memcpy(b.tokens, a->tokens, a->n_prompt * sizeof *b.tokens);
    b.n = a->n_prompt;
    set_prompt(&b, " And why?");
    memcpy(again.tokens, a->tokens, a->n_prompt * sizeof *again.tokens);
    again.n = again.n_prompt = a->n_prompt;
    if ((st = kvcsa_session_fork(first, a->n_prompt, NULL, &fork, err)) == KVCSA_OK &&
        (st = go_on(h, fork, &b, err)) == KVCSA_OK &&
        (st = check(h, "fork", &b, err)) == KVCSA_OK &&
        (st = kvcsa_session_rewind(first, a->n_prompt, err)) == KVCSA_OK &&
        (st = go_on(h, first, &again, err)) == KVCSA_OK &&
        (st = check(h, "back, once more", &again, err)) == KVCSA_OK &&
        (again.n != a->n || memcmp(again.tokens, a->tokens, a->n * sizeof *a->tokens) != 0 ||
         memcmp(again.logits, a->logits, sizeof a->logits) != 0))
        st = complain(err, "after a rewind the same prompt has another answer");
    if (st == KVCSA_OK && (again.n_rows != 1 + N_ANSWER || b.n_rows != b.n - a->n_prompt))
        st = complain(err, "rows were computed that the session holds");
    kvcsa_session_release(&fork);
    return st;
}

typedef struct memory {
    unsigned char *data;
    size_t         n, at;
} memory;

static int32_t write_memory(void *user, const void *data, size_t n_bytes)
{
    memory *m = user;

    if (n_bytes > m->n - m->at)
        return 1;
    memcpy(m->data + m->at, data, n_bytes);
    m->at += n_bytes;
    return 0;
}

static int64_t read_memory(void *user, void *data, size_t n_bytes)
{
    memory      *m = user;
    const size_t n = n_bytes < m->n - m->at ? n_bytes : m->n - m->at;

    memcpy(data, m->data + m->at, n);
    m->at += n;
    return (int64_t)n;
}

/* Save the first conversation and load it into a pool that knows nothing; both go on. */
static kvcsa_status save_and_load(host *h, kvcsa_session *first, const text *a, kvcsa_error *err)
{
    static text       b, c;
    kvcsa_pool_params params;
    kvcsa_pool       *pool = NULL;
    kvcsa_session    *loaded = NULL;
    memory            m = {0};
    kvcsa_writer      writer = {write_memory, &m};
    kvcsa_reader      reader = {read_memory, &m};
    uint64_t          n = 0;
    kvcsa_status      st;

    b = c = *a;
    memset(c.logits, 0, sizeof c.logits); /* a snapshot knows nothing of them */
    kvcsa_pool_params_default(&params, sizeof params);
    params.allocator = &counting;
    if ((st = kvcsa_snapshot_size(first, NULL, &n, err)) != KVCSA_OK)
        return st;
    if (!(m.data = malloc((size_t)n)))
        return complain(err, "no memory for a snapshot");
    m.n = (size_t)n;
    if ((st = kvcsa_snapshot_write(first, &writer, NULL, NULL, err)) != KVCSA_OK)
        goto done;
    m.at = 0;
    if ((st = kvcsa_pool_create(&params, &pool, err)) == KVCSA_OK &&
        (st = new_session(pool, h->model, &loaded, err)) == KVCSA_OK &&
        (st = kvcsa_snapshot_read(loaded, &reader, NULL, NULL, err)) == KVCSA_OK &&
        (st = go_on(h, loaded, &c, err)) == KVCSA_OK &&
        (st = check(h, "saved and loaded", &c, err)) == KVCSA_OK &&
        (st = go_on(h, first, &b, err)) == KVCSA_OK &&
        (b.n != c.n || memcmp(b.tokens, c.tokens, b.n * sizeof *b.tokens) != 0))
        st = complain(err, "what was saved and what was loaded go on differently");
done:
    kvcsa_session_release(&loaded);
    kvcsa_pool_release(&pool);
    free(m.data);
    return st;
}

static kvcsa_status run(host *h, uint32_t format, kvcsa_error *err)
{
    static text        a;
    kvcsa_model       *other = NULL;
    kvcsa_session     *first = NULL;
    kvcsa_cost         cost = {.struct_size = sizeof cost};
    kvcsa_backend_info backend = {.struct_size = sizeof backend};
    kvcsa_status       st;

    h->rounds = format != KVCSA_FORMAT_F32;
    if ((st = open_all(h, format, 1, &h->model, err)) != KVCSA_OK ||
        (st = open_all(h, format, 2, &other, err)) != KVCSA_OK ||
        (st = kvcsa_model_cost(h->model, MAX_TOKENS, &cost, err)) != KVCSA_OK ||
        (st = kvcsa_pool_get_backend(h->pool, &backend, err)) != KVCSA_OK ||
        (st = new_session(h->pool, h->model, &first, err)) != KVCSA_OK)
        goto done;
    printf("%d layers of %d KV heads with %d channels; %s (%s)\n", N_LAYERS, N_KV, WIDTH,
           backend.name, backend.kernels);
    printf("%s entries: %.0f bytes a token, %.2f of what f16 takes\n\n", kvcsa_format_name(format),
           cost.rate, cost.rate / (N_LAYERS * 2 * N_KEY * 2));
    printf("%-16s %6s %8s %5s\n", "session", "tokens", "adopted", "rows");
    if ((st = share(h, other, first, &a, err)) == KVCSA_OK &&
        (st = turn_back(h, first, &a, err)) == KVCSA_OK &&
        (st = save_and_load(h, first, &a, err)) == KVCSA_OK)
        st = kvcsa_pool_check(h->pool, err);
    if (st == KVCSA_OK)
        printf("\n%d texts were written alone too, to the bit; %d of them are those of a run "
               "without a cache\n(logits differ by %.1e at most)\n",
               h->n_texts, h->n_texts - h->n_other, (double)h->worst);
done:
    kvcsa_session_release(&first);
    kvcsa_pool_release(&h->pool);
    kvcsa_model_release(&h->model);
    kvcsa_model_release(&other);
    return st;
}

int main(int argc, char **argv)
{
    static host  h;
    kvcsa_error  err = {.status = KVCSA_OK};
    uint32_t     format = argc > 1 ? 1 : KVCSA_FORMAT_F32;
    kvcsa_status st;

    while (argc == 2 && format <= KVCSA_FORMAT_INT3_F16_G32 &&
           strcmp(kvcsa_format_name(format), argv[1]) != 0)
        format++;
    if (argc > 2 || format > KVCSA_FORMAT_INT3_F16_G32) {
        fprintf(stderr, "usage: bring_your_own [FORMAT], a format that entries can be stored in\n");
        return 2;
    }
    make_network(1);
    if ((st = run(&h, format, &err)) == KVCSA_OK && atomic_load(&held) != 0)
        st = complain(&err, "memory was not given back");
    if (st != KVCSA_OK) {
        fprintf(stderr, "bring_your_own: %s (%s)\n", err.text, kvcsa_status_name(st));
        return 1;
    }
    printf("%lld bytes are left\n", (long long)atomic_load(&held));
    return 0;
}
