#!/bin/bash
# Everything that a machine without a GPU can check: test/check_all.sh MAKE BUILD
#
# Ends with one line of counts over all parts: tests of the plain and the sanitized builds, fuzz targets, and one for each part
# itself, so that a part that could not even be built is seen.
set -u
cd "$(dirname "$0")/.." || exit 2
make=${1:-make} build=${2:-build}
passed=0 failed=0 skipped=0
export KV_PART_OF=check-all

add() { # FILE WITH "PASSED FAILED SKIPPED"
    local p f s
    [ -r "$1" ] || return
    read -r p f s <"$1"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}
part() { # TARGET COUNTS
    local start=$SECONDS
    rm -f "$2"
    echo "== make $1"
    if $make --no-print-directory "$1" B="$build"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "== make $1 failed"
    fi
    add "$2"
    echo "== make $1: $((SECONDS - start)) s"
}
part check "$build/check/test/counts"
# The rest costs half an hour, which is wasted where the plain tests fail.
if [ "$failed" -eq 0 ]; then
    part check-apart "$build/check/test/counts"
    part check-plugin "$build/cuda/counts"
    part check-werror "$build/none"
    part check-asan "$build/asan/test/counts"
    part check-tsan "$build/tsan/test/counts"
    part check-masks "$build/check/test/counts"
    # the kernels and what chooses them; the whole of it takes an hour under the emulator
    export NEON_TESTS="test_kern_* test_threads test_api_cpu"
    part check-neon "$build/neon/wrap/test/counts"
    part fuzz "$build/fuzz/counts"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
