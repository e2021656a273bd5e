//! A session as bytes.

use crate::session::kvcsa_session;
use crate::status::{kvcsa_error, kvcsa_status};
use std::os::raw::{c_char, c_void};

/// Save: window rows too, so that a load needs no replay. An exact session takes no approximate
/// ones if its entries are exact: it rebuilds them.
pub const KVCSA_SNAPSHOT_WINDOW: u32 = 1;
/// Save: last logits too, if the session has them; approximate ones beside exact entries are not.
pub const KVCSA_SNAPSHOT_LOGITS: u32 = 2;
/// Load: another model of the same geometry; the blocks stay private to the session.
pub const KVCSA_SNAPSHOT_ANY_MODEL: u32 = 4;
/// Load: computed with another numerics id; likewise.
pub const KVCSA_SNAPSHOT_ANY_NUMERICS: u32 = 8;
/// Load: at the first damaged record keep what is in front of it (info-\>n_tokens says how much).
pub const KVCSA_SNAPSHOT_SALVAGE: u32 = 16;

/// Parameters of snapshots.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_snapshot_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// In a directory: which snapshot, 1..64 of A-Z a-z 0-9 . _ - not beginning with a dot; NULL =
    /// "default". Unused for a file.
    pub name: *const c_char,
    /// KVCSA_SNAPSHOT_\*.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// What a snapshot holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_snapshot_info {
    /// Set by the caller.
    pub struct_size: usize,
    /// Number of tokens.
    pub n_tokens: u64,
    /// Of the model that it was computed with.
    pub fingerprint: u64,
    /// Id of order and rounding of sums that it was computed with.
    pub numerics: u64,
    /// The session's salt.
    pub salt: u64,
    /// Of the snapshot: all records and the header or manifest.
    pub total_bytes: u64,
    /// Records of the snapshot.
    pub n_records: u64,
    /// Save: by this call.
    pub written_bytes: u64,
    /// Save: records written by this call.
    pub n_written_records: u64,
    /// Save: the directory had them; load: the pool had them.
    pub n_shared_records: u64,
    /// Of the format.
    pub version: u32,
    /// KVCSA_SNAPSHOT_WINDOW | LOGITS as far as saved.
    pub sections: u32,
    /// Tokens of one cache block.
    pub block_tokens: u32,
    /// 1 = entries are those of an undisturbed run.
    pub exact: u32,
}

/// All n bytes, in order; 0 = OK, anything else becomes ERR_IO's detail.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_writer {
    /// Takes what there is to write.
    pub write:
        Option<unsafe extern "C" fn(user: *mut c_void, data: *const c_void, n_bytes: usize) -> i32>,
    /// Passed to the function as it is.
    pub user: *mut c_void,
}

/// As many of n bytes as there are, in order: fewer means the end; negative = error.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_reader {
    /// Gives what there is to read.
    pub read:
        Option<unsafe extern "C" fn(user: *mut c_void, data: *mut c_void, n_bytes: usize) -> i64>,
    /// Passed to the function as it is.
    pub user: *mut c_void,
}

extern "C" {
    /// Fill params with defaults: tokens, blocks and pending rows.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.2
    pub fn kvcsa_snapshot_params_default(params: *mut kvcsa_snapshot_params, struct_size: usize);

    /// Bytes that kvcsa_snapshot_write, or _save to a file, will write now.
    ///
    /// * **Status**: ERR_ARG; ERR_UNSUPPORTED unknown flag; ERR_BUSY.
    /// * **Thread**: one.
    /// * **Since**: 0.2
    pub fn kvcsa_snapshot_size(
        session: *mut kvcsa_session,
        params: *const kvcsa_snapshot_params,
        n_bytes: *mut u64,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Save the committed tokens of a session and their cache. If `path` is a directory, only records
    /// that it lacks are written, then the manifest of this name is replaced; else a file is written in
    /// full beside `path` and renamed over it. In both cases a crash at any moment leaves the old or
    /// the new snapshot.
    ///
    /// * `info`: may be NULL.
    /// * **Status**: ERR_IO (detail errno): the old snapshot is in place, or the new one where nothing
    ///   but the last synchronisation of the directory failed, which the text says; ERR_FORMAT the
    ///   directory holds a damaged manifest of this name's; ERR_ARG; ERR_UNSUPPORTED; ERR_NOMEM;
    ///   ERR_BUSY.
    /// * **Thread**: one; different processes and threads may save to one directory.
    /// * **Since**: 0.2
    pub fn kvcsa_snapshot_save(
        session: *mut kvcsa_session,
        path: *const c_char,
        params: *const kvcsa_snapshot_params,
        info: *mut kvcsa_snapshot_info,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Replace what the session holds by a snapshot (file, or directory and name). Everything is read
    /// and checked before the session changes. Blocks that the pool knows already are shared, not read.
    /// Without a stored window the next step rebuilds the windows, to the same bits.
    ///
    /// * `info`: may be NULL.
    /// * **Status**: ERR_IO; ERR_FORMAT not a snapshot, or truncated; ERR_CORRUPT a checksum;
    ///   ERR_MISMATCH another model, geometry or numerics; ERR_UNSUPPORTED newer version; ERR_FULL;
    ///   ERR_NOMEM; ERR_LIMIT; ERR_ARG also if tokens are queued; ERR_BUSY. The session is unchanged in
    ///   every case of failure.
    /// * **Thread**: one.
    /// * **Since**: 0.2
    pub fn kvcsa_snapshot_load(
        session: *mut kvcsa_session,
        path: *const c_char,
        params: *const kvcsa_snapshot_params,
        info: *mut kvcsa_snapshot_info,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// kvcsa_snapshot_save through a callback: the bytes of the file form.
    ///
    /// * **Status**: ERR_IO the writer said so; else as kvcsa_snapshot_save.
    /// * **Thread**: one.
    /// * **Since**: 0.2
    pub fn kvcsa_snapshot_write(
        session: *mut kvcsa_session,
        writer: *const kvcsa_writer,
        params: *const kvcsa_snapshot_params,
        info: *mut kvcsa_snapshot_info,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// kvcsa_snapshot_load through a callback: the bytes of the file form.
    ///
    /// * **Status**: ERR_IO the reader said so; else as kvcsa_snapshot_load.
    /// * **Thread**: one.
    /// * **Since**: 0.2
    pub fn kvcsa_snapshot_read(
        session: *mut kvcsa_session,
        reader: *const kvcsa_reader,
        params: *const kvcsa_snapshot_params,
        info: *mut kvcsa_snapshot_info,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Describe a snapshot without loading it; the header or manifest is read and checked, records are
    /// not.
    ///
    /// * **Status**: as kvcsa_snapshot_load.
    /// * **Thread**: any.
    /// * **Since**: 0.2
    pub fn kvcsa_snapshot_inspect(
        path: *const c_char,
        params: *const kvcsa_snapshot_params,
        info: *mut kvcsa_snapshot_info,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Remove a snapshot: the file, or the manifest of this name and the records that no other manifest
    /// of the directory uses.
    ///
    /// * **Status**: ERR_IO (ENOENT: there is none); ERR_FORMAT a file that is not a snapshot is left
    ///   alone; ERR_ARG.
    /// * **Thread**: any.
    /// * **Since**: 0.2
    pub fn kvcsa_snapshot_remove(
        path: *const c_char,
        params: *const kvcsa_snapshot_params,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}
