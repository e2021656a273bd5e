/* Sealed blocks and the prefix tree over them.
 *
 * The tree owns one reference to every published block. It has one root for each domain; below it
 * hang the blocks of depth 0, below them those behind them. A hash table over the keys of all roots
 * finds the child of a block with given tokens in one probe; tokens are always compared, so that
 * the quality of the hash decides about speed only.
 *
 * (T1) A published block is SEALED, not tainted, and of a cache class; its parent is NULL or
 *      published below the same root.
 * (T2) It stands once in the bucket of its key, and once among the children of its parent or root;
 *      nothing else stands there.
 * (T3) Its key is that of its parent and tokens.
 * (T4) No two children of one parent have the same tokens.
 * (T5) Its references are at least one of the tree, its pins, and one of each published child.
 * (T6) n_published of pool and roots, n_pinned and side_bytes of the pool are those of a walk; only
 *      published blocks are pinned.
 * (T7) Domains of roots differ; a root without sessions has published blocks.
 * (T8) A block is in the list of idle ones exactly if it is published, not pinned, and has one
 *      reference (evict.c); those of children in the host tier do not count on the device.
 *
 * Blocks may be out, in the host tier (host_tier.c): they are found like others, and brought back
 * before they are given to anybody who reads them.
 *
 *     OPEN      -> private     kvi_block_seal, tainted or not to be published
 *     OPEN      -> published   kvi_block_seal
 *     private   -> published   kvi_prefix_publish
 *     published -> private     kvi_prefix_unpublish: eviction, kvi_prefix_forget, kvi_prefix_erase;
 *                              FREE, if only the tree held it
 */
#include "pool/pool.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/prefetch.h"
#include "base/status.h"
#include "pool/pool_int.h"

#include <inttypes.h>
#include <string.h>

#define FIRST_BUCKETS 64u /* a power of two, and so are those that follow */
#define AHEAD 16u /* blocks: enough to hide a miss */

/* What a key is about, so that keys of different things never meet. */
enum { TAG_ROOT = 1, TAG_BLOCK = 2, TAG_TAINTED = 3 };
enum { /* of the fields of a domain */
    FIELD_WEIGHTS = 1,
    FIELD_ADAPTER = 2,
    FIELD_PLAN = 3,
    FIELD_NUMERICS = 4,
    FIELD_SALT = 5,
    FIELD_VERSION = 6,
    FIELD_BLOCK_TOKENS = 7
};

/* ------------------------------------------------------------------ keys */

kvi_hash128 kvi_prefix_root_key(const kvi_prefix_root *root)
{
    const kvi_domain *d = &root->domain;
    const uint64_t    words[] = {
        FIELD_WEIGHTS,  d->weights,  FIELD_ADAPTER, d->adapter, FIELD_PLAN,    d->plan,
        FIELD_NUMERICS, d->numerics, FIELD_SALT,    d->salt,    FIELD_VERSION, d->version,
        FIELD_BLOCK_TOKENS, root->block_tokens};

    return root->hash(words, sizeof words, TAG_ROOT);
}

static kvi_hash128 key_behind(const kvi_prefix_root *root, kvi_hash128 before,
                              const int32_t *tokens, uint64_t tag)
{
    /* a seed costs XXH3 time for long inputs; these bits are hashed again */
    const kvi_hash128 own = root->hash(tokens, root->block_tokens * sizeof tokens[0], 0);
    const uint64_t words[] = {before.lo, before.hi, own.lo, own.hi};

    return root->hash(words, sizeof words, tag);
}

static kvi_hash128 key_of_parent(const kvi_prefix_root *root, const kvi_block *parent)
{
    return parent ? parent->key : root->key;
}

kvi_hash128 kvi_prefix_key_of(const kvi_prefix_root *root, const kvi_block *parent,
                              const int32_t *tokens, int tainted)
{
    return key_behind(root, key_of_parent(root, parent), tokens, tainted ? TAG_TAINTED : TAG_BLOCK);
}

kvi_hash128 kvi_prefix_key(const kvi_prefix_root *root, const kvi_block *parent,
                           const int32_t *tokens)
{
    return kvi_prefix_key_of(root, parent, tokens, 0);
}

/* ------------------------------------------------------------------ table and children; the caller
 * holds the lock */

kvi_block *kvi_prefix_lookup(const kvcsa_pool *pool, const kvi_prefix_root *root,
                             const kvi_block *parent, kvi_hash128 key, const int32_t *tokens)
{
    const size_t n_bytes = root->block_tokens * sizeof tokens[0];
    kvi_block   *b = NULL;

    if (pool->n_buckets == 0)
        return NULL;
    b = pool->buckets[key.lo & (pool->n_buckets - 1)];
    /* (T1): a parent tells the root */
    while (b && !(kvi_hash128_equal(b->key, key) && b->parent == parent &&
                  (parent || b->root == root) && memcmp(kvi_block_tokens(b), tokens, n_bytes) == 0))
        b = b->next_in_bucket;
    return b;
}

kvi_block **kvi_prefix_children(kvi_prefix_root *root, kvi_block *parent)
{
    return parent ? &parent->first_child : &root->first_child;
}

static void add_to_bucket(kvi_block **buckets, size_t n_buckets, kvi_block *block)
{
    kvi_block **bucket = &buckets[block->key.lo & (n_buckets - 1)];

    block->next_in_bucket = *bucket;
    *bucket = block;
}

/* Twice the buckets where there are more blocks than buckets. Without memory it stays as it is: 0 =
 * there is no table at all. */
static int grow_table(kvcsa_pool *pool)
{
    size_t      n = pool->n_buckets ? 2 * pool->n_buckets : FIRST_BUCKETS;
    kvi_block **buckets = NULL;

    if (pool->n_published < pool->n_buckets)
        return 1;
    buckets = kvi_zalloc(&pool->allocator, n * sizeof(kvi_block *));
    if (!buckets)
        return pool->n_buckets != 0;
    for (size_t i = 0; i < pool->n_buckets; i++) {
        for (kvi_block *b = pool->buckets[i], *next = NULL; b; b = next) {
            next = b->next_in_bucket;
            add_to_bucket(buckets, n, b);
        }
    }
    pool->side_bytes -= kvi_table_size(pool);
    kvi_free(&pool->allocator, pool->buckets, kvi_table_size(pool));
    pool->buckets = buckets;
    pool->n_buckets = n;
    pool->side_bytes += kvi_table_size(pool);
    return 1;
}

/* A SEALED block behind a published parent, no equal one is there. Without memory for a table it
 * stays private. */
static void publish(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *block)
{
    kvi_block **children = kvi_prefix_children(root, block->parent);

    if (!grow_table(pool))
        return;
    KVI_ASSERT(!block->published && block->slab->cls->shape.block_tokens == root->block_tokens);
    block->root = root;
    block->first_child = NULL;
    block->prev_sibling = NULL;
    block->next_sibling = *children;
    if (*children)
        (*children)->prev_sibling = block;
    *children = block;
    add_to_bucket(pool->buckets, pool->n_buckets, block);
    block->published = 1;
    root->n_published++;
    pool->n_published++;
    kvi_block_hold(pool, block);
    kvi_evict_enter(pool, block);
    kvi_pool_trace(pool, KVCSA_TRACE_PUBLISH, KVCSA_REASON_NONE,
                   block->depth * root->block_tokens, root->block_tokens,
                   kvi_class_block_bytes(block->slab->cls));
}

/* ------------------------------------------------------------------ roots */

static kvi_prefix_root *find_root(const kvcsa_pool *pool, const kvi_domain *d)
{
    kvi_prefix_root *root = pool->roots;

    while (root && (root->domain.weights != d->weights || root->domain.adapter != d->adapter ||
                    root->domain.plan != d->plan || root->domain.numerics != d->numerics ||
                    root->domain.salt != d->salt || root->domain.version != d->version))
        root = root->next;
    return root;
}

kvcsa_status kvi_prefix_root_acquire(kvcsa_pool *pool, const kvi_domain *domain,
                                     uint32_t block_tokens, kvi_prefix_root **out,
                                     kvcsa_error *err)
{
    kvcsa_status     st = KVCSA_OK;
    kvi_prefix_root *root = NULL;

    pthread_mutex_lock(&pool->lock);
    root = find_root(pool, domain);
    if (!root) {
        root = kvi_zalloc(&pool->allocator, sizeof *root);
        if (!root) {
            st = kvi_fail(err, KVCSA_ERR_NOMEM, "root of prefixes, %zu bytes", sizeof *root);
            goto done;
        }
        root->domain = *domain;
        root->block_tokens = block_tokens;
        root->hash = pool->hash;
        root->key = kvi_prefix_root_key(root);
        root->next = pool->roots;
        pool->roots = root;
        pool->side_bytes += sizeof *root;
    }
    KVI_ASSERT(root->block_tokens == block_tokens); /* it is part of the plan */
    root->refs++;
done:
    pthread_mutex_unlock(&pool->lock);
    *out = root;
    return st;
}

kvi_prefix_root *kvi_prefix_root_find(kvcsa_pool *pool, const kvi_domain *domain)
{
    kvi_prefix_root *root = NULL;

    pthread_mutex_lock(&pool->lock);
    root = find_root(pool, domain);
    if (root)
        root->refs++;
    pthread_mutex_unlock(&pool->lock);
    return root;
}

void kvi_prefix_root_release(kvcsa_pool *pool, kvi_prefix_root *root)
{
    if (!root)
        return;
    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(root->refs > 0);
    kvi_prefix_root_drop(pool, root);
    pthread_mutex_unlock(&pool->lock);
}

const kvi_domain *kvi_prefix_root_domain(const kvi_prefix_root *root)
{
    return &root->domain;
}

/* ------------------------------------------------------------------ sealed blocks */

kvi_block *kvi_block_parent(const kvi_block *block)
{
    return block->parent;
}

uint64_t kvi_block_depth(const kvi_block *block)
{
    return block->depth;
}

int kvi_block_is_tainted(const kvi_block *block)
{
    return block->tainted;
}

int kvi_block_is_published(kvcsa_pool *pool, const kvi_block *block)
{
    int published = 0;

    pthread_mutex_lock(&pool->lock);
    published = block->published;
    pthread_mutex_unlock(&pool->lock);
    return published;
}

kvi_hash128 kvi_block_key(const kvi_block *block)
{
    return block->key;
}

kvi_hash128 kvi_block_index_sum(const kvi_block *block)
{
    return block->sums[0];
}

kvi_hash128 kvi_block_main_sum(const kvi_block *block)
{
    return block->sums[1];
}

/* Pages are not held yet. NULL = none, or no memory for one: it only saves work. */
static kvi_stored_window *make_window(const kvcsa_pool *pool, kvi_block *const *pages, size_t n)
{
    kvi_stored_window *w = NULL;

    if (n)
        w = kvi_alloc(&pool->allocator, kvi_stored_window_size(n));
    if (w) {
        w->n_pages = n;
        memcpy(w->pages, pages, n * sizeof pages[0]);
    }
    return w;
}

/* Returns what is not wanted. */
static kvi_stored_window *give_window(kvcsa_pool *pool, kvi_block *block, kvi_stored_window *w)
{
    if (!w || block->window)
        return w;
    for (size_t i = 0; i < w->n_pages; i++) {
        if (w->pages[i])
            kvi_block_hold(pool, w->pages[i]);
    }
    block->window = w;
    pool->side_bytes += kvi_stored_window_size(w->n_pages);
    return NULL;
}

kvi_block *kvi_block_seal(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *block,
                          kvi_block *parent, uint32_t flags, kvi_block *const *window,
                          size_t n_window)
{
    kvi_hash128 sums[2] = {{0}};

    /* what a failed device has made is nobody's to share, and nobody will read it */
    if (kvi_block_sums(pool, block, sums, NULL) != KVCSA_OK)
        flags |= KVI_SEAL_TAINTED;
    return kvi_block_seal_with(pool, root, block, parent, flags, sums, window, n_window);
}

kvi_block *kvi_block_seal_with(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *block,
                               kvi_block *parent, uint32_t flags, const kvi_hash128 *sums,
                               kvi_block *const *window, size_t n_window)
{
    kvi_block_class   *cls = block->slab->cls;
    const int          tainted = (flags & KVI_SEAL_TAINTED) != 0;
    const kvi_hash128  key = kvi_prefix_key_of(root, parent, kvi_block_tokens(block), tainted);
    kvi_stored_window *w = make_window(pool, window, n_window);
    kvi_block         *twin = NULL;
    int                open = 0; /* to be published */

    pthread_mutex_lock(&pool->lock);
    KVI_ASSERT(block->state == KVI_BLOCK_OPEN && cls->shape.block_tokens == root->block_tokens);
    open = !tainted && !(flags & KVI_SEAL_PRIVATE) && (!parent || parent->published);
    if (open)
        twin = kvi_prefix_lookup(pool, root, parent, key, kvi_block_tokens(block));
    if (twin && !twin->out) {
        kvi_block_hold(pool, twin);
        kvi_block_drop(pool, block);
        kvi_block_drop(pool, parent);
        block = twin;
    } else {
        block->state = KVI_BLOCK_SEALED;
        block->slab->cls->n_open--;
        block->slab->cls->n_sealed++;
        block->parent = parent;
        block->depth = parent ? parent->depth + 1 : 0;
        block->tainted = (uint8_t)tainted;
        block->key = key;
        block->sums[0] = sums[0];
        block->sums[1] = sums[1];
        if (twin) /* what is here is as good as what would have to come */
            (void)kvi_host_replace(pool, twin, block);
        else if (open)
            publish(pool, root, block);
    }
    w = give_window(pool, block, w);
    pthread_mutex_unlock(&pool->lock);
    kvi_free(&pool->allocator, w, kvi_stored_window_size(n_window));
    return block;
}

uint64_t kvi_block_stored_window(kvcsa_pool *pool, kvi_block *last, uint64_t from_depth,
                                 kvi_block **pages, size_t n_pages)
{
    const kvi_block *b = last;
    uint64_t         n_tokens = 0;

    pthread_mutex_lock(&pool->lock);
    /* a window of another size is of a session with another slack: of no use here */
    while (b && b->depth >= from_depth && !(b->window && b->window->n_pages == n_pages))
        b = b->parent;
    if (b && b->depth >= from_depth) {
        n_tokens = (b->depth + 1) * b->slab->cls->shape.block_tokens;
        for (size_t i = 0; i < n_pages; i++) {
            pages[i] = b->window->pages[i];
            if (pages[i])
                kvi_block_hold(pool, pages[i]);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return n_tokens;
}

/* ------------------------------------------------------------------ searching */

static size_t common_tokens(const int32_t *a, const int32_t *b, size_t n)
{
    size_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* The child that begins with most of tokens[n]; n_common of them, 0 = none with one. */
static kvi_block *longest_child(kvi_block *children, const int32_t *tokens, size_t n,
                                size_t *n_common)
{
    kvi_block *best = NULL;

    *n_common = 0;
    for (kvi_block *b = children; b && *n_common < n; b = b->next_sibling) {
        const size_t k = common_tokens(kvi_block_tokens(b), tokens, n);

        if (k > *n_common) {
            *n_common = k;
            best = b;
        }
    }
    return best;
}

/* Keys follow from the tokens alone, so those of the next blocks are made ahead, and what the table
 * holds at them is fetched in three steps (bucket, record, token ids) while blocks in front of them
 * are compared: a long walk is otherwise one cache miss after the other. It looks a little further
 * ahead with every block, since most walks end early. */
typedef struct look_ahead {
    kvi_hash128 keys[2 * AHEAD]; /* of block i at i % (2 * AHEAD) */
    kvi_hash128 last;            /* of the newest */
    size_t      n_keys, n_records, n_ids; /* blocks that have passed each step */
} look_ahead;

static const kvi_hash128 *key_at(const look_ahead *ahead, size_t i)
{
    return &ahead->keys[i % (2 * AHEAD)];
}

static void fetch_ahead(const kvcsa_pool *pool, const kvi_prefix_root *root, look_ahead *ahead,
                        const int32_t *tokens, size_t n_blocks, size_t i)
{
    const size_t mask = pool->n_buckets - 1;
    const size_t far = i + kvi_min_size(i + 1, AHEAD);
    const size_t near = i + (far - i) / 2;

    for (; ahead->n_keys < n_blocks && ahead->n_keys <= far; ahead->n_keys++) {
        ahead->last = key_behind(root, ahead->last, tokens + ahead->n_keys * root->block_tokens,
                                 TAG_BLOCK);
        ahead->keys[ahead->n_keys % (2 * AHEAD)] = ahead->last;
        if (pool->n_buckets)
            kvi_prefetch(&pool->buckets[ahead->last.lo & mask]);
    }
    if (!pool->n_buckets)
        return;
    for (; ahead->n_records < ahead->n_keys && ahead->n_records <= near; ahead->n_records++) {
        const char *b = (const char *)pool->buckets[key_at(ahead, ahead->n_records)->lo & mask];

        for (size_t byte = 0; b && byte < sizeof(kvi_block); byte += 64)
            kvi_prefetch(b + byte);
    }
    for (; ahead->n_ids < ahead->n_records && ahead->n_ids <= i + (near - i) / 2; ahead->n_ids++) {
        const kvi_block *b = pool->buckets[key_at(ahead, ahead->n_ids)->lo & mask];

        for (size_t id = 0; b && id < root->block_tokens; id += 64 / sizeof(int32_t))
            kvi_prefetch(kvi_block_tokens(b) + id);
    }
}

/* Whole blocks of tokens[n] behind `at`; *done tokens of them are known. Returns the last one. */
static kvi_block *find_whole(kvcsa_pool *pool, const kvi_prefix_root *root, kvi_block *at,
                             const int32_t *tokens, size_t n, size_t *done)
{
    const size_t n_blocks = n / root->block_tokens;
    look_ahead   ahead = {.last = key_of_parent(root, at)};
    size_t       i = 0;

    for (; i < n_blocks; i++) {
        kvi_block *next = NULL;

        fetch_ahead(pool, root, &ahead, tokens, n_blocks, i);
        pool->n_probes++;
        next = kvi_prefix_lookup(pool, root, at, *key_at(&ahead, i),
                                 tokens + i * root->block_tokens);
        if (!next)
            break;
        at = next;
    }
    *done = i * root->block_tokens;
    return at;
}

/* The blocks of the chain that ends in `last` are brought back from the host tier, the first one
 * first, as far as there is room. Returns the last one that is here then, with a reference for the
 * caller; NULL = none. */
static kvi_block *bring_chain(kvcsa_pool *pool, kvi_block *last)
{
    kvi_block *at = last; /* here, and held */
    kvi_block *next = NULL;
    uint64_t   room = 0;

    kvi_block_hold(pool, last); /* with it those in front of it stay in the tree */
    if (!last->out)
        return last;
    for (; at && at->out; at = at->parent) { /* with something behind them they are not idle */
        at->next_idle = next;
        next = at;
    }
    if (at)
        kvi_block_hold(pool, at);
    room = kvi_evict_room(pool);
    for (kvi_block *after = NULL; next; next = after) {
        kvi_block *came = NULL;

        after = next->next_idle;
        next->next_idle = NULL;
        if (last)
            came = kvi_host_bring(pool, next, next == last, &room);
        if (!came) {
            if (last)
                kvi_block_drop(pool, last);
            last = NULL; /* the links are to be taken back all the same */
            continue;
        }
        if (next != last)
            kvi_block_hold(pool, came);
        if (at)
            kvi_block_drop(pool, at);
        at = came;
    }
    return at;
}

static uint64_t end_of(const kvi_prefix_root *root, const kvi_block *block)
{
    return block ? (block->depth + 1) * root->block_tokens : 0;
}

/* The child that begins with most of tokens[n], held; n_common of them, 0 = none: there is no room
 * for it (*lost), or none begins with one. */
static kvi_block *find_partial(kvcsa_pool *pool, kvi_block *children, int bring,
                               const int32_t *tokens, size_t n, size_t *n_common, int *lost)
{
    kvi_block *best = longest_child(children, tokens, n, n_common);
    kvi_block *came = NULL;
    uint64_t   room = 0;

    if (!best)
        return NULL;
    kvi_block_hold(pool, best);
    if (!bring || !best->out)
        return best;
    room = kvi_evict_room(pool);
    if (!(came = kvi_host_bring(pool, best, 1, &room))) {
        kvi_block_drop(pool, best);
        *n_common = 0;
        *lost = 1;
    }
    return came;
}

static void find_locked(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *from,
                        const int32_t *tokens, size_t n, int bring, kvi_prefix_match *out)
{
    const size_t block_tokens = root->block_tokens;
    kvi_block   *at = NULL;
    kvi_block   *children = NULL;
    size_t       done = 0;
    size_t       n_common = 0;
    int          lost = 0;

    at = find_whole(pool, root, from, tokens, n, &done);
    if (done && bring) {
        kvi_block   *end = bring_chain(pool, at);
        const size_t n_here = (size_t)(end_of(root, end) - end_of(root, from));

        if (n_here < done) { /* no room for the rest */
            *out = (kvi_prefix_match){
                .last = n_here ? end : NULL, .n_tokens = n_here, .reason = KVCSA_REASON_BUDGET};
            if (end && !n_here)
                kvi_block_drop(pool, end);
            return;
        }
        at = end;
    } else if (done) {
        kvi_block_hold(pool, at);
    }
    out->last = done ? at : NULL;
    children = *kvi_prefix_children(root, at);
    if (done < n) {
        /* a key that was not found and a walk over the children are one probe together */
        pool->n_probes += n - done < block_tokens;
        out->partial = find_partial(pool, children, bring, tokens + done,
                                    kvi_min_size(n - done, block_tokens), &n_common, &lost);
        done += n_common;
    }
    out->n_tokens = done;
    if (done == n)
        out->reason = KVCSA_REASON_NONE;
    else if (lost)
        out->reason = KVCSA_REASON_BUDGET;
    else if (!from && done == 0)
        out->reason = KVCSA_REASON_UNKNOWN;
    else
        out->reason = children ? KVCSA_REASON_DIVERGED : KVCSA_REASON_ENDED;
}

static void find(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *from, const int32_t *tokens,
                 size_t n, int bring, kvi_prefix_match *out)
{
    *out = (kvi_prefix_match){.reason = KVCSA_REASON_PRIVATE};
    pthread_mutex_lock(&pool->lock);
    pool->n_lookups++;
    if (!from || (from->published && from->root == root))
        find_locked(pool, root, from, tokens, n, bring, out);
    pthread_mutex_unlock(&pool->lock);
}

void kvi_prefix_find(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *from,
                     const int32_t *tokens, size_t n, kvi_prefix_match *out)
{
    find(pool, root, from, tokens, n, 1, out);
}

void kvi_prefix_look(kvcsa_pool *pool, kvi_prefix_root *root, const int32_t *tokens, size_t n,
                     kvi_prefix_match *out)
{
    find(pool, root, NULL, tokens, n, 0, out);
}

void kvi_prefix_match_release(kvcsa_pool *pool, kvi_prefix_match *match)
{
    kvi_block *const blocks[] = {match->last, match->partial};

    kvi_blocks_release(pool, blocks, 2);
    *match = (kvi_prefix_match){0};
}

void kvi_prefix_touch(kvcsa_pool *pool, kvi_block *last, uint64_t from_depth)
{
    pthread_mutex_lock(&pool->lock);
    for (kvi_block *b = last; b && b->depth >= from_depth; b = b->parent) {
        if (b->published)
            kvi_evict_used(pool, b);
    }
    pthread_mutex_unlock(&pool->lock);
}

/* ------------------------------------------------------------------ publishing later */

/* The private blocks of a chain, from the first one on, linked by next_in_bucket, which only
 * published ones need. */
static kvi_block *link_private(kvi_block *last)
{
    kvi_block *first = NULL;

    /* (T1): in front of a published block all are */
    for (kvi_block *b = last; b && !b->published; b = b->parent) {
        b->next_in_bucket = first;
        first = b;
    }
    return first;
}

uint64_t kvi_prefix_publish(kvcsa_pool *pool, kvi_prefix_root *root, kvi_block *last)
{
    kvi_block *at = last; /* the tree's block for what has been passed; NULL = its root */
    kvi_block *block = NULL;
    int        known = 1; /* a block equal to the last one passed is in the tree */

    pthread_mutex_lock(&pool->lock);
    block = link_private(last);
    if (block)
        at = block->parent;
    for (kvi_block *next = NULL; block; block = next) {
        kvi_block *twin = NULL;

        next = block->next_in_bucket;
        block->next_in_bucket = NULL;
        known = known && !block->tainted;
        if (!known)
            continue; /* the links are to be taken back all the same */
        twin = kvi_prefix_lookup(pool, root, at, kvi_prefix_key(root, at, kvi_block_tokens(block)),
                                 kvi_block_tokens(block));
        /* behind a twin nothing can be published: the parent is not the one in the tree */
        if ((!twin || twin->out) && block->parent == at) {
            if (!twin)
                publish(pool, root, block);
            else
                (void)kvi_host_replace(pool, twin, block);
            twin = block->published ? block : NULL;
        }
        known = twin != NULL;
        at = known ? twin : at;
    }
    pthread_mutex_unlock(&pool->lock);
    return at ? at->depth + 1 : 0;
}

/* ------------------------------------------------------------------ pins */

void kvi_prefix_pin(kvcsa_pool *pool, kvi_block *block)
{
    pthread_mutex_lock(&pool->lock);
    if (block->published) { /* else nobody could find it to unpin it: (T6) */
        pool->n_pinned += block->pins == 0;
        block->pins++;
        kvi_block_hold(pool, block);
    }
    pthread_mutex_unlock(&pool->lock);
}

int kvi_prefix_unpin(kvcsa_pool *pool, kvi_block *block)
{
    int pinned = 0;

    pthread_mutex_lock(&pool->lock);
    pinned = block->pins > 0;
    if (pinned) {
        block->pins--;
        pool->n_pinned -= block->pins == 0;
        kvi_prefix_let_go(pool, block);
    }
    pthread_mutex_unlock(&pool->lock);
    return pinned;
}
