//! Run transformer language models around a very small KV cache.
//!
//! - [`Model`]: immutable and shared: configuration, cache plan, weights, tokenizer.
//! - [`Pool`]: one byte budget for the caches of any number of sessions and models.
//! - [`Session`]: one timeline of tokens on one model in one pool.
//!
//! ```no_run
//! use kvcsa::{Model, Pool, Sampler, Session, TextStream};
//!
//! fn main() -> kvcsa::Result<()> {
//!     let model = Model::open("examples/models/tiny")?;
//!     let pool = Pool::new()?;
//!     let mut session = Session::new(&pool, &model)?;
//!     session.compute(&model.prompt("In the beginning")?)?;
//!     let stream = TextStream::new(&model)?;
//!     for piece in session.generate(&Sampler::greedy()).text(stream, 40) {
//!         print!("{}", piece?);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! A [`Chunk`] is for a network of your own: you compute, the library keeps the cache.
//!
//! # Ownership and threads
//!
//! Sessions, text streams and pinned prefixes keep pool and model alive; drop them in any order.
//! [`Model`] and [`Pool`] are `Clone`, `Send` and `Sync`: a clone is another reference. [`Session`],
//! [`Chunk`], [`TextStream`] and [`Compare`] are `Send` and not `Sync`: one thread at a time. A [`Canceller`]
//! cancels a session from any thread. Handles do not survive `fork(2)`.
//!
//! # Errors and panics
//!
//! Calls answer with a [`Result`]; an [`Error`] has a [`Status`] and one line of text. A call that
//! fails leaves its objects as they were, unless it says otherwise.
//!
//! Functions that you give to the library (progress, logits, log, trace, executor, allocator,
//! readers and writers) may panic: the panic is caught, a running step is cancelled, and it goes on
//! from the call that you made, when the library has returned. A panic of a log, trace, executor or
//! allocator goes on from the first call on its pool or model that finds it, and nowhere if there
//! is none: dropping a handle never panics for it. With `panic = "abort"` the process ends.

#![deny(missing_docs, unsafe_op_in_unsafe_fn)]

#[macro_use]
mod macros;

mod append;
mod chunk;
mod compare;
mod cost;
mod device;
mod error;
mod hooks;
mod model;
mod plan;
mod plan_params;
mod pool;
mod prefix;
mod progress;
mod raw;
mod rows;
mod sampler;
mod session;
mod session_params;
mod session_stats;
mod snapshot;
mod step;
mod synth;
mod text;

pub use append::AppendParams;
pub use chunk::{CacheRows, Chunk};
pub use compare::{Compare, CompareResult, CompareRow, Comparison, Setting};
pub use cost::{
    AgentCost, AgentParams, Attention, ResumeCost, ResumeParams, ServingCost, ServingParams,
};
pub use device::{Backend, BackendInfo, CpuInfo, CpuSet};
pub use error::{Error, Result, Status};
pub use hooks::{Level, Reason, TraceEvent, TraceKind};
pub use model::{Message, Model, ModelInfo, ModelParams};
pub use plan::{Candidates, Cost, Estimate, Format, PlanRow, Pooling, Select, ValueKind};
pub use plan_params::PlanParams;
pub use pool::{Evict, Pool, PoolParams, PoolStats};
pub use prefix::{Prefix, Prefixes};
pub use rows::{ChunkAttention, ChunkQueries, ChunkRows, Rows, RowsMut};
pub use sampler::Sampler;
pub use session::{Canceller, Session};
pub use session_params::{DecoderReplay, Mode, Reuse, SessionParams};
pub use session_stats::{LayerGroup, ReuseReport, SessionStats, Work, N_LAYER_GROUPS};
pub use snapshot::{Snapshot, SnapshotInfo, SnapshotParams};
pub use step::{Progress, StepParams, StepResult};
pub use synth::{Synth, SynthInfo};
pub use text::{End, Generate, Text, TextStream};

/// The declarations that this crate stands on.
pub use kvcsa_sys as sys;

/// Version of the library that is running: major * 10000 + minor * 100 + patch.
pub fn version_number() -> u32 {
    // SAFETY: takes nothing.
    unsafe { sys::kvcsa_version_number() }
}

/// Version of the library that is running, as text.
pub fn version() -> &'static str {
    // SAFETY: a static string.
    unsafe { std::ffi::CStr::from_ptr(sys::kvcsa_version_string()) }
        .to_str()
        .unwrap_or("?")
}
