//! How a model is made from a plan alone.

use crate::hooks::{Hooks, Level};
use crate::raw::defaults;
use kvcsa_sys as sys;
use std::alloc::GlobalAlloc;

/// How [`Model::from_plan`](crate::Model::from_plan) makes a model.
#[derive(Debug)]
pub struct PlanParams {
    pub(crate) raw: sys::kvcsa_plan_params,
    pub(crate) name: Option<String>,
    pub(crate) hooks: Hooks,
}

// SAFETY: the pointers in `raw` are NULL until the call that makes a model.
unsafe impl Send for PlanParams {}

impl Default for PlanParams {
    fn default() -> Self {
        PlanParams {
            // SAFETY: the function of this struct, which is numbers and pointers.
            raw: unsafe { defaults(sys::kvcsa_plan_params_default) },
            name: None,
            hooks: Hooks::default(),
        }
    }
}

impl PlanParams {
    /// The library's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// [`ModelInfo::architecture`](crate::ModelInfo::architecture); without it "plan".
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// A number for the weights that make the rows. Sessions share where rows, name and identity
    /// are the same.
    pub fn identity(mut self, identity: u64) -> Self {
        self.raw.identity = identity;
        self
    }

    /// Context limit, at most 2^32 - 1, which 0 means too.
    pub fn max_tokens(mut self, n: u64) -> Self {
        self.raw.max_tokens = n;
        self
    }

    /// Tokens of a cache block; 0 = 128.
    pub fn block_tokens(mut self, n: u32) -> Self {
        self.raw.block_tokens = n;
        self
    }

    /// Token ids are below; 0 = any of 0 .. 2^31 - 1.
    pub fn vocab_tokens(mut self, n: u32) -> Self {
        self.raw.vocab_tokens = n;
        self
    }

    /// Where messages go; without it the library is silent. May be called from several threads.
    pub fn log(mut self, f: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        self.hooks.log = Some(Box::new(f));
        self
    }

    /// Memory of the model comes from here.
    pub fn allocator(mut self, a: impl GlobalAlloc + Send + Sync + 'static) -> Self {
        self.hooks.allocator = Some(Box::new(a));
        self
    }
}
