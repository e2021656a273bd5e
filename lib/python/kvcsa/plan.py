"""Plan rows that a host writes itself: what each layer of its network keeps and reads (Model.from_plan)."""

from __future__ import annotations

import ctypes
from typing import Any, Iterable, Mapping, Union

from . import _abi, library
from .errors import ArgError
from .records import RESULTS, PlanRowFields

#: In a row for Model.from_plan: the layer itself, as an owner. (-1 is none.)
SELF = -2


class PlanRow(PlanRowFields):
    """kvcsa_plan_row: what one layer keeps and reads.

    For Model.from_plan a layer of -1 is the row's place in the list, and SELF as an owner the layer itself; dataclasses.replace
    changes what heads() and sparse() have made.
    """

    @classmethod
    def heads(cls, kv_heads: int, width: int, format: Union[str, int] = "f32") -> "PlanRow":
        """Grouped heads: every position has a key and a value of `width` channels for each KV head, and queries read all."""
        number = format_number(format)
        return cls(kv_owner=SELF, select=_abi.Select.ALL, ratio=1, kv_heads=kv_heads, entry_width=width, entry_format=number,
                   value_kind=_abi.Value.OWN, value_width=width, value_format=number)

    @classmethod
    def sparse(cls, width: int, *, window_tokens: int, select_entries: int, index_heads: int, index_width: int, ratio: int = 1,
               format: Union[str, int] = "fp4") -> "PlanRow":
        """One latent that is key and value: queries read the last `window_tokens` positions, and of the entries before, each
        made of `ratio` positions, the `select_entries` that an index finds."""
        return cls(kv_owner=SELF, index_owner=SELF, select_owner=SELF, select=_abi.Select.OWN, ratio=ratio, kv_heads=1,
                   entry_width=width, entry_format=format_number(format), value_kind=_abi.Value.ALIAS, value_width=width,
                   pool_kind=_abi.Pooling.GATED if ratio > 1 else _abi.Pooling.NONE, index_heads=index_heads,
                   index_width=index_width, index_format=_abi.Format.FP4_E8M0_G32, select_entries=select_entries,
                   window_tokens=window_tokens, window_format=_abi.Format.FP8_E8M0_G32)


# What the library answers is of this class, too.
RESULTS[_abi.kvcsa_plan_row] = PlanRow


def format_number(format: Union[str, int]) -> int:
    """A kvcsa.Format from its name ("f32", "bf16", "q8_0", ...; kvcsa.format_name) or from itself."""
    if not isinstance(format, str):
        return format
    known = {library.get().kvcsa_format_name(number).decode(): number for number in _abi.Format if number}
    if format not in known:
        raise ArgError(f"format is '{format}', must be one of {', '.join(known)}", _abi.Status.ERR_ARG)
    return known[format]


def structs_of(rows: Iterable[Union[PlanRowFields, Mapping[str, Any]]]) -> Any:
    """A C array of them. Mappings are the fields of a PlanRow; their formats may be names."""
    given = list(rows)
    structs = (_abi.kvcsa_plan_row * len(given))()
    for number, (struct, row) in enumerate(zip(structs, given)):
        struct.struct_size = ctypes.sizeof(struct)
        fields = vars(PlanRow(**row) if isinstance(row, Mapping) else row)
        for field, value in fields.items():
            if field.endswith("_format"):
                value = format_number(value)
            elif (field, value) == ("layer", -1) or (field.endswith("_owner") and value == SELF):
                value = number
            setattr(struct, field, value)
            if getattr(struct, field) != value:  # ctypes cuts it
                raise ArgError(f"layer {number}: {field} is {value}, which is out of range", _abi.Status.ERR_ARG)
    return structs
