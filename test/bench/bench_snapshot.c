/* What saving and loading cost, beside the copy, the write and the read of as many bytes. */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/checked.h"
#include "cache_session.h"
#include "session/session.h"

#define PIECE ((size_t)256 << 10) /* about as large as a slab of the pool */

typedef struct saver {
    kvcsa_model   *model;
    kvcsa_pool    *pool;
    kvcsa_session *s;
    uint8_t       *from, *to; /* [n_bytes] both */
    size_t         n_to;      /* written so far */
    size_t         n_bytes;   /* of the snapshot */
    kvi_block    **blocks;
    size_t         n_blocks;
    size_t         index_bytes, main_bytes;
    char           path[1024];
    char           peer_path[1024];
} saver;

static void io_die(const char *what)
{
    bench_die(what, strerror(errno));
}

/* ------------------------------------------------------------------ in memory */

/* One memcpy of hundreds of megabytes goes past the caches, one of a block does not. The host's
 * writer knows that all of it is large, so ours does what that memcpy would do. */
static void copy_past_caches(uint8_t *to, const uint8_t *from, size_t n)
{
#if defined(__SSE2__)
    const size_t lead = kvi_min_size(n, -(uintptr_t)to & 63);

    memcpy(to, from, lead);
    to += lead;
    from += lead;
    n -= lead;
    for (; n >= 64; n -= 64, to += 64, from += 64) {
        _mm_prefetch((const char *)from + 1024, _MM_HINT_T0);
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(void *)(to + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
    }
#endif
    memcpy(to, from, n);
}

static int32_t take_bytes(void *user, const void *data, size_t n)
{
    saver *v = user;

    if (n > v->n_bytes - v->n_to)
        return ENOSPC;
    copy_past_caches(v->to + v->n_to, data, n);
    v->n_to += n;
    return 0;
}

static int64_t write_to_memory(void *arg)
{
    saver             *v = arg;
    const kvcsa_writer w = {take_bytes, v};
    kvcsa_error        err;
    int64_t            start;

    v->n_to = 0;
    start = bench_now_ns();
    if (kvcsa_snapshot_write(v->s, &w, NULL, NULL, &err) != KVCSA_OK)
        bench_die("snapshot", err.text);
    if (v->n_to != v->n_bytes)
        bench_die("snapshot", "the size that was told before is not that of the bytes");
    return bench_now_ns() - start;
}

static int64_t copy_whole(void *arg)
{
    saver        *v = arg;
    const int64_t start = bench_now_ns();

    memcpy(v->to, v->from, v->n_bytes);
    return bench_now_ns() - start;
}

/* The same parts from the same places, and nothing else. */
static int64_t copy_parts(void *arg)
{
    saver        *v = arg;
    const int64_t start = bench_now_ns();
    uint8_t      *to = v->to;

    for (size_t i = 0; i < v->n_blocks; i++) {
        copy_past_caches(to, kvi_block_index_part(v->blocks[i]), v->index_bytes);
        copy_past_caches(to + v->index_bytes, kvi_block_main_part(v->blocks[i]), v->main_bytes);
        to += v->index_bytes + v->main_bytes;
    }
    return bench_now_ns() - start;
}

/* ------------------------------------------------------------------ to and from files */

static int64_t save_file(void *arg)
{
    saver      *v = arg;
    kvcsa_error err;
    int64_t     start;

    unlink(v->path); /* a replaced file would be freed inside the time */
    start = bench_now_ns();
    if (kvcsa_snapshot_save(v->s, v->path, NULL, NULL, &err) != KVCSA_OK)
        bench_die(v->path, err.text);
    return bench_now_ns() - start;
}

static int64_t write_file(void *arg)
{
    saver  *v = arg;
    size_t  done = 0;
    int64_t start;
    int64_t ns;
    int     fd;

    unlink(v->peer_path);
    start = bench_now_ns();
    if ((fd = open(v->peer_path, O_WRONLY | O_CREAT | O_TRUNC, 0600)) < 0)
        io_die(v->peer_path);
    while (done < v->n_bytes) { /* one call; it may be cut short */
        const ssize_t n = write(fd, v->from + done, v->n_bytes - done);

        if (n <= 0)
            io_die(v->peer_path);
        done += (size_t)n;
    }
    if (fsync(fd) != 0 || close(fd) != 0)
        io_die(v->peer_path);
    ns = bench_now_ns() - start;
    unlink(v->peer_path); /* so that the disk holds one of the two */
    return ns;
}

/* Into a pool that knows nothing, so that all of it is read, checked, and given memory. */
static int64_t load_file_with(const saver *v, uint32_t n_threads)
{
    counted_alloc  alloc;
    kvcsa_pool    *pool;
    kvcsa_session *s;
    kvcsa_error    err;
    int64_t        start;
    int64_t        ns;

    counted_alloc_init(&alloc, 0);
    pool = cache_create_pool(&alloc, n_threads);
    s = cache_session(pool, v->model, NULL, 0, 0);
    start = bench_now_ns();
    if (kvcsa_snapshot_load(s, v->path, NULL, NULL, &err) != KVCSA_OK)
        bench_die(v->path, err.text);
    ns = bench_now_ns() - start;
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    return ns;
}

static int64_t load_file(void *arg)
{
    return load_file_with(arg, 1);
}

static int64_t load_file_on_all_cores(void *arg)
{
    return load_file_with(arg, 0);
}

/* Into memory that is new too, in pieces as large as those of a pool. */
static int64_t read_file(void *arg)
{
    saver        *v = arg;
    const size_t  n = kvi_div_up(v->n_bytes, PIECE);
    void        **pieces = calloc(n, sizeof *pieces);
    const int     fd = open(v->path, O_RDONLY);
    const int64_t start = bench_now_ns();
    int64_t       ns;

    if (!pieces || fd < 0)
        io_die(v->path);
    for (size_t i = 0; i < n; i++) {
        const size_t want = kvi_min_size(PIECE, v->n_bytes - i * PIECE);

        if (posix_memalign(&pieces[i], 4096, PIECE) != 0 ||
            pread(fd, pieces[i], want, (off_t)(i * PIECE)) != (ssize_t)want)
            io_die(v->path);
    }
    ns = bench_now_ns() - start;
    for (size_t i = 0; i < n; i++)
        free(pieces[i]);
    free(pieces);
    close(fd);
    return ns;
}

/* ------------------------------------------------------------------ rows */

static bench_row *add(bench_rows *out, const char *name, uint64_t n, double limit, const char *peer)
{
    bench_row *r = bench_add(out, name, n, "ms");

    r->goal = limit > 0 ? BENCH_RATIO : BENCH_NO_GOAL;
    r->limit = limit;
    r->peer = peer;
    return r;
}

static void run(bench_row *r, bench_fn ours, bench_fn peer, saver *v, uint32_t n_runs)
{
    bench_pair(r, ours, peer, v, n_runs);
    bench_scale(r, 1e-6);
}

static uint64_t free_disk(const char *folder)
{
    struct statvfs fs;

    return statvfs(folder, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : 0;
}

static void bench_files(const bench_cache_params *p, saver *v, uint64_t n, bench_rows *out)
{
    bench_row *save = add(out, "sess.save_file", n, 1.10, "write, fsync");
    bench_row *load = add(out, "sess.load_file", n, 1.15, "pread, cached");
    bench_row *load_all = add(out, "sess.load_all_cores", n, 0, "pread, cached, one core");
    /* a gigabyte is its own repetition */
    const uint32_t n_runs = v->n_bytes > (size_t)256 << 20 ? (p->n_runs + 2) / 3 : p->n_runs;

    if (free_disk(p->folder) < 3 * (uint64_t)v->n_bytes) {
        save->skipped = load->skipped = load_all->skipped = "too little room in the folder";
        return;
    }
    snprintf(v->path, sizeof v->path, "%s/bench_snapshot.kvcsa", p->folder);
    snprintf(v->peer_path, sizeof v->peer_path, "%s/bench_snapshot.bytes", p->folder);
    run(save, save_file, write_file, v, n_runs);
    run(load, load_file, read_file, v, n_runs);
    run(load_all, load_file_on_all_cores, read_file, v, n_runs);
    unlink(v->path);
}

static void list_blocks(saver *v)
{
    const kvi_kv_layout *layout = &v->model->layout;
    kvi_block           *b = v->s->now.last;

    v->index_bytes = layout->index_part_bytes;
    v->main_bytes = layout->main_part_bytes;
    v->n_blocks = b ? (size_t)kvi_block_depth(b) + 1 : 0;
    if (!(v->blocks = calloc(v->n_blocks + 1, sizeof(kvi_block *))))
        io_die("memory");
    for (size_t i = v->n_blocks; i-- > 0; b = kvi_block_parent(b))
        v->blocks[i] = b;
}

static void bench_size(const bench_cache_params *p, uint64_t n, bench_rows *out)
{
    int32_t      *tokens = cache_tokens((size_t)n);
    saver         v = {.model = cache_model(p->config)};
    uint64_t      n_bytes = 0;
    counted_alloc alloc;
    kvcsa_error   err;

    counted_alloc_init(&alloc, 1);
    v.pool = cache_create_pool(&alloc, 1);
    v.s = cache_session(v.pool, v.model, tokens, (size_t)n, 0);
    free(tokens);
    list_blocks(&v);
    if (kvcsa_snapshot_size(v.s, NULL, &n_bytes, &err) != KVCSA_OK)
        bench_die("snapshot", err.text);
    v.n_bytes = (size_t)n_bytes;
    if (!(v.from = malloc(v.n_bytes)) || !(v.to = malloc(v.n_bytes)))
        io_die("memory");
    memset(v.from, 0x5A, v.n_bytes);
    memset(v.to, 0xA5, v.n_bytes);
    run(add(out, "sess.snapshot", n, 1.5, "memcpy, contiguous"), write_to_memory, copy_whole, &v,
        p->n_runs);
    run(add(out, "sess.snapshot", n, 0, "copies of the blocks"), write_to_memory, copy_parts, &v,
        p->n_runs);
    free(v.to);
    bench_files(p, &v, n, out);
    free(v.from);
    free(v.blocks);
    kvcsa_session_release(&v.s);
    kvcsa_pool_release(&v.pool);
    kvcsa_model_release(&v.model);
}

void bench_snapshot(const bench_cache_params *p, bench_rows *out)
{
    bench_size(p, kvi_min_size(131072, (size_t)p->largest), out);
    if (p->largest > 131072)
        bench_size(p, p->largest, out);
}
