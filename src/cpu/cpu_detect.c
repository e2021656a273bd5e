/* What the processor can do and what the system saves on a switch of threads (XCR0): a register
 * that the system does not save must not be used, whatever CPUID says. Nothing is kept: the answer
 * is asked for once a device.
 *
 * Preference is a table of known throughput, not of features:
 *   - 512-bit FMA runs on two ports of Intel's server cores since Ice Lake and at full rate on
 *     Zen 5; Zen 4 splits it in two, at the rate of AVX2 with half the instructions. Nowhere is it
 *     slower than AVX2, so it is preferred on both vendors' processors and on no others, which we
 *     could not look up.
 *   - vpdpbusd (VNNI) is four times the rate of fp32 FMA on all of them: index scores use it.
 *   - vdpbf16ps has half the rate of fp32 FMA on Sapphire Rapids (measured, docs/benchmarks.md) and
 *     rounds its operands: no kernel uses it. */
#include "cpu/cpu_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(KVI_ARCH_X86_64)
#include <cpuid.h>

typedef struct regs {
    uint32_t a, b, c, d;
} regs;

static regs cpuid(uint32_t leaf, uint32_t sub)
{
    regs r = {0};

    (void)__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d);
    return r;
}

static uint64_t saved_by_system(void) /* XCR0; needs OSXSAVE */
{
    uint32_t low;
    uint32_t high;

    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static uint32_t bits(unsigned a, unsigned b)
{
    return 1u << a | 1u << b;
}

static uint32_t detect(void)
{
    const regs     one = cpuid(1, 0);
    const regs     seven = cpuid(7, 0);
    /* FMA, F16C; OSXSAVE, AVX; POPCNT, which -mavx2 brings along */
    const uint32_t want1 = bits(12, 29) | bits(27, 28) | 1u << 23;
    const uint32_t want7b = bits(5, 8);                         /* AVX2, BMI2 */
    const uint32_t want512b = bits(16, 17) | bits(28, 30) | 1u << 31; /* F DQ; CD BW; VL */
    const uint32_t want512c = bits(1, 6) | 1u << 11;            /* VBMI, VBMI2; VNNI */
    uint32_t       flags = 0;
    uint64_t       saved = 0;

    if ((one.c & want1) != want1 || (seven.b & want7b) != want7b)
        return 0;
    saved = saved_by_system();
    if ((saved & 0x06) != 0x06) /* SSE and AVX registers */
        return 0;
    flags |= KVCSA_CPU_AVX2;
    if ((saved & 0xe6) == 0xe6 && /* and the three parts of AVX-512 */
        (seven.b & want512b) == want512b && (seven.c & want512c) == want512c)
        flags |= KVCSA_CPU_AVX512;
    return flags;
}

static void find_name(char name[64])
{
    uint32_t text[12] = {0};
    char    *start = (char *)text;

    if ((uint32_t)__get_cpuid_max(0x80000000u, NULL) < 0x80000004u)
        return;
    for (uint32_t i = 0; i < 3; i++) {
        const regs r = cpuid(0x80000002u + i, 0);

        memcpy(text + 4 * i, &r, sizeof r);
    }
    while (*start == ' ' && start < (char *)text + 47)
        start++;
    snprintf(name, 64, "%.*s", 48 - (int)(start - (char *)text), start);
}

static int is_known_vendor(void)
{
    const regs r = cpuid(0, 0);
    char       vendor[12];

    memcpy(vendor, &r.b, 4);
    memcpy(vendor + 4, &r.d, 4);
    memcpy(vendor + 8, &r.c, 4);
    return memcmp(vendor, "GenuineIntel", 12) == 0 || memcmp(vendor, "AuthenticAMD", 12) == 0;
}

static uint32_t prefer(uint32_t detected)
{
    return is_known_vendor() ? detected : detected & ~(uint32_t)KVCSA_CPU_AVX512;
}

#elif defined(KVI_ARCH_ARM64)
#include <sys/auxv.h>

#define HWCAP_DOTPROD (1ul << 20) /* ASIMDDP, asm/hwcap.h */

static uint32_t detect(void) /* NEON is part of Armv8-A */
{
    return getauxval(AT_HWCAP) & HWCAP_DOTPROD ? KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD
                                               : KVCSA_CPU_NEON;
}

static void find_name(char name[64])
{
    snprintf(name, 64, "Armv8-A");
}

static uint32_t prefer(uint32_t detected)
{
    return detected;
}

#else

static uint32_t detect(void)
{
    return 0;
}

static void find_name(char name[64])
{
    name[0] = '\0';
}

static uint32_t prefer(uint32_t detected)
{
    return detected;
}

#endif

/* Without what is avoided, or built on something avoided. */
static uint32_t without(uint32_t flags, uint32_t avoid)
{
    flags &= ~avoid;
#ifdef KVI_DEBUG /* so that every test can run with every set: make check-masks */
    if (getenv("KVI_CPU_AVOID"))
        flags &= ~(uint32_t)strtoul(getenv("KVI_CPU_AVOID"), NULL, 0);
#endif
    if (!(flags & KVCSA_CPU_AVX2))
        flags &= ~(uint32_t)KVCSA_CPU_AVX512;
    if (!(flags & KVCSA_CPU_NEON))
        flags &= ~(uint32_t)KVCSA_CPU_DOTPROD;
    return flags;
}

uint32_t kvi_cpu_flags(uint32_t avoid)
{
    return without(prefer(detect()), avoid);
}

static const char *widest(uint32_t flags)
{
    return flags & KVCSA_CPU_AVX512    ? "AVX-512"
           : flags & KVCSA_CPU_AVX2    ? "AVX2"
           : flags & KVCSA_CPU_DOTPROD ? "NEON with dot products"
           : flags & KVCSA_CPU_NEON    ? "NEON"
                                       : "portable C";
}

void kvi_cpu_find(uint32_t avoid, kvi_cpu_found *found)
{
    const uint32_t detected = detect();
    const uint32_t used = kvi_cpu_flags(avoid);

    memset(found, 0, sizeof *found);
    find_name(found->name);
    found->detected = detected;
    found->used = used;
    snprintf(found->kernels, sizeof found->kernels, "%s", widest(used));
    if (detected == 0)
        snprintf(found->why, sizeof found->why,
                 "the processor has none of the sets that kernels are written for");
    else if (used == detected)
        snprintf(found->why, sizeof found->why, "the widest that processor and system have");
    else if (used == prefer(detected))
        snprintf(found->why, sizeof found->why,
                 "%s is there, but its speed on this make of processor is not known",
                 widest(detected));
    else
        snprintf(found->why, sizeof found->why, "%s is there and is avoided on request",
                 widest(detected));
}
