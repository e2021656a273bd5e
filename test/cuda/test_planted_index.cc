/* Faults that are planted into the kernels of index.cuh: a wait, a barrier or an exchange of the warp is left out, pages, scale
 * groups and heads are off by one, blocks are dealt to the wrong timeline. The emulation must give a wrong result or report a
 * fault in at least one order of threads. */
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstdlib>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "device_index.cuh"

namespace {

enum fault { NONE, NO_COPY_WAIT, NO_WARP_BARRIER, NO_BLOCK_BARRIER, WRONG_PAGE, WRONG_GROUP, WRONG_TREE, WRONG_DEAL, FAULTS };
enum { GROUP_BYTES = 544 }; /* eight keys of 128 channels */
int planted;

template <unsigned N> void planted_wait_or_not()
{
    if (planted == NO_COPY_WAIT)
        kvi_copy_wait<N + 8>();
    else
        kvi_copy_wait<N>();
}
void planted_sync_warp(KVI_SITE_ONLY)
{
    if (planted != NO_WARP_BARRIER)
        kvi_sync_warp(file, line);
}
void planted_sync_block(KVI_SITE_ONLY)
{
    if (planted != NO_BLOCK_BARRIER)
        kvi_sync_block(file, line);
}
/* The tree's levels are told by the distance of lanes: 2, then 1. */
float planted_shfl_xor(float v, unsigned mask KVI_SITE_MORE)
{
    return kvi_shfl_xor(v, planted == WRONG_TREE && mask == 2 ? 4u : mask, file, line);
}
/* Only the dealing of blocks scans: units of all tiles, then blocks in front. */
template <class T> T planted_shfl_up(T v, unsigned n KVI_SITE_MORE)
{
    const T lower = kvi_shfl_up(v, n, file, line);
    return planted == WRONG_DEAL && sizeof(T) == sizeof(unsigned) ? T() : lower;
}
/* From where keys are copied. */
void planted_copy_16(void *shared, const void *global)
{
    kvi_copy_16(shared, static_cast<const char *>(global) + (planted == WRONG_PAGE    ? GROUP_BYTES
                                                             : planted == WRONG_GROUP ? 16
                                                                                      : 0));
}

} // namespace

#define kvi_copy_wait  planted_wait_or_not
#define kvi_sync_warp  planted_sync_warp
#define kvi_sync_block planted_sync_block
#define kvi_shfl_xor   planted_shfl_xor
#define kvi_shfl_up    planted_shfl_up
#define kvi_copy_16    planted_copy_16
#include "index.cuh"
#undef kvi_copy_wait
#undef kvi_sync_warp
#undef kvi_sync_block
#undef kvi_shfl_xor
#undef kvi_shfl_up
#undef kvi_copy_16

namespace {

/* Each of 8 warps goes once round its ring of three: stale keys are keys, too. The second timeline is short. */
enum { N = 1300, SECOND = 70, HEADS = 32, GROUPS = (N + 7) / 8, SLICES = 2 };

struct result {
    bool               ran;
    std::vector<float> scores;
    bool operator==(const result &b) const { return ran == b.ran && scores == b.scores; }
};

result run(int order, int fault)
{
    static uint4                cache[(GROUPS + 2) * GROUP_BYTES / 16]; /* what a wrong page reads lies inside */
    static uint64_t             codes[SLICES * HEADS * 128 / 8];
    uint8_t                    *bytes = reinterpret_cast<uint8_t *>(cache), *parts[SLICES] = {bytes, bytes + 5 * GROUP_BYTES};
    const kvi_slice             slices[SLICES] = {{&parts[0], nullptr, nullptr, nullptr},
                                                  {&parts[1], nullptr, nullptr, nullptr}};
    std::vector<float>          scales(SLICES * HEADS * 4), weights(SLICES * HEADS);
    result                      r = {false, std::vector<float>(SLICES * N + INDEX_UNIT)}; /* counts may be wrong, too */
    const uint64_t              n[SLICES] = {N, SECOND};
    uint32_t                    random = 99;
    typedef index_shared<4, 4, 3> shared;
    const auto                  next = [&] { return (random = random * 1664525u + 1013904223u) >> 16; };
    index_args                  a = {};

    for (size_t i = 0; i < sizeof cache; i++)
        bytes[i] = static_cast<uint8_t>(i % GROUP_BYTES < 512 ? next() : 126 + next() % 3);
    for (size_t i = 0; i < sizeof codes; i++)
        reinterpret_cast<int8_t *>(codes)[i] = static_cast<int8_t>(next() % 9 - 4);
    for (float &x : scales)
        x = std::ldexp(1.0f, static_cast<int>(next() % 3));
    for (float &x : weights)
        x = static_cast<float>(next()) * 1e-5f - 0.2f;
    a.slices = slices;
    a.codes = reinterpret_cast<int8_t *>(codes);
    a.scales = scales.data();
    a.weights = weights.data();
    a.n_visible = n;
    a.scores = r.scores.data();
    a.scores_stride = N;
    a.n_rows = a.n_tiles = SLICES;
    a.rows_slice = a.rows_tile = a.tiles_slice = 1;
    a.deal = 1; /* and one more block for each of the two */
    a.n_heads = a.n_tree = HEADS;
    a.n_groups = 4;
    a.rows_per_block = {2048, 1, 11};
    a.per_block = {1, 1, 0};
    a.piece = 16;
    planted = fault;
    kvi_emu_order(order, 5);
    r.ran = kvi_emu::launch("planted", dim3(1 + SLICES), dim3(INDEX_THREADS), sizeof(shared), [=] { index_kernel<4, 4, 3, true>(a); });
    planted = NONE;
    kvi_emu_order(kvi_emu::ASCENDING, 1);
    kvi_emu_fault();
    return r;
}

void test_planted_faults_are_seen(void **)
{
    const result right = run(kvi_emu::ASCENDING, NONE);

    assert_true(right.ran);
    for (int order = 0; order < 3; order++)
        assert_true(run(order, NONE) == right);
    for (int fault = NONE + 1; fault < FAULTS; fault++) {
        bool seen = false;

        for (int order = 0; order < 3; order++)
            seen = !(run(order, fault) == right) || seen;
        if (!seen)
            print_error("fault %d is not seen\n", fault);
        assert_true(seen);
    }
}

const CMUnitTest tests[] = {cmocka_unit_test(test_planted_faults_are_seen)};

} // namespace

int main(void) { return cmocka_run_group_tests(tests, nullptr, nullptr); }
