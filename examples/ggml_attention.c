/* A network that is built as ggml graphs and keeps its cache in a pool of this library.
 *
 *   cc ggml_attention.c $(pkg-config --cflags --libs kvcsa ggml) -lggml-base -lm
 *   ./a.out
 *
 * The network (four layers, eight heads over two, random weights) stays what it is: matrices,
 * norms, rotation and feed-forward are ggml's. Its attention is a custom operator that hands keys,
 * values and queries to kvcsa_chunk_write and kvcsa_chunk_attend where they lie, with their
 * strides. From then on prompts are shared, sessions fork and go back, and nobody here keeps a KV
 * tensor. Beside it runs the same network with ggml's own attention and KV tensors, from the first
 * token each time: both must write the same. The status says whether they did.
 *
 * With ggml 0.25.3 it printed
 *
 *   ggml 0.25.3, 2 threads; a token takes 2048 bytes in f32, 544 in q8_0
 *   session                held  adopted computed   ggml alone writes the same
 *   the first                 0        0      224   24 of 24 tokens, logits within 2e-06
 *   no chunk is open       KVCSA_ERR_ARG, no chunk is open
 *   another, same prompt      0      184       29   24 of 24 tokens, logits within 2e-06
 *   the first once more       0      224        1   24 of 24 tokens, logits within 2e-06
 *   with q8_0 entries         0        0      224   23 of 24 tokens, logits within 5e-02
 *   a fork in its question  203        0       16   24 of 24 tokens, logits within 2e-06
 *   the first goes on       248        0       12   24 of 24 tokens, logits within 2e-06
 *   the other, rewound      144        0       28   24 of 24 tokens, logits within 2e-06
 *   the pool held 1253376 bytes, and 0 after release
 *   nothing differs
 */
#include <kvcsa.h>

#include <ggml.h>
#include <ggml-alloc.h>
#include <ggml-backend.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_LAYERS = 4, HIDDEN = 64, HEADS = 8, KV_HEADS = 2, WIDTH = 32, FFN = 160, VOCAB = 256 };
enum { MAX_TOKENS = 512, BLOCK_TOKENS = 32, CHUNK_TOKENS = 48, N_WRITE = 24, N_THREADS = 2 };
#define SEED 20u
/* Sums of at most 512 terms in another order differ by 512 x 2^-24 of what they add up; the four
 * layers add that to rows and logits of about one. */
#define F32_LIMIT (4.0 * MAX_TOKENS / 16777216.0)
/* With q8_0 a channel is off by half of 1/127 of the largest of its 32 at most, in keys and in
 * values: about a percent for each layer, of logits that reach four. */
#define Q8_LIMIT 0.2

static const char prompt[] =
    "You keep the books of an inn by the harbour, and you answer what guests and sailors ask you. "
    "Be brief and civil. Supper is at seven, when the bell is rung; the door is shut at eleven. ";

/* ------------------------------------------------------------------ the network */

typedef struct layer_weights {
    struct ggml_tensor *qkv; /* one matrix: queries, keys and values of a row lie side by side */
    struct ggml_tensor *out;
    struct ggml_tensor *gate;
    struct ggml_tensor *up;
    struct ggml_tensor *down;
} layer_weights;

typedef struct network {
    struct ggml_tensor *embedding;
    struct ggml_tensor *head;
    layer_weights layers[N_LAYERS];
    struct ggml_tensor *keys[N_LAYERS]; /* of ggml's own attention: [WIDTH, KV_HEADS, MAX_TOKENS] */
    struct ggml_tensor *values[N_LAYERS];
    struct ggml_context *ctx; /* all of the above */
    ggml_backend_t cpu;
    ggml_backend_set_n_threads_t set_n_threads;
    ggml_backend_buffer_t memory;
    ggml_gallocr_t scratch; /* what a graph computes */
} network;

/* Rows that go through the network together, and the first error of its callbacks. */
typedef struct run {
    kvcsa_session *session; /* NULL = ggml's own attention */
    kvcsa_chunk_info chunk; /* position, n_rows and tokens are used without a session too */
    kvcsa_error err;
} run;

typedef struct hook { /* userdata of a layer's operator */
    run *run;
    uint32_t layer;
} hook;

static kvcsa_status fail(kvcsa_error *err, kvcsa_status status, const char *text)
{
    snprintf(err->text, sizeof err->text, "%s", text);
    return err->status = status;
}

static struct ggml_tensor *new_matrix(network *net, int n_in, int n_out)
{
    return ggml_new_tensor_2d(net->ctx, GGML_TYPE_F32, n_in, n_out);
}

/* Uniform, of variance 1 / inputs: rows keep their size. A cache that is not written before it is
 * read is seen too. */
static void fill_tensor(struct ggml_tensor *t, uint64_t *state)
{
    const float size = sqrtf(3.0f / (float)t->ne[0]);
    float      *w = t->data;

    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        w[i] = ((float)(*state >> 40) / 8388608.0f - 1.0f) * size;
    }
}

static void shape_network(network *net)
{
    net->embedding = new_matrix(net, HIDDEN, VOCAB);
    net->head = new_matrix(net, HIDDEN, VOCAB);
    for (int i = 0; i < N_LAYERS; i++) {
        layer_weights *w = &net->layers[i];

        w->qkv = new_matrix(net, HIDDEN, (HEADS + 2 * KV_HEADS) * WIDTH);
        w->out = new_matrix(net, HEADS * WIDTH, HIDDEN);
        w->gate = new_matrix(net, HIDDEN, FFN);
        w->up = new_matrix(net, HIDDEN, FFN);
        w->down = new_matrix(net, FFN, HIDDEN);
        net->keys[i] = ggml_new_tensor_3d(net->ctx, GGML_TYPE_F32, WIDTH, KV_HEADS, MAX_TOKENS);
        net->values[i] = ggml_new_tensor_3d(net->ctx, GGML_TYPE_F32, WIDTH, KV_HEADS, MAX_TOKENS);
    }
}

/* The CPU may be built into ggml or loaded by it, so that its own functions have to be asked for. */
static kvcsa_status open_cpu(network *net, kvcsa_error *err)
{
    void *found;

    ggml_backend_load_all();
    if (!(net->cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL)))
        return fail(err, KVCSA_ERR_BACKEND, "ggml has no CPU here");
    found = ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(ggml_backend_get_device(net->cpu)),
        "ggml_backend_set_n_threads");
    if (!found)
        return fail(err, KVCSA_ERR_BACKEND, "ggml's CPU has no ggml_backend_set_n_threads");
    memcpy(&net->set_n_threads, &found, sizeof found); /* ISO C has no cast for this */
    return KVCSA_OK;
}

static kvcsa_status make_network(network *net, kvcsa_error *err)
{
    const struct ggml_init_params room = {.mem_size = 128 * ggml_tensor_overhead(),
                                          .no_alloc = true};
    uint64_t                      state = SEED * 0x9e3779b97f4a7c15u;
    struct ggml_tensor           *t;

    if (open_cpu(net, err) != KVCSA_OK)
        return err->status;
    if (!(net->ctx = ggml_init(room)))
        return fail(err, KVCSA_ERR_NOMEM, "no memory for the network");
    shape_network(net);
    net->memory = ggml_backend_alloc_ctx_tensors(net->ctx, net->cpu);
    net->scratch = ggml_gallocr_new(ggml_backend_get_default_buffer_type(net->cpu));
    if (!net->memory || !net->scratch)
        return fail(err, KVCSA_ERR_NOMEM, "no memory for the network");
    for (t = ggml_get_first_tensor(net->ctx); t; t = ggml_get_next_tensor(net->ctx, t))
        fill_tensor(t, &state);
    return KVCSA_OK;
}

static void free_network(network *net)
{
    ggml_gallocr_free(net->scratch);
    ggml_backend_buffer_free(net->memory);
    ggml_free(net->ctx);
    if (net->cpu)
        ggml_backend_free(net->cpu);
}

/* ------------------------------------------------------------------ attention, both ways */

/* ggml's [channels, heads, rows] in place; its strides count bytes, ours floats. */
static kvcsa_rows rows_of(const struct ggml_tensor *t)
{
    const kvcsa_rows rows = {.data = t->data,
                             .row_stride = t->nb[2] / sizeof(float),
                             .head_stride = t->nb[1] / sizeof(float)};

    return rows;
}

/* ggml calls a custom operator in each of its threads, however many tasks it was made for. Calls on
 * a session must not overlap, and the pool divides the work among threads of its own: so the first
 * one does it, the others wait at the end of the operator as after any other. There is no way to
 * return an error from here: it is kept, and what comes after it does nothing. */
static void attend_in_session(struct ggml_tensor *dst, const struct ggml_tensor *q,
                              const struct ggml_tensor *k, const struct ggml_tensor *v, int ith,
                              int nth, void *userdata)
{
    const hook           *at = userdata;
    run                  *r = at->run;
    kvcsa_chunk_rows      rows = {.struct_size = sizeof rows};
    kvcsa_chunk_attention attention = {.struct_size = sizeof attention};

    (void)nth;
    if (ith != 0 || r->err.status != KVCSA_OK)
        return;
    rows.key = rows_of(k);
    rows.value = rows_of(v);
    attention.query = rows_of(q);
    attention.n_heads = (uint32_t)q->ne[1];
    attention.out = dst->data;
    attention.out_row_stride = dst->nb[2] / sizeof(float);
    attention.out_head_stride = dst->nb[1] / sizeof(float);
    /* In a replay the session has the entries already. */
    if (r->chunk.replay || kvcsa_chunk_write(r->session, at->layer, &rows, &r->err) == KVCSA_OK)
        kvcsa_chunk_attend(r->session, at->layer, &attention, &r->err);
}

/* The same by ggml's operators: store the rows, then softmax over all that is stored. */
static struct ggml_tensor *attend_in_ggml(struct ggml_context *ctx, struct ggml_cgraph *graph,
                                          const network *net, const hook *at,
                                          struct ggml_tensor *mask,
                                          struct ggml_tensor *const qkv[3])
{
    const int64_t       first = (int64_t)at->run->chunk.position, n = at->run->chunk.n_rows;
    struct ggml_tensor *stored[2] = {net->keys[at->layer], net->values[at->layer]};
    struct ggml_tensor *k, *v, *scores, *out;

    for (int i = 0; i < 2; i++) {
        struct ggml_tensor *t = stored[i];
        struct ggml_tensor *end = ggml_view_3d(ctx, t, WIDTH, KV_HEADS, n, t->nb[1], t->nb[2],
                                               (size_t)first * t->nb[2]);

        ggml_build_forward_expand(graph, ggml_cpy(ctx, qkv[1 + i], end));
        stored[i] = ggml_view_3d(ctx, t, WIDTH, KV_HEADS, first + n, t->nb[1], t->nb[2], 0);
    }
    k = ggml_permute(ctx, stored[0], 0, 2, 1, 3);                 /* [WIDTH, tokens, KV_HEADS] */
    v = ggml_cont(ctx, ggml_permute(ctx, stored[1], 1, 2, 0, 3)); /* [tokens, WIDTH, KV_HEADS] */
    scores = ggml_mul_mat(ctx, k, ggml_permute(ctx, qkv[0], 0, 2, 1, 3));
    scores = ggml_soft_max_ext(ctx, scores, mask, 1.0f / sqrtf((float)WIDTH), 0.0f);
    out = ggml_mul_mat(ctx, v, scores); /* [WIDTH, rows, HEADS] */
    return ggml_cont(ctx, ggml_permute(ctx, out, 0, 2, 1, 3));
}

/* ------------------------------------------------------------------ graphs */

typedef struct inputs {
    struct ggml_tensor *tokens;
    struct ggml_tensor *positions;
    struct ggml_tensor *mask; /* NULL: a session knows who sees what */
} inputs;

static inputs make_inputs(struct ggml_context *ctx, const run *r)
{
    const int64_t n = r->chunk.n_rows, n_seen = (int64_t)r->chunk.position + n;
    inputs        in = {.tokens = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n),
                        .positions = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n)};

    ggml_set_input(in.tokens);
    ggml_set_input(in.positions);
    if (!r->session) {
        in.mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_seen, n);
        ggml_set_input(in.mask);
    }
    return in;
}

static void fill_inputs(const inputs *in, const run *r)
{
    const int64_t n = r->chunk.n_rows, first = (int64_t)r->chunk.position, n_seen = first + n;
    int32_t      *positions = in->positions->data;
    float        *mask = in->mask ? in->mask->data : NULL;

    memcpy(in->tokens->data, r->chunk.tokens, (size_t)n * sizeof(int32_t));
    for (int64_t i = 0; i < n; i++)
        positions[i] = (int32_t)(first + i);
    for (int64_t i = 0; mask && i < n; i++)
        for (int64_t k = 0; k < n_seen; k++)
            mask[i * n_seen + k] = k <= first + i ? 0.0f : -INFINITY;
}

/* Some heads of the rows of qkv, where they are. */
static struct ggml_tensor *heads_of(struct ggml_context *ctx, struct ggml_tensor *qkv, int first,
                                    int n)
{
    const size_t head = WIDTH * sizeof(float);

    return ggml_view_3d(ctx, qkv, WIDTH, n, qkv->ne[1], head, qkv->nb[1], (size_t)first * head);
}

static struct ggml_tensor *rotate(struct ggml_context *ctx, struct ggml_tensor *x,
                                  struct ggml_tensor *positions)
{
    return ggml_rope_ext(ctx, x, positions, NULL, WIDTH, GGML_ROPE_TYPE_NEOX, MAX_TOKENS, 10000.0f,
                         1.0f, 0.0f, 1.0f, 32.0f, 1.0f);
}

/* Keys are rotated before they are stored. Values go as the part of qkv that they are. */
static struct ggml_tensor *build_layer(struct ggml_context *ctx, struct ggml_cgraph *graph,
                                       const network *net, hook *at, const inputs *in,
                                       struct ggml_tensor *x)
{
    const layer_weights *w = &net->layers[at->layer];
    struct ggml_tensor  *qkv = ggml_mul_mat(ctx, w->qkv, ggml_rms_norm(ctx, x, 1e-6f));
    struct ggml_tensor  *q = rotate(ctx, heads_of(ctx, qkv, 0, HEADS), in->positions);
    struct ggml_tensor  *k = rotate(ctx, heads_of(ctx, qkv, HEADS, KV_HEADS), in->positions);
    struct ggml_tensor  *v = heads_of(ctx, qkv, HEADS + KV_HEADS, KV_HEADS);
    struct ggml_tensor  *qkv_heads[] = {q, k, v};
    struct ggml_tensor  *a, *y;

    a = at->run->session ? ggml_map_custom3(ctx, q, k, v, attend_in_session, 1, at)
                         : attend_in_ggml(ctx, graph, net, at, in->mask, qkv_heads);
    a = ggml_reshape_2d(ctx, a, HEADS * WIDTH, x->ne[1]);
    x = ggml_add(ctx, x, ggml_mul_mat(ctx, w->out, a));
    y = ggml_rms_norm(ctx, x, 1e-6f);
    y = ggml_mul(ctx, ggml_silu(ctx, ggml_mul_mat(ctx, w->gate, y)), ggml_mul_mat(ctx, w->up, y));
    return ggml_add(ctx, x, ggml_mul_mat(ctx, w->down, y));
}

/* The graph is made, given memory, filled and run. Its result stays in net->scratch. */
static struct ggml_tensor *compute_graph(struct ggml_context *ctx, const network *net, run *r)
{
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    const inputs        in = make_inputs(ctx, r);
    struct ggml_tensor *x = ggml_get_rows(ctx, net->embedding, in.tokens);
    hook                hooks[N_LAYERS];

    for (uint32_t i = 0; i < N_LAYERS; i++) {
        hooks[i] = (hook){.run = r, .layer = i};
        x = build_layer(ctx, graph, net, &hooks[i], &in, x);
    }
    x = ggml_view_1d(ctx, x, HIDDEN, (r->chunk.n_rows - 1) * x->nb[1]);
    x = ggml_mul_mat(ctx, net->head, ggml_rms_norm(ctx, x, 1e-6f));
    ggml_set_output(x);
    ggml_build_forward_expand(graph, x);
    if (!ggml_gallocr_alloc_graph(net->scratch, graph)) {
        fail(&r->err, KVCSA_ERR_NOMEM, "no memory for a graph");
        return x;
    }
    fill_inputs(&in, r);
    net->set_n_threads(net->cpu, r->session && r->chunk.n_rows > 1 ? N_THREADS : 1);
    if (ggml_backend_graph_compute(net->cpu, graph) != GGML_STATUS_SUCCESS &&
        r->err.status == KVCSA_OK)
        fail(&r->err, KVCSA_ERR_BACKEND, "ggml did not compute the graph");
    return x;
}

/* All rows of the run through the network; logits f32 [VOCAB] of the last one. */
static kvcsa_status run_graph(const network *net, run *r, float *logits)
{
    const struct ggml_init_params room = {
        .mem_size = GGML_DEFAULT_GRAPH_SIZE * ggml_tensor_overhead() + ggml_graph_overhead(),
        .no_alloc = true};
    struct ggml_context *ctx = ggml_init(room);
    struct ggml_tensor  *x;

    if (!ctx)
        return fail(&r->err, KVCSA_ERR_NOMEM, "no memory for a graph");
    x = compute_graph(ctx, net, r);
    if (r->err.status == KVCSA_OK) /* errors of callbacks can be seen from here on */
        memcpy(logits, x->data, VOCAB * sizeof(float));
    ggml_free(ctx);
    return r->err.status;
}

/* What kvcsa_pool_step is to others: compute all that is queued. */
static kvcsa_status step(const network *net, kvcsa_session *session, float *logits,
                         uint64_t *n_rows, kvcsa_error *err)
{
    kvcsa_status st;

    for (;;) {
        run r = {.session = session, .chunk = {.struct_size = sizeof r.chunk}};

        if ((st = kvcsa_chunk_begin(session, 0, &r.chunk, err)) != KVCSA_OK || !r.chunk.n_rows)
            return st;
        if ((st = run_graph(net, &r, logits)) != KVCSA_OK) {
            kvcsa_chunk_abandon(session);
            *err = r.err;
            return st;
        }
        *n_rows += r.chunk.n_rows;
        if ((st = kvcsa_chunk_commit(session, err)) != KVCSA_OK)
            return st;
    }
}

/* The same rows with ggml's attention. */
static kvcsa_status step_in_ggml(const network *net, const int32_t *tokens, uint64_t first,
                                 uint64_t n, float *logits, kvcsa_error *err)
{
    for (uint64_t at = first; at < n; at += CHUNK_TOKENS) {
        const uint64_t left = n - at;
        run            r = {.chunk = {.position = at, .tokens = tokens + at}};

        r.chunk.n_rows = (uint32_t)(left < CHUNK_TOKENS ? left : CHUNK_TOKENS);
        if (run_graph(net, &r, logits) != KVCSA_OK) {
            *err = r.err;
            return r.err.status;
        }
    }
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ what is compared */

typedef struct both { /* a session and ggml alone, writing the same text */
    int32_t tokens[MAX_TOKENS];
    size_t n_tokens;
    uint64_t n_rows; /* that the session's network computed */
    uint32_t n_same; /* tokens that both would write next */
    double off;      /* largest difference of logits */
} both;

static int32_t best(const float *logits)
{
    int32_t top = 0;

    for (int32_t i = 1; i < VOCAB; i++)
        if (logits[i] > logits[top])
            top = i;
    return top;
}

static kvcsa_status append_text(kvcsa_session *session, const char *text, kvcsa_error *err)
{
    int32_t      ids[MAX_TOKENS];
    const size_t n = strlen(text);

    if (n > MAX_TOKENS)
        return fail(err, KVCSA_ERR_LIMIT, "the text is too long");
    for (size_t i = 0; i < n; i++)
        ids[i] = (unsigned char)text[i];
    return kvcsa_session_append(session, ids, n, NULL, NULL, err);
}

/* Compute what is queued, then write: the session goes on with its own tokens, ggml begins at the
 * first token and is given the same ones. */
static kvcsa_status write_both(const network *net, kvcsa_session *session, both *b,
                               kvcsa_error *err)
{
    float        ours[VOCAB], theirs[VOCAB];
    uint64_t     done = 0;
    kvcsa_status st = step(net, session, ours, &b->n_rows, err);

    if (st != KVCSA_OK ||
        (st = kvcsa_session_get_tokens(session, 0, b->tokens, MAX_TOKENS - N_WRITE, &b->n_tokens,
                                       err)) != KVCSA_OK)
        return st;
    for (uint32_t i = 0; i < N_WRITE; i++) {
        const size_t n = b->n_tokens;

        if ((st = step_in_ggml(net, b->tokens, done, n, theirs, err)) != KVCSA_OK)
            return st;
        done = n;
        for (size_t k = 0; k < VOCAB; k++) /* a NaN must not pass for equal */
            if (!(fabs((double)ours[k] - (double)theirs[k]) <= b->off))
                b->off = fabs((double)ours[k] - (double)theirs[k]);
        b->tokens[n] = best(ours);
        b->n_same += best(theirs) == b->tokens[n];
        if ((st = kvcsa_session_append(session, &b->tokens[n], 1, NULL, NULL, err)) != KVCSA_OK ||
            (st = step(net, session, ours, &b->n_rows, err)) != KVCSA_OK)
            return st;
        b->n_tokens++;
    }
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ the cache */

/* What each layer keeps: a key and a value of two heads for every token. */
static kvcsa_status make_model(uint32_t format, kvcsa_model **out, kvcsa_error *err)
{
    kvcsa_plan_row    rows[N_LAYERS];
    kvcsa_plan_params params;

    for (int i = 0; i < N_LAYERS; i++)
        rows[i] = (kvcsa_plan_row){
            .struct_size = sizeof rows[i],
            .layer = i,
            .kv_owner = i,
            .select = KVCSA_SELECT_ALL,
            .select_owner = -1,
            .index_owner = -1,
            .ratio = 1,
            .kv_heads = KV_HEADS,
            .entry_width = WIDTH,
            .entry_format = format,
            .value_kind = KVCSA_VALUE_OWN,
            .value_width = WIDTH,
            .value_format = format,
        };
    kvcsa_plan_params_default(&params, sizeof params);
    params.name = "ggml_attention";
    params.identity = SEED; /* all weights follow from it */
    params.block_tokens = BLOCK_TOKENS;
    params.vocab_tokens = VOCAB;
    params.max_tokens = MAX_TOKENS;
    return kvcsa_model_from_plan(rows, N_LAYERS, &params, out, err);
}

/* ggml's tensors lie in the host's memory, and so do the blocks. Its other threads spin while one
 * of them attends, so that more of ours would only be in their way. */
static kvcsa_status make_pool(kvcsa_pool **out, kvcsa_error *err)
{
    kvcsa_pool_params params;

    kvcsa_pool_params_default(&params, sizeof params);
    params.backend = KVCSA_BACKEND_CPU;
    params.n_threads = 1;
    return kvcsa_pool_create(&params, out, err);
}

static kvcsa_status make_session(kvcsa_pool *pool, kvcsa_model *model, kvcsa_session **out,
                                 kvcsa_error *err)
{
    kvcsa_session_params params;

    kvcsa_session_params_default(&params, sizeof params);
    params.flags = KVCSA_SESSION_CACHE_ONLY;
    params.chunk_tokens = CHUNK_TOKENS;
    return kvcsa_session_create(pool, model, &params, out, err);
}

/* ------------------------------------------------------------------ the tour */

typedef struct tour {
    network net;
    kvcsa_model *model; /* the plan with f32 entries */
    kvcsa_model *small; /* and with q8_0 */
    kvcsa_pool *pool;
    kvcsa_session *first;
    kvcsa_session *second;
    kvcsa_session *again;
    kvcsa_session *fork;
    kvcsa_session *other;
    uint64_t adopted; /* by the last append of a text */
    int bad;          /* how much is not as it must be */
    kvcsa_error err;
} tour;

/* Append a text, write N_WRITE tokens, and say how it went. */
static kvcsa_status compare(tour *t, const char *what, kvcsa_session *session, const char *text,
                            double limit)
{
    const uint64_t held = kvcsa_session_length(session);
    kvcsa_reuse    reuse = {.struct_size = sizeof reuse};
    both           b = {.n_tokens = 0};
    kvcsa_status   st = append_text(session, text, &t->err);

    if (st != KVCSA_OK || (st = kvcsa_session_get_reuse(session, &reuse, &t->err)) != KVCSA_OK ||
        (st = write_both(&t->net, session, &b, &t->err)) != KVCSA_OK)
        return st;
    printf("%-22s %4llu %8llu %8llu   %2u of %d tokens, logits within %.0e\n", what,
           (unsigned long long)held, (unsigned long long)reuse.n_adopted,
           (unsigned long long)(b.n_rows - N_WRITE), b.n_same, N_WRITE, b.off);
    t->adopted = reuse.n_adopted;
    t->bad += !(b.off <= limit);
    t->bad += b.n_rows != reuse.n_replay + reuse.n_compute + N_WRITE;
    t->bad += reuse.n_adopted + reuse.n_compute != strlen(text);
    if (limit > F32_LIMIT)
        t->bad += !(b.off > F32_LIMIT); /* so many bits fewer are seen */
    else
        t->bad += b.n_same != N_WRITE;
    return KVCSA_OK;
}

/* A graph whose callbacks fail, since no chunk is open: ggml computes it to its end, and the error
 * is there after it. */
static void show_error(tour *t, kvcsa_session *session)
{
    const uint64_t held = kvcsa_session_length(session);
    const int32_t  token = 'a';
    float          logits[VOCAB];
    run            r = {.session = session, .chunk = {.tokens = &token, .n_rows = 1}};

    run_graph(&t->net, &r, logits);
    printf("%-22s %s, %s\n", "no chunk is open", kvcsa_status_name(r.err.status), r.err.text);
    t->bad += r.err.status != KVCSA_ERR_ARG || kvcsa_session_length(session) != held;
}

static kvcsa_status print_costs(tour *t)
{
    kvcsa_cost   f32 = {.struct_size = sizeof f32}, q8 = f32;
    kvcsa_status st;

    if ((st = kvcsa_model_cost(t->model, MAX_TOKENS, &f32, &t->err)) != KVCSA_OK ||
        (st = kvcsa_model_cost(t->small, MAX_TOKENS, &q8, &t->err)) != KVCSA_OK)
        return st;
    printf("ggml %s, %d threads; a token takes %.0f bytes in f32, %.0f in q8_0\n", ggml_version(),
           N_THREADS, f32.rate, q8.rate);
    printf("%-22s held  adopted computed   ggml alone writes the same\n", "session");
    return KVCSA_OK;
}

/* Two guests with one prompt, and a third who asks what the first one did. */
static kvcsa_status share(tour *t)
{
    const size_t n = sizeof prompt - 1;
    char         view[MAX_TOKENS], whale[MAX_TOKENS];
    kvcsa_status st;

    snprintf(view, sizeof view, "%s%s", prompt, "Is there a room that looks upon the sea?");
    snprintf(whale, sizeof whale, "%s%s", prompt, "Have ye seen the white whale?");
    if ((st = make_session(t->pool, t->model, &t->first, &t->err)) != KVCSA_OK ||
        (st = compare(t, "the first", t->first, view, F32_LIMIT)) != KVCSA_OK)
        return st;
    t->bad += t->adopted != 0;
    show_error(t, t->first);
    if ((st = make_session(t->pool, t->model, &t->second, &t->err)) != KVCSA_OK ||
        (st = compare(t, "another, same prompt", t->second, whale, F32_LIMIT)) != KVCSA_OK)
        return st;
    t->bad += t->adopted < n / BLOCK_TOKENS * BLOCK_TOKENS || t->adopted > n;
    if ((st = make_session(t->pool, t->model, &t->again, &t->err)) != KVCSA_OK ||
        (st = compare(t, "the first once more", t->again, view, F32_LIMIT)) != KVCSA_OK)
        return st;
    t->bad += t->adopted < n / BLOCK_TOKENS * BLOCK_TOKENS;
    if ((st = make_session(t->pool, t->small, &t->other, &t->err)) != KVCSA_OK ||
        (st = compare(t, "with q8_0 entries", t->other, view, Q8_LIMIT)) != KVCSA_OK)
        return st;
    t->bad += t->adopted != 0; /* other rows: nothing to share */
    return KVCSA_OK;
}

/* A branch of a session that goes on, and a change of mind. */
static kvcsa_status branch(tour *t)
{
    const size_t n = sizeof prompt - 1;
    kvcsa_status st;

    if ((st = kvcsa_session_fork(t->first, n + 19, NULL, &t->fork, &t->err)) != KVCSA_OK ||
        (st = compare(t, "a fork in its question", t->fork, " for two nights?", F32_LIMIT)) !=
            KVCSA_OK ||
        (st = compare(t, "the first goes on", t->first, " And supper?", F32_LIMIT)) != KVCSA_OK ||
        (st = kvcsa_session_rewind(t->second, n - 40, &t->err)) != KVCSA_OK ||
        (st = compare(t, "the other, rewound", t->second, "at ten. Where is the chapel?",
                      F32_LIMIT)) != KVCSA_OK)
        return st;
    return kvcsa_pool_check(t->pool, &t->err);
}

static void release_sessions(tour *t)
{
    kvcsa_session_release(&t->first);
    kvcsa_session_release(&t->second);
    kvcsa_session_release(&t->again);
    kvcsa_session_release(&t->fork);
    kvcsa_session_release(&t->other);
}

/* Sessions go, then what they published; nothing may be left. */
static kvcsa_status leave(tour *t)
{
    kvcsa_pool_stats before = {.struct_size = sizeof before}, after = before;
    uint64_t         freed;
    kvcsa_status     st = kvcsa_pool_get_stats(t->pool, &before, &t->err);

    release_sessions(t);
    if (st != KVCSA_OK || (st = kvcsa_pool_trim(t->pool, 0, &freed, &t->err)) != KVCSA_OK ||
        (st = kvcsa_pool_get_stats(t->pool, &after, &t->err)) != KVCSA_OK)
        return st;
    printf("the pool held %llu bytes, and %llu after release\n",
           (unsigned long long)before.used_bytes, (unsigned long long)after.used_bytes);
    t->bad += before.used_bytes == 0 || after.used_bytes != 0;
    return KVCSA_OK;
}

int main(void)
{
    tour t = {.bad = 0};
    int  same = 0;

    if (make_network(&t.net, &t.err) == KVCSA_OK &&
        make_model(KVCSA_FORMAT_F32, &t.model, &t.err) == KVCSA_OK &&
        make_model(KVCSA_FORMAT_Q8_0, &t.small, &t.err) == KVCSA_OK &&
        make_pool(&t.pool, &t.err) == KVCSA_OK && print_costs(&t) == KVCSA_OK &&
        share(&t) == KVCSA_OK && branch(&t) == KVCSA_OK && leave(&t) == KVCSA_OK) {
        same = !t.bad;
        printf("%s\n", same ? "nothing differs" : "something differs");
    }
    if (t.err.status != KVCSA_OK)
        fprintf(stderr, "ggml_attention: %s (%s)\n", t.err.text, kvcsa_status_name(t.err.status));
    release_sessions(&t);
    kvcsa_pool_release(&t.pool);
    kvcsa_model_release(&t.small);
    kvcsa_model_release(&t.model);
    free_network(&t.net);
    return same ? 0 : 1;
}
