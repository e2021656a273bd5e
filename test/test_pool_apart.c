/* pool on a device with memory of its own, the test plug-in "apart": where blocks lie, what is read from them, a device that is
 * full or fails; and the copy of a model's weights. */
#include "support/checkpoint.h"
#include "support/pool_host.h"
#include "support/test_backend.h"

#include "model/weights_place.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>


typedef struct log_lines {
    kvcsa_log hook;
    char      last[512];
} log_lines;

static void keep_line(void *user, int32_t level, const char *text)
{
    log_lines *l = user;

    (void)level;
    snprintf(l->last, sizeof l->last, "%s", text);
}

/* bytes, fail_after: of the device; NULL = as it comes. */
static void set_device(const char *bytes, const char *fail_after, const char *fail_late)
{
    const char *const names[3] = {"APART_BYTES", "APART_FAIL_AFTER", "APART_FAIL_LATE"};
    const char *const values[3] = {bytes, fail_after, fail_late};

    for (int i = 0; i < 3; i++)
        assert_int_equal(values[i] ? setenv(names[i], values[i], 1) : unsetenv(names[i]), 0);
}

static kvcsa_pool_params params_of(pool_host *h, const kvcsa_trace *trace, uint64_t budget, uint32_t flags)
{
    return (kvcsa_pool_params){.struct_size = sizeof(kvcsa_pool_params),
                               .allocator = &h->fa.hook,
                               .budget_bytes = budget,
                               .n_threads = 1,
                               .flags = flags,
                               .trace = trace,
                               .evict = KVCSA_EVICT_LRU,
                               .backend = KVCSA_BACKEND_CUDA,
                               .backend_dir = test_backend_beside("apart")};
}

static void open_host(pool_host *h, uint64_t budget, uint32_t flags)
{
    const kvcsa_trace       trace = {ph_note_event, h};
    const kvcsa_pool_params p = params_of(h, &trace, budget, flags);
    kvcsa_error             err;

    memset(h, 0, sizeof *h);
    fault_alloc_init(&h->fa);
    if (kvi_pool_create(&p, &h->pool, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    assert_true(kvi_memory_is_apart(kvi_pool_memory(h->pool)));
    h->cls = ph_class(h->pool, &ph_shape);
    h->page_cls = ph_class(h->pool, &ph_page_shape);
    h->root = ph_root(h->pool, &ph_domain);
}

/* Likewise where the device has failed: there is nothing to check. */
static void close_failed(pool_host *h)
{
    kvi_prefix_forget(h->pool, NULL, NULL);
    assert_int_equal(ph_stats(h->pool).used_bytes, 0);
    kvi_prefix_root_release(h->pool, h->root);
    kvi_pool_class_release(h->pool, h->cls);
    kvi_pool_class_release(h->pool, h->page_cls);
    kvi_pool_release(h->pool);
    assert_true(fault_alloc_is_clean(&h->fa));
}

static void put(const pool_host *h, void *to, int byte, size_t n)
{
    assert_int_equal(kvi_memory_fill(kvi_pool_memory(h->pool), to, byte, n, NULL), KVCSA_OK);
}

static int is_all(const pool_host *h, const void *from, int byte, size_t n)
{
    uint8_t seen[256];
    size_t  i = 0;

    assert_true(n <= sizeof seen);
    assert_int_equal(kvi_memory_get(kvi_pool_memory(h->pool), seen, from, n, NULL), KVCSA_OK);
    while (i < n && seen[i] == byte)
        i++;
    return i == n;
}

static kvi_block *open_block(pool_host *h, int32_t token)
{
    kvi_block *b = ph_block(h->pool, h->cls);

    put(h, kvi_block_index_part(b), token & 0x7f, PH_INDEX);
    put(h, kvi_block_main_part(b), ~token & 0x7f, PH_MAIN);
    for (int i = 0; i < PH_TOKENS; i++)
        kvi_block_tokens(b)[i] = token;
    return b;
}

static kvi_block *seal(pool_host *h, int32_t token, kvi_block *parent)
{
    return kvi_block_seal(h->pool, h->root, open_block(h, token), parent, 0, NULL, 0);
}

/* ------------------------------------------------------------------ what computes */

static void test_create_opens_what_was_asked_for(void **state)
{
    pool_host         h = {0};
    log_lines         l = {.hook = {keep_line, &l}};
    kvcsa_pool_params p;
    kvi_device_info   info;
    kvcsa_error       err;

    (void)state;
    set_device(NULL, NULL, NULL);
    fault_alloc_init(&h.fa);
    p = params_of(&h, NULL, 0, 0);
    p.log = &l.hook;
    assert_int_equal(kvi_pool_create(&p, &h.pool, &err), KVCSA_OK);
    assert_int_equal(kvi_pool_backend(h.pool), KVCSA_BACKEND_CUDA);
    assert_non_null(strstr(kvi_pool_backend_why(h.pool), "for tests"));
    kvi_pool_describe(h.pool, &info);
    assert_string_equal(info.name, "apart");
    assert_true(info.memory_free > 0);
    assert_true(kvi_pool_numerics(h.pool) == kvi_cpu_backend(kvi_cpu_flags(0))->numerics);
    kvi_pool_release(h.pool);

    p.ordinal = 3;
    assert_int_equal(kvi_pool_create(&p, &h.pool, &err), KVCSA_ERR_BACKEND);
    assert_non_null(strstr(err.text, "no device 3"));
    assert_null(h.pool);
    p.backend = KVCSA_BACKEND_AUTO; /* and then it is the CPU, which says why */
    assert_int_equal(kvi_pool_create(&p, &h.pool, &err), KVCSA_OK);
    assert_int_equal(kvi_pool_backend(h.pool), KVCSA_BACKEND_CPU);
    assert_non_null(strstr(kvi_pool_backend_why(h.pool), "no device 3"));
    assert_non_null(strstr(l.last, "no device 3"));
    assert_false(kvi_memory_is_apart(kvi_pool_memory(h.pool)));
    kvi_pool_describe(h.pool, &info);
    assert_true(info.memory == 0 && info.name[0] == '\0' && info.numerics == kvi_pool_numerics(h.pool));
    kvi_pool_release(h.pool);
    p.ordinal = 0;
    assert_int_equal(kvi_pool_create(&p, &h.pool, &err), KVCSA_OK);
    assert_int_equal(kvi_pool_backend(h.pool), KVCSA_BACKEND_CUDA);
    kvi_pool_release(h.pool);
    p.backend_dir = "/nowhere";
    assert_int_equal(kvi_pool_create(&p, &h.pool, &err), KVCSA_OK);
    assert_int_equal(kvi_pool_backend(h.pool), KVCSA_BACKEND_CPU);
    kvi_pool_release(h.pool);
    p.backend = KVCSA_BACKEND_CUDA;
    assert_int_equal(kvi_pool_create(&p, &h.pool, &err), KVCSA_ERR_BACKEND);
    p.backend = KVCSA_BACKEND_CUDA + 1;
    assert_int_equal(kvi_pool_create(&p, &h.pool, &err), KVCSA_ERR_UNSUPPORTED);
    assert_true(fault_alloc_is_clean(&h.fa));
}

/* ------------------------------------------------------------------ blocks */

static void test_blocks_are_copied_filled_and_checked(void **state)
{
    static pool_host h;
    kvi_block       *a = NULL;
    kvi_block       *copy = NULL;

    (void)state;
    set_device(NULL, NULL, NULL);
    open_host(&h, 0, KVCSA_POOL_FILL_FREED);
    a = ph_block(h.pool, h.cls);
    assert_true(is_all(&h, kvi_block_index_part(a), KVI_FILL_BYTE, PH_INDEX)); /* a fresh one is filled too */
    kvi_block_release(h.pool, a);
    a = open_block(&h, 5);
    assert_int_equal((uintptr_t)kvi_block_main_part(a) % KVI_PART_ALIGN, 0);
    assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 1, NULL), KVCSA_OK);
    assert_int_equal(kvi_block_acquire_copy(h.pool, a, &copy, NULL), KVCSA_OK);
    assert_true(is_all(&h, kvi_block_index_part(copy), 5, PH_INDEX));
    assert_true(is_all(&h, kvi_block_main_part(copy), ~5 & 0x7f, PH_MAIN));
    assert_memory_equal(kvi_block_tokens(copy), kvi_block_tokens(a), PH_TOKENS * sizeof(int32_t));
    assert_int_equal(ph_stats(h.pool).n_copied_blocks, 1);
    kvi_block_release(h.pool, a);
    assert_true(is_all(&h, kvi_block_main_part(a), KVI_FILL_BYTE, PH_MAIN));
    ph_check(h.pool);
    put(&h, kvi_block_main_part(a) + PH_MAIN - 1, 1, 1);
    ph_expect_broken(h.pool, "P9: ");
    put(&h, kvi_block_main_part(a) + PH_MAIN - 1, KVI_FILL_BYTE, 1);
    kvi_block_release(h.pool, copy);
    ph_close(&h);
}

static void test_checksums_are_those_of_the_bytes(void **state)
{
    static pool_host h;
    uint8_t          bytes[PH_MAIN];
    kvi_block       *a = NULL;

    (void)state;
    set_device(NULL, NULL, NULL);
    open_host(&h, 0, 0);
    a = seal(&h, 9, NULL);
    memset(bytes, 9, sizeof bytes);
    assert_true(kvi_hash128_equal(kvi_block_index_sum(a), kvi_hash128_of(bytes, PH_INDEX, 0)));
    memset(bytes, ~9 & 0x7f, sizeof bytes);
    assert_true(kvi_hash128_equal(kvi_block_main_sum(a), kvi_hash128_of(bytes, PH_MAIN, 0)));
    assert_true(kvi_block_is_published(h.pool, a));
    ph_check(h.pool);
    put(&h, kvi_block_index_part(a), 8, 1);
    ph_expect_broken(h.pool, "P10: ");
    put(&h, kvi_block_index_part(a), 9, 1);
    kvi_block_release(h.pool, a);
    ph_close(&h);
}

enum { N_WORKERS = 4, N_CHAINS = 20, N_LONG = 6 };

typedef struct worker {
    pthread_t  thread;
    pool_host *h;
    int32_t    first;
} worker;

static void *seal_chains(void *arg)
{
    worker *w = arg;

    for (int32_t i = 0; i < N_CHAINS; i++) {
        kvi_block *last = NULL;

        for (int32_t k = 0; k < N_LONG; k++)
            last = seal(w->h, w->first + i * N_LONG + k, last);
        kvi_block_release(w->h->pool, last);
    }
    return NULL;
}

static void test_threads_seal_at_once(void **state)
{
    static pool_host h;
    worker           w[N_WORKERS];

    (void)state;
    set_device(NULL, NULL, NULL);
    open_host(&h, 0, 0);
    for (int32_t i = 0; i < N_WORKERS; i++) {
        w[i] = (worker){.h = &h, .first = i / 2 * 100}; /* two of them have equal blocks */
        assert_int_equal(pthread_create(&w[i].thread, NULL, seal_chains, &w[i]), 0);
    }
    for (int i = 0; i < N_WORKERS; i++)
        assert_int_equal(pthread_join(w[i].thread, NULL), 0);
    ph_check(h.pool);
    ph_close(&h);
}

/* ------------------------------------------------------------------ a device that is full */

static void test_full_device_evicts_before_it_gives_up(void **state)
{
    /* slabs of 256 KiB: room for two, and the third has to come from prefixes */
    const kvi_class_shape large = {KVI_CLASS_CACHE, 64 << 10, 64 << 10, PH_TOKENS};
    static pool_host      h;
    kvi_block_class      *cls = NULL;
    kvi_block            *b[8] = {NULL};
    kvi_block            *spare = NULL;
    kvcsa_error           err = {0};

    (void)state;
    set_device("600000", NULL, NULL);
    open_host(&h, 0, 0);
    cls = ph_class(h.pool, &large);
    /* a whole slab of small published blocks, held by the tree alone, then one that is empty */
    for (int32_t i = 0; i < 20; i++)
        kvi_block_release(h.pool, seal(&h, i, NULL));
    kvi_block_release(h.pool, ph_block(h.pool, h.page_cls)); /* keeps its slab */
    assert_true(ph_stats(h.pool).slab_bytes > 500000);
    assert_int_equal(kvi_pool_reserve(h.pool, cls, 8, NULL), KVCSA_OK);

    assert_int_equal(kvi_block_acquire(h.pool, cls, &b[0], &err), KVCSA_OK); /* the empty slab goes */
    assert_int_equal(err.status, KVCSA_OK);
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 0);
    assert_int_equal(kvi_block_acquire(h.pool, cls, &b[1], &err), KVCSA_OK);
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 0);
    assert_int_equal(kvi_block_acquire(h.pool, cls, &b[2], &err), KVCSA_OK); /* and now the prefixes */
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 20);
    assert_int_equal(ph_count_events(&h, KVCSA_TRACE_EVICT, KVCSA_REASON_BUDGET), 20);
    assert_int_equal(kvi_block_acquire(h.pool, cls, &b[3], &err), KVCSA_OK);
    assert_int_equal(kvi_block_acquire(h.pool, cls, &spare, &err), KVCSA_ERR_NOMEM);
    assert_null(spare);
    assert_non_null(strstr(err.text, "no room on apart, device 0 of apart"));
    ph_check(h.pool);

    /* a block of the class that becomes free is enough, and no more go than that */
    for (int i = 0; i < 4; i++) {
        memset(kvi_block_tokens(b[i]), i, PH_TOKENS * sizeof(int32_t));
        kvi_block_release(h.pool, kvi_block_seal(h.pool, h.root, b[i], NULL, 0, NULL, 0));
    }
    assert_int_equal(kvi_block_acquire(h.pool, cls, &b[4], &err), KVCSA_OK);
    assert_int_equal(ph_stats(h.pool).n_evicted_blocks, 21);
    assert_int_equal(ph_stats(h.pool).n_published_blocks, 3);
    ph_check(h.pool);
    kvi_block_release(h.pool, b[4]);
    kvi_pool_unreserve(h.pool, cls, 3);
    kvi_pool_class_release(h.pool, cls);
    ph_close(&h);
}

/* ------------------------------------------------------------------ a device that fails */

static void test_failing_device_taints(void **state)
{
    uint64_t n_tainted = 0;

    (void)state;
    for (int k = 0; k < 2; k++) {
        int whole = 0; /* it went well to the end */

        for (int n = 1; n < 100 && !whole; n++) {
            static pool_host h;
            kvcsa_pool_params p;
            kvi_block        *a = NULL;
            kvi_block        *copy = NULL;
            kvcsa_error       err;
            kvcsa_status      st = KVCSA_OK;
            char              text[16];

            snprintf(text, sizeof text, "%d", n);
            set_device(NULL, text, k ? "1" : "0");
            memset(&h, 0, sizeof h);
            fault_alloc_init(&h.fa);
            p = params_of(&h, NULL, 4 * PH_BLOCK, k == 0 && n % 2 ? KVCSA_POOL_FILL_FREED : 0);
            assert_int_equal(kvi_pool_create(&p, &h.pool, &err), KVCSA_OK);
            st = kvi_pool_class_acquire(h.pool, &ph_shape, &h.cls, &err);
            if (st != KVCSA_OK) {
                assert_int_equal(st, KVCSA_ERR_BACKEND);
                kvi_pool_release(h.pool);
                assert_true(fault_alloc_is_clean(&h.fa));
                continue;
            }
            h.page_cls = NULL;
            h.root = ph_root(h.pool, &ph_domain);
            assert_int_equal(kvi_pool_reserve(h.pool, h.cls, 2, &err), KVCSA_OK);
            st = kvi_block_acquire(h.pool, h.cls, &a, &err);
            if (st == KVCSA_OK)
                st = kvi_block_acquire_copy(h.pool, a, &copy, &err);
            assert_true(st == KVCSA_OK || (st == KVCSA_ERR_BACKEND && !copy));
            kvi_pool_unreserve(h.pool, h.cls, 2u - (a != NULL) - (copy != NULL));
            if (a) {
                memset(kvi_block_tokens(a), 0, PH_TOKENS * sizeof(int32_t));
                a = kvi_block_seal(h.pool, h.root, a, NULL, 0, NULL, 0);
                assert_int_equal(kvi_block_is_published(h.pool, a), !kvi_block_is_tainted(a));
                if (kvi_block_is_tainted(a))
                    assert_true(kvi_hash128_equal(kvi_block_main_sum(a), (kvi_hash128){0}));
            }
            st = kvi_pool_check(h.pool, &err);
            assert_true(st == KVCSA_OK || st == KVCSA_ERR_BACKEND);
            assert_true(!a || !kvi_block_is_tainted(a) || st == KVCSA_ERR_BACKEND);
            n_tainted += a && kvi_block_is_tainted(a);
            whole = a && copy && st == KVCSA_OK;
            kvi_block_release(h.pool, a);
            kvi_block_release(h.pool, copy);
            close_failed(&h);
        }
        assert_true(whole);
    }
    assert_true(n_tainted > 6);
    set_device(NULL, NULL, NULL);
}

/* ------------------------------------------------------------------ weights */

static kvcsa_model *open_model(void)
{
    kvcsa_model_params p = {.struct_size = sizeof p, .block_tokens = 128};
    kvcsa_model       *m = NULL;
    kvcsa_error        err;

    if (kvi_model_open(T1_DIR, &p, &m, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    return m;
}

typedef struct compared {
    const kvi_memory *m;
    size_t            n_pieces;
    uint64_t          n_bytes;
} compared;

static void same_bytes(compared *c, const void *a, const void *b, size_t n)
{
    void *seen = NULL;

    assert_int_equal(a == NULL, b == NULL);
    if (!a)
        return;
    assert_ptr_not_equal(a, b);
    assert_int_equal((uintptr_t)b % KVI_WEIGHT_ALIGN, 0);
    seen = malloc(n);
    assert_non_null(seen);
    assert_int_equal(kvi_memory_get(c->m, seen, b, n, NULL), KVCSA_OK);
    assert_memory_equal(a, seen, n);
    free(seen);
    c->n_pieces++;
    c->n_bytes += n;
}

static void same_matrix(compared *c, const kvi_matrix *a, const kvi_matrix *b)
{
    const size_t n = (size_t)a->rows * a->cols;

    assert_true(a->kind == b->kind && a->rows == b->rows && a->cols == b->cols);
    same_bytes(c, a->data, b->data,
               a->kind == KVI_W_F32    ? 4 * n
               : a->kind == KVI_W_BF16 ? 2 * n
               : a->kind == KVI_W_FP4  ? n / 2
                                       : n);
    same_bytes(c, a->scale, b->scale, (a->kind == KVI_W_FP8 ? (a->rows + 31) / 32 : a->rows) * (size_t)(a->cols / 32));
}

static void same_expert(compared *c, const kvi_expert *a, const kvi_expert *b)
{
    same_matrix(c, &a->w1, &b->w1);
    same_matrix(c, &a->w2, &b->w2);
    same_matrix(c, &a->w3, &b->w3);
}

static void same_mix(compared *c, const kvi_mix_weights *a, const kvi_mix_weights *b, size_t n)
{
    same_matrix(c, &a->fn, &b->fn);
    same_bytes(c, a->base, b->base, n * sizeof(float));
    assert_memory_equal(a->scale, b->scale, sizeof a->scale);
}

/* Field by field, from the struct and not from the list of tensors. */
static void same_layer(compared *c, const kvi_config *k, const kvi_layer_weights *a, const kvi_layer_weights *b, int tables)
{
    same_bytes(c, a->attn_norm, b->attn_norm, k->hidden_size * sizeof(float));
    same_bytes(c, a->ffn_norm, b->ffn_norm, k->hidden_size * sizeof(float));
    same_bytes(c, a->q_norm, b->q_norm, k->q_lora_rank * sizeof(float));
    same_bytes(c, a->kv_norm, b->kv_norm, k->head_dim * sizeof(float));
    same_bytes(c, a->attn_sink, b->attn_sink, k->n_heads * sizeof(float));
    same_bytes(c, a->comp_norm, b->comp_norm, k->head_dim * sizeof(float));
    same_bytes(c, a->index_k_norm, b->index_k_norm, k->index_dim * sizeof(float));
    same_bytes(c, a->gate_bias, b->gate_bias, k->n_experts * sizeof(float));
    same_bytes(c, a->engram_qk, b->engram_qk, (size_t)k->hc_copies * k->hidden_size * sizeof(float));
    same_matrix(c, &a->wq_a, &b->wq_a);
    same_matrix(c, &a->wq_b, &b->wq_b);
    same_matrix(c, &a->wkv, &b->wkv);
    same_matrix(c, &a->wo_a, &b->wo_a);
    same_matrix(c, &a->wo_b, &b->wo_b);
    same_matrix(c, &a->comp_wkv, &b->comp_wkv);
    same_matrix(c, &a->comp_wgate, &b->comp_wgate);
    same_matrix(c, &a->index_wk, &b->index_wk);
    same_matrix(c, &a->index_wq_b, &b->index_wq_b);
    same_matrix(c, &a->index_weights, &b->index_weights);
    same_matrix(c, &a->gate, &b->gate);
    same_matrix(c, &a->engram_wkv, &b->engram_wkv);
    same_expert(c, &a->shared, &b->shared);
    for (uint32_t e = 0; e < k->n_experts; e++)
        same_expert(c, &a->experts[e], &b->experts[e]);
    same_mix(c, &a->mix_attn, &b->mix_attn, (size_t)(2 + k->hc_copies) * k->hc_copies);
    same_mix(c, &a->mix_ffn, &b->mix_ffn, (size_t)(2 + k->hc_copies) * k->hc_copies);
    assert_int_equal(a->engram_index, b->engram_index);
    assert_int_equal(b->engram_on_host, a->engram_index >= 0 && !tables);
    if (tables)
        same_matrix(c, &a->engram_table, &b->engram_table);
    else
        assert_memory_equal(&a->engram_table, &b->engram_table, sizeof a->engram_table);
}

static compared same_weights(const kvcsa_model *m, const kvi_memory *memory, const kvi_weights *w, int tables)
{
    compared c = {.m = memory};

    assert_int_equal(kvi_memory_sync(memory, NULL), KVCSA_OK);
    same_matrix(&c, &m->weights.embed, &w->embed);
    same_matrix(&c, &m->weights.head, &w->head);
    same_bytes(&c, m->weights.norm, w->norm, m->config.hidden_size * sizeof(float));
    for (uint32_t i = 0; i < m->config.n_layers; i++)
        same_layer(&c, &m->config, &m->weights.layers[i], &w->layers[i], tables);
    assert_in_range(kvi_weights_placed_bytes(w), c.n_bytes, c.n_bytes + (c.n_pieces + 99) * KVI_WEIGHT_ALIGN);
    return c;
}

static uint64_t table_bytes(const kvcsa_model *m)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        const kvi_matrix *t = &m->weights.layers[i].engram_table;

        n += (uint64_t)t->rows * (t->cols + t->cols / 32);
    }
    return n;
}

static void test_weights_are_placed_and_counted(void **state)
{
    static pool_host   h;
    kvcsa_model       *model = open_model();
    const uint64_t     tables = table_bytes(model);
    const kvi_weights *a = NULL;
    const kvi_weights *b = NULL;
    kvi_weights        w;

    (void)state;
    set_device(NULL, NULL, NULL);
    open_host(&h, 0, 0);
    assert_true(tables > 0);
    assert_int_equal(kvi_weights_place(model, kvi_pool_memory(h.pool), tables - 1, &w, NULL), KVCSA_OK);
    same_weights(model, kvi_pool_memory(h.pool), &w, 0);
    kvi_weights_unplace(&w, kvi_pool_memory(h.pool));
    assert_null(w.layers);
    kvi_weights_unplace(&w, kvi_pool_memory(h.pool));
    assert_int_equal(kvi_weights_place(model, kvi_pool_memory(h.pool), tables, &w, NULL), KVCSA_OK);
    same_weights(model, kvi_pool_memory(h.pool), &w, 1);
    kvi_weights_unplace(&w, kvi_pool_memory(h.pool));

    assert_int_equal(kvi_pool_weight_bytes(h.pool), 0);
    assert_int_equal(kvi_pool_weights_acquire(h.pool, model, &a, NULL), KVCSA_OK);
    assert_int_equal(kvi_pool_weights_acquire(h.pool, model, &b, NULL), KVCSA_OK);
    assert_ptr_equal(a, b); /* one for all */
    assert_int_equal(kvi_pool_weight_bytes(h.pool), kvi_weights_placed_bytes(a));
    kvi_pool_weights_release(h.pool, a);
    same_weights(model, kvi_pool_memory(h.pool), b, 1);
    kvi_pool_weights_release(h.pool, b);
    kvi_pool_weights_release(h.pool, NULL);
    assert_int_equal(kvi_pool_weight_bytes(h.pool), 0);
    kvi_model_release(model);
    ph_close(&h);
}

/* The same on the host's memory, where a pool needs no copy. */
static void test_weights_of_the_host_are_its_own(void **state)
{
    static pool_host   h;
    kvcsa_model       *model = open_model();
    const kvi_weights *a = NULL;
    kvi_weights        w;

    (void)state;
    ph_open(&h, 0, 0, KVCSA_EVICT_LRU);
    assert_int_equal(kvi_pool_weights_acquire(h.pool, model, &a, NULL), KVCSA_OK);
    assert_ptr_equal(a, &model->weights);
    kvi_pool_weights_release(h.pool, a);
    assert_int_equal(kvi_pool_weight_bytes(h.pool), 0);
    assert_int_equal(kvi_weights_place(model, kvi_pool_memory(h.pool), UINT64_MAX, &w, NULL), KVCSA_OK);
    same_weights(model, kvi_pool_memory(h.pool), &w, 1);
    kvi_weights_unplace(&w, kvi_pool_memory(h.pool));
    for (uint64_t n = 1;; n++) {
        kvcsa_status st = KVCSA_OK;

        fault_alloc_fail_at(&h.fa, n);
        st = kvi_weights_place(model, kvi_pool_memory(h.pool), 0, &w, NULL);
        if (!fault_alloc_hit(&h.fa))
            break;
        assert_int_equal(st, KVCSA_ERR_NOMEM);
        assert_true(!w.layers && !w.owned);
    }
    fault_alloc_fail_at(&h.fa, 0);
    kvi_weights_unplace(&w, kvi_pool_memory(h.pool));
    kvi_model_release(model);
    ph_close(&h);
}

static void *acquire_weights(void *arg)
{
    void *const       *a = arg;
    const kvi_weights *w = NULL;

    assert_int_equal(kvi_pool_weights_acquire(a[0], a[1], &w, NULL), KVCSA_OK);
    return (void *)(uintptr_t)w;
}

static void test_weights_are_copied_once_for_all_threads(void **state)
{
    static pool_host h;
    kvcsa_model     *model = open_model();
    pthread_t        threads[N_WORKERS];
    void            *w[N_WORKERS];
    void            *arg[2];

    (void)state;
    set_device(NULL, NULL, NULL);
    open_host(&h, 0, 0);
    arg[0] = h.pool;
    arg[1] = model;
    for (int i = 0; i < N_WORKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, acquire_weights, arg), 0);
    for (int i = 0; i < N_WORKERS; i++)
        assert_int_equal(pthread_join(threads[i], &w[i]), 0);
    for (int i = 0; i < N_WORKERS; i++) {
        assert_ptr_equal(w[i], w[0]);
        kvi_pool_weights_release(h.pool, w[i]);
    }
    assert_int_equal(kvi_pool_weight_bytes(h.pool), 0);
    kvi_model_release(model);
    ph_close(&h);
}

static void test_weights_need_room(void **state)
{
    static pool_host   h;
    kvcsa_model       *model = open_model();
    const kvi_weights *w = NULL;
    kvi_device_info    info;
    char               text[32];
    uint64_t           most = 0; /* without tables */
    uint64_t           free_bytes = 0;
    kvcsa_error        err = {0};

    (void)state;
    set_device(NULL, NULL, NULL);
    open_host(&h, 0, 0);
    assert_int_equal(kvi_pool_weights_acquire(h.pool, model, &w, NULL), KVCSA_OK);
    most = kvi_pool_weight_bytes(h.pool);
    kvi_pool_weights_release(h.pool, w);
    ph_close(&h);

    /* too little for the tables, though they would be no more than their share */
    assert_true(table_bytes(model) < (most - 1) / 4);
    snprintf(text, sizeof text, "%llu", (unsigned long long)most - 1);
    set_device(text, NULL, NULL);
    open_host(&h, 0, 0);
    assert_int_equal(kvi_pool_weights_acquire(h.pool, model, &w, &err), KVCSA_OK);
    assert_int_equal(err.status, KVCSA_OK);
    same_weights(model, kvi_pool_memory(h.pool), w, 0);
    most = kvi_pool_weight_bytes(h.pool);
    kvi_pool_weights_release(h.pool, w);
    ph_close(&h);

    snprintf(text, sizeof text, "%llu", (unsigned long long)most - 1);
    set_device(text, NULL, NULL);
    open_host(&h, 0, 0);
    kvi_pool_describe(h.pool, &info);
    free_bytes = info.memory_free;
    assert_int_equal(kvi_pool_weights_acquire(h.pool, model, &w, &err), KVCSA_ERR_NOMEM);
    assert_null(w);
    assert_non_null(strstr(err.text, "weights for apart, device 0 of apart"));
    kvi_pool_describe(h.pool, &info);
    assert_true(info.memory_free == free_bytes);
    ph_close(&h);

    for (int n = 1; n < 60; n += 7) { /* the device fails at one call or another */
        snprintf(text, sizeof text, "%d", n + 2);
        set_device(NULL, text, n % 2 ? "1" : "0");
        memset(&h, 0, sizeof h);
        open_host(&h, 0, 0);
        assert_int_equal(kvi_pool_weights_acquire(h.pool, model, &w, &err), KVCSA_ERR_BACKEND);
        assert_null(w);
        assert_int_equal(kvi_pool_weight_bytes(h.pool), 0);
        close_failed(&h);
    }
    set_device(NULL, NULL, NULL);
    kvi_model_release(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_opens_what_was_asked_for),
        cmocka_unit_test(test_blocks_are_copied_filled_and_checked),
        cmocka_unit_test(test_checksums_are_those_of_the_bytes),
        cmocka_unit_test(test_threads_seal_at_once),
        cmocka_unit_test(test_full_device_evicts_before_it_gives_up),
        cmocka_unit_test(test_failing_device_taints),
        cmocka_unit_test(test_weights_are_placed_and_counted),
        cmocka_unit_test(test_weights_of_the_host_are_its_own),
        cmocka_unit_test(test_weights_are_copied_once_for_all_threads),
        cmocka_unit_test(test_weights_need_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
