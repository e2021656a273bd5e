//! What a cache costs, from the plan alone.

use crate::model::kvcsa_model;
use crate::status::{kvcsa_error, kvcsa_status};

/// Heads of every sequence are spread over devices.
pub const KVCSA_ATTENTION_TP: u32 = 0;
/// Heads of every sequence, or whole sequences, are spread over devices.
pub const KVCSA_ATTENTION_DP: u32 = 1;

/// A number of equal sequences on a number of devices.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_serving_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// Context of each.
    pub n_tokens: u64,
    /// Sequences; default 1.
    pub n_users: u64,
    /// The first so many tokens are the same in all.
    pub n_shared_tokens: u64,
    /// Default 1.
    pub n_devices: u32,
    /// KVCSA_ATTENTION_\*.
    pub attention: u32,
    /// Free for caches on one device; 0 = not asked.
    pub device_bytes: u64,
    /// Of each user; 0 = not asked.
    pub tokens_per_second: f64,
    /// Weights that every step reads.
    pub dense_bytes: u64,
    /// Of one expert; 0 = the model's,.
    pub expert_bytes: u64,
    /// Routed experts of a layer; 0 = the model's.
    pub n_experts: u32,
    /// Routed experts that one token uses.
    pub n_experts_per_token: u32,
    /// Layers with routed experts.
    pub n_moe_layers: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// What equal sequences cost.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_serving_cost {
    /// Set by the caller.
    pub struct_size: usize,
    /// All devices; what is shared counts once a device that holds it.
    pub resident_bytes: u64,
    /// Of the fullest device.
    pub device_resident_bytes: u64,
    /// From caches by one step of all users, all devices.
    pub read_bytes: u64,
    /// Of the busiest device.
    pub device_read_bytes: u64,
    /// Kept off-device to resume all of them (persist_bytes; what is shared counts once).
    pub parked_bytes: u64,
    /// That fit into device_bytes on every device; 0 = not asked; 2^63 - 1 = no limit.
    pub max_users: u64,
    /// By one step of all users, all devices.
    pub written_bytes: f64,
    /// Expected in one layer for one token of each user, if routing were uniform.
    pub distinct_experts: f64,
    /// dense_bytes + expected experts of all layers.
    pub weight_bytes: f64,
    /// Caches; 0 = not asked.
    pub read_bytes_per_second: f64,
    /// Bytes that one more token of one sequence takes on one device that holds it.
    pub device_rate: f64,
}

extern "C" {
    /// Fill params with defaults.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.3
    pub fn kvcsa_serving_params_default(params: *mut kvcsa_serving_params, struct_size: usize);

    /// What devices hold, read and write for a number of sequences, from the plan alone.
    ///
    /// * **Status**: ERR_ARG n_shared_tokens above n_tokens, n_users or n_devices 0,
    ///   n_experts_per_token above n_experts, tokens_per_second negative or not finite; ERR_UNSUPPORTED
    ///   attention unknown, reserved not 0; ERR_LIMIT n_tokens above max_context_tokens, or a sum above
    ///   2^63; ERR_NOMEM.
    /// * **Thread**: any.
    /// * **Source**: docs/measuring.md "Cost".
    /// * **Since**: 0.3
    pub fn kvcsa_model_serving_cost(
        model: *const kvcsa_model,
        params: *const kvcsa_serving_params,
        cost: *mut kvcsa_serving_cost,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}

/// A sequence that comes back.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_resume_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// Number of tokens.
    pub n_tokens: u64,
    /// Of the place where it rests.
    pub tier_bytes_per_second: f64,
    /// Its capacity; 0 = not asked.
    pub tier_bytes: f64,
    /// Of a prefill; 2 x active parameters.
    pub flops_per_token: f64,
    /// That a prefill reaches.
    pub flops_per_second: f64,
    /// Run again after a load to rebuild windows.
    pub n_replay_tokens: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Load or compute again.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_resume_cost {
    /// Set by the caller.
    pub struct_size: usize,
    /// To load: persist_bytes.
    pub n_bytes: u64,
    /// Time to load the bytes.
    pub load_seconds: f64,
    /// Time to rebuild the windows.
    pub replay_seconds: f64,
    /// Time to compute all tokens again.
    pub recompute_seconds: f64,
    /// Recompute / (load + replay); 0 for no tokens, infinity if nothing takes time.
    pub ratio: f64,
    /// Tier speed at which loading only just pays, replay included; infinity if it never does.
    pub break_even_bytes_per_second: f64,
    /// Sequences that the tier holds; 0 = not asked.
    pub n_parked: f64,
}

extern "C" {
    /// Fill params with defaults.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.3
    pub fn kvcsa_resume_params_default(params: *mut kvcsa_resume_params, struct_size: usize);

    /// Load or compute again: which is faster for a sequence of n_tokens.
    ///
    /// * **Status**: ERR_ARG a speed or flops_per_token that is not above 0 and finite; ERR_UNSUPPORTED
    ///   reserved not 0; ERR_LIMIT.
    /// * **Thread**: any.
    /// * **Since**: 0.3
    pub fn kvcsa_model_resume_cost(
        model: *const kvcsa_model,
        params: *const kvcsa_resume_params,
        cost: *mut kvcsa_resume_cost,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}

/// An agent's session: call after call on one growing context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_agent_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// Calls of the agent.
    pub n_calls: u64,
    /// In front of the first call.
    pub context_tokens: u64,
    /// Appended by each result.
    pub tool_tokens: u64,
    /// By each call.
    pub generated_tokens: u64,
    /// 1 = later calls have what was generated in their context (the default).
    pub reread_generated: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Per million tokens, in any currency.
    pub hit_price: f64,
    /// Likewise of tokens that are computed.
    pub miss_price: f64,
    /// Likewise of generated tokens.
    pub output_price: f64,
}

/// What an agent's session costs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_agent_cost {
    /// Set by the caller.
    pub struct_size: usize,
    /// Tokens found in the cache.
    pub n_hit_tokens: u64,
    /// Tokens computed.
    pub n_miss_tokens: u64,
    /// Tokens generated.
    pub n_output_tokens: u64,
    /// Of the hits.
    pub hit_cost: f64,
    /// Of the misses.
    pub miss_cost: f64,
    /// Of the output.
    pub output_cost: f64,
    /// Sum of the three.
    pub cost: f64,
    /// If every token of every call's context were a miss.
    pub uncached_cost: f64,
}

extern "C" {
    /// Fill params with defaults.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.3
    pub fn kvcsa_agent_params_default(params: *mut kvcsa_agent_params, struct_size: usize);

    /// What an agent's session costs where hits, misses and output have prices. Needs no model.
    ///
    /// * **Status**: ERR_ARG n_calls 0, reread_generated above 1, negative or non-finite price;
    ///   ERR_UNSUPPORTED reserved not 0; ERR_LIMIT tokens above 2^63.
    /// * **Thread**: any.
    /// * **Since**: 0.3
    pub fn kvcsa_agent_get_cost(
        params: *const kvcsa_agent_params,
        cost: *mut kvcsa_agent_cost,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}
