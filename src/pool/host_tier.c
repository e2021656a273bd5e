/* The host tier of a pool on a device: published blocks that the device has no room for.
 *
 * A block moves with its record: the one on the device and the one in the tier are two records, one
 * of which has the place in the tree, and the token ids and the reference to the parent with it. So
 * a block moves only while nobody but the tree and its published children knows where it is. Its
 * bytes lie in one piece on both sides and go in one copy, enqueued like all others: what frees the
 * old place at once is followed by what may use it again. Pages of its stored window go with it,
 * one copy each; where there is no room for them the window is lost, and is made again by a replay.
 * A page that others hold too is copied, and stays with them.
 *
 * (H1) A block that is out is published, and its published children are out too; nobody holds it
 *      but these, the tree, and who looks at it for a moment. A page that is out belongs to the
 *      stored window of a block that is out, and to nobody else.
 * (H2) n_at_host of a published block on the device is the number of its children that are out.
 * (H3) used_bytes, slab_bytes, n_blocks, n_pages and the counts of classes are those of a walk;
 *      used_bytes <= budget_bytes. A block counts its part sizes: what slabs hold beside that, at
 *      most one empty slab of each class included, comes on top.
 * (H4) Bytes of a block may be on their way until copy_no <= n_arrived; the host touches them then.
 *
 *     published on the device -> out    kvi_host_take_over      (eviction)
 *     out -> published on the device    kvi_host_bring          (a match)
 *                                       kvi_host_replace        (computed once more)
 *     out -> FREE                       kvi_prefix_unpublish    (eviction here, forget)
 */
#include "pool/pool.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"
#include "pool/pool_int.h"

#include <string.h>

/* To make pinned memory takes long, and most pools have one class that matters. */
#define HOST_SLAB_BYTES ((uint64_t)4 << 20)

/* ------------------------------------------------------------------ slabs */

static uint32_t is_empty(const kvi_slab *slab)
{
    return slab->n_free == slab->n_blocks;
}

static void link_free(kvi_slab *slab)
{
    kvi_block_class *cls = slab->cls;

    slab->prev_free = NULL;
    slab->next_free = cls->host_free_slabs;
    if (slab->next_free)
        slab->next_free->prev_free = slab;
    cls->host_free_slabs = slab;
}

static void unlink_free(kvi_slab *slab)
{
    if (slab->prev_free)
        slab->prev_free->next_free = slab->next_free;
    else
        slab->cls->host_free_slabs = slab->next_free;
    if (slab->next_free)
        slab->next_free->prev_free = slab->prev_free;
    slab->next_free = NULL;
    slab->prev_free = NULL;
}

static void push_free(kvi_block *block)
{
    kvi_slab *slab = block->slab;

    block->next_free = slab->free_list;
    slab->free_list = block;
    if (slab->n_free++ == 0)
        link_free(slab);
    slab->cls->n_host_empty += is_empty(slab);
}

/* About HOST_SLAB_BYTES, but no more than the budget has room for. */
static uint32_t next_slab_blocks(const kvcsa_pool *pool, const kvi_block_class *cls)
{
    const uint64_t each = kvi_slab_size(cls, 1);
    const uint64_t left = pool->host.budget_bytes - pool->host.used_bytes;
    const uint64_t bytes = left < HOST_SLAB_BYTES ? left : HOST_SLAB_BYTES;

    return bytes > each ? (uint32_t)(bytes / each) : 1;
}

static int byte_of_free(const kvcsa_pool *pool)
{
    return pool->flags & KVCSA_POOL_ZERO_FREED ? 0 : KVI_FILL_BYTE;
}

/* 0 = the host has no memory. */
static int add_slab(kvcsa_pool *pool, kvi_block_class *cls)
{
    const uint32_t n = next_slab_blocks(pool, cls);
    const size_t   bytes = kvi_slab_size(cls, n);
    const size_t   record_bytes = kvi_slab_record_size(cls, n);
    kvi_slab      *slab = kvi_zalloc(&pool->allocator, record_bytes);
    void          *pinned = NULL;

    if (!slab)
        return 0;
    if (kvi_memory_alloc_pinned(&pool->memory, bytes, &pinned, NULL) != KVCSA_OK) {
        kvi_free(&pool->allocator, slab, record_bytes);
        return 0;
    }
    slab->bytes = pinned;
    slab->cls = cls;
    slab->tokens = (int32_t *)(void *)((uint8_t *)slab + kvi_slab_tokens_off(n));
    slab->n_blocks = n;
    slab->next = cls->host_slabs;
    if (slab->next)
        slab->next->prev = slab;
    cls->host_slabs = slab;
    if (pool->flags & KVCSA_POOL_FILL_FREED) {
        memset(pinned, byte_of_free(pool), bytes);
        memset(slab->tokens, byte_of_free(pool), n * kvi_block_token_bytes(cls));
    }
    pool->host.slab_bytes += bytes;
    pool->record_bytes += record_bytes;
    for (uint32_t i = n; i-- > 0;) { /* so that the first in memory is taken first */
        slab->blocks[i].slab = slab;
        slab->blocks[i].out = 1;
        push_free(&slab->blocks[i]);
    }
    return 1;
}

static void free_slab(kvcsa_pool *pool, kvi_slab *slab)
{
    kvi_block_class *cls = slab->cls;
    const size_t     bytes = kvi_slab_size(cls, slab->n_blocks);
    const size_t     record_bytes = kvi_slab_record_size(cls, slab->n_blocks);

    unlink_free(slab);
    if (slab->prev)
        slab->prev->next = slab->next;
    else
        cls->host_slabs = slab->next;
    if (slab->next)
        slab->next->prev = slab->prev;
    cls->n_host_empty--;
    pool->host.slab_bytes -= bytes;
    pool->record_bytes -= record_bytes;
    kvi_memory_free_pinned(&pool->memory, slab->bytes, bytes);
    kvi_free(&pool->allocator, slab, record_bytes);
}

void kvi_host_free_slabs(kvcsa_pool *pool, kvi_block_class *cls)
{
    for (kvi_slab *slab = cls->host_free_slabs, *next = NULL; slab; slab = next) {
        next = slab->next_free;
        if (is_empty(slab))
            free_slab(pool, slab);
    }
}

/* ------------------------------------------------------------------ records */

static void count(kvcsa_pool *pool, kvi_block_class *cls, int sign)
{
    const uint64_t one = sign > 0 ? 1 : UINT64_MAX; /* modulo 2^64 */

    pool->host.used_bytes += one * kvi_class_block_bytes(cls);
    cls->n_host += one;
    if (cls->shape.kind == KVI_CLASS_WINDOW)
        pool->host.n_pages += one;
    else
        pool->host.n_blocks += one;
}

/* The budget has room for `bytes` more; what stands behind `coming` goes for it. */
static int make_room(kvcsa_pool *pool, uint64_t bytes, const kvi_block *coming)
{
    kvi_host_tier *host = &pool->host;

    if (bytes > host->budget_bytes)
        return 0;
    while (host->budget_bytes - host->used_bytes < bytes) {
        if (!kvi_evict_host_one(pool, coming))
            return 0;
    }
    return 1;
}

/* A record and its bytes, for which there is room; without a place in the tree. */
static kvi_block *take_record(kvcsa_pool *pool, kvi_block_class *cls, const kvi_block *coming)
{
    kvi_slab  *slab = NULL;
    kvi_block *block = NULL;

    while (!cls->host_free_slabs && !add_slab(pool, cls)) {
        if (!kvi_evict_host_one(pool, coming))
            return NULL;
    }
    slab = cls->host_free_slabs;
    if (is_empty(slab) && slab->next_free) /* the spare one stays whole */
        slab = slab->next_free;
    cls->n_host_empty -= is_empty(slab);
    block = slab->free_list;
    slab->free_list = block->next_free;
    if (--slab->n_free == 0)
        unlink_free(slab);
    block->copy_no = 0;
    block->at[0] = block->at[1] = KVI_AT_HOST;
    block->state = KVI_BLOCK_OPEN;
    block->refs = 1;
    count(pool, cls, 1);
    return block;
}

kvcsa_status kvi_host_wait(kvcsa_pool *pool, const kvi_block *block, kvcsa_error *err)
{
    const uint64_t n = pool->host.n_copies;
    kvcsa_status   st = KVCSA_OK;

    if (block->copy_no <= pool->host.n_arrived)
        return KVCSA_OK;
    if ((st = kvi_memory_sync(&pool->memory, err)) == KVCSA_OK)
        pool->host.n_arrived = n;
    return st;
}

static void fill(const kvi_block *block, int byte)
{
    const kvi_block_class *cls = block->slab->cls;

    memset(kvi_block_index_part(block), byte, cls->shape.index_bytes);
    memset(kvi_block_main_part(block), byte, cls->shape.main_bytes);
    memset(kvi_block_tokens(block), byte, kvi_block_token_bytes(cls));
}

void kvi_host_wipe(kvcsa_pool *pool)
{
    if (pool->host.n_copies == pool->host.n_wiped)
        return;
    (void)kvi_memory_sync(&pool->memory, NULL);
    for (const kvi_block_class *cls = pool->classes; cls; cls = cls->next) {
        for (const kvi_slab *slab = cls->host_free_slabs; slab; slab = slab->next_free) {
            for (const kvi_block *b = slab->free_list; b; b = b->next_free)
                fill(b, 0);
        }
        for (const kvi_slab *slab = cls->free_slabs; slab; slab = slab->next_free) {
            for (const kvi_block *b = slab->free_list; b; b = b->next_free)
                kvi_block_fill(pool, b, 0);
        }
    }
    pool->host.n_wiped = pool->host.n_copies;
}

void kvi_host_free(kvcsa_pool *pool, kvi_block *block)
{
    kvi_slab        *slab = block->slab;
    kvi_block_class *cls = slab->cls;
    const int        zero = block->secure || pool->flags & KVCSA_POOL_ZERO_FREED;

    if (zero || pool->flags & KVCSA_POOL_FILL_FREED) {
        (void)kvi_host_wait(pool, block, NULL); /* a device in trouble writes no more */
        fill(block, zero ? 0 : KVI_FILL_BYTE);
    }
    memset(block, 0, sizeof *block);
    block->slab = slab;
    block->out = 1;
    push_free(block);
    count(pool, cls, -1);
    if (is_empty(slab) && cls->n_host_empty > 1)
        free_slab(pool, slab);
}

/* ------------------------------------------------------------------ bytes */

typedef struct piece {
    uint8_t *at;
    size_t   size;
} piece;

/* Both parts of a block, with what lies between them. */
static piece piece_of(const kvi_block *block)
{
    const kvi_block_class *cls = block->slab->cls;

    if (cls->shape.index_bytes == 0)
        return (piece){kvi_block_main_part(block), cls->shape.main_bytes};
    return (piece){kvi_block_index_part(block), cls->index_stride + cls->shape.main_bytes};
}

static kvcsa_status copy_out(kvcsa_pool *pool, kvi_block *to, const kvi_block *from)
{
    const piece        p = piece_of(from);
    const kvcsa_status st =
        kvi_memory_get_later(&pool->memory, piece_of(to).at, p.at, p.size, NULL);

    if (st == KVCSA_OK)
        to->copy_no = ++pool->host.n_copies;
    return st;
}

/* Without a wait even where the bytes are on their way out: the device's copies are in order. */
static kvcsa_status copy_in(kvcsa_pool *pool, const kvi_block *to, kvi_block *from)
{
    const piece        p = piece_of(from);
    const kvcsa_status st =
        kvi_memory_put_pinned(&pool->memory, piece_of(to).at, p.at, p.size, NULL);

    if (st == KVCSA_OK)
        from->copy_no = ++pool->host.n_copies;
    return st;
}

static uint64_t window_bytes(const kvi_stored_window *w)
{
    uint64_t bytes = 0;

    for (size_t i = 0; w && i < w->n_pages; i++)
        bytes += w->pages[i] ? kvi_class_block_bytes(w->pages[i]->slab->cls) : 0;
    return bytes;
}

static void drop_window(kvcsa_pool *pool, kvi_block *block)
{
    kvi_stored_window *const w = block->window;

    block->window = NULL;
    kvi_window_drop(pool, w);
}

/* A page of a stored window goes over; NULL = not. */
static kvi_block *move_page(kvcsa_pool *pool, kvi_block *page, const kvi_block *coming)
{
    kvi_block_class *const cls = page->slab->cls;
    kvi_block             *to = NULL;
    kvcsa_status           st = KVCSA_OK;

    if (page->out)
        (void)kvi_block_take(pool, cls, &to, NULL);
    else
        to = take_record(pool, cls, coming);
    if (!to)
        return NULL;
    st = page->out ? copy_in(pool, to, page) : copy_out(pool, to, page);
    to->secure = page->secure;
    if (st != KVCSA_OK) {
        kvi_block_drop(pool, to);
        return NULL;
    }
    kvi_block_drop(pool, page);
    return to;
}

/* All pages, or the window is lost. */
static void move_window(kvcsa_pool *pool, kvi_block *block, int room)
{
    kvi_stored_window *const w = block->window;

    for (size_t i = 0; w && i < w->n_pages && room; i++) {
        kvi_block *to = NULL;

        if (!w->pages[i])
            continue;
        if ((to = move_page(pool, w->pages[i], block)))
            w->pages[i] = to;
        else
            room = 0;
    }
    if (!room)
        drop_window(pool, block);
}

/* ------------------------------------------------------------------ places in the tree */

static uint64_t count_children(const kvi_block *block)
{
    uint64_t n = 0;

    for (const kvi_block *c = block->first_child; c; c = c->next_sibling)
        n++;
    return n;
}

/* `to` gets what `from` has in the tree, and its parent; references are the caller's to move. */
static void take_place(kvcsa_pool *pool, kvi_block *to, kvi_block *from)
{
    kvi_block *const parent = from->parent;
    kvi_block      **link = &pool->buckets[from->key.lo & (pool->n_buckets - 1)];

    from->published = 0;
    kvi_evict_update(pool, from); /* it is not idle any more */
    while (*link != from)
        link = &(*link)->next_in_bucket;
    *link = to;
    to->next_in_bucket = from->next_in_bucket;
    to->root = from->root;
    to->prev_sibling = from->prev_sibling;
    to->next_sibling = from->next_sibling;
    if (to->prev_sibling)
        to->prev_sibling->next_sibling = to;
    else
        *kvi_prefix_children(to->root, parent) = to;
    if (to->next_sibling)
        to->next_sibling->prev_sibling = to;
    to->first_child = from->first_child;
    for (kvi_block *c = to->first_child; c; c = c->next_sibling)
        c->parent = to;
    if (!to->out)
        to->n_at_host = count_children(to); /* (H1) */
    if (parent && !parent->out)
        parent->n_at_host += to->out ? 1 : UINT64_MAX; /* modulo 2^64 */
    to->parent = parent;
    to->published = 1;
    to->last_used = from->last_used;
    to->n_hits = from->n_hits;
    to->worth = from->worth;
    from->first_child = from->prev_sibling = from->next_sibling = from->next_in_bucket = NULL;
    from->root = NULL;
    from->parent = NULL;
}

/* The record too: `from` has nothing left. */
static void take_record_of(kvcsa_pool *pool, kvi_block *to, kvi_block *from)
{
    kvi_block_class *const cls = from->slab->cls;

    memcpy(kvi_block_tokens(to), kvi_block_tokens(from), kvi_block_token_bytes(cls));
    to->state = KVI_BLOCK_SEALED;
    to->refs = from->refs;
    to->secure = from->secure;
    to->depth = from->depth;
    to->key = from->key;
    to->sums[0] = from->sums[0];
    to->sums[1] = from->sums[1];
    to->window = from->window;
    from->window = NULL;
    take_place(pool, to, from);
    from->refs = 0;
    if (to->parent)
        kvi_evict_update(pool, to->parent);
    kvi_evict_update(pool, to);
}

static void trace_move(const kvcsa_pool *pool, const kvi_block *block, uint32_t kind)
{
    const kvi_block_class *cls = block->slab->cls;

    kvi_pool_trace(pool, kind, KVCSA_REASON_NONE, block->depth * cls->shape.block_tokens,
                   cls->shape.block_tokens, kvi_class_block_bytes(cls));
}

/* ------------------------------------------------------------------ moving */

int kvi_host_take_over(kvcsa_pool *pool, kvi_block *block)
{
    kvi_block_class *const cls = block->slab->cls;
    kvi_block             *to = NULL;

    if (!make_room(pool, kvi_class_block_bytes(cls), block) ||
        !(to = take_record(pool, cls, block)))
        return 0;
    if (copy_out(pool, to, block) != KVCSA_OK) {
        kvi_block_free(pool, to);
        return 0;
    }
    if (block->window)
        move_window(pool, block, make_room(pool, window_bytes(block->window), block));
    take_record_of(pool, to, block);
    kvi_block_free(pool, block);
    pool->host.n_moved_out++;
    trace_move(pool, to, KVCSA_TRACE_MOVE_OUT);
    return 1;
}

kvi_block *kvi_host_bring(kvcsa_pool *pool, kvi_block *block, uint32_t n_held, uint64_t *room)
{
    kvi_block_class *const cls = block->slab->cls;
    const uint64_t         bytes = kvi_class_block_bytes(cls);
    const uint64_t         more = window_bytes(block->window);
    kvi_block             *to = NULL;

    if (block->refs != 1 + count_children(block) + n_held || bytes > *room ||
        kvi_block_take(pool, cls, &to, NULL) != KVCSA_OK)
        return NULL;
    if (copy_in(pool, to, block) != KVCSA_OK) {
        kvi_block_drop(pool, to);
        return NULL;
    }
    *room -= bytes;
    if (block->window)
        move_window(pool, block, more <= *room);
    if (block->window)
        *room -= more;
    cls->n_open--;
    cls->n_sealed++;
    take_record_of(pool, to, block);
    kvi_block_free(pool, block);
    pool->host.n_moved_in++;
    trace_move(pool, to, KVCSA_TRACE_MOVE_IN);
    return to;
}

int kvi_host_replace(kvcsa_pool *pool, kvi_block *block, kvi_block *by)
{
    kvi_block *const parent = block->parent;

    if (block->refs != 1 + count_children(block))
        return 0;
    by->refs += block->refs;
    take_place(pool, by, block);
    block->refs = 0;
    drop_window(pool, block);
    kvi_block_free(pool, block);
    kvi_block_drop(pool, parent); /* both have held it */
    kvi_evict_update(pool, by);
    return 1;
}
