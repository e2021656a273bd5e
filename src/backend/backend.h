/* What a device must be able to do: a table of operators over device memory. The built-in CPU is
 * complete and is the oracle; other devices come as shared objects with the same table. */
#ifndef KVI_BACKEND_H
#define KVI_BACKEND_H

#include "backend/op_params.h"
#include "base/threads.h"

#define KVI_BACKEND_ABI 7u

typedef struct kvi_device kvi_device;

/* What a plug-in may use of its host: it does not link to the library. */
typedef struct kvi_host_ops {
    uint32_t struct_size;
    uint32_t reserved;
    void   (*log)(void *user, int32_t level, const char *text); /* level as KVCSA_LOG_*; NULL = none */
    void    *user;
} kvi_host_ops;

typedef struct kvi_device_info {
    char     name[64];     /* of the device */
    char     kernels[32];  /* of the images that it runs, for example "sm_80" */
    uint64_t memory;       /* bytes of its own, 0 = it uses the host's */
    uint64_t memory_free;
    uint64_t numerics;     /* id of the order and rounding of sums: equal ids, equal bits */
} kvi_device_info;

enum { KVI_MEMORY_DEVICE = 0, KVI_MEMORY_PINNED = 1 }; /* pinned: the host's, fast to copy */
enum { KVI_COPY_IN = 0, KVI_COPY_OUT = 1, KVI_COPY_WITHIN = 2 }; /* of device memory */

/* A recorded sequence of operators that can be run again with the same arguments. */
typedef struct kvi_graph kvi_graph;

typedef struct kvi_device_params {
    const kvcsa_allocator *allocator; /* for scratch; outlives the device */
    kvi_threads           *threads;   /* outlives the device */
    uint32_t               cpu_flags; /* KVCSA_CPU_* that the CPU's kernels may use */
    uint32_t               ordinal;   /* of the device among those of its kind */
    const kvi_host_ops    *host;      /* NULL = none; copied */
    uint32_t               flags;     /* KVI_DEVICE_* */
    uint32_t               reserved;
} kvi_device_params;

/* Products by the vendor's library where it is there: another order of sums (numerics), and bits
 * that may depend on how many rows there are. */
enum { KVI_DEVICE_FAST_DENSE = 1u };

/* What a backend has kernels for. A size is among them if it is a multiple of step in [min, max]. */
typedef struct kvi_sizes {
    uint32_t min, max, step;
} kvi_sizes;
typedef struct kvi_features {
    uint64_t  entry_formats; /* bit KVCSA_FORMAT_*: entries of sparse attention */
    uint64_t  paged_formats; /* keys and values of paged_attend */
    uint32_t  weight_kinds;  /* bit KVI_W_*: of linear */
    uint32_t  expert_kinds;  /* ... and of moe */
    uint32_t  reference;     /* 1 = it has the reference mode (KVI_OP_*) */
    uint32_t  reserved;
    kvi_sizes heads, head_width; /* of sparse attention */
    kvi_sizes window_width;
    kvi_sizes index_heads, index_width;
    kvi_sizes select_entries, candidate_blocks, candidate_block_entries;
    kvi_sizes copies, hidden, inner, experts, experts_per_token;
    kvi_sizes paged_width;
} kvi_features;

/* X(name) for each operator; its parameters are a kvi_name_params of backend/op_params.h. */
#define KVI_EACH_OPERATOR(X)                                                                       \
    X(embed) X(linear) X(norm) X(rope) X(window_write) X(pool_pairs) X(entry_write)                \
    X(paged_write) X(index_query) X(index_score) X(candidates) X(hide) X(topk) X(attend)           \
    X(paged_attend) X(mix) X(collapse) X(expand) X(route) X(moe) X(engram_gate) X(copy) X(tally)
#define KVI_OPERATOR_SLOT(op)                                                                      \
    kvcsa_status (*op)(kvi_device *dev, const kvi_##op##_params *p, kvcsa_error *err);

/* Operators return OK or ERR_NOMEM (scratch) / ERR_BACKEND; outputs are then undefined. Several
 * threads may run operators of one device at a time. */
typedef struct kvi_backend_ops {
    uint32_t    abi;         /* KVI_BACKEND_ABI */
    uint32_t    struct_size;
    const char *name;        /* "cpu" */
    uint64_t    numerics;    /* id of the order and rounding of sums: equal ids, equal bits */

    kvcsa_status (*device_open)(const kvi_device_params *p, kvi_device **out, kvcsa_error *err);
    void         (*device_close)(kvi_device *dev); /* accepts NULL */

    KVI_EACH_OPERATOR(KVI_OPERATOR_SLOT)
    void (*features)(kvi_features *out);

    /* From here on: devices with memory of their own. All NULL = operators take the host's memory and
     * have finished when they return; otherwise they and copies are enqueued, in order, and `sync`
     * waits for them and tells what went wrong meanwhile. */

    /* 0 = nothing here can run, and why says so; the larger the better. */
    int32_t      (*score)(const kvi_host_ops *host, char *why, size_t why_size);
    void         (*describe)(kvi_device *dev, kvi_device_info *out);
    /* ERR_NOMEM where the device has no room; contents are undefined. */
    kvcsa_status (*mem_alloc)(kvi_device *dev, size_t size, uint32_t kind, void **out,
                  kvcsa_error *err);
    void         (*mem_free)(kvi_device *dev, void *ptr, uint32_t kind); /* accepts NULL; waits */
    /* COPY_IN takes the bytes before it returns, but for pinned memory; COPY_OUT has written them
     * after a `sync`. WITHIN: the ranges do not overlap. */
    kvcsa_status (*mem_copy)(kvi_device *dev, void *to, const void *from, size_t size, uint32_t way,
                  kvcsa_error *err);
    kvcsa_status (*mem_fill)(kvi_device *dev, void *ptr, int byte, size_t size, kvcsa_error *err);
    kvcsa_status (*sync)(kvi_device *dev, kvcsa_error *err);
    /* Between begin and end operators, fills and copies WITHIN of the calling thread are recorded
     * and not run; nothing may be allocated: the same calls have been run once before. Calls of
     * other threads wait for the end. After a call that failed, end gives up what was recorded. A
     * graph stays good until it is freed, whatever runs in between. */
    kvcsa_status (*graph_begin)(kvi_device *dev, kvcsa_error *err);
    kvcsa_status (*graph_end)(kvi_device *dev, kvi_graph **out, kvcsa_error *err);
    kvcsa_status (*graph_run)(kvi_device *dev, kvi_graph *graph, kvcsa_error *err);
    void         (*graph_free)(kvi_device *dev, kvi_graph *graph); /* accepts NULL */
    /* Fills device memory with words of Philox4x32-10, the word number i with that of offset + i;
     * NULL = there is none. ptr: at a multiple of 4. May wait. ERR_ARG beyond word 2^64. */
    kvcsa_status (*mem_random)(kvi_device *dev, void *ptr, size_t n_words, uint64_t seed,
                  uint64_t offset, kvcsa_error *err);
} kvi_backend_ops;

/* The one symbol of a plug-in: NULL if it was not built for this abi. */
#define KVI_BACKEND_QUERY "kvcsa_backend_query"
typedef const kvi_backend_ops *(*kvi_backend_query_fn)(uint32_t abi);

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
