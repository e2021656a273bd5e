/* kvcsa_get_api(): every function of lib/kvcsa.map is in the table, where lib/kvcsa_api.txt says, and the table is enough to run
 * a model with. Nobody moves a member: offsets are those of the committed list. */
#include "support/host.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST "lib/kvcsa_api.txt"
#define MAP "lib/kvcsa.map"

enum { HEAD_BYTES = 16, MAX_MEMBERS = 1000 };

typedef struct member {
    size_t offset;
    char   name[64];
    int    minor; /* of release 0.minor */
} member;

static size_t read_list(member *m)
{
    FILE  *f = fopen(LIST, "r");
    char   line[256];
    size_t n = 0;

    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#')
            continue;
        assert_true(n < MAX_MEMBERS);
        if (sscanf(line, "%zu %63s 0.%d", &m[n].offset, m[n].name, &m[n].minor) != 3)
            fail_msg("%s: %s", LIST, line);
        n++;
    }
    fclose(f);
    return n;
}

/* A symbol of the library that the table is from, not of the program. */
static void *symbol(const char *name)
{
    Dl_info     at;
    const void *in_library = kvcsa_get_api(KVCSA_VERSION_NUMBER);
    void       *library, *found;

    assert_true(dladdr(in_library, &at) != 0);
    library = dlopen(at.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(library);
    found = dlsym(library, name);
    dlclose(library);
    return found;
}

static void test_versions_of_the_table(void **state)
{
    const kvcsa_api *api = kvcsa_get_api(KVCSA_VERSION_NUMBER);

    (void)state;
    assert_non_null(api);
    assert_ptr_equal(api, kvcsa_get_api(400)); /* one table, whoever asks */
    assert_null(kvcsa_get_api(KVCSA_VERSION_NUMBER + 1));
    assert_null(kvcsa_get_api(UINT32_MAX));
    assert_null(kvcsa_get_api(399)); /* there was none */
    assert_null(kvcsa_get_api(0));
    assert_int_equal(api->version, kvcsa_version_number());
    assert_int_equal(api->abi, KVCSA_ABI);
    assert_int_equal(api->struct_size, sizeof *api);
}

static void test_members_are_where_the_list_says(void **state)
{
    static member    m[MAX_MEMBERS];
    const size_t     n = read_list(m);
    const kvcsa_api *api = kvcsa_get_api(KVCSA_VERSION_NUMBER);

    (void)state;
    assert_int_equal(sizeof *api, HEAD_BYTES + n * sizeof(void *)); /* nothing but what is listed */
    for (size_t i = 0; i < n; i++) {
        void *entry, *exported = symbol(m[i].name);

        if (m[i].offset != HEAD_BYTES + i * sizeof(void *))
            fail_msg("%s: offset %zu of %s", LIST, m[i].offset, m[i].name);
        if (i > 0 && m[i].minor < m[i - 1].minor)
            fail_msg("%s: %s is of an older release than the member in front of it", LIST, m[i].name);
        memcpy(&entry, (const char *)api + m[i].offset, sizeof entry);
        if (!exported || entry != exported)
            fail_msg("%s is not at byte %zu of the table", m[i].name, m[i].offset);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(m[i].name, m[j].name);
    }
}

static void test_every_exported_function_is_a_member(void **state)
{
    static member m[MAX_MEMBERS];
    const size_t  n = read_list(m);
    FILE         *f = fopen(MAP, "r");
    char          line[256], name[64];
    size_t        n_exported = 0, i;

    (void)state;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, " kvcsa_%57[a-z0-9_];", name) != 1 || !strcmp(name, "get_api"))
            continue;
        for (i = 0; i < n && strcmp(m[i].name + strlen("kvcsa_"), name); i++)
            ;
        if (i == n)
            fail_msg("kvcsa_%s is in %s and not in %s", name, MAP, LIST);
        n_exported++;
    }
    fclose(f);
    assert_int_equal(n_exported, n);
}

/* A host that has nothing but the table. */
static int32_t next_token(const kvcsa_api *k, const char *text)
{
    kvcsa_model       *model = NULL;
    kvcsa_pool        *pool = NULL;
    kvcsa_session     *s = NULL;
    kvcsa_pool_params  pp;
    kvcsa_pool_stats   stats = {.struct_size = sizeof stats};
    kvcsa_error        err;
    int32_t            ids[64], token = -1;
    size_t             n = 0;

    k->pool_params_default(&pp, sizeof pp);
    pp.n_threads = 1;
    assert_ok(k->model_open(TINY_DIR, NULL, &model, &err));
    assert_ok(k->pool_create(&pp, &pool, &err));
    assert_ok(k->session_create(pool, model, NULL, &s, &err));
    assert_ok(k->model_tokenize(model, text, strlen(text), 0, ids, 64, &n, &err));
    assert_ok(k->session_append(s, ids, n, NULL, NULL, &err));
    assert_ok(k->pool_step(pool, &s, 1, NULL, NULL, &err));
    assert_ok(k->session_sample(s, NULL, &token, &err));
    assert_int_equal(k->session_length(s), n);
    assert_ok(k->pool_get_stats(pool, &stats, &err));
    assert_int_equal(stats.n_sessions, 1);
    assert_ok(k->pool_check(pool, &err));
    k->session_release(&s);
    k->pool_release(&pool);
    k->model_release(&model);
    assert_null(model);
    return token;
}

static int32_t next_token_by_name(const char *text)
{
    kvcsa_model   *model = host_model(TINY_DIR);
    kvcsa_pool    *pool = host_pool(1, 0);
    kvcsa_session *s = host_session(pool, model, 0);
    kvcsa_error    err;
    int32_t        ids[64], token = -1;
    size_t         n = 0;

    assert_ok(kvcsa_model_tokenize(model, text, strlen(text), 0, ids, 64, &n, &err));
    assert_ok(kvcsa_session_append(s, ids, n, NULL, NULL, &err));
    assert_ok(kvcsa_pool_step(pool, &s, 1, NULL, NULL, &err));
    assert_ok(kvcsa_session_sample(s, NULL, &token, &err));
    kvcsa_session_release(&s);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&model);
    return token;
}

static void test_a_model_runs_by_the_table_alone(void **state)
{
    const kvcsa_api *api = kvcsa_get_api(KVCSA_VERSION_NUMBER);
    const char      *texts[] = {"In the beginning", "The weather", "Once upon a time"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const int32_t token = next_token(api, texts[i]);

        assert_true(token >= 0);
        assert_int_equal(token, next_token_by_name(texts[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions_of_the_table),
        cmocka_unit_test(test_members_are_where_the_list_says),
        cmocka_unit_test(test_every_exported_function_is_a_member),
        cmocka_unit_test(test_a_model_runs_by_the_table_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
