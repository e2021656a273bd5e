#!/bin/bash
# Test programs under valgrind's memcheck: test/run_valgrind.sh BUILD PATTERN...
#
# Wrong reads and writes, values that nobody set, and memory that is lost, each a failure of the program (exit status 99). Each program
# gets a wrapper in BUILD/valgrind that starts it under valgrind, so that the list and the counts are those of make check.
# Kernels are those in portable C: valgrind computes fused products in software, with AVX2 some programs take more than half an hour,
# and it knows no AVX-512 (KVI_CPU_AVOID=0: AVX2 all the same; check-asan has the others). Ends with the line "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build}
shift
command -v valgrind >/dev/null || { echo "valgrind (package valgrind) is missing"; exit 1; }
wrap=$build/valgrind
rm -rf "$wrap" && mkdir -p "$wrap/test" || exit 2
# A child that was forked inside a call ends with _exit or a signal: what it holds is no leak of the program.
options='-q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect,possible'
options="$options --errors-for-leak-kinds=definite,indirect,possible --child-silent-after-fork=yes"
for program in "$build"/test/test_*; do
    [ -f "$program" ] && [ -x "$program" ] || continue
    name=$(basename "$program")
    printf '#!/bin/sh\nKVCSA_TEST_SELF="%s" exec valgrind %s "%s" "$@"\n' "$PWD/$wrap/test/$name" "$options" \
        "$(realpath "$program")" >"$wrap/test/$name"
    chmod +x "$wrap/test/$name"
done
KVI_CPU_AVOID=${KVI_CPU_AVOID:-3} TEST_SECONDS=${TEST_SECONDS:-1800} test/run_tests.sh --no-cuda --build "$wrap" --no-scripts "$@"
