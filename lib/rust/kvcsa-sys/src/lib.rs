//! Declarations of the C interface of kvcsa, one to one: `include/kvcsa.h` in Rust.
//!
//! Names, fields, values and rules are those of the header; its comments stand beside the
//! declarations. Nothing here is safe to call without reading them: the crate `kvcsa` is the layer
//! that keeps the rules by itself.
//!
//! - Status values and constants are integers, not Rust enums, because a newer library may answer
//!   with a value that this crate does not know.
//! - Structs that begin with `struct_size` grow in later releases. Parameters are filled by their
//!   `kvcsa_x_params_default(&mut p, size_of_val(&p))`; of outputs set `struct_size` before the call.
//! - A callback must not unwind into the library.
//!
//! The library is linked as `build.rs` says: from `KVCSA_LIB_DIR`, else as `pkg-config` describes
//! it; with the feature `static` into the program. Dependants find the folder of the header in
//! `DEP_KVCSA_INCLUDE`.

#![deny(missing_docs)]
#![allow(non_camel_case_types)]

mod api;
mod chunk;
mod compare;
mod cost;
mod hooks;
mod model;
mod pool;
mod prefix;
mod sampler;
mod session;
mod snapshot;
mod status;
mod synth;
mod text_stream;

pub use api::*;
pub use chunk::*;
pub use compare::*;
pub use cost::*;
pub use hooks::*;
pub use model::*;
pub use pool::*;
pub use prefix::*;
pub use sampler::*;
pub use session::*;
pub use snapshot::*;
pub use status::*;
pub use synth::*;
pub use text_stream::*;
