"""What the tests share: the shipped model, the library under test, and memory that is counted."""

import ctypes
import os
import subprocess
import sys
import threading
import unittest
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
TREE = PACKAGE.parent.parent
TINY = str(TREE / "examples" / "models" / "tiny")
LIBRARY = os.environ.get("KVCSA_TEST_LIBRARY") or str(TREE / "lib" / "libkvcsa.so")
TEXT = "In the beginning God created the heaven and the earth. And the earth was without form, and void. "

sys.path.insert(0, str(PACKAGE))
import kvcsa  # noqa: E402

kvcsa.load(LIBRARY)


class CountingAllocator(kvcsa.Allocator):
    """Memory of libc's that knows what is out. `fail_after` allocations it has no more; -1 = never."""

    def __init__(self, fail_after: int = -1) -> None:
        libc = ctypes.CDLL(None)
        libc.aligned_alloc.restype = ctypes.c_void_p
        libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
        self.lock = threading.Lock()
        self.out = {}
        self.n_allocs = 0
        self.wrong = []

        def alloc(size, align):
            with self.lock:
                self.n_allocs += 1
                if 0 <= fail_after < self.n_allocs:
                    return 0
                address = libc.aligned_alloc(align, (size + align - 1) // align * align)
                if address:
                    self.out[address] = (size, align)
                return address

        def free(address, size, align):
            with self.lock:
                if self.out.pop(address, None) != (size, align):
                    self.wrong.append((address, size, align))
                libc.free(address)

        super().__init__(alloc, free)

    @property
    def balance(self) -> int:
        return sum(size for size, _ in self.out.values())


class Case(unittest.TestCase):
    """A test with the tiny model in counted memory; at its end none of it may be out."""

    def setUp(self) -> None:
        self.memory = CountingAllocator()
        self.model = kvcsa.Model(TINY, allocator=self.memory)
        self.pool = kvcsa.Pool(n_threads=1, allocator=self.memory)
        self.addCleanup(self.balance)

    def balance(self) -> None:
        self.model.close()
        self.pool.close()
        self.assertGreater(self.memory.n_allocs, 0)
        self.assertEqual((self.memory.balance, self.memory.wrong), (0, []))

    def session(self, text: str = TEXT, **params):
        """A session that has read a text."""
        session = self.pool.session(self.model, kvcsa.SessionParams(**params) if params else None)
        self.addCleanup(session.close)
        if text:
            session.append(self.model.tokenize(text))
            session.step()
        return session

    def long_tokens(self, n: int):
        text = self.model.tokenize((TREE / "examples" / "texts" / "moby-dick.txt").read_bytes())
        self.assertGreaterEqual(len(text), n)
        return text[:n]


def run_python(code: str, *, before: str = "", timeout: float = 120):
    """A program of its own, with the library under test. `before`: in front of everything, without the package."""
    head = before + f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); import kvcsa; kvcsa.load({LIBRARY!r}); TINY = {TINY!r}\n"
    return subprocess.run([sys.executable, "-X", "faulthandler", "-c", head + code], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=timeout, text=True, check=False)
