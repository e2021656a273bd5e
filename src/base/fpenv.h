/* The floating-point mode of a thread. We want round to nearest, subnormals kept and no traps, but
 * run in the host's threads too: one that was built with -ffast-math flushes subnormals, and a
 * comparison that takes them for 0 breaks the order that selection relies on. What stands between
 * enter and leave must be a call into another file, so that no arithmetic moves across. */
#ifndef KVI_FPENV_H
#define KVI_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)
static inline uint64_t kvi_fp_enter(void) /* the mode before */
{
    const uint32_t old = __builtin_ia32_stmxcsr();

    if ((old & 0xffc0u) != 0x1f80u)
        __builtin_ia32_ldmxcsr(0x1f80u);
    return old;
}
static inline void kvi_fp_leave(uint64_t old)
{
    if ((old & 0xffc0u) != 0x1f80u)
        __builtin_ia32_ldmxcsr((uint32_t)old);
}
#elif defined(__aarch64__)
static inline uint64_t kvi_fp_enter(void)
{
    uint64_t old;

    __asm__ volatile("mrs %0, fpcr" : "=r"(old)::"memory");
    if (old != 0)
        __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0) : "memory");
    return old;
}
static inline void kvi_fp_leave(uint64_t old)
{
    if (old != 0)
        __asm__ volatile("msr fpcr, %0" ::"r"(old) : "memory");
}
#else
static inline uint64_t kvi_fp_enter(void)
{
    return 0;
}
static inline void kvi_fp_leave(uint64_t old)
{
    (void)old;
}
#endif

#endif
