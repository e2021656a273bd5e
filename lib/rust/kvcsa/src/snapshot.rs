//! A session as bytes: in a file, in a folder of snapshots that share records, or in a stream.

use crate::error::Result;
use crate::hooks::PanicSlot;
use crate::model::set;
use crate::raw::{c_path, c_string, call, defaults, filled};
use crate::session::Session;
use kvcsa_sys as sys;
use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::raw::c_void;
use std::path::{Path, PathBuf};
use std::ptr;

record! {
    /// What a snapshot holds.
    pub struct SnapshotInfo from kvcsa_snapshot_info {
        /// Number of tokens.
        n_tokens: u64,
        /// Of the model that it was computed with.
        fingerprint: u64,
        /// Id of order and rounding of sums that it was computed with.
        numerics: u64,
        /// The session's salt.
        salt: u64,
        /// Of the snapshot: all records and the header or manifest.
        total_bytes: u64,
        /// Records of the snapshot.
        n_records: u64,
        /// Save: by this call.
        written_bytes: u64,
        /// Save: records written by this call.
        n_written_records: u64,
        /// Save: the directory had them; load: the pool had them.
        n_shared_records: u64,
        /// Of the format.
        version: u32,
        /// Bits of what was saved, see [`SnapshotInfo::has_window`].
        sections: u32,
        /// Tokens of one cache block.
        block_tokens: u32,
        /// Entries are those of an undisturbed run.
        exact: bool,
    }
}

impl SnapshotInfo {
    /// Whether windows were saved, so that a load needs no replay.
    pub fn has_window(&self) -> bool {
        self.sections & sys::KVCSA_SNAPSHOT_WINDOW != 0
    }

    /// Whether the last logits were saved.
    pub fn has_logits(&self) -> bool {
        self.sections & sys::KVCSA_SNAPSHOT_LOGITS != 0
    }
}

/// Flags of functions that save.
const SAVE: u32 = sys::KVCSA_SNAPSHOT_WINDOW | sys::KVCSA_SNAPSHOT_LOGITS;
/// Flags of functions that load.
const LOAD: u32 =
    sys::KVCSA_SNAPSHOT_ANY_MODEL | sys::KVCSA_SNAPSHOT_ANY_NUMERICS | sys::KVCSA_SNAPSHOT_SALVAGE;

/// What is saved, and what a load accepts; a save does not look at the one, nor a load at the other.
#[derive(Clone, Debug)]
pub struct SnapshotParams {
    raw: sys::kvcsa_snapshot_params,
    name: Option<String>,
}

// SAFETY: the pointer in `raw` is NULL until a call is made.
unsafe impl Send for SnapshotParams {}
unsafe impl Sync for SnapshotParams {}

impl Default for SnapshotParams {
    fn default() -> Self {
        SnapshotParams {
            // SAFETY: the function of this struct, which is numbers and a pointer.
            raw: unsafe { defaults(sys::kvcsa_snapshot_params_default) },
            name: None,
        }
    }
}

impl SnapshotParams {
    /// Tokens, blocks and pending rows; of the same model and numerics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Which snapshot of a folder: 1..64 of `A-Z a-z 0-9 . _ -`, not beginning with a dot.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Save window rows too, so that a load needs no replay.
    pub fn window(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_SNAPSHOT_WINDOW, on);
        self
    }

    /// Save the last logits too.
    pub fn logits(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_SNAPSHOT_LOGITS, on);
        self
    }

    /// Load what another model of the same geometry has computed.
    pub fn any_model(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_SNAPSHOT_ANY_MODEL, on);
        self
    }

    /// Load what was computed with other numerics.
    pub fn any_numerics(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_SNAPSHOT_ANY_NUMERICS, on);
        self
    }

    /// Load what is in front of the first damaged record.
    pub fn salvage(mut self, on: bool) -> Self {
        set(&mut self.raw.flags, sys::KVCSA_SNAPSHOT_SALVAGE, on);
        self
    }

    /// Of the flags, those that the function knows: one set of parameters is for saves and loads.
    fn call<T>(
        &self,
        flags: u32,
        f: impl FnOnce(&sys::kvcsa_snapshot_params) -> Result<T>,
    ) -> Result<T> {
        let name: Option<CString> = self
            .name
            .as_deref()
            .map(|n| c_string(n, "the name"))
            .transpose()?;
        let mut raw = self.raw;
        raw.flags &= flags;
        raw.name = name.as_ref().map_or(ptr::null(), |n| n.as_ptr());
        f(&raw)
    }
}

/// A snapshot at a place: a file, or a name in a folder that is there.
///
/// ```no_run
/// # fn main() -> kvcsa::Result<()> {
/// # let (pool, model) = (kvcsa::Pool::new()?, kvcsa::Model::open("model")?);
/// # let mut session = kvcsa::Session::new(&pool, &model)?;
/// use kvcsa::{Snapshot, SnapshotParams};
/// let snapshot = Snapshot::at("notes.kvs").with(SnapshotParams::new().window(true));
/// snapshot.save(&mut session)?;
/// let mut later = kvcsa::Session::new(&pool, &model)?;
/// snapshot.load(&mut later)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot {
    path: PathBuf,
    params: SnapshotParams,
}

impl Snapshot {
    /// With default parameters.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Snapshot {
            path: path.into(),
            params: SnapshotParams::new(),
        }
    }

    /// With other parameters.
    pub fn with(mut self, params: SnapshotParams) -> Self {
        self.params = params;
        self
    }

    /// The place.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Save the committed tokens of a session and their cache. In a folder, only records that it
    /// lacks are written. A crash at any moment leaves the old snapshot or the new one.
    pub fn save(&self, session: &mut Session) -> Result<SnapshotInfo> {
        let path = c_path(&self.path)?;
        // SAFETY: handle, strings and record are there.
        session
            .done(self.params.call(SAVE, |params| {
                filled(|info, err| unsafe {
                    sys::kvcsa_snapshot_save(session.raw(), path.as_ptr(), params, info, err)
                })
            }))
            .map(|info| SnapshotInfo::from_raw(&info))
    }

    /// Replace what a session holds. Everything is read and checked before the session changes.
    pub fn load(&self, session: &mut Session) -> Result<SnapshotInfo> {
        let path = c_path(&self.path)?;
        // SAFETY: handle, strings and record are there.
        session
            .done(self.params.call(LOAD, |params| {
                filled(|info, err| unsafe {
                    sys::kvcsa_snapshot_load(session.raw(), path.as_ptr(), params, info, err)
                })
            }))
            .map(|info| SnapshotInfo::from_raw(&info))
    }

    /// Describe it without loading; its header is checked, its records are not.
    pub fn inspect(&self) -> Result<SnapshotInfo> {
        let path = c_path(&self.path)?;
        // SAFETY: strings and record are there.
        self.params
            .call(0, |params| {
                filled(|info, err| unsafe {
                    sys::kvcsa_snapshot_inspect(path.as_ptr(), params, info, err)
                })
            })
            .map(|info| SnapshotInfo::from_raw(&info))
    }

    /// Remove the file, or the name and the records that no other one of the folder uses.
    pub fn remove(&self) -> Result<()> {
        let path = c_path(&self.path)?;
        // SAFETY: the strings are there.
        self.params.call(0, |params| {
            call(|err| unsafe { sys::kvcsa_snapshot_remove(path.as_ptr(), params, err) })
        })
    }
}

/// What a callback for bytes works on, and what became of it.
struct Stream<S> {
    stream: S,
    error: Option<io::Error>,
    panic: PanicSlot,
}

impl<S> Stream<S> {
    fn new(stream: S) -> Self {
        Stream {
            stream,
            error: None,
            panic: PanicSlot::default(),
        }
    }

    /// Panics go on here; an error of the stream becomes the source of the call's.
    fn end<T>(mut self, result: Result<T>) -> Result<T> {
        self.panic.resume();
        match (result, self.error.take()) {
            (Err(error), Some(source)) => Err(error.because(source)),
            (result, _) => result,
        }
    }

    /// Not 0: the code of the system, or EIO.
    fn keep(&mut self, error: io::Error) -> i32 {
        const EIO: i32 = 5;
        let code = error.raw_os_error().filter(|&code| code > 0).unwrap_or(EIO);
        self.error = Some(error);
        code
    }
}

/// Code of a panic. The error is not seen by anybody.
const PANICKED: i32 = 1;

unsafe extern "C" fn write_all<W: Write>(
    user: *mut c_void,
    data: *const c_void,
    n_bytes: usize,
) -> i32 {
    // SAFETY: the call gives back its `user`, which nobody else uses, and n_bytes.
    let (to, bytes) = unsafe {
        let to = &mut *(user as *mut Stream<W>);
        let data = if n_bytes == 0 {
            ptr::NonNull::dangling().as_ptr()
        } else {
            data.cast()
        };
        (to, std::slice::from_raw_parts::<u8>(data, n_bytes))
    };
    let (stream, panic) = (&mut to.stream, &to.panic);
    match panic.guard(None, || Some(stream.write_all(bytes))) {
        Some(Ok(())) => 0,
        Some(Err(error)) => to.keep(error),
        None => PANICKED,
    }
}

/// Read until the buffer is full or there is no more.
fn read_full(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < buffer.len() {
        match from.read(&mut buffer[n..]) {
            Ok(0) => break,
            Ok(k) => n += k,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

unsafe extern "C" fn read_some<R: Read>(
    user: *mut c_void,
    data: *mut c_void,
    n_bytes: usize,
) -> i64 {
    if n_bytes == 0 {
        return 0;
    }
    // SAFETY: the call gives back its `user`, which nobody else uses, and room for n_bytes. It is
    // cleared first because a reader may look at what it is given.
    let (from, buffer) = unsafe {
        ptr::write_bytes(data.cast::<u8>(), 0, n_bytes);
        let from = &mut *(user as *mut Stream<R>);
        (
            from,
            std::slice::from_raw_parts_mut(data.cast::<u8>(), n_bytes),
        )
    };
    let (stream, panic) = (&mut from.stream, &from.panic);
    match panic.guard(None, || Some(read_full(stream, buffer))) {
        Some(Ok(n)) => i64::try_from(n).unwrap_or(i64::MAX),
        Some(Err(error)) => -i64::from(from.keep(error)),
        None => -i64::from(PANICKED),
    }
}

impl Session {
    /// [`Snapshot::save`] to a path with default parameters.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<SnapshotInfo> {
        Snapshot::at(path.as_ref()).save(self)
    }

    /// [`Snapshot::load`] from a path with default parameters.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<SnapshotInfo> {
        Snapshot::at(path.as_ref()).load(self)
    }

    /// Bytes that a snapshot in a file or stream would have now.
    pub fn snapshot_size(&self, params: &SnapshotParams) -> Result<u64> {
        let mut n = 0;
        // SAFETY: handle, parameters and place are there.
        self.done(params.call(SAVE, |params| {
            call(|err| unsafe { sys::kvcsa_snapshot_size(self.raw(), params, &mut n, err) })
        }))?;
        Ok(n)
    }

    /// Save to a stream: the bytes of the file form. An error of the stream is the
    /// [`source`](std::error::Error::source) of the answer.
    pub fn write_snapshot<W: Write>(
        &mut self,
        to: W,
        params: &SnapshotParams,
    ) -> Result<SnapshotInfo> {
        let mut stream = Stream::new(to);
        let writer = sys::kvcsa_writer {
            write: Some(write_all::<W>),
            user: ptr::addr_of_mut!(stream).cast(),
        };
        // SAFETY: handle, writer, parameters and record are there.
        let result = params.call(SAVE, |params| {
            filled(|info, err| unsafe {
                sys::kvcsa_snapshot_write(self.raw(), &writer, params, info, err)
            })
        });
        let result = stream.end(result);
        self.done(result).map(|info| SnapshotInfo::from_raw(&info))
    }

    /// Load from a stream: the bytes of the file form. It is read in large pieces.
    pub fn read_snapshot<R: Read>(
        &mut self,
        from: R,
        params: &SnapshotParams,
    ) -> Result<SnapshotInfo> {
        let mut stream = Stream::new(from);
        let reader = sys::kvcsa_reader {
            read: Some(read_some::<R>),
            user: ptr::addr_of_mut!(stream).cast(),
        };
        // SAFETY: handle, reader, parameters and record are there.
        let result = params.call(LOAD, |params| {
            filled(|info, err| unsafe {
                sys::kvcsa_snapshot_read(self.raw(), &reader, params, info, err)
            })
        });
        let result = stream.end(result);
        self.done(result).map(|info| SnapshotInfo::from_raw(&info))
    }
}
