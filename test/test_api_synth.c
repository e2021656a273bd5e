/* Synthetic checkpoints through the public header: what is written opens, runs and is the same
 * again; what cannot be written says why and leaves nothing. */
#include <math.h>

#include "support/snap.h"
#include "support/st_io.h"

#define SMALL_CONFIG "test/data/synth-small.json"
#define CACHE_CONFIG "test/data/synth-released-cache.json"

typedef struct fixture {
    snap_dir dir;
    snap_dir made; /* not there yet */
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->dir = snap_dir_make();
    (void)snprintf(f->made.path, sizeof f->made.path, "%.200s/made", f->dir.path);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    snap_dir_remove(&f->dir);
    free(f);
    return 0;
}

static int is_there(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static kvcsa_synth_params with_seed(uint64_t seed)
{
    kvcsa_synth_params p;

    kvcsa_synth_params_default(&p, sizeof p);
    p.seed = seed;
    return p;
}

static kvcsa_synth_info make(const char *config, const char *dir, const kvcsa_synth_params *p)
{
    kvcsa_synth_info info = {.struct_size = sizeof info};
    kvcsa_error      err;

    assert_ok(kvcsa_synth_checkpoint(config, dir, p, &info, &err));
    return info;
}

/* ------------------------------------------------------------------ what is written */

/* Text goes through the tokenizer and back, conversations find their special tokens, and the rows
 * have finite logits that differ. */
static void check_model(const char *dir)
{
    static const char   text[] = "Badu koki, 12345 \xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80\n\tx";
    const kvcsa_message message = {.role = "user", .text = "badu koki"};
    kvcsa_model        *model = host_model(dir);
    kvcsa_model_info    info = {.struct_size = sizeof info};
    kvcsa_pool         *pool = host_pool(1, 0);
    kvcsa_session      *s = host_session(pool, model, 0);
    host_rows           rows;
    int32_t             ids[256];
    char                back[256];
    size_t              n = 0;
    size_t              n_bytes = 0;
    double              sum2 = 0;
    kvcsa_error         err;

    assert_ok(kvcsa_model_get_info(model, &info, &err));
    assert_int_equal(info.n_skipped_tensors, 0);
    assert_ok(kvcsa_model_tokenize(model, text, sizeof text - 1, 0, ids, 256, &n, &err));
    assert_ok(kvcsa_model_detokenize(model, ids, n, back, sizeof back, &n_bytes, &err));
    assert_int_equal(n_bytes, sizeof text - 1);
    assert_memory_equal(back, text, n_bytes);
    assert_ok(kvcsa_model_chat_prompt(model, &message, 1, ids + n, 256 - n, &n_bytes, &err));
    n += n_bytes;
    rows = host_rows_make(n, info.vocab_tokens);
    host_run(pool, s, ids, n, &rows);
    assert_int_equal(rows.n, n);
    for (size_t i = 0; i < n * info.vocab_tokens; i++) {
        assert_true(isfinite(rows.data[i]));
        sum2 += (double)rows.data[i] * rows.data[i];
    }
    assert_in_range((uint64_t)(1000 * sqrt(sum2 / (double)(n * info.vocab_tokens))), 1200, 1800);
    free(rows.data);
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&model);
}

static void test_checkpoints_open_and_run(void **state)
{
    static const struct {
        const char *config;
        uint32_t    n_tensors;
        uint64_t    n_bytes;
    } all[] = {
        {T1_DIR "/config.json", 1051, 5816258},
        {TINY_DIR "/config.json", 643, 7056286},
        {SMALL_CONFIG, 263, 407214},
    };
    fixture *f = *state;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const kvcsa_synth_params p = with_seed(i);
        const kvcsa_synth_info   info = make(all[i].config, f->made.path, &p);

        assert_int_equal(info.n_tensors, all[i].n_tensors);
        assert_int_equal(info.total_bytes, all[i].n_bytes);
        assert_int_equal(info.n_shards, 1);
        assert_int_equal(snap_dir_count(&f->made), 4); /* shard, index, tokenizer, config */
        check_model(f->made.path);
        snap_dir_remove(&f->made);
    }
}

/* A complete configuration is copied byte for byte; the size of the compressed vocabulary is added
 * where it is left out, and asked for where it is given. */
static void test_the_configuration_is_kept_or_completed(void **state)
{
    fixture                 *f = *state;
    const snap_path          path = snap_in(&f->dir, "made/config.json");
    const kvcsa_synth_params p = with_seed(0);
    size_t                   n = 0;
    size_t                   n_was = 0;
    char                    *was = read_file(T1_DIR "/config.json", &n_was);
    char                    *text;

    make(T1_DIR "/config.json", f->made.path, &p);
    text = read_file(path.text, &n);
    assert_int_equal(n, n_was);
    assert_memory_equal(text, was, n);
    free(text);
    free(was);
    snap_dir_remove(&f->made);

    make(SMALL_CONFIG, f->made.path, &p);
    text = read_file(path.text, &n);
    assert_non_null(strstr(text, "\"engram_compressed_vocab_size\": 263"));
    free(text);
    snap_dir_remove(&f->made);
}

/* Every tensor of every shard, by name. */
typedef struct all_tensors {
    st_file *files[300];
    size_t   n_files;
    size_t   n;
} all_tensors;

static void open_shard(void *user, const char *path, const char *name)
{
    all_tensors *a = user;
    char         text[256];

    if (!strstr(name, ".safetensors") || strstr(name, ".json"))
        return;
    assert_true(a->n_files < sizeof a->files / sizeof *a->files);
    if (!(a->files[a->n_files] = st_open(path, text, sizeof text)))
        fail_msg("%s", text);
    a->n += st_count(a->files[a->n_files++]);
}

static const st_tensor *find(const all_tensors *a, const char *name)
{
    const st_tensor *t = NULL;

    for (size_t i = 0; i < a->n_files && !t; i++)
        t = st_find(a->files[i], name);
    return t;
}

static all_tensors read_all(const snap_dir *d)
{
    all_tensors a = {.n = 0};

    snap_dir_each(d, open_shard, &a);
    return a;
}

static void close_all(all_tensors *a)
{
    for (size_t i = 0; i < a->n_files; i++)
        st_close(a->files[i]);
}

static size_t count_equal(const all_tensors *a, const all_tensors *b)
{
    size_t n = 0;

    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n_files; i++)
        for (size_t k = 0; k < st_count(a->files[i]); k++) {
            const st_tensor *x = st_at(a->files[i], k);
            const st_tensor *y = find(b, x->name);

            assert_non_null(y);
            assert_string_equal(x->dtype, y->dtype);
            assert_int_equal(x->n_dims, y->n_dims);
            assert_memory_equal(x->shape, y->shape, x->n_dims * sizeof x->shape[0]);
            assert_int_equal(x->n_bytes, y->n_bytes);
            n += memcmp(x->data, y->data, x->n_bytes) == 0;
        }
    return n;
}

static uint64_t fingerprint(const char *dir)
{
    kvcsa_model     *model = host_model(dir);
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_error      err;

    assert_ok(kvcsa_model_get_info(model, &info, &err));
    kvcsa_model_release(&model);
    return info.fingerprint;
}

static void test_bytes_depend_on_the_seed_and_not_on_shards(void **state)
{
    fixture           *f = *state;
    kvcsa_synth_params p = with_seed(4);
    snap_dir           few = f->made;
    snap_dir           many = snap_dir_make_in(&f->dir, "many"); /* empty: that is fine */
    snap_dir           other = snap_dir_make_in(&f->dir, "other");
    kvcsa_synth_info   info;
    all_tensors        a, b, c;

    make(SMALL_CONFIG, few.path, &p);
    p.shard_bytes = 4000; /* less than the largest tensors, which are not cut */
    info = make(SMALL_CONFIG, many.path, &p);
    assert_in_range(info.n_shards, 60, 200);
    assert_int_equal(snap_dir_count(&many), info.n_shards + 3);
    p.seed = 5;
    make(SMALL_CONFIG, other.path, &p);
    a = read_all(&few);
    b = read_all(&many);
    c = read_all(&other);
    assert_int_equal(a.n, 263);
    assert_int_equal(count_equal(&a, &b), 263);
    /* scales have few values, so two small ones may be alike by chance */
    assert_in_range(count_equal(&a, &c), 0, 40);
    for (size_t i = 0; i < b.n_files; i++) {
        size_t n_bytes = 0;

        for (size_t k = 0; k < st_count(b.files[i]); k++)
            n_bytes += st_at(b.files[i], k)->n_bytes;
        assert_true(n_bytes <= 4000 || st_count(b.files[i]) == 1);
    }
    close_all(&a);
    close_all(&b);
    close_all(&c);
    assert_int_equal(fingerprint(few.path), fingerprint(many.path));
    assert_true(fingerprint(few.path) != fingerprint(other.path));
}

/* Without a directory the checkpoint is only counted. */
static void test_counting_needs_no_room(void **state)
{
    kvcsa_synth_params p = with_seed(0);
    kvcsa_synth_info   info;

    (void)state;
    info = make(RELEASE_CONFIG, NULL, &p); /* the text model of the release: 466.95 GiB */
    assert_int_equal(info.n_tensors, 93378);
    assert_int_equal(info.total_bytes, UINT64_C(501382549968));
    p.shard_bytes = UINT64_MAX;
    assert_int_equal(make(RELEASE_CONFIG, NULL, &p).n_shards, 1);
    p.shard_bytes = 1;
    assert_int_equal(make(RELEASE_CONFIG, NULL, &p).n_shards, 93378);
    info = make(CACHE_CONFIG, NULL, NULL);
    assert_int_equal(info.total_bytes, 80422844);
}

/* The cache of the small network is the release's, to the byte. */
static void test_the_cache_configuration_has_the_released_cache(void **state)
{
    kvcsa_model_params p;
    kvcsa_model       *models[2] = {NULL, NULL};
    kvcsa_error        err;

    (void)state;
    kvcsa_model_params_default(&p, sizeof p);
    p.flags = KVCSA_MODEL_PLAN_ONLY;
    assert_ok(kvcsa_model_open(RELEASE_CONFIG, &p, &models[0], &err));
    assert_ok(kvcsa_model_open(CACHE_CONFIG, &p, &models[1], &err));
    for (uint32_t layer = 0; layer < 40; layer++) {
        kvcsa_plan_row rows[2] = {{.struct_size = sizeof rows[0]}, {.struct_size = sizeof rows[0]}};

        for (size_t i = 0; i < 2; i++)
            assert_ok(kvcsa_model_plan_row(models[i], layer, &rows[i], &err));
        assert_memory_equal(&rows[0], &rows[1], sizeof rows[0]);
    }
    for (uint64_t n = 1000; n <= 1000000; n *= 10) {
        kvcsa_cost costs[2] = {{.struct_size = sizeof costs[0]}, {.struct_size = sizeof costs[0]}};

        for (size_t i = 0; i < 2; i++)
            assert_ok(kvcsa_model_cost(models[i], n, &costs[i], &err));
        assert_memory_equal(&costs[0], &costs[1], sizeof costs[0]);
        assert_int_equal(costs[1].persist_bytes, 890 * n);
    }
    kvcsa_model_release(&models[0]);
    kvcsa_model_release(&models[1]);
}

/* ------------------------------------------------------------------ what is not */

typedef struct stopper {
    uint64_t calls, stop_at; /* 0 = never */
    uint64_t last, total;
} stopper;

static int32_t on_progress(void *user, uint64_t n_done, uint64_t n_total)
{
    stopper *s = user;

    assert_true(n_done >= s->last && n_done <= n_total);
    s->last = n_done;
    s->total = n_total;
    return ++s->calls == s->stop_at;
}

static void test_a_caller_can_stop_anywhere(void **state)
{
    fixture           *f = *state;
    kvcsa_synth_params p = with_seed(0);
    kvcsa_synth_info   info = {.struct_size = sizeof info};
    stopper            s = {0};
    uint64_t           n;
    kvcsa_error        err;

    p.shard_bytes = 100000;
    p.progress = on_progress;
    p.user = &s;
    make(SMALL_CONFIG, f->made.path, &p);
    assert_int_equal(s.last, 407214);
    assert_int_equal(s.total, 407214);
    n = s.calls;
    assert_true(n >= 8); /* once a file at least */
    snap_dir_remove(&f->made);
    for (uint64_t i = 1; i <= n; i++) {
        s = (stopper){.stop_at = i};
        info.n_tensors = 1;
        assert_fails(kvcsa_synth_checkpoint(SMALL_CONFIG, f->made.path, &p, &info, &err),
                     KVCSA_ERR_CANCELLED, "cancelled");
        assert_int_equal(info.n_tensors, 0);
        assert_int_equal(s.calls, i);
        assert_false(is_there(f->made.path));
    }
}

static void test_a_checkpoint_is_not_overwritten(void **state)
{
    fixture                 *f = *state;
    const kvcsa_synth_params p = with_seed(1);
    uint64_t                 was;
    kvcsa_error              err;

    make(SMALL_CONFIG, f->made.path, &p);
    was = fingerprint(f->made.path);
    assert_fails(kvcsa_synth_checkpoint(T1_DIR "/config.json", f->made.path, NULL, NULL, &err),
                 KVCSA_ERR_ARG, "config.json is there already");
    assert_int_equal(fingerprint(f->made.path), was);
    assert_int_equal(snap_dir_count(&f->made), 4);
}

static void write_edited(const fixture *f, const char *key, const char *value)
{
    const snap_path path = snap_in(&f->dir, "edited.json");
    size_t          n = 0;
    char           *json = read_file(T1_DIR "/config.json", &n);
    char           *edited = edit_json(json, n, key, value);

    snap_write_file(path.text, edited, strlen(edited));
    free(json);
    free(edited);
}

static void test_bad_configurations_are_explained(void **state)
{
    static const struct {
        const char  *key, *value;
        kvcsa_status status;
        const char  *says;
    } bad[] = {
        {"text_config/hidden_size", "100", KVCSA_ERR_FORMAT, "hidden_size is 100"},
        {"text_config/engram_num_embeddings", "[890, 965]", KVCSA_ERR_FORMAT, "965"},
        {"text_config/engram_compressed_vocab_size", "20", KVCSA_ERR_UNSUPPORTED,
         "engram_compressed_vocab_size is 20"},
        {"text_config/vocab_size", "200", KVCSA_ERR_FORMAT, ""},
        {"quantization_config/expert_dtype", "\"fp8\"", KVCSA_ERR_UNSUPPORTED, "expert_dtype"},
        {"architectures", "[\"LlamaForCausalLM\"]", KVCSA_ERR_UNSUPPORTED, "LlamaForCausalLM"},
    };
    fixture        *f = *state;
    const snap_path path = snap_in(&f->dir, "edited.json");
    kvcsa_error     err;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_edited(f, bad[i].key, bad[i].value);
        assert_fails(kvcsa_synth_checkpoint(path.text, f->made.path, NULL, NULL, &err),
                     bad[i].status, bad[i].says);
        assert_false(is_there(f->made.path));
    }
    snap_write_file(path.text, "[1, 2]", 6);
    assert_fails(kvcsa_synth_checkpoint(path.text, f->made.path, NULL, NULL, &err),
                 KVCSA_ERR_FORMAT, "edited.json");
}

static void test_bad_calls_are_refused(void **state)
{
    fixture           *f = *state;
    kvcsa_synth_params p = with_seed(0);
    kvcsa_synth_info   info = {.struct_size = 3};
    snap_path          path = snap_in(&f->dir, "no/made");
    kvcsa_error        err;

    assert_fails(kvcsa_synth_checkpoint(NULL, f->made.path, NULL, NULL, &err), KVCSA_ERR_ARG,
                 "config is NULL");
    assert_fails(kvcsa_synth_checkpoint(SMALL_CONFIG, "", NULL, NULL, &err), KVCSA_ERR_ARG,
                 "directory is empty");
    assert_fails(kvcsa_synth_checkpoint(SMALL_CONFIG, f->made.path, NULL, &info, &err),
                 KVCSA_ERR_ARG, "kvcsa_synth_info");
    p.struct_size = 5;
    assert_fails(kvcsa_synth_checkpoint(SMALL_CONFIG, f->made.path, &p, NULL, &err),
                 KVCSA_ERR_ARG, "kvcsa_synth_params");
    assert_fails(kvcsa_synth_checkpoint("test/data/nothing.json", f->made.path, NULL, NULL, &err),
                 KVCSA_ERR_IO, "nothing.json");
    assert_fails(kvcsa_synth_checkpoint(SMALL_CONFIG, path.text, NULL, NULL, &err), KVCSA_ERR_IO,
                 "no such file");
    path = snap_in(&f->dir, "file");
    snap_write_file(path.text, "x", 1);
    assert_fails(kvcsa_synth_checkpoint(SMALL_CONFIG, path.text, NULL, NULL, &err), KVCSA_ERR_IO,
                 "not a directory");
    assert_int_equal(snap_file_size(path.text), 1);
    assert_false(is_there(f->made.path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_checkpoints_open_and_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_configuration_is_kept_or_completed, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_bytes_depend_on_the_seed_and_not_on_shards, set_up,
                                        tear_down),
        cmocka_unit_test(test_counting_needs_no_room),
        cmocka_unit_test(test_the_cache_configuration_has_the_released_cache),
        cmocka_unit_test_setup_teardown(test_a_caller_can_stop_anywhere, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_checkpoint_is_not_overwritten, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_configurations_are_explained, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_calls_are_refused, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
