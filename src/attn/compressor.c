/* Source: docs/formats.md "Cache block"; DeepSeek-V4.1 report 2.3. Entry j of ratio r covers tokens
 * j r .. j r + r - 1, is rotated at position j r and is written by the chunk that holds its last
 * token. The index key is made from the latent before rotation and quantisation. */
#include "attn/compressor.h"

#include <string.h>

#include "base/status.h"

/* Ratio 1: the latent is a projection. */
static kvcsa_status project(const kvi_compress_params *p, uint64_t *first, size_t *n,
                            kvcsa_error *err)
{
    *first = p->pos;
    *n = p->n_rows;
    return kvi_exec_linear(&p->exec, p->wkv, p->x, p->latent, p->n_rows, p->exec.flags, err);
}

/* Ratio 2: two tokens, weighed by a softmax per channel. Projections stay fp32 in every mode. */
static kvcsa_status pool_pairs(const kvi_compress_params *p, uint64_t *first, size_t *n,
                               kvcsa_error *err)
{
    const size_t                width = p->row->entry_width;
    const size_t                odd = p->pos % 2;
    const size_t                total = odd + p->n_rows;
    const size_t                row_bytes = width * sizeof(float);
    const kvi_pool_pairs_params pool = {.k = p->k,
                                        .gate = p->gate,
                                        .out = p->latent,
                                        .n_pairs = total / 2,
                                        .width = p->row->entry_width,
                                        .flags = p->exec.flags};
    kvcsa_status                st =
        kvi_exec_linear(&p->exec, p->wkv, p->x, p->k + odd * width, p->n_rows, 0, err);

    if (st == KVCSA_OK)
        st = kvi_exec_linear(&p->exec, p->wgate, p->x, p->gate + odd * width, p->n_rows, 0, err);
    if (st != KVCSA_OK)
        return st;
    if (odd) {
        memcpy(p->k, p->pending, row_bytes);
        memcpy(p->gate, p->pending + width, row_bytes);
    }
    if (total % 2) {
        memcpy(p->pending_out, p->k + (total - 1) * width, row_bytes);
        memcpy(p->pending_out + width, p->gate + (total - 1) * width, row_bytes);
    }
    *first = p->pos / 2;
    *n = total / 2;
    return *n ? p->exec.ops->pool_pairs(p->exec.dev, &pool, err) : KVCSA_OK;
}

/* The half of an entry that the last row begins. */
static kvcsa_status pending_row(const kvi_compress_params *p, kvcsa_error *err)
{
    const float *x = p->x + (p->n_rows - 1) * p->wkv->cols;
    kvcsa_status st;

    if (p->row->pool_kind != KVI_POOL_GATED || (p->pos + p->n_rows) % p->row->ratio == 0)
        return KVCSA_OK;
    if ((st = kvi_exec_linear(&p->exec, p->wkv, x, p->pending_out, 1, 0, err)) != KVCSA_OK)
        return st;
    return kvi_exec_linear(&p->exec, p->wgate, x, p->pending_out + p->row->entry_width, 1, 0, err);
}

kvcsa_status kvi_compress(const kvi_compress_params *p, kvcsa_error *err)
{
    const kvi_plan_row    *row = p->row;
    kvi_entry_write_params write = {.to = p->to, .latent = p->latent, .key = p->key};
    kvcsa_status           st = KVCSA_ERR_INTERNAL;

    if (p->replay)
        return pending_row(p, err);
    if (row->pool_kind == KVI_POOL_NONE && row->ratio == 1)
        st = project(p, &write.first_entry, &write.n_rows, err);
    else if (row->pool_kind == KVI_POOL_GATED && row->ratio == 2)
        st = pool_pairs(p, &write.first_entry, &write.n_rows, err);
    else
        st = kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "pooling kind %u with ratio %u has no operator",
                      row->pool_kind, row->ratio);
    if (st != KVCSA_OK || write.n_rows == 0)
        return st;
    for (size_t i = 0; i < write.n_rows; i++)
        p->entry_pos[i] = (write.first_entry + i) * row->ratio;
    if ((st = kvi_exec_norm(&p->exec, p->norm, p->latent, write.n_rows, row->entry_width, p->eps,
                            err)) != KVCSA_OK ||
        (st = kvi_exec_linear(&p->exec, p->index_wk, p->latent, p->key, write.n_rows, p->exec.flags,
                              err)) != KVCSA_OK ||
        (st = kvi_exec_norm(&p->exec, p->index_k_norm, p->key, write.n_rows, row->index_width,
                            p->eps, err)) != KVCSA_OK ||
        (st = kvi_exec_rope(&p->exec, &p->rotary, p->key, p->entry_pos, write.n_rows, 1,
                            row->index_width, 0, err)) != KVCSA_OK ||
        (st = kvi_exec_rope(&p->exec, &p->rotary, p->latent, p->entry_pos, write.n_rows, 1,
                            row->entry_width, 0, err)) != KVCSA_OK)
        return st;
    kvi_exec_tap(&p->exec, KVI_TAP_KEY, p->key, write.n_rows, row->index_width);
    kvi_exec_tap(&p->exec, KVI_TAP_MAIN, p->latent, write.n_rows, row->entry_width);
    return p->exec.ops->entry_write(p->exec.dev, &write, err);
}
