/* Attention of slices over what the plan lets it read: its window and the selected entries, in
 * one softmax. */
#ifndef KVI_ATTEND_H
#define KVI_ATTEND_H

#include "attn/window.h"

typedef struct kvi_attend_view {
    kvi_exec               exec;
    const kvi_plan_row    *row;
    const float           *q;        /* [n_rows, n_heads, width], rotated */
    float                 *out;      /* [n_rows, n_heads, width]; still carries the rotation of the
                                      * keys, which are values too: rotate back at pos */
    const uint64_t        *pos;      /* [n_rows] */
    const kvi_window_geom *geom;     /* of all slices */
    size_t                 page_off; /* of this layer inside a page */
    const uint8_t         *chunk;    /* window rows of all slices of the run */
    const float           *sink;     /* [n_heads] */
    const int32_t         *ids;      /* [n_rows, select_entries]; unused where the layer reads its
                                      * window only */
    float                 *mass;     /* NULL, or [n_rows, select_entries]: see kvi_attend_params */
    const kvi_kv_owner    *owner;    /* of the entries; NULL where there are none */
    kvi_slices             of;
    size_t                 n_rows;
    uint32_t               n_heads;
    uint32_t               width;    /* of a head: queries, entries and window rows alike */
} kvi_attend_view;

kvcsa_status kvi_attend(const kvi_attend_view *v, kvcsa_error *err);

#endif
