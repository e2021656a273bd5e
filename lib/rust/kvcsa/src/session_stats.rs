//! What sessions did and hold.

use crate::hooks::Reason;
use crate::session_params::Reuse;
use kvcsa_sys as sys;

/// Groups of layers that work is counted in, see [`SessionStats::step`].
pub const N_LAYER_GROUPS: usize = sys::KVCSA_N_LAYER_GROUPS;

c_enum! {
    /// Groups of layers, by what they do about entries: indices of [`SessionStats::step`].
    pub enum LayerGroup: u32 {
        /// They read their window only.
        Window = KVCSA_LAYERS_WINDOW,
        /// They make entries, and select from all of them.
        Full = KVCSA_LAYERS_FULL,
        /// They select from the entries of another layer.
        Reindex = KVCSA_LAYERS_REINDEX,
        /// They use another layer's selection.
        Reuse = KVCSA_LAYERS_REUSE,
    }
}

record! {
    /// What became of the tokens of an append or a sync.
    pub struct ReuseReport from kvcsa_reuse {
        /// Held before and still held.
        n_kept: u64,
        /// Taken from a known prefix.
        n_adopted: u64,
        /// Of those held: to be run again for windows or logits (rows of layer 0).
        n_replay: u64,
        /// To be computed; n_kept + n_adopted + n_compute is the length.
        n_compute: u64,
        /// In force.
        how: Reuse,
        /// Why `n_compute` is not less.
        reason: Reason,
    }
}

record! {
    /// What layers did, counted exactly; rows of a cancelled or failed chunk count too.
    pub struct Work from kvcsa_work {
        /// Rows that ran through attention and feed-forward.
        n_rows: u64,
        /// Rows that came in only to rebuild windows; of these, some run no further than their
        /// window row.
        n_replayed_rows: u64,
        /// Rows for which keys were scored and the best selected; a row that sees no more entries
        /// than it may select needs none.
        n_selections: u64,
        /// Index keys that were scored.
        n_keys_scored: u64,
        /// Published by the source, or searched by a consumer; of rows that are scored.
        n_candidate_blocks: u64,
        /// Selected entries that attention read.
        n_entries_read: u64,
        /// Window rows that attention read.
        n_window_rows_read: u64,
        /// Entries that were written.
        n_entries_written: u64,
        /// Window rows that were written.
        n_window_rows_written: u64,
        /// Cache blocks whose keys or entries a row read: each counts once a row and part (index,
        /// main).
        n_blocks_touched: u64,
        /// Routed: rows x experts a token.
        n_experts: u64,
        /// Keys, entries, window rows.
        read_bytes: u64,
        /// Of these: keys.
        index_read_bytes: u64,
        /// Entries, keys, window rows, raw rows.
        written_bytes: u64,
    }
}

record! {
    /// Figures of a session.
    pub struct SessionStats from kvcsa_session_stats {
        /// Committed.
        n_tokens: u64,
        /// Tokens that wait for a step.
        n_queued: u64,
        /// Compressed entries of all owners.
        n_entries: u64,
        /// Entries and index keys in use.
        entry_bytes: u64,
        /// Number of blocks.
        n_blocks: u64,
        /// Blocks in use, shared ones included.
        block_bytes: u64,
        /// Window rows, shared ones included.
        window_bytes: u64,
        /// Scratch of a step; outside the pool's budget.
        workspace_bytes: u64,
        /// Token rows computed since creation, cancelled ones included.
        n_computed_rows: u64,
        /// Of block_bytes: held by somebody else too (another session or the prefix tree).
        shared_bytes: u64,
        /// Rows of layer 0 run again since creation.
        n_replayed_rows: u64,
        /// Taken from known prefixes since creation.
        n_adopted_tokens: u64,
        /// Rows of layer 0 that the next step will run again.
        n_replay: u64,
        /// Entries below this position are those of an undisturbed run.
        n_exact_tokens: u64,
        /// Of the last step that the session took part in, by [`LayerGroup`].
        step: [Work; N_LAYER_GROUPS],
        /// Since creation, likewise.
        total: [Work; N_LAYER_GROUPS],
    }
}
