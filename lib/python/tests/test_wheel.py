"""The wheel: what is in it, the same bytes twice, and that it runs where libraries are missing."""

import hashlib
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

from support import LIBRARY, PACKAGE, TINY

SAY = ("import kvcsa, sys; m = kvcsa.Model(sys.argv[1]); p = kvcsa.Pool(n_threads=1); s = p.session(m);"
       "s.append(m.tokenize('In the')); print(len(''.join(s.stream(5))) > 0, kvcsa.library_path(), kvcsa.__file__)")


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = Path(cls.folder.name).resolve()
        cls.wheel = cls.build("one", LIBRARY)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def build(cls, name, library):
        made = subprocess.run([sys.executable, str(PACKAGE / "build_wheel.py"), str(cls.path / name), "--library", library],
                              stdout=subprocess.PIPE, text=True, check=True)
        return Path(made.stdout.strip())

    def run_from(self, site):
        return subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(site)!r}); " + SAY, TINY],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.path, check=False)

    def unpacked(self, name):
        site = self.path / name
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(site)
        return site

    def test_same_bytes_twice(self):
        again = self.build("two", LIBRARY)
        self.assertEqual(again.name, self.wheel.name)
        self.assertEqual(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in (self.wheel, again)))

    def test_contents(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            record = archive.read(next(name for name in names if name.endswith("/RECORD"))).decode()
            self.assertIsNone(archive.testzip())
        self.assertEqual(sorted(line.split(",")[0] for line in record.splitlines()), sorted(names))
        for source in (PACKAGE / "kvcsa").glob("*.py"):
            self.assertIn(f"kvcsa/{source.name}", names)
        self.assertIn("kvcsa/py.typed", names)
        self.assertIn("kvcsa/libkvcsa.so.0", names)
        self.assertRegex(self.wheel.name, r"-py3-none-linux_\w+\.whl$")

    def test_runs_from_its_folder(self):
        site = self.unpacked("site")
        made = self.run_from(site)
        self.assertEqual((made.returncode, made.stdout.split(), made.stderr),
                         (0, ["True", str(site / "kvcsa" / "libkvcsa.so.0"), str(site / "kvcsa" / "__init__.py")], ""))

    def test_brings_what_a_system_lacks(self):
        """A library that no system has, by its name, stands for one that this one lacks."""
        site = self.unpacked("poor")
        package = site / "kvcsa"
        old, new = b"libjansson.so.4", b"libjanssno.so.4"
        for path in (package / "libkvcsa.so.0", package / "deps" / old.decode()):
            data = path.read_bytes()
            self.assertIn(old, data)
            path.write_bytes(data.replace(old, new))
        carried = package / "deps" / old.decode()
        carried.rename(package / "away")
        made = self.run_from(site)
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("libkvcsa cannot be loaded", made.stderr)
        self.assertIn("libjanssno.so.4", made.stderr)
        (package / "away").rename(carried)
        made = self.run_from(site)
        self.assertEqual((made.returncode, made.stdout.split()[0], made.stderr), (0, "True", ""))

    def test_without_a_library(self):
        wheel = self.build("none", "none")
        self.assertTrue(wheel.name.endswith("-py3-none-any.whl"))
        with zipfile.ZipFile(wheel) as archive:
            self.assertFalse([name for name in archive.namelist() if ".so" in name])
        made = subprocess.run([sys.executable, str(PACKAGE / "build_wheel.py"), str(self.path / "x"), "--library", "/nowhere.so"],
                              stderr=subprocess.PIPE, text=True, check=False)
        self.assertIn("/nowhere.so is not there", made.stderr)

    def test_pip_builds_and_installs_it_offline(self):
        if subprocess.run([sys.executable, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          check=False).returncode:
            self.skipTest("no pip")
        pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--no-cache-dir", "-q"]
        site = self.path / "installed"
        made = subprocess.run(pip + ["install", "--no-index", "--target", str(site), "--config-settings", f"library={LIBRARY}",
                                     str(PACKAGE)], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        made = self.run_from(site)
        self.assertEqual((made.returncode, made.stdout.split()[0], made.stderr), (0, "True", ""))
        self.assertEqual({path.name for path in site.glob("kvcsa-*")}, {f"kvcsa-{self.wheel.name.split('-')[1]}.dist-info"})


if __name__ == "__main__":
    unittest.main()
