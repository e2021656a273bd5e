#include "backend/memory.h"

#include "base/checked.h"
#include "base/status.h"

#include <inttypes.h>
#include <string.h>

kvcsa_status kvi_memory_alloc(const kvi_memory *m, size_t size, void **out, kvcsa_error *err)
{
    kvcsa_status st;

    if (!kvi_memory_is_apart(m)) {
        *out = kvi_alloc(m->allocator, size);
        return *out ? KVCSA_OK : kvi_fail(err, KVCSA_ERR_NOMEM, "%zu bytes", size);
    }
    while ((st = m->ops->mem_alloc(m->dev, size, KVI_MEMORY_DEVICE, out, err)) == KVCSA_ERR_NOMEM &&
           m->make_room && m->make_room(m->room_user, size))
        kvi_error_clear(err);
    return st;
}

void kvi_memory_free(const kvi_memory *m, void *ptr, size_t size)
{
    if (kvi_memory_is_apart(m))
        m->ops->mem_free(m->dev, ptr, KVI_MEMORY_DEVICE);
    else
        kvi_free(m->allocator, ptr, size);
}

kvcsa_status kvi_memory_no_room(const kvi_memory *m, const char *what, size_t size,
                                kvcsa_error *err)
{
    kvi_device_info info = {0};

    if (!kvi_memory_is_apart(m))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "%s, %zu bytes", what, size);
    m->ops->describe(m->dev, &info);
    return kvi_fail(err, KVCSA_ERR_NOMEM,
                    "%s, %zu bytes: no room on %s, a device of %s (%" PRIu64 " bytes are free)",
                    what, size, info.name, m->ops->name, info.memory_free);
}

kvcsa_status kvi_memory_grow(const kvi_memory *m, void **data, size_t *cap, size_t elem, size_t n,
                             kvcsa_error *err)
{
    kvi_memory   alone = *m;
    size_t       want = kvi_max_size(n, *cap + *cap / 2);
    void        *more = NULL;
    kvcsa_status st;

    if (n <= *cap)
        return KVCSA_OK;
    alone.make_room = NULL;
    st = kvi_memory_alloc(&alone, want * elem, &more, err);
    if (st == KVCSA_ERR_NOMEM && kvi_memory_is_apart(m)) {
        kvi_memory_free(m, *data, *cap * elem);
        *data = NULL;
        *cap = 0;
        want = n;
        if ((st = kvi_memory_alloc(m, want * elem, &more, err)) == KVCSA_OK)
            kvi_error_clear(err);
    }
    if (st != KVCSA_OK)
        return st;
    kvi_memory_free(m, *data, *cap * elem);
    *data = more;
    *cap = want;
    return KVCSA_OK;
}

kvcsa_status kvi_memory_put(const kvi_memory *m, void *to, const void *from, size_t size,
                            kvcsa_error *err)
{
    if (size == 0)
        return KVCSA_OK;
    if (kvi_memory_is_apart(m))
        return m->ops->mem_copy(m->dev, to, from, size, KVI_COPY_IN, err);
    memcpy(to, from, size);
    return KVCSA_OK;
}

kvcsa_status kvi_memory_get(const kvi_memory *m, void *to, const void *from, size_t size,
                            kvcsa_error *err)
{
    kvcsa_status st;

    if (size == 0)
        return KVCSA_OK;
    if (!kvi_memory_is_apart(m)) {
        memcpy(to, from, size);
        return KVCSA_OK;
    }
    st = m->ops->mem_copy(m->dev, to, from, size, KVI_COPY_OUT, err);
    return st == KVCSA_OK ? m->ops->sync(m->dev, err) : st;
}

kvcsa_status kvi_memory_move(const kvi_memory *m, void *to, const void *from, size_t size,
                             kvcsa_error *err)
{
    if (size == 0)
        return KVCSA_OK;
    if (kvi_memory_is_apart(m))
        return m->ops->mem_copy(m->dev, to, from, size, KVI_COPY_WITHIN, err);
    memcpy(to, from, size);
    return KVCSA_OK;
}

kvcsa_status kvi_memory_fill(const kvi_memory *m, void *to, int byte, size_t size, kvcsa_error *err)
{
    if (size == 0)
        return KVCSA_OK;
    if (kvi_memory_is_apart(m))
        return m->ops->mem_fill(m->dev, to, byte, size, err);
    memset(to, byte, size);
    return KVCSA_OK;
}

kvcsa_status kvi_memory_see(const kvi_memory *m, const void *from, size_t size, void *scratch,
                            const void **out, kvcsa_error *err)
{
    if (!kvi_memory_is_apart(m)) {
        *out = from;
        return KVCSA_OK;
    }
    *out = scratch;
    return kvi_memory_get(m, scratch, from, size, err);
}

kvcsa_status kvi_memory_sync(const kvi_memory *m, kvcsa_error *err)
{
    return kvi_memory_is_apart(m) ? m->ops->sync(m->dev, err) : KVCSA_OK;
}

/* ------------------------------------------------------------------ pinned memory */

kvcsa_status kvi_memory_alloc_pinned(const kvi_memory *m, size_t size, void **out, kvcsa_error *err)
{
    if (kvi_memory_is_apart(m))
        return m->ops->mem_alloc(m->dev, size, KVI_MEMORY_PINNED, out, err);
    *out = kvi_alloc(m->allocator, size);
    return *out ? KVCSA_OK : kvi_fail(err, KVCSA_ERR_NOMEM, "%zu bytes", size);
}

void kvi_memory_free_pinned(const kvi_memory *m, void *ptr, size_t size)
{
    if (kvi_memory_is_apart(m))
        m->ops->mem_free(m->dev, ptr, KVI_MEMORY_PINNED);
    else
        kvi_free(m->allocator, ptr, size);
}

kvcsa_status kvi_memory_put_pinned(const kvi_memory *m, void *to, const void *from, size_t size,
                                   kvcsa_error *err)
{
    return kvi_memory_put(m, to, from, size, err); /* the device knows what is pinned */
}

kvcsa_status kvi_memory_get_later(const kvi_memory *m, void *to, const void *from, size_t size,
                                  kvcsa_error *err)
{
    if (size == 0)
        return KVCSA_OK;
    if (kvi_memory_is_apart(m))
        return m->ops->mem_copy(m->dev, to, from, size, KVI_COPY_OUT, err);
    memcpy(to, from, size);
    return KVCSA_OK;
}

kvcsa_status kvi_post_reserve(kvi_post *p, const kvi_memory *m, size_t n, kvcsa_error *err)
{
    const size_t want = kvi_max_size(n, p->cap + p->cap / 2);
    void        *more = NULL;
    kvcsa_status st;

    if (n <= p->cap)
        return KVCSA_OK;
    if ((st = kvi_memory_alloc_pinned(m, want, &more, err)) != KVCSA_OK)
        return st;
    kvi_post_wipe(p, m);
    kvi_post_fini(p, m);
    *p = (kvi_post){.bytes = more, .cap = want};
    return KVCSA_OK;
}

kvcsa_status kvi_post_put(kvi_post *p, const kvi_memory *m, void *to, const void *from, size_t size,
                          kvcsa_error *err)
{
    uint8_t     *copy = NULL;
    kvcsa_status st;

    if (size > p->cap)
        return kvi_memory_put(m, to, from, size, err);
    if (size == 0)
        return KVCSA_OK;
    if (size > p->cap - p->used) {
        if ((st = kvi_memory_sync(m, err)) != KVCSA_OK)
            return st;
        p->used = 0;
    }
    copy = (uint8_t *)p->bytes + p->used;
    memcpy(copy, from, size);
    p->used = kvi_min_size(p->cap, kvi_div_up(p->used + size, KVI_POST_ALIGN) * KVI_POST_ALIGN);
    return kvi_memory_put_pinned(m, to, copy, size, err);
}

void kvi_post_arrived(kvi_post *p)
{
    p->used = 0;
}

void kvi_post_wipe(kvi_post *p, const kvi_memory *m)
{
    if (!p->bytes)
        return;
    (void)kvi_memory_sync(m, NULL); /* a device in trouble reads no more */
    memset(p->bytes, 0, p->cap);
    p->used = 0;
}

void kvi_post_fini(kvi_post *p, const kvi_memory *m)
{
    kvi_memory_free_pinned(m, p->bytes, p->cap);
    *p = (kvi_post){0};
}

/* ------------------------------------------------------------------ many copies */

kvcsa_status kvi_copies_reserve(kvi_copies *c, const kvi_memory *m, size_t n, kvcsa_error *err)
{
    if (!kvi_memory_is_apart(m))
        return KVCSA_OK;
    if (!kvi_buf_reserve(m->allocator, &c->jobs, sizeof(kvi_copy_job), c->n, n))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of %zu copies", n);
    return kvi_memory_grow(m, &c->there, &c->there_cap, sizeof(kvi_copy_job), n, err);
}

static void add_job(kvi_copies *c, const kvi_memory *m, const kvi_copy_job *job, size_t max_bytes)
{
    if (!kvi_buf_reserve(m->allocator, &c->jobs, sizeof *job, c->n, c->n + 1)) {
        c->lost = 1;
        return;
    }
    ((kvi_copy_job *)c->jobs.data)[c->n++] = *job;
    c->max_bytes = kvi_max_size(c->max_bytes, max_bytes);
}

void kvi_copies_add(kvi_copies *c, const kvi_memory *m, void *to, const void *from, size_t size)
{
    const kvi_copy_job job = {.from = from, .to = to, .n_bytes = size};

    if (size == 0)
        return;
    if (kvi_memory_is_apart(m))
        add_job(c, m, &job, size);
    else
        memcpy(to, from, size);
}

void kvi_copies_add_none(kvi_copies *c, const kvi_memory *m, void *to, const void *from,
                         size_t size)
{
    const kvi_copy_job job = {.from = from, .to = to};

    if (kvi_memory_is_apart(m))
        add_job(c, m, &job, size);
}

/* To where the next list of n jobs lies for the device. */
static kvcsa_status place_jobs(kvi_copies *c, const kvi_memory *m, size_t n,
                               const kvi_copy_job **out, kvcsa_error *err)
{
    const size_t bytes = n * sizeof(kvi_copy_job);
    kvcsa_status st;

    if (c->stage[0]) {
        if (n > c->stage_cap - c->stage_used)
            return kvi_fail(err, KVCSA_ERR_INTERNAL, "%zu copies, room for %zu", n,
                            c->stage_cap - c->stage_used);
        memcpy(c->stage[0] + c->stage_used, c->jobs.data, bytes);
        *out = c->stage[1] + c->stage_used;
        c->stage_used += n;
        return KVCSA_OK;
    }
    if ((st = kvi_memory_grow(m, &c->there, &c->there_cap, sizeof(kvi_copy_job), n, err)) !=
        KVCSA_OK)
        return st;
    *out = c->there;
    return c->post ? kvi_post_put(c->post, m, c->there, c->jobs.data, bytes, err)
                   : kvi_memory_put(m, c->there, c->jobs.data, bytes, err);
}

kvcsa_status kvi_copies_run(kvi_copies *c, const kvi_memory *m, kvcsa_error *err)
{
    kvi_copy_params p = {.n_jobs = c->n, .max_bytes = c->max_bytes};
    const int       lost = c->lost;
    kvcsa_status    st;

    c->n = 0;
    c->lost = 0;
    c->max_bytes = 0;
    if (lost)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of copies");
    if (p.n_jobs == 0)
        return KVCSA_OK;
    st = place_jobs(c, m, p.n_jobs, &p.jobs, err);
    return st == KVCSA_OK ? m->ops->copy(m->dev, &p, err) : st;
}

void kvi_copies_fini(kvi_copies *c, const kvi_memory *m)
{
    kvi_buf_free(m->allocator, &c->jobs, sizeof(kvi_copy_job));
    kvi_memory_free(m, c->there, c->there_cap * sizeof(kvi_copy_job));
    *c = (kvi_copies){0};
}
