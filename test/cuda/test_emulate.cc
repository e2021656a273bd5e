/* The emulated device itself: what it computes, and that it sees the faults it is there for. */
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstdlib>

extern "C" {
#include <cmocka.h>
}

#include "device.cuh"

namespace {

struct shared {
    int      value[256];
    uint64_t bar;
};

bool run(void (*kernel)(int *), int *data, unsigned threads, unsigned blocks = 1)
{
    return kvi_emu::launch("kernel", dim3(blocks), dim3(threads), sizeof(shared), [=] { kernel(data); });
}

/* True if the kernel gives the same in all orders of threads and ends without a fault. */
bool agrees(void (*kernel)(int *), unsigned threads, const int *wanted, size_t n)
{
    bool same = true;

    for (int order = 0; order < 3; order++) {
        int data[256] = {0};
        kvi_emu_order(order, 5);
        same = run(kernel, data, threads) && same;
        for (size_t i = 0; i < n; i++)
            same = same && data[i] == wanted[i];
    }
    kvi_emu_order(kvi_emu::ASCENDING, 1);
    kvi_emu_fault();
    return same;
}

void reverse(int *out)
{
    shared &s = kvi_shared<shared>();
    s.value[threadIdx.x] = static_cast<int>(threadIdx.x);
    kvi_sync_block();
    out[threadIdx.x] = s.value[blockDim.x - 1 - threadIdx.x];
}

void reverse_without_barrier(int *out)
{
    shared &s = kvi_shared<shared>();
    s.value[threadIdx.x] = static_cast<int>(threadIdx.x);
    out[threadIdx.x] = s.value[blockDim.x - 1 - threadIdx.x];
}

void neighbour(int *out) /* reads only from the lower neighbour: ascending order alone would not see the fault */
{
    shared &s = kvi_shared<shared>();
    s.value[threadIdx.x] = static_cast<int>(threadIdx.x);
    out[threadIdx.x] = threadIdx.x ? s.value[threadIdx.x - 1] : 0;
}

void divergent(int *out)
{
    if (threadIdx.x < 32)
        kvi_sync_block();
    else
        kvi_sync_block();
    out[threadIdx.x] = 1;
}

void left_early(int *out)
{
    if (threadIdx.x == 7)
        return;
    kvi_sync_block();
    out[threadIdx.x] = 1;
}

void lanes_apart(int *out)
{
    if (kvi_lane() < 16)
        out[threadIdx.x] = kvi_shfl(1, 0);
    else
        out[threadIdx.x] = kvi_shfl(2, 0);
}

void votes(int *out)
{
    const unsigned odd = kvi_ballot(threadIdx.x & 1);
    const int      up = kvi_shfl_up(static_cast<int>(threadIdx.x), 3);
    const int      sum = static_cast<int>(kvi_warp_sum(1.0f));
    out[threadIdx.x] = odd == 0xaaaaaaaau ? up + 100 * sum : -1;
}

void copies(int *out)
{
    shared &s = kvi_shared<shared>();
    if (threadIdx.x < 8)
        kvi_copy_16(&s.value[4 * threadIdx.x], out + 64 + 4 * threadIdx.x);
    kvi_copy_commit();
    kvi_copy_wait<0>();
    kvi_sync_block();
    out[threadIdx.x] = s.value[threadIdx.x];
}

void copies_without_wait(int *out)
{
    shared &s = kvi_shared<shared>();
    if (threadIdx.x < 8)
        kvi_copy_16(&s.value[4 * threadIdx.x], out + 64 + 4 * threadIdx.x);
    kvi_copy_commit();
    kvi_sync_block();
    out[threadIdx.x] = s.value[threadIdx.x];
}

void test_barrier_orders_threads(void **)
{
    int wanted[64];

    for (int i = 0; i < 64; i++)
        wanted[i] = 63 - i;
    assert_true(agrees(reverse, 64, wanted, 64));
    assert_false(agrees(reverse_without_barrier, 64, wanted, 64));
    for (int i = 0; i < 64; i++)
        wanted[i] = i ? i - 1 : 0;
    assert_false(agrees(neighbour, 64, wanted, 64));
}

void faulty(void (*kernel)(int *), const char *word)
{
    int         data[256] = {0};
    const char *text;

    assert_false(run(kernel, data, 64));
    text = kvi_emu_fault();
    if (!std::strstr(text, word) || !std::strstr(text, "test_emulate.cc"))
        fail_msg("fault: %s", text);
    assert_string_equal(kvi_emu_fault(), "");
    assert_true(run(reverse, data, 64)); /* the machine works again */
}

void test_divergence_is_reported(void **)
{
    faulty(divergent, "different barriers");
    faulty(left_early, "can go on");
    faulty(lanes_apart, "different places");
}

void test_votes_and_shuffles(void **)
{
    int wanted[32];

    for (int i = 0; i < 32; i++)
        wanted[i] = (i >= 3 ? i - 3 : i) + 3200;
    assert_true(agrees(votes, 32, wanted, 32));
}

void test_copies_need_a_wait(void **)
{
    for (int with = 0; with < 2; with++) {
        int data[256];
        for (int i = 0; i < 256; i++)
            data[i] = i;
        assert_true(run(with ? copies : copies_without_wait, data, 32));
        assert_int_equal(data[5] == 69, with);
    }
}

/* mma against plain sums, for all three kinds. */
float    ma[16][32], mb[32][8], md[16][8];
uint32_t half_of(float x, bool bf16)
{
    if (bf16)
        return kvi_bf16(x);
    for (uint32_t h = 0; h < 0x8000; h++) /* exact values only */
        if (kvi_emu_half(h | (x < 0 ? 0x8000u : 0)) == x)
            return h | (x < 0 ? 0x8000u : 0);
    return 0;
}

template <int KIND> void product(int *out)
{
    const unsigned g = kvi_lane() / 4, t = kvi_lane() % 4;
    constexpr unsigned PER = KIND == 2 ? 4 : 2, STEP = KIND == 2 ? 16 : 8;
    uint32_t       a[4] = {}, b[2] = {};
    float          d[4] = {1, 2, 3, 4};
    int            di[4] = {1, 2, 3, 4};

    for (unsigned r = 0; r < 4; r++)
        for (unsigned e = 0; e < PER; e++) {
            const float    x = ma[g + 8 * (r % 2)][PER * t + e + STEP * (r / 2)];
            const uint32_t bits = KIND == 2 ? static_cast<uint32_t>(static_cast<int>(x)) & 0xffu : half_of(x, KIND == 0);
            a[r] |= bits << (32 / PER * e);
        }
    for (unsigned r = 0; r < 2; r++)
        for (unsigned e = 0; e < PER; e++) {
            const float    x = mb[PER * t + e + STEP * r][g];
            const uint32_t bits = KIND == 2 ? static_cast<uint32_t>(static_cast<int>(x)) & 0xffu : half_of(x, KIND == 0);
            b[r] |= bits << (32 / PER * e);
        }
    if (KIND == 0)
        kvi_mma_bf16(d, a, b);
    else if (KIND == 1)
        kvi_mma_f16(d, a, b);
    else
        kvi_mma_s8(di, a, b);
    for (unsigned i = 0; i < 4; i++)
        md[g + 8 * (i / 2)][2 * t + i % 2] = KIND == 2 ? static_cast<float>(di[i]) : d[i];
    out[threadIdx.x] = 1;
}

template <int KIND> void check_product()
{
    const int k = KIND == 2 ? 32 : 16;
    int       data[256];

    for (int i = 0; i < 16; i++)
        for (int j = 0; j < k; j++)
            ma[i][j] = static_cast<float>((i * 7 + j * 3) % 11 - 5);
    for (int i = 0; i < k; i++)
        for (int j = 0; j < 8; j++)
            mb[i][j] = static_cast<float>((i * 5 + j * 2) % 13 - 6);
    assert_true(run(product<KIND>, data, 32));
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float sum = static_cast<float>(i / 8 * 2 + j % 2 + 1);
            for (int c = 0; c < k; c++)
                sum += ma[i][c] * mb[c][j];
            assert_true(md[i][j] == sum);
        }
}

void test_matrix_instructions(void **)
{
    check_product<0>();
    check_product<1>();
    check_product<2>();
}

/* bulk copies and memory barriers: two rounds, so that both phases are waited for */
void bulk(int *out)
{
    shared  &s = kvi_shared<shared>();
    unsigned phase = 0;

    if (threadIdx.x == 0)
        kvi_emu::mbar_init(&s.bar, 1);
    kvi_sync_block();
    for (int round = 0; round < 2; round++) {
        if (threadIdx.x == 0) {
            kvi_emu::mbar_arrive(&s.bar, 128);
            kvi_emu::bulk_copy(s.value, out + 64 + 32 * round, 128, &s.bar);
        }
        kvi_emu::mbar_wait(&s.bar, phase, {__FILE__, __LINE__});
        phase ^= 1;
        out[threadIdx.x] = s.value[threadIdx.x] + (round ? out[threadIdx.x] : 0);
        kvi_sync_block();
    }
}

void test_bulk_copies(void **)
{
    for (int order = 0; order < 3; order++) {
        int data[256];
        for (int i = 0; i < 256; i++)
            data[i] = i;
        kvi_emu_order(order, 3);
        assert_true(run(bulk, data, 32));
        for (int i = 0; i < 32; i++)
            assert_int_equal(data[i], 64 + i + 96 + i);
    }
    kvi_emu_order(kvi_emu::ASCENDING, 1);
}

void test_impossible_grids(void **)
{
    int data[1];

    assert_false(run(reverse, data, 0));
    assert_false(run(reverse, data, 1025));
    assert_false(run(reverse, data, 32, 0));
    assert_non_null(std::strstr(kvi_emu_fault(), "no device"));
}

} // namespace

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barrier_orders_threads), cmocka_unit_test(test_divergence_is_reported),
        cmocka_unit_test(test_votes_and_shuffles),     cmocka_unit_test(test_copies_need_a_wait),
        cmocka_unit_test(test_matrix_instructions),    cmocka_unit_test(test_bulk_copies),
        cmocka_unit_test(test_impossible_grids),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
