"""Finding and loading libkvcsa.

Looked at, in this order: the path given to load(); the folder of this package, as a wheel has it; lib/ of the source tree, if the
package lies in one; what the system's loader finds under the soname. The environment is not looked at.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import List, Optional, Union

from . import _abi
from ._abi import Status
from .errors import LibraryError

SONAME = f"libkvcsa.so.{_abi.KVCSA_ABI}"

_lock = threading.RLock()
_library: Optional[ctypes.CDLL] = None
_path = ""
_carried: List[ctypes.CDLL] = []


def _open(path: str, package: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError:
        # A wheel carries what libkvcsa needs and a small system may lack. Loaded first, it is found by its soname; where the
        # system has it, it is left alone.
        files = sorted((package / "deps").glob("*.so*"))
        if not files or Path(path).parent != package:
            raise
        _carried.extend(ctypes.CDLL(str(file)) for file in files)
        return ctypes.CDLL(path)


def candidates(path: Optional[str] = None) -> List[str]:
    """What load() tries, best first."""
    if path is not None:
        return [path]
    package = Path(__file__).resolve().parent
    found = [package / SONAME]
    if (package.parent / "generate.py").exists():
        found.append(package.parent.parent / SONAME)
    return [str(file) for file in found if file.exists()] + [SONAME]


def _check(library: ctypes.CDLL, path: str) -> None:
    missing = [name for name in _abi.FUNCTIONS if not hasattr(library, name)]
    if "kvcsa_version_number" in missing:
        raise LibraryError(f"{path} is not libkvcsa", Status.ERR_UNSUPPORTED)
    library.kvcsa_version_number.restype = ctypes.c_uint32
    number = int(library.kvcsa_version_number())
    if number < _abi.KVCSA_VERSION_NUMBER or missing:
        raise LibraryError(f"{path} has version number {number}, this package needs {_abi.KVCSA_VERSION_NUMBER} or later"
                           + (f"; it lacks {missing[0]}" if missing else ""), Status.ERR_UNSUPPORTED)


def load(path: Union[str, "os.PathLike[str]", None] = None) -> ctypes.CDLL:
    """Load libkvcsa from this path, or from where it is found; the first call that needs it does so by itself.

    One library serves a process: asking for another one once it is loaded raises LibraryError.
    """
    global _library, _path
    with _lock:
        wanted = None if path is None else os.path.realpath(os.fspath(path))
        if _library is not None:
            if wanted is not None and wanted != _path:
                raise LibraryError(f"{_path} is loaded already, {wanted} cannot be", Status.ERR_ARG)
            return _library
        reasons = []
        for name in candidates(wanted):
            try:
                library = _open(name, Path(__file__).resolve().parent)
            except OSError as error:
                reasons.append(str(error))
                continue
            _check(library, name)
            for function, (restype, argtypes) in _abi.FUNCTIONS.items():
                bound = getattr(library, function)
                bound.restype, bound.argtypes = restype, argtypes
            _library, _path = library, os.path.realpath(name) if os.sep in name else name
            return library
        raise LibraryError("libkvcsa cannot be loaded: " + "; ".join(reasons), Status.ERR_IO)


def get() -> ctypes.CDLL:
    """The loaded library."""
    return _library if _library is not None else load()


def path() -> str:
    """Where the loaded library comes from."""
    get()
    return _path


def version() -> str:
    """Version of the library that is running: major.minor.patch."""
    text: bytes = get().kvcsa_version_string()
    return text.decode()
