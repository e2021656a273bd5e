/* The walk over the prefix tree that compares it with (T1) to (T7) of prefix_share.c, and with (H1)
 * and (H2) of host_tier.c. */
#include "pool/pool.h"

#include "base/status.h"
#include "pool/pool_int.h"

#include <inttypes.h>

typedef struct walk { /* what a walk finds */
    uint64_t n_published;
    uint64_t n_pinned;
} walk;

/* A block's place: state, parent, neighbours, key. */
static kvcsa_status check_block(const kvcsa_pool *pool, const kvi_prefix_root *root,
                                const kvi_block *parent, const kvi_block *prev,
                                const kvi_block *b, kvcsa_error *err)
{
    const void *at = (const void *)b;

    if (!b->published || b->state != KVI_BLOCK_SEALED || b->tainted || b->root != root ||
        b->parent != parent || b->slab->cls->shape.kind != KVI_CLASS_CACHE ||
        b->slab->cls->shape.block_tokens != root->block_tokens)
        return KVI_BROKEN("T1: block %p has no place in the tree that it is in", at);
    if (parent && parent->out && !b->out)
        return KVI_BROKEN("H1: block %p is on the device, the one in front of it is not", at);
    if (b->prev_sibling != prev)
        return KVI_BROKEN("T2: block %p is in two lists of children", at);
    if (!kvi_hash128_equal(b->key, kvi_prefix_key(root, parent, kvi_block_tokens(b))))
        return KVI_BROKEN("T3: the key of block %p is not that of its tokens", at);
    if (kvi_prefix_lookup(pool, root, parent, b->key, kvi_block_tokens(b)) != b)
        return KVI_BROKEN("T4: block %p is not the one that is found by its tokens", at);
    return KVCSA_OK;
}

/* Children of a block or root: n of them, and each in its place. */
static kvcsa_status check_children(const kvcsa_pool *pool, const kvi_prefix_root *root,
                                   const kvi_block *parent, walk *w, uint64_t *n, kvcsa_error *err)
{
    const kvi_block *prev = NULL;
    uint64_t         n_out = 0;

    *n = 0;
    for (const kvi_block *b = parent ? parent->first_child : root->first_child; b;
         prev = b, b = b->next_sibling) {
        const kvcsa_status st = check_block(pool, root, parent, prev, b, err);

        if (st != KVCSA_OK)
            return st;
        ++*n;
        n_out += b->out;
        w->n_pinned += b->pins > 0;
        if (++w->n_published > pool->n_published)
            return KVI_BROKEN("T6: more than %" PRIu64 " blocks are in trees", pool->n_published);
    }
    if (parent && !parent->out && parent->n_at_host != n_out)
        return KVI_BROKEN("H2: block %p counts %" PRIu64
                          " children in the host tier, a walk finds %" PRIu64,
                          (const void *)parent, parent->n_at_host, n_out);
    return KVCSA_OK;
}

/* In pre-order: the list of children is checked before one of them is entered. */
static const kvi_block *next_in_pre_order(const kvi_block *b)
{
    if (b->first_child)
        return b->first_child;
    while (b && !b->next_sibling)
        b = b->parent;
    return b ? b->next_sibling : NULL;
}

static kvcsa_status check_root(const kvcsa_pool *pool, const kvi_prefix_root *root, walk *w,
                               kvcsa_error *err)
{
    const uint64_t n_before = w->n_published;
    uint64_t       n = 0;
    kvcsa_status   st = check_children(pool, root, NULL, w, &n, err);

    if (st != KVCSA_OK)
        return st;
    if (!kvi_hash128_equal(root->key, kvi_prefix_root_key(root)))
        return KVI_BROKEN("T3: the key of a root is not that of its domain");
    for (const kvi_block *b = root->first_child; b; b = next_in_pre_order(b)) {
        if ((st = check_children(pool, root, b, w, &n, err)) != KVCSA_OK)
            return st;
        if (b->refs < 1 + b->pins + n)
            return KVI_BROKEN("T5: block %p has %" PRIu32 " references, %" PRIu32
                              " pins and %" PRIu64 " children",
                              (const void *)b, b->refs, b->pins, n);
    }
    if (root->n_published != w->n_published - n_before)
        return KVI_BROKEN("T6: root counts %" PRIu64 " blocks, a walk finds %" PRIu64,
                          root->n_published, w->n_published - n_before);
    if (root->refs == 0 && root->n_published == 0)
        return KVI_BROKEN("T7: root %p is idle", (const void *)root);
    for (const kvi_prefix_root *r = root->next; r; r = r->next) {
        if (kvi_hash128_equal(r->key, root->key) && r->domain.weights == root->domain.weights &&
            r->domain.adapter == root->domain.adapter && r->domain.plan == root->domain.plan &&
            r->domain.numerics == root->domain.numerics && r->domain.salt == root->domain.salt &&
            r->domain.version == root->domain.version)
            return KVI_BROKEN("T7: two roots have one domain");
    }
    return KVCSA_OK;
}

/* Together with the look-ups above: each published block is in one bucket, its own, once. */
static kvcsa_status check_buckets(const kvcsa_pool *pool, kvcsa_error *err)
{
    uint64_t n = 0;

    for (size_t i = 0; i < pool->n_buckets; i++) {
        for (const kvi_block *b = pool->buckets[i]; b; b = b->next_in_bucket) {
            if (!b->published || (b->key.lo & (pool->n_buckets - 1)) != i)
                return KVI_BROKEN("T2: block %p is in a wrong bucket", (const void *)b);
            if (++n > pool->n_published)
                return KVI_BROKEN("T2: more than %" PRIu64 " blocks are in buckets",
                                  pool->n_published);
        }
    }
    if (n != pool->n_published)
        return KVI_BROKEN("T2: %" PRIu64 " blocks are in buckets, %" PRIu64 " are published", n,
                          pool->n_published);
    return KVCSA_OK;
}

typedef struct marks {
    uint64_t n_published;
    uint64_t n_pinned;
    uint64_t side_bytes;
} marks;

static void count_marks(const kvi_slab *slabs, marks *m)
{
    for (const kvi_slab *slab = slabs; slab; slab = slab->next) {
        for (uint32_t i = 0; i < slab->n_blocks; i++) {
            const kvi_block *b = &slab->blocks[i];

            m->n_published += b->published;
            m->n_pinned += b->pins > 0;
            m->side_bytes += b->window ? kvi_stored_window_size(b->window->n_pages) : 0;
        }
    }
}

/* No block has the mark, or pins, that is not in a tree. Stored windows are counted on the way. */
static kvcsa_status check_marks(const kvcsa_pool *pool, const walk *w, kvcsa_error *err)
{
    marks m = {.side_bytes = kvi_table_size(pool)};

    for (const kvi_prefix_root *root = pool->roots; root; root = root->next)
        m.side_bytes += sizeof *root;
    for (const kvi_block_class *cls = pool->classes; cls; cls = cls->next) {
        m.side_bytes += sizeof *cls;
        count_marks(cls->slabs, &m);
        count_marks(cls->host_slabs, &m);
    }
    if (w->n_published != pool->n_published || m.n_published != pool->n_published)
        return KVI_BROKEN("T6: pool counts %" PRIu64 " published blocks, trees hold %" PRIu64
                          ", marked are %" PRIu64,
                          pool->n_published, w->n_published, m.n_published);
    if (w->n_pinned != pool->n_pinned || m.n_pinned != pool->n_pinned)
        return KVI_BROKEN("T6: pool counts %" PRIu64 " pinned blocks, trees hold %" PRIu64
                          ", marked are %" PRIu64,
                          pool->n_pinned, w->n_pinned, m.n_pinned);
    if (m.side_bytes != pool->side_bytes)
        return KVI_BROKEN("T6: side_bytes is %" PRIu64 ", a walk finds %" PRIu64,
                          pool->side_bytes, m.side_bytes);
    return KVCSA_OK;
}

kvcsa_status kvi_pool_check_tree(const kvcsa_pool *pool, kvcsa_error *err)
{
    kvcsa_status st = check_buckets(pool, err);
    walk         w = {0};

    for (const kvi_prefix_root *root = pool->roots; root && st == KVCSA_OK; root = root->next)
        st = check_root(pool, root, &w, err);
    if (st == KVCSA_OK)
        st = check_marks(pool, &w, err);
    return st;
}
