//! Prefixes that sessions share.

use crate::model::kvcsa_model;
use crate::pool::kvcsa_pool;
use crate::session::kvcsa_session;
use crate::status::{kvcsa_error, kvcsa_status};

extern "C" {
    /// Length of the longest known prefix of `tokens`. It may end inside a block.
    ///
    /// * **Status**: ERR_ARG.
    /// * **Thread**: shared.
    /// * **Since**: 0.2
    pub fn kvcsa_prefix_match(
        pool: *mut kvcsa_pool,
        model: *const kvcsa_model,
        salt: u64,
        tokens: *const i32,
        n_tokens: usize,
        n_matched: *mut usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Publish the full blocks of a session that are not published (it was private, or they were
    /// forgotten). Approximate blocks never are.
    ///
    /// * `n_published`: tokens of the session that can be found by prefix afterwards. May be NULL.
    /// * **Status**: ERR_ARG; ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.2
    pub fn kvcsa_prefix_publish(
        session: *mut kvcsa_session,
        n_published: *mut u64,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Keep the full blocks that `tokens` begin with from being evicted, until they are unpinned as
    /// often as pinned. Pinned bytes still count in the budget: what host_bytes holds of them comes
    /// back first, as far as there is room.
    ///
    /// * `n_pinned`: tokens whose blocks are pinned: the known prefix in whole blocks; 0 = none is
    ///   known. Unpin with the first n_pinned tokens. May be NULL.
    /// * **Status**: ERR_ARG.
    /// * **Thread**: shared.
    /// * **Since**: 0.2
    pub fn kvcsa_prefix_pin(
        pool: *mut kvcsa_pool,
        model: *const kvcsa_model,
        salt: u64,
        tokens: *const i32,
        n_tokens: usize,
        n_pinned: *mut usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Undo one kvcsa_prefix_pin.
    ///
    /// * **Status**: ERR_ARG the known prefix of these tokens is not pinned at n_tokens.
    /// * **Thread**: shared.
    /// * **Since**: 0.2
    pub fn kvcsa_prefix_unpin(
        pool: *mut kvcsa_pool,
        model: *const kvcsa_model,
        salt: u64,
        tokens: *const i32,
        n_tokens: usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Take out of the prefix tree everything that begins with `tokens`, and the blocks that lead to it
    /// as far as no other known prefix uses them. Pins on them are dropped. Sessions keep what they
    /// hold.
    ///
    /// * `model`: NULL = every prefix of the pool (tokens must be NULL too).
    /// * `tokens`: NULL with n_tokens 0 = every prefix of model and salt.
    /// * `n_freed_bytes`: of the budget, host_bytes not among them. May be NULL.
    /// * **Status**: ERR_ARG.
    /// * **Thread**: shared.
    /// * **Since**: 0.2
    pub fn kvcsa_prefix_forget(
        pool: *mut kvcsa_pool,
        model: *const kvcsa_model,
        salt: u64,
        tokens: *const i32,
        n_tokens: usize,
        n_freed_bytes: *mut u64,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}
