"""Sessions: one timeline of tokens on one model in one pool."""

from __future__ import annotations

import ctypes
import io
from array import array
from ctypes import POINTER, byref, c_double, c_float, c_int32, c_size_t, c_uint32, c_uint64
from dataclasses import replace
from typing import Any, Callable, Generator, Iterable, Iterator, List, Optional, Sequence, Tuple

from . import _abi, library, sampling, snapshot
from ._runtime import Handle, Hook, PathLike, View, array_out, call, copied, defaults, filled, numbers_in, output, path_bytes
from ._runtime import result_of, thunk, tokens_in
from .chunk import Chunk, read_rows
from .errors import ArgError, Error
from .model import Model
from .pool import Pool, Progress, StepResult
from .records import ReuseInfo, SessionParams, SessionStats, SnapshotInfo, Work
from .sampling import Sampler

#: on_logits(position, row): a row of float32; a view of the library's memory that must not be kept.
LogitsFunction = Callable[[int, memoryview], None]

END = 2**64 - 1


class Session(Handle):
    """Made by Pool.session() or Session.fork(). One caller at a time: a second one gets BusyError. cancel() is for anyone."""

    _RELEASE = "kvcsa_session_release"

    def __init__(self, pool: Pool, model: Model, params: Optional[SessionParams] = None, *, cache_only: bool = False) -> None:
        out = POINTER(_abi.kvcsa_session)()
        if cache_only:
            params = params or SessionParams()
            params = replace(params, flags=(params.flags or 0) | _abi.SessionFlags.CACHE_ONLY)
        pool._adopt(model._hooks)  # the pool keeps the model in C
        call("kvcsa_session_create", pool._pointer, model._pointer, byref(filled(_abi.kvcsa_session_params, params)), byref(out),
             using=[pool, model])
        self._set_up(out, pool, model)

    def _set_up(self, pointer: Any, pool: Pool, model: Model) -> None:
        super().__init__(pointer, [pool, model])
        self._pool, self._model = pool, model
        self._logits = Hook()            # what functions for logits raised
        self._queued: List[Any] = []     # what C may call until the queue is empty

    @property
    def pool(self) -> Pool:
        return self._pool

    @property
    def model(self) -> Model:
        return self._model

    def __len__(self) -> int:
        """Committed tokens."""
        self._enter()
        try:
            return int(library.get().kvcsa_session_length(self._pointer))
        finally:
            self._leave()

    def __bool__(self) -> bool:
        return True  # an empty session is one, too

    # ---------------------------------------------------------------- tokens

    def append(self, tokens: Iterable[int], *, on_logits: Optional[LogitsFunction] = None, rows: Optional[Sequence[int]] = None,
               logits: Optional[int] = None, reuse: int = 0) -> int:
        """Queue tokens; a step computes them. Answers the length after them.

        on_logits gets the logits of every token, or of those at the offsets `rows`. logits: a kvcsa.Logits, for NONE. reuse: a
        kvcsa.Reuse for this append.
        """
        ids, n = tokens_in(tokens)
        params, kept = self._append_params(on_logits, rows, logits, reuse)
        position = c_uint64()
        self._queue("kvcsa_session_append", kept, ids, n, byref(params), byref(position))
        return position.value

    def sync(self, tokens: Iterable[int], *, on_logits: Optional[LogitsFunction] = None, rows: Optional[Sequence[int]] = None,
             logits: Optional[int] = None, reuse: int = 0) -> ReuseInfo:
        """Make the session hold exactly these tokens with the least work; a step computes what is left. As append() otherwise."""
        ids, n = tokens_in(tokens)
        params, kept = self._append_params(on_logits, rows, logits, reuse)
        info = output(_abi.kvcsa_reuse)
        self._queue("kvcsa_session_sync", kept, ids, n, byref(params), byref(info))
        result: ReuseInfo = copied(info)
        return result

    def _queue(self, name: str, kept: List[Any], *arguments: Any) -> None:
        """What C may call is held before C knows it, so that an interrupt cannot come in between."""
        self._queued += kept
        try:
            call(name, self._pointer, *arguments, using=[self])
        except Error:
            self._queued = [function for function in self._queued if function not in kept]
            raise

    def _append_params(self, on_logits: Optional[LogitsFunction], rows: Optional[Sequence[int]], logits: Optional[int],
                       reuse: int) -> Tuple[Any, List[Any]]:
        params = defaults(_abi.kvcsa_append_params)
        params.reuse = reuse
        kept: List[Any] = []
        if on_logits is not None:
            wanted, failures, cancel = on_logits, self._logits.failures, self._cancel_inside

            def enter(_user: Any, position: int, row: Any, n_vocab: int) -> None:
                with View(c_float, ctypes.addressof(row.contents), n_vocab, "f") as view:
                    wanted(position, view)

            function = thunk(_abi.kvcsa_logits_fn, failures, None, enter, failed=cancel)
            kept.append(function)
            params.on_logits = function
            params.logits = _abi.Logits.ALL
        if rows is not None:
            if on_logits is None:
                raise ArgError("rows are given without on_logits", _abi.Status.ERR_ARG)
            offsets, n_rows = numbers_in(rows, "I", c_uint32)
            params.rows = ctypes.cast(offsets, POINTER(c_uint32)) if n_rows else None
            params.n_rows, params.logits = n_rows, _abi.Logits.ROWS
        if logits is not None:
            params.logits = logits
        return params, kept

    def _cancel_inside(self) -> None:
        if self._pointer is not None:
            library.get().kvcsa_session_cancel(self._pointer)

    def _stepped(self, record: Any, queued: List[Any]) -> None:
        """Let go of what C could call of the appends that were there before a step, if it has emptied the queue."""
        if record.n_queued == 0 and record.error.status in (_abi.Status.OK, _abi.Status.ERR_CANCELLED):
            self._queued = [function for function in self._queued if function not in queued]

    def step(self, *, progress: Optional[Progress] = None, max_rows: int = 0, deadline_ns: int = 0) -> StepResult:
        """Pool.step() for this session alone."""
        return self._pool.step([self], progress=progress, max_rows=max_rows, deadline_ns=deadline_ns)[0]

    def cancel(self) -> None:
        """Ask a running step to stop computing this session; from any thread, also from a signal handler or a callback."""
        self._enter()
        try:
            self._cancel_inside()
        finally:
            self._leave()

    def tokens(self, start: int = 0) -> "array[int]":
        """Committed tokens from a position on."""
        def fill(out: Any, capacity: int) -> int:
            n = c_size_t()
            call("kvcsa_session_get_tokens", self._pointer, start, out, capacity, byref(n), using=[self])
            return n.value

        return array_out("i", c_int32, max(0, len(self) - start), fill)

    def common_prefix(self, tokens: Iterable[int]) -> int:
        """How many of these tokens the session holds already, from the first on."""
        ids, n = tokens_in(tokens)
        common = c_size_t()
        call("kvcsa_session_common_prefix", self._pointer, ids, n, byref(common), using=[self])
        return common.value

    # ---------------------------------------------------------------- logits and sampling

    def logits(self, out: Any = None) -> Any:
        """Logits of the last committed token, as an array of float32, of which numpy.frombuffer makes a view.

        Or in `out`: a writable buffer of float32, of numpy for example, that holds as many as the vocabulary has.
        """
        n = self._model.info.vocab_tokens
        target = array("f", bytes(4 * n)) if out is None else out
        view = memoryview(target)
        if view.readonly or view.format != "f" or not view.c_contiguous or view.nbytes != 4 * n:
            raise ArgError(f"out must be {n} contiguous float32 that can be written", _abi.Status.ERR_ARG)
        row = (c_float * n).from_buffer(view.cast("B"))
        call("kvcsa_session_get_logits", self._pointer, row, n, using=[self])
        return target

    def sample(self, sampler: Optional[Sampler] = None) -> int:
        """A token for the last logits; greedy without a sampler."""
        token = c_int32()
        call("kvcsa_session_sample", self._pointer, byref(sampling.params_of(sampler)), byref(token), using=[self])
        return token.value

    def generate(self, max_tokens: int, sampler: Optional[Sampler] = None, *,
                 stop_at_eos: bool = True) -> Generator[int, None, None]:
        """Go on by at most so many tokens, one at a time: step, sample, append. Every token that was given is committed when the
        generator ends, also when it is closed early."""
        eos = self._model.info.eos_token if stop_at_eos else -1
        for _ in range(max_tokens):
            self.step()
            token = self.sample(sampler)
            if token == eos:
                return
            self.append((token,))
            given = False
            try:
                yield token
                given = True
            finally:
                if not given and not self.closed:
                    self.step()
        self.step()

    def stream(self, max_tokens: int, sampler: Optional[Sampler] = None, *, stops: Sequence[str] = (),
               stop_at_eos: bool = True) -> Iterator[str]:
        """generate() as text that can be shown at once. Ends in front of a stop string; its tokens stay in the session."""
        tokens = self.generate(max_tokens, sampler, stop_at_eos=stop_at_eos)
        with self._model.text_stream(stops) as out:
            try:
                for token in tokens:
                    text = out.push(token)
                    if text:
                        yield text
                    if out.stopped is not None:
                        return
                text = out.finish()
                if text:
                    yield text
            finally:
                tokens.close()

    # ---------------------------------------------------------------- a network of the host's own

    def chunk(self, max_rows: int = 0) -> Chunk:
        """Open the next rows that the host is to compute; a chunk of no rows, which is false, if there are none. For sessions
        that are cache_only."""
        return Chunk(self, max_rows)

    def chunks(self, max_rows: int = 0) -> Generator[Chunk, None, None]:
        """Chunk after chunk until nothing is queued; each is committed when the next one is asked for. The one in which a loop
        is left early, or fails, is abandoned."""
        while True:
            with self.chunk(max_rows) as chunk:
                if not chunk:
                    return
                yield chunk

    def read_rows(self, layer: int, what: int, first: int, n: int, out: Any = None) -> Any:
        """Rows of the cache as float32, as attention sees them; what: a kvcsa.Read. Answers a memoryview of [n, kv_heads,
        channels], or of [n, channels] where there is one row a position; or `out`, which is filled."""
        return read_rows(self, layer, what, first, n, out)

    # ---------------------------------------------------------------- the timeline

    def fork(self, position: Optional[int] = None, params: Optional[SessionParams] = None) -> "Session":
        """A second session that holds the first `position` tokens (default: all); no byte of the cache is copied."""
        out = POINTER(_abi.kvcsa_session)()
        struct = byref(filled(_abi.kvcsa_session_params, params)) if params is not None else None
        call("kvcsa_session_fork", self._pointer, len(self) if position is None else position, struct, byref(out), using=[self])
        other = Session.__new__(Session)
        other._set_up(out, self._pool, self._model)
        return other

    def rewind(self, position: int) -> None:
        """Go back to an earlier position; the next step rebuilds what that needs."""
        call("kvcsa_session_rewind", self._pointer, position, using=[self])

    def erase(self, *, secure: bool = False) -> None:
        """Drop all tokens and the queue. secure: overwrite them."""
        call("kvcsa_session_erase", self._pointer, _abi.EraseFlags.SECURE if secure else 0, using=[self])
        self._queued.clear()

    def publish(self) -> int:
        """Publish the full blocks; answers how many tokens can be found by prefix now."""
        n = c_uint64()
        call("kvcsa_prefix_publish", self._pointer, byref(n), using=[self])
        return n.value

    # ---------------------------------------------------------------- figures

    def stats(self) -> SessionStats:
        """Figures of the session, and what its layers did."""
        stats: SessionStats = result_of("kvcsa_session_get_stats", _abi.kvcsa_session_stats, self._pointer, using=[self])
        return stats

    def reuse(self) -> ReuseInfo:
        """What became of the tokens of the last append or sync, and why not more was reused."""
        info: ReuseInfo = result_of("kvcsa_session_get_reuse", _abi.kvcsa_reuse, self._pointer, using=[self])
        return info

    def layer_work(self, layer: int) -> Tuple[Work, Work]:
        """What one layer did: in the last step, and since creation."""
        step, total = _abi.kvcsa_work(), _abi.kvcsa_work()
        call("kvcsa_session_layer_work", self._pointer, layer, byref(step), byref(total), using=[self])
        return copied(step), copied(total)

    def hide(self, begin: int, end: int = END, *, hidden: bool = True) -> None:
        """Hide the entries of tokens from selection, or show them again; multiples of Model.info.span_tokens."""
        call("kvcsa_session_hide", self._pointer, begin, end, 1 if hidden else 0, using=[self])

    def mass(self, *, reset: bool = False) -> "array[float]":
        """Attention that each span of tokens received; for sessions with SessionFlags.TRACK_MASS."""
        guess = len(self) // max(1, self._model.info.span_tokens) + 1

        def fill(out: Any, capacity: int) -> int:
            n = c_size_t()
            call("kvcsa_session_get_mass", self._pointer, out, capacity, byref(n), 0, using=[self])
            return n.value

        result = array_out("d", c_double, guess, fill)
        if reset:
            call("kvcsa_session_get_mass", self._pointer, None, 0, byref(c_size_t()), 1, using=[self])
        return result

    # ---------------------------------------------------------------- snapshots

    def save(self, path: PathLike, *, name: Optional[str] = None, flags: int = 0) -> SnapshotInfo:
        """Save to a file, or into a directory under a name; flags: kvcsa.SnapshotFlags."""
        return self._saved("kvcsa_snapshot_save", path_bytes(path), name, flags)

    def load(self, path: PathLike, *, name: Optional[str] = None, flags: int = 0) -> SnapshotInfo:
        """Replace what the session holds by a snapshot; unchanged if that fails."""
        return self._saved("kvcsa_snapshot_load", path_bytes(path), name, flags)

    def write(self, file: Any, *, flags: int = 0) -> SnapshotInfo:
        """Save to a binary file object."""
        hook, writer = snapshot.writer_of(file)
        return self._saved("kvcsa_snapshot_write", byref(writer), None, flags, hook)

    def read(self, file: Any, *, flags: int = 0) -> SnapshotInfo:
        """Load from a binary file object."""
        hook, reader = snapshot.reader_of(file)
        return self._saved("kvcsa_snapshot_read", byref(reader), None, flags, hook)

    def _saved(self, function: str, where: Any, name: Optional[str], flags: int, hook: Optional[Hook] = None) -> SnapshotInfo:
        info = output(_abi.kvcsa_snapshot_info)
        call(function, self._pointer, where, byref(snapshot.params_of(name, flags)), byref(info), using=[self],
             hooks=[hook] if hook else [])
        result: SnapshotInfo = copied(info)
        return result

    def snapshot_size(self, *, flags: int = 0) -> int:
        """Bytes that write(), or save() to a file, will write now."""
        n = c_uint64()
        call("kvcsa_snapshot_size", self._pointer, byref(snapshot.params_of(None, flags)), byref(n), using=[self])
        return n.value

    def to_bytes(self, *, flags: int = 0) -> bytes:
        """The snapshot in memory."""
        out = io.BytesIO()
        self.write(out, flags=flags)
        return out.getvalue()

    def from_bytes(self, data: bytes, *, flags: int = 0) -> SnapshotInfo:
        """Load what to_bytes() made."""
        return self.read(io.BytesIO(data), flags=flags)
