/* bench [--only PART,...] [--quick] [--out FILE] [--json] [--peers DIR] [--one-thread] [--cpu-clock] [--tries N]
 *       [--model DIR]... [--prompt N] [--decode N] [--threads N]... [--dir DIR] [--list]
 *
 * Parts, each of which runs alone in two minutes: speed (models), pool, snapshot, long (the cache, see bench.h), append, index,
 * topk, attend, gqa, gemv, gemm, threads, step, call (operators, see bench_kernels.h). --list prints their names. Peers are shims
 * that `make bench-peers` builds; without one its rows say "peer absent". --quick takes small sizes and few runs: it shows that
 * everything works, not how fast. --cpu-clock measures the time of the thread instead of the wall, for a machine that others use
 * (one thread only). A case that was disturbed is measured up to --tries times. --out writes the results as JSON: parts that did not
 * run stay in the file as they are. Files of the cache's parts are made in --dir, which is the program's own folder without it.
 *
 * speed: prefill and decode by number of threads, each with its share of what the machine could do: the limit of a token is the
 * larger of (multiply-adds / peak) and (bytes touched / read bandwidth over a buffer as large as the weights), both measured
 * here. Multiply-adds and bytes of the matrices are counted from the tensors in the files: an expert counts by the share of
 * experts in use, embedding and n-gram tables by nothing. Prefill reads the weights once per chunk, so its limit is that of
 * multiply-adds. */
#include "bench_kernels.h"

#include "bench_json.h"
#include "kvcsa.h"
#include "support/st_io.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MODELS  8u
#define MAX_COUNTS  8u
#define MEMORY_SIZE ((size_t)512 << 20)
#define TRIES       3

/* A part has one of the functions; speed has none. */
typedef struct part {
    const char *name;
    void (*cache)(const bench_cache_params *p, bench_rows *out);
    void (*kernels)(kernel_bench *b);
} part;

typedef struct options {
    const char *models[MAX_MODELS];
    uint32_t    prompts[MAX_MODELS];
    uint32_t    threads[MAX_COUNTS];
    size_t      n_models, n_threads;
    uint32_t    prompt, decode, tries;
    int         json, quick, one_thread;
    const char *only; /* names, with commas between them; NULL = all parts */
    const char *out;
    char        dir[512];
    char        peers[512];
} options;

typedef struct work {          /* of one token */
    double   weight_bytes;     /* touched */
    double   multiply_adds;    /* of the matrices */
    double   attend_adds;      /* multiply-adds of index scores and attention at the context of the measurement */
    uint64_t all_bytes;
} work;

typedef struct row {
    const char *model;
    uint32_t    threads, prompt;
    double      prefill, decode;             /* tokens/s */
    double      prefill_limit, decode_limit;
    double      weight_bytes, read_bytes, rate_bytes, multiply_adds;
    double      peak_fma, peak_read;
} row;

static uint32_t number(const char *text, uint32_t lo, uint32_t hi)
{
    char               *end;
    const unsigned long v = strtoul(text, &end, 10);

    if (*end || end == text || v < lo || v > hi)
        bench_die(text, "not a number in range");
    return (uint32_t)v;
}

static void both_of_pool(const bench_cache_params *p, bench_rows *out)
{
    bench_memory(p, out);
    bench_pool(p, out);
}

static const options *the_options; /* for the one that wants the folder */
static void step(kernel_bench *b)
{
    bench_step(b, the_options->dir);
}

static const part parts[] = {{"speed", NULL, NULL},          {"pool", both_of_pool, NULL}, {"snapshot", bench_snapshot, NULL},
                             {"long", bench_long, NULL},     {"append", NULL, bench_append}, {"index", NULL, bench_index},
                             {"topk", NULL, bench_topk},     {"attend", NULL, bench_sparse}, {"gqa", NULL, bench_gqa},
                             {"gemv", NULL, bench_gemv},     {"gemm", NULL, bench_gemm},     {"threads", NULL, bench_threads},
                             {"step", NULL, step},           {"call", NULL, bench_calls}};
enum { N_PARTS = sizeof parts / sizeof *parts };

/* Whether `name` is one of the list; NULL = all. */
static int is_listed(const char *list, const char *name)
{
    const size_t n = strlen(name);

    if (!list)
        return 1;
    for (const char *s = list; (s = strstr(s, name)); s += n)
        if ((s == list || s[-1] == ',') && (s[n] == ',' || s[n] == 0))
            return 1;
    return 0;
}

static void check_list(const char *list)
{
    char   name[32];
    size_t n;

    for (; *list; list += n + (list[n] == ',')) {
        int known = 0;

        n = strcspn(list, ",");
        snprintf(name, sizeof name, "%.*s", (int)n, list);
        for (size_t i = 0; i < N_PARTS; i++)
            known |= strcmp(parts[i].name, name) == 0;
        if (!known)
            bench_die(name, "not a part; --list names them");
    }
}

static void own_folder(const char *program, char *dir, size_t cap)
{
    const char *slash = strrchr(program, '/');

    snprintf(dir, cap, "%.*s", slash ? (int)(slash - program) : 1, slash ? program : ".");
}

static double config_number(const char *dir, const char *key)
{
    char         path[1024];
    json_error_t je;
    json_t      *root;
    double       v;

    snprintf(path, sizeof path, "%s/config.json", dir);
    if (!(root = json_load_file(path, 0, &je)))
        bench_die(path, je.text);
    v = (double)json_integer_value(json_object_get(json_object_get(root, "text_config"), key));
    json_decref(root);
    return v;
}

static void read_options(int argc, char **argv, options *o)
{
    *o = (options){.prompt = 1024, .decode = 64, .tries = 3};
    own_folder(argv[0], o->dir, sizeof o->dir);
    snprintf(o->peers, sizeof o->peers, "%.480s/../peers", o->dir);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            o->json = 1;
        else if (strcmp(argv[i], "--quick") == 0)
            o->quick = 1;
        else if (strcmp(argv[i], "--one-thread") == 0)
            o->one_thread = 1;
        else if (strcmp(argv[i], "--cpu-clock") == 0) {
            bench_use_cpu_clock();
            o->one_thread = 1;
        } else if (strcmp(argv[i], "--list") == 0) {
            for (size_t k = 0; k < N_PARTS; k++)
                puts(parts[k].name);
            exit(0);
        } else if (i + 1 == argc)
            bench_die(argv[i], "unknown option, or without its value");
        else if (strcmp(argv[i], "--model") == 0 && o->n_models < MAX_MODELS)
            o->models[o->n_models++] = argv[++i];
        else if (strcmp(argv[i], "--threads") == 0 && o->n_threads < MAX_COUNTS)
            o->threads[o->n_threads++] = number(argv[++i], 1, 64);
        else if (strcmp(argv[i], "--prompt") == 0)
            o->prompt = number(argv[++i], 1, 1 << 20);
        else if (strcmp(argv[i], "--decode") == 0)
            o->decode = number(argv[++i], 1, 1 << 20);
        else if (strcmp(argv[i], "--only") == 0)
            check_list(o->only = argv[++i]);
        else if (strcmp(argv[i], "--tries") == 0)
            o->tries = number(argv[++i], 1, 20);
        else if (strcmp(argv[i], "--out") == 0)
            o->out = argv[++i];
        else if (strcmp(argv[i], "--peers") == 0)
            snprintf(o->peers, sizeof o->peers, "%s", argv[++i]);
        else if (strcmp(argv[i], "--dir") == 0)
            snprintf(o->dir, sizeof o->dir, "%s", argv[++i]);
        else
            bench_die(argv[i], "unknown option, or one too many");
    }
    if (o->quick) {
        o->prompt = o->prompt < 256 ? o->prompt : 256;
        o->decode = o->decode < 16 ? o->decode : 16;
        o->tries = 1;
    }
    for (size_t i = 0; i < MAX_MODELS; i++)
        o->prompts[i] = o->prompt;
    if (!o->n_models) {
        o->models[o->n_models++] = "examples/models/tiny";
        if (!o->quick) { /* to the end of its context */
            o->models[o->n_models] = "examples/models/tiny";
            o->prompts[o->n_models++] = (uint32_t)config_number("examples/models/tiny", "max_position_embeddings") - o->decode;
        }
        o->models[o->n_models++] = "test/data/t1";
    }
    if (!o->n_threads) {
        o->threads[o->n_threads++] = 1;
        if (!o->one_thread)
            o->threads[o->n_threads++] = 2;
    }
    bench_set_tries(o->tries);
}

/* ------------------------------------------------------------------ counting */

static int ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s);
    const size_t m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

static int is_skipped(const kvcsa_model_info *info, const char *name)
{
    const size_t n = strlen(name);

    for (const char *s = info->skipped_names; (s = strstr(s, name)); s++)
        if ((s == info->skipped_names || s[-1] == '\n') && (s[n] == '\n' || s[n] == 0))
            return 1;
    return 0;
}

static void count_tensor(const st_tensor *t, double expert_share, work *w)
{
    const double share = strstr(t->name, ".experts.") ? expert_share : 1;
    double       n = 1;

    w->all_bytes += t->n_bytes;
    if (strcmp(t->name, "embed.weight") == 0 || strstr(t->name, ".engram.embed."))
        return;
    w->weight_bytes += share * (double)t->n_bytes;
    if (t->n_dims != 2 || ends_with(t->name, ".scale"))
        return;
    for (uint32_t i = 0; i < 2; i++)
        n *= (double)t->shape[i];
    w->multiply_adds += share * n * (strcmp(t->dtype, "I8") == 0 ? 2 : 1); /* two FP4 codes in a byte */
}

static void count_attention(const kvcsa_model *model, double heads, uint32_t n_tokens, uint32_t n_layers, work *w)
{
    for (uint32_t l = 0; l < n_layers; l++) {
        kvcsa_plan_row r = {.struct_size = sizeof r};
        kvcsa_error    err;
        double         entries;
        double         rows;

        if (kvcsa_model_plan_row(model, l, &r, &err) != KVCSA_OK)
            bench_die("plan row", err.text);
        entries = r.ratio ? (double)(n_tokens / r.ratio) : 0;
        rows = (n_tokens < r.window_tokens ? n_tokens : r.window_tokens) +
               (entries < r.select_entries ? entries : (double)r.select_entries);
        w->attend_adds += 2 * heads * (double)r.entry_width * rows;
        if (r.select == KVCSA_SELECT_OWN || r.select == KVCSA_SELECT_REINDEX)
            w->attend_adds += (double)r.index_heads * (double)r.index_width * entries;
    }
}

static void count(const char *dir, const kvcsa_model *model, const kvcsa_model_info *info, uint32_t n_tokens, work *w)
{
    const double   share = config_number(dir, "num_experts_per_tok") / config_number(dir, "n_routed_experts");
    DIR           *d = opendir(dir);
    struct dirent *e;
    char           err[256];

    memset(w, 0, sizeof *w);
    if (!d)
        bench_die(dir, "cannot be listed");
    while ((e = readdir(d))) {
        char     path[1024];
        st_file *f;

        if (!ends_with(e->d_name, ".safetensors"))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (!(f = st_open(path, err, sizeof err)))
            bench_die(path, err);
        for (size_t i = 0; i < st_count(f); i++)
            if (!is_skipped(info, st_at(f, i)->name))
                count_tensor(st_at(f, i), share, w);
        st_close(f);
    }
    closedir(d);
    count_attention(model, config_number(dir, "num_attention_heads"), n_tokens, info->n_layers, w);
}

/* ------------------------------------------------------------------ measuring */

static void compute(kvcsa_pool *pool, kvcsa_session *session, const int32_t *ids, size_t n)
{
    kvcsa_error err;

    if (kvcsa_session_append(session, ids, n, NULL, NULL, &err) != KVCSA_OK ||
        kvcsa_pool_step(pool, &session, 1, NULL, NULL, &err) != KVCSA_OK)
        bench_die("step", err.text);
}

/* Ids all over the vocabulary, the same in every run; specials lie at the ends. */
static int32_t *make_ids(const kvcsa_model_info *info, size_t n)
{
    int32_t *ids = malloc(n * sizeof *ids);
    uint32_t x = 12345;

    if (!ids)
        bench_die("memory", "out of it");
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)(3 + (x >> 8) % (info->vocab_tokens - 16));
    }
    return ids;
}

static void measure(const options *o, kvcsa_model *model, const kvcsa_model_info *info, row *r)
{
    int32_t          *ids = make_ids(info, (size_t)r->prompt + o->decode);
    kvcsa_pool       *pool = NULL;
    kvcsa_pool_params pp;
    kvcsa_error       err;

    kvcsa_pool_params_default(&pp, sizeof pp);
    pp.n_threads = r->threads;
    if (kvcsa_pool_create(&pp, &pool, &err) != KVCSA_OK)
        bench_die("pool", err.text);
    for (int i = 0; i < TRIES; i++) {
        kvcsa_session *session = NULL;
        kvcsa_session_params params;
        int64_t        t[3];

        kvcsa_session_params_default(&params, sizeof params);
        params.reuse = KVCSA_REUSE_NONE; /* else the second run would find what the first computed */
        if (kvcsa_session_create(pool, model, &params, &session, &err) != KVCSA_OK)
            bench_die("session", err.text);
        t[0] = bench_now_ns();
        compute(pool, session, ids, r->prompt);
        t[1] = bench_now_ns();
        for (uint32_t k = 0; k < o->decode; k++)
            compute(pool, session, ids + r->prompt + k, 1);
        t[2] = bench_now_ns();
        kvcsa_session_release(&session);
        if (r->prompt * 1e9 / (double)(t[1] - t[0]) > r->prefill)
            r->prefill = r->prompt * 1e9 / (double)(t[1] - t[0]);
        if (o->decode * 1e9 / (double)(t[2] - t[1]) > r->decode)
            r->decode = o->decode * 1e9 / (double)(t[2] - t[1]);
    }
    kvcsa_pool_release(&pool);
    free(ids);
}

/* Rows of one model; returns how many. */
static size_t bench_model(const options *o, const char *dir, uint32_t prompt, row *rows)
{
    kvcsa_model     *model = NULL;
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_cost       cost = {.struct_size = sizeof cost};
    kvcsa_error      err;
    work             w;
    work             half;

    if (kvcsa_model_open(dir, NULL, &model, &err) != KVCSA_OK || kvcsa_model_get_info(model, &info, &err) != KVCSA_OK ||
        kvcsa_model_cost(model, (uint64_t)prompt + o->decode, &cost, &err) != KVCSA_OK)
        bench_die(dir, err.text);
    count(dir, model, &info, prompt + o->decode, &w);
    count(dir, model, &info, prompt / 2, &half); /* the mean context of prefill */
    for (size_t i = 0; i < o->n_threads; i++) {
        row *r = &rows[i];

        *r = (row){.model = dir, .threads = o->threads[i], .prompt = prompt, .weight_bytes = w.weight_bytes,
                   .multiply_adds = w.multiply_adds + w.attend_adds, .read_bytes = (double)cost.read_bytes,
                   .rate_bytes = (double)cost.rate_bytes_per_token};
        r->peak_fma = roofline_fma(r->threads);
        r->peak_read = roofline_read(w.all_bytes, r->threads);
        measure(o, model, &info, r);
        r->prefill_limit = r->peak_fma / (half.multiply_adds + half.attend_adds);
        r->decode_limit = r->peak_fma / r->multiply_adds;
        if (r->peak_read / (r->weight_bytes + r->read_bytes) < r->decode_limit)
            r->decode_limit = r->peak_read / (r->weight_bytes + r->read_bytes);
    }
    kvcsa_model_release(&model);
    return o->n_threads;
}

/* ------------------------------------------------------------------ printing */

static json_t *pack_models(const options *o, const row *rows, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++) {
        const row *r = &rows[i];

        json_array_append_new(
            list, json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "model", r->model, "threads", (int)r->threads,
                            "prompt_tokens", (int)r->prompt, "decode_tokens", (int)o->decode, "prefill_tokens_per_second", r->prefill,
                            "prefill_limit", r->prefill_limit, "decode_tokens_per_second", r->decode, "decode_limit", r->decode_limit,
                            "weight_bytes_per_token", r->weight_bytes, "cache_read_bytes_per_token", r->read_bytes,
                            "cache_rate_bytes_per_token", r->rate_bytes, "multiply_adds_per_token", r->multiply_adds,
                            "peak_multiply_adds_per_second", r->peak_fma, "peak_read_bytes_per_second", r->peak_read));
    }
    return list;
}

static void print_models(const options *o, const row *rows, size_t n, double memory)
{
    printf("kvcsa %s; prefill of a prompt, then %u tokens one by one; best of %d. Memory read: %.1f GB/s (1 thread)\n\n",
           kvcsa_version_string(), o->decode, TRIES, memory / 1e9);
    printf("%-22s %7s %7s | %9s %9s %6s | %9s %9s %6s | %s\n", "model", "prompt", "threads", "prefill/s", "limit", "share", "decode/s",
           "limit", "share", "peer");
    for (size_t i = 0; i < n; i++) {
        const row *r = &rows[i];

        printf("%-22s %7u %7u | %9.1f %9.0f %5.1f%% | %9.1f %9.0f %5.1f%% | absent\n", r->model, r->prompt, r->threads, r->prefill,
               r->prefill_limit, 100 * r->prefill / r->prefill_limit, r->decode, r->decode_limit,
               100 * r->decode / r->decode_limit);
    }
    printf("\n%-22s %7s | %12s %12s %12s %14s | %12s %14s\n", "model", "threads", "weights B", "cache read B", "cache rate B",
           "multiply-adds", "read GB/s", "peak Gmadd/s");
    for (size_t i = 0; i < n; i++) {
        const row *r = &rows[i];

        printf("%-22s %7u | %12.0f %12.0f %12.10g %14.0f | %12.1f %14.1f\n", r->model, r->threads, r->weight_bytes,
               r->read_bytes, r->rate_bytes, r->multiply_adds, r->peak_read / 1e9, r->peak_fma / 1e9);
    }
    printf("\nPer token, decoding. Read: over a buffer as large as the weights. Peak: fp32 in registers, %s.\n"
           "peer absent: no other program that runs this format was found on this machine.\n",
           roofline_isa());
}

/* ------------------------------------------------------------------ parts */

static void run_speed(const options *o, json_t *part_json)
{
    row          rows[MAX_MODELS * MAX_COUNTS];
    size_t       n = 0;
    const double memory = roofline_read(MEMORY_SIZE, 1);

    for (size_t i = 0; i < o->n_models; i++)
        n += bench_model(o, o->models[i], o->prompts[i], rows + n);
    if (!o->json)
        print_models(o, rows, n, memory);
    json_object_set_new(part_json, "models", pack_models(o, rows, n));
    json_object_set_new(part_json, "limits", json_pack("{s:f}", "read_bytes_per_second", memory));
}

static void run_cache(const options *o, const part *p, json_t *part_json)
{
    static bench_rows  out;
    bench_cache_params params = {.config = "test/data/v41-flash-config.json",
                                 .folder = o->dir,
                                 .largest = o->quick ? 131072 : 1048576,
                                 .n_runs = o->quick ? 3 : 15};
    const uint64_t     free_bytes = bench_free_memory();

    if (free_bytes && free_bytes < (uint64_t)6 << 30)
        params.largest = 131072; /* 1M tokens take 4 GB with what they are compared with */
    out.n = 0;
    p->cache(&params, &out);
    if (!o->json)
        bench_print(&out);
    json_object_set_new(part_json, "rows", bench_json_rows(&out));
}

static void run_kernels(const options *o, const part *p, json_t *part_json)
{
    static bench_rows out;
    kernel_bench      b;
    const double     *l = b.limits;

    out.n = 0;
    kernel_bench_open(&b, o->peers, o->quick ? 5 : 15, o->quick, o->one_thread);
    b.out = &out;
    kernel_bench_limits(&b);
    p->kernels(&b);
    if (!o->json) {
        bench_print_kernels(&out);
        printf("limits of one thread at the start: %.1f GFLOP/s fp32 FMA (AVX2 %.1f), %.0f GOP/s int8, read %.1f GB/s, L3 %.1f GB/s, "
               "L2 %.0f GB/s, copy %.1f GB/s; two threads: read %.1f GB/s\n",
               2e-9 * l[ROOFLINE_FMA], 2e-9 * l[ROOFLINE_FMA_AVX2], 2e-9 * l[ROOFLINE_DOT8], l[ROOFLINE_READ] / 1e9,
               l[ROOFLINE_L3] / 1e9, l[ROOFLINE_L2] / 1e9, b.copy / 1e9, b.read2 / 1e9);
        fflush(stdout);
    }
    json_object_set_new(part_json, "rows", bench_json_rows(&out));
    json_object_set_new(part_json, "limits",
                        json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "fma_per_second", l[ROOFLINE_FMA], "fma_avx2_per_second",
                                  l[ROOFLINE_FMA_AVX2], "int8_products_per_second", l[ROOFLINE_DOT8], "read_bytes_per_second",
                                  l[ROOFLINE_READ], "read_2_threads_bytes_per_second", b.read2, "read_l2_bytes_per_second",
                                  l[ROOFLINE_L2], "read_l3_bytes_per_second", l[ROOFLINE_L3], "copy_bytes_per_second", b.copy));
    kernel_bench_close(&b);
}

int main(int argc, char **argv)
{
    options o;
    json_t *root;

    read_options(argc, argv, &o);
    the_options = &o;
    root = bench_json_open(o.out);
    for (size_t i = 0; i < N_PARTS; i++) {
        const int64_t start = bench_now_ns();
        json_t       *part_json;

        if (!is_listed(o.only, parts[i].name))
            continue;
        part_json = bench_json_part(o.quick);
        if (!o.json)
            printf("\n== %s\n", parts[i].name);
        if (parts[i].kernels)
            run_kernels(&o, &parts[i], part_json);
        else if (parts[i].cache)
            run_cache(&o, &parts[i], part_json);
        else
            run_speed(&o, part_json);
        json_object_set_new(part_json, "peers", json_string(bench_peer_versions()));
        json_object_set_new(part_json, "seconds", json_real((double)(bench_now_ns() - start) / 1e9));
        json_object_set_new(json_object_get(root, "parts"), parts[i].name, part_json);
        bench_json_save(root, o.out); /* what follows may take long */
    }
    if (!o.json) {
        printf("\nGoals are about medians. x': our time over that of the peer. disturbed: other programs ran meanwhile, or the clock "
               "changed, in every try.\n%s",
               bench_peer_versions());
    } else {
        json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        putchar('\n');
    }
    json_decref(root);
    return 0;
}
