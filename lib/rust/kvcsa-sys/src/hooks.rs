//! Functions that the library calls: allocator, log, executor, trace.

use std::os::raw::{c_char, c_void};

/// Both functions or neither; copied when the handle is created.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_allocator {
    /// Align is a power of two, at most 4096; NULL = out of memory.
    pub alloc:
        Option<unsafe extern "C" fn(user: *mut c_void, size: usize, align: usize) -> *mut c_void>,
    /// Size and align are as given to alloc.
    pub free: Option<
        unsafe extern "C" fn(user: *mut c_void, ptr: *mut c_void, size: usize, align: usize),
    >,
    /// Passed to the function as it is.
    pub user: *mut c_void,
}

/// Something failed.
pub const KVCSA_LOG_ERROR: i32 = 0;
/// Something is not as it was asked for.
pub const KVCSA_LOG_WARN: i32 = 1;
/// What was chosen, and why.
pub const KVCSA_LOG_INFO: i32 = 2;
/// For whoever looks for a fault.
pub const KVCSA_LOG_DEBUG: i32 = 3;

/// Copied; without it the library is silent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_log {
    /// Takes what there is to write.
    pub write: Option<unsafe extern "C" fn(user: *mut c_void, level: i32, text: *const c_char)>,
    /// Passed to the function as it is.
    pub user: *mut c_void,
}

/// The host's threads; copied.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_executor {
    /// Calls task(arg, i) once for every i in 0..n-1, from any threads, in any order or at the same
    /// time, and returns when all have returned. Results do not depend on how.
    pub run: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            task: Option<unsafe extern "C" fn(arg: *mut c_void, i: u32)>,
            arg: *mut c_void,
            n: u32,
        ),
    >,
    /// Passed to the function as it is.
    pub user: *mut c_void,
    /// How many tasks it can run at once; 0 = 1.
    pub width: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// n_tokens of a known prefix are used instead of computed.
pub const KVCSA_TRACE_HIT: u32 = 1;
/// n_tokens are to be computed; reason says why.
pub const KVCSA_TRACE_MISS: u32 = 2;
/// A sealed block can be found by other sessions from now on.
pub const KVCSA_TRACE_PUBLISH: u32 = 3;
/// A published block went; reason says why.
pub const KVCSA_TRACE_EVICT: u32 = 4;
/// n_tokens are run again to rebuild windows.
pub const KVCSA_TRACE_REPLAY: u32 = 5;
/// n_bytes were written.
pub const KVCSA_TRACE_SAVE: u32 = 6;
/// n_bytes were read.
pub const KVCSA_TRACE_LOAD: u32 = 7;
/// A published block went from a device to the host's memory.
pub const KVCSA_TRACE_MOVE_OUT: u32 = 8;
/// And came back.
pub const KVCSA_TRACE_MOVE_IN: u32 = 9;

/// No reason: nothing has to be computed.
pub const KVCSA_REASON_NONE: u32 = 0;
/// Reuse was switched off.
pub const KVCSA_REASON_OFF: u32 = 1;
/// No known prefix begins like this.
pub const KVCSA_REASON_UNKNOWN: u32 = 2;
/// The known prefix goes on with other tokens.
pub const KVCSA_REASON_DIVERGED: u32 = 3;
/// The known prefix ends here.
pub const KVCSA_REASON_ENDED: u32 = 4;
/// Logits of these rows were asked for.
pub const KVCSA_REASON_LOGITS: u32 = 5;
/// Rebuilding the windows would cost more than it saves.
pub const KVCSA_REASON_SHORT: u32 = 6;
/// The session's blocks are approximate, or not published.
pub const KVCSA_REASON_PRIVATE: u32 = 7;
/// Room was wanted for something else; of a MISS: there is none to bring the rest of the known
/// prefix back from host_bytes.
pub const KVCSA_REASON_BUDGET: u32 = 16;
/// kvcsa_pool_trim.
pub const KVCSA_REASON_TRIM: u32 = 17;
/// kvcsa_pool_resize.
pub const KVCSA_REASON_RESIZE: u32 = 18;
/// kvcsa_prefix_forget.
pub const KVCSA_REASON_FORGOTTEN: u32 = 19;
/// kvcsa_session_erase.
pub const KVCSA_REASON_ERASED: u32 = 20;

/// What happened to tokens or blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_trace_event {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// First token concerned.
    pub position: u64,
    /// Number of tokens.
    pub n_tokens: u64,
    /// Number of bytes.
    pub n_bytes: u64,
    /// KVCSA_TRACE_\*.
    pub kind: u32,
    /// KVCSA_REASON_\*.
    pub reason: u32,
}

/// Copied. May be called while the pool is locked.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_trace {
    /// Takes one event.
    pub event: Option<unsafe extern "C" fn(user: *mut c_void, event: *const kvcsa_trace_event)>,
    /// Passed to the function as it is.
    pub user: *mut c_void,
}
