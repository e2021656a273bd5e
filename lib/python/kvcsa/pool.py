"""Pools: a budget of bytes for the caches of any number of sessions, and the threads that compute them."""

from __future__ import annotations

import ctypes
import logging
import threading
from ctypes import POINTER, byref, c_size_t, c_uint64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterable, List, Optional, Union

from . import _abi
from ._runtime import Handle, Hook, PathLike, call, defaults, path_bytes, result_of, thunk, tokens_in
from .errors import Error, from_record
from .hooks import Allocator, Executor, LogFunction, attach
from .model import Model
from .records import BackendInfo, CpuInfo, PoolStats, SessionParams, TraceEvent

if TYPE_CHECKING:
    from .session import Session

#: progress(session, n_done_tokens, n_queued_tokens): true = cancel.
Progress = Callable[["Session", int, int], Optional[bool]]


UNKNOWN = 2**64 - 1  # the library has not said how long the queue is


@dataclass(frozen=True)
class StepResult:
    """What a step did for one session."""

    n_computed: int
    n_queued: int
    error: Optional[Error]


class Pool(Handle):
    """A budget of bytes, and threads.

    budget_bytes: of blocks and windows, 0 = no limit of its own. n_threads: 0 = one a core; ignored with an executor. The other
    parameters are those of kvcsa_pool_params. trace is called while the pool may be locked: note the event and return.
    """

    _RELEASE = "kvcsa_pool_release"
    _ORDER = 1

    def __init__(self, budget_bytes: int = 0, *, n_threads: int = 0, flags: int = 0, evict: int = 0, cpu_avoid: int = 0,
                 backend: int = 0, ordinal: int = 0, backend_dir: Optional[PathLike] = None, host_bytes: int = 0,
                 allocator: Optional[Allocator] = None, log: Union[LogFunction, logging.Logger, None] = None,
                 trace: Optional[Callable[[TraceEvent], None]] = None, executor: Optional[Executor] = None) -> None:
        params = defaults(_abi.kvcsa_pool_params)
        params.budget_bytes, params.n_threads, params.flags = budget_bytes, n_threads, flags
        params.evict, params.cpu_avoid, params.backend, params.ordinal = evict, cpu_avoid, backend, ordinal
        params.host_bytes = host_bytes
        if backend_dir is not None:
            params.backend_dir = path_bytes(backend_dir)
        hooks = attach(params, allocator, log, trace, executor)
        out = POINTER(_abi.kvcsa_pool)()
        call("kvcsa_pool_create", byref(params), byref(out), hooks=hooks)
        super().__init__(out, hooks=hooks)

    def session(self, model: Model, params: Optional[SessionParams] = None, *, cache_only: bool = False) -> "Session":
        """A new, empty session. cache_only: the network is the host's (Session.chunk)."""
        from .session import Session

        return Session(self, model, params, cache_only=cache_only)

    # ---------------------------------------------------------------- figures

    def stats(self) -> PoolStats:
        """Figures of the pool, consistent with each other."""
        stats: PoolStats = result_of("kvcsa_pool_get_stats", _abi.kvcsa_pool_stats, self._pointer, using=[self])
        return stats

    def cpu(self) -> CpuInfo:
        """What the processor has, what is used of it, and why."""
        info: CpuInfo = result_of("kvcsa_pool_get_cpu", _abi.kvcsa_cpu_info, self._pointer, using=[self])
        return info

    def backend(self) -> BackendInfo:
        """What computes, and why it was chosen."""
        info: BackendInfo = result_of("kvcsa_pool_get_backend", _abi.kvcsa_backend_info, self._pointer, using=[self])
        return info

    def check(self) -> None:
        """Walk every block and every count and compare; InternalError with the first invariant that does not hold."""
        call("kvcsa_pool_check", self._pointer, using=[self])

    def resize(self, budget_bytes: int) -> None:
        """Change the budget; FullError if what is held is more."""
        call("kvcsa_pool_resize", self._pointer, budget_bytes, using=[self])

    def trim(self, max_used_bytes: int = 0) -> int:
        """Evict prefixes that nobody uses until no more than that is in use; answers the bytes that were given back."""
        freed = c_uint64()
        call("kvcsa_pool_trim", self._pointer, max_used_bytes, byref(freed), using=[self])
        return freed.value

    # ---------------------------------------------------------------- steps

    def step(self, sessions: Iterable["Session"], *, progress: Optional[Progress] = None, max_rows: int = 0,
             deadline_ns: int = 0) -> List[StepResult]:
        """Compute what sessions have queued, all of them together.

        progress(session, n_done, n_queued) is called between layers; true cancels. An exception in it, in a hook, in on_logits
        or in a signal handler (KeyboardInterrupt) cancels every session of the step and is raised at the end. If a session
        fails, the error of the first is raised; its `results` has those of all.
        """
        batch = list(sessions)
        handles = [session._pointer for session in batch]
        every = [session._logits for session in batch]
        every += [hook for handle in [self, *batch] for hook in handle._hooks]
        own = Hook()
        params = defaults(_abi.kvcsa_step_params)
        params.max_rows, params.deadline_ns = max_rows, deadline_ns
        # Without something to call, and on a thread that gets no signals, no thunk is needed.
        if progress or every or threading.current_thread() is threading.main_thread():
            by_address = {ctypes.addressof(handle.contents): session for handle, session in zip(handles, batch) if handle}

            def asked(_user: Any, pointer: Any, n_done: int, n_queued: int) -> int:
                if own.failures or any(hook.failures for hook in every):
                    return 1
                return 1 if progress and progress(by_address[ctypes.addressof(pointer.contents)], n_done, n_queued) else 0

            params.progress = thunk(_abi.kvcsa_progress_fn, own.failures, 1, asked)
        pointers = (POINTER(_abi.kvcsa_session) * len(batch))(*handles)
        results = (_abi.kvcsa_step_result * len(batch))()
        for record in results:
            record.n_queued = UNKNOWN
        queued = [list(session._queued) for session in batch]
        try:
            call("kvcsa_pool_step", self._pointer, pointers, len(batch), byref(params), results, using=[self, *batch],
                 hooks=[own, *every])
        except Error as error:
            error.results = [_result(record) for record in results]
            raise
        finally:
            for session, record, functions in zip(batch, results, queued):
                session._stepped(record, functions)
        return [_result(record) for record in results]

    # ---------------------------------------------------------------- prefixes

    def prefix_match(self, model: Model, tokens: Iterable[int], *, salt: int = 0) -> int:
        """Length of the longest known prefix of these tokens."""
        return self._prefix("kvcsa_prefix_match", model, salt, tokens)

    def prefix_pin(self, model: Model, tokens: Iterable[int], *, salt: int = 0) -> int:
        """Keep the full blocks that these tokens begin with from being evicted; answers how many tokens they are. Unpin with as
        many."""
        return self._prefix("kvcsa_prefix_pin", model, salt, tokens)

    def prefix_unpin(self, model: Model, tokens: Iterable[int], *, salt: int = 0) -> None:
        """Undo one prefix_pin."""
        ids, n = tokens_in(tokens)
        call("kvcsa_prefix_unpin", self._pointer, model._pointer, salt, ids, n, using=[self, model])

    def prefix_forget(self, model: Optional[Model] = None, tokens: Optional[Iterable[int]] = None, *, salt: int = 0) -> int:
        """Forget what begins with these tokens; without tokens every prefix of the model, without a model every one. Answers the
        bytes that were freed."""
        freed = c_uint64()
        ids, n = tokens_in(tokens) if tokens is not None else (None, 0)
        call("kvcsa_prefix_forget", self._pointer, model._pointer if model else None, salt, ids, n, byref(freed),
             using=[self, model] if model else [self])
        return freed.value

    def _prefix(self, name: str, model: Model, salt: int, tokens: Iterable[int]) -> int:
        ids, n = tokens_in(tokens)
        count = c_size_t()
        self._adopt(model._hooks)
        call(name, self._pointer, model._pointer, salt, ids, n, byref(count), using=[self, model])
        return count.value


def _result(record: Any) -> StepResult:
    return StepResult(record.n_computed, record.n_queued, from_record(record.error) if record.error.status else None)


def cpu_info() -> CpuInfo:
    """What a pool with default parameters would use of the processor."""
    info: CpuInfo = result_of("kvcsa_pool_get_cpu", _abi.kvcsa_cpu_info, None)
    return info


def backend_info() -> BackendInfo:
    """What would compute in a pool with default parameters."""
    info: BackendInfo = result_of("kvcsa_pool_get_backend", _abi.kvcsa_backend_info, None)
    return info


