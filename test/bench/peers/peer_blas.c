/* OpenBLAS. Its kernels are those that it finds itself; the benchmark clears the variables that would choose others. */
#include "peer_api.h"

#define BLAS_SYMBOL_PREFIX scipy_
#include <cblas.h>
#include <stdio.h>

static char version[160];

static void gemm(const float *x, const float *w, float *y, size_t n_x, size_t rows, size_t cols)
{
    scipy_cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)n_x, (int)rows, (int)cols, 1.0f, x, (int)cols, w, (int)cols,
                      0.0f, y, (int)rows);
}

static const peer_table table = {.abi = PEER_ABI, .version = version, .gemm = gemm};

PEER_EXPORT const peer_table *peer_open(void)
{
    const char *config = scipy_openblas_get_config();
    int         n = 0;

    while (config[n] && !(config[n] == ' ' && n > 10)) /* "OpenBLAS 0.3.x" */
        n++;
    scipy_openblas_set_num_threads(1);
    snprintf(version, sizeof version, "%.*s, kernels %s", n, config, scipy_openblas_get_corename());
    return &table;
}
