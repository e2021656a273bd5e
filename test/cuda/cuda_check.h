/* What the tests of the CUDA plug-in share. They are written for any device: by default the emulated one, with the path of a plug-in
 * as argument a real one (make check-cuda).
 *
 * Data goes to the device and back through the plug-in's own copies; arrays on it have guard bytes on both sides, which are looked at
 * when they are read back and when they go. On the emulated device every case runs with threads in ascending, descending and random
 * order, and must give the same bits. */
#ifndef CUDA_CHECK_H
#define CUDA_CHECK_H

#include "support/op_check.h"

/* The plug-in, its device, and the portable CPU as the oracle. */
extern const kvi_backend_ops *gpu_ops;
extern kvi_device            *gpu;
extern kvi_backend_query_fn   gpu_query;
extern const kvi_backend_ops *cpu_ops;
extern kvi_device            *cpu;
extern bool                   emulated;

/* main of a test program: opens, runs the group, closes. */
#define CUDA_MAIN(tests)                                                                                                       \
    int main(int argc, char **argv)                                                                                            \
    {                                                                                                                          \
        cuda_arguments(argc, argv);                                                                                            \
        return cmocka_run_group_tests(tests, cuda_open, cuda_close);                                                           \
    }
void cuda_arguments(int argc, char **argv);
void cuda_folder(char *out, size_t size); /* where the plug-in stands, an absolute path */
int  cuda_open(void **state);
int  cuda_close(void **state); /* fails if device memory is outstanding */

/* `size` bytes on the device, guarded, with what stands at `from` (NULL = 0x5a); aligned to 256 plus `off`. */
void *to_device(const void *from, size_t size);
void *to_device_at(const void *from, size_t size, size_t off);
/* Wait, check the guards, copy back. */
void from_device(void *to, const void *device, size_t size);
/* Frees everything that to_device gave since the beginning of the test. */
void device_free_all(void);

/* An array on the device of pointers to device memory. */
uint8_t *const *table_to_device(uint8_t *const *pointers, size_t n);

/* Run fn(job, out) once, on the emulated device three times in other orders of threads: the bytes at out[size] must be the same. */
typedef void (*gpu_case_fn)(const void *job, void *out);
void gpu_run(gpu_case_fn fn, const void *job, void *out, size_t size);

/* The status must be OK; prints the text of err. */
void must(kvcsa_status status, const kvcsa_error *err);
#define GPU(op, params)                                                                                                        \
    do {                                                                                                                       \
        kvcsa_error gpu_err = {0};                                                                                             \
        must(gpu_ops->op(gpu, params, &gpu_err), &gpu_err);                                                                    \
    } while (0)
#define CPU(op, params)                                                                                                        \
    do {                                                                                                                       \
        kvcsa_error cpu_err = {0};                                                                                             \
        must(cpu_ops->op(cpu, params, &cpu_err), &cpu_err);                                                                    \
    } while (0)

/* Controls of the emulation; NULL on a real device. */
typedef struct emulation {
    void (*order)(int order, uint64_t seed);
    const char *(*fault)(void);
    void (*fail_alloc)(long nth);
    void (*device_memory)(size_t n);
    size_t (*outstanding)(void);
    void (*arch)(int arch);
    uint64_t (*launches)(void);
} emulation;
extern emulation emu;

#endif
