"""Chunks: the rows that a host computes with a network of its own, and what it has the cache do with them."""

from __future__ import annotations

import ctypes
from array import array
from ctypes import POINTER, byref, c_float, c_int32
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from . import _abi, library
from ._runtime import call, drain, numbers_in, output
from .errors import ArgError, BusyError, Error
from .plan import PlanRow
from .rows import Lease, Rows, bad, made

if TYPE_CHECKING:
    from .session import Session


class Chunk:
    """Made by Session.chunk(). As a context manager it commits at the end, and abandons if there is an exception; or call
    commit() or abandon(). It is false, and closed already, if nothing is to be computed.

    Layers go in ascending order: write(), then select() where the layer makes a selection, then attend(). Rows are given as
    arrays of float32 (numpy's, array.array, memoryview) in which the channels of a head lie side by side, without a copy; or
    as kvcsa.Rows. One caller at a time, as for its session.
    """

    def __init__(self, session: "Session", max_rows: int = 0) -> None:
        info = output(_abi.kvcsa_chunk_info)
        self._session = session
        self._model = session.model
        call("kvcsa_chunk_begin", session._pointer, max_rows, byref(info), using=[session])
        self._n: int = info.n_rows
        self._open = self._n > 0
        #: Position of the first row.
        self.position: int = info.position
        #: Tokens of the session that are left to come after these.
        self.n_queued: int = info.n_queued
        #: Whether the session holds these tokens already, with entries and index keys: windows are made anew, or the last row
        #: is wanted once more for the token that follows.
        self.replay: bool = bool(info.replay)
        #: The token of each row.
        self.tokens: "array[int]" = array("i", info.tokens[: self._n] if self._open else [])
        #: Of a layer, window rows are wanted from position first_rows[layer] on, queries from first_rows[layer + 1] on; those
        #: below are not looked at. One more than there are layers.
        self.first_rows: Tuple[int, ...] = tuple(info.first_rows[: self._model.info.n_layers + 1] if self._open else [])

    def __len__(self) -> int:
        """Rows."""
        return self._n

    @property
    def closed(self) -> bool:
        """Whether it was committed or abandoned."""
        return not self._open

    def entries(self, layer: int) -> int:
        """How many entries of a layer these rows complete: as many keys, values and index keys are wanted."""
        ratio = self._model._row(layer).ratio
        return (self.position + self._n) // ratio - self.position // ratio if ratio else 0

    # ---------------------------------------------------------------- what a layer does

    def write(self, layer: int, *, key: Any = None, value: Any = None, index_key: Any = None, window: Any = None,
              pending: Any = None) -> None:
        """Store what a layer makes of these rows.

        key [entries, kv_heads, entry_width], value [entries, kv_heads, value_width], index_key [entries, index_width] of the
        entries that these rows complete (entries()); window [rows, entry_width]; pending [rows, channels].
        """
        row = self._row(layer)
        n = self.entries(layer)
        rows = _zeroed(_abi.kvcsa_chunk_rows)
        with Lease() as lease:
            rows.key = lease.rows("key", key, n, row.kv_heads, row.entry_width)
            rows.value = lease.rows("value", value, n, row.kv_heads, row.value_width)
            rows.index_key = lease.rows("index_key", index_key, n, 1, row.index_width)
            rows.window = lease.rows("window", window, self._n, 1, _widths(row)[0])
            rows.pending = lease.rows("pending", pending, self._n, 1, _pending_width(row))
            rows.flags = lease.flags
            self._call("kvcsa_chunk_write", layer, byref(rows))

    def select(self, layer: int, query: Any, weights: Any) -> memoryview:
        """Score the index keys and select, for this layer and those that inherit from it. query [rows, index_heads,
        index_width], rotated; weights [rows, index_heads]. Answers the numbers of the entries, ascending, -1 behind them: a
        memoryview of int32 [rows, select_entries]."""
        row = self._row(layer)
        queries = _zeroed(_abi.kvcsa_chunk_queries)
        ids = made("i", self._n, row.select_entries)
        with Lease() as lease:
            queries.query = lease.rows("query", query, self._n, row.index_heads, row.index_width)
            queries.weights = lease.rows("weights", weights, self._n, 1, row.index_heads)
            queries.flags = lease.flags
            if ids.nbytes:
                queries.ids = ctypes.cast((c_int32 * (ids.nbytes // 4)).from_buffer(ids.cast("B")), POINTER(c_int32))
            self._call("kvcsa_chunk_select", layer, byref(queries))
        return ids

    def attend(self, layer: int, query: Any, out: Any = None, sink: Any = None, scale: float = 0.0, *,
               n_heads: Optional[int] = None) -> Any:
        """Attention of these rows, each up to its own position. query [rows, heads, entry_width], rotated; sink: a logit for
        each head in the denominator; scale: of query x key, 0 = entry_width ** -0.5. n_heads is needed if query is a Rows.

        Answers a memoryview of float32 [rows, heads, value_width], of which numpy.asarray makes an array; or `out`, such an
        array or a Rows, which is filled. Rows of positions below first_rows[layer + 1] are left as they are (0).
        """
        width, value_width = _widths(self._row(layer))
        wanted = _zeroed(_abi.kvcsa_chunk_attention)
        with Lease() as lease:
            heads = lease.heads_of("query", query, self._n, width) if n_heads is None else n_heads
            wanted.query = lease.rows("query", query, self._n, heads, width)
            if out is None and lease.flags:
                raise bad("out is wanted where query lies on the device")
            result = made("f", self._n, heads, value_width) if out is None else out
            room = lease.rows("out", result, self._n, heads, value_width, writable=True)
            wanted.out, wanted.out_row_stride, wanted.out_head_stride = room.data, room.row_stride, room.head_stride
            wanted.n_heads, wanted.scale, wanted.flags = heads, scale, lease.flags
            if sink is not None:
                logits, n = numbers_in(sink, "f", c_float)
                if n != heads:
                    raise bad(f"sink: {n} logits, must be {heads}")
                wanted.sink = ctypes.cast(logits, POINTER(c_float))
            self._call("kvcsa_chunk_attend", layer, byref(wanted))
        return result

    # ---------------------------------------------------------------- its end

    def commit(self) -> None:
        """The session holds these tokens now. ArgError if a layer was not written: the chunk stays open."""
        self._check_open()
        try:
            self._call("kvcsa_chunk_commit")
        except Error as error:
            self._open = isinstance(error, (ArgError, BusyError))
            raise
        self._open = False

    def abandon(self) -> None:
        """Close it without a trace; its tokens are queued again. Harmless if it is closed."""
        if self._open and not self._session.closed:
            pointer = self._session._enter()
            try:
                library.get().kvcsa_chunk_abandon(pointer)
            finally:
                self._session._leave()
            drain()
        self._open = False

    def __enter__(self) -> "Chunk":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None and self._open:
                self.commit()
        finally:
            self.abandon()

    def _check_open(self) -> None:
        if not self._open:
            raise bad("the chunk is closed")  # the session may have another one

    def _call(self, name: str, *arguments: Any) -> None:
        call(name, self._session._pointer, *arguments, using=[self._session])

    def _row(self, layer: int) -> PlanRow:
        self._check_open()
        return self._model._row(layer)


def _zeroed(kind: Callable[[], Any]) -> Any:
    struct = kind()
    struct.struct_size = ctypes.sizeof(struct)
    return struct


def _widths(row: PlanRow) -> Tuple[int, int]:
    """Channels of a key and of a value. A layer that has its window alone says how many bytes its rows have: FP8_E8M0_G32, 33
    for 32 channels."""
    return (row.entry_width, row.value_width) if row.ratio else (row.window_bytes // 33 * 32,) * 2


def _pending_width(row: PlanRow) -> int:
    return row.pending_bytes // 4 // (row.ratio - 1) if row.ratio > 1 else 0


def _shape(session: "Session", layer: int, what: int) -> Tuple[int, int]:
    """(heads, channels) of what a layer reads: entries and index keys are their owner's."""
    row = session.model._row(layer)
    owner = session.model._row(row.index_owner) if what == _abi.Read.INDEX_KEYS and row.index_owner >= 0 else row
    known = {_abi.Read.KEYS: (row.kv_heads, row.entry_width), _abi.Read.VALUES: (row.kv_heads, row.value_width),
             _abi.Read.INDEX_KEYS: (1, owner.index_width), _abi.Read.WINDOW: (1, _widths(row)[0]),
             _abi.Read.PENDING: (1, _pending_width(row))}
    if what not in known:
        raise bad(f"what is {what}, must be a kvcsa.Read")
    return known[_abi.Read(what)]


def read_rows(session: "Session", layer: int, what: int, first: int, n: int, out: Any) -> Any:
    """Session.read_rows()."""
    if first < 0 or n < 0:
        raise bad(f"first is {first} and n is {n}, neither may be below 0")
    heads, width = _shape(session, layer, what)
    entries = what in (_abi.Read.KEYS, _abi.Read.VALUES)
    shape = (n, heads, width) if entries else (n, width)
    out = made("f", *shape) if out is None else out
    with Lease() as lease:
        room = lease.rows("out", out, n, heads, width, writable=True) if n and heads * width else _abi.kvcsa_rows()
        dense = room.row_stride in (0, heads * width) and room.head_stride in (0, width)
        if isinstance(out, Rows) or not dense:
            raise bad("out must be a contiguous array")
        call("kvcsa_session_read_rows", session._pointer, layer, what, first, n, room.data, n * heads * width, using=[session])
    return out
