// PyTorch's matmul on the CPU, as x @ w.t().
#include "peer_api.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <cstdio>
#include <cstring>

static char version[256];

static void gemm(const float *x, const float *w, float *y, size_t n_x, size_t rows, size_t cols)
{
    const at::InferenceMode guard;
    const auto              f32 = at::TensorOptions().dtype(at::kFloat);
    const int64_t           n = (int64_t)n_x, r = (int64_t)rows, c = (int64_t)cols;
    at::Tensor              out = at::from_blob(y, {n, r}, f32);

    at::matmul_out(out, at::from_blob(const_cast<float *>(x), {n, c}, f32), at::from_blob(const_cast<float *>(w), {r, c}, f32).t());
}

static peer_table table;

PEER_EXPORT const peer_table *peer_open(void)
{
    const std::string mkl = at::get_mkl_version();

    at::set_num_threads(1);
    snprintf(version, sizeof version, "PyTorch %s (%s)", TORCH_VERSION, mkl.substr(0, 60).c_str());
    table.abi = PEER_ABI;
    table.version = version;
    table.gemm = gemm;
    return &table;
}
