/* Faults that are planted into the kernels of select.cuh: each barrier is left out once, counts are not cleared, a place is
 * off by one. The emulation must give a wrong result or report a fault in at least one order of threads. */
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstdlib>
#include <sys/mman.h>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "device.cuh"

namespace {

int      left_out = -1;      /* number of the barrier of a thread that is left out */
unsigned arrivals[1024];     /* of each thread in its block */

void planted_barrier(KVI_SITE_ONLY)
{
    if (static_cast<int>(arrivals[threadIdx.x]++) != left_out)
        kvi_sync_block(file, line);
}

} // namespace

#define kvi_sync_block planted_barrier
#include "select.cuh"
#undef kvi_sync_block

namespace {

enum { N = 6000, K = 720, IDS = K + 3, BLOCKS = 2 };
/* Segments end with a full batch of groups: the votes of an empty one would do what the barrier behind them does. */
enum { LONG_N = BLOCKS * SELECT_WARPS * SELECT_AHEAD * SELECT_GROUP };

/* Where ids go: a place of 32 bits that a fault made up lies inside, too. */
int32_t *all_ids;

struct result {
    bool                 ran;
    std::vector<int32_t> ids;
    bool operator==(const result &b) const { return ran == b.ran && ids == b.ids; }
};

/* A fifth is large, of 32 values, so that each of the three histograms decides something and ties are left at the end. */
std::vector<uint32_t> scores(size_t n)
{
    std::vector<uint32_t> x(n);
    uint32_t              random = 12345;

    for (size_t i = 0; i < n; i++) {
        random = random * 1664525u + 1013904223u;
        x[i] = i % 5 == 0 ? 0x40000000u + (random >> 27) * 331u : 0x3f000000u + (random >> 9);
    }
    return x;
}

select_row_args row_of(const std::vector<uint32_t> &x, const uint64_t *n, result &r)
{
    r.ran = true;
    for (int i = 0; i < IDS; i++)
        all_ids[i] = 77;
    return {x.data(), n, nullptr, nullptr, all_ids, nullptr, x.size(), 0, IDS, 1, 0, K, 0, 0, nullptr};
}

template <class ARGS>
void launch(result &r, void (*kernel)(ARGS), const ARGS &a, unsigned blocks, unsigned threads, size_t shared)
{
    for (unsigned &n : arrivals)
        n = 0;
    r.ran = kvi_emu::launch("planted", dim3(blocks), dim3(threads), shared, [=] {
        kernel(a);
        arrivals[threadIdx.x] = 0; /* blocks run one after the other */
    }) && r.ran;
}

result run_short(int order, int barrier)
{
    const std::vector<uint32_t> x = scores(N);
    const uint64_t              n = N;
    result                      r;
    const select_row_args       a = row_of(x, &n, r);

    kvi_emu_order(order, 3);
    left_out = barrier;
    launch(r, select_short_kernel<false>, a, 1, SELECT_SHORT_THREADS, sizeof(select_short_shared));
    left_out = -1;
    r.ids.assign(all_ids, all_ids + IDS);
    return r;
}

typedef void (*long_kernel)(select_long_args);
const long_kernel kernels[5] = {select_first_kernel<false>, select_second_kernel<false>, select_third_kernel<false>,
                                select_count_kernel<false>, select_write_kernel<false>};

/* The barrier is left out of kernel number `faulty` alone; `dirt` stands in the histograms at first, the first segment's list
 * loses `off` items. */
result run_long(int order, int faulty, int barrier, unsigned dirt = 0, unsigned off = 0)
{
    const std::vector<uint32_t>   x = scores(LONG_N);
    const uint64_t                n = LONG_N;
    result                        r;
    std::vector<unsigned>         bins(SELECT_ALL_BINS, dirt), listed(BLOCKS * SELECT_WARPS);
    std::vector<select_threshold> thresholds(3);
    std::vector<uint2>            lists(BLOCKS * SELECT_WARPS * SELECT_LIST);
    std::vector<select_counts>    of_segment(BLOCKS * SELECT_WARPS), of_block(BLOCKS);
    const select_long_args        a = {row_of(x, &n, r), bins.data(),       thresholds.data(), listed.data(), lists.data(),
                                       of_segment.data(), of_block.data(), BLOCKS};

    kvi_emu_order(order, 3);
    for (int i = 0; i < 5; i++) {
        left_out = i == faulty ? barrier : -1;
        launch(r, kernels[i], a, BLOCKS, SELECT_THREADS, sizeof(select_long_shared));
        if (i == 1)
            listed[0] -= off;
    }
    left_out = -1;
    r.ids.assign(all_ids, all_ids + IDS);
    return r;
}

void test_barriers_of_short_rows(void **)
{
    const result right = run_short(0, -1);

    assert_true(right.ran && right == run_short(1, -1) && right == run_short(2, -1));
    for (int barrier = 0; barrier < 12; barrier++) {
        bool found = false;
        for (int order = 0; order < 3 && !found; order++)
            found = !(run_short(order, barrier) == right);
        if (!found)
            fail_msg("nobody misses barrier %d", barrier);
    }
}

void test_barriers_of_long_rows(void **)
{
    static const int n_barriers[5] = {2, 3, 3, 3, 0};
    const result     right = run_long(0, -1, -1);

    assert_true(right.ran && right == run_long(1, -1, -1) && right == run_long(2, -1, -1));
    for (int kernel = 0; kernel < 5; kernel++)
        for (int barrier = 0; barrier < n_barriers[kernel]; barrier++) {
            bool found = false;
            for (int order = 0; order < 3 && !found; order++)
                found = !(run_long(order, kernel, barrier) == right);
            if (!found)
                fail_msg("nobody misses barrier %d of kernel %d", barrier, kernel);
        }
}

void test_scratch_of_long_rows(void **)
{
    const result right = run_long(0, -1, -1);

    assert_false(run_long(0, -1, -1, 1) == right);
    assert_false(run_long(0, -1, -1, 0, 8) == right);
}

int open_ids(void **)
{
    const size_t bytes = (static_cast<size_t>(UINT32_MAX) + 1) * sizeof *all_ids;
    void        *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    all_ids = static_cast<int32_t *>(p);
    return p == MAP_FAILED ? -1 : 0;
}

const CMUnitTest tests[] = {cmocka_unit_test(test_barriers_of_short_rows), cmocka_unit_test(test_barriers_of_long_rows),
                            cmocka_unit_test(test_scratch_of_long_rows)};

} // namespace

int main()
{
    return cmocka_run_group_tests(tests, open_ids, nullptr);
}
