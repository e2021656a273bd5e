//! A network of the host's own: sessions that are used for their cache alone.
//!
//! Tokens are appended as ever, so that known prefixes, forks, rewinds, snapshots and tiers work as
//! they do for everybody; where kvcsa_pool_step would compute rows, the host does:
//!
//! 1. [`kvcsa_chunk_begin`]: which rows come next; what is known of them has been adopted;
//! 2. of every layer, in ascending order: [`kvcsa_chunk_write`] its entries, index keys and window
//!    rows, [`kvcsa_chunk_select`] where it makes a selection, [`kvcsa_chunk_attend`];
//! 3. [`kvcsa_chunk_commit`]: the session holds these tokens now; or [`kvcsa_chunk_abandon`].
//!
//! While a chunk is open, every other call on its session gives KVCSA_ERR_BUSY, but for release,
//! cancel, kvcsa_session_length and kvcsa_session_read_rows. Rows are the host's floats: it rotates
//! keys and queries, and rotates back what it attends to if values carry a rotation.

use crate::session::kvcsa_session;
use crate::status::{kvcsa_error, kvcsa_status};

/// The rows that are to be computed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_chunk_info {
    /// Set by the caller.
    pub struct_size: usize,
    /// Of the first row.
    pub position: u64,
    /// Tokens of the session that are left to come after these.
    pub n_queued: u64,
    /// i32 \[n_rows\]; likewise below the session's, until the chunk is closed.
    pub tokens: *const i32,
    /// u64 \[n_layers + 1\]: of a layer, window rows are wanted from position first_rows\[layer\] on,
    /// queries from first_rows\[layer + 1\] on; those below are not looked at.
    pub first_rows: *const u64,
    /// 0 = nothing is to be computed, and no chunk is open.
    pub n_rows: u32,
    /// 1 = the session holds these tokens; entries and index keys are there, windows are made anew.
    pub replay: u32,
}

/// f32 \[n, heads, width\]; the channels of a head lie side by side. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_rows {
    /// NULL = there are none.
    pub data: *const f32,
    /// Floats from a row to the next; 0 = heads x width.
    pub row_stride: usize,
    /// Floats from a head to the next; 0 = width.
    pub head_stride: usize,
}

/// `data` and `out` are pointers of the pool's device. Whatever fills them has finished; results are
/// there when the call returns.
pub const KVCSA_ROWS_ON_DEVICE: u32 = 1;

/// What a layer makes of a chunk; zero it and set struct_size, likewise below.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_chunk_rows {
    /// Set by the caller.
    pub struct_size: usize,
    /// \[n_entries, kv_heads, entry_width\] of the entries that the rows complete: numbers position /
    /// ratio .. (position + n_rows) / ratio - 1; of layers that own entries, but not in a replay.
    pub key: kvcsa_rows,
    /// \[n_entries, kv_heads, value_width\] likewise, with KVCSA_VALUE_OWN.
    pub value: kvcsa_rows,
    /// \[n_entries, 1, index_width\] likewise, where index_bytes is not 0.
    pub index_key: kvcsa_rows,
    /// \[n_rows, 1, entry_width\], where the layer has a window.
    pub window: kvcsa_rows,
    /// \[n_rows, 1, pending_bytes / 4 / (ratio - 1)\] what the host wants of the rows of an entry
    /// when a later chunk completes it (KVCSA_READ_PENDING), where pending_bytes is not 0.
    pub pending: kvcsa_rows,
    /// KVCSA_ROWS_\*.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// What a layer asks its index.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_chunk_queries {
    /// Set by the caller.
    pub struct_size: usize,
    /// \[n_rows, index_heads, index_width\], rotated.
    pub query: kvcsa_rows,
    /// \[n_rows, 1, index_heads\] of the heads' scores; times index_width^-0.5 x index_heads^-0.5
    /// here.
    pub weights: kvcsa_rows,
    /// i32 \[n_rows, select_entries\] out, the host's memory: the entries, ascending, -1 behind them;
    /// NULL = not wanted.
    pub ids: *mut i32,
    /// KVCSA_ROWS_\*.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// What a layer attends with.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_chunk_attention {
    /// Set by the caller.
    pub struct_size: usize,
    /// \[n_rows, n_heads, entry_width\], rotated.
    pub query: kvcsa_rows,
    /// f32 \[n_rows, n_heads, value_width\].
    pub out: *mut f32,
    /// As in [`kvcsa_rows`].
    pub out_row_stride: usize,
    /// As in [`kvcsa_rows`].
    pub out_head_stride: usize,
    /// f32 \[n_heads\] logits in the denominator, the host's memory; NULL = none.
    pub sink: *const f32,
    /// A multiple of kv_heads.
    pub n_heads: u32,
    /// Of query x key; 0 = entry_width^-0.5.
    pub scale: f32,
    /// KVCSA_ROWS_\*.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// Keys of entries: f32 \[n, kv_heads, entry_width\].
pub const KVCSA_READ_KEYS: u32 = 1;
/// Values of entries: f32 \[n, kv_heads, value_width\]; with KVCSA_VALUE_ALIAS and _PREFIX channels
/// of the keys.
pub const KVCSA_READ_VALUES: u32 = 2;
/// Index keys of entries: f32 \[n, index_width\].
pub const KVCSA_READ_INDEX_KEYS: u32 = 3;
/// Window rows of positions: f32 \[n, entry_width\]; as many as the window has stand in front of the
/// chunk, or at the end.
pub const KVCSA_READ_WINDOW: u32 = 4;
/// Pending rows of positions: f32 \[n, pending_bytes / 4 / (ratio - 1)\], of the entry that is not
/// complete.
pub const KVCSA_READ_PENDING: u32 = 5;

extern "C" {
    /// Open a chunk: the next rows of what was appended, or of windows that have to be rebuilt first.
    /// Known prefixes are adopted here (kvcsa_session_get_reuse tells).
    ///
    /// * `session`: made with KVCSA_SESSION_CACHE_ONLY.
    /// * `max_rows`: 0 = chunk_tokens of the session, which bounds it in any case.
    /// * **Status**: ERR_ARG the session is not cache-only; ERR_BUSY a chunk is open; ERR_FULL,
    ///   ERR_NOMEM, ERR_BACKEND: the queue is as it was; ERR_CANCELLED kvcsa_session_cancel was called:
    ///   the queue is empty, the session as before the append.
    /// * **Thread**: one.
    /// * **Since**: 0.4
    pub fn kvcsa_chunk_begin(
        session: *mut kvcsa_session,
        max_rows: u32,
        info: *mut kvcsa_chunk_info,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Quantise and store what a layer makes of the open chunk. Needed once of every layer that owns
    /// entries or has a window, before anything attends to it; a second time replaces the first.
    ///
    /// * **Status**: ERR_ARG no chunk is open, no such layer, rows missing, or given where there are
    ///   none; ERR_UNSUPPORTED flags, or a device where the pool has none; ERR_NOMEM; ERR_BACKEND. The
    ///   chunk stays open.
    /// * **Thread**: one.
    /// * **Since**: 0.4
    pub fn kvcsa_chunk_write(
        session: *mut kvcsa_session,
        layer: u32,
        rows: *const kvcsa_chunk_rows,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Score the index keys and select, with two levels where the plan has candidates. The selection
    /// serves the layer and those that inherit it, until the next one. Limits of the session and hidden
    /// spans hold.
    ///
    /// * **Status**: ERR_ARG no chunk is open, the layer makes no selection, the layers whose keys or
    ///   candidates it reads were not written or selected; otherwise as kvcsa_chunk_write().
    /// * **Thread**: one.
    /// * **Since**: 0.4
    pub fn kvcsa_chunk_select(
        session: *mut kvcsa_session,
        layer: u32,
        queries: *const kvcsa_chunk_queries,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Attention of the chunk's rows, each up to its own position. A window and selected entries share
    /// one softmax; with KVCSA_SELECT_ALL it goes over all entries, and n_heads / kv_heads query heads
    /// share a KV head. Rows of out below first_rows\[layer + 1\] stay as they are; out does not
    /// overlap query.
    ///
    /// * **Status**: ERR_ARG also where the layer was not written, or select was not called for the
    ///   selection that it uses; otherwise as kvcsa_chunk_write().
    /// * **Thread**: one.
    /// * **Since**: 0.4
    pub fn kvcsa_chunk_attend(
        session: *mut kvcsa_session,
        layer: u32,
        attention: *const kvcsa_chunk_attention,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Close the chunk: its tokens are the session's, full blocks are sealed and published.
    ///
    /// * **Status**: ERR_ARG no chunk is open, or a layer was not written: the chunk stays open.
    ///   ERR_CANCELLED: it is closed, the session is as before the append. ERR_NOMEM, ERR_BACKEND: it
    ///   is closed, the session as before the chunk, but for windows, which a replay has to make anew.
    /// * **Thread**: one.
    /// * **Since**: 0.4
    pub fn kvcsa_chunk_commit(session: *mut kvcsa_session, err: *mut kvcsa_error) -> kvcsa_status;

    /// Close the chunk without a trace; its tokens are queued again. Without one nothing happens.
    ///
    /// * **Thread**: one.
    /// * **Since**: 0.4
    pub fn kvcsa_chunk_abandon(session: *mut kvcsa_session);

    /// Read rows of the cache back as floats, as attention sees them. Of a layer that reads another's
    /// entries or index keys, they are the owner's.
    ///
    /// * `first`, `n`: entries or positions. Entries and index keys of an open chunk can be read once
    ///   they are written.
    /// * `out`: f32, see KVCSA_READ_\*; the host's memory.
    /// * `cap`: floats that there is room for at out.
    /// * **Status**: ERR_ARG no such layer or rows, the layer has none, or cap is too small; ERR_NOMEM;
    ///   ERR_BACKEND.
    /// * **Thread**: one.
    /// * **Since**: 0.4
    pub fn kvcsa_session_read_rows(
        session: *mut kvcsa_session,
        layer: u32,
        what: u32,
        first: u64,
        n: u64,
        out: *mut f32,
        cap: usize,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}
