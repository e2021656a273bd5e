"""Comparing: what a setting that saves bytes does to the answers (docs/measuring.md)."""

from __future__ import annotations

import ctypes
import threading
from array import array
from ctypes import POINTER, byref, c_float, c_size_t, c_uint64, pointer
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

from . import _abi
from ._runtime import Handle, Hook, array_out, call, copied, defaults, filled, numbers_in, path_bytes, PathLike, prototype
from ._runtime import result_of, thunk, tokens_in
from .errors import ArgError
from .hooks import Allocator
from .model import Model
from .pool import Pool
from .records import CompareResult, CompareRow, SessionParams, SynthInfo

#: progress(n_done, n): true = cancel.
CountProgress = Callable[[int, int], Optional[bool]]


class Compare(Handle):
    """Rows of logits of two runs over the same tokens, side by side."""

    _RELEASE = "kvcsa_compare_release"

    def __init__(self, *, allocator: Optional[Allocator] = None) -> None:
        out = POINTER(_abi.kvcsa_compare)()
        hooks = (allocator,) if allocator is not None else ()
        call("kvcsa_compare_create", pointer(allocator.struct) if allocator else None, byref(out), hooks=hooks)
        super().__init__(out, hooks=hooks)
        self._one = threading.RLock()

    def _call(self, name: str, *arguments: Any) -> None:
        with self._one:
            call(name, self._pointer, *arguments, using=[self])

    def begin(self) -> None:
        """Rows added from now on belong to another run."""
        self._call("kvcsa_compare_begin")

    def add(self, position: int, ref: Iterable[float], test: Iterable[float], next_token: int = -1) -> None:
        """Add one row of logits of each; they may come from anywhere. next_token: that follows in the text."""
        left, n = numbers_in(ref, "f", c_float)
        right, other = numbers_in(test, "f", c_float)
        if n != other:
            raise ArgError(f"the rows have {n} and {other} logits", _abi.Status.ERR_ARG)
        self._call("kvcsa_compare_add", position, next_token, left, right, n)

    def add_greedy(self, ref: Iterable[int], test: Iterable[int]) -> None:
        """Add two free continuations of one prompt, of the same length."""
        left, n = tokens_in(ref)
        right, other = tokens_in(test)
        if n != other:
            raise ArgError(f"the runs have {n} and {other} tokens", _abi.Status.ERR_ARG)
        self._call("kvcsa_compare_add_greedy", left, right, n)

    def result(self) -> CompareResult:
        """Figures of all rows so far."""
        with self._one:
            result: CompareResult = result_of("kvcsa_compare_get_result", _abi.kvcsa_compare_result, self._pointer, using=[self])
            return result

    def rows(self, start: int = 0) -> List[CompareRow]:
        """Rows from a number on, in the order they were added."""
        with self._one:
            n = c_size_t()
            self._call("kvcsa_compare_get_rows", start, None, 0, byref(n))
            rows = (_abi.kvcsa_compare_row * n.value)()
            self._call("kvcsa_compare_get_rows", start, rows, n.value, byref(n))
            return [copied(row) for row in rows]

    def greedy(self) -> "array[int]":
        """Of each greedy run: tokens in front of the first different one."""
        def fill(out: Any, capacity: int) -> int:
            n = c_size_t()
            self._call("kvcsa_compare_get_greedy", out, capacity, byref(n))
            return n.value

        return array_out("Q", c_uint64, 16, fill)


@dataclass
class Setting:
    """One way to run a text: the fields of kvcsa_setting. hidden: (begin, end) of tokens whose entries are hidden."""

    model: Model
    pool: Pool
    session: Optional[SessionParams] = None
    append_tokens: int = 0
    hit_tokens: int = 0
    keep_first_tokens: int = 0
    keep_last_tokens: int = 0
    keep_fraction: float = 0.0
    flags: int = 0
    hidden: Sequence[Tuple[int, int]] = field(default_factory=tuple)

    def _fill(self, struct: Any, kept: List[Any]) -> None:
        """Into a struct of an array; `kept` is what it points at."""
        for name in ("append_tokens", "hit_tokens", "keep_first_tokens", "keep_last_tokens", "keep_fraction", "flags"):
            value = getattr(self, name)
            if value:
                setattr(struct, name, value)
        struct.model, struct.pool = self.model._pointer, self.pool._pointer
        if self.session is not None:
            params = filled(_abi.kvcsa_session_params, self.session)
            struct.session = pointer(params)
            kept.append(params)
        if self.hidden:
            flat = [bound for span in self.hidden for bound in span]
            bounds = (c_uint64 * len(flat))(*flat)
            struct.hidden, struct.n_hidden = ctypes.cast(bounds, POINTER(c_uint64)), len(self.hidden)
            kept.append(bounds)


class _Runs:
    """Arguments that both ways of comparing have."""

    def __init__(self, reference: Setting, tests: Sequence[Setting], compares: Optional[Sequence[Compare]],
                 progress: Optional[CountProgress]) -> None:
        self.compares = list(compares) if compares is not None else [Compare() for _ in tests]
        if len(self.compares) != len(tests):
            raise ArgError(f"{len(tests)} settings have {len(self.compares)} comparisons", _abi.Status.ERR_ARG)
        self.kept: List[Any] = []
        settings = [reference, *tests]
        self.structs = (_abi.kvcsa_setting * len(settings))(*[defaults(_abi.kvcsa_setting) for _ in settings])
        self.using: List[Handle] = list(self.compares)
        for setting, struct in zip(settings, self.structs):
            setting._fill(struct, self.kept)
            setting.pool._adopt(setting.model._hooks)  # the pool keeps the model in C
            self.using += [setting.model, setting.pool]
        self.hook = Hook()
        hooks = [self.hook] + [hook for handle in self.using for hook in handle._hooks]

        def asked(_user: Any, n_done: int, n: int) -> int:
            if any(hook.failures for hook in hooks):
                return 1
            return 1 if progress and progress(n_done, n) else 0

        kind = prototype(_abi.kvcsa_compare_progress, "progress")
        self.progress = _abi.kvcsa_compare_progress(thunk(kind, self.hook.failures, 1, asked), None)

    def call(self, name: str, tokens: Iterable[int], *rest: Any) -> List[Compare]:
        ids, n = tokens_in(tokens)
        compares = (POINTER(_abi.kvcsa_compare) * len(self.compares))(*[compare._pointer for compare in self.compares])
        size = ctypes.sizeof(_abi.kvcsa_setting)
        tests = ctypes.cast(ctypes.addressof(self.structs) + size, POINTER(_abi.kvcsa_setting)) if self.compares else None
        call(name, self.structs, tests, compares, len(self.compares), ids, n, *rest, byref(self.progress), using=self.using,
             hooks=[self.hook])
        return self.compares


def compare_text(reference: Setting, tests: Sequence[Setting], tokens: Iterable[int], *, first: int = 0,
                 compares: Optional[Sequence[Compare]] = None, progress: Optional[CountProgress] = None) -> List[Compare]:
    """Run a text under a reference and other settings, and compare every row of logits; a comparison a test."""
    return _Runs(reference, tests, compares, progress).call("kvcsa_compare_text", tokens, first)


def compare_greedy(reference: Setting, tests: Sequence[Setting], tokens: Iterable[int], n_generate: int, *,
                   compares: Optional[Sequence[Compare]] = None,
                   progress: Optional[CountProgress] = None) -> Tuple[List[Compare], List[List[int]]]:
    """Let all settings go on with a prompt freely; answers the comparisons, and the continuations, the reference's first."""
    generated = (ctypes.c_int32 * ((len(tests) + 1) * n_generate))()
    runs = _Runs(reference, tests, compares, progress)
    runs.call("kvcsa_compare_greedy", tokens, n_generate, generated)
    return runs.compares, [list(generated[i * n_generate:(i + 1) * n_generate]) for i in range(len(tests) + 1)]


def synth_checkpoint(config: PathLike, directory: Optional[PathLike] = None, *, seed: Optional[int] = None, shard_bytes: int = 0,
                     allocator: Optional[Allocator] = None, progress: Optional[CountProgress] = None) -> SynthInfo:
    """Write a checkpoint of random weights for a config.json; without a directory only say how large it would be."""
    params = defaults(_abi.kvcsa_synth_params)
    hook = Hook()
    params.shard_bytes = shard_bytes
    if seed is not None:
        params.seed = seed
    if allocator is not None:
        params.allocator = pointer(allocator.struct)

    def asked(_user: Any, n_done: int, n: int) -> int:
        failed = hook.failures or (allocator is not None and allocator.failures)
        return 1 if failed or (progress and progress(n_done, n)) else 0

    params.progress = thunk(prototype(_abi.kvcsa_synth_params, "progress"), hook.failures, 1, asked)
    info = _abi.kvcsa_synth_info()
    info.struct_size = ctypes.sizeof(info)
    call("kvcsa_synth_checkpoint", path_bytes(config), path_bytes(directory) if directory is not None else None, byref(params),
         byref(info), hooks=[hook] + ([allocator] if allocator else []))
    result: SynthInfo = copied(info)
    return result
