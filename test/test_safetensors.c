/* Shards and their table: hostile headers, hostile directories. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "model/safetensors.h"
#include "support/checkpoint.h"
#include "support/fault_alloc.h"

#define INDEX "model.safetensors.index.json"
#define SHARD1 "model-00001-of-00002.safetensors"
#define SHARD2 "model-00002-of-00002.safetensors"

static kvcsa_allocator libc_allocator(void)
{
    kvcsa_allocator a;

    assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
    return a;
}

/* length, header, n_data bytes 0, 1, 2, ...; malloc'd to its exact size, so that a sanitizer sees a
 * read behind it */
static uint8_t *make_file(const char *header, uint64_t length, size_t n_data, size_t *n_bytes)
{
    const size_t n_header = strlen(header);
    uint8_t     *file = malloc(8 + n_header + n_data);

    assert_non_null(file);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, n_header);
    for (size_t i = 0; i < n_data; i++)
        file[8 + n_header + i] = (uint8_t)i;
    *n_bytes = 8 + n_header + n_data;
    return file;
}

/* ------------------------------------------------------------------ one header */

static void test_tensors_add_file_reads_good_header(void **state)
{
    static const char header[] =
        "{\"__metadata__\": {\"format\": \"pt\"}, \"b\": {\"dtype\": \"BF16\", \"shape\": [2, 3], "
        "\"data_offsets\": [4, 16]},"
        " \"empty\": {\"dtype\": \"F32\", \"shape\": [0, 9], \"data_offsets\": [4, 4]},"
        " \"a\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [0, 4]},"
        " \"odd\": {\"dtype\": \"F8_E5M2\", \"shape\": [7], \"data_offsets\": [16, 19]}}    ";
    kvcsa_allocator   a = libc_allocator();
    kvi_tensors      *t = NULL;
    const kvi_tensor *x;
    kvcsa_error       err;
    size_t            n = 0;
    uint8_t          *file = make_file(header, sizeof header - 1, 19, &n);

    (void)state;
    assert_int_equal(kvi_tensors_create(&a, &t, NULL), KVCSA_OK);
    assert_null(kvi_tensors_find(t, "a"));
    assert_int_equal(kvi_tensors_add_file(t, file, n, "x.safetensors", &err), KVCSA_OK);
    assert_int_equal(kvi_tensors_count(t), 4);
    assert_string_equal(kvi_tensors_at(t, 0)->name, "a");
    assert_string_equal(kvi_tensors_at(t, 1)->name, "b");
    assert_string_equal(kvi_tensors_at(t, 2)->name, "empty");
    assert_string_equal(kvi_tensors_at(t, 3)->name, "odd");
    assert_non_null(x = kvi_tensors_find(t, "b"));
    assert_string_equal(x->shard, "x.safetensors");
    assert_int_equal(x->dtype, KVI_ST_BF16);
    assert_int_equal(x->n_dims, 2);
    assert_int_equal(x->shape[0], 2);
    assert_int_equal(x->shape[1], 3);
    assert_int_equal(x->n_bytes, 12);
    assert_int_equal(x->data[0], 4);
    assert_int_equal(x->used, 0);
    assert_int_equal(kvi_tensors_find(t, "a")->n_dims, 0);
    assert_int_equal(kvi_tensors_find(t, "empty")->n_bytes, 0);
    assert_int_equal(kvi_tensors_find(t, "odd")->dtype, KVI_ST_OTHER);
    assert_null(kvi_tensors_find(t, "__metadata__"));
    kvi_tensors_destroy(t);
    free(file);
}

typedef struct bad_header {
    const char *header;
    size_t      n_data;
    uint64_t    length; /* 0 = the true one */
    const char *says;
} bad_header;

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE(dtype, shape, offsets) "{" T("t", dtype, shape, offsets) "}"

static const bad_header bad_headers[] = {
    {"{}", 0, 3, "header length is 3, limit 104857600 (file size 10)"},
    {"{}", 0, UINT64_MAX, "header length is 18446744073709551615"},
    {"{}", 0, UINT64_MAX - 7, "header length is 18446744073709551608"},
    {"{}", 0, (100u << 20) + 1, "header length is 104857601"},
    {"{}", 1, 0, "1 bytes behind the last tensor belong to none"},
    {"", 0, 0, "must begin with '{'"},
    {" {}", 0, 0, "must begin with '{'"},
    {"[]", 0, 0, "must begin with '{'"},
    {"{]", 0, 0, "not JSON"},
    {"{}{}", 0, 0, "not JSON"},
    {"{\"t\": 1}", 0, 0, "dtype of t must be a string"},
    {"{\"t\": {}}", 0, 0, "dtype of t must be a string"},
    {"{\"__metadata__\": 1}", 0, 0, "__metadata__ must be an object of strings"},
    {"{\"__metadata__\": {\"a\": 1}}", 0, 0, "__metadata__ must be an object of strings"},
    {"{" T("t", "\"U8\"", "[1]", "[0,1]") "," T("t", "\"U8\"", "[1]", "[1,2]") "}", 2, 0,
     "duplicate"},
    {"{" T("", "\"U8\"", "[1]", "[0,1]") "}", 1, 0, "tensor name \"\" has 0 bytes"},
    {"{" T("a\\nb", "\"U8\"", "[1]", "[0,1]") "}", 1, 0, "no control characters"},
    {"{" T("a\\u0000b", "\"U8\"", "[1]", "[0,1]") "}", 1, 0, "not JSON"},
    {ONE("8", "[1]", "[0,1]"), 1, 0, "dtype of t must be a string"},
    {ONE("\"U8\"", "1", "[0,1]"), 1, 0, "shape of t must be a list"},
    {ONE("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, 0, "at most 8 integers"},
    {ONE("\"U8\"", "[-1]", "[0,1]"), 1, 0, "dimension 0 is not an integer of 0 or more"},
    {ONE("\"U8\"", "[1, 1.0]", "[0,1]"), 1, 0, "dimension 1 is not an integer"},
    {ONE("\"U8\"", "[4294967296, 4294967296]", "[0,1]"), 1, 0, "more than 2^64 elements"},
    {ONE("\"F32\"", "[4611686018427387905]", "[0,4]"), 4, 0, "4611686018427387905 elements"},
    {ONE("\"I64\"", "[2305843009213693952]", "[0,0]"), 0, 0, "dtype I64 and shape give"},
    {ONE("\"F32\"", "[1]", "[0,3]"), 3, 0,
     "t has 3 bytes of data, dtype F32 and shape give 1 elements"},
    {ONE("\"BF16\"", "[]", "[0,4]"), 4, 0, "give 1 elements"},
    {ONE("\"U8\"", "[1]", "[0]"), 1, 0, "data_offsets of t must be two integers"},
    {ONE("\"U8\"", "[1]", "[0,1,2]"), 1, 0, "data_offsets of t must be two integers"},
    {ONE("\"U8\"", "[1]", "[0,1.0]"), 1, 0, "data_offsets of t must be two integers"},
    {ONE("\"U8\"", "[1]", "{}"), 1, 0, "data_offsets of t must be two integers"},
    {ONE("\"U8\"", "[1]", "[-1,0]"), 1, 0, "0 <= begin <= end"},
    {ONE("\"U8\"", "[1]", "[1,0]"), 1, 0, "0 <= begin <= end"},
    {ONE("\"U8\"", "[2]", "[0,2]"), 1, 0, "t lies at offset 0..2 behind the header"},
    {ONE("\"X\"", "[2]", "[0,9223372036854775807]"), 1, 0,
     "t lies at offset 0..9223372036854775807"},
    {ONE("\"U8\"", "[1]", "[0,99999999999999999999]"), 1, 0, "not JSON"},
    {ONE("\"U8\"", "[1]", "[1,2]"), 2, 0,
     "t begins at offset 1, must begin at 0 where the header ends (hole)"},
    {"{" T("a", "\"U8\"", "[2]", "[0,2]") "," T("b", "\"U8\"", "[2]", "[1,3]") "}", 3, 0,
     "b begins at offset 1, must begin at 2 where a ends (overlap)"},
    {"{" T("a", "\"U8\"", "[2]", "[0,2]") "," T("b", "\"U8\"", "[2]", "[0,2]") "}", 2, 0,
     "(overlap)"},
    {"{" T("a", "\"U8\"", "[2]", "[0,2]") "," T("b", "\"U8\"", "[2]", "[3,5]") "}", 5, 0, "(hole)"},
    {"{" T("a", "\"U8\"", "[2]", "[0,2]") "," T("b", "\"U8\"", "[0]", "[1,1]") "}", 2, 0,
     "(overlap)"},
};

static void test_tensors_add_file_names_bad_header(void **state)
{
    kvcsa_allocator a = libc_allocator();

    (void)state;
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        const bad_header *b = &bad_headers[i];
        size_t            n = 0;
        uint8_t          *file =
            make_file(b->header, b->length ? b->length : strlen(b->header), b->n_data, &n);
        kvi_tensors *t = NULL;
        kvcsa_error  err = {0};
        kvcsa_status st;

        assert_int_equal(kvi_tensors_create(&a, &t, NULL), KVCSA_OK);
        st = kvi_tensors_add_file(t, file, n, "x.safetensors", &err);
        if (st != KVCSA_ERR_FORMAT || !strstr(err.text, b->says) ||
            !strstr(err.text, "x.safetensors"))
            fail_msg("%s: status %d, \"%s\"", b->header, st, err.text);
        assert_int_equal(kvi_tensors_count(t), 0);
        kvi_tensors_destroy(t);
        free(file);
    }
}

static void test_tensors_add_file_refuses_short_files(void **state)
{
    static const uint8_t seven[7] = {2};
    kvcsa_allocator      a = libc_allocator();
    kvi_tensors         *t = NULL;
    kvcsa_error          err;

    (void)state;
    assert_int_equal(kvi_tensors_create(&a, &t, NULL), KVCSA_OK);
    for (size_t n = 0; n <= 7; n++) {
        assert_int_equal(kvi_tensors_add_file(t, seven, n, "x", &err), KVCSA_ERR_FORMAT);
        assert_non_null(strstr(err.text, "a safetensors file has at least 8 bytes"));
    }
    kvi_tensors_destroy(t);
}

static void test_tensors_add_file_refuses_name_twice(void **state)
{
    kvcsa_allocator a = libc_allocator();
    kvi_tensors    *t = NULL;
    kvcsa_error     err;
    size_t          n = 0;
    const char     *header = ONE("\"U8\"", "[1]", "[0,1]");
    uint8_t        *file = make_file(header, strlen(header), 1, &n);

    (void)state;
    assert_int_equal(kvi_tensors_create(&a, &t, NULL), KVCSA_OK);
    assert_int_equal(kvi_tensors_add_file(t, file, n, "one", &err), KVCSA_OK);
    assert_int_equal(kvi_tensors_add_file(t, file, n, "two", &err), KVCSA_ERR_FORMAT);
    assert_non_null(strstr(err.text, "tensor t is in"));
    kvi_tensors_destroy(t);
    free(file);
}

/* As many tensors as the release has; a quadratic step would take minutes. */
static void test_tensors_add_file_handles_release_size(void **state)
{
    enum { COUNT = 96085 };
    kvcsa_allocator a = libc_allocator();
    kvi_tensors    *t = NULL;
    const size_t    cap = (size_t)COUNT * 100;
    char           *header = malloc(cap);
    size_t          at = 0;
    size_t          n = 0;
    uint8_t        *file;

    (void)state;
    assert_non_null(header);
    for (unsigned i = 0; i < COUNT; i++)
        at += (size_t)snprintf(
            header + at, cap - at,
            "%s\"layers.%u.w%u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%u,%u]}",
            i ? "," : "{", i % 40, i, COUNT - 1 - i, COUNT - i);
    at += (size_t)snprintf(header + at, cap - at, "}");
    file = make_file(header, at, COUNT, &n);
    assert_int_equal(kvi_tensors_create(&a, &t, NULL), KVCSA_OK);
    assert_int_equal(kvi_tensors_add_file(t, file, n, "x", NULL), KVCSA_OK);
    assert_int_equal(kvi_tensors_count(t), COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        char              name[64];
        const kvi_tensor *x;

        (void)snprintf(name, sizeof name, "layers.%u.w%u", i % 40, i);
        assert_non_null(x = kvi_tensors_find(t, name));
        assert_true(x->data == file + n - 1 - i);
        if (i)
            assert_true(strcmp(kvi_tensors_at(t, i - 1)->name, kvi_tensors_at(t, i)->name) < 0);
    }
    kvi_tensors_destroy(t);
    free(file);
    free(header);
}

static void test_tensors_add_file_frees_on_failure(void **state)
{
    const char *header =
        "{" T("a", "\"U8\"", "[1]", "[0,1]") "," T("b", "\"U8\"", "[1]", "[1,2]") "}";
    size_t      n = 0;
    uint8_t    *file = make_file(header, strlen(header), 2, &n);
    fault_alloc fa;
    uint64_t    fail_at;

    (void)state;
    fault_alloc_init(&fa);
    for (fail_at = 1;; fail_at++) {
        kvi_tensors *t = NULL;
        kvcsa_status st;

        fault_alloc_fail_at(&fa, fail_at);
        st = kvi_tensors_create(&fa.hook, &t, NULL);
        if (st == KVCSA_OK)
            st = kvi_tensors_add_file(t, file, n, "x", NULL);
        kvi_tensors_destroy(t);
        assert_true(fault_alloc_is_clean(&fa));
        if (!fault_alloc_hit(&fa)) {
            assert_int_equal(st, KVCSA_OK);
            break;
        }
        assert_int_equal(st, KVCSA_ERR_NOMEM);
    }
    assert_true(fail_at > 3); /* it did allocate */
    free(file);
}

/* ------------------------------------------------------------------ directories */

/* Open must fail with this status and text; nothing may stay allocated. */
static void expect_refused(const checkpoint *c, kvcsa_status want, const char *says)
{
    for (int read = 0; read < 2; read++) {
        fault_alloc  fa;
        kvi_tensors *t = (kvi_tensors *)(uintptr_t)8;
        kvcsa_error  err = {0};
        kvcsa_status st;

        fault_alloc_init(&fa);
        st = kvi_tensors_open_dir(&fa.hook, c->dir, read, &t, &err);
        if (st != want || err.status != want || !strstr(err.text, says))
            fail_msg("wanted %d \"%s\", got %d \"%s\"", want, says, st, err.text);
        assert_null(t);
        assert_true(fault_alloc_is_clean(&fa));
    }
}

static void test_tensors_open_dir_reads_as_it_maps(void **state)
{
    kvcsa_allocator a = libc_allocator();
    kvi_tensors    *mapped = NULL;
    kvi_tensors    *read = NULL;
    uint64_t        total = 0;

    (void)state;
    assert_int_equal(kvi_tensors_open_dir(&a, T1_DIR, 0, &mapped, NULL), KVCSA_OK);
    assert_int_equal(kvi_tensors_open_dir(&a, T1_DIR, 1, &read, NULL), KVCSA_OK);
    assert_int_equal(kvi_tensors_count(mapped), 1212);
    assert_int_equal(kvi_tensors_count(read), 1212);
    for (size_t i = 0; i < 1212; i++) {
        const kvi_tensor *x = kvi_tensors_at(mapped, i);
        const kvi_tensor *y = kvi_tensors_at(read, i);

        assert_string_equal(x->name, y->name);
        assert_string_equal(x->shard, y->shard);
        assert_int_equal(x->n_bytes, y->n_bytes);
        assert_memory_equal(x->data, y->data, (size_t)x->n_bytes);
        total += x->n_bytes;
    }
    assert_int_equal(total, 6751147); /* the index says so too */
    kvi_tensors_destroy(mapped);
    kvi_tensors_destroy(read);
}

static void test_tensors_open_dir_takes_one_file(void **state)
{
    kvcsa_allocator a = libc_allocator();
    const char     *header = ONE("\"U8\"", "[3]", "[0,3]");
    checkpoint      c;
    kvi_tensors    *t = NULL;
    size_t          n = 0;
    uint8_t        *file = make_file(header, strlen(header), 3, &n);

    (void)state;
    checkpoint_copy(&c, T1_DIR);
    checkpoint_drop(&c, INDEX);
    expect_refused(&c, KVCSA_ERR_IO, "model.safetensors: cannot open, errno 2 (no such file)");
    checkpoint_write(&c, "model.safetensors", file, n);
    assert_int_equal(kvi_tensors_open_dir(&a, c.dir, 0, &t, NULL), KVCSA_OK);
    assert_int_equal(kvi_tensors_count(t), 1);
    assert_string_equal(kvi_tensors_find(t, "t")->shard, "model.safetensors");
    assert_int_equal(kvi_tensors_find(t, "t")->data[2], 2);
    kvi_tensors_destroy(t);
    checkpoint_remove(&c);
    free(file);
}

static void test_tensors_open_dir_names_missing_shard(void **state)
{
    checkpoint c;

    (void)state;
    checkpoint_copy(&c, T1_DIR);
    checkpoint_drop(&c, SHARD2);
    expect_refused(&c, KVCSA_ERR_IO, SHARD2 ": cannot open, errno 2 (no such file)");
    checkpoint_remove(&c);
}

static void test_tensors_open_dir_names_cut_shard(void **state)
{
    checkpoint c;
    size_t     n = 0;
    char      *file;
    char       says[64];

    (void)state;
    checkpoint_copy(&c, T1_DIR);
    file = checkpoint_read(&c, SHARD1, &n);
    checkpoint_cut(&c, SHARD1, n / 2);
    (void)snprintf(says, sizeof says, "the file has only %zu bytes", n / 2);
    expect_refused(&c, KVCSA_ERR_FORMAT, says);
    expect_refused(&c, KVCSA_ERR_FORMAT, SHARD1 ": ");
    expect_refused(&c, KVCSA_ERR_FORMAT, " lies at offset ");
    checkpoint_write(&c, SHARD1, file, n - 1); /* the last byte of the last tensor */
    expect_refused(&c, KVCSA_ERR_FORMAT, " lies at offset ");
    checkpoint_write(&c, SHARD1, file, 20);
    expect_refused(&c, KVCSA_ERR_FORMAT, "header length is 65416");
    checkpoint_write(&c, SHARD1, file, 5);
    expect_refused(&c, KVCSA_ERR_FORMAT, "file size is 5");
    checkpoint_write(&c, SHARD1, file, 0);
    expect_refused(&c, KVCSA_ERR_FORMAT, SHARD1 ": file size is 0");
    free(file);
    checkpoint_remove(&c);
}

static void test_tensors_open_dir_refuses_other_files(void **state)
{
    checkpoint c;
    char       path[512];

    (void)state;
    checkpoint_copy(&c, T1_DIR);
    (void)snprintf(path, sizeof path, "%s/%s", c.dir, SHARD1);
    checkpoint_drop(&c, SHARD1);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_refused(&c, KVCSA_ERR_IO, SHARD1 ": is a directory, must be a regular file");
    checkpoint_remove(&c);

    checkpoint_copy(&c, T1_DIR);
    (void)snprintf(path, sizeof path, "%s/%s", c.dir, SHARD1);
    checkpoint_drop(&c, SHARD1);
    assert_int_equal(mkfifo(path, 0600),
                     0); /* without a writer: a plain open would wait for ever */
    expect_refused(&c, KVCSA_ERR_IO, SHARD1 ": is a device or pipe, must be a regular file");
    checkpoint_remove(&c);
}

static void test_tensors_open_dir_checks_index(void **state)
{
    static const struct {
        const char *path;
        const char *value;
        const char *says;
    } bad[] = {
        {"weight_map", NULL, "weight_map must be an object"},
        {"weight_map", "[]", "weight_map must be an object"},
        {"weight_map/norm.weight", "1", "shard \"\" of norm.weight must be a plain file name"},
        {"weight_map/norm.weight", "\"\"", "must be a plain file name"},
        {"weight_map/norm.weight", "\"../x\"",
         "shard \"../x\" of norm.weight must be a plain file name"},
        {"weight_map/norm.weight", "\"..\"", "must be a plain file name"},
        {"weight_map/norm.weight", "\"/etc/passwd\"", "must be a plain file name"},
        {"weight_map/norm.weight", "\"a/b\"", "must be a plain file name"},
        {"weight_map/norm.weight", "\"" SHARD2 "\"",
         "tensor norm.weight is in " SHARD1 ", the index says " SHARD2},
        {"weight_map/norm.weight", NULL, "tensor norm.weight of " SHARD1 " is not in the index"},
        {"weight_map/other.weight", "\"" SHARD1 "\"", "tensor other.weight is not in " SHARD1},
    };
    checkpoint c;
    size_t     n = 0;
    char      *good;

    (void)state;
    checkpoint_copy(&c, T1_DIR);
    good = checkpoint_read(&c, INDEX, &n);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        checkpoint_write(&c, INDEX, good, n);
        checkpoint_edit_index(&c, bad[i].path, bad[i].value);
        expect_refused(&c, KVCSA_ERR_FORMAT, bad[i].says);
    }
    checkpoint_write(&c, INDEX, good, n / 2);
    expect_refused(&c, KVCSA_ERR_FORMAT, INDEX ": not JSON");
    checkpoint_write(&c, INDEX, "", 0);
    expect_refused(&c, KVCSA_ERR_FORMAT, INDEX ": file size is 0");
    free(good);
    checkpoint_remove(&c);
}

static void test_tensors_open_dir_frees_on_failure(void **state)
{
    fault_alloc fa;

    (void)state;
    fault_alloc_init(&fa);
    for (int read = 0; read < 2; read++)
        for (uint64_t n = 1;; n++) {
            kvi_tensors *t = NULL;
            kvcsa_status st;

            fault_alloc_fail_at(&fa, n);
            st = kvi_tensors_open_dir(&fa.hook, T1_DIR, read, &t, NULL);
            if (!fault_alloc_hit(&fa)) {
                assert_int_equal(st, KVCSA_OK);
                assert_true(n > 8);
                kvi_tensors_destroy(t);
                assert_true(fault_alloc_is_clean(&fa));
                break;
            }
            assert_int_equal(st, KVCSA_ERR_NOMEM);
            assert_null(t);
            assert_true(fault_alloc_is_clean(&fa));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_add_file_reads_good_header),
        cmocka_unit_test(test_tensors_add_file_names_bad_header),
        cmocka_unit_test(test_tensors_add_file_refuses_short_files),
        cmocka_unit_test(test_tensors_add_file_refuses_name_twice),
        cmocka_unit_test(test_tensors_add_file_handles_release_size),
        cmocka_unit_test(test_tensors_add_file_frees_on_failure),
        cmocka_unit_test(test_tensors_open_dir_reads_as_it_maps),
        cmocka_unit_test(test_tensors_open_dir_takes_one_file),
        cmocka_unit_test(test_tensors_open_dir_names_missing_shard),
        cmocka_unit_test(test_tensors_open_dir_names_cut_shard),
        cmocka_unit_test(test_tensors_open_dir_refuses_other_files),
        cmocka_unit_test(test_tensors_open_dir_checks_index),
        cmocka_unit_test(test_tensors_open_dir_frees_on_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
