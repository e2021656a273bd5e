//! Checkpoints of random weights, for tests and measurements of any size.

use crate::error::Result;
use crate::hooks::Hooks;
use crate::progress::{on_count, CountFn, Counting};
use crate::raw::{c_path, defaults, filled};
use kvcsa_sys as sys;
use std::alloc::GlobalAlloc;
use std::ffi::CStr;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

record! {
    /// What a checkpoint of random weights holds.
    pub struct SynthInfo from kvcsa_synth_info {
        /// Payload of all tensors.
        total_bytes: u64,
        /// Tensors.
        n_tensors: u32,
        /// Files that hold them.
        n_shards: u32,
    }
}

/// A checkpoint to be made. Its bytes depend on configuration and seed alone.
pub struct Synth<'a> {
    raw: sys::kvcsa_synth_params,
    hooks: Arc<Hooks>,
    progress: Option<Box<CountFn<'a>>>,
}

impl fmt::Debug for Synth<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Synth")
            .field("seed", &self.raw.seed)
            .field("shard_bytes", &self.raw.shard_bytes)
            .finish_non_exhaustive()
    }
}

impl Default for Synth<'_> {
    fn default() -> Self {
        Synth {
            // SAFETY: the function of this struct, which is numbers and pointers.
            raw: unsafe { defaults(sys::kvcsa_synth_params_default) },
            hooks: Arc::default(),
            progress: None,
        }
    }
}

impl<'a> Synth<'a> {
    /// The library's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Seed of the random numbers.
    pub fn seed(mut self, seed: u64) -> Self {
        self.raw.seed = seed;
        self
    }

    /// Largest payload of a file; 0 = 4 GiB.
    pub fn shard_bytes(mut self, n: u64) -> Self {
        self.raw.shard_bytes = n;
        self
    }

    /// Memory comes from here.
    pub fn allocator(mut self, a: impl GlobalAlloc + Send + Sync + 'static) -> Self {
        self.hooks = Arc::new(Hooks {
            allocator: Some(Box::new(a)),
            ..Hooks::default()
        });
        self
    }

    /// Is told how many of all bytes are written; `Break` cancels.
    pub fn progress(mut self, f: impl FnMut(u64, u64) -> ControlFlow<()> + Send + 'a) -> Self {
        self.progress = Some(Box::new(f));
        self
    }

    /// What a checkpoint of this `config.json` would hold; nothing is written.
    pub fn describe(self, config: impl AsRef<Path>) -> Result<SynthInfo> {
        self.run(config.as_ref(), None)
    }

    /// Write it into a folder, which is made if it is not there. What was written before a failure
    /// is removed.
    pub fn write(self, config: impl AsRef<Path>, directory: impl AsRef<Path>) -> Result<SynthInfo> {
        self.run(config.as_ref(), Some(directory.as_ref()))
    }

    fn run(self, config: &Path, directory: Option<&Path>) -> Result<SynthInfo> {
        let config = c_path(config)?;
        let directory = directory.map(c_path).transpose()?;
        let directory = directory.as_deref().map_or(ptr::null(), CStr::as_ptr);
        let raw_hooks = self.hooks.raw();
        let counting = self.progress.map(Counting::new);
        let mut raw = self.raw;
        raw.allocator = raw_hooks.allocator();
        if let Some(counting) = &counting {
            raw.progress = Some(on_count);
            raw.user = counting.user();
        }
        // SAFETY: strings, parameters and record are there.
        let result = filled(|info, err| unsafe {
            sys::kvcsa_synth_checkpoint(config.as_ptr(), directory, &raw, info, err)
        });
        counting.iter().for_each(Counting::resume);
        self.hooks.panic.resume();
        result.map(|info| SynthInfo::from_raw(&info))
    }
}
