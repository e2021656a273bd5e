//! Choosing a token.

use crate::session::kvcsa_session;
use crate::status::{kvcsa_error, kvcsa_status};

/// How a token is chosen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_sampler_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// Seed of the random numbers.
    pub seed: u64,
    /// 0 = greedy (the default).
    pub temperature: f32,
    /// 0 or 1 = off.
    pub top_p: f32,
    /// 0 = off: drop tokens less likely than min_p x the likeliest.
    pub min_p: f32,
    /// 0 = off.
    pub top_k: u32,
}

extern "C" {
    /// Fill params with defaults: greedy.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_sampler_params_default(params: *mut kvcsa_sampler_params, struct_size: usize);

    /// Choose a token from one row of logits. Order: top-k, temperature, min-p, top-p. Ties go to the
    /// lower id. The random number is a function of (seed, position) alone, so a repeated, forked or
    /// resumed run draws the same.
    ///
    /// * `logits`: f32 \[n_vocab\].
    /// * **Status**: ERR_ARG NaN in logits, negative or non-finite parameter; ERR_NOMEM.
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_sample_logits(
        logits: *const f32,
        n_vocab: u32,
        position: u64,
        params: *const kvcsa_sampler_params,
        token: *mut i32,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// kvcsa_sample_logits on the session's last logits; position is the session's length.
    ///
    /// * **Status**: as kvcsa_sample_logits and kvcsa_session_get_logits.
    /// * **Thread**: one.
    /// * **Since**: 0.1
    pub fn kvcsa_session_sample(
        session: *mut kvcsa_session,
        params: *const kvcsa_sampler_params,
        token: *mut i32,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}
