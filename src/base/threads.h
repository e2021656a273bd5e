/* Parallel loops: threads of our own, or the host's executor. No result depends on which or how
 * many.
 *
 * (T1) kvi_run returns after every item has been run exactly once.
 * (T2) A loop started while another is running on the same kvi_threads (by another caller, or from
 *      inside an item) runs in the calling thread alone.
 * (T3) Workers sleep. Only between loops of a caller that holds them (a step of many short loops)
 *      they poll for the next loop, and the caller for the last worker, for KVI_POLL_NS at most;
 *      never when there are more threads than cores. Nobody polls while the host works.
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

/* From hold to rest the caller's loops follow each other closely. Holds of several callers add up.
 * threads may be NULL. */
void kvi_threads_hold(kvi_threads *threads);
void kvi_threads_rest(kvi_threads *threads);
#define KVI_POLL_NS 50000u /* a sleeping thread needs 5 to 50 us to wake up */

#endif
