/* cuRAND, opened at run time by its soname, and what stands in for it. */
#include "cuda_rand.h"

#include <mutex>

#include "dense_check.h"
#include "philox.cuh"

#if !defined(KVI_CUDA_EMULATED) && defined(__has_include)
#if __has_include(<curand.h>)
#define HAVE_HEADER 1
#endif
#endif

namespace {

bool aligned(const void *p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

kvcsa_status own_words(kvi_device *dev, void *to, size_t n_words, uint64_t seed, uint64_t offset, kvcsa_error *err)
{
    philox_args a = philox_args();
    dim3        grid;

    a.to = static_cast<uint32_t *>(to);
    a.first = offset / 4;
    a.skip = static_cast<unsigned>(offset % 4);
    a.n_words = n_words;
    a.key[0] = static_cast<uint32_t>(seed);
    a.key[1] = static_cast<uint32_t>(seed >> 32);
    a.whole = a.skip == 0 && aligned(to, 16);
    KVI_TRY(kvi_dense_grid("random words", (n_words + a.skip) / PHILOX_BLOCK_WORDS + ((n_words + a.skip) % PHILOX_BLOCK_WORDS != 0), 1,
                           &grid, err));
    return kvi_launch(dev, "random words", philox_kernel, grid, PHILOX_THREADS, 0, err, a);
}

} // namespace

#ifdef HAVE_HEADER
#include <curand.h>
#include <dlfcn.h>

namespace {

enum { CREATE, DESTROY, STREAM, ORDERING, SEED, OFFSET, GENERATE, VERSION, N_CALLS };
/* in that order */
const char *const NAMES[N_CALLS] = {"curandCreateGenerator",
                                    "curandDestroyGenerator",
                                    "curandSetStream",
                                    "curandSetGeneratorOrdering",
                                    "curandSetPseudoRandomGeneratorSeed",
                                    "curandSetGeneratorOffset",
                                    "curandGenerate",
                                    "curandGetVersion"};

/* Of CUDA 11 to 13; before there was no legacy order to ask for. */
const char *const SONAME = "libcurand.so.10";
/* A generator has states of its own in device memory, so it is not made for less. */
constexpr size_t MANY_WORDS = 1u << 20;

struct curand_library {
    bool  usable;
    void *calls[N_CALLS];
};

#define RAND(which, function) (reinterpret_cast<decltype(&function)>(library->calls[which]))

/* Opened once in a process and never closed; the log of the device that wants it first says what came of it. */
const curand_library *open_library(const kvi_device *dev)
{
    static curand_library found;
    static std::once_flag once;

    std::call_once(once, [dev] {
        const curand_library *library = &found;
        void                 *so = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);
        int                   version = 0, n = 0;

        while (so && n < N_CALLS && (found.calls[n] = dlsym(so, NAMES[n])))
            n++;
        found.usable = n == N_CALLS && RAND(VERSION, curandGetVersion)(&version) == CURAND_STATUS_SUCCESS;
        if (found.usable)
            kvi_cuda_log(dev, KVCSA_LOG_INFO, "cuda: %s, version %d, makes random words", SONAME, version);
        else
            kvi_cuda_log(dev, KVCSA_LOG_INFO, "cuda: cuRAND: %s; a kernel of the plug-in makes the same random words",
                         !so ? dlerror() : n < N_CALLS ? "a function is missing" : "it does not answer");
    });
    return &found;
}

curandStatus_t generate(const curand_library *library, const kvi_device *dev, void *to, size_t n_words, uint64_t seed, uint64_t offset)
{
    curandGenerator_t generator = nullptr;
    curandStatus_t    st = RAND(CREATE, curandCreateGenerator)(&generator, CURAND_RNG_PSEUDO_PHILOX4_32_10);

    if (st != CURAND_STATUS_SUCCESS)
        return st;
    st = RAND(STREAM, curandSetStream)(generator, dev->stream);
    if (st == CURAND_STATUS_SUCCESS) /* the one order that is the same in all releases and on all devices */
        st = RAND(ORDERING, curandSetGeneratorOrdering)(generator, CURAND_ORDERING_PSEUDO_LEGACY);
    if (st == CURAND_STATUS_SUCCESS)
        st = RAND(SEED, curandSetPseudoRandomGeneratorSeed)(generator, seed);
    if (st == CURAND_STATUS_SUCCESS)
        st = RAND(OFFSET, curandSetGeneratorOffset)(generator, offset);
    if (st == CURAND_STATUS_SUCCESS)
        st = RAND(GENERATE, curandGenerate)(generator, static_cast<unsigned *>(to), n_words);
    (void)cudaStreamSynchronize(dev->stream); /* it uses the generator's states */
    (void)RAND(DESTROY, curandDestroyGenerator)(generator);
    return st;
}

/* False = nothing was made. */
bool library_words(kvi_device *dev, void *to, size_t n_words, uint64_t seed, uint64_t offset)
{
    const curand_library *library;
    curandStatus_t        st;

    if (dev->recording || n_words < MANY_WORDS || !aligned(to, 16))
        return false;
    library = open_library(dev);
    if (!library->usable)
        return false;
    st = generate(library, dev, to, n_words, seed, offset);
    if (st != CURAND_STATUS_SUCCESS)
        kvi_cuda_log(dev, KVCSA_LOG_WARN, "cuda: cuRAND: status %d; a kernel of the plug-in makes the random words",
                     static_cast<int>(st));
    return st == CURAND_STATUS_SUCCESS;
}

} // namespace

#else /* built without its header, or for the emulated device */

namespace {

bool library_words(kvi_device *dev, void *, size_t, uint64_t, uint64_t)
{
    static std::once_flag once;

    std::call_once(once, [dev] {
        kvi_cuda_log(dev, KVCSA_LOG_INFO, "cuda: this build has no cuRAND; a kernel of the plug-in makes the same random words");
    });
    return false;
}

} // namespace

#endif

kvcsa_status kvi_cuda_mem_random(kvi_device *dev, void *to, size_t n_words, uint64_t seed, uint64_t offset, kvcsa_error *err)
{
    kvi_cuda_use use(dev);

    if (!aligned(to, 4))
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "random words: memory is not at a multiple of 4 bytes");
    if (n_words > 0 && offset > UINT64_MAX - (n_words - 1))
        return kvi_cuda_fail(err, KVCSA_ERR_ARG, 0, "random words: %llu + %zu are more than 2^64",
                             static_cast<unsigned long long>(offset), n_words);
    if (n_words == 0 || library_words(dev, to, n_words, seed, offset))
        return KVCSA_OK;
    return own_words(dev, to, n_words, seed, offset, err);
}
