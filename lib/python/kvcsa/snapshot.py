"""Snapshots: a session as bytes (docs/formats.md "Snapshot")."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import Any, Optional, Tuple

from . import _abi
from ._runtime import Hook, PathLike, View, call, defaults, no_nul, path_bytes, prototype, result_of, thunk
from .records import SnapshotInfo


def params_of(name: Optional[str], flags: int) -> Any:
    params = defaults(_abi.kvcsa_snapshot_params)
    params.flags = flags
    if name is not None:
        params.name = no_nul(name.encode(), "name")
    return params


def inspect_snapshot(path: PathLike, *, name: Optional[str] = None, flags: int = 0) -> SnapshotInfo:
    """Describe a snapshot (a file, or a directory and a name) without loading it."""
    info: SnapshotInfo = result_of("kvcsa_snapshot_inspect", _abi.kvcsa_snapshot_info, path_bytes(path),
                                   byref(params_of(name, flags)))
    return info


def remove_snapshot(path: PathLike, *, name: Optional[str] = None) -> None:
    """Remove a snapshot, and the records that no other one of its directory uses."""
    call("kvcsa_snapshot_remove", path_bytes(path), byref(params_of(name, 0)))


def writer_of(file: Any) -> Tuple[Hook, Any]:
    """A kvcsa_writer that writes to a binary file object; the bytes are not copied on the way."""
    hook = Hook()

    def write(_user: Any, data: int, n_bytes: int) -> int:
        if n_bytes:
            with View(ctypes.c_uint8, data, n_bytes, "B") as view:
                done = 0
                while done < n_bytes:  # raw files may take less
                    rest = view[done:]
                    n = file.write(rest)
                    rest.release()
                    if n == 0:
                        raise OSError("the file takes no more")
                    done += n_bytes if n is None else n
        return 0

    kind = prototype(_abi.kvcsa_writer, "write")
    return hook, _abi.kvcsa_writer(thunk(kind, hook.failures, 1, write), None)


def reader_of(file: Any) -> Tuple[Hook, Any]:
    """A kvcsa_reader that reads from a binary file object, into the library's memory where the file can."""
    hook = Hook()

    def read(_user: Any, data: int, n_bytes: int) -> int:
        if not n_bytes:
            return 0
        done = 0
        with View(ctypes.c_uint8, data, n_bytes, "B") as view:
            while done < n_bytes:  # raw files may give less; nothing is the end
                rest = view[done:]
                if hasattr(file, "readinto"):
                    n = file.readinto(rest) or 0
                else:
                    got = file.read(len(rest))
                    n = len(got)
                    rest[:n] = got
                rest.release()
                if n == 0:
                    break
                done += n
        return done

    kind = prototype(_abi.kvcsa_reader, "read")
    return hook, _abi.kvcsa_reader(thunk(kind, hook.failures, -1, read), None)
