/* cuBLASLt, opened at run time by its soname. cuda_blas.h says what it is used for. */
#include "cuda_blas.h"

#include <new>

#include "cuda_libs.h"

#if !defined(KVI_CUDA_EMULATED) && defined(__has_include)
#if __has_include(<cublasLt.h>)
#define HAVE_HEADER 1
#endif
#endif

#ifdef HAVE_HEADER
#include <cublasLt.h>
#include <dlfcn.h>

namespace {

enum { CREATE, DESTROY, DESC_CREATE, DESC_DESTROY, DESC_SET, LAYOUT_CREATE, LAYOUT_DESTROY, PREF_CREATE, PREF_DESTROY, PREF_SET, HEURISTIC,
       MATMUL, VERSION, N_CALLS };
/* in that order */
const char *const NAMES[N_CALLS] = {"cublasLtCreate", "cublasLtDestroy", "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy",
                                    "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy",
                                    "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy",
                                    "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul",
                                    "cublasLtGetVersion"};
static_assert(static_cast<int>(N_CALLS) <= static_cast<int>(CUDA_BLAS_CALLS), "a place for each");

/* The major version of this header first. Of what is used here both have the same types: descriptors are made by the library. */
const char *const SONAMES[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr size_t  WORKSPACE = 32u << 20;

#define BLAS(which, function) (reinterpret_cast<decltype(&function)>(b->calls[which]))

kvcsa_status blas_check(cublasStatus_t st, const char *what, kvcsa_error *err)
{
    if (st == CUBLAS_STATUS_SUCCESS)
        return KVCSA_OK;
    return kvi_cuda_fail(err, KVCSA_ERR_BACKEND, static_cast<int32_t>(st), "cuBLASLt: %s: status %d", what, static_cast<int>(st));
}

/* Of an address, as far as cuBLASLt asks. */
uint32_t alignment(const void *p)
{
    uint32_t bytes = 256;

    while (reinterpret_cast<uintptr_t>(p) % bytes)
        bytes /= 2;
    return bytes;
}

/* What one product is described by; all NULL at first. */
struct description {
    cublasLtMatmulDesc_t       product;
    cublasLtMatrixLayout_t     w, x, y;
    cublasLtMatmulPreference_t wish;
};

/* Row-major y = x W^T is column-major y' = W x', W being the transposed of what lies there. */
kvcsa_status describe(const kvi_cuda_blas *b, const kvi_cuda_blas_product *p, description *d, kvcsa_error *err)
{
    const cublasOperation_t turned = CUBLAS_OP_T;
    const cudaDataType_t    type = p->bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const size_t            room = WORKSPACE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void                          *at;
    } aligned[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p->w},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p->x},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p->y},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p->y}};

    KVI_TRY(blas_check(BLAS(DESC_CREATE, cublasLtMatmulDescCreate)(&d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description", err));
    KVI_TRY(blas_check(BLAS(DESC_SET, cublasLtMatmulDescSetAttribute)(d->product, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned),
                       "description", err));
    KVI_TRY(blas_check(BLAS(LAYOUT_CREATE, cublasLtMatrixLayoutCreate)(&d->w, type, p->cols, p->n_out, static_cast<int64_t>(p->cols)),
                       "layout", err));
    KVI_TRY(blas_check(BLAS(LAYOUT_CREATE, cublasLtMatrixLayoutCreate)(&d->x, type, p->cols, p->n_rows, static_cast<int64_t>(p->x_stride)),
                       "layout", err));
    KVI_TRY(blas_check(BLAS(LAYOUT_CREATE, cublasLtMatrixLayoutCreate)(&d->y, CUDA_R_32F, p->n_out, p->n_rows,
                                                                       static_cast<int64_t>(p->y_stride)),
                       "layout", err));
    KVI_TRY(blas_check(BLAS(PREF_CREATE, cublasLtMatmulPreferenceCreate)(&d->wish), "preference", err));
    KVI_TRY(blas_check(BLAS(PREF_SET, cublasLtMatmulPreferenceSetAttribute)(d->wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                                                                            sizeof room),
                       "preference", err));
    for (const auto &a : aligned) { /* it takes for granted what cudaMalloc gives; rows of a matrix and of x begin anywhere */
        const uint32_t bytes = alignment(a.at);
        KVI_TRY(blas_check(BLAS(PREF_SET, cublasLtMatmulPreferenceSetAttribute)(d->wish, a.what, &bytes, sizeof bytes), "preference", err));
    }
    return KVCSA_OK;
}

kvcsa_status multiply(kvi_device *dev, const kvi_cuda_blas_product *p, const description *d, bool *made, kvcsa_error *err)
{
    const kvi_cuda_blas            *b = dev->blas;
    const cublasLtHandle_t          handle = static_cast<cublasLtHandle_t>(b->handle);
    cublasLtMatmulHeuristicResult_t best;
    const float                     alpha = 1.0f, beta = p->add ? 1.0f : 0.0f;
    int                             n = 0;
    const cublasStatus_t            found = BLAS(HEURISTIC, cublasLtMatmulAlgoGetHeuristic)(handle, d->product, d->w, d->x, d->y, d->y,
                                                                                 d->wish, 1, &best, &n);

    *made = found == CUBLAS_STATUS_SUCCESS && n > 0;
    if (found == CUBLAS_STATUS_NOT_SUPPORTED || (found == CUBLAS_STATUS_SUCCESS && n < 1))
        return KVCSA_OK;
    KVI_TRY(blas_check(found, "choice", err));
    return blas_check(BLAS(MATMUL, cublasLtMatmul)(handle, d->product, &alpha, p->w, d->w, p->x, d->x, &beta, p->y, d->y, p->y, d->y,
                                                   &best.algo, b->workspace, WORKSPACE, dev->stream),
                      "product", err);
}

void drop(const kvi_cuda_blas *b, const description *d)
{
    if (d->product)
        (void)BLAS(DESC_DESTROY, cublasLtMatmulDescDestroy)(d->product);
    for (cublasLtMatrixLayout_t l : {d->w, d->x, d->y})
        if (l)
            (void)BLAS(LAYOUT_DESTROY, cublasLtMatrixLayoutDestroy)(l);
    if (d->wish)
        (void)BLAS(PREF_DESTROY, cublasLtMatmulPreferenceDestroy)(d->wish);
}

/* Opened once in a process and never closed: cuBLAS leaves exit handlers. */
void *open_library(const char **name)
{
    for (const char *soname : SONAMES) {
        *name = soname;
        if (void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL))
            return library;
    }
    return nullptr;
}

bool find_calls(kvi_cuda_blas *b)
{
    for (int i = 0; i < N_CALLS; i++)
        if (!(b->calls[i] = dlsym(b->library, NAMES[i])))
            return false;
    return true;
}

} // namespace

kvcsa_status kvi_cuda_blas_run(kvi_device *dev, const kvi_cuda_blas_product *p, bool *made, kvcsa_error *err)
{
    description  d = description();
    kvcsa_status st = describe(dev->blas, p, &d, err);

    *made = false;
    if (st == KVCSA_OK)
        st = multiply(dev, p, &d, made, err);
    drop(dev->blas, &d);
    return st;
}

void kvi_cuda_blas_open(kvi_device *dev, uint32_t flags)
{
    kvi_cuda_blas *b = flags & KVI_DEVICE_FAST_DENSE ? new (std::nothrow) kvi_cuda_blas() : nullptr;
    const char    *name = "";

    dev->blas = b;
    if (!b) {
        kvi_cuda_log(dev, KVCSA_LOG_INFO, "cuda: cuBLASLt is not used: %s",
                     flags & KVI_DEVICE_FAST_DENSE ? "no memory" : "nobody asked for fast dense products");
        return;
    }
    b->fast_dense = true;
    b->library = open_library(&name);
    if (!b->library || !find_calls(b)) {
        kvi_cuda_log(dev, KVCSA_LOG_WARN, "cuda: cuBLASLt: %s", b->library ? "a function is missing" : dlerror());
    } else if (BLAS(CREATE, cublasLtCreate)(reinterpret_cast<cublasLtHandle_t *>(&b->handle)) != CUBLAS_STATUS_SUCCESS) {
        b->handle = nullptr;
        kvi_cuda_log(dev, KVCSA_LOG_WARN, "cuda: %s: no handle", name);
    } else if (cudaMalloc(&b->workspace, WORKSPACE) != cudaSuccess) {
        b->workspace = nullptr;
        kvi_cuda_log(dev, KVCSA_LOG_WARN, "cuda: %s: no memory for its workspace", name);
    } else {
        kvi_cuda_log(dev, KVCSA_LOG_INFO, "cuda: %s, version %zu, makes dense products of many rows: results depend on the batch", name,
                     BLAS(VERSION, cublasLtGetVersion)());
        return;
    }
    kvi_cuda_blas_close(dev);
}

void kvi_cuda_blas_close(kvi_device *dev)
{
    kvi_cuda_blas *b = dev->blas;

    if (!b)
        return;
    (void)cudaFree(b->workspace);
    if (b->handle)
        (void)BLAS(DESTROY, cublasLtDestroy)(static_cast<cublasLtHandle_t>(b->handle));
    delete b;
    dev->blas = nullptr;
}

#else /* built without its header, or for the emulated device */

kvcsa_status kvi_cuda_blas_run(kvi_device *, const kvi_cuda_blas_product *, bool *made, kvcsa_error *)
{
    *made = false;
    return KVCSA_OK;
}

void kvi_cuda_blas_open(kvi_device *dev, uint32_t flags)
{
    kvi_cuda_log(dev, flags & KVI_DEVICE_FAST_DENSE ? KVCSA_LOG_WARN : KVCSA_LOG_INFO,
                 "cuda: this build has no cuBLASLt; its own kernels make all products");
}

void kvi_cuda_blas_close(kvi_device *) {}

#endif
