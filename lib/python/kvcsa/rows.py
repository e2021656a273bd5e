"""Rows of float32 that a host hands over: arrays with strides, or addresses. Nothing is copied.

An array is whatever has the buffer protocol: numpy's, array.array("f"), memoryview. memoryview gives no address of read-only or
strided memory, so the protocol is spoken to CPython directly.
"""

from __future__ import annotations

import ctypes
from array import array
from ctypes import POINTER, c_char_p, c_float, c_int, c_ssize_t, c_void_p
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

from . import _abi
from .errors import ArgError

RECORDS_RO = 0x1C  # PyBUF_RECORDS_RO: strides and format, written or not
FLOATS = (b"f", b"<f", b"=f", b"@f")


class _Buffer(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [
        ("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t), ("readonly", c_int), ("ndim", c_int),
        ("format", c_char_p), ("shape", POINTER(c_ssize_t)), ("strides", POINTER(c_ssize_t)), ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    ]


# Prototypes of our own: those of ctypes.pythonapi are everybody's.
_get_buffer = ctypes.PYFUNCTYPE(c_int, ctypes.py_object, POINTER(_Buffer), c_int)(("PyObject_GetBuffer", ctypes.pythonapi))
_release_buffer = ctypes.PYFUNCTYPE(None, POINTER(_Buffer))(("PyBuffer_Release", ctypes.pythonapi))


@dataclass(frozen=True)
class Rows:
    """Rows by their address; nobody checks what lies there, and it must stay until the call returns.

    Strides are in floats: from a row to the next (0 = heads x width), and from a head to the next (0 = width). on_device: a
    pointer of the pool's device, and whatever fills it has finished.
    """

    address: int
    row_stride: int = 0
    head_stride: int = 0
    on_device: bool = False


def bad(text: str) -> ArgError:
    return ArgError(text, _abi.Status.ERR_ARG)


class Lease:
    """What one call borrows: buffers that cannot be resized meanwhile, and whether they are the device's."""

    def __init__(self) -> None:
        self._held: List[_Buffer] = []
        self._on_device: Optional[bool] = None

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        while self._held:
            _release_buffer(ctypes.byref(self._held.pop()))

    @property
    def flags(self) -> int:
        return int(_abi.RowsFlags.ON_DEVICE) if self._on_device else 0

    def rows(self, name: str, value: Any, n: int, heads: int, width: int, *, writable: bool = False) -> Any:
        """kvcsa_rows of an argument: [n, heads, width], [n, heads x width], or flat. None is none."""
        if value is None:
            return _abi.kvcsa_rows()
        on_device = isinstance(value, Rows) and value.on_device
        if self._on_device is not None and self._on_device != on_device:
            raise bad(f"{name}: all rows of a call lie on the device, or none does")
        self._on_device = on_device
        if isinstance(value, Rows):
            return _struct(value.address, value.row_stride, value.head_stride)
        buffer = self._borrow(name, value)
        if writable and buffer.readonly:
            raise bad(f"{name}: the array is read-only")
        shape = tuple(buffer.shape[axis] for axis in range(buffer.ndim))
        fits: Tuple[Tuple[int, ...], ...] = ((n, heads, width), (n, heads * width), (n * heads * width,))
        if shape not in fits:
            raise bad(f"{name}: shape is {list(shape)}, must be {list(fits[0])} or {list(fits[1])}")
        if n == 0:
            return _abi.kvcsa_rows()
        strides = [_stride(name, buffer, axis) for axis in range(buffer.ndim)]
        row = strides[0] if buffer.ndim > 1 else 0
        return _struct(buffer.buf, row, strides[1] if buffer.ndim > 2 else 0)

    def heads_of(self, name: str, value: Any, n: int, width: int) -> int:
        """How many heads an array of [n, heads, width] has."""
        if isinstance(value, Rows):
            raise bad(f"n_heads is wanted where {name} is an address")
        if value is None:
            raise bad(f"{name} is None")
        buffer = self._borrow(name, value)
        size = buffer.shape[1] * width if buffer.ndim == 3 else buffer.len // (4 * n)
        if size % width or not size:
            raise bad(f"{name}: rows have {size} channels, must be a multiple of {width}")
        return int(size // width)

    def _borrow(self, name: str, value: Any) -> _Buffer:
        buffer = _Buffer()
        try:
            _get_buffer(value, ctypes.byref(buffer), RECORDS_RO)
        except TypeError:
            raise TypeError(f"{name}: an array of float32 (of a tensor on the CPU its .numpy()) or kvcsa.Rows is wanted, not "
                            f"{type(value).__name__}") from None
        self._held.append(buffer)
        if buffer.format not in FLOATS:
            raise bad(f"{name}: elements are '{(buffer.format or b'B').decode()}', must be float32 ('f')")
        if not 1 <= buffer.ndim <= 3:
            raise bad(f"{name}: an array of {buffer.ndim} dimensions, must be 1 to 3")
        return buffer


def _stride(name: str, buffer: _Buffer, axis: int) -> int:
    """Of an axis, in floats; 0 where there is no next one, or (arrays of ctypes) nothing but what the shape says."""
    if buffer.shape[axis] == 1 or not buffer.strides:
        return 0
    stride = int(buffer.strides[axis])
    if axis == buffer.ndim - 1 and stride != 4:
        raise bad(f"{name}: the last axis has a stride of {stride} bytes, must be contiguous; copy the array")
    if stride <= 0 or stride % 4:
        raise bad(f"{name}: axis {axis} has a stride of {stride} bytes, must be a multiple of 4 above 0; copy the array")
    return stride // 4


def _struct(address: int, row_stride: int, head_stride: int) -> Any:
    return _abi.kvcsa_rows(ctypes.cast(c_void_p(address), POINTER(c_float)), row_stride, head_stride)


def made(code: Any, *shape: int) -> memoryview:
    """Zeros of a shape, and nobody else's: numpy.asarray and tolist() read it."""
    size = 4
    for length in shape:
        size *= length
    flat = memoryview(array(code, bytes(size)))
    return flat.cast("B").cast(code, list(shape)) if size else flat
