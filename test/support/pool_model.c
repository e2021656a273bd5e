/* The naive model of the pool: what its arrays say, eviction, comparison, and a run. */
#include "support/pool_model_int.h"

#include "pool/pool_int.h"

#include <stdio.h>
#include <string.h>

const kvi_class_shape pm_shapes[POOL_MODEL_CLASSES] = {
    {KVI_CLASS_CACHE, 40, 100, 4}, {KVI_CLASS_CACHE, 0, 130, 8}, {KVI_CLASS_WINDOW, 0, 90, 0}};
const int pm_root_class[POOL_MODEL_ROOTS] = {0, 0, 1};

int pm_blame(pool_model *m, const char *file, int line, const char *what)
{
    snprintf(m->fault, sizeof m->fault, "step %llu, %s:%d: not so: %s",
             (unsigned long long)m->n_steps, file, line, what);
    return 1;
}

uint32_t pm_choose(pool_model *m, uint32_t n)
{
    return m->params.below(m->params.user, n);
}

uint64_t pm_block_bytes(int c)
{
    return (uint64_t)pm_shapes[c].index_bytes + pm_shapes[c].main_bytes;
}

/* ------------------------------------------------------------------ what the arrays say */

uint64_t pm_used_bytes(const pool_model *m)
{
    uint64_t used = 0;

    for (int i = 0; i < POOL_MODEL_BLOCKS; i++)
        used += m->blocks[i].block ? pm_block_bytes(m->blocks[i].cls) : 0;
    return used;
}

uint64_t pm_reserved_bytes(const pool_model *m)
{
    uint64_t reserved = 0;

    for (int c = 0; c < POOL_MODEL_CLASSES; c++)
        reserved += m->classes[c].n_reserved * pm_block_bytes(c);
    return reserved;
}

void pm_count_refs(pool_model *m)
{
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        const pool_model_block *b = &m->blocks[i];

        m->refs[i] = b->block ? b->held + b->published + b->pins : 0;
    }
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        const pool_model_block *b = &m->blocks[i];

        if (b->block && b->parent >= 0)
            m->refs[b->parent]++;
        for (int k = 0; b->block && k < b->n_pages; k++) {
            if (b->pages[k] >= 0)
                m->refs[b->pages[k]]++;
        }
    }
}

/* Blocks that nobody names are free, and what only they named, too. */
void pm_collect(pool_model *m)
{
    int found = 1;

    while (found) {
        found = 0;
        pm_count_refs(m);
        for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
            if (m->blocks[i].block && m->refs[i] == 0) {
                m->blocks[i].block = NULL;
                m->n_released++;
                found = 1;
            }
        }
    }
}

/* The last holder of an erased session's block takes it out of the tree; what it held in front is
 * his then. */
void pm_let_go(pool_model *m, int i)
{
    while (i >= 0) {
        pool_model_block *b = &m->blocks[i];
        const int         parent = b->parent;

        pm_count_refs(m);
        b->held--;
        if (b->secure && b->published && m->refs[i] == 2 && b->pins == 0) {
            b->published = 0;
            m->n_erased++;
            m->refs[i]--;
        }
        if (m->refs[i] > 1)
            break;
        if (parent >= 0)
            m->blocks[parent].held++;
        pm_collect(m);
        i = parent;
    }
    pm_collect(m);
}

int pm_depth_of(const pool_model *m, int i)
{
    int depth = 0;

    while ((i = m->blocks[i].parent) >= 0)
        depth++;
    return depth;
}

int pm_n_live_of(const pool_model *m, int c)
{
    int n = 0;

    for (int i = 0; i < POOL_MODEL_BLOCKS; i++)
        n += m->blocks[i].block && m->blocks[i].cls == c;
    return n;
}

int pm_is_known_class(const pool_model *m, int c)
{
    return m->classes[c].n_users > 0 || pm_n_live_of(m, c) > 0;
}

int pm_has_published(const pool_model *m, int r)
{
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        if (m->blocks[i].block && m->blocks[i].published && m->blocks[i].root == r)
            return 1;
    }
    return 0;
}

/* The published block behind `parent` with these tokens; -1 = none. */
int pm_find_child(const pool_model *m, int r, int parent, const int32_t *tokens)
{
    const size_t n = pm_shapes[pm_root_class[r]].block_tokens;

    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        const pool_model_block *b = &m->blocks[i];

        if (b->block && b->published && b->root == r && b->parent == parent &&
            memcmp(b->tokens, tokens, n * sizeof *tokens) == 0)
            return i;
    }
    return -1;
}

int pm_has_published_child(const pool_model *m, int parent)
{
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        if (m->blocks[i].block && m->blocks[i].published && m->blocks[i].parent == parent)
            return 1;
    }
    return 0;
}

/* ------------------------------------------------------------------ choices */

/* A block of ours in this state, of class c (-1 = any); -1 = none. */
int pm_pick(pool_model *m, int state, int c)
{
    const int start = (int)pm_choose(m, POOL_MODEL_BLOCKS);

    for (int k = 0; k < POOL_MODEL_BLOCKS; k++) {
        const int               i = (start + k) % POOL_MODEL_BLOCKS;
        const pool_model_block *b = &m->blocks[i];

        if (b->block && b->held > 0 && (state == PM_ANY_STATE || b->state == state) &&
            (c < 0 || b->cls == c))
            return i;
    }
    return -1;
}

/* Tokens of few kinds, so that prefixes meet. */
void pm_choose_tokens(pool_model *m, int32_t *tokens, size_t n)
{
    static const uint32_t masks[] = {0, 1, 0x18, 0xFF};

    for (size_t i = 0; i < n; i += POOL_MODEL_TOKENS) {
        const uint32_t bits = pm_choose(m, 256) & masks[pm_choose(m, 4)];

        for (size_t k = i; k < n && k < i + POOL_MODEL_TOKENS; k++)
            tokens[k] = 100 + (int32_t)(bits >> (k - i) & 1);
    }
}

void pm_fail_sometimes(pool_model *m)
{
    const uint32_t n = pm_choose(m, 12);

    fault_alloc_fail_at(&m->fa, n < 3 ? n : 0);
}

/* Did an allocation fail since then? */
int pm_stop_failing(pool_model *m)
{
    const int hit = fault_alloc_hit(&m->fa);

    fault_alloc_fail_at(&m->fa, 0);
    m->n_failed += (uint64_t)hit;
    return hit;
}

/* ------------------------------------------------------------------ eviction */

/* How the pool values its blocks now. */
void pm_note_worth(pool_model *m)
{
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        const kvi_block *b = m->blocks[i].block;

        m->worth[i] = b && m->params.evict == KVCSA_EVICT_COST ? b->worth : 0;
        m->last_used[i] = b ? b->last_used : 0;
    }
}

/* Of the published ones i was used last. */
int pm_is_newest(const pool_model *m, int i)
{
    for (int k = 0; k < POOL_MODEL_BLOCKS; k++) {
        const kvi_block *b = m->blocks[k].block;

        if (b && k != i && m->blocks[k].published && b->last_used >= m->blocks[i].block->last_used)
            return 0;
    }
    return 1;
}

static int goes_first(const pool_model *m, int a, int b)
{
    return m->worth[a] < m->worth[b] ||
           (m->worth[a] <= m->worth[b] && m->last_used[a] < m->last_used[b]);
}

typedef struct known_blocks { /* what the pool's tree holds */
    size_t           n;
    const kvi_block *at[POOL_MODEL_BLOCKS];
} known_blocks;

static void walk_tree(known_blocks *known, const kvi_block *first)
{
    for (const kvi_block *b = first; b && known->n < POOL_MODEL_BLOCKS; b = b->next_sibling) {
        known->at[known->n++] = b;
        walk_tree(known, b->first_child);
    }
}

static known_blocks list_tree(const pool_model *m)
{
    known_blocks known = {0};

    for (const kvi_prefix_root *r = m->pool->roots; r; r = r->next)
        walk_tree(&known, r->first_child);
    return known;
}

static int is_listed(const known_blocks *known, const kvi_block *block)
{
    for (size_t i = 0; i < known->n; i++) {
        if (known->at[i] == block)
            return 1;
    }
    return 0;
}

static int is_evictable(const pool_model *m, int i)
{
    return m->blocks[i].block && m->blocks[i].published && m->refs[i] == 1;
}

/* The pool has evicted until no more than `limit` is used: each time the block of least worth. */
int pm_follow_evictions(pool_model *m, uint64_t limit, uint32_t reason)
{
    const known_blocks known = list_tree(m);
    uint64_t           n = 0;

    while (pm_used_bytes(m) > limit) {
        int worst = -1;

        for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
            if (is_evictable(m, i) && (worst < 0 || goes_first(m, i, worst)))
                worst = i;
        }
        if (worst < 0)
            break;
        WANT(!is_listed(&known, m->blocks[worst].block));
        m->blocks[worst].published = 0;
        m->n_evicted++;
        n++;
        pm_collect(m);
    }
    WANT(m->n_traced[reason] == n);
    return 0;
}

/* used_bytes if all that can go went */
uint64_t pm_least_used(pool_model *m)
{
    const uint64_t n_released = m->n_released;
    uint64_t       least = 0;
    int            found = 1;

    memcpy(m->spare, m->blocks, sizeof m->blocks);
    while (found) {
        found = 0;
        pm_collect(m);
        for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
            if (is_evictable(m, i)) {
                m->blocks[i].published = 0;
                found = 1;
            }
        }
    }
    least = pm_used_bytes(m);
    memcpy(m->blocks, m->spare, sizeof m->blocks);
    m->n_released = n_released;
    pm_count_refs(m);
    return least;
}

/* ------------------------------------------------------------------ comparison */

static int is_all(const uint8_t *p, size_t n, uint8_t value)
{
    /* each byte equals the one before it */
    return n == 0 || (p[0] == value && memcmp(p, p + 1, n - 1) == 0);
}

static int compare_block(pool_model *m, int i)
{
    const pool_model_block *b = &m->blocks[i];
    const kvi_class_shape  *shape = &pm_shapes[b->cls];

    WANT(kvi_block_state(b->block) == b->state);
    WANT(b->block->refs == m->refs[i]);
    WANT(b->block->pins == b->pins);
    WANT(kvi_block_is_shared(m->pool, b->block) == (m->refs[i] > 1));
    WANT(kvi_block_is_writable(m->pool, b->block, 1) == (b->state == KVI_BLOCK_OPEN));
    WANT(kvi_block_is_writable(m->pool, b->block, 0) ==
         (b->state == KVI_BLOCK_OPEN && m->refs[i] == 1));
    WANT(is_all(kvi_block_index_part(b->block), shape->index_bytes, b->mark));
    WANT(is_all(kvi_block_main_part(b->block), shape->main_bytes, (uint8_t)~b->mark));
    if (shape->block_tokens)
        WANT(memcmp(kvi_block_tokens(b->block), b->tokens,
                    shape->block_tokens * sizeof *b->tokens) == 0);
    if (b->state != KVI_BLOCK_SEALED)
        return 0;
    WANT(kvi_block_parent(b->block) == (b->parent < 0 ? NULL : m->blocks[b->parent].block));
    WANT(kvi_block_depth(b->block) == (uint64_t)pm_depth_of(m, i));
    WANT(kvi_block_is_tainted(b->block) == b->tainted);
    WANT(kvi_block_is_published(m->pool, b->block) == b->published);
    if (b->published)
        WANT(b->block->n_hits == b->n_hits);
    return 0;
}

/* The tree holds the published blocks and no other. */
static int compare_tree(pool_model *m, uint64_t n_published)
{
    const known_blocks known = list_tree(m);

    WANT(known.n == n_published);
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        if (m->blocks[i].block && m->blocks[i].published)
            WANT(is_listed(&known, m->blocks[i].block));
    }
    return 0;
}

static int compare_stats(pool_model *m, const kvcsa_pool_stats *s)
{
    uint64_t n_in[3] = {0};
    uint64_t n_pages = 0, n_published = 0, n_pinned = 0, window_bytes = 0;

    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        const pool_model_block *b = &m->blocks[i];

        if (!b->block)
            continue;
        if (pm_shapes[b->cls].kind == KVI_CLASS_WINDOW) {
            n_pages++;
            window_bytes += pm_block_bytes(b->cls);
        } else {
            n_in[b->state]++;
        }
        n_published += b->published;
        n_pinned += b->pins > 0;
    }
    WANT(s->budget_bytes == m->budget);
    WANT(s->used_bytes == pm_used_bytes(m));
    WANT(s->reserved_bytes == pm_reserved_bytes(m));
    WANT(s->window_bytes == window_bytes);
    WANT(s->used_bytes + s->reserved_bytes <= s->budget_bytes);
    WANT(s->n_open_blocks == n_in[KVI_BLOCK_OPEN]);
    WANT(s->n_sealed_blocks == n_in[KVI_BLOCK_SEALED]);
    WANT(s->n_window_pages == n_pages);
    WANT(s->n_published_blocks == n_published);
    WANT(s->n_pinned_blocks == n_pinned);
    WANT(s->n_acquired == m->n_acquired);
    WANT(s->n_released == m->n_released);
    WANT(s->n_copied_blocks == m->n_copied[KVI_CLASS_CACHE]);
    WANT(s->n_copied_pages == m->n_copied[KVI_CLASS_WINDOW]);
    WANT(s->n_evicted_blocks == m->n_evicted);
    WANT(s->n_lookups == m->n_lookups);
    return compare_tree(m, n_published);
}

int pm_compare(pool_model *m)
{
    kvcsa_pool_stats s;
    kvcsa_error      err;

    if (kvi_pool_check(m->pool, &err) != KVCSA_OK)
        return pm_blame(m, __FILE__, __LINE__, err.text);
    pm_count_refs(m);
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        if (m->blocks[i].block)
            TRY(compare_block(m, i));
    }
    WANT(kvi_pool_get_stats(m->pool, &s, &err) == KVCSA_OK);
    TRY(compare_stats(m, &s));
    WANT(s.evictable_bytes == s.used_bytes - pm_least_used(m));
    WANT(m->fa.n_bad == 0);
    return 0;
}

/* ------------------------------------------------------------------ a run */

static kvi_hash128 weak_hash(const void *data, size_t n_bytes, uint64_t with)
{
    return (kvi_hash128){.lo = kvi_hash64(data, n_bytes, with) & 1, .hi = 5};
}

static void note_event(void *user, const kvcsa_trace_event *event)
{
    pool_model *m = user;

    if (event->kind == KVCSA_TRACE_EVICT && event->reason < 32)
        m->n_traced[event->reason]++;
}

int pool_model_init(pool_model *m, const pool_model_params *params)
{
    const kvcsa_trace trace = {note_event, m};
    kvcsa_pool_params p = {.struct_size = sizeof p,
                           .budget_bytes = params->budget,
                           .n_threads = 1,
                           .flags = params->flags,
                           .trace = &trace,
                           .evict = params->evict};
    kvcsa_error       err;

    memset(m, 0, sizeof *m);
    m->params = *params;
    m->budget = params->budget ? params->budget : UINT64_MAX;
    fault_alloc_init(&m->fa);
    p.allocator = &m->fa.hook;
    if (kvi_pool_create(&p, &m->pool, &err) != KVCSA_OK)
        return pm_blame(m, __FILE__, __LINE__, err.text);
    if (params->weak_hash)
        kvi_pool_set_hash(m->pool, weak_hash);
    for (int c = 0; c < POOL_MODEL_CLASSES; c++)
        TRY(pm_class_acquire(m, c));
    for (int r = 0; r < POOL_MODEL_ROOTS; r++)
        TRY(pm_root_acquire(m, r));
    return 0;
}

int pool_model_step(pool_model *m)
{
    m->n_steps++;
    m->n_erased = 0;
    memset(m->n_traced, 0, sizeof m->n_traced);
    TRY(pm_run_one(m));
    WANT(m->n_traced[KVCSA_REASON_ERASED] == m->n_erased);
    return pm_compare(m);
}

int pool_model_finish(pool_model *m)
{
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++) {
        if (m->blocks[i].block)
            pm_release_some(m, i, m->blocks[i].held);
    }
    kvi_prefix_forget(m->pool, NULL, NULL);
    for (int i = 0; i < POOL_MODEL_BLOCKS; i++)
        m->blocks[i].published = 0, m->blocks[i].pins = 0;
    pm_collect(m);
    TRY(pm_compare(m));
    WANT(m->pool->used_bytes == 0);
    for (int r = 0; r < POOL_MODEL_ROOTS; r++) {
        for (; m->roots[r].refs > 0; m->roots[r].refs--)
            kvi_prefix_root_release(m->pool, m->roots[r].root);
    }
    for (int c = 0; c < POOL_MODEL_CLASSES; c++) {
        if (m->classes[c].n_reserved)
            kvi_pool_unreserve(m->pool, m->classes[c].cls, m->classes[c].n_reserved);
        m->classes[c].n_reserved = 0;
        for (; m->classes[c].n_users > 0; m->classes[c].n_users--)
            kvi_pool_class_release(m->pool, m->classes[c].cls);
    }
    TRY(pm_compare(m));
    WANT(!m->pool->roots && !m->pool->classes);
    WANT(m->pool->slab_bytes == 0 && m->pool->record_bytes == 0);
    kvi_pool_release(m->pool);
    m->pool = NULL;
    WANT(fault_alloc_is_clean(&m->fa));
    return 0;
}
