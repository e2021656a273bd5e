//! Functions of the host that the library calls, and how a panic in one gets past the C code.
//!
//! A panic must not unwind through C. Each function runs inside `catch_unwind`; what it throws is
//! kept in a slot of the handle, a step that is running is cancelled, and the call that was made
//! from Rust lets the panic go on when the library has returned.

use crate::raw::lock;
use kvcsa_sys as sys;
use std::alloc::{GlobalAlloc, Layout};
use std::any::Any;
use std::ffi::CStr;
use std::fmt;
use std::mem::{forget, size_of, zeroed};
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

c_enum! {
    /// How important a message is.
    pub enum Level: i32 {
        /// Something failed.
        Error = KVCSA_LOG_ERROR,
        /// Something is not as it was asked for.
        Warn = KVCSA_LOG_WARN,
        /// What was chosen, and why.
        Info = KVCSA_LOG_INFO,
        /// For whoever looks for a fault.
        Debug = KVCSA_LOG_DEBUG,
    }
}

c_enum! {
    /// What a [`TraceEvent`] tells.
    pub enum TraceKind: u32 {
        /// n_tokens of a known prefix are used instead of computed.
        Hit = KVCSA_TRACE_HIT,
        /// n_tokens are to be computed; reason says why.
        Miss = KVCSA_TRACE_MISS,
        /// A sealed block can be found by other sessions from now on.
        Publish = KVCSA_TRACE_PUBLISH,
        /// A published block went; reason says why.
        Evict = KVCSA_TRACE_EVICT,
        /// n_tokens are run again to rebuild windows.
        Replay = KVCSA_TRACE_REPLAY,
        /// n_bytes were written.
        Save = KVCSA_TRACE_SAVE,
        /// n_bytes were read.
        Load = KVCSA_TRACE_LOAD,
        /// A published block went from a device to the host's memory.
        MoveOut = KVCSA_TRACE_MOVE_OUT,
        /// It came back.
        MoveIn = KVCSA_TRACE_MOVE_IN,
    }
}

c_enum! {
    /// Why a token has to be computed, or why a block went.
    pub enum Reason: u32 {
        /// No reason: nothing has to be computed.
        None = KVCSA_REASON_NONE,
        /// Reuse was switched off.
        Off = KVCSA_REASON_OFF,
        /// No known prefix begins like this.
        Unknown = KVCSA_REASON_UNKNOWN,
        /// The known prefix goes on with other tokens.
        Diverged = KVCSA_REASON_DIVERGED,
        /// The known prefix ends here.
        Ended = KVCSA_REASON_ENDED,
        /// Logits of these rows were asked for.
        Logits = KVCSA_REASON_LOGITS,
        /// Rebuilding the windows would cost more than it saves.
        Short = KVCSA_REASON_SHORT,
        /// The session's blocks are approximate, or not published.
        Private = KVCSA_REASON_PRIVATE,
        /// Room was wanted for something else; of a miss: there is none to bring the rest of the
        /// known prefix back from the host.
        Budget = KVCSA_REASON_BUDGET,
        /// A trim of the pool.
        Trim = KVCSA_REASON_TRIM,
        /// A smaller budget.
        Resize = KVCSA_REASON_RESIZE,
        /// It was forgotten.
        Forgotten = KVCSA_REASON_FORGOTTEN,
        /// Its session was erased securely.
        Erased = KVCSA_REASON_ERASED,
    }
}

record! {
    /// What happened to tokens or blocks.
    pub struct TraceEvent from kvcsa_trace_event {
        /// First token concerned.
        position: u64,
        /// Number of tokens.
        n_tokens: u64,
        /// Number of bytes.
        n_bytes: u64,
        /// What happened.
        kind: TraceKind,
        /// Why.
        reason: Reason,
    }
}

/// What a panic threw, until it can go on.
#[derive(Default)]
pub(crate) struct PanicSlot {
    is_set: AtomicBool,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
}

impl PanicSlot {
    /// What `f` returns; `otherwise` if it panics.
    pub(crate) fn guard<T>(&self, otherwise: T, f: impl FnOnce() -> T) -> T {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(value) => value,
            Err(payload) => {
                let mut slot = lock(&self.payload);
                if slot.is_none() {
                    *slot = Some(payload);
                    self.is_set.store(true, Ordering::Release);
                } else {
                    // One goes on. To drop another could panic again, below C code.
                    forget(payload);
                }
                otherwise
            }
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Let a panic go on, but never a second one beside one that is under way.
    pub(crate) fn resume(&self) {
        if self.is_set() && !std::thread::panicking() {
            let payload = {
                let mut slot = lock(&self.payload);
                self.is_set.store(false, Ordering::Release);
                slot.take()
            };
            if let Some(payload) = payload {
                resume_unwind(payload);
            }
        }
    }
}

impl Drop for PanicSlot {
    fn drop(&mut self) {
        // Nobody is left to hear of it, and its destructor must not panic in ours.
        if let Some(payload) = lock(&self.payload).take() {
            forget(payload);
        }
    }
}

type LogFn = dyn Fn(Level, &str) + Send + Sync;
type TraceFn = dyn Fn(&TraceEvent) + Send + Sync;
type RunFn = dyn Fn(u32, &(dyn Fn(u32) + Sync)) + Send + Sync;

/// The functions of one handle. Their address is given to the library, so they live in an `Arc`
/// and as long as anything of the library that may call them.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) log: Option<Box<LogFn>>,
    pub(crate) trace: Option<Box<TraceFn>>,
    pub(crate) executor: Option<(u32, Box<RunFn>)>,
    pub(crate) allocator: Option<Box<dyn GlobalAlloc + Send + Sync>>,
    pub(crate) panic: PanicSlot,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("log", &self.log.is_some())
            .field("trace", &self.trace.is_some())
            .field("executor", &self.executor.is_some())
            .field("allocator", &self.allocator.is_some())
            .finish()
    }
}

/// The C side of [`Hooks`]; what the library copies when a handle is created.
pub(crate) struct RawHooks {
    log: Option<sys::kvcsa_log>,
    trace: Option<sys::kvcsa_trace>,
    executor: Option<sys::kvcsa_executor>,
    allocator: Option<sys::kvcsa_allocator>,
}

fn pointer<T>(record: &Option<T>) -> *const T {
    record.as_ref().map_or(ptr::null(), |r| r)
}

impl RawHooks {
    pub(crate) fn log(&self) -> *const sys::kvcsa_log {
        pointer(&self.log)
    }
    pub(crate) fn trace(&self) -> *const sys::kvcsa_trace {
        pointer(&self.trace)
    }
    pub(crate) fn executor(&self) -> *const sys::kvcsa_executor {
        pointer(&self.executor)
    }
    pub(crate) fn allocator(&self) -> *const sys::kvcsa_allocator {
        pointer(&self.allocator)
    }
}

impl Hooks {
    pub(crate) fn is_empty(&self) -> bool {
        self.log.is_none()
            && self.trace.is_none()
            && self.executor.is_none()
            && self.allocator.is_none()
    }

    pub(crate) fn raw(self: &Arc<Self>) -> RawHooks {
        let user = Arc::as_ptr(self) as *mut c_void;
        RawHooks {
            log: self.log.as_ref().map(|_| sys::kvcsa_log {
                write: Some(write_log),
                user,
            }),
            trace: self.trace.as_ref().map(|_| sys::kvcsa_trace {
                event: Some(trace_event),
                user,
            }),
            executor: self
                .executor
                .as_ref()
                .map(|(width, _)| sys::kvcsa_executor {
                    run: Some(run_tasks),
                    user,
                    width: *width,
                    reserved: 0,
                }),
            allocator: self.allocator.as_ref().map(|_| sys::kvcsa_allocator {
                alloc: Some(allocate),
                free: Some(deallocate),
                user,
            }),
        }
    }
}

/// # Safety
///
/// `user` is what `Hooks::raw` gave to the library.
unsafe fn hooks<'a>(user: *mut c_void) -> &'a Hooks {
    // SAFETY: it lives as long as what calls these functions.
    unsafe { &*(user as *const Hooks) }
}

unsafe extern "C" fn write_log(user: *mut c_void, level: i32, text: *const c_char) {
    // SAFETY: the library gives back `user`, and a terminated text.
    let (hooks, text) = unsafe { (hooks(user), CStr::from_ptr(text)) };
    if let Some(log) = &hooks.log {
        hooks
            .panic
            .guard((), || log(Level::from_raw(level), &text.to_string_lossy()));
    }
}

unsafe extern "C" fn trace_event(user: *mut c_void, event: *const sys::kvcsa_trace_event) {
    // SAFETY: as above; of the event no more is read than it says that there is.
    let (hooks, raw) = unsafe {
        let mut raw: sys::kvcsa_trace_event = zeroed();
        let n = (*event)
            .struct_size
            .min(size_of::<sys::kvcsa_trace_event>());
        ptr::copy_nonoverlapping(event.cast::<u8>(), ptr::addr_of_mut!(raw).cast::<u8>(), n);
        (hooks(user), raw)
    };
    if let Some(trace) = &hooks.trace {
        hooks.panic.guard((), || trace(&TraceEvent::from_raw(&raw)));
    }
}

/// The argument of tasks, which the library means for any thread.
struct TaskArg(*mut c_void);
// SAFETY: "call task(arg, i) from any threads".
unsafe impl Sync for TaskArg {}

impl TaskArg {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Each task runs once whatever the host's function does: one that it forgets runs here, one that
/// it repeats does not run again.
unsafe extern "C" fn run_tasks(
    user: *mut c_void,
    task: Option<unsafe extern "C" fn(arg: *mut c_void, i: u32)>,
    arg: *mut c_void,
    n: u32,
) {
    // SAFETY: the library gives back `user`.
    let hooks = unsafe { hooks(user) };
    let (task, (_, run)) = match (task, &hooks.executor) {
        (Some(task), Some(executor)) => (task, executor),
        _ => return,
    };
    let arg = TaskArg(arg);
    let begun: Vec<AtomicBool> = (0..n).map(|_| AtomicBool::new(false)).collect();
    let one = |i: u32| {
        let first = begun
            .get(i as usize)
            .map_or(false, |b| !b.swap(true, Ordering::AcqRel));
        if first {
            // SAFETY: once for an i below n, while the library waits for us.
            unsafe { task(arg.get(), i) };
        }
    };
    hooks.panic.guard((), || run(n, &one));
    (0..n).for_each(one);
}

fn layout(size: usize, align: usize) -> Option<Layout> {
    // A global allocator must not be asked for nothing.
    Layout::from_size_align(size.max(1), align).ok()
}

unsafe extern "C" fn allocate(user: *mut c_void, size: usize, align: usize) -> *mut c_void {
    // SAFETY: the library gives back `user`.
    let hooks = unsafe { hooks(user) };
    match (&hooks.allocator, layout(size, align)) {
        (Some(allocator), Some(layout)) => hooks.panic.guard(ptr::null_mut(), || {
            // SAFETY: the layout has a size above 0.
            unsafe { allocator.alloc(layout) }.cast()
        }),
        _ => ptr::null_mut(),
    }
}

unsafe extern "C" fn deallocate(user: *mut c_void, ptr: *mut c_void, size: usize, align: usize) {
    // SAFETY: the library gives back `user`.
    let hooks = unsafe { hooks(user) };
    if let (Some(allocator), Some(layout), false) =
        (&hooks.allocator, layout(size, align), ptr.is_null())
    {
        // SAFETY: `ptr` came from `allocate` with this size and alignment.
        hooks
            .panic
            .guard((), || unsafe { allocator.dealloc(ptr.cast(), layout) });
    }
}
