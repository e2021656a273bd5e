/* What a peer's shim (build/peers/peer_NAME.so) gives to the benchmark: one function, peer_open, that returns a table. Slots of
 * what the peer cannot do are NULL. Everything runs in the calling thread unless n_threads says more.
 *
 * A job keeps its weights, keys or values in n_sets copies, each at an address of its own: runs take one after the other, so that
 * what is said to come from memory does. */
#ifndef PEER_API_H
#define PEER_API_H

#include <stddef.h>
#include <stdint.h>

#define PEER_ABI 1

typedef struct peer_table {
    int         abi;     /* PEER_ABI */
    const char *version; /* name, version, which kernels it chose */

    /* out = softmax(q k^T * scale) v for one token. k, v f32 [n_kv_heads, n_rows, width], converted to `type` ("f16", "q8_0",
     * ...); n_kv_heads heads are shared by n_heads / n_kv_heads query heads each. NULL = not possible. */
    void *(*attend_new)(const char *type, size_t width, size_t n_heads, size_t n_kv_heads, size_t n_rows, const float *k,
                        const float *v, size_t n_sets, int n_threads);
    /* q, out f32 [n_heads, width] */
    void (*attend_run)(void *job, const float *q, float *out, float scale, size_t set);
    void (*attend_free)(void *job);

    /* y = x w^T with weights of `type`, w f32 [rows, cols]; a type that ends in "+" is one in the peer's own repacked layout. */
    void *(*matrix_new)(const char *type, size_t rows, size_t cols, const float *w, size_t n_x, size_t n_sets, int n_threads);
    size_t (*matrix_bytes)(void *job); /* of the weights, one set */
    /* x f32 [n_x, cols], y f32 [n_x, rows] */
    void (*matrix_run)(void *job, const float *x, float *y, size_t set);
    void (*matrix_free)(void *job);

    /* y f32 [n_x, rows] = x [n_x, cols] w [rows, cols]^T, one thread */
    void (*gemm)(const float *x, const float *w, float *y, size_t n_x, size_t rows, size_t cols);

    /* Ids of the k largest scores, ties to the lower id, in any order. */
    void (*nth_index)(const float *scores, size_t n, size_t k, int32_t *ids);  /* std::nth_element on indices */
    void (*nth_packed)(const float *scores, size_t n, size_t k, int32_t *ids); /* on (score, id) in 64 bits */
    void (*heap)(const float *scores, size_t n, size_t k, int32_t *ids);       /* a heap of k, std::push_heap and pop_heap */
} peer_table;

#if defined(__cplusplus)
#define PEER_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define PEER_EXPORT __attribute__((visibility("default")))
#endif
PEER_EXPORT const peer_table *peer_open(void);

#endif
