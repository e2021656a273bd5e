/* What one would write first, in plain C and built with -O3: the peers of kernels that no library has. Results are those of the
 * operators, byte for byte. */
#ifndef BENCH_NAIVE_H
#define BENCH_NAIVE_H

#include <stddef.h>
#include <stdint.h>

/* bf16, then FP4 with an E4M3 scale per 16. out: width / 2 bytes of values, then the scales. */
void naive_quant_main(const float *x, size_t width, uint8_t *out);
/* bf16, then FP4 with an E8M0 scale per 32. */
void naive_quant_index(const float *x, size_t width, uint8_t *values, uint8_t *scales);
/* FP4 with an E8M0 scale per 32, to floats. */
void naive_dequant(const uint8_t *values, const uint8_t *scales, size_t width, float *out);
/* Scores of n index keys [values: width / 2 bytes][scales: width / 32] at their places: see kvi_index_score_params. width <= 256,
 * n_heads <= 64. key(arg, i, &values, &scales) finds key i. */
typedef void (*naive_key_fn)(const void *arg, size_t i, const uint8_t **values, const uint8_t **scales);
void naive_scores(naive_key_fn key, const void *arg, size_t first, size_t n, const int8_t *codes, const float *scales,
                  const float *weights, size_t n_heads, size_t width, float *out);
/* out[b] = largest of scores[8 b ..] */
void naive_block_max(const float *scores, size_t n_blocks, float *out);

#endif
