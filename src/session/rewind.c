/* Going back, and making the window rows again that this loses (attn/swa_replay.h). */
#include <string.h>

#include "attn/swa_replay.h"
#include "base/checked.h"
#include "base/status.h"
#include "session/session_int.h"

void kvi_session_set_decoder_cut(kvcsa_session *s, uint32_t cut)
{
    s->decoder_cut = cut;
}

void kvi_session_plan_forward(kvcsa_session *s, uint64_t end)
{
    const kvi_plan *plan = &s->model->plan;
    uint64_t        begin = s->n_tokens;

    memset(s->first_rows, 0, (plan->n_layers + 1) * sizeof *s->first_rows);
    if (s->replay_end) {
        kvi_replay_first_rows(plan, s->replay_end, s->replay_how, s->first_rows);
        begin = s->first_rows[0];
        s->replay_pos = begin;
    }
    if (s->decoder_cut)
        kvi_replay_cut(plan, s->decoder_cut, begin, end, s->first_rows);
    s->planned = 1;
}

kvcsa_status kvi_session_replay_chunk(kvcsa_session *s, kvi_stop_context *stop, uint64_t max_rows,
                                      uint64_t *n_done, kvcsa_error *err)
{
    const uint32_t     vocab = s->model->config.vocab_size;
    const uint64_t     left = s->replay_end - s->replay_pos;
    const uint32_t     n = (uint32_t)kvi_min_size(kvi_min_size(left, max_rows), s->chunk_tokens);
    const uint32_t     last = n - 1;
    kvi_net_run_params run = kvi_session_run_params(s, s->replay_pos, n, stop);
    kvcsa_status       st;

    run.replay = 1;
    run.logit_rows = &last;
    /* the last row of the last layer is right again, unless decoder replay leaves it out */
    run.n_logit_rows = n == left && s->replay_end > s->first_rows[s->model->plan.n_layers];
    st = kvi_net_run(s->net, &run, err);
    if (st != KVCSA_OK) {
        if (st == KVCSA_ERR_CANCELLED)
            kvi_session_rollback(s);
        return st;
    }
    kvi_net_commit(s->net, &run);
    s->n_replayed_rows += n;
    s->replay_pos += n;
    if (s->replay_pos == s->replay_end)
        s->replay_end = 0;
    if (run.n_logit_rows) {
        memcpy(s->logits, kvi_net_logits(s->net), vocab * sizeof(float));
        s->has_logits = 1;
    }
    *n_done = n;
    return KVCSA_OK;
}

/* A SEALED block that the session is going to write behind `position` becomes a copy of its own. */
static kvcsa_status own_last_block(kvcsa_session *s, uint64_t position, kvcsa_error *err)
{
    const kvi_kv_layout *layout = &s->model->layout;
    const uint64_t       i = position / layout->block_tokens;
    kvi_block          **blocks = kvi_session_blocks(s);
    kvi_block           *copy = NULL;
    kvcsa_status         st;

    if (position % layout->block_tokens == 0 || kvi_block_state(blocks[i]) != KVI_BLOCK_SEALED)
        return KVCSA_OK;
    if ((st = kvi_pool_reserve(s->pool, s->cls, 1, err)) != KVCSA_OK)
        return st;
    if ((st = kvi_block_acquire(s->pool, s->cls, &copy, err)) != KVCSA_OK) {
        kvi_pool_unreserve(s->pool, s->cls, 1);
        return st;
    }
    memcpy(kvi_block_index_part(copy), kvi_block_index_part(blocks[i]), layout->index_part_bytes);
    memcpy(kvi_block_main_part(copy), kvi_block_main_part(blocks[i]), layout->main_part_bytes);
    kvi_block_release(s->pool, blocks[i]);
    kvi_session_set_block(s, i, copy);
    return KVCSA_OK;
}

kvcsa_status kvi_session_rewind(kvcsa_session *s, uint64_t position, uint32_t how, kvcsa_error *err)
{
    const kvi_plan *plan = &s->model->plan;
    kvcsa_status    st;

    if (kvi_session_queued(s))
        return kvi_fail(err, KVCSA_ERR_ARG, "%llu tokens are queued, rewind needs an empty queue",
                        (unsigned long long)kvi_session_queued(s));
    if (position > s->n_tokens)
        return kvi_fail(err, KVCSA_ERR_ARG, "position is %llu, the session holds %llu tokens",
                        (unsigned long long)position, (unsigned long long)s->n_tokens);
    if ((st = own_last_block(s, position, err)) != KVCSA_OK)
        return st;
    while (s->n_blocks > kvi_session_blocks_for(s, position))
        kvi_block_release(s->pool, kvi_session_blocks(s)[--s->n_blocks]);
    s->n_sealed = kvi_min_size(s->n_sealed, position / plan->block_tokens);
    s->n_tokens = position;
    s->n_total = position;
    s->has_logits = 0;
    s->planned = 0;
    s->replay_end = position;
    s->replay_how = how;
    memset(s->floors, 0, plan->n_layers * sizeof *s->floors);
    return KVCSA_OK;
}
