//! Choosing a token.

use crate::error::Result;
use crate::raw::{call, defaults, n_u32};
use kvcsa_sys as sys;

/// How a token is chosen: top-k, temperature, min-p, top-p, in this order. Ties go to the lower id.
///
/// The random number is a function of seed and position alone, so a repeated, forked or resumed run
/// draws the same.
#[derive(Clone, Debug)]
pub struct Sampler {
    raw: sys::kvcsa_sampler_params,
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler {
            // SAFETY: the function of this struct, which is numbers.
            raw: unsafe { defaults(sys::kvcsa_sampler_params_default) },
        }
    }
}

impl Sampler {
    /// Greedy: the likeliest token.
    pub fn greedy() -> Self {
        Self::default()
    }

    pub(crate) fn raw(&self) -> &sys::kvcsa_sampler_params {
        &self.raw
    }

    /// 0 = greedy.
    pub fn temperature(mut self, t: f32) -> Self {
        self.raw.temperature = t;
        self
    }

    /// The likeliest tokens that have this probability together; 0 or 1 = off.
    pub fn top_p(mut self, p: f32) -> Self {
        self.raw.top_p = p;
        self
    }

    /// Drop tokens less likely than this times the likeliest; 0 = off.
    pub fn min_p(mut self, p: f32) -> Self {
        self.raw.min_p = p;
        self
    }

    /// The so many likeliest tokens; 0 = off.
    pub fn top_k(mut self, k: u32) -> Self {
        self.raw.top_k = k;
        self
    }

    /// Seed of the random numbers.
    pub fn seed(mut self, seed: u64) -> Self {
        self.raw.seed = seed;
        self
    }

    /// Choose a token from a row of logits, wherever it comes from.
    pub fn sample(&self, logits: &[f32], position: u64) -> Result<i32> {
        let n = n_u32(logits.len(), "logits")?;
        let mut token = 0;
        // SAFETY: the row is as long as said.
        call(|err| unsafe {
            sys::kvcsa_sample_logits(logits.as_ptr(), n, position, &self.raw, &mut token, err)
        })?;
        Ok(token)
    }
}
