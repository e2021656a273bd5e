/* A timeline as a session has one, made by hand: blocks, window pages and raw rows in the host's memory. */
#ifndef TEST_TIMELINE_H
#define TEST_TIMELINE_H

#include "attn/window.h"
#include "model/model.h"

enum { MAX_TOKENS = 384, MAX_BLOCKS = 3, MAX_LAYERS = 16 };

typedef struct timeline {
    const kvcsa_model *model;
    int32_t         tokens[MAX_TOKENS];
    uint64_t        n; /* committed */
    kvi_window_geom geom;
    uint8_t        *index_parts[MAX_BLOCKS];
    uint8_t        *main_parts[MAX_BLOCKS];
    uint8_t       **pages;
    uint8_t        *pending;
    uint64_t        floors[MAX_LAYERS];
} timeline;

void *get(size_t n, int fill); /* malloc; all bytes are `fill` */
void *copy_of(const void *from, size_t n);

timeline *timeline_new(const kvcsa_model *model, uint32_t slack, uint64_t token_seed); /* all bytes are 0xFF */
timeline *timeline_copy(const timeline *from);
void      timeline_free(timeline *t);
void      timeline_lose_window(timeline *t); /* no rows: pages are full of NaN */
void      timeline_change_tokens(timeline *t, uint64_t from, uint64_t token_seed); /* from position `from` on */
void      assert_same_entries(const timeline *a, const timeline *b);
void      assert_same_state(const timeline *a, const timeline *b);

#endif
