//! What a setting that saves bytes does to what a model says: rows of logits of two runs over the
//! same tokens, side by side.

use crate::error::{Error, Result, Status};
use crate::hooks::Hooks;
use crate::model::Model;
use crate::pool::Pool;
use crate::progress::{on_count, CountFn, Counting};
use crate::raw::{call, defaults, filled, handle, list, n_u32};
use crate::session_params::SessionParams;
use kvcsa_sys as sys;
use std::alloc::GlobalAlloc;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{ControlFlow, Range};
use std::ptr::{self, NonNull};
use std::sync::Arc;

record! {
    /// One token of a comparison.
    pub struct CompareRow from kvcsa_compare_row {
        /// Of the token whose successor is predicted.
        position: u64,
        /// Sum of p_ref (log p_ref - log p_test), nat; infinity where the test excludes what the
        /// reference does not.
        kl: f64,
        /// Log p of the reference's best token less that of its second.
        margin: f32,
        /// Largest |logit_ref - logit_test|.
        max_difference: f32,
        /// Of the token that follows, nat; NaN where there is none.
        ref_log_prob: f32,
        /// Likewise in the test run.
        test_log_prob: f32,
        /// Ties to the lower id.
        ref_top: i32,
        /// The test run's best token, likewise.
        test_top: i32,
        /// Number of [`Compare::begin`] calls that had rows in front.
        run: u32,
        /// Bit for bit the same logits.
        equal: bool,
    }
}

record! {
    /// Figures of a comparison.
    pub struct CompareResult from kvcsa_compare_result {
        /// Number of rows.
        n_rows: u64,
        /// Bit for bit the same logits.
        n_equal_rows: u64,
        /// Mean, nat; all of these 0 without rows.
        kl_mean: f64,
        /// Percentiles by nearest rank.
        kl_median: f64,
        /// 99th percentile.
        kl_p99: f64,
        /// 99.9th percentile.
        kl_p999: f64,
        /// Largest.
        kl_max: f64,
        /// Position of the largest.
        kl_max_position: u64,
        /// Run of the largest.
        kl_max_run: u32,
        /// Largest difference of two logits.
        max_difference: f32,
        /// Rows whose best token is another one.
        n_flips: u64,
        /// Rows whose margin is above 0.1 nat.
        n_margin_01: u64,
        /// Flips among them.
        n_flips_01: u64,
        /// Above 1 nat.
        n_margin_10: u64,
        /// Flips among them.
        n_flips_10: u64,
        /// Rows with a token that follows.
        n_text_rows: u64,
        /// Mean of -log p of the token that follows, nat.
        ref_nll: f64,
        /// Likewise in the test run.
        test_nll: f64,
        /// Greedy runs.
        n_greedy: u64,
        /// Of them: with a different token.
        n_diverged: u64,
        /// Tokens in front of the first different one, all runs.
        n_greedy_same: u64,
        /// Longest possible sum of these.
        n_greedy_tokens: u64,
        /// Least of them; `u64::MAX` = none diverged.
        first_divergence: u64,
    }
}

/// Rows of logits side by side, and their figures.
pub struct Compare {
    raw: NonNull<sys::kvcsa_compare>,
    hooks: Arc<Hooks>,
    _one_thread: PhantomData<Cell<()>>,
}

// SAFETY: a comparison may be used by one thread at a time, any.
unsafe impl Send for Compare {}

impl Drop for Compare {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the only reference.
        unsafe { sys::kvcsa_compare_release(&mut raw) };
    }
}

impl fmt::Debug for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compare").finish_non_exhaustive()
    }
}

impl Compare {
    /// An empty comparison.
    pub fn new() -> Result<Self> {
        Self::with_hooks(Hooks::default())
    }

    /// An empty comparison whose memory comes from here.
    pub fn with_allocator(a: impl GlobalAlloc + Send + Sync + 'static) -> Result<Self> {
        Self::with_hooks(Hooks {
            allocator: Some(Box::new(a)),
            ..Hooks::default()
        })
    }

    fn with_hooks(hooks: Hooks) -> Result<Self> {
        let hooks = Arc::new(hooks);
        let raw = hooks.raw();
        let mut out = ptr::null_mut();
        // SAFETY: the allocator is there, or NULL.
        let made = call(|err| unsafe { sys::kvcsa_compare_create(raw.allocator(), &mut out, err) });
        hooks.panic.resume();
        made?;
        Ok(Compare {
            raw: handle(out)?,
            hooks,
            _one_thread: PhantomData,
        })
    }

    fn raw(&self) -> *mut sys::kvcsa_compare {
        self.raw.as_ptr()
    }

    fn done<T>(&self, result: Result<T>) -> Result<T> {
        self.hooks.panic.resume();
        result
    }

    /// Rows added from now on belong to another run.
    pub fn begin(&mut self) -> Result<()> {
        // SAFETY: the handle is there.
        self.done(call(|err| unsafe {
            sys::kvcsa_compare_begin(self.raw(), err)
        }))
    }

    /// Add one row: logits of the reference and of the test. They may come from anywhere, also from
    /// another engine. `next_token` follows in the text.
    pub fn add(
        &mut self,
        position: u64,
        next_token: Option<i32>,
        reference: &[f32],
        test: &[f32],
    ) -> Result<()> {
        same_length(reference.len(), test.len())?;
        let n = n_u32(reference.len(), "logits")?;
        let next = next_token.unwrap_or(-1);
        // SAFETY: both rows are as long as said.
        self.done(call(|err| unsafe {
            let (a, b) = (reference.as_ptr(), test.as_ptr());
            sys::kvcsa_compare_add(self.raw(), position, next, a, b, n, err)
        }))
    }

    /// Add a greedy run: two free continuations of one prompt.
    pub fn add_greedy(&mut self, reference: &[i32], test: &[i32]) -> Result<()> {
        same_length(reference.len(), test.len())?;
        // SAFETY: both lists are as long as said.
        self.done(call(|err| unsafe {
            let (a, b, n) = (reference.as_ptr(), test.as_ptr(), reference.len());
            sys::kvcsa_compare_add_greedy(self.raw(), a, b, n, err)
        }))
    }

    /// Figures of all rows so far.
    pub fn result(&self) -> Result<CompareResult> {
        // SAFETY: handle and record are there.
        self.done(filled(|result, err| unsafe {
            sys::kvcsa_compare_get_result(self.raw(), result, err)
        }))
        .map(|result| CompareResult::from_raw(&result))
    }

    /// Rows from this number on, in the order they were added.
    pub fn rows(&self, from: u64) -> Result<Vec<CompareRow>> {
        // SAFETY: the array is as long as said.
        let rows = self.done(list(0, |rows, cap, n, err| unsafe {
            sys::kvcsa_compare_get_rows(self.raw(), from, rows, cap, n, err)
        }))?;
        Ok(rows.iter().map(CompareRow::from_raw).collect())
    }

    /// Of each greedy run: tokens in front of the first different one, or its length.
    pub fn greedy(&self) -> Result<Vec<u64>> {
        // SAFETY: the array is as long as said.
        self.done(list(0, |n_same, cap, n, err| unsafe {
            sys::kvcsa_compare_get_greedy(self.raw(), n_same, cap, n, err)
        }))
    }
}

fn same_length(a: usize, b: usize) -> Result<()> {
    if a == b {
        return Ok(());
    }
    Err(Error::new(
        Status::Arg,
        &format!("the reference has {a} values, the test {b}"),
    ))
}

/// One way to run a text.
#[derive(Clone, Debug)]
pub struct Setting {
    raw: sys::kvcsa_setting,
    model: Model,
    pool: Pool,
    session: Option<SessionParams>,
    hidden: Vec<[u64; 2]>,
}

// SAFETY: the pointers in `raw` are NULL until a call is made.
unsafe impl Send for Setting {}
unsafe impl Sync for Setting {}

impl Setting {
    /// Exact.
    pub fn new(pool: &Pool, model: &Model) -> Self {
        pool.keep(model);
        Setting {
            // SAFETY: the function of this struct, which is numbers and pointers.
            raw: unsafe { defaults(sys::kvcsa_setting_default) },
            model: model.clone(),
            pool: pool.clone(),
            session: None,
            hidden: Vec::new(),
        }
    }

    /// Parameters of the session. Its reuse says how windows are rebuilt at hits.
    pub fn session(mut self, params: SessionParams) -> Self {
        self.session = Some(params);
        self
    }

    /// The text comes in appends of so many tokens; 0 = 128.
    pub fn append_tokens(mut self, n: u64) -> Self {
        self.raw.append_tokens = n;
        self
    }

    /// At every multiple of this the windows are lost, as after a prefix hit, and rebuilt.
    pub fn hit_tokens(mut self, n: u64) -> Self {
        self.raw.hit_tokens = n;
        self
    }

    /// In front of every append, entries of all tokens but the first and last so many are hidden.
    pub fn keep_ends(mut self, first: u64, last: u64) -> Self {
        self.raw.keep_first_tokens = first;
        self.raw.keep_last_tokens = last;
        self
    }

    /// In front of every append all but this part of the spans are hidden, those that received
    /// least attention.
    pub fn keep_fraction(mut self, fraction: f32) -> Self {
        self.raw.keep_fraction = fraction;
        self
    }

    /// A hit finds what this setting has made itself, instead of what an exact run has made.
    pub fn chain_hits(mut self, on: bool) -> Self {
        crate::model::set(&mut self.raw.flags, sys::KVCSA_SETTING_CHAIN_HITS, on);
        self
    }

    /// Entries of these tokens are hidden from the beginning.
    pub fn hide(mut self, tokens: Range<u64>) -> Self {
        self.hidden.push([tokens.start, tokens.end]);
        self
    }

    /// The C side; it lives as long as this.
    fn raw(&self) -> sys::kvcsa_setting {
        let mut raw = self.raw;
        raw.model = self.model.raw();
        raw.pool = self.pool.raw();
        raw.session = self.session.as_ref().map_or(ptr::null(), |p| p.raw());
        if !self.hidden.is_empty() {
            raw.hidden = self.hidden.as_ptr().cast();
            raw.n_hidden = self.hidden.len();
        }
        raw
    }
}

/// Several settings beside a reference.
///
/// ```no_run
/// # fn main() -> kvcsa::Result<()> {
/// # let (pool, model) = (kvcsa::Pool::new()?, kvcsa::Model::open("model")?);
/// use kvcsa::{Comparison, Compare, Mode, SessionParams, Setting};
/// let exact = Setting::new(&pool, &model);
/// let fast = Setting::new(&pool, &model).session(SessionParams::new().mode(Mode::Fast));
/// let mut rows = Compare::new()?;
/// Comparison::new(&exact).test(&fast, &mut rows).text(&model.prompt("In the beginning")?)?;
/// println!("{} nat", rows.result()?.kl_mean);
/// # Ok(())
/// # }
/// ```
pub struct Comparison<'a> {
    reference: &'a Setting,
    tests: Vec<(&'a Setting, &'a mut Compare)>,
    first: u64,
    progress: Option<Box<CountFn<'a>>>,
}

impl fmt::Debug for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comparison")
            .field("reference", self.reference)
            .field("tests", &self.tests)
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}

impl<'a> Comparison<'a> {
    /// The reference.
    pub fn new(reference: &'a Setting) -> Self {
        Comparison {
            reference,
            tests: Vec::new(),
            first: 0,
            progress: None,
        }
    }

    /// A setting to compare, and where its rows go.
    pub fn test(mut self, setting: &'a Setting, rows: &'a mut Compare) -> Self {
        self.tests.push((setting, rows));
        self
    }

    /// Rows in front of this position are not compared.
    pub fn from_position(mut self, first: u64) -> Self {
        self.first = first;
        self
    }

    /// Is told how many of all rows are done; `Break` cancels.
    pub fn progress(mut self, f: impl FnMut(u64, u64) -> ControlFlow<()> + Send + 'a) -> Self {
        self.progress = Some(Box::new(f));
        self
    }

    /// Run one text under all settings, every run fed the text's tokens, and add each row of logits
    /// that a test run has to its comparison. Rows added before a failure stay.
    pub fn text(self, tokens: &[i32]) -> Result<()> {
        let first = self.first;
        self.run(|reference, tests, rows, watch, err| {
            let (n, list, n_tokens) = (tests.len(), tokens.as_ptr(), tokens.len());
            let (tests, rows) = (tests.as_ptr(), rows.as_ptr());
            // SAFETY: arrays are as long as said.
            unsafe {
                sys::kvcsa_compare_text(
                    reference, tests, rows, n, list, n_tokens, first, watch, err,
                )
            }
        })
    }

    /// Let all settings go on with a prompt freely, each taking its likeliest token, and add the
    /// continuations to the comparisons. The answer is the reference's, then the tests'.
    pub fn greedy(self, prompt: &[i32], n_generate: usize) -> Result<Vec<Vec<i32>>> {
        let n_runs = self.tests.len() + 1;
        let n_all = n_runs
            .checked_mul(n_generate)
            .ok_or_else(|| Error::new(Status::Limit, "too many tokens to generate"))?;
        let mut all = vec![0i32; n_all];
        self.run(|reference, tests, rows, watch, err| {
            let (n, list, n_tokens) = (tests.len(), prompt.as_ptr(), prompt.len());
            let (tests, rows, out) = (tests.as_ptr(), rows.as_ptr(), all.as_mut_ptr());
            // SAFETY: arrays are as long as said.
            unsafe {
                sys::kvcsa_compare_greedy(
                    reference, tests, rows, n, list, n_tokens, n_generate, out, watch, err,
                )
            }
        })?;
        Ok((0..n_runs)
            .map(|i| all[i * n_generate..(i + 1) * n_generate].to_vec())
            .collect())
    }

    fn run(
        mut self,
        f: impl FnOnce(
            *const sys::kvcsa_setting,
            &[sys::kvcsa_setting],
            &[*mut sys::kvcsa_compare],
            *const sys::kvcsa_compare_progress,
            *mut sys::kvcsa_error,
        ) -> sys::kvcsa_status,
    ) -> Result<()> {
        let reference = self.reference.raw();
        let tests: Vec<_> = self.tests.iter().map(|(s, _)| s.raw()).collect();
        let rows: Vec<_> = self.tests.iter().map(|(_, c)| c.raw()).collect();
        let counting = self.progress.take().map(Counting::new);
        let progress = counting
            .as_ref()
            .map(|counting| sys::kvcsa_compare_progress {
                progress: Some(on_count),
                user: counting.user(),
            });
        let progress = progress.as_ref().map_or(ptr::null(), |p| p as *const _);
        let result = call(|err| f(&reference, &tests, &rows, progress, err));
        counting.iter().for_each(Counting::resume);
        let settings = std::iter::once(self.reference).chain(self.tests.iter().map(|t| t.0));
        for setting in settings {
            setting.pool.hooks().panic.resume();
            setting.model.hooks().panic.resume();
        }
        self.tests.iter().for_each(|(_, c)| c.hooks.panic.resume());
        result
    }
}
