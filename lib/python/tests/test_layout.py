"""The Python side of the interface against the header, the map, the library and a compiler."""

import ctypes
import enum
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import LIBRARY, PACKAGE, TREE, kvcsa

from kvcsa import _abi, library, records

HEADER = TREE / "include" / "kvcsa.h"
COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
# What a parameter is, to the caller: its size, and how it is read.
KIND = """
#include <kvcsa.h>
#include <cstddef>
#include <cstdio>
#include <type_traits>
template <class T> void kind()
{
    if (std::is_void<T>::value) std::printf(" void");
    else if (std::is_pointer<T>::value) std::printf(" p");
    else if (std::is_floating_point<T>::value) std::printf(" f%zu", sizeof(std::conditional_t<std::is_void<T>::value, int, T>));
    else std::printf(" %c%zu", std::is_signed<T>::value ? 'i' : 'u', sizeof(std::conditional_t<std::is_void<T>::value, int, T>));
}
template <class R, class... A> void show(const char *name, R (*)(A...))
{
    std::printf("function %s", name);
    kind<R>();
    int all[] = {0, (kind<A>(), 0)...};
    (void)all;
    std::printf("\\n");
}
"""


def kind_of(ctype) -> str:
    if ctype is None:
        return "void"
    if ctype in (ctypes.c_float, ctypes.c_double):
        return f"f{ctypes.sizeof(ctype)}"
    if ctype in (ctypes.c_void_p, ctypes.c_char_p) or issubclass(ctype, (ctypes._Pointer, ctypes._CFuncPtr)):
        return "p"
    return f"{'i' if ctype(-1).value < 0 else 'u'}{ctypes.sizeof(ctype)}"


def expected():
    """What the compiler should print."""
    lines = []
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        lines.append(" ".join(["function", name, kind_of(result), *map(kind_of, arguments)]))
    for name, struct in _abi.STRUCTS.items():
        lines.append(f"struct {name} {ctypes.sizeof(struct)} {ctypes.alignment(struct)}")
        for field, kind in struct._fields_:
            offset = getattr(struct, field).offset
            lines.append(f"field {name}.{field} {offset} {ctypes.sizeof(kind)}")
            if issubclass(kind, ctypes._CFuncPtr):
                lines.append(" ".join([f"function {name}.{field}", kind_of(kind._restype_), *map(kind_of, kind._argtypes_)]))
    for name in ("kvcsa_logits_fn", "kvcsa_progress_fn"):
        kind = getattr(_abi, name)
        lines.append(" ".join([f"function {name}", kind_of(kind._restype_), *map(kind_of, kind._argtypes_)]))
    return lines


def source():
    out = [KIND, "int main()\n{\n"]
    for line in expected():
        what, name, *_ = line.split()
        if what == "function" and "." in name:
            struct, field = name.split(".")
            out.append(f'show("{name}", {struct}{{}}.{field});\n')
        elif what == "function":
            out.append(f'show("{name}", {f"({name})nullptr" if name.endswith("_fn") else name});\n')
        elif what == "struct":
            out.append(f'std::printf("struct {name} %zu %zu\\n", sizeof({name}), alignof({name}));\n')
        else:
            struct, field = name.split(".")
            out.append(f'std::printf("field {name} %zu %zu\\n", offsetof({struct}, {field}), sizeof({struct}{{}}.{field}));\n')
    for name in header_constants():
        out.append(f'std::printf("constant {name} %lld\\n", (long long){name});\n')
    return "".join(out) + "return 0;\n}\n"


def plain_header() -> str:
    return re.sub(r"/\*.*?\*/", " ", HEADER.read_text(encoding="utf-8"), flags=re.S)


def header_constants():
    text = plain_header()
    names = re.findall(r"^#define (KVCSA_\w+)\s+\d+\s*$", text, flags=re.M)
    for body in re.findall(r"enum\s*\{(.*?)\}", text, flags=re.S):
        names += re.findall(r"(KVCSA_\w+)\s*=", body)
    return names


def python_constants():
    """Every constant of the package under its name in C."""
    found = {name: value for name, value in vars(_abi).items() if name.startswith("KVCSA_")}
    raw = header_constants()
    for kind in vars(_abi).values():
        if isinstance(kind, type) and issubclass(kind, (enum.IntEnum, enum.IntFlag)) and kind.__module__ == _abi.__name__:
            for name, value in kind.__members__.items():
                ends = [c for c in raw if c.endswith("_" + name) and c not in found]
                prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__.replace("Flags", "")).upper()
                full = f"KVCSA_{name}" if kind.__name__ == "Status" else f"KVCSA_{prefix}_{name}"
                if full in ends:
                    found[full] = int(value)
    return found


class Layout(unittest.TestCase):
    def test_generated_files_are_what_the_header_says(self):
        made = subprocess.run([sys.executable, str(PACKAGE / "generate.py"), "--check"], stdout=subprocess.PIPE, text=True,
                              check=False)
        self.assertEqual((made.returncode, made.stdout), (0, ""))

    def test_every_function_is_bound(self):
        """Found in three other ways than the generator's: by the word KVCSA_API, in the map, in the library."""
        declared = set(re.findall(r"\b(kvcsa_\w+)\s*\((?!\*)", "".join(
            part.split(";")[0] for part in plain_header().split("KVCSA_API ")[1:])))
        mapped = set(re.findall(r"^\s+(kvcsa_\w+);", (TREE / "lib" / "kvcsa.map").read_text(), flags=re.M))
        self.assertGreater(len(declared), 60)
        self.assertEqual(declared, set(_abi.FUNCTIONS))
        self.assertEqual(mapped, set(_abi.FUNCTIONS))
        loaded = library.get()
        for name, (restype, argtypes) in _abi.FUNCTIONS.items():
            self.assertEqual((getattr(loaded, name).restype, getattr(loaded, name).argtypes), (restype, argtypes), name)

    def test_every_function_is_used_by_a_class(self):
        """Nothing of the interface is left to people who read _abi.py."""
        text = "".join(path.read_text() for path in (PACKAGE / "kvcsa").glob("*.py") if path.name != "_abi.py")
        unused = [name for name in _abi.FUNCTIONS if f"{name}" not in text and not name.endswith("_default")]
        # Status has the names; a table of all functions is for hosts without a binding.
        self.assertLessEqual(set(unused), {"kvcsa_status_name", "kvcsa_get_api"})

    def test_status_names(self):
        get = library.get().kvcsa_status_name
        for status in kvcsa.Status:
            self.assertEqual(get(status).decode(), f"KVCSA_{status.name}")

    def test_every_struct_has_its_record(self):
        for kind, record in records.RESULTS.items():
            fields = [name for name, _ in kind._fields_ if name not in ("struct_size", "reserved")]
            self.assertEqual(fields, list(record.__dataclass_fields__))
        wanted = re.findall(r"typedef struct (kvcsa_\w+) \{[^}]*?struct_size;\s+/\* set by the caller", HEADER.read_text(),
                            flags=re.S)
        # Chunk has what is in that one: it holds addresses.
        self.assertLessEqual(set(wanted) - {"kvcsa_chunk_info"}, {kind.__name__ for kind in records.RESULTS})

    @unittest.skipUnless(COMPILER, "no C++ compiler")
    def test_sizes_offsets_kinds_and_constants(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "layout"
            made = subprocess.run([COMPILER, "-std=c++17", "-O0", "-w", f"-I{HEADER.parent}", "-x", "c++", "-", "-o",
                                   str(program), "-x", "none", LIBRARY, f"-Wl,-rpath,{Path(LIBRARY).resolve().parent}"],
                                  input=source(),
                                  stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(made.returncode, 0, made.stderr[:2000])
            out = subprocess.run([str(program)], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        constants = dict(line.split()[1:] for line in out if line.startswith("constant"))
        self.assertEqual([line for line in out if not line.startswith("constant")], expected())
        self.assertEqual({name: int(value) for name, value in constants.items()}, python_constants())
        self.assertGreater(len(constants), 100)

    def test_struct_names_in_the_header(self):
        self.assertEqual(re.findall(r"typedef struct (kvcsa_\w+)\s*\{", plain_header()), list(_abi.STRUCTS))


if __name__ == "__main__":
    unittest.main()
