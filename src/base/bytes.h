/* Little-endian load and store at any alignment. */
#ifndef KVI_BYTES_H
#define KVI_BYTES_H

#include <stdint.h>
#include <string.h>

static inline uint16_t kvi_load_u16(const void *p) { uint16_t v; memcpy(&v, p,
                                    sizeof v); return v; }
static inline uint32_t kvi_load_u32(const void *p) { uint32_t v; memcpy(&v, p,
                                    sizeof v); return v; }
static inline uint64_t kvi_load_u64(const void *p) { uint64_t v; memcpy(&v, p,
                                    sizeof v); return v; }
static inline float    kvi_load_f32(const void *p) { float v; memcpy(&v, p, sizeof v); return v; }
static inline uint32_t kvi_f32_bits(float v) { uint32_t u; memcpy(&u, &v, sizeof u); return u; }
static inline float    kvi_bits_f32(uint32_t u) { float v; memcpy(&v, &u, sizeof v); return v; }

#endif
