"""What a call of the library answers when it fails, as exceptions.

One class a status, all below Error. Some also are what Python calls such a failure: ArgError a ValueError, NoMemError a
MemoryError, IoError an OSError with errno.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Type

from ._abi import Status


class Error(Exception):
    """A call failed.

    `text` says which field, its value and the limit; `status` is a kvcsa.Status, or an int that this version does not know;
    `detail` holds errno or the device's code.
    """

    #: Of Pool.step and Session.step: what became of each session, else None.
    results: Optional[Any] = None

    def __init__(self, text: str, status: int = Status.ERR_INTERNAL, detail: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.status = status
        self.detail = detail

    def __str__(self) -> str:
        name = self.status.name if isinstance(self.status, Status) else str(self.status)
        return f"{self.text} (KVCSA_{name})"


class InternalError(Error):
    """A fault of the library: please report it, with the text."""


class ArgError(Error, ValueError):
    """The call is wrong."""


class NoMemError(Error, MemoryError):
    """An allocator had no memory."""


class FullError(Error):
    """The pool's budget has no room."""


class UnsupportedError(Error):
    """Valid, but not by this version or backend."""


class BackendError(Error):
    """A device failed, or is not there."""


class FormatError(Error):
    """A file is not what it claims to be."""


class IoError(Error, OSError):
    """The system refused; `errno` says why."""

    def __init__(self, text: str, status: int = Status.ERR_IO, detail: int = 0) -> None:
        super().__init__(text, status, detail)
        self.errno = detail


class BusyError(Error):
    """Another thread is in this session, or a handle that is to be closed is in use."""


class CancelledError(Error):
    """It was asked for."""


class MismatchError(Error):
    """Fingerprint, plan or numerics of another model."""


class CorruptError(Error):
    """A checksum does not fit."""


class LimitError(Error):
    """Beyond the model's context."""


class LibraryError(Error, ImportError):
    """The shared library is not there, does not load, or is too old for this package."""


BY_STATUS: Dict[int, Type[Error]] = {
    Status.ERR_INTERNAL: InternalError, Status.ERR_ARG: ArgError, Status.ERR_NOMEM: NoMemError, Status.ERR_FULL: FullError,
    Status.ERR_UNSUPPORTED: UnsupportedError, Status.ERR_BACKEND: BackendError, Status.ERR_FORMAT: FormatError,
    Status.ERR_IO: IoError, Status.ERR_BUSY: BusyError, Status.ERR_CANCELLED: CancelledError,
    Status.ERR_MISMATCH: MismatchError, Status.ERR_CORRUPT: CorruptError, Status.ERR_LIMIT: LimitError,
}


def from_record(record: Any) -> Error:
    """The exception of a kvcsa_error."""
    text = record.text.decode("utf-8", "replace")
    status: int = record.status
    kind = BY_STATUS.get(status)
    return kind(text, Status(status), record.detail) if kind else Error(text, status, record.detail)
