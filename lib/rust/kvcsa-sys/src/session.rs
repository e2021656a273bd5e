//! Sessions: one timeline of tokens on one model in one pool.

use crate::model::kvcsa_model;
use crate::pool::kvcsa_pool;
use crate::status::{kvcsa_error, kvcsa_status};
use std::marker::{PhantomData, PhantomPinned};
use std::os::raw::c_void;

/// A session: one timeline of tokens.
#[repr(C)]
pub struct kvcsa_session {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Reuse exact, decoder replay off: the bits of an undisturbed run.
pub const KVCSA_MODE_EXACT: u32 = 0;
/// Reuse bounded, decoder replay on: the model's own approximations.
pub const KVCSA_MODE_FAST: u32 = 1;

/// Of an append: the session's; of a session: the mode's.
pub const KVCSA_REUSE_DEFAULT: u32 = 0;
/// Compute every token. Windows after a rewind: exact.
pub const KVCSA_REUSE_NONE: u32 = 1;
/// W + (L-1)(W-1) tokens are run again, or a stored window is used: the same bits as computing
/// everything.
pub const KVCSA_REUSE_EXACT: u32 = 2;
/// The last W tokens are run again through all layers: approximate. Blocks made after it stay
/// private to the session.
pub const KVCSA_REUSE_BOUNDED: u32 = 3;

/// The mode's.
pub const KVCSA_DECODER_REPLAY_DEFAULT: u32 = 0;
/// All layers run all tokens.
pub const KVCSA_DECODER_REPLAY_OFF: u32 = 1;
/// Layers from the cut on run the last window of an append only.
pub const KVCSA_DECODER_REPLAY_ON: u32 = 2;

/// Blocks are not published for other sessions.
pub const KVCSA_SESSION_PRIVATE: u32 = 1;
/// No entry is selected: every layer reads its window alone; approximate, so known prefixes are not
/// used.
pub const KVCSA_SESSION_WINDOW_ONLY: u32 = 2;
/// Count what each span of tokens contributes to attention, for kvcsa_session_get_mass; does not
/// change results.
pub const KVCSA_SESSION_TRACK_MASS: u32 = 4;
/// The host computes ([`kvcsa_chunk_begin`](crate::kvcsa_chunk_begin)), kvcsa_pool_step does not;
/// for models without weights, and for nothing else. Since 0.4.
pub const KVCSA_SESSION_CACHE_ONLY: u32 = 8;

/// Parameters of [`kvcsa_session_create`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_session_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// Most rows computed at once, 0 = 128; does not change results.
    pub chunk_tokens: u32,
    /// KVCSA_SESSION_\*.
    pub flags: u32,
    /// Sessions of different salts never share; 0 is one of them.
    pub salt: u64,
    /// KVCSA_MODE_\*.
    pub mode: u32,
    /// KVCSA_REUSE_\*.
    pub reuse: u32,
    /// KVCSA_DECODER_REPLAY_\*: layers from the cut on run the last window of an append only;
    /// approximate.
    pub decoder_replay: u32,
    /// 0 = the first layer above the last that owns entries, which is the least allowed.
    pub decoder_cut_layer: u32,
    /// A rewind by so many tokens is free; at most 4096. Costs their window rows.
    pub window_slack_tokens: u32,
    /// Keep a copy of the windows beside the block that ends at every multiple of this (a multiple
    /// of block_tokens), so that a hit there needs no replay; 0 = none. Costs one window a copy.
    pub window_store_tokens: u32,
    /// Fewer entries are selected than the plan says; 0 = the plan's. Approximate, so known
    /// prefixes are not used. Since 0.3.
    pub select_entries: u32,
    /// Fewer candidate blocks; 0 = the plan's.
    pub candidate_blocks: u32,
}

/// What became of the tokens of an append or a sync.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_reuse {
    /// Set by the caller.
    pub struct_size: usize,
    /// Held before and still held.
    pub n_kept: u64,
    /// Taken from a known prefix.
    pub n_adopted: u64,
    /// Of those held: to be run again for windows or logits (rows of layer 0).
    pub n_replay: u64,
    /// To be computed; n_kept + n_adopted + n_compute is the length.
    pub n_compute: u64,
    /// KVCSA_REUSE_\*, in force.
    pub how: u32,
    /// KVCSA_REASON_\*: why n_compute is not less.
    pub reason: u32,
}

/// One row of logits: f32 \[n_vocab\], valid during the call. `position` is that of the token whose
/// successor they predict.
pub type kvcsa_logits_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, position: u64, logits: *const f32, n_vocab: u32),
>;

/// Of the last token only; kvcsa_session_get_logits.
pub const KVCSA_LOGITS_LAST: u32 = 0;
/// Of every token, to on_logits in order.
pub const KVCSA_LOGITS_ALL: u32 = 1;
/// Of the tokens at the offsets in `rows`, and the last.
pub const KVCSA_LOGITS_ROWS: u32 = 2;
/// None at all, not even the last.
pub const KVCSA_LOGITS_NONE: u32 = 3;

/// Parameters of [`kvcsa_session_append`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_append_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// Called by step, from the stepping thread; required for ALL and ROWS.
    pub on_logits: kvcsa_logits_fn,
    /// Passed to the function as it is.
    pub user: *mut c_void,
    /// u32 \[n_rows\], offsets into this append, ascending; copied.
    pub rows: *const u32,
    /// Number of rows.
    pub n_rows: u32,
    /// KVCSA_LOGITS_\*.
    pub logits: u32,
    /// KVCSA_REUSE_\*. With LOGITS_ALL or ROWS all rows are computed.
    pub reuse: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Called between the layers of a chunk. Return 0 to go on, anything else to cancel what is being
/// computed.
pub type kvcsa_progress_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        session: *mut kvcsa_session,
        n_done_tokens: u64,
        n_queued_tokens: u64,
    ) -> i32,
>;

/// Parameters of [`kvcsa_pool_step`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_step_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// May be NULL.
    pub progress: kvcsa_progress_fn,
    /// Passed to the function as it is.
    pub user: *mut c_void,
    /// Stop before computing more rows than this over all sessions; 0 = until all queues are empty.
    pub max_rows: u64,
    /// Start no further chunk after so many nanoseconds from the call; 0 = none.
    pub deadline_ns: u64,
}

/// What a step did for one session.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_step_result {
    /// Tokens committed by this call.
    pub n_computed: u64,
    /// Tokens still waiting.
    pub n_queued: u64,
    /// Of this session; status KVCSA_OK if none.
    pub error: kvcsa_error,
}

/// Nothing: they read their window only.
pub const KVCSA_LAYERS_WINDOW: u32 = 0;
/// Make entries, and select from all of them.
pub const KVCSA_LAYERS_FULL: u32 = 1;
/// Select from the entries of another layer.
pub const KVCSA_LAYERS_REINDEX: u32 = 2;
/// Use another layer's selection.
pub const KVCSA_LAYERS_REUSE: u32 = 3;

/// Number of `KVCSA_LAYERS_*`.
pub const KVCSA_N_LAYER_GROUPS: usize = 4;

/// Frozen: 128 bytes. What layers did, counted exactly; rows of a cancelled or failed chunk count
/// too.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_work {
    /// Rows that ran through attention and feed-forward.
    pub n_rows: u64,
    /// Rows that came in only to rebuild windows; of these, some run no further than their window
    /// row.
    pub n_replayed_rows: u64,
    /// Rows for which keys were scored and the best selected; a row that sees no more entries than
    /// it may select needs none.
    pub n_selections: u64,
    /// Index keys that were scored.
    pub n_keys_scored: u64,
    /// Published by the source, or searched by a consumer; of rows that are scored.
    pub n_candidate_blocks: u64,
    /// Selected entries that attention read.
    pub n_entries_read: u64,
    /// Window rows that attention read.
    pub n_window_rows_read: u64,
    /// Entries that were written.
    pub n_entries_written: u64,
    /// Window rows that were written.
    pub n_window_rows_written: u64,
    /// Cache blocks whose keys or entries a row read: each counts once a row and part (index,
    /// main).
    pub n_blocks_touched: u64,
    /// Routed: rows x experts a token.
    pub n_experts: u64,
    /// Keys, entries, window rows.
    pub read_bytes: u64,
    /// Of these: keys.
    pub index_read_bytes: u64,
    /// Entries, keys, window rows, raw rows.
    pub written_bytes: u64,
    /// Must be 0.
    pub reserved: [u64; 2],
}

/// Figures of a session.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_session_stats {
    /// Set by the caller.
    pub struct_size: usize,
    /// Committed.
    pub n_tokens: u64,
    /// Tokens that wait for a step.
    pub n_queued: u64,
    /// Compressed entries of all owners.
    pub n_entries: u64,
    /// Entries and index keys in use.
    pub entry_bytes: u64,
    /// Number of blocks.
    pub n_blocks: u64,
    /// Blocks in use, shared ones included.
    pub block_bytes: u64,
    /// Window rows, shared ones included.
    pub window_bytes: u64,
    /// Scratch of a step; outside the pool's budget.
    pub workspace_bytes: u64,
    /// Token rows computed since creation, cancelled ones included.
    pub n_computed_rows: u64,
    /// Of block_bytes: held by somebody else too (another session or the prefix tree).
    pub shared_bytes: u64,
    /// Rows of layer 0 run again since creation.
    pub n_replayed_rows: u64,
    /// Since creation.
    pub n_adopted_tokens: u64,
    /// Rows of layer 0 that the next step will run again.
    pub n_replay: u64,
    /// Entries below this position are those of an undisturbed run.
    pub n_exact_tokens: u64,
    /// Of the last kvcsa_pool_step that the session took part in, by KVCSA_LAYERS_\*. Since 0.3.
    pub step: [kvcsa_work; KVCSA_N_LAYER_GROUPS],
    /// Since creation.
    pub total: [kvcsa_work; KVCSA_N_LAYER_GROUPS],
}

extern "C" {
    /// Fill params with defaults.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_session_params_default(params: *mut kvcsa_session_params, struct_size: usize);

    /// Create an empty session. It takes memory from the pool as tokens are appended: blocks, and
    /// window rows until the window is full.
    ///
    /// * **Status**: ERR_ARG; ERR_UNSUPPORTED plan-only model, unknown flag, mode or reuse; ERR_NOMEM.
    /// * **Thread**: any.
    /// * **Owner**: the caller owns \*out; it keeps pool and model.
    /// * **Since**: 0.1
    pub fn kvcsa_session_create(
        pool: *mut kvcsa_pool,
        model: *mut kvcsa_model,
        params: *const kvcsa_session_params,
        out: *mut *mut kvcsa_session,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Release a session. Blocks that nobody else holds go back to the pool; published ones stay in the
    /// prefix tree until room is wanted.
    ///
    /// * **Thread**: setup.
    /// * **Since**: 0.1
    pub fn kvcsa_session_release(session: *mut *mut kvcsa_session);

    /// Fill params with defaults.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_append_params_default(params: *mut kvcsa_append_params, struct_size: usize);

    /// Queue tokens; nothing is computed before kvcsa_pool_step. Room for them is reserved in the
    /// pool's budget here, so that a step does not run out of it half way; prefixes that nobody uses
    /// are evicted for it first. If the session's tokens and these begin like a known prefix, its
    /// blocks are held here and used by the step instead of computing (kvcsa_session_get_reuse).
    ///
    /// * `tokens`: i32 \[n_tokens\], ids in 0..vocab-1, not the image token. Copied.
    /// * `out_pos`: length after all queued tokens, in tokens. May be NULL.
    /// * **Status**: ERR_ARG id out of range, rows not ascending; ERR_LIMIT beyond max_context_tokens;
    ///   ERR_FULL budget; ERR_BUSY; ERR_NOMEM. In every case the session and its queue are unchanged.
    /// * **Thread**: one (a second caller gets ERR_BUSY).
    /// * **Since**: 0.1
    pub fn kvcsa_session_append(
        session: *mut kvcsa_session,
        tokens: *const i32,
        n_tokens: usize,
        params: *const kvcsa_append_params,
        out_pos: *mut u64,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Fill params with defaults.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_step_params_default(params: *mut kvcsa_step_params, struct_size: usize);

    /// Compute queued tokens of several sessions of one pool; rows of all of them go through the matrix
    /// kernels together. Works in chunks; a chunk is committed whole or not at all. Bits do not depend
    /// on chunk sizes, thread counts or on which sessions are stepped together. A session without a
    /// queue whose windows or logits are to be rebuilt (after a rewind, fork, sync or load) gets them
    /// here.
    ///
    /// A session that is cancelled (progress callback or kvcsa_session_cancel) drops its queue and goes
    /// back to where its oldest unfinished append began: tokens, cache and logits are as if it had not
    /// been made. A session that fails otherwise (ERR_NOMEM) keeps the chunks that were committed and
    /// its queue, so that the call can be repeated. The others go on.
    ///
    /// * `sessions`: \[n_sessions\], all of this pool, each at most once.
    /// * `results`: \[n_sessions\], may be NULL.
    /// * **Status**: the first status of a session that is not OK, else OK; ERR_ARG.
    /// * **Thread**: shared for the pool, one for each session (another caller gets ERR_BUSY for that
    ///   session).
    /// * **Since**: 0.1
    pub fn kvcsa_pool_step(
        pool: *mut kvcsa_pool,
        sessions: *const *mut kvcsa_session,
        n_sessions: usize,
        params: *const kvcsa_step_params,
        results: *mut kvcsa_step_result,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Ask a running step to stop computing this session; without one, the next step drops the
    /// session's queue. Without a queue the request is forgotten when the next append is made, so that
    /// one which comes too late does not hit what follows.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_session_cancel(session: *mut kvcsa_session);

    /// Logits of the last committed token: f32 \[vocab\].
    ///
    /// * **Status**: ERR_ARG no token yet, last append asked for none, to be rebuilt by a step (after a
    ///   rewind, fork to an earlier position, or load), or n_vocab not the model's; ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.1
    pub fn kvcsa_session_get_logits(
        session: *mut kvcsa_session,
        logits: *mut f32,
        n_vocab: u32,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Committed tokens; 0 for NULL.
    ///
    /// * **Thread**: one.
    /// * **Since**: 0.1
    pub fn kvcsa_session_length(session: *const kvcsa_session) -> u64;

    /// Committed tokens from position `from` on.
    ///
    /// * `tokens`: i32 \[cap\], may be NULL when cap is 0.
    /// * `n_tokens`: length - from, also when it is more than cap.
    /// * **Status**: ERR_ARG from above the length; ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.1
    pub fn kvcsa_session_get_tokens(
        session: *mut kvcsa_session,
        from: u64,
        tokens: *mut i32,
        cap: usize,
        n_tokens: *mut usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Figures of a session.
    ///
    /// * **Status**: ERR_ARG; ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.1
    pub fn kvcsa_session_get_stats(
        session: *mut kvcsa_session,
        stats: *mut kvcsa_session_stats,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// What one layer did: of the last step, and since creation.
    ///
    /// * `layer`: 0..n_layers-1.
    /// * `step`, `total`: either may be NULL.
    /// * **Status**: ERR_ARG; ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.3
    pub fn kvcsa_session_layer_work(
        session: *mut kvcsa_session,
        layer: u32,
        step: *mut kvcsa_work,
        total: *mut kvcsa_work,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Hide the entries of tokens \[begin, end) from selection, or show them again: rows computed from
    /// now on read them no more, as if they had been dropped from the cache. Windows stay, and so do
    /// logits that are there. Entries made while something is hidden are approximate, and private to
    /// the session, and known prefixes are not used. A fork hides what the session hides; a snapshot
    /// does not record it.
    ///
    /// * `begin`, `end`: multiples of kvcsa_model_info.span_tokens; they may lie beyond the length. end
    ///   = UINT64_MAX: all from begin on (a multiple of span_tokens too).
    /// * `hidden`: 1 = hide, 0 = show.
    /// * **Status**: ERR_ARG, also while tokens are queued; ERR_NOMEM; ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.3
    pub fn kvcsa_session_hide(
        session: *mut kvcsa_session,
        begin: u64,
        end: u64,
        hidden: i32,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Attention that entries of each span of span_tokens tokens received: probabilities, summed over
    /// heads, layers and rows computed since creation, a load or the last reset (a fork begins at
    /// zero). Rows that were replayed count again; spans that a rewind drops begin at zero. What a
    /// row's window and sink received is not in it.
    ///
    /// * `mass`: f64 \[cap\], may be NULL when cap is 0.
    /// * `n_spans`: spans of the session's length, also when it is more than cap.
    /// * `reset`: 1 = begin again at zero.
    /// * **Status**: ERR_ARG the session does not track it (KVCSA_SESSION_TRACK_MASS); ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.3
    pub fn kvcsa_session_get_mass(
        session: *mut kvcsa_session,
        mass: *mut f64,
        cap: usize,
        n_spans: *mut usize,
        reset: i32,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Report on the last append or sync: what is kept, adopted, run again and computed, and why not
    /// less. Numbers are those of the whole call, whether its steps have run or not.
    ///
    /// * **Status**: ERR_ARG; ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.2
    pub fn kvcsa_session_get_reuse(
        session: *mut kvcsa_session,
        reuse: *mut kvcsa_reuse,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// How many of `tokens` the session holds already, from the first on (committed tokens only).
    ///
    /// * `tokens`: i32 \[n_tokens\].
    /// * **Status**: ERR_ARG; ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.2
    pub fn kvcsa_session_common_prefix(
        session: *mut kvcsa_session,
        tokens: *const i32,
        n_tokens: usize,
        n_common: *mut usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// A second session that holds the first `position` tokens of this one. Blocks are shared, no byte
    /// of the cache is copied; what differs later is copied when it is written. At the end of the
    /// session (`position` = its length) the fork has windows and logits and costs a few hundred bytes;
    /// at an earlier position, or where an exact fork leaves a session with approximate windows, they
    /// are rebuilt by the next step as after a rewind.
    ///
    /// * `position`: 0..length.
    /// * `params`: of the new session; NULL = those of this one. window_slack_tokens and salt must be
    ///   this session's.
    /// * **Status**: ERR_ARG position above the length, tokens are queued, other slack or salt;
    ///   ERR_UNSUPPORTED; ERR_NOMEM; ERR_BUSY. The session is unchanged.
    /// * **Thread**: one.
    /// * **Owner**: the caller owns \*out.
    /// * **Since**: 0.2
    pub fn kvcsa_session_fork(
        session: *mut kvcsa_session,
        position: u64,
        params: *const kvcsa_session_params,
        out: *mut *mut kvcsa_session,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Go back to an earlier position. Nothing is computed or copied here. A rewind by at most
    /// window_slack_tokens keeps right windows, if all those tokens were computed by this session
    /// behind its last replay; after a longer one the next step rebuilds them first (exact, or bounded
    /// where the session's reuse is bounded), from the nearest stored window if there is one. Logits
    /// are rebuilt by the next step too.
    ///
    /// * `position`: 0..length.
    /// * **Status**: ERR_ARG position above the length, or tokens are queued; ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.2
    pub fn kvcsa_session_rewind(
        session: *mut kvcsa_session,
        position: u64,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Make the session hold exactly `tokens`: what is common stays, the rest is dropped, adopted from
    /// known prefixes or queued for the next step, whichever is least work.
    ///
    /// * `tokens`: i32 \[n_tokens\], the whole list; as for kvcsa_session_append.
    /// * `params`: of the queued rest; NULL = defaults.
    /// * `reuse`: as kvcsa_session_get_reuse. May be NULL.
    /// * **Status**: as kvcsa_session_append; ERR_ARG also if tokens are queued. The session is
    ///   unchanged in every case of failure.
    /// * **Thread**: one.
    /// * **Since**: 0.2
    pub fn kvcsa_session_sync(
        session: *mut kvcsa_session,
        tokens: *const i32,
        n_tokens: usize,
        params: *const kvcsa_append_params,
        reuse: *mut kvcsa_reuse,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}

/// Overwrite tokens, windows, logits, scratch and every block that nobody else holds with zeros,
/// and take its blocks out of the prefix tree; blocks that others hold are overwritten when they
/// let go, the scratch of steps that it took together with others by theirs.
pub const KVCSA_ERASE_SECURE: u32 = 1;

extern "C" {
    /// Drop all tokens and the queue; the session is as new.
    ///
    /// * **Status**: ERR_ARG; ERR_UNSUPPORTED unknown flag; ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.2
    pub fn kvcsa_session_erase(
        session: *mut kvcsa_session,
        flags: u32,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}

/// Bytes of n_sessions sessions of n_tokens each.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_estimate {
    /// Set by the caller.
    pub struct_size: usize,
    /// Blocks; what is shared counts once.
    pub block_bytes: u64,
    /// Window pages and pending rows.
    pub window_bytes: u64,
    /// Sum: what the pool's budget must hold.
    pub used_bytes: u64,
    /// Memory that the pool takes from the allocator for them.
    pub slab_bytes: u64,
    /// And for what describes them.
    pub record_bytes: u64,
    /// Number of blocks.
    pub n_blocks: u64,
}

extern "C" {
    /// Bytes that sessions will need, before anything is allocated.
    ///
    /// * `params`: of the sessions; NULL = defaults.
    /// * `n_shared_tokens`: the first so many tokens are the same in all sessions, and published.
    /// * **Status**: ERR_ARG; ERR_LIMIT n_tokens above max_context_tokens or the sum is above 2^63.
    /// * **Thread**: any.
    /// * **Since**: 0.2
    pub fn kvcsa_model_estimate(
        model: *const kvcsa_model,
        params: *const kvcsa_session_params,
        n_tokens: u64,
        n_sessions: u64,
        n_shared_tokens: u64,
        estimate: *mut kvcsa_estimate,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}
