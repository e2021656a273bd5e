//! Rows of floats that a host gives to a chunk, and the check that they are there.

use crate::error::{Error, Result, Status};
use kvcsa_sys as sys;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr;

/// How many rows there are of how many heads of how many channels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) n: u64,
    pub(crate) heads: u32,
    pub(crate) width: u32,
}

/// Floats from a row, and from a head, to the next; 0 = side by side.
#[derive(Clone, Copy, Debug, Default)]
struct Strides {
    row: usize,
    head: usize,
}

impl Shape {
    fn dims(self) -> Option<[usize; 3]> {
        let n = usize::try_from(self.n).ok()?;
        Some([n, self.heads as usize, self.width as usize])
    }

    /// Floats of rows that lie side by side; `None` if no memory could hold them.
    pub(crate) fn len(self) -> Option<usize> {
        let [n, heads, width] = self.dims()?;
        n.checked_mul(heads)?.checked_mul(width)
    }
}

impl Strides {
    /// What 0 stands for is put in, so that the library and this check mean the same.
    fn of(self, shape: Shape) -> Option<Strides> {
        let [_, heads, width] = shape.dims()?;
        Some(Strides {
            row: match self.row {
                0 => heads.checked_mul(width)?,
                row => row,
            },
            head: if self.head == 0 { width } else { self.head },
        })
    }

    /// Floats from the first to behind the last one.
    fn span(self, shape: Shape) -> Option<usize> {
        let [n, heads, width] = shape.dims()?;
        if n == 0 || heads == 0 || width == 0 {
            return Some(0);
        }
        let rows = (n - 1).checked_mul(self.row)?;
        let heads = (heads - 1).checked_mul(self.head)?;
        rows.checked_add(heads)?.checked_add(width)
    }

    /// No float belongs to two heads or rows: either rows are apart and heads inside them, or the
    /// other way round.
    fn is_apart(self, shape: Shape) -> bool {
        let one_row = Shape { n: 1, ..shape };
        let one_head = Shape { heads: 1, ..shape };
        let width = shape.width as usize;
        let within = |outer: usize, inner: usize, part: Shape| {
            inner >= width && self.span(part).map_or(false, |span| outer >= span)
        };
        match (shape.n, shape.heads) {
            (0 | 1, 0 | 1) => true,
            (0 | 1, _) => self.head >= width,
            (_, 0 | 1) => self.row >= width,
            _ => within(self.row, self.head, one_row) || within(self.head, self.row, one_head),
        }
    }
}

/// A buffer of `len` floats holds the rows of this shape: their strides, or what is wrong.
fn fit(len: usize, strides: Strides, shape: Shape, what: &str) -> Result<Strides> {
    let (n, heads, width) = (shape.n, shape.heads, shape.width);
    let needs = strides.of(shape).and_then(|s| Some((s, s.span(shape)?)));
    match needs {
        Some((strides, span)) if span <= len => Ok(strides),
        Some((strides, span)) => Err(Error::new(
            Status::Arg,
            &format!(
                "{what} has {len} floats, must have {span} for [{n}, {heads}, {width}] with strides \
                 of {} and {}",
                strides.row, strides.head
            ),
        )),
        None => Err(Error::new(
            Status::Arg,
            &format!(
                "{what} has strides of {} and {}, too large for [{n}, {heads}, {width}]",
                strides.row, strides.head
            ),
        )),
    }
}

/// Rows that the library reads: f32 \[n, heads, width\], the channels of a head side by side. How
/// many rows, heads and channels there have to be follows from what they are given for; a slice
/// that is too short for that gives [`Status::Arg`](crate::Status::Arg), a longer one is fine.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    data: *const f32,
    len: usize,
    strides: Strides,
    on_device: bool,
    _data: PhantomData<&'a [f32]>,
}

// SAFETY: as `&[f32]`; memory of a device is for any thread too.
unsafe impl Send for Rows<'_> {}
unsafe impl Sync for Rows<'_> {}

impl<'a> Rows<'a> {
    /// Heads and rows side by side.
    pub fn new(data: &'a [f32]) -> Self {
        Rows {
            data: data.as_ptr(),
            len: data.len(),
            strides: Strides::default(),
            on_device: false,
            _data: PhantomData,
        }
    }

    /// Memory of the pool's device instead: `len` floats.
    ///
    /// # Safety
    ///
    /// Whenever these rows are given to a chunk, its pool is on the device that `data` is a pointer
    /// of, `len` floats are there, whatever fills them has finished, and nothing writes to them.
    pub unsafe fn on_device(data: *const f32, len: usize) -> Self {
        Rows {
            data,
            len,
            strides: Strides::default(),
            on_device: true,
            _data: PhantomData,
        }
    }

    /// Floats from a row to the next; 0 = heads x width.
    pub fn row_stride(mut self, floats: usize) -> Self {
        self.strides.row = floats;
        self
    }

    /// Floats from a head to the next; 0 = width.
    pub fn head_stride(mut self, floats: usize) -> Self {
        self.strides.head = floats;
        self
    }

    fn raw(self, shape: Shape, what: &str) -> Result<sys::kvcsa_rows> {
        let strides = fit(self.len, self.strides, shape, what)?;
        Ok(sys::kvcsa_rows {
            data: self.data,
            row_stride: strides.row,
            head_stride: strides.head,
        })
    }
}

impl<'a, T: AsRef<[f32]> + ?Sized> From<&'a T> for Rows<'a> {
    fn from(data: &'a T) -> Self {
        Rows::new(data.as_ref())
    }
}

/// Rows that the library writes, likewise. No float may belong to two rows or heads.
#[derive(Debug)]
pub struct RowsMut<'a> {
    data: *mut f32,
    len: usize,
    strides: Strides,
    on_device: bool,
    _data: PhantomData<&'a mut [f32]>,
}

// SAFETY: as `&mut [f32]`; memory of a device is for any thread too.
unsafe impl Send for RowsMut<'_> {}
unsafe impl Sync for RowsMut<'_> {}

impl<'a> RowsMut<'a> {
    /// Heads and rows side by side.
    pub fn new(data: &'a mut [f32]) -> Self {
        RowsMut {
            data: data.as_mut_ptr(),
            len: data.len(),
            strides: Strides::default(),
            on_device: false,
            _data: PhantomData,
        }
    }

    /// Memory of the pool's device instead: `len` floats.
    ///
    /// # Safety
    ///
    /// As [`Rows::on_device`]; and nothing else reads or writes them until the call has returned
    /// that these rows are given to.
    pub unsafe fn on_device(data: *mut f32, len: usize) -> Self {
        RowsMut {
            data,
            len,
            strides: Strides::default(),
            on_device: true,
            _data: PhantomData,
        }
    }

    /// Floats from a row to the next; 0 = heads x width.
    pub fn row_stride(mut self, floats: usize) -> Self {
        self.strides.row = floats;
        self
    }

    /// Floats from a head to the next; 0 = width.
    pub fn head_stride(mut self, floats: usize) -> Self {
        self.strides.head = floats;
        self
    }

    /// Workers of the library write heads and rows at the same time, so these must be apart.
    fn raw(&mut self, shape: Shape, what: &str) -> Result<(*mut f32, Strides)> {
        let strides = fit(self.len, self.strides, shape, what)?;
        if !strides.is_apart(shape) {
            return Err(Error::new(
                Status::Arg,
                &format!(
                    "{what} has strides of {} and {}, with which rows of [{}, {}, {}] overlap",
                    strides.row, strides.head, shape.n, shape.heads, shape.width
                ),
            ));
        }
        Ok((self.data, strides))
    }
}

impl<'a, T: AsMut<[f32]> + ?Sized> From<&'a mut T> for RowsMut<'a> {
    fn from(data: &'a mut T) -> Self {
        RowsMut::new(data.as_mut())
    }
}

/// What a layer makes of a chunk, for [`Chunk::write`](crate::Chunk::write). Where the layer has
/// no such rows, nothing is given. All are in the host's memory, or all on the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkRows<'a> {
    key: Option<Rows<'a>>,
    value: Option<Rows<'a>>,
    index_key: Option<Rows<'a>>,
    window: Option<Rows<'a>>,
    pending: Option<Rows<'a>>,
}

/// What the rows of a layer have to be in a chunk.
pub(crate) struct LayerShapes {
    pub(crate) key: Shape,
    pub(crate) value: Shape,
    pub(crate) index_key: Shape,
    pub(crate) window: Shape,
    pub(crate) pending: Shape,
}

impl<'a> ChunkRows<'a> {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// \[entries, kv_heads, entry_width\] of the entries that the rows complete
    /// ([`Chunk::entries`](crate::Chunk::entries)): of layers that own entries, but not in a replay.
    pub fn key(mut self, rows: impl Into<Rows<'a>>) -> Self {
        self.key = Some(rows.into());
        self
    }

    /// \[entries, kv_heads, value_width\] likewise, with [`ValueKind::Own`](crate::ValueKind::Own).
    pub fn value(mut self, rows: impl Into<Rows<'a>>) -> Self {
        self.value = Some(rows.into());
        self
    }

    /// \[entries, 1, index_width\] likewise, where `index_bytes` of the plan is not 0.
    pub fn index_key(mut self, rows: impl Into<Rows<'a>>) -> Self {
        self.index_key = Some(rows.into());
        self
    }

    /// \[n_rows, 1, entry_width\], where the layer has a window.
    pub fn window(mut self, rows: impl Into<Rows<'a>>) -> Self {
        self.window = Some(rows.into());
        self
    }

    /// \[n_rows, 1, pending_bytes / 4 / (ratio - 1)\], where `pending_bytes` of the plan is not 0:
    /// what you want of the rows of an entry when a later chunk completes it
    /// ([`CacheRows::Pending`](crate::CacheRows::Pending)).
    pub fn pending(mut self, rows: impl Into<Rows<'a>>) -> Self {
        self.pending = Some(rows.into());
        self
    }

    pub(crate) fn raw(&self, shapes: &LayerShapes) -> Result<sys::kvcsa_chunk_rows> {
        let all = [self.key, self.value, self.index_key, self.window];
        Ok(sys::kvcsa_chunk_rows {
            struct_size: size_of::<sys::kvcsa_chunk_rows>(),
            key: raw_or_none(self.key, shapes.key, "key")?,
            value: raw_or_none(self.value, shapes.value, "value")?,
            index_key: raw_or_none(self.index_key, shapes.index_key, "index_key")?,
            window: raw_or_none(self.window, shapes.window, "window")?,
            pending: raw_or_none(self.pending, shapes.pending, "pending")?,
            flags: flags(
                all.iter()
                    .chain([&self.pending])
                    .flatten()
                    .map(|r| r.on_device),
            )?,
            reserved: 0,
        })
    }
}

fn raw_or_none(rows: Option<Rows<'_>>, shape: Shape, what: &str) -> Result<sys::kvcsa_rows> {
    match rows {
        Some(rows) => rows.raw(shape, what),
        None => Ok(sys::kvcsa_rows {
            data: ptr::null(),
            row_stride: 0,
            head_stride: 0,
        }),
    }
}

/// One flag says where all rows of a call are.
fn flags(on_device: impl Iterator<Item = bool> + Clone) -> Result<u32> {
    match (
        on_device.clone().any(|on| on),
        on_device.clone().any(|on| !on),
    ) {
        (true, true) => Err(Error::new(
            Status::Arg,
            "some rows are on the device and some are not",
        )),
        (true, false) => Ok(sys::KVCSA_ROWS_ON_DEVICE),
        _ => Ok(0),
    }
}

/// What a layer asks its index, for [`Chunk::select`](crate::Chunk::select).
#[derive(Clone, Copy, Debug)]
pub struct ChunkQueries<'a> {
    query: Rows<'a>,
    weights: Rows<'a>,
}

impl<'a> ChunkQueries<'a> {
    /// Queries, rotated: \[n_rows, index_heads, index_width\]; weights of the heads' scores:
    /// \[n_rows, 1, index_heads\], which are multiplied by index_width^-0.5 x index_heads^-0.5.
    pub fn new(query: impl Into<Rows<'a>>, weights: impl Into<Rows<'a>>) -> Self {
        ChunkQueries {
            query: query.into(),
            weights: weights.into(),
        }
    }

    pub(crate) fn raw(&self, query: Shape) -> Result<sys::kvcsa_chunk_queries> {
        let weights = Shape {
            n: query.n,
            heads: 1,
            width: query.heads,
        };
        Ok(sys::kvcsa_chunk_queries {
            struct_size: size_of::<sys::kvcsa_chunk_queries>(),
            query: self.query.raw(query, "query")?,
            weights: self.weights.raw(weights, "weights")?,
            ids: ptr::null_mut(),
            flags: flags([self.query, self.weights].iter().map(|r| r.on_device))?,
            reserved: 0,
        })
    }
}

/// What a layer attends with, for [`Chunk::attend`](crate::Chunk::attend).
#[derive(Clone, Copy, Debug)]
pub struct ChunkAttention<'a> {
    n_heads: u32,
    query: Rows<'a>,
    sink: Option<&'a [f32]>,
    scale: f32,
}

impl<'a> ChunkAttention<'a> {
    /// Queries, rotated: \[n_rows, n_heads, entry_width\]; `n_heads` is a multiple of kv_heads.
    pub fn new(n_heads: u32, query: impl Into<Rows<'a>>) -> Self {
        ChunkAttention {
            n_heads,
            query: query.into(),
            sink: None,
            scale: 0.0,
        }
    }

    /// A logit of each head in the denominator; in the host's memory.
    pub fn sink(mut self, logits: &'a [f32]) -> Self {
        self.sink = Some(logits);
        self
    }

    /// Of query x key; 0 = entry_width^-0.5.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }

    /// `out` is written through the pointer in the result.
    pub(crate) fn raw(
        &self,
        n: u64,
        key_width: u32,
        value_width: u32,
        out: &mut RowsMut<'_>,
    ) -> Result<sys::kvcsa_chunk_attention> {
        let heads = self.n_heads;
        let shape = |width| Shape { n, heads, width };
        if let Some(sink) = self.sink.filter(|s| s.len() != heads as usize) {
            let text = format!("sink has {} logits, must have {heads}", sink.len());
            return Err(Error::new(Status::Arg, &text));
        }
        let (place, strides) = out.raw(shape(value_width), "out")?;
        Ok(sys::kvcsa_chunk_attention {
            struct_size: size_of::<sys::kvcsa_chunk_attention>(),
            query: self.query.raw(shape(key_width), "query")?,
            out: place,
            out_row_stride: strides.row,
            out_head_stride: strides.head,
            sink: self.sink.map_or(ptr::null(), <[f32]>::as_ptr),
            n_heads: heads,
            scale: self.scale,
            flags: flags([self.query.on_device, out.on_device].iter().copied())?,
            reserved: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strides(row: usize, head: usize) -> Strides {
        Strides { row, head }
    }

    #[test]
    fn a_span_is_the_last_float_that_is_touched() {
        for n in 0..4_u64 {
            for heads in 0..4_u32 {
                for width in 0..4_u32 {
                    let shape = Shape { n, heads, width };
                    for s in [(0, 0), (0, 7), (9, 0), (5, 2), (2, 5), (1, 1)] {
                        let s = strides(s.0, s.1).of(shape).unwrap();
                        let mut seen = Vec::new();
                        for row in 0..n as usize {
                            for head in 0..heads as usize {
                                let first = row * s.row + head * s.head;
                                seen.extend(first..first + width as usize);
                            }
                        }
                        let span = seen.iter().max().map_or(0, |last| last + 1);
                        assert_eq!(s.span(shape), Some(span), "{shape:?} {s:?}");
                        let count = seen.len();
                        seen.sort_unstable();
                        seen.dedup();
                        // What overlaps is never let through.
                        assert!(!s.is_apart(shape) || seen.len() == count, "{shape:?} {s:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn usual_orders_are_apart() {
        let shape = Shape {
            n: 3,
            heads: 4,
            width: 5,
        };
        for s in [(0, 0), (24, 6), (5, 15), (6, 30), (20, 5), (21, 5)] {
            assert!(
                strides(s.0, s.1).of(shape).unwrap().is_apart(shape),
                "{s:?}"
            );
        }
        for s in [(19, 5), (5, 14), (20, 4), (1, 1), (0, 6)] {
            assert!(
                !strides(s.0, s.1).of(shape).unwrap().is_apart(shape),
                "{s:?}"
            );
        }
    }

    #[test]
    fn nothing_overflows() {
        let shape = Shape {
            n: 3,
            heads: 2,
            width: 4,
        };
        for s in [
            (usize::MAX, 0),
            (0, usize::MAX),
            (usize::MAX / 2, usize::MAX / 2),
        ] {
            let error = fit(usize::MAX, strides(s.0, s.1), shape, "key").unwrap_err();
            assert!(error.text().starts_with("key has strides of"), "{error}");
        }
        let most = Shape {
            n: u64::MAX,
            heads: u32::MAX,
            width: u32::MAX,
        };
        assert_eq!(most.len(), None);
        assert!(fit(usize::MAX, strides(0, 0), most, "key").is_err());
        assert!(fit(24, strides(0, 0), shape, "key").is_ok());
        let error = fit(23, strides(0, 0), shape, "key").unwrap_err();
        assert_eq!(
            error.text(),
            "key has 23 floats, must have 24 for [3, 2, 4] with strides of 8 and 4"
        );
    }
}
