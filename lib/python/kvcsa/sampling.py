"""Choosing tokens."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int32
from dataclasses import dataclass
from typing import Any, Iterable, Optional

from . import _abi
from ._runtime import call, filled, numbers_in


@dataclass(frozen=True)
class Sampler:
    """How a token is chosen: top-k, temperature, min-p, top-p, in this order; greedy by default.

    The random number is a function of (seed, position) alone, so a repeated, forked or resumed run draws the same.
    """

    seed: int = 0
    temperature: float = 0.0
    top_p: float = 0.0
    min_p: float = 0.0
    top_k: int = 0

    def sample(self, logits: Iterable[float], position: int) -> int:
        """A token for one row of logits."""
        row, n = numbers_in(logits, "f", ctypes.c_float)
        token = c_int32()
        call("kvcsa_sample_logits", row, n, position, byref(params_of(self)), byref(token))
        return token.value


def params_of(sampler: Optional[Sampler]) -> Any:
    """The C struct; None is greedy."""
    return filled(_abi.kvcsa_sampler_params, sampler)
