//! Tokens into text that can be shown at once.

use crate::model::kvcsa_model;
use crate::status::{kvcsa_error, kvcsa_status};
use std::marker::{PhantomData, PhantomPinned};
use std::os::raw::c_char;

/// Turns tokens into text.
#[repr(C)]
pub struct kvcsa_text_stream {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

extern "C" {
    /// Turns generated tokens into text that can be shown at once: never half a UTF-8 character, never
    /// the beginning of a stop string that may still be completed, nothing at or after a stop string.
    /// Invalid bytes become U+FFFD.
    ///
    /// * `stops`: n_stops terminated UTF-8 strings, copied; may be NULL when n_stops is 0.
    /// * **Status**: ERR_ARG NULL or empty stop string; ERR_UNSUPPORTED plan-only model; ERR_NOMEM.
    /// * **Thread**: any.
    /// * **Owner**: the caller owns \*out; it keeps the model.
    /// * **Since**: 0.1
    pub fn kvcsa_text_stream_create(
        model: *mut kvcsa_model,
        stops: *const *const c_char,
        n_stops: usize,
        out: *mut *mut kvcsa_text_stream,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Add a token; special tokens add no text.
    ///
    /// * `text`: set to text that is ready, owned by the stream until the next call; terminated; may be
    ///   "".
    /// * `stopped`: index of the stop string that was met, -1 if none; later pushes give "".
    /// * **Status**: ERR_ARG; ERR_NOMEM.
    /// * **Thread**: one.
    /// * **Since**: 0.1
    pub fn kvcsa_text_stream_push(
        stream: *mut kvcsa_text_stream,
        token: i32,
        text: *mut *const c_char,
        n_bytes: *mut usize,
        stopped: *mut i32,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// End of generation: gives what was held back.
    ///
    /// * **Status**: ERR_ARG; ERR_NOMEM.
    /// * **Thread**: one.
    /// * **Since**: 0.1
    pub fn kvcsa_text_stream_finish(
        stream: *mut kvcsa_text_stream,
        text: *mut *const c_char,
        n_bytes: *mut usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Release a text stream.
    ///
    /// * **Thread**: setup.
    /// * **Since**: 0.1
    pub fn kvcsa_text_stream_release(stream: *mut *mut kvcsa_text_stream);
}
