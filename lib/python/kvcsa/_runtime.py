"""Handles, calls and callbacks: what every class of this package stands on.

Invariants
(1) A handle is released once, never while a call is in it, and never in a process that it was not made in.
(2) What C may call back (thunks) is held by the handle it was given to, and children hold their parents' handles; so a thunk
    outlives the C object that knows it.
(3) No exception crosses C: a thunk notes it, the call that it happened in is cancelled where that is possible, and raises it when
    it returns. That includes exceptions of signal handlers, KeyboardInterrupt among them, which Python runs inside thunks.
(4) Nothing is released inside a thunk, since the pool may be locked there: garbage that is found meanwhile waits for the end of a
    call.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import weakref
from array import array
from collections import deque
from ctypes import byref
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Sequence, Tuple, Type, TypeVar, Union

from . import _abi, library
from .errors import ArgError, BusyError, from_record
from .records import RESULTS

H = TypeVar("H", bound="Handle")
PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


class _Local(threading.local):
    depth = 0  # thunks that this thread is in


_local = _Local()
_generation = 0  # of the process: one more after each fork(2)
_live: "weakref.WeakSet[Handle]" = weakref.WeakSet()
_deferred: Deque[Tuple[str, Any, Any]] = deque()


# ------------------------------------------------------------------ callbacks

class Hook:
    """Functions of Python's that C may call, and what they raised."""

    def __init__(self) -> None:
        self.failures: List[BaseException] = []


def thunk(prototype: Any, failures: List[BaseException], answer: Any, function: Callable[..., Any], *, always: bool = False,
          failed: Optional[Callable[[], None]] = None) -> Any:
    """`function` for C. What it raises is noted, and C gets `answer`, from then on without asking unless `always`."""

    def enter(*arguments: Any) -> Any:
        _local.depth += 1
        try:
            return answer if failures and not always else function(*arguments)
        except BaseException as error:  # also KeyboardInterrupt and SystemExit: see (3)
            failures.append(error)
            if failed:
                failed()
            return answer
        finally:
            _local.depth -= 1

    return prototype(enter)


class SignalGuard:
    """Lets signal handlers run inside thunks, and notes what they raise.

    Python runs them at the first instruction of a thunk, in front of every `try` that it could have, and ctypes prints and drops
    what comes out. So while a call runs that may call back, handlers are wrapped. Only the main thread has signals.
    """

    def __init__(self, failures: List[BaseException]) -> None:
        self.failures = failures
        self.saved: Dict[int, Any] = {}

    def _handle(self, number: int, frame: Any) -> None:
        try:
            self.saved[number](number, frame)
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            handler = _signal.getsignal(number)
            if not callable(handler):
                continue
            self.saved[number] = handler
            try:
                _signal.signal(number, self._handle)
            except ValueError:  # not the main interpreter: it has no signals either
                del self.saved[number]
                return

    def __exit__(self, *_: object) -> None:
        self._restore(list(self.saved.items()))

    def _restore(self, rest: List[Tuple[int, Any]]) -> None:
        if rest:
            number, handler = rest.pop()
            try:  # the handler may run, and raise, as soon as it is back
                if _signal.getsignal(number) == self._handle:
                    _signal.signal(number, handler)
            finally:
                self._restore(rest)


# Every step asks for the handlers of all signals; the functions of `signal` itself take ten times as long, for names of numbers.
_signal: Any = getattr(signal, "_signal", signal)
_SIGNALS = sorted(set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP})


def prototype(kind: Any, name: str) -> Any:
    """Of a function pointer in a struct."""
    return dict(kind._fields_)[name]


class View:
    """Memory of C's for the time of a callback. It must not be kept: `end` raises if somebody does."""

    def __init__(self, kind: Any, address: int, count: int, code: Any) -> None:
        self._array = (kind * count).from_address(address)
        self._views = [memoryview(self._array).cast("B")]
        if code != "B":
            self._views.insert(0, self._views[0].cast(code))
        self._watch = weakref.ref(self._array)

    def __enter__(self) -> memoryview:
        return self._views[0]

    def __exit__(self, kind: Any, *_: object) -> None:
        kept = False
        for view in self._views:
            try:
                view.release()
            except BufferError:
                kept = True
        self._views = []
        self._array = None
        # Slices and numpy arrays hold the memory; where nothing does, the array has gone with the last name for it.
        if (kept or self._watch() is not None) and kind is None:
            raise BufferError("the callback keeps a view of memory that is only there while it runs; copy it")


# ------------------------------------------------------------------ handles

class Handle:
    """An object of the library's. Close it, use it as a context manager, or let it go: children keep their parents."""

    _RELEASE = ""  # function that releases it
    _ORDER = 0     # at exit the lowest go first

    def __init__(self, pointer: Any, parents: Sequence["Handle"] = (), hooks: Sequence[Hook] = ()) -> None:
        self._lock = threading.RLock()  # a signal handler may cancel while this thread holds it
        self._users = 0
        self._generation = _generation
        self._parents = tuple(parents)
        inherited = [hook for parent in parents for hook in parent._hooks]
        self._hooks: Tuple[Hook, ...] = tuple(dict.fromkeys(list(hooks) + inherited))
        self._pointer: Any = pointer
        _live.add(self)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._pointer is None

    def _enter(self) -> Any:
        if self._generation != _generation:  # in front of the lock, which a thread of the other process may hold
            raise ArgError(f"the {type(self).__name__} was made before a fork(2) and does not exist in this process",
                           _abi.Status.ERR_ARG)
        with self._lock:
            if self._pointer is None:
                raise ArgError(f"the {type(self).__name__} is closed", _abi.Status.ERR_ARG)
            self._users += 1
            return self._pointer

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1

    def _adopt(self, hooks: Iterable[Hook]) -> None:
        """C keeps something that knows these from now on."""
        with self._lock:
            self._hooks = tuple(dict.fromkeys([*self._hooks, *hooks]))

    def close(self) -> None:
        """Release it; a second time does nothing. While a call is in it: BusyError."""
        if self._generation != _generation:
            self._pointer = None
            return
        with self._lock:
            if self._users:
                raise BusyError(f"the {type(self).__name__} is in use", _abi.Status.ERR_BUSY)
            pointer, self._pointer = self._pointer, None
        if pointer is not None and not _exited:
            # The thunks, and those of the parents, stay with the entry until C has let go of them.
            _deferred.append((self._RELEASE, pointer, (self._hooks, self._parents)))
            drain()

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            self.close()


def drain() -> None:
    """Release what waits, unless this thread is in a callback (4)."""
    while _deferred and not _local.depth:
        try:
            name, pointer, _kept = _deferred.popleft()
        except IndexError:  # another thread took the last one
            return
        getattr(library.get(), name)(byref(pointer))


def _after_fork() -> None:
    global _generation
    _generation += 1
    _deferred.clear()


def _at_exit() -> None:
    # Before modules and thunks go, in whatever order. What a daemon thread is in stays, with its thunks, as long as the process.
    global _exited
    for handle in sorted(_live, key=lambda h: h._ORDER):
        try:
            handle.close()
        except BusyError:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
    _exited = True


_exited = False
os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


# ------------------------------------------------------------------ calls

def call(name: str, *arguments: Any, using: Sequence[Handle] = (), hooks: Sequence[Hook] = ()) -> None:
    """Call a function that answers a status. Handles among `using` cannot be closed meanwhile; `hooks` are what it may call back
    beside theirs."""
    function = getattr(library.get(), name)
    record = _abi.kvcsa_error()
    every = list(hooks)
    entered: List[Handle] = []
    try:
        for handle in using:
            handle._enter()
            entered.append(handle)
            every.extend(handle._hooks)
        if every and not hooks:  # signals belong to this call, those hooks to every thread
            every.insert(0, Hook())
        if every:
            with SignalGuard(every[0].failures):
                status = function(*arguments, byref(record))
        else:
            status = function(*arguments, byref(record))
    finally:
        for handle in entered:
            handle._leave()
    drain()
    raise_noted(every)
    if status != 0:
        raise from_record(record)


def raise_noted(hooks: Iterable[Hook]) -> None:
    """Raise the first thing that a callback raised; the others are its context."""
    noted: List[BaseException] = []
    for hook in hooks:
        while hook.failures:
            noted.append(hook.failures.pop(0))
    if noted:
        for earlier, later in zip(noted[1:], noted):
            if earlier is not later and earlier.__context__ is None and later.__context__ is not earlier:
                later.__context__ = earlier
        raise noted[0]


def defaults(kind: Type[Any]) -> Any:
    """A struct of parameters with the library's defaults."""
    params = kind()
    getattr(library.get(), f"{kind.__name__}_default")(byref(params), ctypes.sizeof(params))
    return params


def filled(kind: Type[Any], record: Any) -> Any:
    """Likewise, with the fields of a record of parameters that are not None."""
    params = defaults(kind)
    for field, value in vars(record).items() if record is not None else ():
        if value is not None:
            setattr(params, field, value)
    return params


def output(kind: Type[Any]) -> Any:
    """A struct for the library to fill."""
    result = kind()
    if hasattr(kind, "struct_size"):
        result.struct_size = ctypes.sizeof(kind)
    return result


def copied(value: Any) -> Any:
    """A value of Python's own: strings that belong to a handle are copied while it is held."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, ctypes.Array):
        return tuple(copied(item) for item in value)
    if isinstance(value, ctypes.Structure):
        kind = RESULTS[type(value)]
        fields = ((field[0], getattr(value, field[0])) for field in value._fields_)
        return kind(**{name: "" if item is None else copied(item) for name, item in fields
                       if name not in ("struct_size", "reserved")})
    return value


def result_of(name: str, kind: Type[Any], *arguments: Any, using: Sequence[Handle] = ()) -> Any:
    """Call a function whose last argument but the error is a struct that it fills."""
    result = output(kind)
    entered: List[Handle] = []
    try:  # what strings belong to stays while they are copied
        for handle in using:
            handle._enter()
            entered.append(handle)
        call(name, *arguments, byref(result), using=using)
        return copied(result)
    finally:
        for handle in entered:
            handle._leave()


# ------------------------------------------------------------------ arguments

def path_bytes(path: PathLike) -> bytes:
    return no_nul(os.fsencode(path), "path")


def no_nul(text: bytes, what: str) -> bytes:
    """C would stop reading there."""
    if b"\0" in text:
        raise ArgError(f"{what} holds a NUL byte", _abi.Status.ERR_ARG)
    return text


def numbers_in(values: Any, code: str, kind: Any) -> Tuple[Any, int]:
    """(C array, count) of any iterable of numbers; writable contiguous buffers of the right type are not copied."""
    if isinstance(values, (str, bytes, bytearray)):
        raise TypeError(f"numbers are wanted, not {type(values).__name__}")
    try:
        view = memoryview(values)
    except TypeError:
        view = None
    if view is not None and view.ndim == 1 and view.format == code and view.c_contiguous:
        if not view.nbytes:
            return None, 0
        if not view.readonly:
            return (kind * len(view)).from_buffer(view), len(view)
        own = array(code, view.tobytes())
    else:
        try:
            own = array(code, values)
        except OverflowError as error:
            raise ArgError(f"a number is out of range: {error}", _abi.Status.ERR_ARG) from None
    return ((kind * len(own)).from_buffer(own) if own else None), len(own)


def tokens_in(tokens: Iterable[int]) -> Tuple[Any, int]:
    return numbers_in(tokens, "i", ctypes.c_int32)


def array_out(code: str, kind: Any, guess: int, fill: Callable[[Any, int], int]) -> "array[Any]":
    """An array of what `fill(array, capacity)` gives; it answers how much there is."""
    capacity = guess
    while True:
        out = array(code, bytes(capacity * ctypes.sizeof(kind)))
        n = fill((kind * capacity).from_buffer(out) if capacity else None, capacity)
        if n <= capacity:
            return out if n == capacity else out[:n]
        capacity = n
