//! What a setting that saves bytes does to what the model says.

use crate::hooks::kvcsa_allocator;
use crate::model::kvcsa_model;
use crate::pool::kvcsa_pool;
use crate::session::kvcsa_session_params;
use crate::status::{kvcsa_error, kvcsa_status};
use std::marker::{PhantomData, PhantomPinned};
use std::os::raw::c_void;

/// A comparison.
#[repr(C)]
pub struct kvcsa_compare {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Frozen: 48 bytes. One token.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_compare_row {
    /// Of the token whose successor is predicted.
    pub position: u64,
    /// Sum of p_ref (log p_ref - log p_test), nat; infinity where the test excludes what the
    /// reference does not.
    pub kl: f64,
    /// Log p of the reference's best token less that of its second.
    pub margin: f32,
    /// Largest |logit_ref - logit_test|.
    pub max_difference: f32,
    /// Of the token that follows, nat; NaN where there is none.
    pub ref_log_prob: f32,
    /// Likewise in the test run.
    pub test_log_prob: f32,
    /// Ties to the lower id.
    pub ref_top: i32,
    /// The test run's best token, likewise.
    pub test_top: i32,
    /// Of kvcsa_compare_begin; 0 = the first.
    pub run: u32,
    /// 1 = bit for bit the same logits.
    pub equal: u32,
}

/// Figures of a comparison.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_compare_result {
    /// Set by the caller.
    pub struct_size: usize,
    /// Number of rows.
    pub n_rows: u64,
    /// Bit for bit the same logits.
    pub n_equal_rows: u64,
    /// Nat; all of this section 0 without rows.
    pub kl_mean: f64,
    /// Percentiles by nearest rank.
    pub kl_median: f64,
    /// 99th percentile.
    pub kl_p99: f64,
    /// 99.9th percentile.
    pub kl_p999: f64,
    /// Largest.
    pub kl_max: f64,
    /// Position of the largest.
    pub kl_max_position: u64,
    /// Run of the largest.
    pub kl_max_run: u32,
    /// Largest difference of two logits.
    pub max_difference: f32,
    /// Rows whose best token is another one.
    pub n_flips: u64,
    /// Rows whose margin is above 0.1 nat.
    pub n_margin_01: u64,
    /// Flips among them.
    pub n_flips_01: u64,
    /// Above 1 nat.
    pub n_margin_10: u64,
    /// Flips among them.
    pub n_flips_10: u64,
    /// Rows with a token that follows.
    pub n_text_rows: u64,
    /// Mean of -log p of the token that follows, nat.
    pub ref_nll: f64,
    /// Likewise in the test run.
    pub test_nll: f64,
    /// Greedy runs.
    pub n_greedy: u64,
    /// Of them: with a different token.
    pub n_diverged: u64,
    /// Tokens in front of the first different one, all runs.
    pub n_greedy_same: u64,
    /// Longest possible sum of these.
    pub n_greedy_tokens: u64,
    /// Least of them; UINT64_MAX = none diverged.
    pub first_divergence: u64,
}

extern "C" {
    /// Create an empty comparison.
    ///
    /// * `allocator`: NULL = libc.
    /// * **Status**: ERR_ARG; ERR_NOMEM.
    /// * **Thread**: any.
    /// * **Owner**: the caller owns \*out.
    /// * **Since**: 0.3
    pub fn kvcsa_compare_create(
        allocator: *const kvcsa_allocator,
        out: *mut *mut kvcsa_compare,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Release a comparison.
    ///
    /// * **Thread**: setup.
    /// * **Since**: 0.3
    pub fn kvcsa_compare_release(compare: *mut *mut kvcsa_compare);

    /// Rows added from now on belong to another run (text, prompt); runs are numbered from 0. Without
    /// rows since the last call nothing changes.
    ///
    /// * **Status**: ERR_ARG.
    /// * **Thread**: one.
    /// * **Since**: 0.3
    pub fn kvcsa_compare_begin(compare: *mut kvcsa_compare, err: *mut kvcsa_error) -> kvcsa_status;

    /// Add one row. Sums are made in double; the same logits give exactly 0. The rows may come from
    /// anywhere, also from another engine.
    ///
    /// * `next_token`: that follows in the text; -1 = none.
    /// * `ref`, `test`: f32 \[n_vocab\]; -infinity is a probability of 0.
    /// * **Status**: ERR_ARG NaN or +infinity in the logits, n_vocab 0, next_token out of range;
    ///   ERR_NOMEM.
    /// * **Thread**: one.
    /// * **Since**: 0.3
    pub fn kvcsa_compare_add(
        compare: *mut kvcsa_compare,
        position: u64,
        next_token: i32,
        reference: *const f32,
        test: *const f32,
        n_vocab: u32,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Add a greedy run: two free continuations of one prompt.
    ///
    /// * `ref`, `test`: i32 \[n_tokens\].
    /// * **Status**: ERR_ARG; ERR_NOMEM.
    /// * **Thread**: one.
    /// * **Since**: 0.3
    pub fn kvcsa_compare_add_greedy(
        compare: *mut kvcsa_compare,
        reference: *const i32,
        test: *const i32,
        n_tokens: usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Figures of all rows so far.
    ///
    /// * **Status**: ERR_ARG; ERR_NOMEM.
    /// * **Thread**: one.
    /// * **Since**: 0.3
    pub fn kvcsa_compare_get_result(
        compare: *const kvcsa_compare,
        result: *mut kvcsa_compare_result,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Rows from number `from` on, in the order they were added.
    ///
    /// * `rows`: \[cap\], may be NULL when cap is 0.
    /// * `n_rows`: all rows - from, also when it is more than cap.
    /// * **Status**: ERR_ARG from above the number of rows.
    /// * **Thread**: one.
    /// * **Since**: 0.3
    pub fn kvcsa_compare_get_rows(
        compare: *const kvcsa_compare,
        from: u64,
        rows: *mut kvcsa_compare_row,
        cap: usize,
        n_rows: *mut usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// First divergence of each greedy run: tokens in front of the first different one, or the run's
    /// length.
    ///
    /// * `n_same`: u64 \[cap\], may be NULL when cap is 0.
    /// * `n_greedy`: number of runs, also when it is more than cap.
    /// * **Status**: ERR_ARG.
    /// * **Thread**: one.
    /// * **Since**: 0.3
    pub fn kvcsa_compare_get_greedy(
        compare: *const kvcsa_compare,
        n_same: *mut u64,
        cap: usize,
        n_greedy: *mut usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}

/// A hit finds what this setting has made itself (a timeline that is resumed again and again);
/// without it, what an exact run has made (each hit is the first).
pub const KVCSA_SETTING_CHAIN_HITS: u32 = 1;

/// One way to run a text.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_setting {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// Borrowed.
    pub model: *mut kvcsa_model,
    /// Borrowed.
    pub pool: *mut kvcsa_pool,
    /// NULL = defaults. reuse says how windows are rebuilt at hits; known prefixes of the pool are
    /// not used.
    pub session: *const kvcsa_session_params,
    /// The text comes in appends of so many tokens; 0 = 128. With decoder replay only their last
    /// window has logits.
    pub append_tokens: u64,
    /// 0 = never; else at every multiple the windows are lost, as after a prefix hit, and rebuilt;
    /// a multiple of append_tokens.
    pub hit_tokens: u64,
    /// With keep_last_tokens: in front of every append, entries of all tokens but these are hidden.
    /// Rounded up to spans.
    pub keep_first_tokens: u64,
    /// 0 = all are kept.
    pub keep_last_tokens: u64,
    /// In front of every append all but this part of the spans are hidden: kept are those that
    /// received most attention so far, and one that is not full; 0 or 1 = all are kept.
    pub keep_fraction: f32,
    /// KVCSA_SETTING_\*.
    pub flags: u32,
    /// u64 \[n_hidden, 2\]: tokens begin, end, as kvcsa_session_hide: hidden from the beginning.
    pub hidden: *const u64,
    /// Number of pairs.
    pub n_hidden: usize,
}

extern "C" {
    /// Fill setting with defaults: exact.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.3
    pub fn kvcsa_setting_default(setting: *mut kvcsa_setting, struct_size: usize);
}

/// Copied.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_compare_progress {
    /// Not 0 = cancel.
    pub progress:
        Option<unsafe extern "C" fn(user: *mut c_void, n_done_rows: u64, n_rows: u64) -> i32>,
    /// Passed to the function as it is.
    pub user: *mut c_void,
}

extern "C" {
    /// Run one text under a reference and under other settings, side by side, every run fed the text's
    /// tokens, and add each row of logits that a test run has to its comparison. Every run is a session
    /// of its own that is released at the end. The vocabularies must be the same.
    ///
    /// * `tests`: \[n_tests\].
    /// * `compares`: \[n_tests\]; kvcsa_compare_begin is called on each.
    /// * `tokens`: i32 \[n_tokens\].
    /// * `first`: rows in front of this position are not compared.
    /// * `progress`: may be NULL.
    /// * **Status**: as kvcsa_session_append and kvcsa_pool_step; ERR_CANCELLED; ERR_ARG also if the
    ///   vocabularies differ, or append_tokens of one setting does not divide the largest of all. Rows
    ///   added before a failure stay.
    /// * **Thread**: shared for model and pool; one for each compare.
    /// * **Since**: 0.3
    pub fn kvcsa_compare_text(
        reference: *const kvcsa_setting,
        tests: *const kvcsa_setting,
        compares: *const *mut kvcsa_compare,
        n_tests: usize,
        tokens: *const i32,
        n_tokens: usize,
        first: u64,
        progress: *const kvcsa_compare_progress,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Let the reference and other settings go on with a prompt freely, each taking its likeliest
    /// token, and add the continuations to the comparisons (kvcsa_compare_add_greedy). The image token
    /// is never taken. The prompt is run as kvcsa_compare_text runs it.
    ///
    /// * `n_generate`: tokens of each continuation.
    /// * `generated`: i32 \[n_tests + 1, n_generate\]: the reference's, then the tests'. May be NULL.
    /// * **Status**: as kvcsa_compare_text.
    /// * **Thread**: likewise.
    /// * **Since**: 0.3
    pub fn kvcsa_compare_greedy(
        reference: *const kvcsa_setting,
        tests: *const kvcsa_setting,
        compares: *const *mut kvcsa_compare,
        n_tests: usize,
        tokens: *const i32,
        n_tokens: usize,
        n_generate: usize,
        generated: *mut i32,
        progress: *const kvcsa_compare_progress,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}
