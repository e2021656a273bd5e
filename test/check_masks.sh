#!/bin/bash
# The whole of make check once more for each narrower set of instructions: test/check_masks.sh BUILD
#
# BUILD is a debug build (make check-masks makes it): only that reads KVI_CPU_AVOID, whose bits are KVCSA_CPU_*. Scripts that look at
# files and symbols are left out, since they do not depend on the processor.
# Ends with the line "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build/check}
passed=0 failed=0 skipped=0
case $(uname -m) in
x86_64) masks=(2 3) ;;    # AVX2, portable C
aarch64) masks=(8 12) ;;  # NEON, portable C
*) masks=() ;;
esac
for mask in "${masks[@]}"; do
    echo "== KVI_CPU_AVOID=$mask: $(KVI_CPU_AVOID=$mask "$build/kvcsa" info | sed -n 's/^kernels *//p')"
    KVI_CPU_AVOID=$mask KV_PART_OF=check-masks test/run_tests.sh --build "$build" --scripts "$build" "$build/lib" \
        'test_*' 'fuzz_*' check_cli.sh check_diff.sh check_examples.sh check_need.sh check_parity.sh check_synth.sh
    read -r p f s <"$build/test/counts"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo "$passed $failed $skipped" >"$build/test/counts"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
