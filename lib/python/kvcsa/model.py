"""Models, their text, and what their caches cost."""

from __future__ import annotations

import ctypes
import json
import logging
import threading
from array import array
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_void_p
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _abi, library
from ._runtime import Handle, Hook, PathLike, array_out, call, defaults, filled, no_nul, path_bytes, result_of, tokens_in
from .hooks import Allocator, LogFunction, attach
from .plan import PlanRow, structs_of
from .records import (
    AgentCost, AgentParams, Cost, Estimate, ModelInfo, ResumeCost, ResumeParams, ServingCost, ServingParams, SessionParams,
)

Message = Union[Tuple[str, str], Mapping[str, str]]


class Model(Handle):
    """A checkpoint directory, opened; immutable, and shared by any number of sessions, pools and threads.

    plan_only: read the configuration only (`path` may be a config.json): plan and cost work. read: read the weights into memory
    instead of mapping the files. plan: changes of the cache plan, a dict or JSON (docs/formats.md "Plan overrides").
    """

    _RELEASE = "kvcsa_model_release"
    _ORDER = 2

    def __init__(self, path: PathLike, *, plan_only: bool = False, read: bool = False, block_tokens: int = 0,
                 plan: Union[Mapping[str, Any], str, None] = None, allocator: Optional[Allocator] = None,
                 log: Union[LogFunction, logging.Logger, None] = None) -> None:
        params = defaults(_abi.kvcsa_model_params)
        params.flags = (_abi.ModelFlags.PLAN_ONLY if plan_only else 0) | (_abi.ModelFlags.READ if read else 0)
        params.block_tokens = block_tokens
        if plan is not None:
            params.plan = no_nul((plan if isinstance(plan, str) else json.dumps(plan)).encode(), "plan")
        hooks = attach(params, allocator, log)
        out = POINTER(_abi.kvcsa_model)()
        call("kvcsa_model_open", path_bytes(path), byref(params), byref(out), hooks=hooks)
        self._set_up(out, hooks)

    @classmethod
    def from_plan(cls, rows: Iterable[Union[PlanRow, Mapping[str, Any]]], *, name: Optional[str] = None, identity: int = 0,
                  max_tokens: int = 0, block_tokens: int = 0, vocab_tokens: int = 0, allocator: Optional[Allocator] = None,
                  log: Union[LogFunction, logging.Logger, None] = None) -> "Model":
        """A model from a cache plan alone, for a network of the host's own: a row a layer, each a PlanRow or a mapping of its
        fields. `identity` stands for the weights: sessions share where rows, name and identity are the same. The others are
        those of kvcsa_plan_params."""
        params = defaults(_abi.kvcsa_plan_params)
        params.identity, params.max_tokens = identity, max_tokens
        params.block_tokens, params.vocab_tokens = block_tokens, vocab_tokens
        if name is not None:
            params.name = no_nul(name.encode(), "name")
        structs = structs_of(rows)
        hooks = attach(params, allocator, log)
        out = POINTER(_abi.kvcsa_model)()
        call("kvcsa_model_from_plan", structs, len(structs), byref(params), byref(out), hooks=hooks)
        model = cls.__new__(cls)
        model._set_up(out, hooks)
        return model

    def _set_up(self, pointer: Any, hooks: Sequence[Hook]) -> None:
        super().__init__(pointer, hooks=hooks)
        self._info: Optional[ModelInfo] = None
        self._rows: Dict[int, PlanRow] = {}

    @property
    def info(self) -> ModelInfo:
        """What it is: layers, vocabulary, context, special tokens."""
        if self._info is None:
            self._info = result_of("kvcsa_model_get_info", _abi.kvcsa_model_info, self._pointer, using=[self])
        return self._info

    def plan_row(self, layer: int) -> PlanRow:
        """What one layer keeps and reads."""
        row: PlanRow = result_of("kvcsa_model_plan_row", _abi.kvcsa_plan_row, self._pointer, layer, using=[self])
        return row

    def _row(self, layer: int) -> PlanRow:
        """Likewise, asked for once: chunks look at it in every call."""
        if layer not in self._rows:
            self._rows[layer] = self.plan_row(layer)
        return self._rows[layer]

    def plan(self) -> List[PlanRow]:
        """The cache plan: a row a layer."""
        return [self.plan_row(layer) for layer in range(self.info.n_layers)]

    # ---------------------------------------------------------------- text

    def tokenize(self, text: Union[str, bytes], *, special: bool = False) -> "array[int]":
        """Token ids of a text; nothing is added. special: cut out special tokens instead of encoding their text."""
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)
        flags = _abi.TokenizeFlags.SPECIAL if special else 0
        return self._ids(len(data), "kvcsa_model_tokenize", data, len(data), flags)

    def _ids(self, guess: int, name: str, *arguments: Any) -> "array[int]":
        def fill(out: Any, capacity: int) -> int:
            n = c_size_t()
            call(name, self._pointer, *arguments, out, capacity, byref(n), using=[self])
            return n.value

        return array_out("i", c_int32, guess, fill)

    def token_text(self, token: int) -> bytes:
        """The bytes of one token; they need not be whole characters (TextStream makes text of them)."""
        text, n = c_void_p(), c_size_t()
        self._enter()
        try:  # the bytes belong to the model
            call("kvcsa_model_token_text", self._pointer, token, byref(text), byref(n), using=[self])
            return ctypes.string_at(text.value, n.value) if text.value else b""
        finally:
            self._leave()

    def detokenize(self, tokens: Iterable[int]) -> bytes:
        """The bytes of a list of tokens."""
        ids, count = tokens_in(tokens)

        def fill(out: Any, capacity: int) -> int:
            n = c_size_t()
            text = ctypes.cast(out, c_char_p) if out is not None else None
            call("kvcsa_model_detokenize", self._pointer, ids, count, text, capacity, byref(n), using=[self])
            return n.value

        return array_out("B", ctypes.c_uint8, 8 * count, fill).tobytes()

    def text(self, tokens: Iterable[int]) -> str:
        """Likewise as text; bytes that are no UTF-8 become U+FFFD."""
        return self.detokenize(tokens).decode("utf-8", "replace")

    def chat_prompt(self, messages: Iterable[Message]) -> "array[int]":
        """Token ids of a conversation up to where the assistant is to write. A message is (role, text), or a mapping with "role"
        and "content"."""
        pairs = [(m["role"], m["content"]) if isinstance(m, Mapping) else m for m in messages]
        data = [(no_nul(role.encode(), "role"), no_nul(text.encode(), "message")) for role, text in pairs]
        structs = (_abi.kvcsa_message * len(data))(*[_abi.kvcsa_message(*pair) for pair in data])
        guess = 16 + sum(len(role) + len(text) + 8 for role, text in data)
        return self._ids(guess, "kvcsa_model_chat_prompt", structs, len(data))

    def text_stream(self, stops: Sequence[str] = ()) -> "TextStream":
        """Makes text of generated tokens."""
        return TextStream(self, stops)

    # ---------------------------------------------------------------- cost

    def cost(self, n_tokens: int) -> Cost:
        """The five cache figures of one sequence; nothing is allocated."""
        cost: Cost = result_of("kvcsa_model_cost", _abi.kvcsa_cost, self._pointer, n_tokens, using=[self])
        return cost

    def estimate(self, n_tokens: int, n_sessions: int = 1, n_shared_tokens: int = 0,
                 params: Optional[SessionParams] = None) -> Estimate:
        """Bytes that sessions will need."""
        struct = filled(_abi.kvcsa_session_params, params)
        estimate: Estimate = result_of("kvcsa_model_estimate", _abi.kvcsa_estimate, self._pointer, byref(struct), n_tokens,
                                       n_sessions, n_shared_tokens, using=[self])
        return estimate

    def serving_cost(self, params: ServingParams) -> ServingCost:
        """What devices hold, read and write for a number of sequences."""
        struct = filled(_abi.kvcsa_serving_params, params)
        cost: ServingCost = result_of("kvcsa_model_serving_cost", _abi.kvcsa_serving_cost, self._pointer, byref(struct),
                                      using=[self])
        return cost

    def resume_cost(self, params: ResumeParams) -> ResumeCost:
        """Load or compute again: which is faster."""
        struct = filled(_abi.kvcsa_resume_params, params)
        cost: ResumeCost = result_of("kvcsa_model_resume_cost", _abi.kvcsa_resume_cost, self._pointer, byref(struct),
                                     using=[self])
        return cost


def agent_cost(params: AgentParams) -> AgentCost:
    """What an agent's session costs where hits, misses and output have prices."""
    struct = filled(_abi.kvcsa_agent_params, params)
    cost: AgentCost = result_of("kvcsa_agent_get_cost", _abi.kvcsa_agent_cost, byref(struct))
    return cost


def format_name(number: int) -> str:
    """Name of a Format as plan overrides spell it, for example "fp4"."""
    name: bytes = library.get().kvcsa_format_name(number)
    return name.decode()


class TextStream(Handle):
    """Text of generated tokens that can be shown at once: never half a character, never the beginning of a stop string."""

    _RELEASE = "kvcsa_text_stream_release"

    def __init__(self, model: Model, stops: Sequence[str] = ()) -> None:
        if isinstance(stops, str):
            raise TypeError("stops is a list of strings")
        data = [no_nul(stop.encode(), "stop string") for stop in stops]
        out = POINTER(_abi.kvcsa_text_stream)()
        call("kvcsa_text_stream_create", model._pointer, (c_char_p * len(data))(*data) if data else None, len(data), byref(out),
             using=[model])
        super().__init__(out, [model])
        self._one = threading.Lock()
        #: Index of the stop string that was met, None before that.
        self.stopped: Optional[int] = None

    def push(self, token: int) -> str:
        """Add a token; answers text that is ready, maybe none."""
        stopped = c_int32(-1)
        text = self._text("kvcsa_text_stream_push", token, after=[byref(stopped)])
        if stopped.value >= 0:
            self.stopped = stopped.value
        return text

    def finish(self) -> str:
        """End of generation: what was held back."""
        return self._text("kvcsa_text_stream_finish", after=[])

    def _text(self, name: str, *arguments: Any, after: List[Any]) -> str:
        text, n = c_void_p(), c_size_t()
        with self._one:  # the text belongs to the stream until its next call
            call(name, self._pointer, *arguments, byref(text), byref(n), *after, using=[self])
            return ctypes.string_at(text.value, n.value).decode("utf-8", "replace") if text.value else ""
