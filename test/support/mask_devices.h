/* Devices of every instruction set that this machine has, for the tests of kernels: one for each number of threads, on the metered
 * allocator of op_check.h, whose portable devices are opened beside them. */
#ifndef MASK_DEVICES_H
#define MASK_DEVICES_H

#include <stdio.h>

#include "base/threads.h"
#include "support/op_check.h"

enum { MAX_MASKS = 3, MAX_THREADS = 3 };

static uint32_t     masks[MAX_MASKS]; /* without 0 */
static size_t       n_masks;
static kvi_threads *pools[MAX_THREADS];
static kvi_device   fused[MAX_MASKS][MAX_THREADS];

static int open_masks(void **state)
{
    static const uint32_t wanted[] = {KVCSA_CPU_AVX2, KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512, KVCSA_CPU_NEON};
    const uint32_t        found = kvi_cpu_flags(0);
    const kvcsa_allocator a = metered();

    (void)state;
    for (uint32_t t = 0; t < MAX_THREADS; t++)
        assert_int_equal(kvi_threads_create(&a, t + 1, NULL, &pools[t], NULL), KVCSA_OK);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if ((found & wanted[i]) != wanted[i]) {
            printf("mask %u: not on this machine\n", wanted[i]);
            continue;
        }
        for (size_t t = 0; t < MAX_THREADS; t++)
            kvi_cpu_device_init(&fused[n_masks][t], &a, pools[t], wanted[i]);
        masks[n_masks++] = wanted[i];
    }
    return open_devices(state);
}

static int close_masks(void **state)
{
    for (size_t t = 0; t < MAX_THREADS; t++)
        kvi_threads_destroy(pools[t]);
    return close_devices(state);
}

#endif
