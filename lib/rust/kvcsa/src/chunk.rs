//! A network of the host's own: sessions that are used for their cache alone.

use crate::error::{Error, Result, Status};
use crate::model::Model;
use crate::plan::{Format, PlanRow, ValueKind};
use crate::raw::{call, filled};
use crate::rows::{ChunkAttention, ChunkQueries, ChunkRows, LayerShapes, RowsMut, Shape};
use crate::session::Session;
use kvcsa_sys as sys;
use std::alloc::{alloc_zeroed, Layout};
use std::fmt;
use std::ops::Range;

c_enum! {
    /// What [`Session::read_rows`] reads of a layer, and what it counts rows in.
    pub enum CacheRows: u32 {
        /// Keys of entries: \[n, kv_heads, entry_width\].
        Keys = KVCSA_READ_KEYS,
        /// Values of entries: \[n, kv_heads, value_width\]; with [`ValueKind::Alias`] and
        /// [`ValueKind::Prefix`] channels of the keys.
        Values = KVCSA_READ_VALUES,
        /// Index keys of entries: \[n, index_width\].
        IndexKeys = KVCSA_READ_INDEX_KEYS,
        /// Window rows of positions: \[n, entry_width\]; as many as the window has stand in front
        /// of the chunk, or at the end.
        Window = KVCSA_READ_WINDOW,
        /// Pending rows of positions: \[n, pending_bytes / 4 / (ratio - 1)\], of the entry that is
        /// not complete.
        Pending = KVCSA_READ_PENDING,
    }
}

/// The next rows of a session made with
/// [`SessionParams::cache_only`](crate::SessionParams::cache_only), which you compute: of every
/// layer, in ascending order, [`write`](Chunk::write) what it makes, [`select`](Chunk::select) where
/// it makes a selection, and [`attend`](Chunk::attend). [`commit`](Chunk::commit) makes them the
/// session's; what is dropped without it leaves no trace, and its tokens are queued again.
///
/// Rows are your floats: you rotate keys and queries, and rotate back what is attended to if values
/// carry a rotation.
///
/// ```
/// use kvcsa::{ChunkAttention, ChunkRows, Format, Model, PlanParams, PlanRow, Pool};
/// use kvcsa::{Session, SessionParams};
///
/// # fn main() -> kvcsa::Result<()> {
/// // One layer, one head of 32 channels.
/// let plan = [PlanRow::attention(0, 1, 32, Format::F32)];
/// let model = Model::from_plan(&plan, PlanParams::new().identity(1))?;
/// let params = SessionParams::new().cache_only(true);
/// let mut session = Session::with_params(&Pool::new()?, &model, &params)?;
/// session.append(&[7, 8, 9])?;
/// while let Some(mut chunk) = session.begin_chunk(0)? {
///     let rows = vec![1.0; chunk.tokens().len() * 32];
///     let mut out = vec![0.0; rows.len()];
///     chunk.write(0, &ChunkRows::new().key(&rows).value(&rows))?;
///     chunk.attend(0, &ChunkAttention::new(1, &rows), &mut out)?;
///     assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-5));
///     chunk.commit()?;
/// }
/// assert_eq!(session.len(), 3);
/// # Ok(())
/// # }
/// ```
///
/// The session is borrowed until the chunk is closed:
///
/// ```compile_fail,E0499
/// fn rewind_inside(session: &mut kvcsa::Session) -> kvcsa::Result<()> {
///     let chunk = session.begin_chunk(0)?;
///     session.rewind(0)?;
///     drop(chunk);
///     Ok(())
/// }
/// ```
#[must_use = "what is dropped is not committed"]
pub struct Chunk<'s> {
    session: &'s mut Session,
    info: sys::kvcsa_chunk_info,
}

// SAFETY: a session may be used by one thread at a time, any; the pointers in `info` are to memory
// of the session.
unsafe impl Send for Chunk<'_> {}

impl fmt::Debug for Chunk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("position", &self.position())
            .field("tokens", &self.tokens())
            .field("is_replay", &self.is_replay())
            .finish_non_exhaustive()
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is there; nothing happens if the chunk is closed.
        unsafe { sys::kvcsa_chunk_abandon(self.session.raw()) };
    }
}

/// Channels of keys, queries and window rows. Where there are no entries, those of a window follow
/// from its bytes alone: FP8 has 33 for 32 channels, and no format has less than a byte for four.
fn key_width(row: &PlanRow) -> u32 {
    match (row.ratio, row.window_format) {
        (0, Format::Fp8E8m0G32) => row.window_bytes / 33 * 32,
        (0, _) => row.window_bytes.saturating_mul(4),
        _ => row.entry_width,
    }
}

/// Channels of a value: without values of its own a layer attends to its keys.
fn value_width(row: &PlanRow) -> u32 {
    match row.value_kind {
        ValueKind::Own | ValueKind::Prefix if row.ratio > 0 => row.value_width,
        _ => key_width(row),
    }
}

/// Channels that are kept of a token whose entry is not complete.
fn pending_width(row: &PlanRow) -> u32 {
    match row.ratio {
        0 | 1 => 0,
        ratio => row.pending_bytes / 4 / (ratio - 1),
    }
}

fn shapes(row: &PlanRow, n_entries: u64, n_rows: u64) -> LayerShapes {
    let shape = |n, heads, width| Shape { n, heads, width };
    LayerShapes {
        key: shape(n_entries, row.kv_heads, key_width(row)),
        value: shape(n_entries, row.kv_heads, value_width(row)),
        index_key: shape(n_entries, 1, row.index_width),
        window: shape(n_rows, 1, key_width(row)),
        pending: shape(n_rows, 1, pending_width(row)),
    }
}

impl Chunk<'_> {
    /// The tokens of the rows.
    pub fn tokens(&self) -> &[i32] {
        // SAFETY: so many of them, the session's until the chunk is closed.
        unsafe { array(self.info.tokens, self.info.n_rows as usize) }
    }

    /// Position of the first row.
    pub fn position(&self) -> u64 {
        self.info.position
    }

    /// Tokens of the session that are left to come after these.
    pub fn n_queued(&self) -> u64 {
        self.info.n_queued
    }

    /// The session holds these tokens: entries and index keys are there and are not written,
    /// windows are made anew.
    pub fn is_replay(&self) -> bool {
        self.info.replay != 0
    }

    /// \[n_layers + 1\]: of a layer, window rows are wanted from position `first_rows()[layer]` on,
    /// queries from `first_rows()[layer + 1]` on; those below are not looked at.
    pub fn first_rows(&self) -> &[u64] {
        let n = self.model().info().n_layers as usize + 1;
        // SAFETY: so many of them, the session's until the chunk is closed.
        unsafe { array(self.info.first_rows, n) }
    }

    /// Numbers of the entries of a layer that the rows complete. In a replay they are there, and
    /// the range is empty.
    pub fn entries(&self, layer: u32) -> Result<Range<u64>> {
        Ok(self.entries_of(&self.model().plan_row(layer)?))
    }

    fn entries_of(&self, row: &PlanRow) -> Range<u64> {
        let (ratio, end) = (u64::from(row.ratio), self.position() + self.n_rows());
        match ratio {
            0 => 0..0,
            _ if self.is_replay() => end / ratio..end / ratio,
            _ => self.position() / ratio..end / ratio,
        }
    }

    fn n_rows(&self) -> u64 {
        self.info.n_rows.into()
    }

    /// The model, whose plan says which rows a layer has.
    pub fn model(&self) -> &Model {
        self.session.model()
    }

    /// Quantise and store what a layer makes of the chunk. Needed once of every layer that owns
    /// entries or has a window, before anything attends to it; a second time replaces the first.
    /// After a failure the chunk is still open, here and below.
    pub fn write(&mut self, layer: u32, rows: &ChunkRows<'_>) -> Result<()> {
        let row = self.model().plan_row(layer)?;
        let entries = self.entries_of(&row);
        let raw = rows.raw(&shapes(&row, entries.end - entries.start, self.n_rows()))?;
        // SAFETY: the rows are as many and as wide as the plan says.
        self.session.done(call(|err| unsafe {
            sys::kvcsa_chunk_write(self.session.raw(), layer, &raw, err)
        }))
    }

    /// Score the index keys and select, with two levels where the plan has candidates. The
    /// selection serves the layer and those that inherit it, until the next one. Limits of the
    /// session and hidden spans hold.
    ///
    /// `ids`, if given: \[n_rows, select_entries\], the entries of each row, ascending, -1 behind
    /// them.
    pub fn select(
        &mut self,
        layer: u32,
        queries: &ChunkQueries<'_>,
        ids: Option<&mut [i32]>,
    ) -> Result<()> {
        let row = self.model().plan_row(layer)?;
        let n = self.n_rows();
        let mut raw = queries.raw(Shape {
            n,
            heads: row.index_heads,
            width: row.index_width,
        })?;
        if let Some(ids) = ids {
            let all = u64::from(row.select_entries).saturating_mul(n);
            if (ids.len() as u64) < all {
                let text = format!("ids has room for {}, must have it for {all}", ids.len());
                return Err(Error::new(Status::Arg, &text));
            }
            raw.ids = ids.as_mut_ptr();
        }
        // SAFETY: the rows are as many and as wide as the plan says, and so is `ids`.
        self.session.done(call(|err| unsafe {
            sys::kvcsa_chunk_select(self.session.raw(), layer, &raw, err)
        }))
    }

    /// Attention of the rows, each up to its own position, to `out`: \[n_rows, n_heads,
    /// value_width\]. A window and selected entries share one softmax; with
    /// [`Select::All`](crate::Select::All) it goes over all entries, and n_heads / kv_heads query
    /// heads share a KV head.
    ///
    /// Rows below `first_rows()[layer + 1]` stay as they are.
    pub fn attend<'o>(
        &mut self,
        layer: u32,
        attention: &ChunkAttention<'_>,
        out: impl Into<RowsMut<'o>>,
    ) -> Result<()> {
        let row = self.model().plan_row(layer)?;
        let (key, value) = (key_width(&row), value_width(&row));
        let mut out = out.into();
        let raw = attention.raw(self.n_rows(), key, value, &mut out)?;
        // SAFETY: the rows are as many and as wide as the plan says, and `out` is ours alone.
        self.session.done(call(|err| unsafe {
            sys::kvcsa_chunk_attend(self.session.raw(), layer, &raw, err)
        }))
    }

    /// The tokens are the session's now; full blocks are sealed and published.
    ///
    /// After a failure the session is as before the chunk and the tokens are queued, but with
    /// [`Status::Cancelled`] it is as before the append, and the queue is empty.
    pub fn commit(self) -> Result<()> {
        // SAFETY: the handle is there.
        let result = call(|err| unsafe { sys::kvcsa_chunk_commit(self.session.raw(), err) });
        match &result {
            Ok(()) => self.session.queue_is(self.info.n_queued),
            Err(error) => self.session.queue_is_cancelled(error),
        }
        self.session.done(result)
    }

    /// As [`Session::read_rows`]. Entries and index keys of the chunk can be read once they are
    /// written.
    pub fn read_rows(&self, layer: u32, what: CacheRows, rows: Range<u64>) -> Result<Vec<f32>> {
        self.session.read_rows(layer, what, rows)
    }

    /// As [`Session::read_rows_into`].
    pub fn read_rows_into(
        &self,
        layer: u32,
        what: CacheRows,
        rows: Range<u64>,
        out: &mut [f32],
    ) -> Result<()> {
        self.session.read_rows_into(layer, what, rows, out)
    }
}

/// # Safety
///
/// `data` is NULL, or `n` values that live as long as the answer.
unsafe fn array<'a, T>(data: *const T, n: usize) -> &'a [T] {
    if data.is_null() || n == 0 {
        return &[];
    }
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(data, n) }
}

/// So many zeros. The number comes from the caller: too many are an error, and none is touched
/// before the library has found it right.
fn zeros(n: usize) -> Result<Vec<f32>> {
    let none = || Error::new(Status::NoMemory, &format!("no memory for {n} floats"));
    if n == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<f32>(n).map_err(|_| none())?;
    // SAFETY: the layout has a size above 0; a vector of so many floats has the same, and zero
    // bytes are a float.
    unsafe {
        let place = alloc_zeroed(layout).cast::<f32>();
        if place.is_null() {
            return Err(none());
        }
        Ok(Vec::from_raw_parts(place, n, n))
    }
}

impl Session {
    /// Open a chunk of a session made with
    /// [`SessionParams::cache_only`](crate::SessionParams::cache_only): the next rows of what was
    /// appended, or of windows that have to be rebuilt first. Known prefixes are adopted here
    /// ([`Session::reuse`] tells). `None`: nothing is to be computed.
    ///
    /// `max_rows` 0 = [`SessionParams::chunk_tokens`](crate::SessionParams::chunk_tokens), which
    /// bounds it in any case. After [`Status::Cancelled`] the queue is empty, after any other
    /// failure it is as it was.
    ///
    /// A `while let` borrows the session in all of its body. To use it between two chunks, begin
    /// them with a `let` inside a `loop`.
    ///
    /// A chunk that is given to [`std::mem::forget`] is never closed: every other call on the
    /// session gives [`Status::Busy`] then.
    pub fn begin_chunk(&mut self, max_rows: u32) -> Result<Option<Chunk<'_>>> {
        // SAFETY: handle and record are there.
        let begun =
            filled(|info, err| unsafe { sys::kvcsa_chunk_begin(self.raw(), max_rows, info, err) });
        match &begun {
            Ok(info) if info.n_rows == 0 => self.queue_is(0),
            Ok(_) => {}
            Err(error) => self.queue_is_cancelled(error),
        }
        let info = match begun {
            Ok(info) => info,
            Err(error) => return self.done(Err(error)),
        };
        // From here on dropping it closes it, also if `done` lets a panic go on.
        let chunk = Chunk {
            session: self,
            info,
        };
        chunk.session.done(Ok(()))?;
        Ok(Some(chunk).filter(|chunk| chunk.info.n_rows > 0))
    }

    /// A cancelled session has no queue.
    fn queue_is_cancelled(&self, error: &Error) {
        if error.status() == Status::Cancelled {
            self.queue_is(0);
        }
    }

    /// Read rows of the cache back, as attention sees them: entries or positions `rows` of a layer.
    /// Of a layer that reads another's entries or index keys, they are the owner's.
    pub fn read_rows(&self, layer: u32, what: CacheRows, rows: Range<u64>) -> Result<Vec<f32>> {
        let row = self.model().plan_row(layer)?;
        let n = rows.end.saturating_sub(rows.start);
        let all = shapes(&row, n, n);
        let shape = match what {
            CacheRows::Keys => all.key,
            CacheRows::Values => all.value,
            CacheRows::IndexKeys => all.index_key,
            CacheRows::Window => all.window,
            CacheRows::Pending => all.pending,
            CacheRows::Other(_) => Shape {
                n: 0,
                heads: 0,
                width: 0,
            },
        };
        let len = shape
            .len()
            .ok_or_else(|| Error::new(Status::Arg, &format!("{n} rows are too many")))?;
        let mut out = zeros(len)?;
        self.read_rows_into(layer, what, rows, &mut out)?;
        Ok(out)
    }

    /// Likewise, into memory that is there and may be longer.
    pub fn read_rows_into(
        &self,
        layer: u32,
        what: CacheRows,
        rows: Range<u64>,
        out: &mut [f32],
    ) -> Result<()> {
        let (first, n) = (rows.start, rows.end.saturating_sub(rows.start));
        // SAFETY: the array is as long as said.
        self.done(call(|err| unsafe {
            let (session, place, cap) = (self.raw(), out.as_mut_ptr(), out.len());
            sys::kvcsa_session_read_rows(session, layer, what.raw(), first, n, place, cap, err)
        }))
    }
}
