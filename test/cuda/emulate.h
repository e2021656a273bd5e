/* A CUDA device in C++, for tests on machines without one: kernel bodies of cuda/ compile a second time with this header in front
 * of them (cuda/device.cuh includes it where KVI_CUDA_EMULATED is set) and run on the host.
 *
 * - Blocks of a grid run one after the other. Threads of a block are fibers: each runs until it must wait for others.
 * - A barrier, a vote, a shuffle, a matrix instruction waits for all its threads. Threads that arrive at different places, or never,
 *   are a fault with both places in its text, as is a block in which nobody can go on.
 * - The order in which threads run is a choice (kvi_emu_order): a missing barrier gives wrong results in at least one of ascending and
 *   descending order, since whoever reads early sees what stood there before.
 * - Shared memory is filled with 0xff, which is NaN, when a block begins. Asynchronous copies are made as late as they may be: when
 *   somebody waits for them; what is read without a wait is old.
 * - Device memory is malloc's, so that AddressSanitizer sees every access behind an array.
 * It proves the logic of a kernel, not its speed, and not the memory model between blocks. */
#ifndef KVI_EMULATE_H
#define KVI_EMULATE_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz) {}
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2  make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4  make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace kvi_emu {

enum order { ASCENDING = 0, DESCENDING = 1, SHUFFLED = 2 };

/* What the running thread is. */
struct place {
    dim3     thread, block, block_dim, grid_dim;
    unsigned linear, warp, lane;
    void    *shared;
};
const place &self();

/* Where a thread waits or fails: by default the line of its caller. */
struct site {
    const char *file;
    int         line;
};

/* Run a kernel on every thread of every block. False = a fault; the text is kvi_emu_fault(). */
bool launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body);
[[noreturn]] void fault(site at, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Wait until `count` threads of the block have arrived at barrier `id`; all must come from the same place. */
void barrier(unsigned id, unsigned count, site at);
/* Wait until ready(a, b); a block in which everybody waits like this is a fault. */
void wait_until(bool (*ready)(const void *a, uint64_t b), const void *a, uint64_t b, site at);
/* All lanes of the mask put `size` <= 64 bytes down and get the values of all, [32] at a distance of 64 bytes, valid until the lane's
 * next exchange but one. */
const unsigned char *exchange(uint32_t mask, const void *mine, size_t size, site at);

template <class T> static inline T lane_value(const unsigned char *all, unsigned lane)
{
    T v;
    std::memcpy(&v, all + 64 * (lane & 31u), sizeof v);
    return v;
}
template <class T> const unsigned char *exchange(uint32_t mask, const T &mine, site at)
{
    static_assert(sizeof(T) <= 64, "a slot has 64 bytes");
    return exchange(mask, &mine, sizeof mine, at);
}

/* Asynchronous copies of a thread (cp.async). */
void copy_later(void *to, const void *from, size_t bytes, size_t zeros);
void copy_commit();
void copy_wait(unsigned groups_left);
/* Asynchronous bulk copies that tell a memory barrier (an 8-byte word of shared memory). */
void mbar_init(uint64_t *bar, unsigned count);
void mbar_arrive(uint64_t *bar, unsigned bytes_expected);
void bulk_copy(void *to, const void *from, unsigned bytes, uint64_t *bar);
void mbar_wait(uint64_t *bar, unsigned parity, site at);

} // namespace kvi_emu

#define threadIdx (kvi_emu::self().thread)
#define blockIdx  (kvi_emu::self().block)
#define blockDim  (kvi_emu::self().block_dim)
#define gridDim   (kvi_emu::self().grid_dim)

/* For the tests of the emulation and of kernels; the running thread's own. */
#pragma GCC visibility push(default)
extern "C" {
void        kvi_emu_order(int order, uint64_t seed); /* of threads; ascending at first */
const char *kvi_emu_fault(void);                     /* text of the last fault, "" = none; forgets it */
uint64_t    kvi_emu_launches(void);                  /* kernels that ran since the beginning */
}
#pragma GCC visibility pop

#endif
