#!/bin/bash
# The Python package: unit tests with the library under test, examples, wheel, types: test/check_python.sh [BUILD [LIBS]]
#
# Prints one line a test file. Without python3 (3.9 or later, with ctypes) it is left out. numpy, mypy and pip are used where they
# are, and named where they are not.
set -u
cd "$(dirname "$0")/.." || exit 2
libs=${2:-lib}
python=${PYTHON:-python3}
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
bad=0
complain() { echo "$1"; bad=1; }

"$python" -c 'import ctypes, sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
    { echo "no Python 3.9 or later with ctypes"; exit 77; }
[ -e "$libs/libkvcsa.so" ] || { echo "$libs/libkvcsa.so is not built"; exit 1; }
KVCSA_TEST_LIBRARY=$(realpath "$libs/libkvcsa.so")
export KVCSA_TEST_LIBRARY PYTHONDONTWRITEBYTECODE=1 MYPY_CACHE_DIR=$tmp/mypy PIP_NO_INPUT=1
unset PYTHONPATH

ran=0 left_out=0
for file in lib/python/tests/test_*.py; do
    name=$(basename "$file" .py)
    timeout 300 "$python" -W error::ResourceWarning "$file" >"$tmp/$name" 2>&1
    rc=$?
    n=$(sed -n 's/^Ran \([0-9]*\) tests* in.*/\1/p' "$tmp/$name")
    skipped=$(sed -n 's/^OK (skipped=\([0-9]*\))$/\1/p' "$tmp/$name")
    if [ "$rc" -ne 0 ] || [ "${n:-0}" -eq 0 ]; then
        complain "$name failed (exit status $rc):"
        cat "$tmp/$name"
    else
        echo "$name: $((n - ${skipped:-0})) good${skipped:+, $skipped left out}"
        ran=$((ran + n)) left_out=$((left_out + ${skipped:-0}))
    fi
done

# The examples as a user starts them, from the tree.
PYTHONPATH=lib/python "$python" examples/minimal.py examples/models/tiny "In the beginning" >"$tmp/out" 2>"$tmp/err" ||
    complain "examples/minimal.py failed"
[ -s "$tmp/err" ] && { complain "examples/minimal.py complains:"; cat "$tmp/err"; }
grep -q '^In the beginning.' "$tmp/out" || complain "examples/minimal.py does not go on with its text"

if "$python" -m mypy --version >/dev/null 2>&1; then
    "$python" -m mypy --strict lib/python/kvcsa lib/python/generate.py lib/python/build_wheel.py examples/minimal.py \
        examples/agent_tools.py >"$tmp/types" 2>&1 || { complain "types:"; cat "$tmp/types"; }
else
    echo "no mypy: types are not checked"
fi
"$python" -c 'import numpy' 2>/dev/null || echo "no numpy: its views are not tried"

# Nothing was left in the tree.
git ls-files --others --exclude-standard lib/python 2>/dev/null | grep -E '\.(whl|egg-info|tar\.gz)|/build/' &&
    complain "building the wheel left files in the tree"
[ "$bad" -eq 0 ] && echo "$((ran - left_out)) tests of the Python package passed, $left_out left out"
exit "$bad"
