/* Operations on a pool and on its naive model: what a step does to both, and what must come out. */
#include "support/pool_model_int.h"

#include "pool/pool_int.h"

#include <string.h>

/* ------------------------------------------------------------------ classes, roots, promises */

static kvi_domain domain_of(int r)
{
    return (kvi_domain){.weights = 1,
                        .plan = (uint64_t)pm_root_class[r],
                        .salt = (uint64_t)r,
                        .version = KVI_DOMAIN_VERSION};
}

int pm_class_acquire(pool_model *m, int c)
{
    kvi_block_class *cls = NULL;
    kvcsa_status     st = KVCSA_OK;
    const int        known = pm_is_known_class(m, c);

    pm_fail_sometimes(m);
    st = kvi_pool_class_acquire(m->pool, &pm_shapes[c], &cls, NULL);
    WANT(st == (pm_stop_failing(m) ? KVCSA_ERR_NOMEM : KVCSA_OK));
    if (st != KVCSA_OK) {
        WANT(!cls && !known);
        return 0;
    }
    WANT(!known || cls == m->classes[c].cls);
    m->classes[c].cls = cls;
    m->classes[c].n_users++;
    return 0;
}

static int class_op(pool_model *m)
{
    const int c = (int)pm_choose(m, POOL_MODEL_CLASSES);

    if (m->classes[c].n_users == 0 || pm_choose(m, 3) == 0)
        return pm_class_acquire(m, c);
    /* a reservation is a user's */
    if (m->classes[c].n_users > 1 || m->classes[c].n_reserved == 0) {
        kvi_pool_class_release(m->pool, m->classes[c].cls);
        m->classes[c].n_users--;
    }
    return 0;
}

int pm_root_acquire(pool_model *m, int r)
{
    const kvi_domain domain = domain_of(r);
    const int        known = m->roots[r].refs > 0 || pm_has_published(m, r);
    kvi_prefix_root *root = NULL;
    kvcsa_status     st = KVCSA_OK;

    pm_fail_sometimes(m);
    st = kvi_prefix_root_acquire(m->pool, &domain, pm_shapes[pm_root_class[r]].block_tokens, &root,
                                 NULL);
    if (pm_stop_failing(m) && st != KVCSA_OK) {
        WANT(st == KVCSA_ERR_NOMEM && !root && !known);
        return 0;
    }
    WANT(st == KVCSA_OK && root);
    WANT(!known || root == m->roots[r].root);
    WANT(memcmp(kvi_prefix_root_domain(root), &domain, sizeof domain) == 0);
    m->roots[r].root = root;
    m->roots[r].refs++;
    return 0;
}

static int root_op(pool_model *m)
{
    const int        r = (int)pm_choose(m, POOL_MODEL_ROOTS);
    const kvi_domain domain = domain_of(r);
    kvi_prefix_root *root = NULL;

    switch (pm_choose(m, 3)) {
    case 0: return pm_root_acquire(m, r);
    case 1:
        root = kvi_prefix_root_find(m->pool, &domain);
        WANT(root == (m->roots[r].refs > 0 || pm_has_published(m, r) ? m->roots[r].root : NULL));
        m->roots[r].refs += root != NULL;
        return 0;
    default:
        if (m->roots[r].refs > 0) {
            kvi_prefix_root_release(m->pool, m->roots[r].root);
            m->roots[r].refs--;
        }
        return 0;
    }
}

/* ok: was it granted? */
static int reserve(pool_model *m, int c, uint64_t n, int *ok)
{
    const uint64_t wanted = n * pm_block_bytes(c) + pm_reserved_bytes(m);
    const int      fits = wanted <= m->budget && pm_least_used(m) <= m->budget - wanted;
    kvcsa_status   st = KVCSA_OK;

    pm_note_worth(m);
    st = kvi_pool_reserve(m->pool, m->classes[c].cls, n, NULL);
    WANT(st == (fits ? KVCSA_OK : KVCSA_ERR_FULL));
    *ok = fits;
    if (!fits) {
        m->n_full++;
        return 0; /* and nothing was evicted */
    }
    m->classes[c].n_reserved += n;
    return pm_follow_evictions(m, m->budget - wanted, KVCSA_REASON_BUDGET);
}

static int reserve_op(pool_model *m)
{
    const int c = (int)pm_choose(m, POOL_MODEL_CLASSES);
    uint64_t  n = pm_choose(m, 5);
    int       ok = 0;

    if (m->classes[c].n_users == 0)
        return 0;
    if (pm_choose(m, 2))
        return reserve(m, c, n, &ok);
    n = n < 2 && n < m->classes[c].n_reserved ? n : m->classes[c].n_reserved;
    kvi_pool_unreserve(m->pool, m->classes[c].cls, n);
    m->classes[c].n_reserved -= n;
    return 0;
}

/* ------------------------------------------------------------------ blocks */

static int new_record(const pool_model *m)
{
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        if (!m->blocks[i].block)
            return i;
    }
    return -1;
}

static void write_block(pool_model *m, int i)
{
    pool_model_block      *b = &m->blocks[i];
    const kvi_class_shape *shape = &pm_shapes[b->cls];

    b->mark = (uint8_t)pm_choose(m, 256);
    memset(kvi_block_index_part(b->block), b->mark, shape->index_bytes);
    memset(kvi_block_main_part(b->block), (uint8_t)~b->mark, shape->main_bytes);
    if (shape->block_tokens) {
        pm_choose_tokens(m, b->tokens, shape->block_tokens);
        memcpy(kvi_block_tokens(b->block), b->tokens, shape->block_tokens * sizeof *b->tokens);
    }
}

/* From the reservation of class c; a copy of `from`, if it is not -1, whose bytes the pool copies
 * or we write. *out: -1 = none. */
static int acquire(pool_model *m, int c, int from, int *out)
{
    const int    i = new_record(m);
    const int    instead = pm_choose(m, 2) == 1;
    kvi_block   *block = NULL;
    kvcsa_status st = KVCSA_OK;

    *out = -1;
    if (i < 0 || m->classes[c].n_users == 0 || m->classes[c].n_reserved == 0)
        return 0;
    pm_fail_sometimes(m);
    if (from < 0)
        st = kvi_block_acquire(m->pool, m->classes[c].cls, &block, NULL);
    else if (instead)
        st = kvi_block_acquire_instead(m->pool, m->blocks[from].block, &block, NULL);
    else
        st = kvi_block_acquire_copy(m->pool, m->blocks[from].block, &block, NULL);
    if (pm_stop_failing(m) && st != KVCSA_OK) {
        WANT(st == KVCSA_ERR_NOMEM && !block);
        return 0;
    }
    WANT(st == KVCSA_OK && block);
    m->n_acquired++;
    m->classes[c].n_reserved--;
    m->blocks[i] = (pool_model_block){
        .block = block, .state = KVI_BLOCK_OPEN, .cls = c, .root = -1, .parent = -1, .held = 1};
    *out = i;
    m->n_copied[pm_shapes[c].kind] += from >= 0;
    if (from < 0 || instead) {
        write_block(m, i);
        return 0;
    }
    m->blocks[i].mark = m->blocks[from].mark;
    memcpy(m->blocks[i].tokens, m->blocks[from].tokens, sizeof m->blocks[i].tokens);
    return 0;
}

static int acquire_op(pool_model *m)
{
    const int c = (int)pm_choose(m, POOL_MODEL_CLASSES);
    int       i = -1;

    return acquire(m, c, pm_choose(m, 2) ? pm_pick(m, PM_ANY_STATE, c) : -1, &i);
}

static int unacquire_op(pool_model *m)
{
    const int i = pm_pick(m, KVI_BLOCK_OPEN, -1);

    if (i < 0 || m->refs[i] != 1 || m->classes[m->blocks[i].cls].n_users == 0)
        return 0;
    kvi_block_unacquire(m->pool, m->blocks[i].block);
    m->blocks[i].held = 0;
    m->classes[m->blocks[i].cls].n_reserved++;
    pm_collect(m);
    return 0;
}

void pm_release_some(pool_model *m, int i, uint32_t n)
{
    for (; n > 0 && m->blocks[i].held > 0; n--) {
        kvi_block_release(m->pool, m->blocks[i].block);
        pm_let_go(m, i);
    }
}

/* A writer copies what others read. */
static int write_op(pool_model *m)
{
    const int i = pm_pick(m, KVI_BLOCK_OPEN, -1);
    int       copy = -1;

    if (i < 0)
        return 0;
    if (m->refs[i] == 1) {
        write_block(m, i);
        return 0;
    }
    TRY(acquire(m, m->blocks[i].cls, i, &copy));
    if (copy >= 0) {
        pm_release_some(m, i, 1);
        write_block(m, copy);
    }
    return 0;
}


static int hold_op(pool_model *m)
{
    const int i = pm_pick(m, PM_ANY_STATE, -1);

    if (i < 0)
        return 0;
    if (pm_choose(m, 5)) {
        pm_release_some(m, i, 1 + pm_choose(m, 3));
        return 0;
    }
    kvi_block_retain(m->pool, m->blocks[i].block);
    m->blocks[i].held++;
    return 0;
}

/* The same on several blocks at once. */
static int hold_many_op(pool_model *m)
{
    kvi_block *blocks[4] = {NULL};
    int        at[4];
    size_t     n_shared = 0;
    const int  retain = pm_choose(m, 3) == 0;

    for (size_t k = 0; k < 4; k++) {
        at[k] = pm_choose(m, 4) ? pm_pick(m, PM_ANY_STATE, -1) : -1;
        for (size_t j = 0; j < k; j++)
            at[k] = at[k] == at[j] ? -1 : at[k]; /* each once: we may hold it once only */
        blocks[k] = at[k] < 0 ? NULL : m->blocks[at[k]].block;
        n_shared += at[k] < 0 || m->refs[at[k]] > 1;
    }
    WANT(kvi_blocks_count_shared(m->pool, blocks, 4) == n_shared);
    if (retain)
        kvi_blocks_retain(m->pool, blocks, 4);
    else
        kvi_blocks_release(m->pool, blocks, 4);
    for (size_t k = 0; k < 4; k++) {
        if (at[k] < 0)
            continue;
        if (retain)
            m->blocks[at[k]].held++;
        else
            pm_let_go(m, at[k]);
    }
    return 0;
}

/* ------------------------------------------------------------------ sealing */

/* Pages for a stored window; 0 = none this time. */
static int choose_window(pool_model *m, int *at, kvi_block **pages)
{
    if (pm_choose(m, 4))
        return 0;
    for (int k = 0; k < POOL_MODEL_PAGES; k++) {
        at[k] = pm_choose(m, 4) ? pm_pick(m, KVI_BLOCK_OPEN, POOL_MODEL_CLASSES - 1) : -1;
        pages[k] = at[k] < 0 ? NULL : m->blocks[at[k]].block;
    }
    return POOL_MODEL_PAGES;
}

/* The checksums are the pool's or ours. */
static kvi_block *call_seal(pool_model *m, int r, const pool_model_block *b, int parent,
                            uint32_t flags, kvi_block *const *pages, size_t n_pages)
{
    const kvi_class_shape *shape = &pm_shapes[b->cls];
    kvi_block             *behind = parent < 0 ? NULL : m->blocks[parent].block;
    kvi_hash128            sums[2];

    if (b->mark & 1)
        return kvi_block_seal(m->pool, m->roots[r].root, b->block, behind, flags, pages, n_pages);
    sums[0] = kvi_hash128_of(kvi_block_index_part(b->block), shape->index_bytes, 0);
    sums[1] = kvi_hash128_of(kvi_block_main_part(b->block), shape->main_bytes, 0);
    return kvi_block_seal_with(m->pool, m->roots[r].root, b->block, behind, flags, sums, pages,
                               n_pages);
}

/* Block i behind `parent`, one reference of ours to which goes into it. */
static int seal(pool_model *m, int r, int i, int parent, uint32_t flags)
{
    pool_model_block *b = &m->blocks[i];
    int               at[POOL_MODEL_PAGES];
    kvi_block        *pages[POOL_MODEL_PAGES];
    const int         n_pages = choose_window(m, at, pages);
    int               open = flags == 0 && (parent < 0 || m->blocks[parent].published);
    const int         twin = open ? pm_find_child(m, r, parent, b->tokens) : -1;
    kvi_block        *sealed = NULL;
    int               hit = 0;

    pm_fail_sometimes(m); /* it cannot fail: the stored window may be lost, or it stays private */
    sealed = call_seal(m, r, b, parent, flags, pages, (size_t)n_pages);
    hit = pm_stop_failing(m);
    if (parent >= 0)
        m->blocks[parent].held--;
    if (twin >= 0) {
        WANT(sealed == m->blocks[twin].block);
        m->n_deduplicated++;
        b->held = 0;
        m->blocks[twin].held++;
        b = &m->blocks[twin];
        if (b->n_pages == 0 && b->block->window) { /* it had none */
            WANT(n_pages > 0);
            b->n_pages = n_pages;
            memcpy(b->pages, at, sizeof at);
        }
        WANT(hit || b->n_pages >= n_pages);
        pm_collect(m);
        return 0;
    }
    WANT(sealed == b->block);
    if (hit && m->pool->n_buckets == 0)
        open = 0; /* no memory for the very first table */
    b->state = KVI_BLOCK_SEALED;
    b->root = r;
    b->parent = parent;
    b->tainted = flags & KVI_SEAL_TAINTED ? 1 : 0;
    b->published = open ? 1 : 0;
    WANT(!open || pm_is_newest(m, i));
    WANT(n_pages == 0 || hit || b->block->window);
    b->n_pages = n_pages && b->block->window ? n_pages : 0;
    memcpy(b->pages, at, sizeof at);
    return 0;
}

/* A held sealed block of root r; -1 = none. */
static int pick_sealed(pool_model *m, int r)
{
    const int i = pm_pick(m, KVI_BLOCK_SEALED, pm_root_class[r]);

    return i >= 0 && m->blocks[i].root == r ? i : -1;
}

static uint32_t choose_flags(pool_model *m)
{
    static const uint32_t flags[] = {KVI_SEAL_TAINTED, KVI_SEAL_PRIVATE, KVI_SEAL_PRIVATE};
    const uint32_t        k = pm_choose(m, 20);

    return k < 3 ? flags[k] : 0;
}

static int seal_op(pool_model *m)
{
    const int r = (int)pm_choose(m, POOL_MODEL_ROOTS);
    const int i = pm_pick(m, KVI_BLOCK_OPEN, pm_root_class[r]);
    const int parent = pm_choose(m, 4) ? pick_sealed(m, r) : -1;

    if (i < 0 || m->refs[i] != 1 || m->roots[r].refs == 0)
        return 0;
    return seal(m, r, i, parent, choose_flags(m));
}

/* What a session does: one more block behind what it holds. */
static int grow_op(pool_model *m)
{
    const int r = (int)pm_choose(m, POOL_MODEL_ROOTS);
    const int parent = pm_choose(m, 4) ? pick_sealed(m, r) : -1;
    const int c = pm_root_class[r];
    int       i = -1;
    int       ok = 0;

    if (m->classes[c].n_users == 0 || m->roots[r].refs == 0)
        return 0;
    if (parent >= 0 && pm_choose(m, 2)) { /* and keeps what is in front for itself */
        kvi_block_retain(m->pool, m->blocks[parent].block);
        m->blocks[parent].held++;
    }
    TRY(reserve(m, c, 1, &ok));
    if (ok)
        TRY(acquire(m, c, -1, &i));
    return i < 0 ? 0 : seal(m, r, i, parent, choose_flags(m));
}

/* ------------------------------------------------------------------ prefixes */

enum { MAX_SEARCH = 64 };

/* Tokens to search behind `from`: those of a chain, perhaps with another one somewhere. */
static size_t choose_search(pool_model *m, int r, int from, int32_t *tokens)
{
    const size_t bt = pm_shapes[pm_root_class[r]].block_tokens;
    const size_t front = from < 0 ? 0 : (size_t)pm_depth_of(m, from) + 1;
    int          i = (int)pm_choose(m, POOL_MODEL_BLOCKS);
    size_t       n = 1 + pm_choose(m, MAX_SEARCH);

    pm_choose_tokens(m, tokens, MAX_SEARCH);
    for (; m->blocks[i].block && m->blocks[i].root == r && i != from; i = m->blocks[i].parent) {
        const size_t at = (size_t)pm_depth_of(m, i) - front; /* may wrap */

        if (at < MAX_SEARCH / bt)
            memcpy(tokens + at * bt, m->blocks[i].tokens, bt * sizeof *tokens);
        if (m->blocks[i].parent < 0)
            break;
    }
    if (pm_choose(m, 3) == 0)
        tokens[pm_choose(m, MAX_SEARCH)] ^= 1;
    return n > MAX_SEARCH ? MAX_SEARCH : n;
}

typedef struct expected_match {
    int      last;
    size_t   n_whole, n_part; /* tokens */
    uint32_t reason;
} expected_match;

static expected_match search(const pool_model *m, int r, int from, const int32_t *tokens, size_t n)
{
    const size_t   bt = pm_shapes[pm_root_class[r]].block_tokens;
    expected_match e = {from, 0, 0, KVCSA_REASON_NONE};
    int            child = -1;
    int            n_children = 0;

    if (from >= 0 && !m->blocks[from].published)
        return (expected_match){from, 0, 0, KVCSA_REASON_PRIVATE};
    while (n - e.n_whole >= bt && (child = pm_find_child(m, r, e.last, tokens + e.n_whole)) >= 0) {
        e.last = child;
        e.n_whole += bt;
    }
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        const pool_model_block *b = &m->blocks[i];
        size_t                  k = 0;

        if (!b->block || !b->published || b->root != r || b->parent != e.last)
            continue;
        n_children++;
        while (k < bt && e.n_whole + k < n && b->tokens[k] == tokens[e.n_whole + k])
            k++;
        e.n_part = k > e.n_part ? k : e.n_part;
    }
    if (e.n_whole + e.n_part < n)
        e.reason = from < 0 && e.n_whole + e.n_part == 0 ? KVCSA_REASON_UNKNOWN
                   : n_children > 0                      ? KVCSA_REASON_DIVERGED
                                                         : KVCSA_REASON_ENDED;
    return e;
}

static int index_of(const pool_model *m, const kvi_block *block)
{
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        if (block && m->blocks[i].block == block)
            return i;
    }
    return -1;
}

static int find_op(pool_model *m)
{
    const int        r = (int)pm_choose(m, POOL_MODEL_ROOTS);
    const int        from = pm_choose(m, 3) ? -1 : pick_sealed(m, r);
    const size_t     bt = pm_shapes[pm_root_class[r]].block_tokens;
    const uint64_t   n_probes = m->pool->n_probes;
    int32_t          tokens[MAX_SEARCH];
    size_t           n = 0;
    expected_match   want;
    kvi_prefix_match got;
    int              part = -1;

    if (m->roots[r].refs == 0)
        return 0;
    n = choose_search(m, r, from, tokens);
    want = search(m, r, from, tokens, n);
    kvi_prefix_find(m->pool, m->roots[r].root, from < 0 ? NULL : m->blocks[from].block, tokens, n,
                    &got);
    m->n_lookups++;
    WANT(got.n_tokens == want.n_whole + want.n_part);
    WANT(got.reason == want.reason);
    WANT(got.last == (want.last == from ? NULL : m->blocks[want.last].block));
    WANT(!got.partial == !want.n_part);
    WANT(m->pool->n_probes - n_probes <= want.n_whole / bt + 1);
    if ((part = index_of(m, got.partial)) >= 0) {
        WANT(m->blocks[part].parent == want.last && m->blocks[part].published);
        WANT(memcmp(m->blocks[part].tokens, tokens + want.n_whole,
                    want.n_part * sizeof *tokens) == 0);
        m->blocks[part].held++;
    }
    if (want.last != from)
        m->blocks[want.last].held++;
    m->n_found += got.n_tokens > 0;
    TRY(pm_compare(m)); /* with what the match retains */
    if (pm_choose(m, 2)) {
        kvi_prefix_match_release(m->pool, &got);
        if (want.last != from)
            pm_let_go(m, want.last);
        if (part >= 0)
            pm_let_go(m, part);
    } /* else we keep them */
    return 0;
}

static int touch_op(pool_model *m)
{
    int            i = pm_pick(m, KVI_BLOCK_SEALED, -1);
    int            newest = -1;
    const uint64_t from_depth = pm_choose(m, 4);

    if (i < 0)
        return 0;
    kvi_prefix_touch(m->pool, m->blocks[i].block, from_depth);
    for (; i >= 0 && (uint64_t)pm_depth_of(m, i) >= from_depth; i = m->blocks[i].parent) {
        m->blocks[i].n_hits += m->blocks[i].published;
        newest = m->blocks[i].published ? i : newest;
    }
    WANT(newest < 0 || pm_is_newest(m, newest));
    return 0;
}

typedef struct published_chain {
    int at;   /* the block of the tree that the chain has reached; -1 = the root */
    int open; /* the tree knows all of it so far */
} published_chain;

/* From the first of the chain on, as far as nothing is in the way. */
static published_chain publish_chain(pool_model *m, int i)
{
    pool_model_block *b = &m->blocks[i];
    published_chain   p = {-1, 1};
    int               twin = -1;

    if (b->parent >= 0)
        p = publish_chain(m, b->parent);
    p.open = p.open && !b->tainted;
    if (!p.open)
        return p;
    twin = pm_find_child(m, b->root, p.at, b->tokens);
    if (twin < 0 && b->parent == p.at) {
        b->published = 1;
        b->n_hits = 0;
        twin = i;
    }
    p.open = twin >= 0;
    p.at = twin >= 0 ? twin : p.at;
    return p;
}

static int publish_op(pool_model *m)
{
    const int       r = (int)pm_choose(m, POOL_MODEL_ROOTS);
    const int       i = pick_sealed(m, r);
    uint64_t        n = 0;
    published_chain p = {-1, 0};

    if (i < 0 || m->roots[r].refs == 0)
        return 0;
    pm_fail_sometimes(m);
    n = kvi_prefix_publish(m->pool, m->roots[r].root, m->blocks[i].block);
    if (!pm_stop_failing(m) || m->pool->n_buckets > 0) /* else there is no table */
        p = publish_chain(m, i);
    WANT(n == (p.at < 0 ? 0 : (uint64_t)pm_depth_of(m, p.at) + 1));
    return 0;
}

static int pin_op(pool_model *m)
{
    const int i = pm_pick(m, KVI_BLOCK_SEALED, -1);

    if (i < 0 || !m->blocks[i].published)
        return 0;
    if (pm_choose(m, 2)) {
        kvi_prefix_pin(m->pool, m->blocks[i].block);
        m->blocks[i].pins++;
    } else {
        WANT(kvi_prefix_unpin(m->pool, m->blocks[i].block) == (m->blocks[i].pins > 0));
        if (m->blocks[i].pins > 0) { /* we have its reference, and drop it */
            m->blocks[i].pins--;
            m->blocks[i].held++;
            pm_let_go(m, i);
        }
    }
    return 0;
}

static uint64_t unpublish(pool_model *m, int i)
{
    m->blocks[i].published = 0;
    m->blocks[i].pins = 0;
    return 1;
}

/* Is i behind `top` (-1: of root r)? */
static int is_below(const pool_model *m, int i, int top, int r)
{
    if (m->blocks[i].root != r && r >= 0)
        return 0;
    while (i >= 0 && i != top)
        i = m->blocks[i].parent;
    return i == top;
}

static int forget_op(pool_model *m)
{
    const int      r = (int)pm_choose(m, POOL_MODEL_ROOTS + 1) - 1; /* -1 = all roots */
    int            top = r >= 0 && pm_choose(m, 8) ? pick_sealed(m, r) : -1;
    const uint64_t used = pm_used_bytes(m);
    uint64_t       freed = 0;
    uint64_t       n = 0;

    if (r >= 0 && m->roots[r].refs == 0)
        return 0;
    if (top < 0 && pm_choose(m, 32)) /* all goes: not so often */
        return 0;
    freed = kvi_prefix_forget(m->pool, r < 0 ? NULL : m->roots[r].root,
                              top < 0 ? NULL : m->blocks[top].block);
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        if (m->blocks[i].block && m->blocks[i].published && i != top && is_below(m, i, top, r))
            n += unpublish(m, i);
    }
    /* a private one is in nobody's way */
    for (; top >= 0 && m->blocks[top].published && !pm_has_published_child(m, top);
         top = m->blocks[top].parent)
        n += unpublish(m, top);
    pm_collect(m);
    WANT(freed == used - pm_used_bytes(m));
    WANT(m->n_traced[KVCSA_REASON_FORGOTTEN] == n);
    return 0;
}

static int erase_op(pool_model *m)
{
    const int last = pm_pick(m, KVI_BLOCK_SEALED, -1);

    if (last < 0)
        return 0;
    kvi_prefix_erase(m->pool, m->blocks[last].block);
    /* one more holder than the tree is the one behind it, or the caller */
    for (int i = last; i >= 0 && m->refs[i] - m->blocks[i].published == 1;
         i = m->blocks[i].parent)
        m->n_erased += m->blocks[i].published ? unpublish(m, i) : 0;
    for (int i = last; i >= 0; i = m->blocks[i].parent)
        m->blocks[i].secure = 1;
    pm_collect(m);
    TRY(pm_compare(m));
    pm_release_some(m, last, 1);
    return 0;
}

static int window_op(pool_model *m)
{
    int            i = pm_pick(m, KVI_BLOCK_SEALED, -1);
    const uint64_t from_depth = pm_choose(m, 4);
    kvi_block     *pages[POOL_MODEL_PAGES] = {NULL};
    uint64_t       n = 0;

    if (i < 0)
        return 0;
    n = kvi_block_stored_window(m->pool, m->blocks[i].block, from_depth, pages, POOL_MODEL_PAGES);
    for (; i >= 0 && (uint64_t)pm_depth_of(m, i) >= from_depth; i = m->blocks[i].parent) {
        if (m->blocks[i].n_pages > 0)
            break;
    }
    if (i < 0 || (uint64_t)pm_depth_of(m, i) < from_depth) {
        WANT(n == 0);
        return 0;
    }
    WANT(n == (uint64_t)(pm_depth_of(m, i) + 1) * pm_shapes[m->blocks[i].cls].block_tokens);
    for (int k = 0; k < POOL_MODEL_PAGES; k++) {
        const int p = m->blocks[i].pages[k];

        WANT(pages[k] == (p < 0 ? NULL : m->blocks[p].block));
        if (p >= 0)
            m->blocks[p].held++;
    }
    return 0;
}

/* ------------------------------------------------------------------ the budget */

/* Some blocks for others. What is dropped is ours; the same one twice, if we hold it twice. */
static int trade_op(pool_model *m)
{
    kvi_block      *drop[3];
    int             at[3];
    kvi_reservation want[2];
    uint64_t        wanted = pm_reserved_bytes(m);
    uint64_t        least = 0;
    int             fits = 0;

    pm_note_worth(m);
    for (int k = 0; k < 2; k++) {
        const int c = (int)pm_choose(m, POOL_MODEL_CLASSES);

        want[k] = (kvi_reservation){m->classes[c].n_users ? m->classes[c].cls : NULL, 0};
        if (want[k].cls)
            want[k].n_blocks = pm_choose(m, 4);
        wanted += want[k].n_blocks * pm_block_bytes(c);
    }
    for (int k = 0; k < 3; k++) {
        at[k] = pm_choose(m, 3) ? pm_pick(m, PM_ANY_STATE, -1) : -1;
        drop[k] = at[k] < 0 ? NULL : m->blocks[at[k]].block;
        if (at[k] >= 0)
            m->blocks[at[k]].held--;
    }
    pm_count_refs(m);
    least = pm_least_used(m);
    fits = wanted <= m->budget && least <= m->budget - wanted;
    WANT(kvi_pool_trade(m->pool, want, 2, drop, 3, NULL) == (fits ? KVCSA_OK : KVCSA_ERR_FULL));
    for (int k = 0; k < 3; k++) {
        if (at[k] >= 0)
            m->blocks[at[k]].held++;
    }
    pm_count_refs(m);
    for (int k = 0; k < 3 && fits; k++) {
        if (at[k] >= 0)
            pm_let_go(m, at[k]);
    }
    if (!fits)
        return 0;
    for (int k = 0; k < 2; k++) {
        for (int c = 0; c < POOL_MODEL_CLASSES; c++) {
            if (want[k].cls && want[k].cls == m->classes[c].cls && m->classes[c].n_users)
                m->classes[c].n_reserved += want[k].n_blocks;
        }
    }
    return pm_follow_evictions(m, m->budget - wanted, KVCSA_REASON_BUDGET);
}

static int resize_op(pool_model *m)
{
    const uint64_t most = pm_used_bytes(m) + pm_reserved_bytes(m) + pm_choose(m, 4) * 150;
    const uint64_t cut = pm_choose(m, 4) * 300;
    const uint64_t small = most > cut ? most - cut : 1;
    const int      back = m->budget != m->params.budget || pm_choose(m, 4);
    const uint64_t budget = back ? m->params.budget : small;
    const uint64_t wanted = budget ? budget : UINT64_MAX;
    const uint64_t reserved = pm_reserved_bytes(m);
    const int      fits = reserved <= wanted && pm_least_used(m) <= wanted - reserved;

    pm_note_worth(m);
    WANT(kvi_pool_resize(m->pool, budget, NULL) == (fits ? KVCSA_OK : KVCSA_ERR_FULL));
    if (!fits)
        return 0;
    m->budget = wanted;
    return pm_follow_evictions(m, wanted - reserved, KVCSA_REASON_RESIZE);
}

static int trim_op(pool_model *m)
{
    const uint64_t used = pm_used_bytes(m);
    const uint64_t limit = pm_choose(m, 12) ? used - used / 8 : pm_choose(m, 2) * 1000;
    const size_t   before = m->fa.n_bytes;
    uint64_t       freed = 0;

    pm_note_worth(m);
    kvi_pool_trim(m->pool, limit, &freed);
    WANT(freed == before - m->fa.n_bytes);
    TRY(pm_follow_evictions(m, limit, KVCSA_REASON_TRIM));
    for (int c = 0; c < POOL_MODEL_CLASSES; c++) {
        if (m->classes[c].n_users && pm_n_live_of(m, c) == 0)
            WANT(!m->classes[c].cls->slabs);
    }
    return 0;
}

/* ------------------------------------------------------------------ all of them */

int pm_run_one(pool_model *m)
{
    switch (pm_choose(m, 60)) {
    case 0: return class_op(m);
    case 1: return root_op(m);
    case 2:
    case 3:
    case 4: return reserve_op(m);
    case 5:
    case 6:
    case 7: return acquire_op(m);
    case 8: return unacquire_op(m);
    case 9: return write_op(m);
    case 10:
    case 11:
    case 12: return hold_op(m);
    case 13: return hold_many_op(m);
    case 14:
    case 15: return seal_op(m);
    case 16:
    case 17:
    case 18:
    case 19: return find_op(m);
    case 20:
    case 21: return touch_op(m);
    case 22: return publish_op(m);
    case 23: return pin_op(m);
    case 24: return forget_op(m);
    case 25: return erase_op(m);
    case 26: return window_op(m);
    case 27: return resize_op(m);
    case 28: return trim_op(m);
    case 29: return trade_op(m);
    case 30:
    case 31: return reserve_op(m);
    default: return pm_choose(m, 3) ? grow_op(m) : hold_op(m);
    }
}
