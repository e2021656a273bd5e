/* Faults that are planted into the kernels that write rows of the cache: barriers are left out, blocks and rows are off by one,
 * scales are made of a group that is not their own. */
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <functional>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "device.cuh"

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

std::vector<float> numbers(size_t n)
{
    std::vector<float> x(n);
    uint32_t           random = 3;

    for (size_t i = 0; i < n; i++) { /* groups of different sizes */
        random = random * 1664525u + 1013904223u;
        x[i] = (static_cast<float>(random >> 8) * 0x1p-23f - 1.0f) * static_cast<float>(1u << i / 16 % 5);
    }
    return x;
}

/* ROWS rows from row FIRST of a block on; groups of `group_rows` as the index keys have them. False = a fault was reported. */
bool run_append(int order, unsigned format, unsigned group_rows, const std::function<void(kvi_append_job &)> &change, bytes &out)
{
    const std::vector<float> x = numbers(ROWS * WIDTH + WIDTH);
    std::vector<uint8_t *>   parts;
    append_args              a = {};
    bool                     ran;

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
    change(a.first);
    a.first_warps = a.warps = a.first.n_rows * ((a.first.width + CACHE_CHUNK - 1) / CACHE_CHUNK);
    kvi_emu_order(order, 9);
    ran = kvi_emu::launch("planted", dim3((a.warps + CACHE_WARPS - 1) / CACHE_WARPS), dim3(CACHE_THREADS), sizeof(cache_shared),
                          [&] { append_rows_kernel(a); });
    kvi_emu_order(kvi_emu::ASCENDING, 1);
    if (!ran)
        (void)kvi_emu_fault();
    return ran;
}

bool run_query(int order, bytes &out)
{
    enum : unsigned { N = 3 * CACHE_CHUNK + 64 };
    const std::vector<float> x = numbers(N);
    std::vector<int8_t>      codes(N);
    std::vector<float>       scales(N / 32);
    const query_args         a = {x.data(), codes.data(), scales.data(), nullptr, N, 0, 0.0f};
    bool                     ran;

    kvi_emu_order(order, 9);
    ran = kvi_emu::launch("planted", dim3(1), dim3(CACHE_THREADS), sizeof(cache_shared), [&] { index_query_kernel(a); });
    kvi_emu_order(kvi_emu::ASCENDING, 1);
    if (!ran)
        (void)kvi_emu_fault();
    out.assign(codes.begin(), codes.end());
    out.insert(out.end(), reinterpret_cast<uint8_t *>(scales.data()), reinterpret_cast<uint8_t *>(scales.data() + scales.size()));
    return ran;
}

void nothing(kvi_append_job &) {}

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
    for (const auto &k : kinds)
        check_barrier(k.what, [&](int order, bytes &out) { return run_append(order, k.format, k.group_rows, nothing, out); });
    check_barrier("query", run_query);
}

void test_places(void **)
{
    static const struct {
        const char *what;
        void      (*change)(kvi_append_job &);
    } faults[] = {
        {"the next block", [](kvi_append_job &j) { j.parts++; }},
        {"the next row", [](kvi_append_job &j) { j.first_row++; }},
        {"the row in front", [](kvi_append_job &j) { j.first_row--; }},
        {"a row less", [](kvi_append_job &j) { j.n_rows--; }},
        {"blocks of one row more", [](kvi_append_job &j) { j.rows_per_block++; }},
        {"the next row of x", [](kvi_append_job &j) { j.x += WIDTH; }},
        {"scales in other places", [](kvi_append_job &j) { j.group_rows = j.group_rows == 1 ? 8 : 1; }},
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

const CMUnitTest tests[] = {cmocka_unit_test(test_barriers_and_scales), cmocka_unit_test(test_places)};

} // namespace

int main()
{
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
