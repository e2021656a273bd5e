/* Instruction sets that kernels are written for, and which of them may run here. */
#ifndef KVI_CPU_FLAGS_H
#define KVI_CPU_FLAGS_H

#include <stdint.h>

#include "backend/backend.h"

#if defined(__x86_64__)
#define KVI_ARCH_X86_64 1
#elif defined(__aarch64__)
#define KVI_ARCH_ARM64 1
#endif

/* Flags are KVCSA_CPU_*: each stands for all that its files are compiled with (Makefile).
 *   AVX2     AVX2, FMA, F16C, BMI2, POPCNT                       Haswell, Zen 1
 *   AVX512   AVX2 and AVX-512 F BW CD DQ VL VBMI VBMI2 VNNI      Ice Lake, Zen 4
 *   NEON     Armv8-A
 *   DOTPROD  NEON and Armv8.2-A SDOT/UDOT                        Cortex-A55, Neoverse N1, Apple M1
 * No flag: portable C. Processors with the first AVX-512 only (Skylake-X) run as AVX2. */

/* What the kernels of one device use, and how it is found out: backend/backend.h. */

#endif
