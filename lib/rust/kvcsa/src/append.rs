//! What is wanted of tokens that are appended.

use crate::hooks::PanicSlot;
use crate::raw::{defaults, lock};
use crate::session_params::Reuse;
use kvcsa_sys as sys;
use std::fmt;
use std::os::raw::c_void;
use std::sync::{Arc, Mutex};

type LogitsFn = dyn FnMut(u64, &[f32]) + Send;

/// Which logits are wanted of an append, and whether known prefixes are used.
pub struct AppendParams {
    pub(crate) raw: sys::kvcsa_append_params,
    pub(crate) rows: Vec<u32>,
    pub(crate) on_logits: Option<Box<LogitsFn>>,
}

// SAFETY: the pointers in `raw` are NULL until the call that appends.
unsafe impl Send for AppendParams {}

impl fmt::Debug for AppendParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppendParams")
            .field("logits", &self.raw.logits)
            .field("rows", &self.rows)
            .field("reuse", &Reuse::from_raw(self.raw.reuse))
            .finish()
    }
}

impl Default for AppendParams {
    fn default() -> Self {
        AppendParams {
            // SAFETY: the function of this struct, which is numbers and pointers.
            raw: unsafe { defaults(sys::kvcsa_append_params_default) },
            rows: Vec::new(),
            on_logits: None,
        }
    }
}

impl AppendParams {
    /// Logits of the last token only.
    pub fn new() -> Self {
        Self::default()
    }

    /// No logits at all, not even of the last token.
    pub fn no_logits(mut self) -> Self {
        self.raw.logits = sys::KVCSA_LOGITS_NONE;
        self.on_logits = None;
        self
    }

    /// Logits of every token, in order: `f(position, logits)` is called by the step. `position` is
    /// that of the token whose successor they predict.
    pub fn all_logits(mut self, f: impl FnMut(u64, &[f32]) + Send + 'static) -> Self {
        self.raw.logits = sys::KVCSA_LOGITS_ALL;
        self.on_logits = Some(Box::new(f));
        self
    }

    /// Likewise of the tokens at these offsets into the append (ascending). Those of the last one
    /// are in [`Session::logits`](crate::Session::logits) besides.
    pub fn some_logits(
        mut self,
        rows: impl Into<Vec<u32>>,
        f: impl FnMut(u64, &[f32]) + Send + 'static,
    ) -> Self {
        self.raw.logits = sys::KVCSA_LOGITS_ROWS;
        self.rows = rows.into();
        self.on_logits = Some(Box::new(f));
        self
    }

    /// Whether known prefixes are used, and how windows are rebuilt then.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.raw.reuse = reuse.raw();
        self
    }
}

/// A function for logits that the library may call until the append is computed. Its address is
/// given to the library.
pub(crate) struct LogitsHook {
    f: Mutex<Box<LogitsFn>>,
    panic: Arc<PanicSlot>,
}

impl LogitsHook {
    pub(crate) fn new(f: Box<LogitsFn>, panic: Arc<PanicSlot>) -> Arc<Self> {
        Arc::new(LogitsHook {
            f: Mutex::new(f),
            panic,
        })
    }

    pub(crate) fn attach(self: &Arc<Self>, raw: &mut sys::kvcsa_append_params) {
        raw.on_logits = Some(give_logits);
        raw.user = Arc::as_ptr(self) as *mut c_void;
    }
}

unsafe extern "C" fn give_logits(
    user: *mut c_void,
    position: u64,
    logits: *const f32,
    n_vocab: u32,
) {
    // SAFETY: the library gives back `user`, which the session keeps, and a row of n_vocab.
    let (hook, row) = unsafe {
        let hook = &*(user as *const LogitsHook);
        (hook, std::slice::from_raw_parts(logits, n_vocab as usize))
    };
    if !hook.panic.is_set() {
        hook.panic.guard((), || lock(&hook.f)(position, row));
    }
}
