#!/usr/bin/env python3
"""Builds the wheel of kvcsa, with the library inside. Needs Python 3.9 and what it comes with.

    python3 lib/python/build_wheel.py [DIRECTORY] [--library PATH|none]
    pip wheel --no-deps -w DIRECTORY lib/python       # the same through pip; -C library=PATH likewise
    pip install lib/python

The library is lib/libkvcsa.so unless another one is named; it goes in without debug information where strip(1) is there. What it
needs beside the C library goes in too, for machines that lack it, with its licences where the system has them. With `none` the
wheel is for every machine and finds the library where the system's loader does.

The tag is linux_ARCH and not manylinux: the wheel needs a C library as new as that of the machine that built it. The same input
gives the same bytes.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

HERE = Path(__file__).resolve().parent
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|pthread|rt|gcc_s))(\.so|-)")
DEPENDENCIES = """
import ctypes, sys
def mapped():
    return {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if ".so" in line}
before = mapped()
ctypes.CDLL(sys.argv[1])
print("\\n".join(sorted(mapped() - before)))
"""


def constants() -> Dict[str, int]:
    text = (HERE / "kvcsa" / "_abi.py").read_text(encoding="utf-8")
    return {name: int(value) for name, value in re.findall(r"^(KVCSA_\w+) = (\d+)$", text, flags=re.M)}


def version() -> str:
    known = constants()
    return ".".join(str(known[f"KVCSA_VERSION_{part}"]) for part in ("MAJOR", "MINOR", "PATCH"))


def metadata() -> str:
    return (f"Metadata-Version: 2.1\nName: kvcsa\nVersion: {version()}\n"
            "Summary: Run transformer language models around a very small KV cache\n"
            "License: MIT\nRequires-Python: >=3.9\nProvides-Extra: numpy\nRequires-Dist: numpy; extra == 'numpy'\n"
            "Classifier: Operating System :: POSIX :: Linux\nClassifier: Typing :: Typed\n"
            "Description-Content-Type: text/markdown\n\n" + (HERE / "README.md").read_text(encoding="utf-8"))


def stripped(path: Path) -> bytes:
    """A library without what only a debugger reads."""
    strip = shutil.which("strip")
    if not strip:
        return path.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "stripped"
        made = subprocess.run([strip, "--strip-unneeded", "-o", str(out), str(path)], check=False)
        return (out if made.returncode == 0 else path).read_bytes()


def dependencies(library: Path) -> List[Path]:
    """What the loader brings with it, without the C library."""
    out = subprocess.run([sys.executable, "-c", DEPENDENCIES, str(library)], stdout=subprocess.PIPE, check=True, text=True).stdout
    found = [Path(line) for line in out.splitlines()]
    return [path for path in found if path.resolve() != library.resolve() and not SYSTEM.match(path.name)]


def soname(path: Path) -> str:
    """Under which name others ask for it: the last link that the loader follows."""
    names = [link.name for link in path.parent.iterdir()
             if link.is_symlink() and link.resolve() == path.resolve() and re.search(r"\.so\.\d+$", link.name)]
    return names[0] if names else path.name


def licence(path: Path) -> Optional[Tuple[str, bytes]]:
    """(package, its copyright file) of a library of Debian's."""
    dpkg = shutil.which("dpkg-query")
    for name in (str(path), str(path).replace("/usr/", "/", 1)) if dpkg else ():
        owner = subprocess.run([str(dpkg), "-S", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, text=True)
        package = owner.stdout.split(":")[0].strip()
        file = Path("/usr/share/doc") / package / "copyright"
        if package and file.exists():
            return package, file.read_bytes()
    return None


def library_files(library: Path, info: str) -> Iterable[Tuple[str, bytes, bool]]:
    """(name in the wheel, bytes, is a program's)"""
    yield f"kvcsa/libkvcsa.so.{constants()['KVCSA_ABI']}", stripped(library), True
    plugin = library.parent / "libkvcsa_cuda.so"  # looked for beside the library
    if plugin.exists():
        yield "kvcsa/libkvcsa_cuda.so", stripped(plugin), True
    for path in dependencies(library):
        yield f"kvcsa/deps/{soname(path)}", path.read_bytes(), True
        text = licence(path)
        if text:
            yield f"{info}/licenses/{text[0]}.txt", text[1], False
        else:
            print(f"no licence found for {path.name}: see to it before you pass the wheel on", file=sys.stderr)


def write_archive(target: Path, files: List[Tuple[str, bytes, bool]], info: str) -> None:
    """Names in order, one date: the same bytes each time."""
    record = io.StringIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        def put(name: str, data: bytes, program: bool) -> None:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)

        for name, data, program in sorted(files):
            put(name, data, program)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.write(f"{name},sha256={digest},{len(data)}\n")
        record.write(f"{info}/RECORD,,\n")
        put(f"{info}/RECORD", record.getvalue().encode(), False)


def find_library(named: Optional[str]) -> Optional[Path]:
    if named == "none":
        return None
    path = Path(named) if named else HERE.parent / "libkvcsa.so"
    if not path.exists():
        raise SystemExit(f"{path} is not there: build it with make, or name another with library=PATH (or library=none)")
    return path.resolve()


def build(directory: str, library: Optional[Path], editable: bool = False) -> str:
    info = f"kvcsa-{version()}.dist-info"
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform()) if library else "any"
    files: List[Tuple[str, bytes, bool]] = []
    if editable:
        files.append(("kvcsa.pth", f"{HERE}\n".encode(), False))
        platform = "any"
    else:
        files += [(f"kvcsa/{f.name}", f.read_bytes(), False) for f in (HERE / "kvcsa").iterdir() if f.suffix in (".py", ".typed")]
        if library:
            files += library_files(library, info)
    text = (f"Wheel-Version: 1.0\nGenerator: build_wheel\nRoot-Is-Purelib: {'false' if platform != 'any' else 'true'}\n"
            f"Tag: py3-none-{platform}\n")
    files += [(f"{info}/METADATA", metadata().encode(), False), (f"{info}/WHEEL", text.encode(), False)]
    for source in (HERE / "LICENSE", HERE.parent.parent / "LICENSE"):
        if source.exists():
            files.append((f"{info}/licenses/LICENSE", source.read_bytes(), False))
            break
    name = f"kvcsa-{version()}-py3-none-{platform}.whl"
    os.makedirs(directory, exist_ok=True)
    write_archive(Path(directory) / name, files, info)
    return name


# ------------------------------------------------------------------ what pip asks for (PEP 517, PEP 660)

def _named(settings: Optional[Mapping[str, Any]]) -> Optional[str]:
    return (settings or {}).get("library")


def build_wheel(wheel_directory: str, config_settings: Optional[Mapping[str, Any]] = None,
                metadata_directory: Optional[str] = None) -> str:
    return build(wheel_directory, find_library(_named(config_settings)))


def build_editable(wheel_directory: str, config_settings: Optional[Mapping[str, Any]] = None,
                   metadata_directory: Optional[str] = None) -> str:
    return build(wheel_directory, None, editable=True)


def build_sdist(sdist_directory: str, config_settings: Optional[Mapping[str, Any]] = None) -> str:
    """The Python part alone; a wheel is made of it with library=PATH or library=none."""
    base = f"kvcsa-{version()}"
    files = {f"{base}/PKG-INFO": metadata().encode(), f"{base}/LICENSE": (HERE.parent.parent / "LICENSE").read_bytes()}
    for name in ("pyproject.toml", "build_wheel.py", "README.md"):
        files[f"{base}/{name}"] = (HERE / name).read_bytes()
    for source in (HERE / "kvcsa").iterdir():
        if source.suffix in (".py", ".typed"):
            files[f"{base}/kvcsa/{source.name}"] = source.read_bytes()
    os.makedirs(sdist_directory, exist_ok=True)
    with tarfile.open(Path(sdist_directory) / f"{base}.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = len(files[name])
            archive.addfile(entry, io.BytesIO(files[name]))
    return f"{base}.tar.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the wheel of kvcsa, with the library inside.")
    parser.add_argument("directory", nargs="?", default=".", help="where it goes")
    parser.add_argument("--library", help="libkvcsa.so to carry, or none; default: lib/libkvcsa.so of this tree")
    options = parser.parse_args()
    print(Path(options.directory) / build(options.directory, find_library(options.library)))


if __name__ == "__main__":
    main()
