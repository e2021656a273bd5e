//! Sessions: one timeline of tokens on one model in one pool.

use crate::append::{AppendParams, LogitsHook};
use crate::error::{Error, Result, Status};
use crate::hooks::PanicSlot;
use crate::model::Model;
use crate::pool::Pool;
use crate::raw::{call, filled, handle, list, lock, n_u32};
use crate::sampler::Sampler;
use crate::session_params::SessionParams;
use crate::session_stats::{ReuseReport, SessionStats, Work};
use crate::step::{run_step, StepParams, StepResult};
use crate::text::Generate;
use kvcsa_sys as sys;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, Weak};

struct Inner {
    raw: NonNull<sys::kvcsa_session>,
    /// Functions that steps may still call.
    logits: Mutex<Vec<Arc<LogitsHook>>>,
    panic: Arc<PanicSlot>,
    // Below: dropped when the session is released.
    pool: Pool,
    model: Model,
}

// SAFETY: a session may be used by one thread at a time, any; `Session` sees to that. What is used
// from others is kvcsa_session_cancel alone, which is for any thread.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the last reference; no call is under way.
        unsafe { sys::kvcsa_session_release(&mut raw) };
    }
}

/// One timeline of tokens. It keeps pool and model alive.
///
/// A session may move between threads, and is used by one at a time:
///
/// ```compile_fail,E0277
/// fn in_two_threads<T: Sync>() {}
/// in_two_threads::<kvcsa::Session>();
/// ```
pub struct Session {
    inner: Arc<Inner>,
    _one_thread: PhantomData<Cell<()>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("length", &self.len())
            .field("model", self.model())
            .finish_non_exhaustive()
    }
}

/// Cancels the steps of one session, from any thread. It does not keep the session alive.
#[derive(Clone)]
pub struct Canceller(Weak<Inner>);

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller")
            .field("is_alive", &(self.0.strong_count() > 0))
            .finish()
    }
}

impl Canceller {
    /// Ask a running step to stop computing the session; without one, the next step drops its
    /// queue. Without a queue the request is forgotten at the next append. False if the session is
    /// gone.
    pub fn cancel(&self) -> bool {
        match self.0.upgrade() {
            Some(inner) => {
                // SAFETY: for any thread, while the session is there.
                unsafe { sys::kvcsa_session_cancel(inner.raw.as_ptr()) };
                true
            }
            None => false,
        }
    }
}

impl Session {
    /// An empty session with default parameters.
    pub fn new(pool: &Pool, model: &Model) -> Result<Self> {
        Self::with_params(pool, model, &SessionParams::new())
    }

    /// An empty session. It takes memory from the pool as tokens are appended.
    pub fn with_params(pool: &Pool, model: &Model, params: &SessionParams) -> Result<Self> {
        let mut out = ptr::null_mut();
        pool.keep(model);
        // SAFETY: handles and parameters are there.
        let made = call(|err| unsafe {
            sys::kvcsa_session_create(pool.raw(), model.raw(), params.raw(), &mut out, err)
        });
        Self::adopt(pool, model, made, out)
    }

    /// A session of the C interface becomes ours, if there is one.
    fn adopt(
        pool: &Pool,
        model: &Model,
        made: Result<()>,
        out: *mut sys::kvcsa_session,
    ) -> Result<Self> {
        let session = made.and_then(|()| {
            Ok(Session {
                inner: Arc::new(Inner {
                    raw: handle(out)?,
                    logits: Mutex::new(Vec::new()),
                    panic: Arc::default(),
                    pool: pool.clone(),
                    model: model.clone(),
                }),
                _one_thread: PhantomData,
            })
        });
        pool.hooks().panic.resume();
        model.hooks().panic.resume();
        session
    }

    pub(crate) fn raw(&self) -> *mut sys::kvcsa_session {
        self.inner.raw.as_ptr()
    }

    pub(crate) fn panic(&self) -> &PanicSlot {
        &self.inner.panic
    }

    /// Functions for logits are not called any more when nothing is queued.
    pub(crate) fn queue_is(&self, n: u64) {
        if n == 0 {
            let done = std::mem::take(&mut *lock(&self.inner.logits));
            drop(done);
        }
    }

    /// A call on the session, and then the panic of a function of ours that it called.
    pub(crate) fn done<T>(&self, result: Result<T>) -> Result<T> {
        self.inner.pool.hooks().panic.resume();
        self.inner.model.hooks().panic.resume();
        result
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.inner.model
    }

    /// A handle that cancels steps from another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::downgrade(&self.inner))
    }

    /// Committed tokens.
    pub fn len(&self) -> u64 {
        // SAFETY: the handle is there.
        unsafe { sys::kvcsa_session_length(self.raw()) }
    }

    /// Whether no token is committed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Queue tokens; nothing is computed before a step. Room is reserved here. The answer is the
    /// length after all queued tokens. After a failure session and queue are unchanged.
    pub fn append(&mut self, tokens: &[i32]) -> Result<u64> {
        self.append_with(tokens, AppendParams::new())
    }

    /// Likewise, with logits of several tokens or another use of prefixes.
    pub fn append_with(&mut self, tokens: &[i32], params: AppendParams) -> Result<u64> {
        let mut length = 0;
        self.queue(params, |session, raw| {
            // SAFETY: tokens and rows are as long as said.
            call(|err| unsafe {
                let (list, n) = (tokens.as_ptr(), tokens.len());
                sys::kvcsa_session_append(session, list, n, raw, &mut length, err)
            })
        })?;
        Ok(length)
    }

    /// A call that queues tokens, and keeps their function for logits if it succeeds.
    fn queue(
        &mut self,
        params: AppendParams,
        f: impl FnOnce(*mut sys::kvcsa_session, &sys::kvcsa_append_params) -> Result<()>,
    ) -> Result<()> {
        let mut raw = params.raw;
        let hook = params
            .on_logits
            .map(|f| LogitsHook::new(f, Arc::clone(&self.inner.panic)));
        if let Some(hook) = &hook {
            hook.attach(&mut raw);
        }
        if !params.rows.is_empty() {
            raw.n_rows = n_u32(params.rows.len(), "rows")?;
            raw.rows = params.rows.as_ptr();
        }
        let result = f(self.raw(), &raw);
        if result.is_ok() {
            lock(&self.inner.logits).extend(hook);
        }
        self.done(result)
    }

    /// Make the session hold exactly these tokens: what is common stays, the rest is dropped,
    /// taken from known prefixes or queued for the next step.
    pub fn sync(&mut self, tokens: &[i32]) -> Result<ReuseReport> {
        self.sync_with(tokens, AppendParams::new())
    }

    /// Likewise, with parameters for what is queued.
    pub fn sync_with(&mut self, tokens: &[i32], params: AppendParams) -> Result<ReuseReport> {
        let mut report = None;
        self.queue(params, |session, raw| {
            // SAFETY: tokens and rows are as long as said.
            report = Some(filled(|reuse, err| unsafe {
                let (list, n) = (tokens.as_ptr(), tokens.len());
                sys::kvcsa_session_sync(session, list, n, raw, reuse, err)
            })?);
            Ok(())
        })?;
        report
            .map(|r| ReuseReport::from_raw(&r))
            .ok_or_else(|| Error::new(Status::Internal, "a sync without a report"))
    }

    /// Compute what is queued, and rebuild what a rewind, fork or load left to be rebuilt.
    pub fn step(&mut self) -> Result<()> {
        self.step_with(StepParams::new())?.result
    }

    /// Likewise, with a progress function or limits.
    pub fn step_with(&mut self, params: StepParams<'_>) -> Result<StepResult> {
        let pool = self.pool().clone();
        run_step(&pool, &mut [self], params)?
            .pop()
            .ok_or_else(|| Error::new(Status::Internal, "a step without a result"))
    }

    /// Queue tokens and compute them.
    pub fn compute(&mut self, tokens: &[i32]) -> Result<()> {
        self.append(tokens)?;
        self.step()
    }

    /// Logits of the last committed token, one for each token of the vocabulary.
    pub fn logits(&self) -> Result<Vec<f32>> {
        let mut row = vec![0.0; self.model().info().vocab_tokens as usize];
        self.logits_into(&mut row)?;
        Ok(row)
    }

    /// Likewise, into a row that is there.
    pub fn logits_into(&self, row: &mut [f32]) -> Result<()> {
        let n = n_u32(row.len(), "logits")?;
        // SAFETY: the row is as long as said.
        self.done(call(|err| unsafe {
            sys::kvcsa_session_get_logits(self.raw(), row.as_mut_ptr(), n, err)
        }))
    }

    /// Choose a token from the last logits; the position is the session's length.
    pub fn sample(&self, sampler: &Sampler) -> Result<i32> {
        let mut token = 0;
        // SAFETY: handle, parameters and place are there.
        self.done(call(|err| unsafe {
            sys::kvcsa_session_sample(self.raw(), sampler.raw(), &mut token, err)
        }))?;
        Ok(token)
    }

    /// Tokens that the model goes on with, one after the other, without end: see [`Generate`].
    pub fn generate(&mut self, sampler: &Sampler) -> Generate<'_> {
        Generate::new(self, sampler.clone())
    }

    /// Committed tokens from a position on.
    pub fn tokens(&self, from: u64) -> Result<Vec<i32>> {
        let guess = usize::try_from(self.len().saturating_sub(from)).unwrap_or(0);
        // SAFETY: the array is as long as said.
        self.done(list(guess, |tokens, cap, n, err| unsafe {
            sys::kvcsa_session_get_tokens(self.raw(), from, tokens, cap, n, err)
        }))
    }

    /// How many of these tokens the session holds already, from the first on.
    pub fn common_prefix(&self, tokens: &[i32]) -> Result<usize> {
        let mut n = 0;
        // SAFETY: tokens are as many as said.
        self.done(call(|err| unsafe {
            let list = tokens.as_ptr();
            sys::kvcsa_session_common_prefix(self.raw(), list, tokens.len(), &mut n, err)
        }))?;
        Ok(n)
    }

    /// Figures.
    pub fn stats(&self) -> Result<SessionStats> {
        // SAFETY: handle and record are there.
        self.done(filled(|stats, err| unsafe {
            sys::kvcsa_session_get_stats(self.raw(), stats, err)
        }))
        .map(|stats| SessionStats::from_raw(&stats))
    }

    /// What one layer did in the last step, and since creation.
    pub fn layer_work(&self, layer: u32) -> Result<(Work, Work)> {
        // SAFETY: numbers, for which zero bytes are values.
        let (mut step, mut total): (sys::kvcsa_work, sys::kvcsa_work) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: handle and places are there.
        self.done(call(|err| unsafe {
            sys::kvcsa_session_layer_work(self.raw(), layer, &mut step, &mut total, err)
        }))?;
        Ok((Work::from_raw(&step), Work::from_raw(&total)))
    }

    /// What became of the tokens of the last append or sync.
    pub fn reuse(&self) -> Result<ReuseReport> {
        // SAFETY: handle and record are there.
        self.done(filled(|reuse, err| unsafe {
            sys::kvcsa_session_get_reuse(self.raw(), reuse, err)
        }))
        .map(|reuse| ReuseReport::from_raw(&reuse))
    }

    /// A second session that holds the first `position` tokens of this one; `fork(s.len())` is all
    /// of it. Blocks are shared, no byte of the cache is copied. At an earlier position the next
    /// step rebuilds windows and logits.
    pub fn fork(&mut self, position: u64) -> Result<Session> {
        self.fork_raw(position, ptr::null())
    }

    /// Likewise, with other parameters; slack and salt must be this session's.
    pub fn fork_with(&mut self, position: u64, params: &SessionParams) -> Result<Session> {
        self.fork_raw(position, params.raw())
    }

    fn fork_raw(
        &mut self,
        position: u64,
        params: *const sys::kvcsa_session_params,
    ) -> Result<Session> {
        let mut out = ptr::null_mut();
        // SAFETY: handle and place are there, and parameters or NULL.
        let made = call(|err| unsafe {
            sys::kvcsa_session_fork(self.raw(), position, params, &mut out, err)
        });
        Self::adopt(self.pool(), self.model(), made, out)
    }

    /// Go back to an earlier position. The next step rebuilds logits, and windows where it has to.
    pub fn rewind(&mut self, position: u64) -> Result<()> {
        // SAFETY: the handle is there.
        self.done(call(|err| unsafe {
            sys::kvcsa_session_rewind(self.raw(), position, err)
        }))
    }

    /// Drop all tokens and the queue; the session is as new.
    pub fn erase(&mut self) -> Result<()> {
        self.erase_flags(0)
    }

    /// Likewise, and overwrite what it held and nobody else holds.
    pub fn erase_secure(&mut self) -> Result<()> {
        self.erase_flags(sys::KVCSA_ERASE_SECURE)
    }

    fn erase_flags(&mut self, flags: u32) -> Result<()> {
        // SAFETY: the handle is there.
        let result = call(|err| unsafe { sys::kvcsa_session_erase(self.raw(), flags, err) });
        if result.is_ok() {
            self.queue_is(0);
        }
        self.done(result)
    }

    /// Hide the entries of a range of tokens from selection: rows computed from now on do not read
    /// them. Its ends are multiples of [`ModelInfo::span_tokens`](crate::ModelInfo::span_tokens);
    /// a range without an end is all from its beginning on.
    pub fn hide(&mut self, tokens: impl RangeBounds<u64>) -> Result<()> {
        self.set_hidden(tokens, true)
    }

    /// Show hidden tokens again.
    pub fn show(&mut self, tokens: impl RangeBounds<u64>) -> Result<()> {
        self.set_hidden(tokens, false)
    }

    fn set_hidden(&mut self, tokens: impl RangeBounds<u64>, hidden: bool) -> Result<()> {
        let begin = match tokens.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match tokens.end_bound() {
            Bound::Included(&n) => n.saturating_add(1),
            Bound::Excluded(&n) => n,
            Bound::Unbounded => u64::MAX,
        };
        // SAFETY: the handle is there.
        self.done(call(|err| unsafe {
            sys::kvcsa_session_hide(self.raw(), begin, end, i32::from(hidden), err)
        }))
    }

    /// Attention that entries of each span of tokens received, if the session tracks it.
    pub fn mass(&self) -> Result<Vec<f64>> {
        self.mass_reset(false)
    }

    /// Likewise; from now on it is counted from zero.
    pub fn take_mass(&mut self) -> Result<Vec<f64>> {
        self.mass_reset(true)
    }

    fn mass_reset(&self, reset: bool) -> Result<Vec<f64>> {
        let mut n = 0;
        // The number of spans first, so that the call that resets is the one that has them all.
        // SAFETY: an array of 0, and then one that is as long as said.
        let counted = call(|err| unsafe {
            sys::kvcsa_session_get_mass(self.raw(), ptr::null_mut(), 0, &mut n, 0, err)
        });
        self.done(counted.and_then(|()| {
            list(n, |mass, cap, n, err| unsafe {
                sys::kvcsa_session_get_mass(self.raw(), mass, cap, n, i32::from(reset), err)
            })
        }))
    }

    /// Publish the full blocks that are not published: it was private, or they were forgotten. The
    /// answer is how many tokens can be found by prefix afterwards.
    pub fn publish(&mut self) -> Result<u64> {
        let mut n = 0;
        // SAFETY: handle and place are there.
        self.done(call(|err| unsafe {
            sys::kvcsa_prefix_publish(self.raw(), &mut n, err)
        }))?;
        Ok(n)
    }
}
