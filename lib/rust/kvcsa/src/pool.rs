//! Pools: one byte budget for the caches of any number of sessions and models.

use crate::device::{Backend, BackendInfo, CpuInfo, CpuSet};
use crate::error::{Error, Result, Status};
use crate::hooks::{Hooks, Level, TraceEvent};
use crate::model::{set, Model};
use crate::prefix::Prefixes;
use crate::raw::{c_path, call, defaults, filled, handle, lock};
use crate::session::Session;
use crate::step::{run_step, StepParams, StepResult};
use kvcsa_sys as sys;
use std::alloc::GlobalAlloc;
use std::fmt;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

c_enum! {
    /// Who goes when room is wanted; only prefixes that no session uses and nobody pinned.
    pub enum Evict: u32 {
        /// The one that was reused least, aged by what went before: a shared prefix outlives
        /// prompts that were used once.
        Cost = KVCSA_EVICT_COST,
        /// The one that was used longest ago.
        Lru = KVCSA_EVICT_LRU,
    }
}

record! {
    /// Figures of a pool.
    pub struct PoolStats from kvcsa_pool_stats {
        /// The budget; 0 = none of its own.
        budget_bytes: u64,
        /// Blocks in use + windows; never above budget_bytes. A block that several sessions share
        /// counts once.
        used_bytes: u64,
        /// Promised to queued tokens.
        reserved_bytes: u64,
        /// Window and pending rows; part of used_bytes.
        window_bytes: u64,
        /// Memory taken from the allocator for blocks and window pages, free ones included.
        slab_bytes: u64,
        /// Of the cache; window pages are not counted.
        n_open_blocks: u64,
        /// Full blocks, which never change.
        n_sealed_blocks: u64,
        /// Blocks in slabs that nobody uses.
        n_free_blocks: u64,
        /// Sessions that are alive.
        n_sessions: u64,
        /// Blocks and pages since creation.
        n_acquired: u64,
        /// Blocks and pages given back since creation.
        n_released: u64,
        /// Published blocks that nothing but the prefix tree holds; part of used_bytes.
        evictable_bytes: u64,
        /// Memory for what describes blocks: token ids, keys, counts.
        record_bytes: u64,
        /// Can be found by prefix.
        n_published_blocks: u64,
        /// Kept by [`Prefix`](crate::Prefix)es.
        n_pinned_blocks: u64,
        /// In use.
        n_window_pages: u64,
        /// Copied because somebody else reads them; since creation, as all below.
        n_copied_blocks: u64,
        /// Window pages, likewise.
        n_copied_pages: u64,
        /// Published blocks that went for want of room.
        n_evicted_blocks: u64,
        /// Searches for a prefix.
        n_lookups: u64,
        /// Look-ups of a block by its key, of all searches.
        n_probes: u64,
        /// Tokens adopted by sessions.
        n_hit_tokens: u64,
        /// Written by snapshots.
        n_saved_bytes: u64,
        /// Records written by snapshots.
        n_saved_records: u64,
        /// Bytes read by snapshots.
        n_loaded_bytes: u64,
        /// Records read by snapshots.
        n_loaded_records: u64,
        /// [`PoolParams::host_bytes`]; 0 where it is ignored. All else in this record but
        /// record_bytes, n_published_blocks and n_evicted_blocks leaves out what lies there.
        host_budget_bytes: u64,
        /// Blocks and window pages there; never above the budget.
        host_used_bytes: u64,
        /// Pinned memory for them, free ones included.
        host_slab_bytes: u64,
        /// Blocks that lie in the host's memory.
        n_host_blocks: u64,
        /// Of windows stored beside these blocks.
        n_host_pages: u64,
        /// Copied there, one transfer each; since creation.
        n_moved_out_blocks: u64,
        /// Copied back, likewise.
        n_moved_in_blocks: u64,
    }
}

/// How a pool is made.
#[derive(Debug)]
pub struct PoolParams {
    raw: sys::kvcsa_pool_params,
    backend_dir: Option<PathBuf>,
    hooks: Hooks,
}

// SAFETY: the pointers in `raw` are NULL until the call that creates a pool.
unsafe impl Send for PoolParams {}

impl Default for PoolParams {
    fn default() -> Self {
        PoolParams {
            // SAFETY: the function of this struct, which is numbers and pointers.
            raw: unsafe { defaults(sys::kvcsa_pool_params_default) },
            backend_dir: None,
            hooks: Hooks::default(),
        }
    }
}

impl PoolParams {
    /// The library's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of blocks and windows of all sessions; 0 = no limit of its own.
    pub fn budget_bytes(mut self, n: u64) -> Self {
        self.raw.budget_bytes = n;
        self
    }

    /// Threads of the library, the caller included; 0 = one per core. Results do not depend on it.
    pub fn n_threads(mut self, n: u32) -> Self {
        self.raw.n_threads = n;
        self
    }

    /// Memory of the host for prefixes that a device has no room for.
    pub fn host_bytes(mut self, n: u64) -> Self {
        self.raw.host_bytes = n;
        self
    }

    /// Which prefix goes first.
    pub fn evict(mut self, evict: Evict) -> Self {
        self.raw.evict = evict.raw();
        self
    }

    /// What computes.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.raw.backend = backend.raw();
        self
    }

    /// Which of the devices that the backend sees.
    pub fn ordinal(mut self, n: u32) -> Self {
        self.raw.ordinal = n;
        self
    }

    /// Absolute path of the folder with the plug-ins, instead of the folder of the library.
    pub fn backend_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.backend_dir = Some(path.into());
        self
    }

    /// Instruction sets that must not be used though the machine has them.
    pub fn cpu_avoid(mut self, sets: CpuSet) -> Self {
        self.raw.cpu_avoid = sets.raw();
        self
    }

    /// Overwrite freed blocks with 0xA5, for tests.
    pub fn fill_freed(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_POOL_FILL_FREED, on);
        self
    }

    /// Overwrite freed blocks with zeros.
    pub fn zero_freed(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_POOL_ZERO_FREED, on);
        self
    }

    /// Products of many rows by the device vendor's library. Bits of results then depend on how
    /// many rows are computed together.
    pub fn fast_dense(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_POOL_FAST_DENSE, on);
        self
    }

    /// Where messages go; without it the library is silent. May be called from several threads.
    pub fn log(mut self, f: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        self.hooks.log = Some(Box::new(f));
        self
    }

    /// Is told what happens to prefixes and snapshots. May be called from several threads and while
    /// the pool is locked: note the event and return.
    pub fn trace(mut self, f: impl Fn(&TraceEvent) + Send + Sync + 'static) -> Self {
        self.hooks.trace = Some(Box::new(f));
        self
    }

    /// Threads of the host instead of the library's: `f(n, task)` calls `task(i)` once for every
    /// `i` below `n`, from any threads, and returns when all have returned. At most `width` tasks
    /// can run at once. Tasks that `f` leaves out run when it has returned.
    pub fn executor(
        mut self,
        width: u32,
        f: impl Fn(u32, &(dyn Fn(u32) + Sync)) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.executor = Some((width, Box::new(f)));
        self
    }

    /// Blocks and sessions come from here.
    pub fn allocator(mut self, a: impl GlobalAlloc + Send + Sync + 'static) -> Self {
        self.hooks.allocator = Some(Box::new(a));
        self
    }
}

struct Inner {
    raw: NonNull<sys::kvcsa_pool>,
    hooks: Arc<Hooks>,
    /// Functions of the models of sessions: the library may keep a model as long as the pool.
    models: Mutex<Vec<Arc<Hooks>>>,
}

// SAFETY: the functions of a pool lock what they share.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the one reference that we hold; sessions hold this struct.
        unsafe { sys::kvcsa_pool_release(&mut raw) };
    }
}

/// A budget of bytes that the caches of any number of sessions share, and what computes them. A
/// clone is another reference to the same pool.
///
/// Sessions keep their pool alive.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("hooks", &self.0.hooks)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool with default parameters.
    pub fn new() -> Result<Self> {
        Self::with_params(PoolParams::new())
    }

    /// A pool.
    pub fn with_params(params: PoolParams) -> Result<Self> {
        let dir = params.backend_dir.as_deref().map(c_path).transpose()?;
        let hooks = Arc::new(params.hooks);
        let raw_hooks = hooks.raw();
        let mut raw = params.raw;
        raw.log = raw_hooks.log();
        raw.trace = raw_hooks.trace();
        raw.executor = raw_hooks.executor();
        raw.allocator = raw_hooks.allocator();
        raw.backend_dir = dir.as_ref().map_or(ptr::null(), |d| d.as_ptr());
        let mut out = ptr::null_mut();
        // SAFETY: everything that `raw` points to lives until the call returns, hooks longer.
        let made = call(|err| unsafe { sys::kvcsa_pool_create(&raw, &mut out, err) });
        let inner = made.and_then(|()| {
            Ok(Inner {
                raw: handle(out)?,
                hooks: Arc::clone(&hooks),
                models: Mutex::new(Vec::new()),
            })
        });
        hooks.panic.resume();
        inner.map(|inner| Pool(Arc::new(inner)))
    }

    pub(crate) fn raw(&self) -> *mut sys::kvcsa_pool {
        self.0.raw.as_ptr()
    }

    pub(crate) fn hooks(&self) -> &Arc<Hooks> {
        &self.0.hooks
    }

    /// Functions of this model may be called as long as there is the pool.
    pub(crate) fn keep(&self, model: &Model) {
        if !model.hooks().is_empty() {
            let mut kept = lock(&self.0.models);
            if !kept.iter().any(|h| Arc::ptr_eq(h, model.hooks())) {
                kept.push(Arc::clone(model.hooks()));
            }
        }
    }

    pub(crate) fn done<T>(&self, result: Result<T>) -> Result<T> {
        self.0.hooks.panic.resume();
        result
    }

    /// Whether two handles are of one pool.
    pub fn is_same(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Figures, consistent with each other.
    pub fn stats(&self) -> Result<PoolStats> {
        // SAFETY: handle and record are there.
        self.done(filled(|stats, err| unsafe {
            sys::kvcsa_pool_get_stats(self.raw(), stats, err)
        }))
        .map(|stats| PoolStats::from_raw(&stats))
    }

    /// What the processor has, what the pool uses of it, and why.
    pub fn cpu(&self) -> Result<CpuInfo> {
        // SAFETY: handle and record are there.
        self.done(filled(|info, err| unsafe {
            sys::kvcsa_pool_get_cpu(self.raw(), info, err)
        }))
        .map(|info| CpuInfo::from_raw(&info))
    }

    /// What computes in the pool, what it has kernels for, and why it was chosen.
    pub fn backend(&self) -> Result<BackendInfo> {
        // SAFETY: handle and record are there.
        self.done(filled(|info, err| unsafe {
            sys::kvcsa_pool_get_backend(self.raw(), info, err)
        }))
        .map(|info| BackendInfo::from_raw(&info))
    }

    /// Walk every block and every count and compare, for tests and bug reports.
    pub fn check(&self) -> Result<()> {
        // SAFETY: the handle is there.
        self.done(call(|err| unsafe {
            sys::kvcsa_pool_check(self.raw(), err)
        }))
    }

    /// Change the budget; a smaller one evicts prefixes until what is left fits. 0 = none.
    pub fn resize(&self, budget_bytes: u64) -> Result<()> {
        // SAFETY: the handle is there.
        self.done(call(|err| unsafe {
            sys::kvcsa_pool_resize(self.raw(), budget_bytes, err)
        }))
    }

    /// Evict prefixes that nobody uses until no more than this is used, and give free memory back.
    /// The answer is what the allocator got.
    pub fn trim(&self, max_used_bytes: u64) -> Result<u64> {
        let mut freed = 0;
        // SAFETY: handle and place are there.
        self.done(call(|err| unsafe {
            sys::kvcsa_pool_trim(self.raw(), max_used_bytes, &mut freed, err)
        }))?;
        Ok(freed)
    }

    /// The prefixes of a model that the pool knows.
    pub fn prefixes(&self, model: &Model) -> Prefixes {
        Prefixes::new(self, model)
    }

    /// Forget every prefix of every model. The answer is the bytes of the budget that are free now.
    pub fn forget_all(&self) -> Result<u64> {
        let mut freed = 0;
        let (model, tokens) = (ptr::null(), ptr::null());
        // SAFETY: NULL and NULL ask for that.
        self.done(call(|err| unsafe {
            sys::kvcsa_prefix_forget(self.raw(), model, 0, tokens, 0, &mut freed, err)
        }))?;
        Ok(freed)
    }

    /// Compute all that these sessions have queued, and rebuild what a rewind, fork or load left to
    /// be rebuilt. The error is that of the first session that has one; the others went on.
    pub fn step(&self, sessions: &mut [&mut Session]) -> Result<()> {
        self.step_with(sessions, StepParams::new())?
            .into_iter()
            .try_for_each(|r| r.result)
    }

    /// Likewise, with a progress function or limits; one result for each session, with its own
    /// error. Rows of all sessions go through the matrices together; bits of results do not depend
    /// on which are stepped together.
    ///
    /// An error of the call itself ([`Status::Arg`]) means that nothing was computed.
    pub fn step_with(
        &self,
        sessions: &mut [&mut Session],
        params: StepParams<'_>,
    ) -> Result<Vec<StepResult>> {
        if sessions.iter().any(|s| !s.pool().is_same(self)) {
            return Err(Error::new(
                Status::Arg,
                "a session of another pool cannot be stepped here",
            ));
        }
        run_step(self, sessions, params)
    }
}
