//! Tests of the safe layer on the shipped model.

mod callbacks;
mod chunk_errors;
mod chunks;
mod errors;
mod measures;
mod network;
mod sessions;
mod snapshots;
mod sparse;
mod threads;

use kvcsa::{Model, ModelParams, Pool, PoolParams, Session};
use std::path::{Path, PathBuf};

pub fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models/tiny")
}

/// An empty folder of this name.
pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

pub fn open() -> (Pool, Model) {
    open_with(PoolParams::new(), ModelParams::new())
}

pub fn open_with(pool: PoolParams, model: ModelParams) -> (Pool, Model) {
    let pool = Pool::with_params(pool.n_threads(1)).unwrap();
    (pool, Model::open_with(tiny(), model).unwrap())
}

/// Tokens that do not repeat soon.
pub fn text(n: usize) -> Vec<i32> {
    (0..n)
        .map(|i| 300 + ((i * i + 7 * i) % 211) as i32)
        .collect()
}

/// A session that holds these tokens.
pub fn computed(pool: &Pool, model: &Model, tokens: &[i32]) -> Session {
    let mut session = Session::new(pool, model).unwrap();
    session.compute(tokens).unwrap();
    session
}
