/* Bytes of snapshots: header pages, records, manifest entries. Offsets and sizes are those of
 * docs/formats.md, written out here once more; nothing is computed with the library's constants. */
#include "base/bytes.h"
#include "format/container.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAGE 4096u
#define HEAD 256u

/* The release: 128 tokens a block, 40 layers, window rows of 528 bytes, three owners with raw rows,
 * 301 tokens saved with everything. */
static kvi_snap_header release_header(uint32_t kind)
{
    kvi_snap_header h = {.kind = kind,
                         .sections = KVI_SNAP_WINDOW | KVI_SNAP_LOGITS | KVI_SNAP_RAW,
                         .flags = KVI_SNAP_APPROX,
                         .weights = 0x0102030405060708,
                         .adapter = 0x1112131415161718,
                         .plan = 0x2122232425262728,
                         .numerics = 0x3132333435363738,
                         .salt = 0x4142434445464748,
                         .domain_version = 1,
                         .block_tokens = 128,
                         .index_bytes = 21760,
                         .main_bytes = 92160,
                         .vocab = 129280,
                         .n_layers = 40,
                         .window_row_bytes = 21120,
                         .page_rows = 16,
                         .raw_slots = 1,
                         .raw_bytes = 12288,
                         .n_tokens = 301,
                         .exact_tokens = KVI_SNAP_EXACT,
                         .window_lo = 173,
                         .raw_lo = 173,
                         .table_sum = {0x5152535455565758, 0x6162636465666768}};

    assert_int_equal(kvi_snap_header_count(&h, NULL), KVCSA_OK);
    return h;
}

static kvi_snap_record record_of(const kvi_snap_header *h, uint64_t i)
{
    kvi_snap_record r;

    kvi_snap_expect(h, i, &r, NULL);
    r.key = (kvi_hash128){0x71 + i, 0x72};
    r.parent = (kvi_hash128){0x73, 0x74};
    r.ids_sum = (kvi_hash128){0x75, 0x76};
    for (int p = 0; p < KVI_SNAP_PARTS; p++)
        r.sums[p] = (kvi_hash128){0x80 + (uint64_t)p, 0x90 + (uint64_t)p};
    return r;
}

static kvcsa_status decode(const uint8_t *page, size_t n, kvcsa_error *err)
{
    kvi_snap_header out;

    return kvi_snap_header_decode(page, n, 0, &out, err);
}

/* The checksum alone. */
static void seal(uint8_t *page)
{
    const kvi_hash128 sum = kvi_hash128_of(page, 4080, 0);

    memcpy(page + 4080, &sum.lo, 8);
    memcpy(page + 4088, &sum.hi, 8);
}

/* ------------------------------------------------------------------ sizes and places */

static void test_sizes_of_the_release(void **state)
{
    kvi_snap_header h = release_header(KVI_SNAP_FILE);
    kvi_snap_record r;

    (void)state;
    kvi_snap_expect(&h, 0, &r, NULL);
    assert_int_equal(kvi_snap_record_bytes(&r), 114688); /* without a byte of padding */
    assert_int_equal(256 + 128 * 4 + 21760 + 92160, 114688);
    /* 3 blocks, floors, pages of 16 that hold 173..300, raw rows, logits */
    assert_int_equal(h.n_records, 3 + 1 + 9 + 1 + 1);
    assert_int_equal(h.total_bytes, 4096 + 3 * 114688 + 4096 + 9 * 339968 + 16384 + 520192);
    h.sections = 0;
    h.n_tokens = 0;
    h.window_lo = h.raw_lo = 0;
    assert_int_equal(kvi_snap_header_count(&h, NULL), KVCSA_OK);
    assert_int_equal(h.n_records, 0);
    assert_int_equal(h.total_bytes, 4096);
    h.n_tokens = 1048576;
    assert_int_equal(kvi_snap_header_count(&h, NULL), KVCSA_OK);
    assert_int_equal(h.total_bytes, 4096 + 8192ull * 114688);
    h.kind = KVI_SNAP_MANIFEST;
    assert_int_equal(kvi_snap_header_count(&h, NULL), KVCSA_OK);
    assert_int_equal(h.total_bytes, 4096 + 8192ull * 64 + 8192ull * 114688);
}

/* Every combination of sections: records follow each other without a gap, and fill the file. */
static void test_records_tile_the_file(void **state)
{
    static const uint64_t lengths[] = {1, 15, 16, 127, 128, 129, 173, 301, 1000};

    (void)state;
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (uint32_t sections = 0; sections < 8; sections++) {
            kvi_snap_header h = release_header(KVI_SNAP_FILE);
            uint64_t        at = PAGE;
            uint32_t        kind = 0;
            uint64_t        seen[6] = {0};

            h.sections = sections;
            h.n_tokens = lengths[k];
            h.window_lo = h.raw_lo = lengths[k] > 128 ? lengths[k] - 128 : 0;
            assert_int_equal(kvi_snap_header_count(&h, NULL), KVCSA_OK);
            for (uint64_t i = 0; i < h.n_records; i++) {
                kvi_snap_record r;
                uint64_t        offset = 0;

                kvi_snap_expect(&h, i, &r, &offset);
                assert_int_equal(offset, at);
                assert_true(r.kind >= kind && r.kind <= 5);
                if (seen[r.kind]++ == 0)
                    assert_int_equal(kvi_snap_first(&h, r.kind), i);
                kind = r.kind;
                at += kvi_snap_record_bytes(&r);
                assert_int_equal(at % PAGE, 0);
                assert_true(r.position < h.n_tokens);
            }
            assert_int_equal(at, h.total_bytes);
            assert_int_equal(seen[1], (lengths[k] + 127) / 128);
            assert_int_equal(seen[2], sections & 1);
            assert_int_equal(seen[3] > 0, sections & 1);
            assert_int_equal(seen[4], sections >> 2 & 1);
            assert_int_equal(seen[5], sections >> 1 & 1);
        }
}

/* ------------------------------------------------------------------ the bytes */

static void test_header_bytes(void **state)
{
    const kvi_snap_header h = release_header(KVI_SNAP_FILE);
    uint8_t               page[PAGE];

    (void)state;
    kvi_snap_header_encode(&h, page);
    assert_memory_equal(page, "KVCSASNP", 8);
    assert_int_equal(kvi_load_u32(page + 8), 1);
    assert_int_equal(kvi_load_u32(page + 12), 1);
    assert_int_equal(kvi_load_u32(page + 16), 4096);
    assert_int_equal(kvi_load_u32(page + 20), 7);
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(kvi_load_u64(page + 24 + 8 * i),
                         0x0102030405060708 + i * 0x1010101010101010);
    assert_int_equal(kvi_load_u64(page + 64), 1);
    assert_int_equal(kvi_load_u32(page + 72), 128);
    assert_int_equal(kvi_load_u32(page + 76), 21760);
    assert_int_equal(kvi_load_u32(page + 80), 92160);
    assert_int_equal(kvi_load_u32(page + 84), 129280);
    assert_int_equal(kvi_load_u32(page + 88), 40);
    assert_int_equal(kvi_load_u32(page + 92), 21120);
    assert_int_equal(kvi_load_u32(page + 96), 16);
    assert_int_equal(kvi_load_u32(page + 100), 1);
    assert_int_equal(kvi_load_u32(page + 104), 12288);
    assert_int_equal(kvi_load_u32(page + 108), 1);
    assert_int_equal(kvi_load_u64(page + 112), 301);
    assert_true(kvi_load_u64(page + 120) == UINT64_MAX);
    assert_int_equal(kvi_load_u64(page + 128), 173);
    assert_int_equal(kvi_load_u64(page + 136), 173);
    assert_int_equal(kvi_load_u64(page + 144), h.n_records);
    assert_int_equal(kvi_load_u64(page + 152), h.total_bytes);
    assert_int_equal(kvi_load_u64(page + 160), 0x5152535455565758);
    assert_int_equal(kvi_load_u64(page + 168), 0x6162636465666768);
    for (size_t i = 176; i < PAGE - 16; i++)
        assert_int_equal(page[i], 0);
    assert_int_equal(kvi_load_u64(page + 4080), kvi_hash128_of(page, 4080, 0).lo);
    assert_int_equal(kvi_load_u64(page + 4088), kvi_hash128_of(page, 4080, 0).hi);
}

static void test_record_bytes(void **state)
{
    const kvi_snap_header h = release_header(KVI_SNAP_FILE);
    kvi_snap_record       r = record_of(&h, 2);
    uint8_t               head[HEAD];

    (void)state;
    r.flags |= KVI_RECORD_TAINTED;
    kvi_snap_record_encode(&r, head);
    assert_memory_equal(head, "KVRC", 4);
    assert_int_equal(kvi_load_u32(head + 4), 1);
    assert_int_equal(kvi_load_u32(head + 8), 1);
    assert_int_equal(kvi_load_u32(head + 12), 3);
    assert_int_equal(kvi_load_u64(head + 16), 256);
    assert_int_equal(kvi_load_u32(head + 24), 45);
    assert_int_equal(kvi_load_u32(head + 28), 512);
    assert_int_equal(kvi_load_u32(head + 32), 21760);
    assert_int_equal(kvi_load_u32(head + 36), 92160);
    assert_int_equal(kvi_load_u32(head + 40), 0);
    assert_int_equal(kvi_load_u32(head + 44), 0);
    assert_int_equal(kvi_load_u64(head + 48), 0x73);
    assert_int_equal(kvi_load_u64(head + 56), 0x72);
    assert_int_equal(kvi_load_u64(head + 64), 0x73);
    assert_int_equal(kvi_load_u64(head + 72), 0x74);
    assert_int_equal(kvi_load_u64(head + 80), 0x75);
    assert_int_equal(kvi_load_u64(head + 88), 0x76);
    for (uint64_t p = 0; p < 3; p++) {
        assert_int_equal(kvi_load_u64(head + 96 + 16 * p), 0x80 + p);
        assert_int_equal(kvi_load_u64(head + 104 + 16 * p), 0x90 + p);
    }
    for (size_t i = 144; i < 240; i++)
        assert_int_equal(head[i], 0);
    assert_int_equal(kvi_load_u64(head + 240), kvi_hash128_of(head, 240, 0).lo);
    assert_int_equal(kvi_load_u64(head + 248), kvi_hash128_of(head, 240, 0).hi);
}

static void test_entry_bytes(void **state)
{
    const kvi_snap_header h = release_header(KVI_SNAP_MANIFEST);
    kvi_snap_entry        e = {.key = {1, 2},
                               .segment = 3,
                               .offset = 8192,
                               .n_bytes = 114688,
                               .position = 256,
                               .kind = 1,
                               .n_tokens = 45,
                               .flags = KVI_RECORD_PARTIAL};
    kvi_snap_entry        out;
    uint8_t               bytes[64];
    uint8_t               again[64];
    static const size_t   refused[] = {24, 32, 40, 48, 52, 57, 60, 63};

    (void)state;
    kvi_snap_entry_encode(&e, bytes);
    assert_int_equal(kvi_load_u64(bytes), 1);
    assert_int_equal(kvi_load_u64(bytes + 8), 2);
    assert_int_equal(kvi_load_u64(bytes + 16), 3);
    assert_int_equal(kvi_load_u64(bytes + 24), 8192);
    assert_int_equal(kvi_load_u64(bytes + 32), 114688);
    assert_int_equal(kvi_load_u64(bytes + 40), 256);
    assert_int_equal(kvi_load_u32(bytes + 48), 1);
    assert_int_equal(kvi_load_u32(bytes + 52), 45);
    assert_int_equal(kvi_load_u32(bytes + 56), 2);
    assert_int_equal(kvi_load_u32(bytes + 60), 0);
    assert_int_equal(kvi_snap_entry_decode(bytes, &h, 2, &out, NULL), KVCSA_OK);
    kvi_snap_entry_encode(&out, again);
    assert_memory_equal(again, bytes, sizeof bytes);
    assert_int_equal(kvi_snap_entry_decode(bytes, &h, 1, &out, NULL), KVCSA_ERR_FORMAT);
    for (size_t k = 0; k < sizeof refused / sizeof *refused; k++) {
        bytes[refused[k]] ^= 0x40;
        assert_int_equal(kvi_snap_entry_decode(bytes, &h, 2, &out, NULL), KVCSA_ERR_FORMAT);
        bytes[refused[k]] ^= 0x40;
    }
    e.offset = 0; /* the header page */
    kvi_snap_entry_encode(&e, bytes);
    assert_int_equal(kvi_snap_entry_decode(bytes, &h, 2, &out, NULL), KVCSA_ERR_FORMAT);
    e.offset = INT64_MAX / 4096 * 4096ull;
    kvi_snap_entry_encode(&e, bytes);
    assert_int_equal(kvi_snap_entry_decode(bytes, &h, 2, &out, NULL), KVCSA_ERR_FORMAT);
    e.offset = 4096;
    e.segment = UINT64_MAX;
    kvi_snap_entry_encode(&e, bytes);
    assert_int_equal(kvi_snap_entry_decode(bytes, &h, 2, &out, NULL), KVCSA_ERR_FORMAT);
}

/* ------------------------------------------------------------------ round trips and damage */

static void test_header_round_trip(void **state)
{
    (void)state;
    for (uint32_t kind = KVI_SNAP_FILE; kind <= KVI_SNAP_MANIFEST; kind++) {
        const kvi_snap_header h = release_header(kind);
        kvi_snap_header       out;
        uint8_t               page[PAGE];
        uint8_t               again[PAGE];

        kvi_snap_header_encode(&h, page);
        assert_int_equal(kvi_snap_header_decode(page, PAGE, kind, &out, NULL), KVCSA_OK);
        kvi_snap_header_encode(&out, again);
        assert_memory_equal(page, again, PAGE);
        for (uint32_t other = KVI_SNAP_FILE; other <= KVI_SNAP_MANIFEST; other++)
            assert_int_equal(kvi_snap_is_ours(page, PAGE, other), other == kind);
        assert_int_equal(kvi_snap_header_decode(page, PAGE, kind % 3 + 1, &out, NULL),
                         KVCSA_ERR_FORMAT);
    }
}

static void test_every_flip_of_a_header_is_refused(void **state)
{
    const kvi_snap_header h = release_header(KVI_SNAP_FILE);
    uint8_t               page[PAGE];

    (void)state;
    kvi_snap_header_encode(&h, page);
    for (size_t i = 0; i < PAGE; i++)
        for (int bit = 0; bit < 8; bit++) {
            page[i] ^= (uint8_t)(1 << bit);
            assert_int_not_equal(decode(page, PAGE, NULL), KVCSA_OK);
            page[i] ^= (uint8_t)(1 << bit);
        }
    assert_int_equal(decode(page, PAGE, NULL), KVCSA_OK);
}

static void test_every_flip_of_a_head_is_refused(void **state)
{
    const kvi_snap_header h = release_header(KVI_SNAP_FILE);

    (void)state;
    for (uint64_t i = 0; i < h.n_records; i++) {
        const kvi_snap_record r = record_of(&h, i);
        kvi_snap_record       out;
        uint8_t               head[HEAD];
        uint8_t               again[HEAD];

        kvi_snap_record_encode(&r, head);
        assert_int_equal(kvi_snap_record_decode(head, &h, i, &out, NULL), KVCSA_OK);
        kvi_snap_record_encode(&out, again);
        assert_memory_equal(again, head, HEAD);
        for (uint64_t other = 0; other < h.n_records; other++)
            assert_int_equal(kvi_snap_record_decode(head, &h, other, &out, NULL),
                             other == i ? KVCSA_OK : KVCSA_ERR_FORMAT);
        for (size_t k = 0; k < HEAD * 8; k++) {
            head[k / 8] ^= (uint8_t)(1 << k % 8);
            assert_int_equal(kvi_snap_record_decode(head, &h, i, &out, NULL), KVCSA_ERR_CORRUPT);
            head[k / 8] ^= (uint8_t)(1 << k % 8);
        }
        head[144] = 1; /* spare, with a right checksum */
        kvi_snap_mend_record(head);
        assert_int_equal(kvi_snap_record_decode(head, &h, i, &out, NULL), KVCSA_ERR_FORMAT);
    }
}

static void test_truncated_and_foreign_headers(void **state)
{
    const kvi_snap_header h = release_header(KVI_SNAP_FILE);
    uint8_t               page[PAGE];
    kvcsa_error           err;

    (void)state;
    kvi_snap_header_encode(&h, page);
    for (size_t n = 0; n < PAGE; n++) {
        assert_int_equal(decode(page, n, &err), KVCSA_ERR_FORMAT);
        assert_non_null(strstr(err.text, "truncated"));
    }
    assert_int_equal(decode((const uint8_t *)"{\"a\":1}", 7, &err), KVCSA_ERR_FORMAT);
    assert_non_null(strstr(err.text, "not a snapshot"));
    page[8] = 2; /* a newer version may have anything behind it */
    memset(page + 12, 0xee, PAGE - 12);
    assert_int_equal(decode(page, PAGE, &err), KVCSA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "version is 2"));
    page[8] = 0;
    assert_int_equal(decode(page, PAGE, &err), KVCSA_ERR_FORMAT);
}

/* A field at a time, with a right checksum: refused where the value cannot be, and nothing
 * overflows on the way. */
static void test_hostile_fields(void **state)
{
    static const size_t narrow[] = {12, 16, 20, 72, 76, 80, 84, 88, 92, 96, 100, 104, 108, 176};
    static const size_t wide[] = {112, 128, 136, 144, 152};
    static const uint64_t values[] = {UINT64_MAX, INT64_MAX, (uint64_t)1 << 48, UINT32_MAX,
                                      (uint64_t)1 << 31};
    const kvi_snap_header h = release_header(KVI_SNAP_FILE);
    uint8_t               page[PAGE];

    (void)state;
    for (size_t k = 0; k < sizeof narrow / sizeof *narrow; k++) {
        kvi_snap_header_encode(&h, page);
        memset(page + narrow[k], 0xff, 4);
        seal(page);
        assert_int_equal(decode(page, PAGE, NULL), KVCSA_ERR_FORMAT);
    }
    for (size_t k = 0; k < sizeof wide / sizeof *wide; k++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            kvi_snap_header_encode(&h, page);
            memcpy(page + wide[k], &values[v], 8);
            seal(page);
            assert_int_equal(decode(page, PAGE, NULL), KVCSA_ERR_FORMAT);
        }
    kvi_snap_header_encode(&h, page);
    memset(page + 72, 0, 4); /* block_tokens */
    seal(page);
    assert_int_equal(decode(page, PAGE, NULL), KVCSA_ERR_FORMAT);
}

/* The largest of everything at once. */
static void test_sizes_do_not_overflow(void **state)
{
    kvi_snap_header h = {.kind = KVI_SNAP_FILE,
                         .block_tokens = 1,
                         .index_bytes = 1u << 31,
                         .main_bytes = 1u << 31,
                         .n_tokens = (uint64_t)1 << 48};
    kvcsa_error     err;

    (void)state;
    assert_int_equal(kvi_snap_header_count(&h, &err), KVCSA_ERR_FORMAT);
    assert_non_null(strstr(err.text, "2^63"));
    h.n_tokens = 1000;
    assert_int_equal(kvi_snap_header_count(&h, &err), KVCSA_OK);
    assert_int_equal(h.total_bytes, 4096 + 1000 * (((uint64_t)1 << 32) + 4096));
}

/* What fuzzers use to get past checksums. */
static void test_mending(void **state)
{
    const kvi_snap_header h = release_header(KVI_SNAP_FILE);
    kvi_snap_header       out;
    uint8_t               page[PAGE];

    (void)state;
    kvi_snap_header_encode(&h, page);
    memset(page, 0, 12);
    page[112] = 45; /* fewer tokens: other records */
    page[113] = 0;
    memset(page + 128, 0, 16);
    kvi_snap_mend_header(page);
    assert_int_equal(kvi_snap_header_decode(page, PAGE, KVI_SNAP_FILE, &out, NULL), KVCSA_OK);
    assert_int_equal(out.n_tokens, 45);
    assert_int_equal(out.n_records, 1 + 1 + 3 + 1 + 1);
}

static void test_keys_by_content(void **state)
{
    const kvi_snap_header h = release_header(KVI_SNAP_FILE);
    kvi_snap_record       r = record_of(&h, 2);
    kvi_hash128           key;

    (void)state;
    kvi_snap_record_set_key(&r);
    key = r.key;
    kvi_snap_record_set_key(&r); /* the key itself is not part of it */
    assert_true(kvi_hash128_equal(key, r.key));
    for (int k = 0; k < 6; k++) {
        kvi_snap_record other = r;

        if (k < 3)
            other.sums[k].lo ^= 1;
        other.ids_sum.hi ^= k == 3;
        other.parent.lo ^= k == 4;
        other.flags ^= k == 5 ? (uint32_t)KVI_RECORD_TAINTED : 0u;
        kvi_snap_record_set_key(&other);
        assert_false(kvi_hash128_equal(key, other.key));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_of_the_release),
        cmocka_unit_test(test_records_tile_the_file),
        cmocka_unit_test(test_header_bytes),
        cmocka_unit_test(test_record_bytes),
        cmocka_unit_test(test_entry_bytes),
        cmocka_unit_test(test_header_round_trip),
        cmocka_unit_test(test_every_flip_of_a_header_is_refused),
        cmocka_unit_test(test_every_flip_of_a_head_is_refused),
        cmocka_unit_test(test_truncated_and_foreign_headers),
        cmocka_unit_test(test_hostile_fields),
        cmocka_unit_test(test_sizes_do_not_overflow),
        cmocka_unit_test(test_mending),
        cmocka_unit_test(test_keys_by_content),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
