"""What a host may give to models and pools: memory, a log, a trace, threads.

Functions may be called from any thread, must not use the handle that they were given to, and may raise: the call they happen in
raises it when it returns.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from ctypes import pointer
from typing import Any, Callable, List, Optional, Tuple, Union

from . import _abi
from ._runtime import Hook, copied, prototype, thunk
from .records import TraceEvent

LogFunction = Callable[[int, str], None]
Task = Callable[[int], None]

_LOG_LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG}


class Allocator(Hook):
    """Memory of the host's.

    alloc(size, align) answers an address, 0 where there is no memory; free(address, size, align) takes it back. Both are called
    from any thread, at the same time too.
    """

    def __init__(self, alloc: Callable[[int, int], int], free: Callable[[int, int, int], None]) -> None:
        super().__init__()
        self._alloc = thunk(prototype(_abi.kvcsa_allocator, "alloc"), self.failures, None,
                            lambda _user, size, align: alloc(size, align))
        self._free = thunk(prototype(_abi.kvcsa_allocator, "free"), self.failures, None,
                           lambda _user, address, size, align: free(address, size, align), always=True)
        self.struct = _abi.kvcsa_allocator(self._alloc, self._free, None)


class LogHook(Hook):
    """What the library has to say, for a function (level, text) or a logging.Logger."""

    def __init__(self, log: Union[LogFunction, logging.Logger]) -> None:
        super().__init__()
        if isinstance(log, logging.Logger):
            logger = log
            write: LogFunction = lambda level, text: logger.log(_LOG_LEVELS.get(level, logging.INFO), "%s", text)
        else:
            write = log
        self._write = thunk(prototype(_abi.kvcsa_log, "write"), self.failures, None,
                            lambda _user, level, text: write(level, text.decode("utf-8", "replace")))
        self.struct = _abi.kvcsa_log(self._write, None)


class TraceHook(Hook):
    """Every hit, miss, eviction. The pool may be locked meanwhile: note the event and return."""

    def __init__(self, trace: Callable[[TraceEvent], None]) -> None:
        super().__init__()

        def event(_user: Any, record: Any) -> None:
            # An older library fills less than this package knows: the rest stays 0.
            known = _abi.kvcsa_trace_event()
            size = min(record.contents.struct_size, ctypes.sizeof(known))
            ctypes.memmove(ctypes.addressof(known), ctypes.addressof(record.contents), size)
            trace(copied(known))

        self._event = thunk(prototype(_abi.kvcsa_trace, "event"), self.failures, None, event)
        self.struct = _abi.kvcsa_trace(self._event, None)


class Executor(Hook):
    """Threads of the host's.

    run(task, n) calls task(i) once for every i below n, from any threads, and returns when all have returned. `width` is how many
    run at once. With concurrent.futures: ``Executor(lambda task, n: list(threads.map(task, range(n))), width)``.
    """

    def __init__(self, run: Callable[[Task, int], Any], width: int) -> None:
        super().__init__()

        def every(_user: Any, function: Any, argument: Any, n: int) -> None:
            batch = _Batch(function, argument, n)
            try:
                run(batch.task, n)
            finally:  # C counts on every task: what `run` left out, or has not waited for, is done here
                batch.finish()

        self._run = thunk(prototype(_abi.kvcsa_executor, "run"), self.failures, None, every, always=True)
        self.struct = _abi.kvcsa_executor(self._run, None, width, 0)


class _Batch:
    """The tasks of one call of an executor; each runs once."""

    def __init__(self, function: Any, argument: Any, n: int) -> None:
        self._function, self._argument, self._n = function, argument, n
        self._taken: List[bool] = [False] * n
        self._done = 0
        self._change = threading.Condition()

    def task(self, i: int) -> None:
        with self._change:
            if self._taken[i]:
                return
            self._taken[i] = True
        self._function(self._argument, i)
        with self._change:
            self._done += 1
            self._change.notify_all()

    def finish(self) -> None:
        for i in range(self._n):
            self.task(i)
        with self._change:
            while self._done < self._n:
                self._change.wait()


def attach(params: Any, allocator: Optional[Allocator] = None, log: Union[LogFunction, logging.Logger, None] = None,
           trace: Optional[Callable[[TraceEvent], None]] = None, executor: Optional[Executor] = None) -> Tuple[Hook, ...]:
    """Puts hooks into a struct of parameters; they must outlive what is made with it."""
    hooks: List[Any] = []
    given = (("allocator", allocator), ("log", LogHook(log) if log is not None else None),
             ("trace", TraceHook(trace) if trace is not None else None), ("executor", executor))
    for name, hook in given:
        if hook is not None:
            setattr(params, name, pointer(hook.struct))
            hooks.append(hook)
    return tuple(hooks)
