/* Faults that are planted into the kernels that write rows of the cache: barriers are left out, blocks and rows are off by one,
 * scales are made of a group that is not their own. */
#include "planted.h"

namespace {

bool no_barrier;
bool other_group; /* magnitudes come from lanes of two groups */

void planted_warp(KVI_SITE_ONLY)
{
    if (!no_barrier)
        kvi_sync_warp(file, line);
}

template <class T> T planted_shfl_xor(T v, unsigned mask KVI_SITE_MORE)
{
    return kvi_shfl_xor(v, other_group ? 2 * mask : mask, file, line);
}

} // namespace

#define kvi_sync_warp planted_warp
#define kvi_shfl_xor  planted_shfl_xor
#include "cache.cuh"
#undef kvi_sync_warp
#undef kvi_shfl_xor

namespace {

enum : unsigned { ROWS = 11, WIDTH = 640, PER_BLOCK = 8, FIRST = 5, BLOCKS = 3, PART = 64 * 1024 };

typedef std::vector<uint8_t> bytes;

floats numbers(size_t n)
{
    floats x(n);

    random_state = 3;
    random_floats(x, -1.0f, 2.0f);
    for (size_t i = 0; i < n; i++) /* groups of different sizes */
        x[i] *= static_cast<float>(1u << i / 16 % 5);
    return x;
}

/* ROWS rows from row FIRST of a block on; groups of `group_rows` as the index keys have them. False = a fault was reported. */
bool run_append(int order, unsigned format, unsigned group_rows, const std::function<void(append_args &)> &change, bytes &out)
{
    const floats           x = numbers(ROWS * WIDTH + WIDTH);
    std::vector<uint8_t *> parts;
    append_args            a = {};

    out.assign((BLOCKS + 1) * PART, 0x5a);
    for (unsigned i = 0; i <= BLOCKS; i++)
        parts.push_back(out.data() + i * PART);
    a.first.x = x.data();
    a.first.parts = parts.data();
    a.first.x_stride = WIDTH;
    a.first.n_rows = ROWS;
    a.first.width = WIDTH;
    a.first.format = format;
    a.first.first_row = FIRST;
    a.first.rows_per_block = PER_BLOCK;
    a.first.group_rows = group_rows;
    a.first.value_bytes = static_cast<unsigned>(cache_value_bytes(format, WIDTH));
    a.first.scale_bytes = static_cast<unsigned>(cache_scale_bytes(format, WIDTH));
    change(a);
    a.first_warps = a.warps = a.first.n_rows * ((a.first.width + CACHE_CHUNK - 1) / CACHE_CHUNK);
    return planted_launch(order, (a.warps + CACHE_WARPS - 1) / CACHE_WARPS, CACHE_THREADS, sizeof(cache_shared),
                          [&] { append_rows_kernel(a); });
}

bool run_query(int order, bytes &out)
{
    enum : unsigned { N = 3 * CACHE_CHUNK + 64 };
    const floats        x = numbers(N);
    std::vector<int8_t> codes(N);
    floats              scales(N / 32);
    const query_args    a = {x.data(), codes.data(), scales.data(), nullptr, N, 0, 0.0f};
    const bool          ran = planted_launch(order, 1, CACHE_THREADS, sizeof(cache_shared), [&] { index_query_kernel(a); });

    out.assign(codes.begin(), codes.end());
    out.insert(out.end(), reinterpret_cast<uint8_t *>(scales.data()), reinterpret_cast<uint8_t *>(scales.data() + scales.size()));
    return ran;
}

/* Keys and values of three heads from position FIRST on. */
bool run_paged(int order, unsigned format, const std::function<void(paged_write_args &)> &change, bytes &out)
{
    enum : unsigned { HEADS = 3, CHUNKS = (WIDTH + CACHE_CHUNK - 1) / CACHE_CHUNK };
    /* with a head less, chunks of half as many rows more */
    const floats           x = numbers(3 * (ROWS + 1) * (HEADS + 1) * WIDTH);
    std::vector<uint8_t *> pages;
    paged_write_args       a = {};

    out.assign((BLOCKS + 1) * 4 * PART, 0x5a);
    for (unsigned i = 0; i <= BLOCKS; i++)
        pages.push_back(out.data() + i * 4 * PART);
    a.p.k = x.data();
    a.p.v = x.data() + HEADS * WIDTH;
    a.p.pages = pages.data();
    a.p.k_row_stride = 2 * HEADS * WIDTH;
    a.p.k_head_stride = WIDTH;
    a.p.v_row_stride = 2 * HEADS * WIDTH + 4;
    a.p.v_head_stride = WIDTH;
    a.p.first = FIRST;
    a.p.page_off = 16;
    a.p.n_rows = ROWS;
    a.p.n_kv_heads = HEADS;
    a.p.width = WIDTH;
    a.p.page_rows = PER_BLOCK;
    a.p.format = format;
    a.value_bytes = static_cast<unsigned>(cache_value_bytes(format, WIDTH));
    a.scale_bytes = static_cast<unsigned>(cache_scale_bytes(format, WIDTH));
    a.warps = ROWS * 2 * HEADS * CHUNKS;
    change(a);
    return planted_launch(order, static_cast<unsigned>((a.warps + CACHE_WARPS - 1) / CACHE_WARPS), CACHE_THREADS,
                          sizeof(cache_shared), [&] { paged_write_kernel(a); });
}

void nothing(append_args &) {}
void no_change(paged_write_args &) {}

typedef std::function<bool(int order, bytes &out)> kernel_run;

/* Without the barrier of a warp one order of threads gives other bytes. */
void check_barrier(const char *what, const kernel_run &run)
{
    bytes right, out;
    bool  found = false;

    assert_true(run(0, right));
    for (int order = 1; order < 3; order++) {
        assert_true(run(order, out));
        assert_true(out == right);
    }
    no_barrier = true;
    for (int order = 0; order < 3 && !found; order++)
        found = !run(order, out) || out != right;
    no_barrier = false;
    if (!found)
        fail_msg("%s: nobody misses the barrier", what);
    other_group = true;
    assert_true(run(0, out));
    other_group = false;
    if (out == right)
        fail_msg("%s: nobody sees the scales of another group", what);
}

const struct {
    const char *what;
    unsigned    format, group_rows;
} kinds[] = {
    {"fp4", KVCSA_FORMAT_FP4_E4M3_G16, 1},
    {"window", KVCSA_FORMAT_FP8_E8M0_G32, 1},
    {"keys", KVCSA_FORMAT_FP4_E8M0_G32, 8},
    {"q8_0", KVCSA_FORMAT_Q8_0, 1},
    {"int3", KVCSA_FORMAT_INT3_F16_G32, 1},
};

void test_barriers_and_scales(void **)
{
    for (const auto &k : kinds) {
        check_barrier(k.what, [&](int order, bytes &out) { return run_append(order, k.format, k.group_rows, nothing, out); });
        check_barrier(k.what, [&](int order, bytes &out) { return run_paged(order, k.format, no_change, out); });
    }
    check_barrier("query", run_query);
}

void test_places(void **)
{
    static const struct {
        const char *what;
        void      (*change)(append_args &);
    } faults[] = {
        {"the next block", [](append_args &a) { a.first.parts++; }},
        {"the next row", [](append_args &a) { a.first.first_row++; }},
        {"the row in front", [](append_args &a) { a.first.first_row--; }},
        {"a row less", [](append_args &a) { a.first.n_rows--; }},
        {"blocks of one row more", [](append_args &a) { a.first.rows_per_block++; }},
        {"the next row of x", [](append_args &a) { a.first.x += WIDTH; }},
        {"scales in other places", [](append_args &a) { a.first.group_rows = a.first.group_rows == 1 ? 8 : 1; }},
    };

    for (const auto &k : kinds) {
        bytes right, out;

        assert_true(run_append(0, k.format, k.group_rows, nothing, right));
        for (const auto &f : faults) {
            if (f.change == faults[6].change && cache_scale_bytes(k.format, WIDTH) == 0)
                continue; /* scales stand among the values */
            assert_true(run_append(0, k.format, k.group_rows, f.change, out));
            if (out == right)
                fail_msg("%s: %s: nobody sees it", k.what, f.what);
        }
    }
}

void test_pages(void **)
{
    static const struct {
        const char *what;
        void      (*change)(paged_write_args &);
    } faults[] = {
        {"the next page", [](paged_write_args &a) { a.p.pages++; }},
        {"the next position", [](paged_write_args &a) { a.p.first++; }},
        {"the position in front", [](paged_write_args &a) { a.p.first--; }},
        {"pages of one row more", [](paged_write_args &a) { a.p.page_rows++; }},
        {"the next byte", [](paged_write_args &a) { a.p.page_off++; }},
        {"a chunk less", [](paged_write_args &a) { a.warps--; }},
        {"a chunk more", [](paged_write_args &a) { a.warps++; }},
        {"a head less", [](paged_write_args &a) { a.p.n_kv_heads--; }},
        {"keys for values", [](paged_write_args &a) { a.p.v = a.p.k; }},
        {"rows of keys", [](paged_write_args &a) { a.p.k_row_stride++; }},
        {"rows of values", [](paged_write_args &a) { a.p.v_row_stride = a.p.k_row_stride; }},
        {"heads of keys", [](paged_write_args &a) { a.p.k_head_stride++; }},
        {"heads of values", [](paged_write_args &a) { a.p.v_head_stride--; }},
        {"longer rows", [](paged_write_args &a) { a.value_bytes++; }},
    };

    for (const auto &k : kinds) {
        bytes right, out;

        assert_true(run_paged(0, k.format, no_change, right));
        for (const auto &f : faults) {
            assert_true(run_paged(0, k.format, f.change, out));
            if (out == right)
                fail_msg("%s: %s: nobody sees it", k.what, f.what);
        }
    }
}

/* The rows as those of three timelines, all of which have the same blocks: the first six go where they went before, the others
 * a row further, but for one that is not stored. */
struct timelines {
    kvi_slice slices[4];
    uint64_t  entry_pos[ROWS + 1];
};

void among_others(append_args &a, timelines &t)
{
    for (kvi_slice &s : t.slices)
        s = {nullptr, a.first.parts, nullptr, nullptr};
    t.slices[1].main_parts++; /* counted from its second block on */
    for (unsigned i = 0; i <= ROWS; i++)
        t.entry_pos[i] = i == 7 ? KVI_NO_ENTRY : 2 * (FIRST + i + (i > 5) - (i / 4 == 1 ? +PER_BLOCK : 0)) + 1;
    a.slices = {{t.slices, nullptr, 4}, t.entry_pos, 2};
    a.first.parts = nullptr;
    a.first.first_row = 77; /* is not read */
}

void test_timelines(void **)
{
    static const struct {
        const char *what;
        void      (*change)(append_args &);
    } faults[] = {
        {"the timeline behind", [](append_args &a) { a.slices.of.slices++; }},
        {"timelines of a row more", [](append_args &a) { a.slices.of.each++; }},
        {"the row beside", [](append_args &a) { a.slices.entry_pos++; }},
        {"entries of a token more", [](append_args &a) { a.slices.ratio++; }},
    };

    for (const auto &k : kinds) {
        bytes     right, out, want;
        timelines t;

        assert_true(run_append(0, k.format, k.group_rows, [&](append_args &a) { among_others(a, t); }, right));
        /* what the same rows are where jobs say it */
        assert_true(run_append(0, k.format, k.group_rows, [](append_args &a) { a.first.n_rows = 6; }, want));
        assert_true(run_append(0, k.format, k.group_rows, [&](append_args &a) {
            among_others(a, t);
            a.first.n_rows = 6;
        }, out));
        assert_true(out == want);
        for (const auto &f : faults) {
            assert_true(run_append(0, k.format, k.group_rows, [&](append_args &a) {
                among_others(a, t);
                f.change(a);
            }, out));
            if (out == right)
                fail_msg("%s: %s: nobody sees it", k.what, f.what);
        }
    }
}

const CMUnitTest tests[] = {cmocka_unit_test(test_barriers_and_scales), cmocka_unit_test(test_places),
                            cmocka_unit_test(test_pages), cmocka_unit_test(test_timelines)};

} // namespace

int main()
{
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
