#!/bin/bash
# make check for Armv8-A under the user-mode emulator: test/check_neon.sh BUILD [PATTERN...]
#
# BUILD is a cross build with debug checks (make check-neon makes it). Each program gets a wrapper in BUILD/wrap that starts it under
# qemu, so that the tests and scripts are the ones of make check. Set NEON_AVOID=8 for NEON without dot products, 12 for portable C.
# Ends with the line "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build/neon}
shift
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || { echo "qemu-aarch64 is missing"; exit 1; }
root=$PWD/$build wrap=$build/wrap
rm -rf "$wrap"
mkdir -p "$wrap/test" "$wrap/examples"
while read -r program; do
    name=${program#"$build"/}
    # KVCSA_TEST_SELF: for tests that start another process of themselves
    printf '#!/bin/sh\nKVCSA_TEST_SELF="%s" exec "%s" "%s" "$@"\n' "$PWD/$wrap/$name" "$qemu" "$root/$name" >"$wrap/$name"
    chmod +x "$wrap/$name"
done < <(find "$build/kvcsa" "$build/test" "$build/examples" -maxdepth 1 -type f -perm -u+x)
[ $# -gt 0 ] || set -- 'test_*' 'fuzz_*' check_cli.sh check_parity.sh check_synth.sh
echo "== $("$wrap/kvcsa" info | sed -n 's/^kernels *//p')"
KVI_CPU_AVOID=${NEON_AVOID:-0} TEST_SECONDS=${TEST_SECONDS:-3000} test/run_tests.sh --no-cuda --build "$wrap" --scripts "$wrap" "$build/lib" "$@"
