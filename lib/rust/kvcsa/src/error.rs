//! What a call answers that did not succeed.

use kvcsa_sys as sys;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::sync::Arc;

c_enum! {
    /// What kind of failure it is.
    pub enum Status: i32 {
        /// Our bug; please report.
        Internal = KVCSA_ERR_INTERNAL,
        /// The call is wrong: fix the caller.
        Arg = KVCSA_ERR_ARG,
        /// An allocator returned NULL.
        NoMemory = KVCSA_ERR_NOMEM,
        /// The pool's budget has no room.
        Full = KVCSA_ERR_FULL,
        /// Valid, but not by this version or backend.
        Unsupported = KVCSA_ERR_UNSUPPORTED,
        /// Device failure; the error's detail holds the native code.
        Backend = KVCSA_ERR_BACKEND,
        /// A file is not what it claims to be.
        Format = KVCSA_ERR_FORMAT,
        /// The system refused; the error's detail holds errno.
        Io = KVCSA_ERR_IO,
        /// Another thread is in this session, or a chunk of it is open. Safe code does not get
        /// this, unless it forgets a [`Chunk`](crate::Chunk).
        Busy = KVCSA_ERR_BUSY,
        /// You asked for it.
        Cancelled = KVCSA_ERR_CANCELLED,
        /// Fingerprint, plan or numerics of another model.
        Mismatch = KVCSA_ERR_MISMATCH,
        /// A checksum does not fit.
        Corrupt = KVCSA_ERR_CORRUPT,
        /// Context or position limit of the model.
        Limit = KVCSA_ERR_LIMIT,
    }
}

impl Status {
    /// The name in the C interface, for example `KVCSA_ERR_FULL`.
    pub fn name(self) -> &'static str {
        // SAFETY: a static string for every value.
        unsafe { CStr::from_ptr(sys::kvcsa_status_name(self.raw())) }
            .to_str()
            .unwrap_or("KVCSA_ERR_?")
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Other(value) => write!(f, "{} {}", self.name(), value),
            _ => f.write_str(self.name()),
        }
    }
}

/// Why a call failed. Its objects are as before, unless the call says otherwise.
#[derive(Clone, Debug)]
pub struct Error {
    status: Status,
    detail: i32,
    text: String,
    source: Option<Arc<io::Error>>,
}

/// What calls answer with.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(status: Status, text: &str) -> Self {
        Error {
            status,
            detail: 0,
            text: text.to_string(),
            source: None,
        }
    }

    pub(crate) fn from_raw(status: sys::kvcsa_status, raw: &sys::kvcsa_error) -> Self {
        Error {
            status: Status::from_raw(status),
            detail: raw.detail,
            text: crate::raw::Take::take(raw.text),
            source: None,
        }
    }

    /// The error of a writer or reader that the caller gave.
    pub(crate) fn because(mut self, error: io::Error) -> Self {
        self.source = Some(Arc::new(error));
        self
    }

    /// What kind of failure it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// `errno` with [`Status::Io`], the device's own code with [`Status::Backend`], else 0.
    pub fn detail(&self) -> i32 {
        self.detail
    }

    /// One line that says which field or file, its value and the limit.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text, self.status)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_deref()
            .map(|e| e as &(dyn std::error::Error + 'static))
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match (&error.source, error.status) {
            (Some(source), _) => source.kind(),
            (None, Status::Io) => io::Error::from_raw_os_error(error.detail).kind(),
            (None, Status::NoMemory) => io::ErrorKind::OutOfMemory,
            (None, Status::Arg) => io::ErrorKind::InvalidInput,
            (None, Status::Format | Status::Corrupt) => io::ErrorKind::InvalidData,
            (None, Status::Unsupported) => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
