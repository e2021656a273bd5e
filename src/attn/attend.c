#include "attn/attend.h"

#include <math.h>

kvcsa_status kvi_attend(const kvi_attend_view *v, kvcsa_error *err)
{
    const kvi_plan_row     *row = v->row;
    const kvi_attend_params p = {.q = v->q,
                                 .out = v->out,
                                 .pos = v->pos,
                                 .page_off = v->page_off,
                                 .chunk = v->chunk,
                                 .sink = v->sink,
                                 .ids = row->ratio ? v->ids : NULL,
                                 .mass = row->ratio ? v->mass : NULL,
                                 .entries = {.owner = v->owner},
                                 .n_rows = v->n_rows,
                                 .n_heads = v->n_heads,
                                 .width = v->width,
                                 .n_window = row->window_tokens,
                                 .page_rows = v->geom->page_rows,
                                 .n_pages = v->geom->n_pages,
                                 .row_bytes = row->window_bytes,
                                 .k = row->ratio ? row->select_entries : 0,
                                 .scale = (float)(1.0 / sqrt((double)v->width)),
                                 .flags = v->exec.flags,
                                 .of = v->of};

    return v->exec.ops->attend(v->exec.dev, &p, err);
}
