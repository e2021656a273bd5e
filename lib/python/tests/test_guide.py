"""Runs every block of code of docs/guide-python.md, in order, from the top of the tree."""

import re
import subprocess
import sys
import unittest

from support import LIBRARY, PACKAGE, TREE


class Guide(unittest.TestCase):
    def test_code(self):
        text = (TREE / "docs" / "guide-python.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
        self.assertGreaterEqual(len(blocks), 8)
        head = f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); import kvcsa; kvcsa.load({LIBRARY!r})\n"
        made = subprocess.run([sys.executable, "-c", head + "\n".join(blocks)], cwd=TREE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((made.returncode, re.sub(r"<string>.*ResourceWarning.*\n.*\n", "", made.stderr)), (0, ""))
        for words in ("tokens adopted", "bytes for the second turn", "likeliest tokens differ", "79.5 bytes a token", "ERR_FULL"):
            self.assertIn(words, made.stdout)

    def test_links(self):
        text = (TREE / "docs" / "guide-python.md").read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            self.assertTrue((TREE / "docs" / link).exists(), link)


if __name__ == "__main__":
    unittest.main()
