/* Plans by hand: the released model, the tiny random checkpoint, and one layer of every kind that other families have. */
#ifndef PLAN_BOX_H
#define PLAN_BOX_H

#include "plan/cache_plan.h"

#define MAX_LAYERS 1025u

typedef struct plan_box {
    kvi_plan     plan;
    kvi_plan_row rows[MAX_LAYERS];
} plan_box;

plan_box *new_box(void);              /* free() it */
void      release_plan(plan_box *box); /* 40 layers */
void      tiny_plan(plan_box *box);    /* 10 layers */
void      mixed_plan(plan_box *box);   /* one layer of each kind; no model is like this */
void      set_ratio(plan_box *box, uint32_t first, uint32_t last, uint32_t ratio);

/* What a geometry has in common. */
typedef struct geometry {
    uint32_t width, rotated, entry_bytes;
    uint32_t heads, index_width, index_bytes;
    uint32_t select, blocks, block_entries;
    uint32_t window, window_bytes;
} geometry;

extern const geometry release_geometry;

void candidates(kvi_plan_row *r, const geometry *g, uint32_t role, int32_t owner);
/* A layer with entries of kv_owner and the selection of select_owner. */
kvi_plan_row entry_row(const geometry *g, uint32_t ratio, int32_t layer, int32_t kv_owner,
                       int32_t select_owner);
/* A latent of 512 + 64 in 656 bytes, selected by the keys of index_owner. */
kvi_plan_row latent_row(int32_t layer, int32_t kv_owner, int32_t index_owner);

#endif
