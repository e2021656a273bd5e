//! The cache plan of a model and what it costs.

use crate::raw::Tagged;
use kvcsa_sys as sys;
use std::ffi::CStr;

c_enum! {
    /// How a layer gets the entries that it reads.
    pub enum Select: i32 {
        /// Window only.
        None = KVCSA_SELECT_NONE,
        /// Makes entries, index keys and its own selection (Full).
        Own = KVCSA_SELECT_OWN,
        /// The owner's keys, its own selection.
        Reindex = KVCSA_SELECT_REINDEX,
        /// The selection of select_owner (Reuse).
        Inherited = KVCSA_SELECT_INHERITED,
        /// Every entry of kv_owner.
        All = KVCSA_SELECT_ALL,
    }
}

c_enum! {
    /// A layer's part in choosing candidate blocks.
    pub enum Candidates: i32 {
        /// Neither gives nor takes candidate blocks.
        None = KVCSA_CANDIDATES_NONE,
        /// Its scores choose the candidate blocks.
        Source = KVCSA_CANDIDATES_SOURCE,
        /// Searches the candidate blocks of the source alone.
        Consumer = KVCSA_CANDIDATES_CONSUMER,
    }
}

c_enum! {
    /// Format of cached rows.
    pub enum Format: u32 {
        /// Nothing is stored.
        None = KVCSA_FORMAT_NONE,
        /// E2M1, one E4M3 scale per 16 channels, no second scale.
        Fp4E4m3G16 = KVCSA_FORMAT_FP4_E4M3_G16,
        /// E2M1, one E8M0 scale per 32 channels.
        Fp4E8m0G32 = KVCSA_FORMAT_FP4_E8M0_G32,
        /// E4M3, one E8M0 scale per 32 channels.
        Fp8E8m0G32 = KVCSA_FORMAT_FP8_E8M0_G32,
        /// IEEE single.
        F32 = KVCSA_FORMAT_F32,
        /// IEEE half.
        F16 = KVCSA_FORMAT_F16,
        /// bfloat16.
        Bf16 = KVCSA_FORMAT_BF16,
        /// The values of FP4_E4M3_G16, each stored in four bytes: to compare storage with.
        Fp4AsF32 = KVCSA_FORMAT_FP4_AS_F32,
        /// int8, one fp16 scale per 32 channels.
        Q8_0 = KVCSA_FORMAT_Q8_0,
        /// 4 bits, one fp16 scale per 32 channels.
        Q4_0 = KVCSA_FORMAT_Q4_0,
        /// 3 bits, one fp16 scale per 32 channels.
        Int3F16G32 = KVCSA_FORMAT_INT3_F16_G32,
        /// No scale.
        Fp8E4m3 = KVCSA_FORMAT_FP8_E4M3,
        /// E4M3, one fp32 scale per 128 channels.
        Fp8F32G128 = KVCSA_FORMAT_FP8_F32_G128,
        /// 6 bits a channel, scales not counted.
        Int6 = KVCSA_FORMAT_INT6,
        /// 576 channels: 512 E4M3, four fp32 scales, 64 bf16.
        MlaFp8_656 = KVCSA_FORMAT_MLA_FP8_656,
        /// 576 channels: 512 E2M1 with a scale per 16, 64 bf16, 16 pad.
        MlaFp4_432 = KVCSA_FORMAT_MLA_FP4_432,
        /// 512 channels: 448 E4M3, 64 bf16, 7 E8M0 scales, 1 pad.
        CsaFp8_584 = KVCSA_FORMAT_CSA_FP8_584,
    }
}

impl Format {
    /// The name as plan overrides spell it, for example `fp4`; `?` for an unknown one.
    pub fn name(self) -> &'static str {
        // SAFETY: a static string for every value.
        unsafe { CStr::from_ptr(kvcsa_sys::kvcsa_format_name(self.raw())) }
            .to_str()
            .unwrap_or("?")
    }
}

c_enum! {
    /// Where values are.
    pub enum ValueKind: u32 {
        /// The key is the value.
        Alias = KVCSA_VALUE_ALIAS,
        /// Stored beside the key.
        Own = KVCSA_VALUE_OWN,
        /// The first value_width channels of the key.
        Prefix = KVCSA_VALUE_PREFIX,
    }
}

c_enum! {
    /// How the tokens of an entry become one.
    pub enum Pooling: u32 {
        /// One token, one entry.
        None = KVCSA_POOLING_NONE,
        /// Softmax gate per channel over the entry's tokens.
        Gated = KVCSA_POOLING_GATED,
        /// Likewise, over the tokens of the entry before it too.
        Overlap = KVCSA_POOLING_OVERLAP,
        /// Likewise gated, with a bias per position.
        Wide = KVCSA_POOLING_WIDE,
    }
}

record! {
    /// What one layer keeps and reads; all sizes of one row of cache in bytes.
    ///
    /// For [`Model::from_plan`](crate::Model::from_plan) begin with [`PlanRow::attention`], or with
    /// [`PlanRow::default`], which keeps and reads nothing, and set what is different:
    ///
    /// ```
    /// let mut row = kvcsa::PlanRow::attention(3, 8, 128, kvcsa::Format::Bf16);
    /// row.kv_owner = Some(2); // reads the entries of the layer below
    /// ```
    pub struct PlanRow from kvcsa_plan_row {
        /// Number of the layer.
        layer: i32,
        /// Layer whose entries and index keys are read.
        kv_owner: Option<i32>,
        /// Layer whose selection is used.
        select_owner: Option<i32>,
        /// How the entries are selected that attention reads.
        select: Select,
        /// Its part in choosing candidate blocks.
        candidates: Candidates,
        /// Tokens per entry; 0 = window only.
        ratio: u32,
        /// Channels.
        entry_width: u32,
        /// Format of entries.
        entry_format: Format,
        /// 0 where the layer owns none.
        entry_bytes: u32,
        /// Heads of the index query.
        index_heads: u32,
        /// Channels of an index key.
        index_width: u32,
        /// Format of index keys.
        index_format: Format,
        /// 0 where the layer owns none.
        index_bytes: u32,
        /// At most so many entries are attended.
        select_entries: u32,
        /// At most so many candidate blocks are searched; 0 = the plan's.
        candidate_blocks: u32,
        /// Entries of one candidate block.
        candidate_block_entries: u32,
        /// Tokens of the window.
        window_tokens: u32,
        /// Format of window rows.
        window_format: Format,
        /// One row.
        window_bytes: u32,
        /// Raw row kept between the halves of an entry.
        pending_bytes: u32,
        /// An entry holds so many keys of entry_width channels, and values.
        kv_heads: u32,
        /// Channels of one value.
        value_width: u32,
        /// Where values are.
        value_kind: ValueKind,
        /// Format of values; `None` where they are not stored.
        value_format: Format,
        /// How `ratio` tokens become one entry.
        pool_kind: Pooling,
        /// Linear attention: heads of the state.
        state_heads: u32,
        /// Linear attention: of the whole state; does not grow.
        state_bytes: u64,
        /// Layer whose index keys are read.
        index_owner: Option<i32>,
        /// This version has the plan and computes its cost, and has no network for it.
        cost_only: bool,
    }
}

impl Default for PlanRow {
    fn default() -> Self {
        let mut raw = sys::kvcsa_plan_row::tagged();
        raw.kv_owner = -1;
        raw.select_owner = -1;
        raw.index_owner = -1;
        PlanRow::from_raw(&raw)
    }
}

impl PlanRow {
    /// A layer with keys and values of its own for each token, every one of which it attends to:
    /// `kv_heads` of `width` channels each.
    pub fn attention(layer: i32, kv_heads: u32, width: u32, format: Format) -> Self {
        PlanRow {
            layer,
            kv_owner: Some(layer),
            select: Select::All,
            ratio: 1,
            kv_heads,
            entry_width: width,
            entry_format: format,
            value_width: width,
            value_kind: ValueKind::Own,
            value_format: format,
            ..PlanRow::default()
        }
    }

    pub(crate) fn to_raw(&self) -> sys::kvcsa_plan_row {
        sys::kvcsa_plan_row {
            struct_size: std::mem::size_of::<sys::kvcsa_plan_row>(),
            layer: self.layer,
            kv_owner: self.kv_owner.unwrap_or(-1),
            select_owner: self.select_owner.unwrap_or(-1),
            select: self.select.raw(),
            candidates: self.candidates.raw(),
            ratio: self.ratio,
            entry_width: self.entry_width,
            entry_format: self.entry_format.raw(),
            entry_bytes: self.entry_bytes,
            index_heads: self.index_heads,
            index_width: self.index_width,
            index_format: self.index_format.raw(),
            index_bytes: self.index_bytes,
            select_entries: self.select_entries,
            candidate_blocks: self.candidate_blocks,
            candidate_block_entries: self.candidate_block_entries,
            window_tokens: self.window_tokens,
            window_format: self.window_format.raw(),
            window_bytes: self.window_bytes,
            pending_bytes: self.pending_bytes,
            kv_heads: self.kv_heads,
            value_width: self.value_width,
            value_kind: self.value_kind.raw(),
            value_format: self.value_format.raw(),
            pool_kind: self.pool_kind.raw(),
            state_heads: self.state_heads,
            state_bytes: self.state_bytes,
            index_owner: self.index_owner.unwrap_or(-1),
            cost_only: u32::from(self.cost_only),
        }
    }
}

record! {
    /// The five figures, see docs/architecture.md.
    pub struct Cost from kvcsa_cost {
        /// The length that the last three are for.
        n_tokens: u64,
        /// Per sequence, does not grow: full windows, and states of linear attention.
        const_bytes: u64,
        /// Window rows of n_tokens, states, and whole blocks.
        resident_bytes: u64,
        /// Fetched from the cache by one decode step at n_tokens, at most; see
        /// [`Work`](crate::Work) for what a step did.
        read_bytes: u64,
        /// Kept off-device to resume at n_tokens without recomputing entries (the window is
        /// replayed).
        persist_bytes: u64,
        /// At most, at lengths that end inside an entry.
        pending_bytes: u64,
        /// Tokens of one cache block.
        block_tokens: u32,
        /// Index part + main part, no padding.
        block_bytes: u32,
        /// Of `block_bytes`: index keys.
        index_part_bytes: u32,
        /// Of `block_bytes`: entries.
        main_part_bytes: u32,
        /// block_bytes / block_tokens.
        rate_bytes_per_token: f32,
        /// Layers that own entries.
        n_kv_layers: u32,
        /// rate_bytes_per_token, exactly.
        rate: f64,
        /// Rate = entry_bytes x sequence_factor x n_kv_layers: bytes of an entry and its index key,
        /// on average.
        entry_bytes: f64,
        /// Entries per token and owner, on average.
        sequence_factor: f64,
        /// By one decode step, on average: entries, index keys, windows.
        written_bytes: f64,
        /// Of const_bytes: linear attention. A prefix cache keeps it at every point that it resumes
        /// at.
        state_bytes: u64,
        /// Of read_bytes: index keys.
        index_read_bytes: u64,
        /// Of read_bytes: window rows.
        window_read_bytes: u64,
    }
}

record! {
    /// Bytes of n_sessions sessions of n_tokens each.
    pub struct Estimate from kvcsa_estimate {
        /// Blocks; what is shared counts once.
        block_bytes: u64,
        /// Window pages and pending rows.
        window_bytes: u64,
        /// Sum: what the pool's budget must hold.
        used_bytes: u64,
        /// Memory that the pool takes from the allocator for them.
        slab_bytes: u64,
        /// Memory for what describes blocks: token ids, keys, counts.
        record_bytes: u64,
        /// Number of blocks.
        n_blocks: u64,
    }
}
