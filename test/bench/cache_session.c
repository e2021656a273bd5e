#include "cache_session.h"

#include <stdlib.h>
#include <string.h>

#include "session/session.h"

#define FILL_FROM ((size_t)64 << 10)

static void fill_with_noise(void *data, size_t n)
{
    uint64_t  x = 88172645463325252u;
    uint64_t *words = data;

    for (size_t i = 0; i < n / 8; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
    }
}

static void *count_alloc(void *user, size_t size, size_t align)
{
    counted_alloc *a = user;
    void          *p = NULL;

    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, size) != 0)
        return NULL;
    atomic_fetch_add(&a->n_bytes, size);
    if (a->fill && size >= FILL_FROM)
        fill_with_noise(p, size);
    return p;
}

static void count_free(void *user, void *ptr, size_t size, size_t align)
{
    counted_alloc *a = user;

    (void)align;
    atomic_fetch_sub(&a->n_bytes, size);
    free(ptr);
}

void counted_alloc_init(counted_alloc *a, int fill)
{
    a->hook = (kvcsa_allocator){count_alloc, count_free, a};
    atomic_init(&a->n_bytes, 0);
    a->fill = fill;
}

kvcsa_model *cache_model(const char *config)
{
    kvcsa_model_params p;
    kvcsa_model       *m = NULL;
    kvcsa_error        err;

    kvcsa_model_params_default(&p, sizeof p);
    p.flags = KVCSA_MODEL_PLAN_ONLY;
    if (kvcsa_model_open(config, &p, &m, &err) != KVCSA_OK)
        bench_die(config, err.text);
    return m;
}

kvcsa_pool *cache_create_pool(const counted_alloc *a, uint32_t n_threads)
{
    kvcsa_pool_params p;
    kvcsa_pool       *pool = NULL;
    kvcsa_error       err;

    kvcsa_pool_params_default(&p, sizeof p);
    p.allocator = &a->hook;
    p.n_threads = n_threads;
    if (kvcsa_pool_create(&p, &pool, &err) != KVCSA_OK)
        bench_die("pool", err.text);
    return pool;
}

kvcsa_session *cache_session(kvcsa_pool *pool, kvcsa_model *model, const int32_t *tokens, size_t n,
                             uint64_t salt)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.salt = salt;
    if (kvi_session_create(pool, model, &p, 1, &s, &err) != KVCSA_OK)
        bench_die("session", err.text);
    if (n && (kvcsa_session_append(s, tokens, n, NULL, NULL, &err) != KVCSA_OK ||
              kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err) != KVCSA_OK))
        bench_die("step", err.text);
    return s;
}

int32_t *cache_tokens(size_t n)
{
    int32_t *ids = malloc(n * sizeof *ids);
    uint32_t x = 12345;

    if (!ids)
        bench_die("memory", "out of it");
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)(3 + (x >> 8) % 100000u);
    }
    return ids;
}
