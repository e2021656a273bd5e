//! Models: configuration, cache plan, tokenizer, cost.

use crate::hooks::{kvcsa_allocator, kvcsa_log};
use crate::status::{kvcsa_error, kvcsa_status};
use std::marker::{PhantomData, PhantomPinned};
use std::os::raw::c_char;

/// A model: immutable and shared.
#[repr(C)]
pub struct kvcsa_model {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Read the configuration only: plan and cost work, weights and tokenizer are absent.
pub const KVCSA_MODEL_PLAN_ONLY: u32 = 1;
/// Read the weights into memory instead of mapping the files.
pub const KVCSA_MODEL_READ: u32 = 2;

/// Parameters of [`kvcsa_model_open`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_model_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// NULL = libc.
    pub allocator: *const kvcsa_allocator,
    /// NULL = silent.
    pub log: *const kvcsa_log,
    /// KVCSA_MODEL_\*; unknown bits are refused.
    pub flags: u32,
    /// Tokens per cache block, 0 = 128; a multiple of every ratio and of 8 x the largest ratio with
    /// an index.
    pub block_tokens: u32,
    /// JSON object that changes the cache plan, for example {"entry_format": "bf16"}; NULL = none.
    /// Keys and what of it can be computed: docs/formats.md "Plan overrides". Since 0.3.
    pub plan: *const c_char,
}

/// What a model is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_model_info {
    /// Set by the caller.
    pub struct_size: usize,
    /// For example "DeepseekV41ForCausalLM".
    pub architecture: *const c_char,
    /// Names of the tensors that this version does not use, one per line; "" if none.
    pub skipped_names: *const c_char,
    /// Longest sequence that the model is made for.
    pub max_context_tokens: u64,
    /// Payload of the tensors in use.
    pub weight_bytes: u64,
    /// Payload of the tensors not in use (vision tower, draft stages).
    pub skipped_bytes: u64,
    /// Of the configuration, the tensor table and a sample of each tensor.
    pub fingerprint: u64,
    /// In use.
    pub n_tensors: u32,
    /// Tensors that are not in use.
    pub n_skipped_tensors: u32,
    /// Token ids are below this.
    pub vocab_tokens: u32,
    /// Layers of the network.
    pub n_layers: u32,
    /// Channels of the residual stream.
    pub hidden_size: u32,
    /// Tokens of one cache block.
    pub block_tokens: u32,
    /// -1 = none.
    pub bos_token: i32,
    /// Id of the end token; -1 = none.
    pub eos_token: i32,
    /// Id of the padding token; -1 = none.
    pub pad_token: i32,
    /// Refused as input: this version reads text.
    pub image_token: i32,
    /// One routed expert of one layer; 0 = none, or not known.
    pub expert_bytes: u64,
    /// Routed, of a layer.
    pub n_experts: u32,
    /// Routed experts that one token uses.
    pub n_experts_per_token: u32,
    /// Layers with routed experts.
    pub n_moe_layers: u32,
    /// 1 = this version has the plan of this family and computes its cost, and has no network for
    /// it.
    pub cost_only: u32,
    /// What kvcsa_session_hide and _get_mass count in: 8 x the largest ratio that has an index; 0 =
    /// none has.
    pub span_tokens: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Window only.
pub const KVCSA_SELECT_NONE: i32 = 0;
/// Makes entries, index keys and its own selection (Full).
pub const KVCSA_SELECT_OWN: i32 = 1;
/// The owner's keys, its own selection.
pub const KVCSA_SELECT_REINDEX: i32 = 2;
/// The selection of select_owner (Reuse).
pub const KVCSA_SELECT_INHERITED: i32 = 3;
/// Every entry of kv_owner.
pub const KVCSA_SELECT_ALL: i32 = 4;

/// Neither gives nor takes candidate blocks.
pub const KVCSA_CANDIDATES_NONE: i32 = 0;
/// Its scores choose the candidate blocks.
pub const KVCSA_CANDIDATES_SOURCE: i32 = 1;
/// Searches the candidate blocks of the source alone.
pub const KVCSA_CANDIDATES_CONSUMER: i32 = 2;

/// Nothing is stored.
pub const KVCSA_FORMAT_NONE: u32 = 0;
/// E2M1, one E4M3 scale per 16 channels, no second scale.
pub const KVCSA_FORMAT_FP4_E4M3_G16: u32 = 1;
/// E2M1, one E8M0 scale per 32 channels.
pub const KVCSA_FORMAT_FP4_E8M0_G32: u32 = 2;
/// E4M3, one E8M0 scale per 32 channels.
pub const KVCSA_FORMAT_FP8_E8M0_G32: u32 = 3;
/// IEEE single.
pub const KVCSA_FORMAT_F32: u32 = 4;
/// IEEE half.
pub const KVCSA_FORMAT_F16: u32 = 5;
/// bfloat16.
pub const KVCSA_FORMAT_BF16: u32 = 6;
/// The values of FP4_E4M3_G16, each stored in four bytes: to compare storage with.
pub const KVCSA_FORMAT_FP4_AS_F32: u32 = 7;
/// int8, one fp16 scale per 32 channels.
pub const KVCSA_FORMAT_Q8_0: u32 = 8;
/// 4 bits, one fp16 scale per 32 channels.
pub const KVCSA_FORMAT_Q4_0: u32 = 9;
/// 3 bits, one fp16 scale per 32 channels.
pub const KVCSA_FORMAT_INT3_F16_G32: u32 = 10;
/// No scale.
pub const KVCSA_FORMAT_FP8_E4M3: u32 = 11;
/// E4M3, one fp32 scale per 128 channels.
pub const KVCSA_FORMAT_FP8_F32_G128: u32 = 12;
/// 6 bits a channel, scales not counted.
pub const KVCSA_FORMAT_INT6: u32 = 13;
/// 576 channels: 512 E4M3, four fp32 scales, 64 bf16.
pub const KVCSA_FORMAT_MLA_FP8_656: u32 = 14;
/// 576 channels: 512 E2M1 with a scale per 16, 64 bf16, 16 pad.
pub const KVCSA_FORMAT_MLA_FP4_432: u32 = 15;
/// 512 channels: 448 E4M3, 64 bf16, 7 E8M0 scales, 1 pad.
pub const KVCSA_FORMAT_CSA_FP8_584: u32 = 16;

/// The key is the value.
pub const KVCSA_VALUE_ALIAS: u32 = 0;
/// Stored beside the key.
pub const KVCSA_VALUE_OWN: u32 = 1;
/// The first value_width channels of the key.
pub const KVCSA_VALUE_PREFIX: u32 = 2;

/// One token, one entry.
pub const KVCSA_POOLING_NONE: u32 = 0;
/// Softmax gate per channel over the entry's tokens.
pub const KVCSA_POOLING_GATED: u32 = 1;
/// Likewise, over the tokens of the entry before it too.
pub const KVCSA_POOLING_OVERLAP: u32 = 2;
/// Likewise gated, with a bias per position.
pub const KVCSA_POOLING_WIDE: u32 = 3;

/// What one layer keeps and reads; all sizes of one row of cache in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_plan_row {
    /// Set by the caller.
    pub struct_size: usize,
    /// Number of the layer.
    pub layer: i32,
    /// Layer whose entries and index keys are read; -1 = none.
    pub kv_owner: i32,
    /// Layer whose selection is used; -1 = none.
    pub select_owner: i32,
    /// KVCSA_SELECT_\*.
    pub select: i32,
    /// KVCSA_CANDIDATES_\*.
    pub candidates: i32,
    /// Tokens per entry; 0 = window only.
    pub ratio: u32,
    /// Channels.
    pub entry_width: u32,
    /// KVCSA_FORMAT_\*.
    pub entry_format: u32,
    /// 0 where the layer owns none.
    pub entry_bytes: u32,
    /// Heads of the index query.
    pub index_heads: u32,
    /// Channels of an index key.
    pub index_width: u32,
    /// `KVCSA_FORMAT_*` of index keys.
    pub index_format: u32,
    /// 0 where the layer owns none.
    pub index_bytes: u32,
    /// At most so many entries are attended.
    pub select_entries: u32,
    /// At most so many candidate blocks are searched; 0 = the plan's.
    pub candidate_blocks: u32,
    /// Entries of one candidate block.
    pub candidate_block_entries: u32,
    /// Tokens of the window.
    pub window_tokens: u32,
    /// `KVCSA_FORMAT_*` of window rows.
    pub window_format: u32,
    /// One row.
    pub window_bytes: u32,
    /// Raw row kept between the halves of an entry.
    pub pending_bytes: u32,
    /// An entry holds so many keys of entry_width channels, and values.
    pub kv_heads: u32,
    /// Channels of one value.
    pub value_width: u32,
    /// KVCSA_VALUE_\*.
    pub value_kind: u32,
    /// KVCSA_FORMAT_\*; NONE where the value is not stored.
    pub value_format: u32,
    /// KVCSA_POOLING_\*.
    pub pool_kind: u32,
    /// Linear attention: heads of the state.
    pub state_heads: u32,
    /// Linear attention: of the whole state; does not grow.
    pub state_bytes: u64,
    /// Layer whose index keys are read; -1 = none.
    pub index_owner: i32,
    /// 1 = no kernels for such a layer in this version.
    pub cost_only: u32,
}

/// The five figures, see docs/architecture.md.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_cost {
    /// Set by the caller.
    pub struct_size: usize,
    /// The length that the last three are for.
    pub n_tokens: u64,
    /// Per sequence, does not grow: full windows, and states of linear attention.
    pub const_bytes: u64,
    /// Window rows of n_tokens, states, and whole blocks.
    pub resident_bytes: u64,
    /// Fetched from the cache by one decode step at n_tokens, at most: see kvcsa_work for what a
    /// step did.
    pub read_bytes: u64,
    /// Kept off-device to resume at n_tokens without recomputing entries (the window is replayed).
    pub persist_bytes: u64,
    /// At most, at lengths that end inside an entry.
    pub pending_bytes: u64,
    /// Tokens of one cache block.
    pub block_tokens: u32,
    /// Index part + main part, no padding.
    pub block_bytes: u32,
    /// Of `block_bytes`: index keys.
    pub index_part_bytes: u32,
    /// Of `block_bytes`: entries.
    pub main_part_bytes: u32,
    /// block_bytes / block_tokens.
    pub rate_bytes_per_token: f32,
    /// Layers that own entries.
    pub n_kv_layers: u32,
    /// rate_bytes_per_token, exactly.
    pub rate: f64,
    /// Rate = entry_bytes x sequence_factor x n_kv_layers: bytes of an entry and its index key, on
    /// average.
    pub entry_bytes: f64,
    /// Entries per token and owner, on average.
    pub sequence_factor: f64,
    /// By one decode step, on average: entries, index keys, windows.
    pub written_bytes: f64,
    /// Of const_bytes: linear attention. A prefix cache keeps it at every point that it resumes at.
    pub state_bytes: u64,
    /// Of read_bytes: index keys.
    pub index_read_bytes: u64,
    /// Of read_bytes: window rows.
    pub window_read_bytes: u64,
}

extern "C" {
    /// Name of a KVCSA_FORMAT_\* as plan overrides spell it, for example "fp4"; "?" for an unknown one.
    ///
    /// * **Thread**: any.
    /// * **Owner**: static string.
    /// * **Since**: 0.3
    pub fn kvcsa_format_name(format: u32) -> *const c_char;

    /// Fill params with defaults.
    ///
    /// * `struct_size`: sizeof the caller's struct.
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_model_params_default(params: *mut kvcsa_model_params, struct_size: usize);

    /// Open a checkpoint directory in the released DeepSeek-V4.1 format: config.json, tokenizer.json,
    /// safetensors shards with model.safetensors.index.json (or one model.safetensors). With
    /// KVCSA_MODEL_PLAN_ONLY `path` may also be a config.json, and of many other families too:
    /// docs/formats.md "Families" lists them.
    ///
    /// Weights are mapped read-only (default): the file must not be truncated while the model is open,
    /// or the process receives SIGBUS at the next touch; use KVCSA_MODEL_READ where that can happen.
    /// Files are treated as hostile and fully checked.
    ///
    /// * **Status**: ERR_IO a file cannot be read; ERR_FORMAT it is not what it claims (text names
    ///   file, field, value, limit); ERR_UNSUPPORTED another architecture, or one of which this version
    ///   has the plan only; ERR_NOMEM; ERR_ARG.
    /// * **Thread**: any.
    /// * **Owner**: the caller owns \*out.
    /// * **Since**: 0.1
    pub fn kvcsa_model_open(
        path: *const c_char,
        params: *const kvcsa_model_params,
        out: *mut *mut kvcsa_model,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Drop the caller's reference. The model lives until its last session, pool or stream is gone.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_model_release(model: *mut *mut kvcsa_model);

    /// Describe an open model. Strings belong to the model.
    ///
    /// * **Status**: ERR_ARG model or info NULL, struct_size smaller than the first release's.
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_model_get_info(
        model: *const kvcsa_model,
        info: *mut kvcsa_model_info,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// One row of the cache plan.
    ///
    /// * `layer`: 0..n_layers-1.
    /// * **Status**: ERR_ARG.
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_model_plan_row(
        model: *const kvcsa_model,
        layer: u32,
        row: *mut kvcsa_plan_row,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// The five cache figures of one sequence of n_tokens, from the plan alone (nothing is allocated).
    ///
    /// * **Status**: ERR_ARG; ERR_LIMIT n_tokens above max_context_tokens.
    /// * **Thread**: any.
    /// * **Source**: docs/architecture.md "Five figures".
    /// * **Since**: 0.1
    pub fn kvcsa_model_cost(
        model: *const kvcsa_model,
        n_tokens: u64,
        cost: *mut kvcsa_cost,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}

/// Cut out special tokens; without it their text is encoded as plain text.
pub const KVCSA_TOKENIZE_SPECIAL: u32 = 1;

extern "C" {
    /// Encode UTF-8 text. Bytes that are not UTF-8 are encoded byte by byte. No token is added.
    ///
    /// * `text`: u8 \[n_bytes\]; may hold NUL.
    /// * `ids`: i32 \[cap\], may be NULL when cap is 0.
    /// * `n_ids`: number of ids of the whole text, also when it is more than cap (then ids holds the
    ///   first cap).
    /// * **Status**: ERR_ARG; ERR_UNSUPPORTED plan-only model; ERR_NOMEM.
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_model_tokenize(
        model: *const kvcsa_model,
        text: *const c_char,
        n_bytes: usize,
        flags: u32,
        ids: *mut i32,
        cap: usize,
        n_ids: *mut usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// The bytes of one token; they need not be whole characters (use kvcsa_text_stream to print).
    ///
    /// * `text`: set to the bytes, owned by the model, not terminated.
    /// * **Status**: ERR_ARG id out of range; ERR_UNSUPPORTED plan-only model.
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_model_token_text(
        model: *const kvcsa_model,
        id: i32,
        text: *mut *const c_char,
        n_bytes: *mut usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Bytes of a list of tokens, concatenated.
    ///
    /// * `text`: u8 \[cap\], may be NULL when cap is 0. Not terminated.
    /// * `n_bytes`: bytes of the whole list, also when it is more than cap.
    /// * **Status**: ERR_ARG id out of range; ERR_UNSUPPORTED.
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_model_detokenize(
        model: *const kvcsa_model,
        ids: *const i32,
        n_ids: usize,
        text: *mut c_char,
        cap: usize,
        n_bytes: *mut usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}

/// One message of a conversation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_message {
    /// "system", "user" or "assistant".
    pub role: *const c_char,
    /// UTF-8, terminated; special tokens in it are encoded as plain text.
    pub text: *const c_char,
}

extern "C" {
    /// Token ids of a conversation in the model's chat format, ending where the assistant is to write
    /// (chat mode, no reasoning).
    ///
    /// * `ids`, `cap`, `n_ids`: as for kvcsa_model_tokenize.
    /// * **Status**: ERR_ARG unknown role or NULL; ERR_UNSUPPORTED the tokenizer lacks a token of the
    ///   format.
    /// * **Thread**: any.
    /// * **Source**: docs/formats.md "Tokenizer and prompt".
    /// * **Since**: 0.1
    pub fn kvcsa_model_chat_prompt(
        model: *const kvcsa_model,
        messages: *const kvcsa_message,
        n_messages: usize,
        ids: *mut i32,
        cap: usize,
        n_ids: *mut usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}

/// Parameters of [`kvcsa_model_from_plan`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_plan_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// NULL = libc.
    pub allocator: *const kvcsa_allocator,
    /// NULL = silent.
    pub log: *const kvcsa_log,
    /// kvcsa_model_info.architecture; NULL = "plan".
    pub name: *const c_char,
    /// Of the weights that make the rows. Sessions share where rows, name and identity are the
    /// same.
    pub identity: u64,
    /// Context limit, at most 2^32 - 1, which 0 means too.
    pub max_tokens: u64,
    /// As in [`kvcsa_model_params`].
    pub block_tokens: u32,
    /// Token ids are below; 0 = any of 0 .. 2^31 - 1.
    pub vocab_tokens: u32,
}

extern "C" {
    /// Fill params with defaults.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.4
    pub fn kvcsa_plan_params_default(params: *mut kvcsa_plan_params, struct_size: usize);

    /// A model from a cache plan alone: cost, estimates and KVCSA_SESSION_CACHE_ONLY sessions work
    /// with it. (kvcsa_model_open with KVCSA_MODEL_PLAN_ONLY makes one from a config.json.)
    ///
    /// What follows from other fields may be 0: entry_bytes, index_bytes, window_bytes, pending_bytes;
    /// where they are not, they must be right. cost_only is not read. Fields of a row say nothing of
    /// the layer in front of it: give each in full, owners as layer numbers, -1 for none.
    ///
    /// * `rows`: \[n_rows\], layer 0 first; all with the struct_size of the first one, which is their
    ///   distance too. Copied.
    /// * `n_rows`: 1..1024.
    /// * **Status**: ERR_ARG; ERR_FORMAT a row breaks a rule of plans (text names layer, field, value
    ///   and limit); ERR_UNSUPPORTED a struct is larger than known and not zero there; ERR_NOMEM.
    /// * **Thread**: any.
    /// * **Owner**: the caller owns \*out.
    /// * **Source**: docs/formats.md "Plan rows".
    /// * **Since**: 0.4
    pub fn kvcsa_model_from_plan(
        rows: *const kvcsa_plan_row,
        n_rows: usize,
        params: *const kvcsa_plan_params,
        out: *mut *mut kvcsa_model,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}
