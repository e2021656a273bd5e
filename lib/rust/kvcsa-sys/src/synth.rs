//! Checkpoints of random weights, for tests and measurements.

use crate::hooks::kvcsa_allocator;
use crate::status::{kvcsa_error, kvcsa_status};
use std::os::raw::{c_char, c_void};

/// Parameters of [`kvcsa_synth_checkpoint`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_synth_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// NULL = libc.
    pub allocator: *const kvcsa_allocator,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Largest payload of a file; 0 = 4 GiB. A tensor is never cut.
    pub shard_bytes: u64,
    /// Not 0 = cancel; may be NULL.
    pub progress:
        Option<unsafe extern "C" fn(user: *mut c_void, n_done_bytes: u64, n_bytes: u64) -> i32>,
    /// Passed to the function as it is.
    pub user: *mut c_void,
}

/// What a checkpoint of random weights holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_synth_info {
    /// Set by the caller.
    pub struct_size: usize,
    /// Payload of all tensors.
    pub total_bytes: u64,
    /// Number of tensors.
    pub n_tensors: u32,
    /// Files that hold them.
    pub n_shards: u32,
}

extern "C" {
    /// Fill params with defaults.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.3
    pub fn kvcsa_synth_params_default(params: *mut kvcsa_synth_params, struct_size: usize);

    /// Write a checkpoint of random weights in the released format, for tests and measurements of any
    /// size: config.json (a copy), tokenizer.json (bytes and made-up words), shards and their index.
    /// The bytes depend on configuration and seed alone. Memory does not grow with the model.
    ///
    /// * `config`: a config.json.
    /// * `directory`: made if it is not there; must not hold a config.json, nor any file that is to be
    ///   written. NULL = write nothing, only fill info.
    /// * `info`: may be NULL.
    /// * **Status**: as kvcsa_model_open for the configuration; ERR_UNSUPPORTED also if no vocabulary
    ///   of its size can be made up; ERR_ARG the directory holds a checkpoint; ERR_IO; ERR_CANCELLED;
    ///   ERR_NOMEM. What was written before a failure is removed.
    /// * **Thread**: any.
    /// * **Source**: docs/formats.md "Synthetic checkpoints".
    /// * **Since**: 0.3
    pub fn kvcsa_synth_checkpoint(
        config: *const c_char,
        directory: *const c_char,
        params: *const kvcsa_synth_params,
        info: *mut kvcsa_synth_info,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}
