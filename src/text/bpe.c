/* Byte-pair merges.
 *
 * The pieces are a linked list of symbols over the bytes; a heap holds (rank, position) of every
 * pair that can be merged, so that the lowest rank comes first and of equal ranks the leftmost. A
 * pair whose symbols have changed meanwhile stays in the heap and is passed over when it surfaces.
 * A piece of n bytes costs O(n log n).
 */
#include "text/tokenizer_int.h"

#include "base/checked.h"
#include "base/status.h"

#include <string.h>

#define NO_RANK   UINT32_MAX
#define NO_SYMBOL UINT32_MAX

typedef struct symbol {
    uint32_t id;
    uint32_t prev; /* NO_SYMBOL = none */
    uint32_t next;
    uint32_t rank; /* of the pair (this, next); NO_RANK = cannot be merged, or swallowed by its left
                      neighbour */
} symbol;

/* ------------------------------------------------------------------ table */

/* Stable counting sort of `order` (n indices into merges) by the left or right id into `sorted`;
 * count u32 [n_ids + 1]. */
static void sort_by_id(const kvi_merge *merges, uint32_t n, uint32_t n_ids, bool by_left,
                       const uint32_t *order, uint32_t *sorted, uint32_t *count)
{
    memset(count, 0, ((size_t)n_ids + 1) * sizeof *count);
    for (uint32_t i = 0; i < n; i++)
        count[(by_left ? merges[i].left : merges[i].right) + 1]++;
    for (uint32_t i = 0; i < n_ids; i++)
        count[i + 1] += count[i];
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t m = order ? order[i] : i;
        const uint32_t key = by_left ? merges[m].left : merges[m].right;

        sorted[count[key]++] = m;
    }
}

/* order: merges by (left, right, rank). Of a pair that the file repeats the last rank counts, as in
 * other readers. */
static void fill_table(const kvi_merge *merges, const uint32_t *order, kvi_bpe *bpe)
{
    uint32_t n = 0;
    uint32_t left = 0;

    for (uint32_t i = 0; i < bpe->n_merges; i++) {
        const kvi_merge *m = &merges[order[i]];
        const kvi_merge *before = i > 0 ? &merges[order[i - 1]] : NULL;

        bpe->merged[i] = merges[i].merged;
        if (before && before->left == m->left && before->right == m->right) {
            bpe->rank[n - 1] = order[i];
            continue;
        }
        while (left < m->left)
            bpe->first[++left] = n;
        bpe->right[n] = m->right;
        bpe->rank[n] = order[i];
        n++;
    }
    while (left < bpe->n_ids)
        bpe->first[++left] = n;
}

kvcsa_status kvi_bpe_build(const kvcsa_allocator *a, const kvi_merge *merges, uint32_t n_merges,
                           uint32_t n_ids, kvi_bpe *bpe, kvcsa_error *err)
{
    const size_t merge_bytes = (size_t)n_merges * sizeof(uint32_t);
    const size_t first_bytes = ((size_t)n_ids + 1) * sizeof(uint32_t);
    uint32_t    *by_right = kvi_alloc(a, merge_bytes);
    uint32_t    *order = kvi_alloc(a, merge_bytes);
    kvcsa_status st = KVCSA_OK;

    bpe->n_merges = n_merges;
    bpe->n_ids = n_ids;
    bpe->first = kvi_zalloc(a, first_bytes);
    bpe->right = kvi_alloc(a, merge_bytes);
    bpe->rank = kvi_alloc(a, merge_bytes);
    bpe->merged = kvi_alloc(a, merge_bytes);
    if (!by_right || !order || !bpe->first || !bpe->right || !bpe->rank || !bpe->merged) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "table of %u merges", (unsigned)n_merges);
        goto out;
    }
    sort_by_id(merges, n_merges, n_ids, false, NULL, by_right, bpe->first);
    sort_by_id(merges, n_merges, n_ids, true, by_right, order, bpe->first);
    bpe->first[0] = 0;
    fill_table(merges, order, bpe);
out:
    kvi_free(a, by_right, merge_bytes);
    kvi_free(a, order, merge_bytes);
    return st;
}

void kvi_bpe_free(const kvcsa_allocator *a, kvi_bpe *bpe)
{
    const size_t merge_bytes = (size_t)bpe->n_merges * sizeof(uint32_t);

    kvi_free(a, bpe->first, ((size_t)bpe->n_ids + 1) * sizeof(uint32_t));
    kvi_free(a, bpe->right, merge_bytes);
    kvi_free(a, bpe->rank, merge_bytes);
    kvi_free(a, bpe->merged, merge_bytes);
}

static uint32_t pair_rank(const kvi_bpe *bpe, uint32_t left, uint32_t right)
{
    uint32_t lo = bpe->first[left];
    uint32_t hi = bpe->first[left + 1];

    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;

        if (bpe->right[mid] == right)
            return bpe->rank[mid];
        if (bpe->right[mid] < right)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NO_RANK;
}

/* ------------------------------------------------------------------ heap of (rank << 32 |
 * position), least first */

static void heap_push(uint64_t *heap, size_t *n, uint64_t key)
{
    size_t i = (*n)++;

    while (i > 0 && heap[(i - 1) / 2] > key) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    const uint64_t top = heap[0];
    const uint64_t last = heap[--*n];
    size_t         i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= *n)
            break;
        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* ------------------------------------------------------------------ encode */

/* Look the pair (pos, next) up again and queue it. */
static void renew_pair(const kvi_bpe *bpe, symbol *sym, uint32_t pos, uint64_t *heap,
                       size_t *n_heap)
{
    symbol *s = &sym[pos];

    s->rank = s->next == NO_SYMBOL ? NO_RANK : pair_rank(bpe, s->id, sym[s->next].id);
    if (s->rank != NO_RANK)
        heap_push(heap, n_heap, (uint64_t)s->rank << 32 | pos);
}

static void merge_all(const kvi_bpe *bpe, symbol *sym, uint64_t *heap, size_t n_heap)
{
    while (n_heap > 0) {
        const uint64_t key = heap_pop(heap, &n_heap);
        const uint32_t pos = (uint32_t)key;
        symbol        *s = &sym[pos];
        symbol        *gone = NULL;

        if (s->rank != (uint32_t)(key >> 32))
            continue; /* the pair has changed since */
        gone = &sym[s->next];
        s->id = bpe->merged[s->rank];
        s->next = gone->next;
        if (s->next != NO_SYMBOL)
            sym[s->next].prev = pos;
        gone->rank = NO_RANK;
        renew_pair(bpe, sym, pos, heap, &n_heap);
        if (s->prev != NO_SYMBOL)
            renew_pair(bpe, sym, s->prev, heap, &n_heap);
    }
}

kvcsa_status kvi_bpe_encode(kvi_encoder *e, const uint8_t *piece, size_t n_bytes)
{
    const kvi_tokenizer *t = e->t;
    const kvi_bpe       *bpe = &t->bpe;
    symbol              *sym = NULL;
    uint64_t            *heap = NULL;
    size_t               n_heap = 0;
    uint32_t             id = 0;

    if (t->ignore_merges && kvi_text_index_find(&t->by_text, piece, n_bytes, &id)) {
        kvi_encoder_emit(e, id);
        return KVCSA_OK;
    }
    if (n_bytes == 1) {
        kvi_encoder_emit(e, bpe->byte_id[piece[0]]);
        return KVCSA_OK;
    }
    /* Pushes: n - 1 pairs at first, two for each of at most n - 1 merges. */
    if (!kvi_buf_reserve(&t->alloc, &e->symbols, sizeof *sym, 0, n_bytes) ||
        !kvi_buf_reserve(&t->alloc, &e->heap, sizeof *heap, 0, 3 * n_bytes))
        return kvi_fail(e->err, KVCSA_ERR_NOMEM, "symbols of a piece of %zu bytes", n_bytes);
    sym = e->symbols.data;
    heap = e->heap.data;
    for (size_t i = 0; i < n_bytes; i++) {
        sym[i].id = bpe->byte_id[piece[i]];
        sym[i].prev = i > 0 ? (uint32_t)(i - 1) : NO_SYMBOL;
        sym[i].next = i + 1 < n_bytes ? (uint32_t)(i + 1) : NO_SYMBOL;
    }
    for (size_t i = 0; i < n_bytes; i++)
        renew_pair(bpe, sym, (uint32_t)i, heap, &n_heap);
    merge_all(bpe, sym, heap, n_heap);
    for (uint32_t i = 0; i != NO_SYMBOL; i = sym[i].next)
        kvi_encoder_emit(e, sym[i].id);
    return KVCSA_OK;
}

void kvi_bpe_free_scratch(kvi_encoder *e)
{
    kvi_buf_free(&e->t->alloc, &e->symbols, sizeof(symbol));
    kvi_buf_free(&e->t->alloc, &e->heap, sizeof(uint64_t));
}
