#include "support/long_context.h"

#include "base/checked.h"
#include "pool/pool_int.h"
#include "session/session_int.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define VOCAB_USED 1000u    /* ids below the special ones at the end */
#define FILL_TOKENS 4096u   /* of one append */
#define MAX_PATH_BYTES 1024

static long_world *the_world;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "long context: %s: %s\n", what, why);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ------------------------------------------------------------------ the checkpoint */

static int same_files(const char *a, const char *b)
{
    FILE *f = fopen(a, "rb");
    FILE *g = fopen(b, "rb");
    int   x = 0;
    int   y = f && g ? 0 : 1;

    while (f && g && x == y && x != EOF) {
        x = fgetc(f);
        y = fgetc(g);
    }
    if (f)
        fclose(f);
    if (g)
        fclose(g);
    return x == y;
}

/* The folder and the files in it; it need not be there. */
static void remove_folder(const char *dir)
{
    DIR           *d = opendir(dir);
    struct dirent *e;

    while (d && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(dir);
}

/* It is renamed into place when it is whole: other programs may want the same. */
void long_checkpoint(const char *program, char *dir, size_t cap)
{
    const char *slash = strrchr(program, '/');
    const int   n = slash ? (int)(slash - program) : 1;
    char        config[MAX_PATH_BYTES];
    char        made[MAX_PATH_BYTES];
    kvcsa_error err;

    snprintf(dir, cap, "%.*s/synth-released-cache", n, slash ? program : ".");
    snprintf(config, sizeof config, "%s/config.json", dir);
    snprintf(made, sizeof made, "%s.%ld", dir, (long)getpid());
    if (same_files(config, LONG_CONFIG))
        return;
    remove_folder(made);
    remove_folder(dir);
    if (kvcsa_synth_checkpoint(LONG_CONFIG, made, NULL, NULL, &err) != KVCSA_OK)
        die(LONG_CONFIG, err.text);
    if (rename(made, dir) != 0 && !same_files(config, LONG_CONFIG)) /* or somebody was faster */
        die(dir, strerror(errno));
    remove_folder(made);
}

/* ------------------------------------------------------------------ counting memory */

static void *count_alloc(void *user, size_t size, size_t align)
{
    long_world   *w = user;
    void         *p = NULL;
    uint_fast64_t now;
    uint_fast64_t peak;

    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, size) != 0)
        return NULL;
    now = atomic_fetch_add(&w->n_bytes, size) + size;
    peak = atomic_load(&w->peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&w->peak_bytes, &peak, now))
        ;
    return p;
}

static void count_free(void *user, void *ptr, size_t size, size_t align)
{
    long_world *w = user;

    (void)align;
    atomic_fetch_sub(&w->n_bytes, size);
    free(ptr);
}

/* ------------------------------------------------------------------ watching operators */

typedef struct watch {
    int64_t  start_ns;
    uint64_t before_bytes;
} watch;

static watch begin(void)
{
    const uint64_t bytes = atomic_load(&the_world->n_bytes);

    atomic_store(&the_world->peak_bytes, bytes);
    return (watch){now_ns(), bytes};
}

static int64_t end(const watch *b)
{
    const int64_t ns = now_ns() - b->start_ns;
    long_step    *step = &the_world->step;

    step->operators_ns += ns;
    step->scratch_bytes = kvi_max_size(
        step->scratch_bytes, atomic_load(&the_world->peak_bytes) - b->before_bytes);
    return ns;
}

/* Those that are only timed, and those below them. */
#define WATCH(name, see)                                                                           \
    static kvcsa_status watch_##name(kvi_device *dev, const kvi_##name##_params *p,                \
                                     kvcsa_error *err)                                             \
    {                                                                                              \
        const watch        b = begin();                                                            \
        const kvcsa_status st = the_world->real->name(dev, p, err);                                \
        const int64_t      ns = end(&b);                                                           \
                                                                                                   \
        see(&the_world->step, p, ns);                                                              \
        return st;                                                                                 \
    }
#define ONLY_TIME(step, p, ns) (void)ns

static void see_index_score(long_step *step, const kvi_index_score_params *p, int64_t ns)
{
    if (step->n_scores < LONG_SELECTORS)
        step->score_ns[step->n_scores] = ns;
    step->n_scores++;
    step->most_scores = kvi_max_size(step->most_scores, p->scores_stride * p->n_rows);
}

static void see_topk(long_step *step, const kvi_topk_params *p, int64_t ns)
{
    if (step->n_topk < LONG_SELECTORS) {
        step->topk_ns[step->n_topk] = ns;
        memcpy(step->ids[step->n_topk], p->ids, sizeof step->ids[0]);
    }
    step->n_topk++;
}

static void see_candidates(long_step *step, const kvi_candidates_params *p, int64_t ns)
{
    step->candidates_ns += ns;
    step->n_candidates++;
    step->n_blocks = p->n_blocks[0];
    memcpy(step->blocks, p->blocks, step->n_blocks * sizeof *step->blocks);
}

static void see_attend(long_step *step, const kvi_attend_params *p, int64_t ns)
{
    (void)p;
    if (step->n_attends < LONG_LAYERS)
        step->attend_ns[step->n_attends] = ns;
    step->n_attends++;
}

#define OPERATORS(X)                                                                               \
    X(embed, ONLY_TIME)                                                                            \
    X(linear, ONLY_TIME)                                                                           \
    X(norm, ONLY_TIME)                                                                             \
    X(rope, ONLY_TIME)                                                                             \
    X(window_write, ONLY_TIME)                                                                     \
    X(pool_pairs, ONLY_TIME)                                                                       \
    X(entry_write, ONLY_TIME)                                                                      \
    X(index_query, ONLY_TIME)                                                                      \
    X(index_score, see_index_score)                                                                \
    X(candidates, see_candidates)                                                                  \
    X(hide, ONLY_TIME)                                                                             \
    X(topk, see_topk)                                                                              \
    X(attend, see_attend)                                                                          \
    X(mix, ONLY_TIME)                                                                              \
    X(collapse, ONLY_TIME)                                                                         \
    X(expand, ONLY_TIME)                                                                           \
    X(route, ONLY_TIME)                                                                            \
    X(moe, ONLY_TIME)                                                                              \
    X(engram_gate, ONLY_TIME)
OPERATORS(WATCH)

static void watch_operators(long_world *w)
{
    w->real = w->pool->ops;
    w->ops = *w->real;
#define SET(name, see) w->ops.name = watch_##name;
    OPERATORS(SET)
#undef SET
    w->pool->ops = &w->ops;
}

/* ------------------------------------------------------------------ opening */

void long_open(long_world *w, const char *dir, uint32_t n_threads)
{
    kvcsa_pool_params p;
    kvcsa_error       err;

    memset(w, 0, sizeof *w);
    the_world = w;
    w->hook = (kvcsa_allocator){count_alloc, count_free, w};
    if (kvcsa_model_open(dir, NULL, &w->model, &err) != KVCSA_OK)
        die(dir, err.text);
    work_plan_init(&w->plan, w->model);
    if (w->plan.n_layers != LONG_LAYERS)
        die(dir, "not a checkpoint of " LONG_CONFIG);
    kvcsa_pool_params_default(&p, sizeof p);
    p.allocator = &w->hook;
    p.n_threads = n_threads;
    if (kvcsa_pool_create(&p, &w->pool, &err) != KVCSA_OK)
        die("pool", err.text);
    watch_operators(w);
    w->empty_bytes = atomic_load(&w->n_bytes);
}

void long_close(long_world *w)
{
    kvcsa_pool_release(&w->pool);
    kvcsa_model_release(&w->model);
    free(w->plan.rows);
    if (atomic_load(&w->n_bytes) != 0)
        die("pool", "released, and memory is left");
    the_world = NULL;
}

kvcsa_session *long_session(long_world *w, uint32_t chunk)
{
    kvcsa_session_params p;
    kvcsa_session       *s = NULL;
    kvcsa_error          err;

    kvcsa_session_params_default(&p, sizeof p);
    p.chunk_tokens = chunk;
    p.flags = KVCSA_SESSION_PRIVATE;
    p.reuse = KVCSA_REUSE_NONE;
    if (kvcsa_session_create(w->pool, w->model, &p, &s, &err) != KVCSA_OK)
        die("session", err.text);
    return s;
}

/* ------------------------------------------------------------------ filling */

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* n random bytes b & mask | set. */
static void fill_bytes(uint8_t *to, size_t n, uint64_t *seed, uint8_t mask, uint8_t set)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = mix((*seed)++);

        word = (word & mask * UINT64_C(0x0101010101010101)) | set * UINT64_C(0x0101010101010101);
        memcpy(to + i, &word, kvi_min_size(n - i, 8));
    }
}

/* Entry j of an owner: any FP4 codes; E4M3 scales of 1/8 to 1/4, E8M0 scales of 1/4 or 1/2. */
static void fill_entry(const kvi_kv_owner *o, uint64_t j, uint8_t *index, uint8_t *main)
{
    const uint32_t row = (uint32_t)(j % o->rows_per_block);
    const size_t   main_values = o->entry_width / 2;
    uint64_t       seed = mix(((uint64_t)o->layer << 40) + j);

    main += kvi_kv_main_row_off(o, row);
    fill_bytes(main, main_values, &seed, 0xFF, 0);
    fill_bytes(main + main_values, o->main_row_bytes - main_values, &seed, 0x07, 0x20);
    fill_bytes(index + kvi_kv_index_values_off(o, row), o->index_value_bytes, &seed, 0xFF, 0);
    fill_bytes(index + kvi_kv_index_scales_off(o, row), o->index_row_bytes - o->index_value_bytes,
               &seed, 0x01, 0x7C);
}

/* Window rows of position pos, all layers: E4M3 values below 2, scales of 1. */
static void fill_window(const kvcsa_session *s, uint64_t pos)
{
    const kvi_window_geom *g = &s->geom;
    const kvi_plan        *plan = &s->model->plan;
    uint8_t               *page = ((uint8_t **)s->page_parts.data)[kvi_window_page_of(g, pos)];
    kvi_window_offs        at = {0};
    uint64_t               seed = mix(pos + (UINT64_C(1) << 60));

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        const size_t width = plan->rows[l].entry_width ? plan->rows[l].entry_width
                                                       : s->model->config.head_dim;
        uint8_t     *row = page + at.page + pos % g->page_rows * plan->rows[l].window_bytes;

        fill_bytes(row, width, &seed, 0xBF, 0);
        memset(row + width, 127, plan->rows[l].window_bytes - width);
        kvi_window_offs_pass(&at, g, &plan->rows[l]);
    }
}

/* user: u64 length to come; what no later row can see of the windows is left as it is. */
static void fill(void *user, const kvcsa_session *s, const kvi_net_slice *slice)
{
    const kvi_kv_layout *layout = &s->model->layout;
    const uint64_t       target = *(const uint64_t *)user;
    const uint64_t       ring = kvi_window_ring_rows(&s->geom);
    const uint64_t       last = slice->pos + slice->n_rows;

    for (uint32_t i = 0; i < layout->n_owners; i++) {
        const kvi_kv_owner *o = &layout->owners[i];

        for (uint64_t j = slice->pos / o->ratio; j < last / o->ratio; j++)
            fill_entry(o, j, slice->index_parts[j / o->rows_per_block],
                       slice->main_parts[j / o->rows_per_block]);
    }
    for (uint64_t pos = slice->pos; pos < last; pos++)
        if (pos + ring >= target)
            fill_window(s, pos);
}

int32_t long_token(uint64_t position)
{
    return (int32_t)(3 + mix(position) % (VOCAB_USED - 3));
}

static void append(kvcsa_session *s, uint64_t n, uint32_t logits)
{
    const uint64_t      pos = kvcsa_session_length(s);
    int32_t             ids[FILL_TOKENS];
    kvcsa_append_params p;
    kvcsa_error         err;

    for (uint64_t i = 0; i < n; i++)
        ids[i] = long_token(pos + i);
    kvcsa_append_params_default(&p, sizeof p);
    p.logits = logits;
    if (kvcsa_session_append(s, ids, n, &p, NULL, &err) != KVCSA_OK)
        die("append", err.text);
}

void long_fill(long_world *w, kvcsa_session *s, uint64_t n_tokens)
{
    kvcsa_error err;

    if (n_tokens % 2) /* no raw rows are made */
        die("fill", "the length is odd");
    kvi_session_set_filler(s, fill, &n_tokens);
    while (kvcsa_session_length(s) < n_tokens) {
        append(s, kvi_min_size(n_tokens - kvcsa_session_length(s), FILL_TOKENS),
               KVCSA_LOGITS_NONE);
        if (kvcsa_pool_step(w->pool, &s, 1, NULL, NULL, &err) != KVCSA_OK)
            die("fill", err.text);
    }
    kvi_session_set_filler(s, NULL, NULL);
}

int64_t long_run(long_world *w, kvcsa_session *s, uint32_t n)
{
    kvcsa_error err;
    int64_t     start;

    memset(&w->step, 0, sizeof w->step);
    append(s, n, KVCSA_LOGITS_LAST);
    start = now_ns();
    if (kvcsa_pool_step(w->pool, &s, 1, NULL, NULL, &err) != KVCSA_OK)
        die("step", err.text);
    return w->step.total_ns = now_ns() - start;
}

/* ------------------------------------------------------------------ checking a step */

static const uint32_t selectors[LONG_SELECTORS] = {2, 8, 14, 20, 24, 28, 32, 36};

/* From the ids that a selecting layer took; NULL, or what is wrong with them. */
static const char *pick_by_ids(const long_world *w, int i, uint64_t pos, work_pick *pick)
{
    const work_limits     none = {0};
    const uint32_t        layer = selectors[i];
    const kvcsa_plan_row *r = &w->plan.rows[layer];
    const uint32_t        rows = w->plan.block_tokens / r->ratio;
    const long_step      *step = &w->step;
    const int32_t        *ids = step->ids[i];
    uint32_t              b = 0;

    *pick = work_pick_of(&w->plan, layer, pos, &none);
    for (uint64_t k = 0; k < LONG_TOP_K; k++) {
        if (ids[k] < 0 || (uint64_t)ids[k] >= (pos + 1) / r->ratio)
            return "an id is not one of a visible entry";
        if (k && ids[k] <= ids[k - 1])
            return "ids do not ascend";
        if (i < LONG_FULL)
            continue;
        while (b < step->n_blocks && step->blocks[b] < ids[k] / LONG_BLOCK_ENTRIES)
            b++;
        if (b == step->n_blocks || step->blocks[b] != ids[k] / LONG_BLOCK_ENTRIES)
            return "an id lies outside the candidate blocks";
    }
    pick->main_parts = work_count_parts(ids, LONG_TOP_K, rows);
    if (i >= LONG_FULL)
        pick->index_parts = work_count_parts(step->blocks, step->n_blocks,
                                             rows / LONG_BLOCK_ENTRIES);
    return NULL;
}

static const char *picks_of(const long_world *w, uint64_t pos, work_pick *picks)
{
    const long_step *step = &w->step;
    const char      *wrong = NULL;

    if (step->n_scores != LONG_SELECTORS || step->n_topk != LONG_SELECTORS ||
        step->n_candidates != 1 || step->n_attends != LONG_LAYERS)
        return "not every selecting layer scored once, or not every layer attended once";
    for (int i = 0; i < LONG_SELECTORS && !wrong; i++)
        wrong = pick_by_ids(w, i, pos, &picks[selectors[i]]);
    return wrong;
}

static const char *check_reads(const long_world *w, uint64_t n, uint64_t read_bytes)
{
    static char    text[160];
    kvcsa_cost     cost = {.struct_size = sizeof cost};
    const uint64_t lacks = n > 16384 ? (8 - n % 8) % 8 : 0; /* of the newest candidate block */
    const uint64_t read = read_bytes + 4 * lacks * 68;

    if (kvcsa_model_cost(w->model, n, &cost, NULL) != KVCSA_OK)
        return "no cost";
    snprintf(text, sizeof text, "%llu bytes are read at %llu tokens, the plan says %llu",
             (unsigned long long)read, (unsigned long long)n, (unsigned long long)cost.read_bytes);
    if (read != cost.read_bytes)
        return text;
    return n % 2 || read == work_released_read_bytes(n) ? NULL : "not what is published";
}

const char *long_check_step(long_world *w, kvcsa_session *s, uint32_t n)
{
    static char    text[192];
    const uint64_t end_pos = kvcsa_session_length(s);
    work_pick      picks[LONG_LAYERS] = {{0}};
    kvcsa_work     want[LONG_LAYERS] = {{0}};
    uint64_t       read_bytes = 0;
    const char    *wrong = n == 1 ? picks_of(w, end_pos - 1, picks) : NULL;
    work_forward   f = {.begin = end_pos - n, .end = end_pos, .chunk = n};

    if (wrong)
        return wrong;
    if (n == 1) {
        f.picks = picks;
        f.first_pick = end_pos - 1;
        f.n_picks = 1;
    }
    work_add_forward(&w->plan, &f, want);
    for (uint32_t l = 0; l < LONG_LAYERS; l++) {
        kvcsa_work got;

        if (kvcsa_session_layer_work(s, l, &got, NULL, NULL) != KVCSA_OK)
            return "no counts";
        read_bytes += got.read_bytes;
        if ((wrong = work_differs(&got, &want[l], n == 1 ? 0 : WORK_BUT_PARTS))) {
            snprintf(text, sizeof text, "layer %u: %s", l, wrong);
            return text;
        }
    }
    return n == 1 ? check_reads(w, end_pos, read_bytes) : NULL;
}

/* ------------------------------------------------------------------ figures */

long_times long_times_of(const long_world *w)
{
    const long_step *step = &w->step;
    long_times       t = {.full_ns = step->candidates_ns};

    for (int i = 0; i < LONG_SELECTORS; i++) {
        int64_t *sum = i < LONG_FULL ? &t.full_ns : &t.reindex_ns;

        *sum += step->score_ns[i] + step->topk_ns[i];
    }
    for (uint32_t l = 0; l < LONG_LAYERS; l++) {
        const uint32_t g = work_group(&w->plan, l);

        t.attend_ns += g == KVCSA_LAYERS_WINDOW ? 0 : step->attend_ns[l];
        t.reuse_ns += g == KVCSA_LAYERS_REUSE ? step->attend_ns[l] : 0;
    }
    return t;
}

static uint64_t page_memory(const kvcsa_pool *pool)
{
    uint64_t n = 0;

    for (const kvi_block_class *c = pool->classes; c; c = c->next)
        for (const kvi_slab *slab = c->slabs; slab && c->shape.kind == KVI_CLASS_WINDOW;
             slab = slab->next)
            n += slab->n_blocks * (c->index_stride + c->main_stride) + sizeof(kvi_slab) +
                 slab->n_blocks * sizeof(kvi_block);
    return n;
}

long_memory long_memory_of(long_world *w, kvcsa_session *s)
{
    const uint64_t logits = sizeof(kvi_logits) + s->model->config.vocab_size * sizeof(float);
    long_memory    m = {.window_bytes = page_memory(w->pool),
                        .logits_bytes = (s->now.logits ? logits : 0) +
                                        (s->next_logits ? logits : 0),
                        .workspace_bytes = kvi_net_workspace_bytes(s->net)};
    kvcsa_session_stats st = {.struct_size = sizeof st};
    kvcsa_error         err;

    if (kvcsa_session_get_stats(s, &st, &err) != KVCSA_OK)
        die("statistics", err.text);
    m.payload_bytes = st.entry_bytes;
    m.other_bytes = atomic_load(&w->n_bytes) - w->empty_bytes - m.window_bytes - m.logits_bytes -
                    m.workspace_bytes;
    m.overhead = (double)m.other_bytes / (double)m.payload_bytes - 1;
    return m;
}
