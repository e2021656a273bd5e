/* What tests of kernels with planted faults share: data, launches, and how far results are apart. Names of a kernel's steps are
 * redefined by the test before it includes the kernel. */
#ifndef PLANTED_H
#define PLANTED_H

#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstring>
#include <functional>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "device.cuh"

typedef std::vector<float> floats;

static uint32_t random_state;

static inline uint32_t random_bits()
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

/* n numbers from `low` on, `size` wide */
static inline void random_floats(floats &x, float low, float size)
{
    for (float &v : x)
        v = static_cast<float>(random_bits()) * 0x1p-24f * size + low;
}

/* False = a fault was reported, whose text nobody needs. */
static inline bool planted_launch(int order, unsigned blocks, unsigned threads, size_t shared,
                                  const std::function<void()> &kernel)
{
    kvi_emu_order(order, 9);
    const bool ran = kvi_emu::launch("planted", dim3(blocks), dim3(threads), shared, kernel);
    kvi_emu_order(kvi_emu::ASCENDING, 1);
    if (!ran)
        (void)kvi_emu_fault();
    return ran;
}

static inline bool same(const floats &a, const floats &b)
{
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/* The largest difference beside the largest value of a; a NaN in b is infinitely far away. */
static inline double distance(const floats &a, const floats &b)
{
    double most = 0, size = 0;

    for (size_t i = 0; i < a.size(); i++) {
        if (std::isnan(b[i]))
            return HUGE_VAL;
        most = std::fmax(most, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
        size = std::fmax(size, std::fabs(static_cast<double>(a[i])));
    }
    return most / size;
}

#endif
