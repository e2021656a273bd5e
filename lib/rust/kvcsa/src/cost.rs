//! What a cache costs, from the plan alone.

use crate::error::Result;
use crate::model::Model;
use crate::raw::{defaults, filled};
use kvcsa_sys as sys;

c_enum! {
    /// What is spread over devices.
    pub enum Attention: u32 {
        /// Heads of every sequence are spread over devices.
        Tp = KVCSA_ATTENTION_TP,
        /// Whole sequences are spread over devices.
        Dp = KVCSA_ATTENTION_DP,
    }
}

record! {
    /// What equal sequences cost.
    pub struct ServingCost from kvcsa_serving_cost {
        /// All devices; what is shared counts once a device that holds it.
        resident_bytes: u64,
        /// Of the fullest device.
        device_resident_bytes: u64,
        /// From caches by one step of all users, all devices.
        read_bytes: u64,
        /// Of the busiest device.
        device_read_bytes: u64,
        /// Kept off-device to resume all of them (persist_bytes; what is shared counts once).
        parked_bytes: u64,
        /// That fit into device_bytes on every device; 0 = not asked; 2^63 - 1 = no limit.
        max_users: u64,
        /// By one step of all users, all devices.
        written_bytes: f64,
        /// Expected in one layer for one token of each user, if routing were uniform.
        distinct_experts: f64,
        /// dense_bytes + expected experts of all layers.
        weight_bytes: f64,
        /// Caches; 0 = not asked.
        read_bytes_per_second: f64,
        /// Bytes that one more token of one sequence takes on one device that holds it.
        device_rate: f64,
    }
}

record! {
    /// Load or compute again.
    pub struct ResumeCost from kvcsa_resume_cost {
        /// To load: persist_bytes.
        n_bytes: u64,
        /// Time to load the bytes.
        load_seconds: f64,
        /// Time to rebuild the windows.
        replay_seconds: f64,
        /// Time to compute all tokens again.
        recompute_seconds: f64,
        /// Recompute / (load + replay); 0 for no tokens, infinity if nothing takes time.
        ratio: f64,
        /// Tier speed at which loading only just pays, replay included; infinity if it never does.
        break_even_bytes_per_second: f64,
        /// Sequences that the tier holds; 0 = not asked.
        n_parked: f64,
    }
}

record! {
    /// What an agent's session costs.
    pub struct AgentCost from kvcsa_agent_cost {
        /// Tokens found in the cache.
        n_hit_tokens: u64,
        /// Tokens computed.
        n_miss_tokens: u64,
        /// Tokens generated.
        n_output_tokens: u64,
        /// Of the hits.
        hit_cost: f64,
        /// Of the misses.
        miss_cost: f64,
        /// Of the output.
        output_cost: f64,
        /// Sum of the three.
        cost: f64,
        /// If every token of every call's context were a miss.
        uncached_cost: f64,
    }
}

/// A struct of numbers that is filled by its `_default` function, and a setter for each.
macro_rules! numbers {
    ($(#[$doc:meta])* pub struct $name:ident from $raw:ident by $fill:ident {
        $($(#[$fdoc:meta])* $f:ident: $t:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            raw: sys::$raw,
        }

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: the function of this struct, which is numbers.
                $name { raw: unsafe { defaults(sys::$fill) } }
            }
        }

        impl $name {
            /// The library's defaults.
            pub fn new() -> Self {
                Self::default()
            }

            $($(#[$fdoc])* pub fn $f(mut self, value: $t) -> Self {
                self.raw.$f = value;
                self
            })*
        }
    };
}

numbers! {
    /// A number of equal sequences on a number of devices.
    pub struct ServingParams from kvcsa_serving_params by kvcsa_serving_params_default {
        /// Context of each.
        n_tokens: u64,
        /// Sequences; 1 if not set.
        n_users: u64,
        /// The first so many tokens are the same in all.
        n_shared_tokens: u64,
        /// Devices; 1 if not set.
        n_devices: u32,
        /// Free for caches on one device; 0 = not asked.
        device_bytes: u64,
        /// Of each user; 0 = not asked.
        tokens_per_second: f64,
        /// Weights that every step reads.
        dense_bytes: u64,
        /// Of one expert; 0 = the model's, and so are the three that follow.
        expert_bytes: u64,
        /// Routed experts of a layer.
        n_experts: u32,
        /// Routed experts that one token uses.
        n_experts_per_token: u32,
        /// Layers with routed experts.
        n_moe_layers: u32,
    }
}

impl ServingParams {
    /// What is spread over devices.
    pub fn attention(mut self, attention: Attention) -> Self {
        self.raw.attention = attention.raw();
        self
    }
}

numbers! {
    /// A sequence that comes back.
    pub struct ResumeParams from kvcsa_resume_params by kvcsa_resume_params_default {
        /// Its length.
        n_tokens: u64,
        /// Speed of the place where it rests.
        tier_bytes_per_second: f64,
        /// Capacity of that place; 0 = not asked.
        tier_bytes: f64,
        /// Of a prefill; 2 x active parameters.
        flops_per_token: f64,
        /// That a prefill reaches.
        flops_per_second: f64,
        /// Run again after a load to rebuild windows.
        n_replay_tokens: u32,
    }
}

numbers! {
    /// An agent's session: call after call on one growing context.
    pub struct AgentParams from kvcsa_agent_params by kvcsa_agent_params_default {
        /// Calls.
        n_calls: u64,
        /// Tokens in front of the first call.
        context_tokens: u64,
        /// Appended by each result.
        tool_tokens: u64,
        /// Generated by each call.
        generated_tokens: u64,
        /// Price of a million tokens that were in the cache, in any currency.
        hit_price: f64,
        /// Of a million tokens that were not.
        miss_price: f64,
        /// Of a million generated tokens.
        output_price: f64,
    }
}

impl AgentParams {
    /// Whether later calls have what was generated in their context; they do if this is not set.
    pub fn reread_generated(mut self, on: bool) -> Self {
        self.raw.reread_generated = u32::from(on);
        self
    }

    /// What the session costs. Needs no model.
    pub fn cost(&self) -> Result<AgentCost> {
        // SAFETY: parameters and record are there.
        filled(|cost, err| unsafe { sys::kvcsa_agent_get_cost(&self.raw, cost, err) })
            .map(|cost| AgentCost::from_raw(&cost))
    }
}

impl Model {
    /// What devices hold, read and write for a number of sequences.
    pub fn serving_cost(&self, params: &ServingParams) -> Result<ServingCost> {
        // SAFETY: handle, parameters and record are there.
        self.done(filled(|cost, err| unsafe {
            sys::kvcsa_model_serving_cost(self.raw(), &params.raw, cost, err)
        }))
        .map(|cost| ServingCost::from_raw(&cost))
    }

    /// Load or compute again: which is faster.
    pub fn resume_cost(&self, params: &ResumeParams) -> Result<ResumeCost> {
        // SAFETY: handle, parameters and record are there.
        self.done(filled(|cost, err| unsafe {
            sys::kvcsa_model_resume_cost(self.raw(), &params.raw, cost, err)
        }))
        .map(|cost| ResumeCost::from_raw(&cost))
    }
}
