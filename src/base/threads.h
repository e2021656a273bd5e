/* Parallel loops: threads of our own, or the host's executor. No result depends on which or how
 * many.
 *
 * (T1) kvi_run returns after every item has been run exactly once.
 * (T2) A loop started while another is running on the same kvi_threads (by another caller, or from
 *      inside an item) runs in the calling thread alone.
 * (T3) Between loops the workers sleep; they do not spin.
 */
#ifndef KVI_THREADS_H
#define KVI_THREADS_H

#include "kvcsa.h"

typedef struct kvi_threads kvi_threads;

/* n_threads counts the caller; 0 = one per core that this process may use. executor may be NULL. */
kvcsa_status kvi_threads_create(const kvcsa_allocator *a, uint32_t n_threads,
                                const kvcsa_executor *executor,
                                kvi_threads **out, kvcsa_error *err);
void         kvi_threads_destroy(kvi_threads *threads);
uint32_t     kvi_threads_width(const kvi_threads *threads);

/* fn(arg, begin, end) over disjoint ranges that cover 0..n-1, each a multiple of `grain` long
 * but the last. With threads NULL or n <= grain it runs in the caller: choose grain so that an
 * item range is worth a wake-up. */
typedef void (*kvi_range_fn)(void *arg, size_t begin, size_t end);
void kvi_run(kvi_threads *threads, kvi_range_fn fn, void *arg, size_t n, size_t grain);

#endif
