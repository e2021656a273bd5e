//! One step: what is queued is computed.

use crate::error::{Error, Result};
use crate::hooks::PanicSlot;
use crate::pool::Pool;
use crate::raw::{call, defaults, lock, no_error};
use crate::session::Session;
use kvcsa_sys as sys;
use std::fmt;
use std::ops::ControlFlow;
use std::os::raw::c_void;
use std::sync::Mutex;
use std::time::Duration;

/// Where a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Index of the session among those that are stepped.
    pub session: usize,
    /// Tokens that this step has committed for it.
    pub n_done_tokens: u64,
    /// Tokens that wait.
    pub n_queued_tokens: u64,
}

type ProgressFn<'a> = dyn FnMut(Progress) -> ControlFlow<()> + Send + 'a;

/// How far a step goes, and who is told.
pub struct StepParams<'a> {
    raw: sys::kvcsa_step_params,
    progress: Option<Box<ProgressFn<'a>>>,
}

impl fmt::Debug for StepParams<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepParams")
            .field("max_rows", &self.raw.max_rows)
            .field("deadline_ns", &self.raw.deadline_ns)
            .field("progress", &self.progress.is_some())
            .finish()
    }
}

impl Default for StepParams<'_> {
    fn default() -> Self {
        StepParams {
            // SAFETY: the function of this struct, which is numbers and pointers.
            raw: unsafe { defaults(sys::kvcsa_step_params_default) },
            progress: None,
        }
    }
}

impl<'a> StepParams<'a> {
    /// Until all queues are empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stop before computing more rows than this, over all sessions; 0 = no limit.
    pub fn max_rows(mut self, n: u64) -> Self {
        self.raw.max_rows = n;
        self
    }

    /// Start no further chunk when so much time has passed since the call; zero = no limit.
    pub fn deadline(mut self, time: Duration) -> Self {
        self.raw.deadline_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Is called between the layers. `Break` cancels the session that is being computed: it goes
    /// back to where its oldest unfinished append began, with [`Status::Cancelled`].
    ///
    /// [`Status::Cancelled`]: crate::Status::Cancelled
    pub fn progress(mut self, f: impl FnMut(Progress) -> ControlFlow<()> + Send + 'a) -> Self {
        self.progress = Some(Box::new(f));
        self
    }
}

/// What a step did for one session.
#[derive(Clone, Debug)]
#[must_use = "a session that failed says so here"]
#[non_exhaustive]
pub struct StepResult {
    /// Tokens that were committed.
    pub n_computed: u64,
    /// Tokens that still wait.
    pub n_queued: u64,
    /// The session's own error.
    pub result: Result<()>,
}

/// What the progress function of the C interface needs.
struct Watch<'w> {
    progress: Option<Mutex<Box<ProgressFn<'w>>>>,
    sessions: &'w [*mut sys::kvcsa_session],
    /// Where functions of handles leave their panics: the step is of no use then.
    others: Vec<&'w PanicSlot>,
    panic: PanicSlot,
}

unsafe extern "C" fn on_progress(
    user: *mut c_void,
    session: *mut sys::kvcsa_session,
    n_done_tokens: u64,
    n_queued_tokens: u64,
) -> i32 {
    // SAFETY: the step gives back its `user`, which waits for it.
    let watch = unsafe { &*(user as *const Watch<'_>) };
    if watch.panic.is_set() || watch.others.iter().any(|slot| slot.is_set()) {
        return 1;
    }
    let (f, at) = match (
        &watch.progress,
        watch.sessions.iter().position(|&s| s == session),
    ) {
        (Some(f), Some(at)) => (f, at),
        _ => return 0,
    };
    let now = Progress {
        session: at,
        n_done_tokens,
        n_queued_tokens,
    };
    let answer = watch.panic.guard(ControlFlow::Break(()), || lock(f)(now));
    i32::from(answer == ControlFlow::Break(()))
}

/// All sessions are of the pool.
pub(crate) fn run_step(
    pool: &Pool,
    sessions: &mut [&mut Session],
    params: StepParams<'_>,
) -> Result<Vec<StepResult>> {
    let handles: Vec<_> = sessions.iter().map(|s| s.raw()).collect();
    let mut others = vec![&pool.hooks().panic];
    for s in sessions.iter() {
        others.extend([s.panic(), &s.model().hooks().panic]);
    }
    let watch = Watch {
        progress: params.progress.map(Mutex::new),
        sessions: &handles,
        others,
        panic: PanicSlot::default(),
    };
    let mut raw = params.raw;
    raw.progress = Some(on_progress);
    raw.user = &watch as *const Watch<'_> as *mut c_void;
    let nothing = sys::kvcsa_step_result {
        n_computed: 0,
        n_queued: 0,
        error: no_error(),
    };
    let mut results = vec![nothing; handles.len()];
    // SAFETY: the arrays are as long as said; sessions are borrowed by us alone.
    let called = call(|err| unsafe {
        let (list, n) = (handles.as_ptr(), handles.len());
        sys::kvcsa_pool_step(pool.raw(), list, n, &raw, results.as_mut_ptr(), err)
    });
    let has_own = results.iter().any(|r| r.error.status != sys::KVCSA_OK);
    let refused = called.is_err() && !has_own;
    if !refused {
        for (session, result) in sessions.iter().zip(&results) {
            session.queue_is(result.n_queued);
        }
    }
    watch.panic.resume();
    watch.others.iter().for_each(|slot| slot.resume());
    if refused {
        called?;
    }
    Ok(results.iter().map(outcome).collect())
}

fn outcome(raw: &sys::kvcsa_step_result) -> StepResult {
    StepResult {
        n_computed: raw.n_computed,
        n_queued: raw.n_queued,
        result: match raw.error.status {
            sys::KVCSA_OK => Ok(()),
            status => Err(Error::from_raw(status, &raw.error)),
        },
    }
}
