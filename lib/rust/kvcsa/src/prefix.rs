//! Prefixes that a pool knows.

use crate::error::Result;
use crate::model::Model;
use crate::pool::Pool;
use crate::raw::call;
use kvcsa_sys as sys;
use std::ptr;

/// The known prefixes of a model in a pool: sealed blocks of exact sessions, found by the tokens in
/// front of and inside them.
#[derive(Clone, Debug)]
pub struct Prefixes {
    pool: Pool,
    model: Model,
    salt: u64,
}

impl Prefixes {
    pub(crate) fn new(pool: &Pool, model: &Model) -> Self {
        pool.keep(model);
        Prefixes {
            pool: pool.clone(),
            model: model.clone(),
            salt: 0,
        }
    }

    /// Those of sessions with this salt instead of 0.
    pub fn salt(mut self, salt: u64) -> Self {
        self.salt = salt;
        self
    }

    /// Length of the longest known prefix of these tokens. It may end inside a block.
    pub fn matching(&self, tokens: &[i32]) -> Result<usize> {
        let mut n = 0;
        // SAFETY: tokens are as many as said.
        self.pool.done(call(|err| unsafe {
            let (pool, model, list) = (self.pool.raw(), self.model.raw(), tokens.as_ptr());
            sys::kvcsa_prefix_match(pool, model, self.salt, list, tokens.len(), &mut n, err)
        }))?;
        Ok(n)
    }

    /// Keep the full blocks that these tokens begin with from being evicted, as long as there is
    /// the [`Prefix`]. `None` where no full block of them is known.
    pub fn pin(&self, tokens: &[i32]) -> Result<Option<Prefix>> {
        let mut n = 0;
        // SAFETY: tokens are as many as said.
        self.pool.done(call(|err| unsafe {
            let (pool, model, list) = (self.pool.raw(), self.model.raw(), tokens.as_ptr());
            sys::kvcsa_prefix_pin(pool, model, self.salt, list, tokens.len(), &mut n, err)
        }))?;
        Ok(tokens
            .get(..n)
            .filter(|t| !t.is_empty())
            .map(|tokens| Prefix {
                of: self.clone(),
                tokens: tokens.to_vec(),
            }))
    }

    /// Forget everything that begins with these tokens, pinned or not; sessions keep what they
    /// hold. The answer is the bytes of the budget that are free now.
    pub fn forget(&self, tokens: &[i32]) -> Result<u64> {
        self.forget_raw(tokens.as_ptr(), tokens.len())
    }

    /// Forget every prefix of this model and salt.
    pub fn forget_all(&self) -> Result<u64> {
        self.forget_raw(ptr::null(), 0)
    }

    fn forget_raw(&self, tokens: *const i32, n: usize) -> Result<u64> {
        let mut freed = 0;
        // SAFETY: tokens are as many as said.
        self.pool.done(call(|err| unsafe {
            let (pool, model) = (self.pool.raw(), self.model.raw());
            sys::kvcsa_prefix_forget(pool, model, self.salt, tokens, n, &mut freed, err)
        }))?;
        Ok(freed)
    }

    fn unpin(&self, tokens: &[i32]) -> Result<()> {
        // SAFETY: tokens are as many as said.
        call(|err| unsafe {
            let (pool, model, list) = (self.pool.raw(), self.model.raw(), tokens.as_ptr());
            sys::kvcsa_prefix_unpin(pool, model, self.salt, list, tokens.len(), err)
        })
    }
}

/// A pinned prefix: it is not evicted until this is dropped.
#[derive(Debug)]
#[must_use = "what is dropped is not pinned"]
pub struct Prefix {
    of: Prefixes,
    tokens: Vec<i32>,
}

impl Prefix {
    /// The tokens whose blocks are pinned.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Unpin, and say if that failed: the prefix was forgotten meanwhile.
    pub fn unpin(mut self) -> Result<()> {
        let tokens = std::mem::take(&mut self.tokens);
        let result = self.of.unpin(&tokens);
        self.of.pool.done(result)
    }

    /// Leave it pinned as long as there is the pool.
    pub fn leave_pinned(mut self) {
        self.tokens.clear();
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        if !self.tokens.is_empty() {
            // It fails if the prefix was forgotten meanwhile: then there is nothing to do.
            let _ = self.of.unpin(&self.tokens);
        }
    }
}
