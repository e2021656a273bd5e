"""The examples, run inside this process with counted memory: nothing is left when they end."""

import contextlib
import functools
import io
import runpy
import sys
import unittest
from unittest import mock

from support import CountingAllocator, TINY, TREE, kvcsa


class Examples(unittest.TestCase):
    def run_example(self, name, *arguments):
        memory, out = CountingAllocator(), io.StringIO()
        with contextlib.ExitStack() as stack:
            for kind in ("Model", "Pool"):
                stack.enter_context(mock.patch.object(kvcsa, kind, functools.partial(getattr(kvcsa, kind), allocator=memory)))
            stack.enter_context(mock.patch.object(sys, "argv", [name, *arguments]))
            stack.enter_context(contextlib.redirect_stdout(out))
            try:
                runpy.run_path(str(TREE / "examples" / name), run_name="__main__")
                status = 0
            except SystemExit as end:
                status = end.code
        self.assertGreater(memory.n_allocs, 0)
        self.assertEqual((memory.balance, memory.wrong), (0, []), f"{name} left memory behind")
        return status, out.getvalue()

    def test_minimal(self):
        status, out = self.run_example("minimal.py", TINY, "In the beginning")
        self.assertEqual(status, 0)
        self.assertTrue(out.startswith("In the beginning"))
        self.assertGreater(len(out), 60)
        self.assertEqual(self.run_example("minimal.py", TINY, "In the beginning")[1], out)
        lines = (TREE / "examples" / "minimal.py").read_text().splitlines()
        self.assertLess(len(lines), 30)

    def test_minimal_says_what_is_wrong(self):
        with mock.patch.object(sys, "argv", ["minimal.py", "/nowhere", "text"]), self.assertRaises(SystemExit) as caught:
            runpy.run_path(str(TREE / "examples" / "minimal.py"), run_name="__main__")
        self.assertIn("KVCSA_ERR_IO", str(caught.exception.code))

    def test_agent_tools(self):
        text = str(TREE / "examples" / "texts" / "moby-dick.txt")
        status, out = self.run_example("agent_tools.py", TINY, text, "--context", "512", "--calls", "10", "--tool", "24",
                                       "--generate", "8")
        self.assertEqual(status, 0, out)
        rows = {line.split()[0]: [int(n.replace(",", "")) for n in line.split()[1:6]] for line in out.splitlines()
                if line.startswith(("cold ", "shared ", "kept "))}
        contexts = sum(512 + 32 * i for i in range(1, 11))  # every call's, with what it generates
        cold, shared, kept = rows["cold"], rows["shared"], rows["kept"]
        self.assertEqual(cold[:3], [contexts, 0, 0])
        self.assertEqual(shared[0] + shared[2], contexts)
        self.assertEqual(kept[:3], [512 + 320, 0, 0])
        self.assertLess(shared[0] + shared[1], contexts)
        self.assertLess(kept[4], shared[4])
        self.assertIn("Scaled down", out)
        self.assertIn("the answers are the same", out)
        self.assertEqual(self.run_example("agent_tools.py", TINY, text, "--calls", "1000")[0], 2)


if __name__ == "__main__":
    unittest.main()
