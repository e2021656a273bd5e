/* What a device must be able to do: a table of operators over device memory. The built-in CPU is
 * complete and is the oracle; other devices come as shared objects with the same table. */
#ifndef KVI_BACKEND_H
#define KVI_BACKEND_H

#include "backend/op_params.h"
#include "base/threads.h"

#define KVI_BACKEND_ABI 3u

typedef struct kvi_device kvi_device;

typedef struct kvi_device_params {
    const kvcsa_allocator *allocator; /* for scratch; outlives the device */
    kvi_threads           *threads;   /* outlives the device */
    uint32_t               cpu_flags; /* KVCSA_CPU_* that the CPU's kernels may use */
} kvi_device_params;

/* Operators return OK or ERR_NOMEM (scratch) / ERR_BACKEND; outputs are then undefined. Several
 * threads may run operators of one device at a time. */
typedef struct kvi_backend_ops {
    uint32_t    abi;         /* KVI_BACKEND_ABI */
    uint32_t    struct_size;
    const char *name;        /* "cpu" */
    uint64_t    numerics;    /* id of the order and rounding of sums: equal ids, equal bits */

    kvcsa_status (*device_open)(const kvi_device_params *p, kvi_device **out, kvcsa_error *err);
    void         (*device_close)(kvi_device *dev); /* accepts NULL */

    kvcsa_status (*embed)(kvi_device *dev, const kvi_embed_params *p, kvcsa_error *err);
    kvcsa_status (*linear)(kvi_device *dev, const kvi_linear_params *p, kvcsa_error *err);
    kvcsa_status (*norm)(kvi_device *dev, const kvi_norm_params *p, kvcsa_error *err);
    kvcsa_status (*rope)(kvi_device *dev, const kvi_rope_params *p, kvcsa_error *err);
    kvcsa_status (*window_write)(kvi_device *dev, const kvi_window_write_params *p,
                  kvcsa_error *err);
    kvcsa_status (*pool_pairs)(kvi_device *dev, const kvi_pool_pairs_params *p, kvcsa_error *err);
    kvcsa_status (*entry_write)(kvi_device *dev, const kvi_entry_write_params *p, kvcsa_error *err);
    kvcsa_status (*index_query)(kvi_device *dev, const kvi_index_query_params *p, kvcsa_error *err);
    kvcsa_status (*index_score)(kvi_device *dev, const kvi_index_score_params *p, kvcsa_error *err);
    kvcsa_status (*candidates)(kvi_device *dev, const kvi_candidates_params *p, kvcsa_error *err);
    kvcsa_status (*hide)(kvi_device *dev, const kvi_hide_params *p, kvcsa_error *err);
    kvcsa_status (*topk)(kvi_device *dev, const kvi_topk_params *p, kvcsa_error *err);
    kvcsa_status (*attend)(kvi_device *dev, const kvi_attend_params *p, kvcsa_error *err);
    kvcsa_status (*paged_attend)(kvi_device *dev, const kvi_paged_attend_params *p,
                  kvcsa_error *err);
    kvcsa_status (*mix)(kvi_device *dev, const kvi_mix_params *p, kvcsa_error *err);
    kvcsa_status (*collapse)(kvi_device *dev, const kvi_collapse_params *p, kvcsa_error *err);
    kvcsa_status (*expand)(kvi_device *dev, const kvi_expand_params *p, kvcsa_error *err);
    kvcsa_status (*route)(kvi_device *dev, const kvi_route_params *p, kvcsa_error *err);
    kvcsa_status (*moe)(kvi_device *dev, const kvi_moe_params *p, kvcsa_error *err);
    kvcsa_status (*engram_gate)(kvi_device *dev, const kvi_engram_gate_params *p, kvcsa_error *err);
} kvi_backend_ops;

/* The built-in backend, for devices that are opened with these flags (cpu/cpu_flags.h). */
const kvi_backend_ops *kvi_cpu_backend(uint32_t cpu_flags);
/* Every flag that there is. */
#define KVI_CPU_ALL                                                                                \
    ((uint32_t)(KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512 | KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD))
/* The flags of this machine, without those to be avoided; 0 = portable C. */
uint32_t kvi_cpu_flags(uint32_t avoid);

typedef struct kvi_cpu_found {
    uint32_t detected;   /* KVCSA_CPU_* that machine and system have */
    uint32_t used;       /* kvi_cpu_flags(avoid) */
    char     name[64];   /* of the processor, "" if it does not say */
    char     kernels[32]; /* of the widest that is used */
    char     why[160];
} kvi_cpu_found;
void kvi_cpu_find(uint32_t avoid, kvi_cpu_found *found);

#endif
