/* Going back, going apart, and making the window rows again that this loses (attn/swa_replay.h). */
#include "session/hosted.h"

#include <string.h>

#include "base/status.h"

void kvi_session_plan_forward(kvcsa_session *s, uint64_t end)
{
    const kvi_plan  *plan = &s->model->plan;
    const kvi_state *st = &s->now;
    uint64_t         begin = st->n_tokens;

    memset(s->first_rows, 0, (plan->n_layers + 1) * sizeof *s->first_rows);
    if (st->replay_end) {
        if (st->replay_how != KVI_REPLAY_FROM)
            kvi_replay_first_rows(plan, st->replay_end, st->replay_how, s->first_rows);
        s->replay_pos = st->replay_how == KVI_REPLAY_FROM ? st->replay_from : s->first_rows[0];
        begin = s->replay_pos;
    }
    if (s->set.decoder_cut && end > st->n_tokens &&
        kvi_replay_cut(plan, s->set.decoder_cut, begin, end, s->first_rows))
        s->now.window_approx = 1;
    s->planned = 1;
}

uint32_t kvi_session_default_replay(const kvcsa_session *s)
{
    return s->set.reuse == KVCSA_REUSE_BOUNDED ? KVI_REPLAY_BOUNDED : KVI_REPLAY_EXACT;
}

static kvcsa_status check_position(const kvcsa_session *s, uint64_t position, const char *what,
                                   kvcsa_error *err)
{
    if (kvi_session_queued(s))
        return kvi_fail(err, KVCSA_ERR_ARG, "%zu tokens are queued, %s needs an empty queue",
                        s->n_queued, what);
    if (position > s->now.n_tokens)
        return kvi_fail(err, KVCSA_ERR_ARG, "position is %llu, the session holds %llu tokens",
                        (unsigned long long)position, (unsigned long long)s->now.n_tokens);
    return KVCSA_OK;
}

kvcsa_status kvi_session_rewind(kvcsa_session *s, uint64_t position, uint32_t how, kvcsa_error *err)
{
    kvcsa_status st = check_position(s, position, "rewind", err);

    if (st != KVCSA_OK)
        return st;
    kvi_state_cut(s, &s->now, position, how);
    s->n_view = kvi_min_size(s->n_view, kvi_state_n_full(&s->now));
    kvi_session_forget_plan(s);
    return KVCSA_OK;
}

kvcsa_status kvi_session_rewind_default(kvcsa_session *s, uint64_t position, kvcsa_error *err)
{
    return kvi_session_rewind(s, position, kvi_session_default_replay(s), err);
}

void kvi_session_lose_windows(kvcsa_session *s)
{
    kvi_state_rebuild_window(s, &s->now, kvi_session_default_replay(s));
    kvi_session_forget_plan(s);
}

kvcsa_status kvi_session_fork(kvcsa_session *s, uint64_t position,
                              const kvcsa_session_params *params, kvcsa_session **out,
                              kvcsa_error *err)
{
    kvi_settings   set = s->set;
    kvcsa_session *fork = NULL;
    kvcsa_status   st = check_position(s, position, "fork", err);

    *out = NULL;
    if (st == KVCSA_OK && params)
        st = kvi_session_resolve(&s->model->plan, params, &set, err);
    if (st != KVCSA_OK)
        return st;
    if (set.slack_tokens != s->set.slack_tokens)
        return kvi_fail(err, KVCSA_ERR_ARG, "window_slack_tokens is %u, the session's is %u",
                        set.slack_tokens, s->set.slack_tokens);
    if ((set.flags ^ s->set.flags) & KVCSA_SESSION_CACHE_ONLY)
        return kvi_fail(err, KVCSA_ERR_ARG,
                        "KVCSA_SESSION_CACHE_ONLY must be as in the session that is forked");
    if (set.salt != s->set.salt)
        return kvi_fail(err, KVCSA_ERR_ARG, "salt is not the session's: its blocks are of another");
    st = kvi_session_create_with(s->pool, s->model, &set, s->cache_only, &fork, err);
    if (st != KVCSA_OK)
        return st;
    if ((st = kvi_session_copy_limits(fork, s, err)) != KVCSA_OK) {
        kvi_session_destroy(fork);
        return st;
    }
    kvi_state_copy(fork, &fork->now, &s->now);
    /* pages that are being rebuilt are of no use, nor are approximate ones to a fork that is to be
     * exact and still can */
    if ((fork->now.replay_end && (s->planned || fork->now.replay_how != KVI_REPLAY_FROM)) ||
        (fork->now.window_approx && fork->now.taint_pos >= position &&
         kvi_session_is_exact(fork)))
        kvi_state_rebuild_window(fork, &fork->now, kvi_session_default_replay(fork));
    kvi_state_drop_approx_logits(fork, &fork->now);
    kvi_state_cut(fork, &fork->now, position, kvi_session_default_replay(fork));
    fork->op_flags = s->op_flags;
    *out = fork;
    return KVCSA_OK;
}

uint64_t kvi_session_publish(kvcsa_session *s)
{
    return s->now.last ? kvi_prefix_publish(s->pool, s->root, s->now.last) *
                             kvi_session_block_tokens(s)
                       : 0;
}

/* ------------------------------------------------------------------ erase */

static void wipe(void *data, size_t n_bytes)
{
    if (data)
        memset(data, 0, n_bytes);
}

/* Zero what the session alone holds; blocks are zeroed when their last holder lets go. */
static void wipe_session(kvcsa_session *s)
{
    kvi_state *st = &s->now;

    if (st->tail) { /* a sealed one holds the chain: it lets go first */
        kvi_prefix_erase(s->pool, st->tail);
        kvi_block_release(s->pool, st->tail);
        st->tail = NULL;
    }
    if (st->last)
        kvi_prefix_erase(s->pool, st->last);
    for (uint32_t i = 0; i < s->geom.n_pages; i++)
        if (st->pages[i])
            kvi_prefix_erase(s->pool, st->pages[i]);
    if (st->pending)
        kvi_prefix_erase(s->pool, st->pending);
    if (st->logits && atomic_load_explicit(&st->logits->refs, memory_order_acquire) == 1)
        wipe(st->logits->row, s->model->config.vocab_size * sizeof(float));
    if (s->next_logits)
        wipe(s->next_logits->row, s->model->config.vocab_size * sizeof(float));
    wipe(s->queue.data, s->queue.cap * sizeof(int32_t));
    wipe(s->chunk.data, s->chunk.cap * sizeof(int32_t));
    wipe(s->look.data, s->look.cap * sizeof(int32_t));
    kvi_net_wipe(s->net);
    kvi_hosted_wipe(s);
}

void kvi_session_erase(kvcsa_session *s, uint32_t flags)
{
    if (flags & KVCSA_ERASE_SECURE) /* what an append under way has committed, too */
        wipe_session(s);
    kvi_session_rollback(s);
    if (flags & KVCSA_ERASE_SECURE)
        wipe_session(s);
    kvi_state_clear(s, &s->now);
    s->n_view = 0;
    kvi_session_forget_plan(s);
    kvi_session_clear_limits(s);
    s->report = (kvcsa_reuse){0};
    atomic_store_explicit(&s->cancel, 0, memory_order_relaxed);
}
