//! Status values, the error record, the version.

use std::os::raw::c_char;

/// `KVCSA_OK` or a `KVCSA_ERR_*`; other values may come from a newer library.
pub type kvcsa_status = i32;

/// Success.
pub const KVCSA_OK: kvcsa_status = 0;
/// Our bug; please report.
pub const KVCSA_ERR_INTERNAL: kvcsa_status = -1;
/// The call is wrong: fix the caller.
pub const KVCSA_ERR_ARG: kvcsa_status = -2;
/// An allocator returned NULL.
pub const KVCSA_ERR_NOMEM: kvcsa_status = -3;
/// The pool's budget has no room.
pub const KVCSA_ERR_FULL: kvcsa_status = -4;
/// Valid, but not by this version or backend.
pub const KVCSA_ERR_UNSUPPORTED: kvcsa_status = -5;
/// Device failure; detail holds the native code.
pub const KVCSA_ERR_BACKEND: kvcsa_status = -6;
/// A file is not what it claims to be.
pub const KVCSA_ERR_FORMAT: kvcsa_status = -7;
/// Detail holds errno.
pub const KVCSA_ERR_IO: kvcsa_status = -8;
/// Another thread is in this session.
pub const KVCSA_ERR_BUSY: kvcsa_status = -9;
/// You asked for it.
pub const KVCSA_ERR_CANCELLED: kvcsa_status = -10;
/// Fingerprint, plan or numerics of another model.
pub const KVCSA_ERR_MISMATCH: kvcsa_status = -11;
/// Checksum.
pub const KVCSA_ERR_CORRUPT: kvcsa_status = -12;
/// Context or position limit of the model.
pub const KVCSA_ERR_LIMIT: kvcsa_status = -13;

/// Frozen: 256 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_error {
    /// A `KVCSA_*` status.
    pub status: i32,
    /// `errno`, or the device's own code; else 0.
    pub detail: i32,
    /// UTF-8, one line, terminated.
    pub text: [c_char; 248],
}

extern "C" {
    /// Name of a status, for example "KVCSA_ERR_FULL"; "KVCSA_ERR_?" for an unknown value.
    ///
    /// * **Thread**: any.
    /// * **Owner**: static string.
    /// * **Since**: 0.1
    pub fn kvcsa_status_name(status: kvcsa_status) -> *const c_char;

    /// Version of the library that is running: major \* 10000 + minor \* 100 + patch. Compare with
    /// KVCSA_VERSION_NUMBER.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_version_number() -> u32;

    /// Version of the library that is running, for example "0.1.0".
    ///
    /// * **Thread**: any.
    /// * **Owner**: static string.
    /// * **Since**: 0.1
    pub fn kvcsa_version_string() -> *const c_char;
}
