/* Rotation frequencies of a layer kind. */
#ifndef KVI_ROPE_H
#define KVI_ROPE_H

#include "model/config.h"

/* freqs f32 [rope_dim / 2]. compressed: the table of layers that read entries (its own base,
 * YaRN), for every rotation in such a layer; else the plain table. Source: docs/formats.md
 * "Rotation". */
void kvi_rope_freqs(const kvi_config *c, int compressed, float *freqs);

#endif
