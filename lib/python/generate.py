#!/usr/bin/env python3
"""Writes kvcsa/_abi.py and kvcsa/records.py from include/kvcsa.h.

    python3 lib/python/generate.py           write them
    python3 lib/python/generate.py --check   say whether they are what the header says (exit status 1: no)

Whoever changes the header runs it. It knows the C that the header is allowed to use (docs/abi.md, "Types") and stops at anything
else; a C++ compiler checks the outcome in tests/test_layout.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Dict, List, Tuple

HERE = Path(__file__).resolve().parent
HEADER = HERE.parent.parent / "include" / "kvcsa.h"

SCALARS = {
    "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64", "uint64_t": "c_uint64", "size_t": "c_size_t",
    "float": "c_float", "double": "c_double", "kvcsa_status": "c_int32",
}
PYTHON = {"c_float": "float", "c_double": "float"}
# Results that carry no "set by the caller", and names that an enum has taken.
ALSO_RESULTS = ("kvcsa_work", "kvcsa_compare_row", "kvcsa_trace_event")
RENAMED = {"kvcsa_reuse": "ReuseInfo", "kvcsa_plan_row": "PlanRowFields"}
# Filled by the library, but addresses are in them: the class that asks makes values of them.
NOT_RECORDS = ("kvcsa_chunk_info",)
# Results that a caller writes, too: what a field is that is not named. Others are 0.
WRITTEN = {"kvcsa_plan_row": {"layer": -1, "kv_owner": -1, "select_owner": -1, "index_owner": -1}}
# Parameters without pointers: a record of the caller's own.
PARAMS = ("kvcsa_session_params", "kvcsa_serving_params", "kvcsa_resume_params", "kvcsa_agent_params")


def camel(name: str) -> str:
    return RENAMED.get(name) or "".join(part.capitalize() for part in name.replace("kvcsa_", "").lower().split("_"))


def split_arguments(text: str) -> List[str]:
    """Splits at the commas that are in no parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip() not in ("", "void")]


class Header:
    """What the header declares, as text of ctypes."""

    def __init__(self, text: str) -> None:
        self.raw = text
        plain = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        self.defines = {n: int(v) for n, v in re.findall(r"^#define (KVCSA_\w+)\s+(\d+)\s*$", plain, flags=re.M)}
        plain = re.sub(r"^#.*$", "", plain, flags=re.M)
        self.handles: List[str] = re.findall(r"typedef struct (kvcsa_\w+) \1;", plain)
        self.enums = [self.enum(body) for body in re.findall(r"\benum\s*\{(.*?)\}\s*;", plain, flags=re.S)]
        self.structs: Dict[str, List[Tuple[str, str]]] = {}
        self.callbacks: Dict[str, str] = {}
        self.order: List[str] = []
        for found in re.finditer(r"typedef struct (kvcsa_\w+)\s*\{(.*?)\}\s*\1;|typedef (\w+) \(\*(kvcsa_\w+)\)\((.*?)\);",
                                 plain, flags=re.S):
            name, body, result, callback, arguments = found.groups()
            self.order.append(name or callback)
            if name:
                self.structs[name] = []
                for field in filter(None, (f.strip() for f in body.split(";"))):
                    self.structs[name].append(self.field(" ".join(field.split())))
            else:
                self.callbacks[callback] = self.function_type(result, " ".join(arguments.split()))
        self.functions: Dict[str, Tuple[str, List[str]]] = {}
        for declaration in re.findall(r"KVCSA_API\s+([^;{]*?\));", plain, flags=re.S):
            match = re.fullmatch(r"(.*?)(kvcsa_\w+)\((.*)\)", " ".join(declaration.split()))
            if not match:
                raise SystemExit(f"cannot read the declaration: {declaration}")
            result, name, arguments = match.groups()
            self.functions[name] = (self.type(result.strip()), [self.argument(a) for a in split_arguments(arguments)])

    @staticmethod
    def enum(body: str) -> Tuple[bool, List[Tuple[str, int]]]:
        """(are they flags, [(name, value)]); flags are written as unsigned."""
        entries = [tuple(part.strip() for part in entry.split("=")) for entry in body.split(",") if entry.strip()]
        return all(v.endswith("u") for _, v in entries), [(n, int(v.rstrip("u"))) for n, v in entries]

    def type(self, text: str) -> str:
        """ctypes of a C type without a name."""
        stars, outer_const = text.count("*"), bool(re.search(r"\*\s*const\s*\*", text))
        base = re.sub(r"\bconst\b|\*", " ", text).split()
        if len(base) != 1:
            raise SystemExit(f"cannot read the type '{text}'")
        name = base[0]
        if name == "void":
            return {0: "None", 1: "c_void_p"}[stars]
        if name == "char":
            # `const char **` is set by the library, and not terminated: an address. `const char *const *` is read by it.
            return {1: "c_char_p", 2: "POINTER(c_char_p)" if outer_const else "POINTER(c_void_p)"}[stars]
        inner = SCALARS.get(name) or (name if name in self.structs or name in self.handles or name in self.callbacks else "")
        if not inner:
            raise SystemExit(f"unknown type '{text}'")
        for _ in range(stars):
            inner = f"POINTER({inner})"
        return inner

    def function_type(self, result: str, arguments: str) -> str:
        return f"CFUNCTYPE({', '.join([self.type(result)] + [self.argument(a) for a in split_arguments(arguments)])})"

    def argument(self, text: str) -> str:
        match = re.fullmatch(r"(.+?) ?\(\*\w+\)\((.*)\)", text)
        if match:
            return self.function_type(match.group(1), match.group(2))
        return self.type(re.sub(r"\b\w+$", "", text))

    def field(self, text: str) -> Tuple[str, str]:
        match = re.fullmatch(r"(.+?) ?\(\*(\w+)\)\((.*)\)", text)
        if match:
            return match.group(2), self.function_type(match.group(1), match.group(3))
        match = re.fullmatch(r"(.*?)(\w+)(?:\[(\w+)\])?", text)
        if not match:
            raise SystemExit(f"cannot read the field '{text}'")
        base, name, count = match.groups()
        if not count:
            return name, self.type(base)
        number = self.defines[count] if count in self.defines else int(count)
        return name, f"{'c_char' if base.strip() == 'char' else self.type(base)} * {number}"

    def results(self) -> List[str]:
        told = re.findall(r"typedef struct (kvcsa_\w+)\s*\{(?:(?!\}).)*?size_t struct_size;\s*/\* set by the caller", self.raw,
                          flags=re.S)
        return [name for name in self.structs if name in (*told, *ALSO_RESULTS) and name not in NOT_RECORDS]


def prefix_of(names: List[str]) -> str:
    common = names[0]
    for name in names[1:]:
        while not name.startswith(common):
            common = common[:-1]
    return common[: common.rindex("_") + 1]


ABI_HEAD = '''"""What include/kvcsa.h declares: constants, structs, prototypes. Written by generate.py; do not edit."""

from __future__ import annotations

import enum
from ctypes import (
    CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p,
)
from typing import Any, Dict, List, Tuple

'''


def write_abi(header: Header) -> str:
    out = [ABI_HEAD]
    out += [f"{name} = {value}\n" for name, value in header.defines.items()]
    for flags, entries in header.enums:
        names = [name for name, _ in entries]
        if "KVCSA_OK" in names:
            title, cut = "Status", "KVCSA_"
        else:
            cut = prefix_of(names) if len(names) > 1 else names[0][: names[0].index("_", 6) + 1]
            title = camel(cut.strip("_").replace("KVCSA_", "")) + ("Flags" if flags else "")
        out.append(f"\n\nclass {title}(enum.{'IntFlag' if flags else 'IntEnum'}):\n")
        for name, value in entries:
            out.append(f"    {name[len(cut):]} = {value}\n")
    out.append("\n\n# Handles: only pointers to them exist.\n")
    for name in header.handles:
        out.append(f"\n\nclass {name}(Structure):\n    pass\n")
    for name in header.order:
        if name in header.callbacks:
            out.append(f"\n\n{name} = {header.callbacks[name]}\n")
        else:
            out.append(f"\n\nclass {name}(Structure):\n    _fields_ = [\n")
            out += [f'        ("{field}", {kind}),\n' for field, kind in header.structs[name]]
            out.append("    ]\n")
    out.append("\n\n# name: (restype, argtypes)\nFUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {\n")
    for name, (result, arguments) in header.functions.items():
        out.append(f'    "{name}": ({result}, [{", ".join(arguments)}]),\n')
    out.append("}\n\nSTRUCTS: Dict[str, Any] = {\n")
    out += [f'    "{name}": {name},\n' for name in header.structs]
    out.append("}\n")
    return "".join(out)


RECORDS_HEAD = '''"""What the library answers, as values of Python's own, and parameters without pointers.

Fields are described in include/kvcsa.h at the struct that each docstring names. Written by generate.py; do not edit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from . import _abi
'''


def python_type(kind: str) -> str:
    if kind.startswith("c_char"):
        return "str"
    if "*" in kind:
        inner = kind.split(" * ")[0]
        return f"Tuple[{camel(inner) if inner.startswith('kvcsa_') else 'int'}, ...]"
    return PYTHON.get(kind, "int")


def write_records(header: Header) -> str:
    out = [RECORDS_HEAD]
    results = header.results()
    for name in results:
        out.append(f'\n\n@dataclass(frozen=True)\nclass {camel(name)}:\n    """{name}"""\n\n')
        unnamed = WRITTEN.get(name)
        out += [f"    {field}: {python_type(kind)}{'' if unnamed is None else f' = {unnamed.get(field, 0)}'}\n"
                for field, kind in header.structs[name] if field not in ("struct_size", "reserved")]
    for name in PARAMS:
        out.append(f'\n\n@dataclass\nclass {camel(name)}:\n    """{name}; None is the library\'s default."""\n\n')
        out += [f"    {field}: Optional[{python_type(kind)}] = None\n" for field, kind in header.structs[name]
                if field not in ("struct_size", "reserved")]
    out.append("\n\n# By their C struct.\nRESULTS: Dict[Any, Any] = {\n")
    out += [f"    _abi.{name}: {camel(name)},\n" for name in results]
    out.append("}\n")
    return "".join(out)


def main() -> int:
    header = Header(HEADER.read_text(encoding="utf-8"))
    bad = 0
    for name, text in (("_abi.py", write_abi(header)), ("records.py", write_records(header))):
        path = HERE / "kvcsa" / name
        if sys.argv[1:] == ["--check"]:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                print(f"{path.name} is not what include/kvcsa.h says: run lib/python/generate.py")
                bad = 1
        else:
            path.write_text(text, encoding="utf-8")
    return bad


if __name__ == "__main__":
    sys.exit(main())
