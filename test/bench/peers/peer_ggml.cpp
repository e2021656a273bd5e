// ggml on the CPU: flash attention and matrix products, plain and repacked weights.
//
// Graphs are planned once; a run sets the addresses of its inputs and computes. One graph a set, with tensors of its own: repacked
// weights must lie in buffers of ggml.
#include "peer_api.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <sys/mman.h>

#ifndef PEER_FROM
#define PEER_FROM "source"
#endif

namespace {

struct type_name {
    const char *name;
    ggml_type   type;
};
const type_name types[] = {{"f32", GGML_TYPE_F32},   {"f16", GGML_TYPE_F16},   {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0},
                           {"q4_0", GGML_TYPE_Q4_0}, {"q4_K", GGML_TYPE_Q4_K}, {"mxfp4", GGML_TYPE_MXFP4}};

bool find_type(const std::string &name, ggml_type *type)
{
    for (const type_name &t : types)
        if (name == t.name) {
            *type = t.type;
            return true;
        }
    return false;
}

// Huge pages, as our side has them; before anything is written.
void advise(ggml_backend_buffer_t buffer)
{
    const uintptr_t base = (uintptr_t)ggml_backend_buffer_get_base(buffer);
    const uintptr_t page = 4096;
    const uintptr_t first = (base + page - 1) / page * page;

    madvise((void *)first, (ggml_backend_buffer_get_size(buffer) - (first - base)) / page * page, MADV_HUGEPAGE);
}

ggml_backend_buffer_type_t repack_type()
{
    ggml_backend_dev_t dev = ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
    auto               extra = (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(ggml_backend_cpu_reg(),
                                                                                       "ggml_backend_dev_get_extra_bufts");

    for (ggml_backend_buffer_type_t *b = extra ? extra(dev) : nullptr; b && *b; b++)
        if (strstr(ggml_backend_buft_name(*b), "REPACK"))
            return *b;
    return nullptr;
}

std::vector<uint8_t> convert(ggml_type type, const float *x, size_t rows, size_t width)
{
    std::vector<uint8_t> out(ggml_row_size(type, (int64_t)width) * rows);

    if (type == GGML_TYPE_F32)
        memcpy(out.data(), x, out.size());
    else
        ggml_quantize_chunk(type, x, out.data(), 0, (int64_t)rows, (int64_t)width, nullptr);
    return out;
}

struct graph {
    ggml_cgraph         *g = nullptr;
    ggml_tensor         *in = nullptr;
    ggml_tensor         *out = nullptr;
    ggml_cplan           plan = {};
    std::vector<uint8_t> work;

    void make(ggml_context *ctx, ggml_tensor *node, int n_threads)
    {
        out = node;
        g = ggml_new_graph_custom(ctx, 8, false);
        ggml_build_forward_expand(g, out);
        plan = ggml_graph_plan(g, n_threads, nullptr);
        work.resize(plan.work_size + 64);
        plan.work_data = (uint8_t *)(((uintptr_t)work.data() + 63) & ~(uintptr_t)63);
    }
    void run(const float *x, float *y)
    {
        in->data = const_cast<float *>(x);
        out->data = y;
        ggml_graph_compute(g, &plan);
    }
};

struct job {
    ggml_context         *weights = nullptr;
    ggml_context         *nodes = nullptr;
    ggml_backend_buffer_t buffer = nullptr;
    std::vector<graph>    graphs;
    size_t                n_bytes = 0;

    bool start(size_t n_sets)
    {
        const ggml_init_params p = {n_sets * 4 * ggml_tensor_overhead() + 4096, nullptr, true};
        const ggml_init_params q = {n_sets * (8 * ggml_tensor_overhead() + ggml_graph_overhead_custom(8, false)) + 4096, nullptr,
                                    true};

        weights = ggml_init(p);
        nodes = ggml_init(q);
        graphs.resize(n_sets);
        return weights && nodes;
    }
    bool place(ggml_backend_buffer_type_t type)
    {
        buffer = ggml_backend_alloc_ctx_tensors_from_buft(weights, type);
        if (buffer)
            advise(buffer);
        return buffer != nullptr;
    }
    ~job()
    {
        if (buffer)
            ggml_backend_buffer_free(buffer);
        if (nodes)
            ggml_free(nodes);
        if (weights)
            ggml_free(weights);
    }
};

struct attend_job : job {
    size_t n_heads = 0, width = 0;
};

void *attend_new(const char *name, size_t width, size_t n_heads, size_t n_kv_heads, size_t n_rows, const float *k, const float *v,
                 size_t n_sets, int n_threads)
{
    attend_job *j = new attend_job;
    ggml_type   type;

    j->n_heads = n_heads;
    j->width = width;
    if (!find_type(name, &type) || width % (size_t)ggml_blck_size(type) || !j->start(n_sets)) {
        delete j;
        return nullptr;
    }
    const std::vector<uint8_t> kb = convert(type, k, n_kv_heads * n_rows, width);
    const std::vector<uint8_t> vb = convert(type, v, n_kv_heads * n_rows, width);
    std::vector<ggml_tensor *> kv(2 * n_sets);

    for (ggml_tensor *&t : kv)
        t = ggml_new_tensor_3d(j->weights, type, (int64_t)width, (int64_t)n_rows, (int64_t)n_kv_heads);
    if (!j->place(ggml_backend_cpu_buffer_type())) {
        delete j;
        return nullptr;
    }
    for (size_t i = 0; i < n_sets; i++) {
        graph &g = j->graphs[i];

        ggml_backend_tensor_set(kv[2 * i], kb.data(), 0, kb.size());
        ggml_backend_tensor_set(kv[2 * i + 1], vb.data(), 0, vb.size());
        g.in = ggml_new_tensor_3d(j->nodes, GGML_TYPE_F32, (int64_t)width, 1, (int64_t)n_heads);
        g.make(j->nodes, ggml_flash_attn_ext(j->nodes, g.in, kv[2 * i], kv[2 * i + 1], nullptr, 1.0f, 0, 0), n_threads);
    }
    j->n_bytes = kb.size() + vb.size();
    return j;
}

void attend_run(void *arg, const float *q, float *out, float scale, size_t set)
{
    graph &g = static_cast<attend_job *>(arg)->graphs[set];

    memcpy(g.out->op_params, &scale, sizeof scale); // the first parameter
    g.run(q, out);
}

void attend_free(void *arg)
{
    delete static_cast<attend_job *>(arg);
}

void *matrix_new(const char *name, size_t rows, size_t cols, const float *w, size_t n_x, size_t n_sets, int n_threads)
{
    std::string                base = name;
    const bool                 repack = !base.empty() && base.back() == '+';
    ggml_backend_buffer_type_t place = repack ? repack_type() : ggml_backend_cpu_buffer_type();
    job                       *j = new job;
    ggml_type                  type;

    if (repack)
        base.pop_back();
    if (!place || !find_type(base, &type) || cols % (size_t)ggml_blck_size(type) || !j->start(n_sets)) {
        delete j;
        return nullptr;
    }
    const std::vector<uint8_t> bytes = convert(type, w, rows, cols);
    std::vector<ggml_tensor *> ws(n_sets);

    for (ggml_tensor *&t : ws)
        t = ggml_new_tensor_2d(j->weights, type, (int64_t)cols, (int64_t)rows);
    if (!j->place(place) || (repack && !ws[0]->extra)) { // no layout of its own for this type
        delete j;
        return nullptr;
    }
    for (size_t i = 0; i < n_sets; i++) {
        graph &g = j->graphs[i];

        ggml_backend_tensor_set(ws[i], bytes.data(), 0, bytes.size());
        g.in = ggml_new_tensor_2d(j->nodes, GGML_TYPE_F32, (int64_t)cols, (int64_t)n_x);
        g.make(j->nodes, ggml_mul_mat(j->nodes, ws[i], g.in), n_threads);
    }
    j->n_bytes = bytes.size();
    return j;
}

size_t matrix_bytes(void *arg)
{
    return static_cast<job *>(arg)->n_bytes;
}

void matrix_run(void *arg, const float *x, float *y, size_t set)
{
    static_cast<job *>(arg)->graphs[set].run(x, y);
}

void matrix_free(void *arg)
{
    delete static_cast<job *>(arg);
}

void be_silent(ggml_log_level, const char *, void *)
{
}

char       version[160];
peer_table table;

} // namespace

PEER_EXPORT const peer_table *peer_open(void)
{
    ggml_log_set(be_silent, nullptr);
    ggml_cpu_init();
    snprintf(version, sizeof version, "ggml %s (" PEER_FROM ")%s%s%s%s", ggml_version(), ggml_cpu_has_avx2() ? " avx2" : "",
             ggml_cpu_has_avx512() ? " avx512" : "", ggml_cpu_has_avx512_vnni() ? " vnni" : "",
             ggml_cpu_has_avx512_bf16() ? " bf16" : "");
    table.abi = PEER_ABI;
    table.version = version;
    table.attend_new = attend_new;
    table.attend_run = attend_run;
    table.attend_free = attend_free;
    table.matrix_new = matrix_new;
    table.matrix_bytes = matrix_bytes;
    table.matrix_run = matrix_run;
    table.matrix_free = matrix_free;
    return &table;
}
