/* Kernels of every instruction set against a wanted result, for operators whose rows do not depend on each other. */
#ifndef MASK_ROWS_H
#define MASK_ROWS_H

#include "support/fenced.h"
#include "support/mask_devices.h"

/* Equal bits, or both NaN. */
static void assert_same(const float *is, const float *wanted, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (kvi_f32_bits(is[i]) != kvi_f32_bits(wanted[i]) && !(is[i] != is[i] && wanted[i] != wanted[i]))
            fail_msg("element %zu is %.9g, must be %.9g", i, (double)is[i], (double)wanted[i]);
}

/* With every number of threads, in parts, row by row. */
static void check_device(rows_fn run, const void *job, kvi_device *dev, const float *wanted, size_t n_rows, size_t width)
{
    const size_t mark = fence_mark();
    const size_t part = n_rows / 3;
    float       *out = NULL;

    for (size_t t = 0; t < MAX_THREADS; t++) {
        out = fenced(n_rows * width);
        run(job, &dev[t], 0, n_rows, out);
        assert_same(out, wanted, n_rows * width);
        free_fenced(mark);
    }
    out = fenced(n_rows * width);
    if (part)
        run(job, dev, 0, part, out);
    run(job, dev, part, n_rows - part, out);
    assert_same(out, wanted, n_rows * width);
    for (size_t i = 0; i < n_rows; i++)
        run(job, dev, i, 1, out);
    assert_same(out, wanted, n_rows * width);
    free_fenced(mark);
}

static void check_variants(rows_fn run, const void *job, const float *wanted, size_t n_rows, size_t width)
{
    for (size_t v = 0; v < n_masks; v++)
        check_device(run, job, fused[v], wanted, n_rows, width);
}

/* The same bits as the portable kernels. */
static void check_as_portable(rows_fn run, const void *job, size_t n_rows, size_t width)
{
    const size_t mark = fence_mark();
    float *wanted = fenced(n_rows * width);

    run(job, devices[0], 0, n_rows, wanted);
    check_variants(run, job, wanted, n_rows, width);
    free_fenced(mark);
}

#endif
