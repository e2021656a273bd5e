/* Blocks of a snapshot into the pool, and the bytes of its records from files or a callback.
 *
 * From files, blocks are read by all threads of the pool; heads first, since they have the tokens
 * that the prefix tree is asked for. From a callback, record by record. Where the pool's memory is
 * apart, parts are read into the host's and put there by the calling thread. Blocks are sealed as
 * private ones, which takes their checksums; those are compared with the record's. */
#include "session/snapshot_int.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/status.h"

enum { HEADS_AT_ONCE = 64, PARTS_AT_ONCE = 4 };
enum { SHORT_READ = -1 }; /* instead of an errno */

/* Damage that a salvage may leave out. */
static int is_damage(const kvi_load *ld, kvcsa_status st)
{
    return st == KVCSA_ERR_FORMAT || st == KVCSA_ERR_CORRUPT || (st == KVCSA_ERR_IO && !ld->reader);
}

kvcsa_status kvi_load_salvage(kvi_load *ld, kvcsa_status st, uint64_t n_blocks)
{
    if (st == KVCSA_OK || !(ld->flags & KVCSA_SNAPSHOT_SALVAGE) || !is_damage(ld, st))
        return st;
    ld->n_blocks = n_blocks;
    ld->damaged = 1;
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ bytes */

static kvcsa_status truncated(kvcsa_error *err, uint64_t record)
{
    return kvi_fail(err, KVCSA_ERR_FORMAT, "truncated snapshot: it ends inside record %llu",
                    (unsigned long long)record);
}

kvcsa_status kvi_load_next(kvi_load *ld, uint64_t record, void *data, size_t n, kvcsa_error *err)
{
    const int64_t got = n ? ld->reader->read(ld->reader->user, data, n) : 0;

    if (got < 0)
        return kvi_fail_code(err, KVCSA_ERR_IO, (int32_t)got, "snapshot: the reader returned %lld",
                             (long long)got);
    ld->n_bytes += (uint64_t)got;
    return (uint64_t)got < n ? truncated(err, record) : KVCSA_OK;
}

kvcsa_status kvi_load_skip(kvi_load *ld, uint64_t record, uint64_t n, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    while (n && st == KVCSA_OK) {
        const size_t step = kvi_min_size(n, ld->buffer_bytes);

        st = kvi_load_next(ld, record, ld->buffer, step, err);
        n -= step;
    }
    return st;
}

kvcsa_status kvi_load_open(kvi_load *ld, uint64_t i, kvcsa_error *err)
{
    const uint64_t segment = ld->manifest ? kvi_manifest_entry(ld->manifest, i).segment : 0;
    char           name[KVI_SEGMENT_NAME_BYTES];
    kvcsa_status   st = KVCSA_OK;
    size_t         n = 0;
    char          *path;

    if (!ld->manifest || (ld->fd >= 0 && ld->segment == segment))
        return KVCSA_OK;
    if (ld->fd >= 0)
        ld->fs->close(ld->fs->user, ld->fd);
    ld->fd = -1;
    kvi_segment_name(segment, name);
    if (!(path = kvi_snap_path(&ld->s->allocator, ld->path, name, "", &n)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "name of a segment");
    ld->fd = ld->fs->open(ld->fs->user, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    ld->open_code = ld->fd < 0 ? errno : 0;
    if (ld->fd < 0)
        st = kvi_fs_fail(err, "open", path);
    ld->segment = segment;
    kvi_free(&ld->s->allocator, path, n);
    return st;
}

uint64_t kvi_load_offset(const kvi_load *ld, uint64_t i)
{
    kvi_snap_record want;
    uint64_t        offset = 0;

    if (ld->manifest)
        return kvi_manifest_entry(ld->manifest, i).offset;
    kvi_snap_expect(&ld->h, i, &want, &offset);
    return offset;
}

/* 0, an errno, or SHORT_READ */
static int32_t read_exactly(const kvi_load *ld, void *data, size_t n, uint64_t at)
{
    const ssize_t got = kvi_fs_read_at(ld->fs, ld->fd, data, n, at);

    return got < 0 ? errno : (size_t)got < n ? SHORT_READ : 0;
}

static kvcsa_status fail_read(const kvi_load *ld, int32_t what, uint64_t record, kvcsa_error *err)
{
    if (what == SHORT_READ)
        return truncated(err, record);
    errno = what;
    return kvi_fs_fail(err, "read", ld->path);
}

kvcsa_status kvi_load_at(const kvi_load *ld, uint64_t record, void *data, size_t n, uint64_t at,
                         kvcsa_error *err)
{
    const int32_t bad = read_exactly(ld, data, n, at);

    return bad ? fail_read(ld, bad, record, err) : KVCSA_OK;
}

/* ------------------------------------------------------------------ one block */

/* Where both parts of a block are read to: slot i of the half that is filled, or the block itself.
 */
static uint8_t *part_of(const kvi_load *ld, const kvi_block *b, uint64_t slot, int part)
{
    if (!ld->staged)
        return part ? kvi_block_main_part(b) : kvi_block_index_part(b);
    return ld->staged + (size_t)ld->half * (ld->staged_bytes / KVI_LOAD_HALVES) +
           slot * ((size_t)ld->h.index_bytes + ld->h.main_bytes) + (part ? ld->h.index_bytes : 0);
}

/* They are in the block from now on. */
static kvcsa_status put_parts(const kvi_load *ld, const kvi_block *b, uint64_t slot,
                              kvcsa_error *err)
{
    const kvi_memory *m = kvi_pool_memory(ld->s->pool);
    kvcsa_status st = kvi_memory_put_pinned(m, kvi_block_index_part(b), part_of(ld, b, slot, 0),
                                            ld->h.index_bytes, err);

    if (st == KVCSA_OK)
        st = kvi_memory_put_pinned(m, kvi_block_main_part(b), part_of(ld, b, slot, 1),
                                   ld->h.main_bytes, err);
    return st;
}

/* Those of n blocks, bad ones left out, which have been read to the half; the other one, whose
 * parts have had all that time to get there, is filled next. */
static kvcsa_status put_half(kvi_load *ld, kvi_block *const *blocks, const int32_t *bad, uint64_t n,
                             kvcsa_error *err)
{
    kvcsa_status st;

    if (!ld->staged)
        return KVCSA_OK;
    st = kvi_memory_sync(kvi_pool_memory(ld->s->pool), err);
    for (uint64_t i = 0; i < n && st == KVCSA_OK; i++)
        if (!bad[i])
            st = put_parts(ld, blocks[i], i, err);
    ld->half = !ld->half;
    return st;
}

static kvcsa_status check_tokens(const kvi_load *ld, uint64_t i, const kvi_snap_record *r,
                                 const int32_t *ids, kvcsa_error *err)
{
    const kvi_config *c = &ld->s->model->config;

    if (!kvi_hash128_equal(r->ids_sum, kvi_hash128_of(ids, r->ids_bytes, 0)))
        return kvi_fail(err, KVCSA_ERR_CORRUPT,
                        "snapshot record %llu: checksum of its token ids differs",
                        (unsigned long long)i);
    for (uint32_t t = 0; t < r->n_tokens; t++)
        if (ids[t] < 0 || (uint32_t)ids[t] >= c->vocab_size || ids[t] == c->image)
            return kvi_fail(err, KVCSA_ERR_FORMAT,
                            "snapshot record %llu: token %d is not in 0..%u, or the image token",
                            (unsigned long long)i, ids[t], c->vocab_size - 1);
    return KVCSA_OK;
}

/* Head and token ids of record i, a block. */
static kvcsa_status parse_head(kvi_load *ld, uint64_t i, const uint8_t *head, const int32_t *ids,
                               kvi_snap_record *r, kvcsa_error *err)
{
    kvcsa_status st = kvi_snap_record_decode(head, &ld->h, i, r, err);

    if (st != KVCSA_OK)
        return st;
    if (!kvi_hash128_equal(r->parent, ld->last_key))
        return kvi_fail(err, KVCSA_ERR_CORRUPT,
                        "snapshot record %llu: it does not belong behind the one in front",
                        (unsigned long long)i);
    if (ld->manifest && !kvi_hash128_equal(kvi_manifest_entry(ld->manifest, i).key, r->key))
        return kvi_fail(err, KVCSA_ERR_CORRUPT,
                        "snapshot record %llu: it is not the one that the manifest names",
                        (unsigned long long)i);
    if ((st = check_tokens(ld, i, r, ids, err)) != KVCSA_OK)
        return st;
    if ((r->flags & KVI_RECORD_TAINTED) && r->position + r->n_tokens <= ld->taint_pos)
        ld->taint_pos = r->position;
    ld->last_key = r->key;
    return KVCSA_OK;
}

/* Can the tree have this block? */
static int may_share(const kvi_load *ld, const kvi_snap_record *r)
{
    return !ld->foreign && r->n_tokens == ld->h.block_tokens &&
           r->position + r->n_tokens <= ld->taint_pos;
}

kvcsa_status kvi_load_bad_sum(kvcsa_error *err, uint64_t i)
{
    return kvi_fail(err, KVCSA_ERR_CORRUPT, "snapshot record %llu: checksum of a part differs",
                    (unsigned long long)i);
}

/* A block with its parts and tokens, the caller's alone, joins the state; gone if it is damaged. */
static kvcsa_status join_block(kvi_load *ld, uint64_t i, const kvi_snap_record *r, kvi_block *b,
                               const kvi_hash128 *sums, kvcsa_error *err)
{
    kvcsa_pool *pool = ld->s->pool;
    uint32_t    flags = KVI_SEAL_PRIVATE;
    int         good = kvi_hash128_equal(r->sums[0], sums[0]) &&
               kvi_hash128_equal(r->sums[1], sums[1]);

    if (!good) {
        kvi_block_release(pool, b);
        return kvi_load_bad_sum(err, i);
    }
    if (r->flags & KVI_RECORD_PARTIAL) {
        ld->st.tail = b;
        ld->st.tail_mine = 1;
        return KVCSA_OK;
    }
    if (r->position + r->n_tokens > ld->taint_pos)
        flags |= KVI_SEAL_TAINTED;
    b = kvi_block_seal_with(pool, ld->s->root, b, ld->st.last, flags, sums, NULL, 0);
    good = !ld->same_domain || (flags & KVI_SEAL_TAINTED) ||
           kvi_hash128_equal(r->key, kvi_block_key(b));
    if (!good) { /* the chain in front stays */
        kvi_block_retain(pool, ld->st.last);
        kvi_block_release(pool, b);
        return kvi_load_bad_sum(err, i);
    }
    ld->st.last = b;
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ blocks from files */

typedef struct job { /* a run of records in one file */
    const kvi_load  *ld;
    uint64_t         first;
    uint64_t         staged; /* the record in slot 0 of what is staged */
    kvi_snap_record *recs;  /* [n_all] */
    uint8_t         *heads; /* [n_all, stride] heads and token ids */
    size_t           stride;
    int32_t         *bad; /* [n_all] 0, an errno, or SHORT_READ */
    kvi_hash128    (*sums)[2]; /* [n_all] of the parts, made while they are in the cache */
} job;

static void read_heads(void *arg, size_t begin, size_t end)
{
    const job *j = arg;

    for (uint64_t i = j->first + begin; i < j->first + end; i++)
        j->bad[i] =
            read_exactly(j->ld, j->heads + i * j->stride, j->stride, kvi_load_offset(j->ld, i));
}

static void sum_parts(uint8_t *const *parts, const kvi_snap_record *r, kvi_hash128 *sums)
{
    sums[0] = kvi_hash128_of(parts[0], r->part_bytes[0], 0);
    sums[1] = kvi_hash128_of(parts[1], r->part_bytes[1], 0);
}

static void read_parts(void *arg, size_t begin, size_t end)
{
    const job *j = arg;

    for (uint64_t i = j->first + begin; i < j->first + end; i++) {
        const kvi_snap_record *r = &j->recs[i];
        const kvi_block       *b = j->ld->blocks[i];
        uint8_t *const         parts[] = {part_of(j->ld, b, i - j->staged, 0),
                                          part_of(j->ld, b, i - j->staged, 1)};
        const uint64_t         at = kvi_load_offset(j->ld, i) + j->stride;

        j->bad[i] = read_exactly(j->ld, parts[0], r->part_bytes[0], at);
        if (!j->bad[i])
            j->bad[i] = read_exactly(j->ld, parts[1], r->part_bytes[1], at + r->part_bytes[0]);
        if (!j->bad[i])
            sum_parts(parts, r, j->sums[i]);
    }
}

/* Records [begin, end), file by file. */
static kvcsa_status run_over_files(kvi_load *ld, job *j, kvi_range_fn fn, uint64_t begin,
                                   uint64_t end, size_t grain, kvcsa_error *err)
{
    while (begin < end) {
        uint64_t     n = end - begin;
        kvcsa_status st = kvi_load_open(ld, begin, err);

        if (ld->manifest)
            for (n = 1; begin + n < end &&
                        kvi_manifest_entry(ld->manifest, begin + n).segment == ld->segment;)
                n++;
        if (st == KVCSA_ERR_NOMEM)
            return st;
        if (st == KVCSA_OK) {
            j->first = begin;
            kvi_run(kvi_pool_threads(ld->s->pool), fn, j, (size_t)n, grain);
        } else {
            for (uint64_t i = begin; i < begin + n; i++)
                j->bad[i] = ld->open_code;
        }
        begin += n;
    }
    return KVCSA_OK;
}

static const int32_t *ids_of(const job *j, uint64_t i)
{
    return (const int32_t *)(const void *)(j->heads + i * j->stride + KVI_SNAP_HEAD_BYTES);
}

static kvcsa_status check_heads(kvi_load *ld, job *j, kvcsa_error *err)
{
    kvcsa_status st = run_over_files(ld, j, read_heads, 0, ld->n_blocks, HEADS_AT_ONCE, err);

    for (uint64_t i = 0; i < ld->n_blocks && st == KVCSA_OK; i++) {
        st = j->bad[i]
                 ? fail_read(ld, j->bad[i], i, err)
                 : parse_head(ld, i, j->heads + i * j->stride, ids_of(j, i), &j->recs[i], err);
        st = kvi_load_salvage(ld, st, i);
    }
    return st;
}

/* The chain that the tree has. */
static kvcsa_status share_blocks(kvi_load *ld, const job *j, kvcsa_error *err)
{
    const kvcsa_allocator *a = &ld->s->allocator;
    const uint32_t         bt = ld->h.block_tokens;
    kvi_prefix_match       match = {0};
    uint64_t               n = 0;
    int32_t               *tokens;

    while (n < ld->n_blocks && may_share(ld, &j->recs[n]))
        n++;
    if (n == 0)
        return KVCSA_OK;
    if (!(tokens = kvi_alloc(a, n * bt * sizeof *tokens)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of %llu tokens", (unsigned long long)(n * bt));
    for (uint64_t i = 0; i < n; i++)
        memcpy(tokens + i * bt, ids_of(j, i), bt * sizeof *tokens);
    kvi_prefix_find(ld->s->pool, ld->s->root, NULL, tokens, n * bt, &match);
    kvi_free(a, tokens, n * bt * sizeof *tokens);
    ld->st.last = match.last;
    ld->n_shared = kvi_state_n_full(&ld->st);
    match.last = NULL;
    kvi_prefix_match_release(ld->s->pool, &match);
    return KVCSA_OK;
}

static kvcsa_status acquire_block(kvi_load *ld, kvi_block **out, kvcsa_error *err)
{
    kvcsa_status st = kvi_block_acquire(ld->s->pool, ld->s->cls, out, err);

    if (st == KVCSA_OK)
        ld->n_reserved--;
    return st;
}

static kvcsa_status reserve_blocks(kvi_load *ld, uint64_t n, kvcsa_error *err)
{
    kvcsa_status st = n ? kvi_pool_reserve(ld->s->pool, ld->s->cls, n, err) : KVCSA_OK;

    if (st == KVCSA_OK)
        ld->n_reserved += n;
    return st;
}

/* Parts of the blocks from `first` on, that are acquired: all at once, or as many as can be staged.
 */
static kvcsa_status read_all_parts(kvi_load *ld, job *j, uint64_t first, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;

    for (uint64_t end; first < ld->n_blocks && st == KVCSA_OK; first = end) {
        end = ld->staged ? kvi_min_size(first + KVI_LOAD_STAGED, ld->n_blocks) : ld->n_blocks;
        j->staged = first;
        st = run_over_files(ld, j, read_parts, first, end, PARTS_AT_ONCE, err);
        if (st == KVCSA_OK)
            st = put_half(ld, ld->blocks + first, j->bad + first, end - first, err);
    }
    return st;
}

static kvcsa_status read_blocks(kvi_load *ld, job *j, kvcsa_error *err)
{
    const uint64_t first = ld->n_shared;
    kvcsa_status   st = reserve_blocks(ld, ld->n_blocks - first, err);

    for (uint64_t i = first; i < ld->n_blocks && st == KVCSA_OK; i++)
        st = acquire_block(ld, &ld->blocks[i], err);
    if (st == KVCSA_OK)
        st = read_all_parts(ld, j, first, err);
    for (uint64_t i = first; i < ld->n_blocks && st == KVCSA_OK; i++) {
        kvi_block *b = ld->blocks[i];

        if (j->bad[i]) {
            st = kvi_load_salvage(ld, fail_read(ld, j->bad[i], i, err), i);
            continue;
        }
        memcpy(kvi_block_tokens(b), ids_of(j, i), j->recs[i].ids_bytes);
        ld->blocks[i] = NULL;
        ld->n_bytes += kvi_snap_record_bytes(&j->recs[i]);
        ld->n_records++;
        st = kvi_load_salvage(ld, join_block(ld, i, &j->recs[i], b, j->sums[i], err), i);
    }
    return st;
}

kvcsa_status kvi_load_blocks_from_files(kvi_load *ld, kvcsa_error *err)
{
    const kvcsa_allocator *a = &ld->s->allocator;
    const size_t           n = (size_t)ld->n_all; /* bounded by the context limit */
    job                    j = {.ld = ld};
    kvcsa_status           st;

    j.stride = KVI_SNAP_HEAD_BYTES + ld->h.block_tokens * sizeof(int32_t);
    j.recs = kvi_alloc(a, n * sizeof *j.recs);
    j.heads = kvi_alloc(a, n * j.stride);
    j.bad = kvi_zalloc(a, n * sizeof *j.bad);
    j.sums = kvi_alloc(a, n * sizeof *j.sums);
    ld->blocks = kvi_zalloc(a, n * sizeof *ld->blocks);
    if (!j.recs || !j.heads || !j.bad || !j.sums || !ld->blocks)
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "heads of %zu blocks", n);
    else if ((st = check_heads(ld, &j, err)) == KVCSA_OK &&
             (st = share_blocks(ld, &j, err)) == KVCSA_OK)
        st = read_blocks(ld, &j, err);
    kvi_free(a, j.recs, n * sizeof *j.recs);
    kvi_free(a, j.heads, n * j.stride);
    kvi_free(a, j.bad, n * sizeof *j.bad);
    kvi_free(a, j.sums, n * sizeof *j.sums);
    return st;
}

/* ------------------------------------------------------------------ blocks from a callback */

/* 1 = the tree has the block behind the chain so far, which is longer now. */
static int share_next(kvi_load *ld, const kvi_snap_record *r, const int32_t *ids)
{
    kvi_prefix_match match = {0};
    int              found;

    if (!may_share(ld, r) || ld->n_shared * ld->h.block_tokens != r->position)
        return 0;
    kvi_prefix_find(ld->s->pool, ld->s->root, ld->st.last, ids, r->n_tokens, &match);
    found = match.last != NULL;
    if (found) {
        kvi_block_release(ld->s->pool, ld->st.last);
        ld->st.last = match.last;
        match.last = NULL;
        ld->n_shared++;
    }
    kvi_prefix_match_release(ld->s->pool, &match);
    return found;
}

static kvcsa_status load_next_block(kvi_load *ld, uint64_t i, uint8_t *head, int32_t *ids,
                                    kvcsa_error *err)
{
    kvi_snap_record r;
    kvi_hash128     sums[2];
    kvi_block      *b = NULL;
    uint8_t        *parts[2];
    const int32_t   good = 0;
    uint64_t        n;
    kvcsa_status    st;

    if ((st = kvi_load_next(ld, i, head, KVI_SNAP_HEAD_BYTES, err)) != KVCSA_OK ||
        (st = kvi_load_next(ld, i, ids, ld->h.block_tokens * sizeof *ids, err)) != KVCSA_OK ||
        (st = parse_head(ld, i, head, ids, &r, err)) != KVCSA_OK)
        return st;
    n = KVI_SNAP_HEAD_BYTES + (uint64_t)r.ids_bytes;
    if (share_next(ld, &r, ids))
        return kvi_load_skip(ld, i, kvi_snap_record_bytes(&r) - n, err);
    if ((st = reserve_blocks(ld, 1, err)) != KVCSA_OK ||
        (st = acquire_block(ld, &b, err)) != KVCSA_OK)
        return st;
    n += (uint64_t)r.part_bytes[0] + r.part_bytes[1];
    parts[0] = part_of(ld, b, 0, 0);
    parts[1] = part_of(ld, b, 0, 1);
    if ((st = kvi_load_next(ld, i, parts[0], r.part_bytes[0], err)) != KVCSA_OK ||
        (st = kvi_load_next(ld, i, parts[1], r.part_bytes[1], err)) != KVCSA_OK ||
        (st = put_half(ld, &b, &good, 1, err)) != KVCSA_OK ||
        (st = kvi_load_skip(ld, i, kvi_snap_record_bytes(&r) - n, err)) != KVCSA_OK) {
        kvi_block_release(ld->s->pool, b);
        return st;
    }
    memcpy(kvi_block_tokens(b), ids, r.ids_bytes);
    ld->n_records++;
    sum_parts(parts, &r, sums);
    return join_block(ld, i, &r, b, sums, err);
}

kvcsa_status kvi_load_blocks_from_reader(kvi_load *ld, kvcsa_error *err)
{
    const kvcsa_allocator *a = &ld->s->allocator;
    const size_t           n_ids = ld->h.block_tokens * sizeof(int32_t);
    uint8_t                head[KVI_SNAP_HEAD_BYTES];
    int32_t               *ids = kvi_alloc(a, n_ids);
    kvcsa_status           st = KVCSA_OK;

    if (!ids)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "token ids of a block");
    for (uint64_t i = 0; i < ld->n_blocks && st == KVCSA_OK; i++)
        st = kvi_load_salvage(ld, load_next_block(ld, i, head, ids, err), i);
    kvi_free(a, ids, n_ids);
    return st;
}
