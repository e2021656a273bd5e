/* Faults that are planted into the kernels of the dense operators: each barrier is left out once. The emulation must give a
 * wrong result or report a fault in at least one order of threads. */
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

int      left_out = -1;  /* number of the barrier of a thread that is left out */
unsigned arrivals[1024]; /* of each thread */

bool is_left_out() { return static_cast<int>(arrivals[threadIdx.x]++) == left_out; }

void planted_block(KVI_SITE_ONLY)
{
    if (!is_left_out())
        kvi_sync_block(file, line);
}

void planted_warp(KVI_SITE_ONLY)
{
    if (!is_left_out())
        kvi_sync_warp(file, line);
}

} // namespace

#define kvi_sync_block planted_block
#define kvi_sync_warp  planted_warp
#include "engram.cuh"
#include "mix.cuh"
#include "norm.cuh"
#include "rope.cuh"
#include "route.cuh"
#undef kvi_sync_block
#undef kvi_sync_warp

namespace {

typedef std::vector<float> floats;
typedef std::function<bool(floats &out)> kernel_run; /* false = a fault was reported */

floats numbers(size_t n)
{
    floats   x(n);
    uint32_t random = 7;

    for (float &v : x) {
        random = random * 1664525u + 1013904223u;
        v = static_cast<float>(random >> 8) * 0x1p-23f - 1.0f;
    }
    return x;
}

template <class ARGS> bool launch(void (*kernel)(ARGS), const ARGS &a, unsigned threads, size_t shared)
{
    for (unsigned &n : arrivals)
        n = 0;
    return kvi_emu::launch("planted", dim3(1), dim3(threads), shared, [=] { kernel(a); });
}

/* Without faults all orders agree; with any of n_barriers left out, one of them does not. */
void check(const char *name, int n_barriers, const kernel_run &run)
{
    floats good, out;

    kvi_emu_order(kvi_emu::ASCENDING, 1);
    left_out = -1;
    assert_true(run(good));
    for (int order = 1; order < 3; order++) {
        kvi_emu_order(order, 5);
        assert_true(run(out));
        assert_memory_equal(out.data(), good.data(), good.size() * sizeof(float));
    }
    for (int barrier = 0; barrier < n_barriers; barrier++) {
        bool seen = false;

        left_out = barrier;
        for (int order = 0; order < 3 && !seen; order++) {
            kvi_emu_order(order, 5);
            seen = !run(out) || std::memcmp(out.data(), good.data(), good.size() * sizeof(float)) != 0;
            (void)kvi_emu_fault();
        }
        if (!seen)
            fail_msg("%s: nothing shows that barrier %d is missing", name, barrier);
    }
    left_out = -1;
    kvi_emu_order(kvi_emu::ASCENDING, 1);
}

void test_norm(void **)
{
    const floats x = numbers(2000), w = numbers(2000);

    check("norm", 1, [&](floats &y) {
        y.assign(2000, 7.0f);
        return launch(norm_f32_f32_kernel<NORM_SMALL>, norm_args{x.data(), y.data(), w.data(), 2000, 2000, 1, 2000, 1e-6f}, NORM_SMALL,
                      sizeof(norm_shared<NORM_SMALL>));
    });
}

/* Three rounds of angles: five barriers. */
void test_rope(void **)
{
    enum : unsigned { WIDTH = 4 * ROPE_PAIRS + 8, HEADS = 2 };
    const floats   freqs = numbers(WIDTH / 2);
    const uint64_t pos = 1000;

    check("rope", 5, [&](floats &x) {
        x = numbers(WIDTH * HEADS);
        return launch(rope_f32_f32_kernel, rope_args{x.data(), freqs.data(), &pos, 0, HEADS, WIDTH, WIDTH, 0, 1}, ROPE_THREADS,
                      sizeof(rope_shared));
    });
}

void test_mix(void **)
{
    const floats h = numbers(4 * 600), proj = numbers(24), base = numbers(24);

    check("mix", 1, [&](floats &out) {
        out.assign(24, 7.0f);
        return launch(mix_f32_f32_kernel<4>,
                      mix_args{h.data(), proj.data(), base.data(), out.data(), out.data() + 4, out.data() + 8, 4, 2400, 20, 1,
                               1, 1, 1e-6f, 1e-6f},
                      MIX_THREADS, sizeof(mix_shared));
    });
}

void test_expand(void **)
{
    const floats y = numbers(512), post = numbers(4), comb = numbers(16);

    check("expand", 1, [&](floats &h) {
        h = numbers(4 * 512);
        return launch(expand_f32_f32_kernel<4>, expand_args{h.data(), y.data(), post.data(), comb.data(), 4, 512, 1}, STREAM_THREADS,
                      sizeof(expand_shared));
    });
}

void test_engram(void **)
{
    const floats kv = numbers(2 * 1500), qk = numbers(1500);

    check("engram_gate", 1, [&](floats &h) {
        h = numbers(1500);
        return launch(engram_gate_f32_f32_kernel, engram_args{h.data(), kv.data(), qk.data(), 1, 1500, 1e-6f}, ENGRAM_THREADS,
                      sizeof(engram_shared));
    });
}

/* Most experts are taken, so that the last slot has some: only there the warp's barrier matters. */
void test_route(void **)
{
    enum : unsigned { N = 512, K = 480 };
    const floats z = numbers(N), bias = numbers(N);

    check("route", 2, [&](floats &weights) {
        std::vector<uint32_t> experts(K);

        weights.assign(K, 7.0f);
        return launch(route_f32_f32_kernel<16>, route_args{z.data(), bias.data(), experts.data(), weights.data(), N, K, 1, 1.0f},
                      ROUTE_THREADS, sizeof(route_shared));
    });
}

} // namespace

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),   cmocka_unit_test(test_rope),   cmocka_unit_test(test_mix),
        cmocka_unit_test(test_expand), cmocka_unit_test(test_engram), cmocka_unit_test(test_route),
    };

    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
