/* Floating-point modes that a host may have set in its threads. */
#ifndef FP_MODE_H
#define FP_MODE_H

#include <stdint.h>

#if defined(__x86_64__)
/* subnormals flushed, as -ffast-math sets it; the same and rounding down; rounding up; traps for invalid, division by zero, overflow */
static const uint32_t fp_modes[] = {0x9fc0, 0xbfc0, 0x5f80, 0x1900};
static inline uint32_t fp_mode_get(void) { return __builtin_ia32_stmxcsr() & 0xffc0u; }
static inline void     fp_mode_set(uint32_t mode) { __builtin_ia32_ldmxcsr(mode); }
enum { FP_MODE_DEFAULT = 0x1f80 };
#elif defined(__aarch64__)
/* flush to zero; the same and rounding down; rounding up. Few processors have traps. */
static const uint32_t fp_modes[] = {1u << 24, 1u << 24 | 2u << 22, 1u << 22};
static inline uint32_t fp_mode_get(void)
{
    uint64_t mode;

    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (uint32_t)mode;
}
static inline void fp_mode_set(uint32_t mode) { __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)mode) : "memory"); }
enum { FP_MODE_DEFAULT = 0 };
#endif
enum { N_FP_MODES = sizeof fp_modes / sizeof *fp_modes };

#endif
