/* Rebuilding windows from tokens: which rows a layer runs when less than all of them are wanted.
 *
 * After a rewind or a prefix hit at H the entries below H are there, the window rows are not. Rows
 * [start, H) run again: they read entries under the usual rule and write window rows, and the
 * pending row if H is odd, but never an entry.
 *
 *   exact    row p of a layer is right if its window rows p - W + 1 .. p are, and those need the
 *            rows p - W + 1 .. p of the layer below. So layer l writes window rows from
 *            first[l] = H - W - (L - 1 - l)(W - 1) on and asks queries from first[l + 1] on; the
 *            last row of the last layer is right. 5,081 rows at layer 0 of V4.1 (L 40, W 128),
 *            whatever H is.
 *   bounded  the last W rows through all layers; no query sees a window row below them.
 *
 * Decoder replay runs the layers from `cut` on for the last W rows of a prompt only; they own no
 * entries, so nothing but their window rows and the logits is touched.
 * Source: docs/formats.md "Network"; DeepSeek-V4.1 report 3.2.2. */
#ifndef KVI_SWA_REPLAY_H
#define KVI_SWA_REPLAY_H

#include "plan/cache_plan.h"

enum {
    KVI_REPLAY_EXACT = 0,
    KVI_REPLAY_BOUNDED = 1,
    KVI_REPLAY_FROM = 2 /* windows are right at some position (a stored window): all rows from there
                         * on through all layers; not for the function below */
};

/* first u64 [n_layers + 1], ascending: layer l writes window rows of positions from first[l] on,
 * and its queries are the positions from first[l + 1] on. hit >= 1. */
void kvi_replay_first_rows(const kvi_plan *plan, uint64_t hit, uint32_t how, uint64_t *first);

/* The rows of a forward [begin, end) for decoder replay, on top of `first` (0 = all rows): layers
 * from cut on run the last window only. Changes nothing where the forward is no longer than that.
 * Returns 1 if it cut. */
int kvi_replay_cut(const kvi_plan *plan, uint32_t cut, uint64_t begin, uint64_t end,
                   uint64_t *first);

/* First layer that owns no entries and has no owner above it: decoder replay may cut here. */
uint32_t kvi_replay_default_cut(const kvi_plan *plan);

#endif
