#!/bin/bash
# The real geometry (head 512, 384 experts, top-512, 2048 candidate blocks, and a second time with 32 blocks) against the independent oracle,
# which makes the checkpoints (205 MB each) and the expected results; they are kept in BUILD/large.
#
#   test/check_large.sh --build BUILD --python PYTHON ORACLE       (make check-large ORACLE=path/to/v41_oracle.py)
#
# The oracle needs python3 with numpy and torch. Takes some minutes. Without an oracle it is skipped.
set -u
cd "$(dirname "$0")/.." || exit 2
build=build python=python3
while [ $# -gt 1 ]; do
    case $1 in
    --build) build=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    *) echo "unknown option $1"; exit 2 ;;
    esac
done
oracle=${1:-}
golden=test/golden/large
work=$build/large
passed=0 failed=0

skip() {
    echo "skipped: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
[ -n "$oracle" ] || skip "no oracle given; make check-large ORACLE=path/to/v41_oracle.py"
[ -r "$oracle" ] || { echo "$oracle cannot be read"; exit 1; }
"$python" -c 'import numpy, torch' 2>/dev/null || skip "$python has no numpy and torch (Debian: python3-torch)"

# One thread: another count moves the oracle's sums by an ulp, which can flip a code at a tie.
ask_oracle() { OMP_NUM_THREADS=1 "$python" "$oracle" "$@"; }
# What took minutes to make is used again while it is finished and newer than what it was made from.
make_once() { # SOURCE RESULT COMMAND...
    local source=$1 result=$2
    shift 2
    [ "$result.done" -nt "$source" ] && return 0
    "$@" && touch "$result.done"
}

mkdir -p "$work"
for name in t2 t2c; do
    start=$SECONDS
    echo "== $name"
    config=$golden/$name-config.json cases=$golden/t2-f32.json
    expected=$work/$name-expected.safetensors ours=$work/$name-ours.safetensors
    make_once "$config" "$work/$name" ask_oracle make "$config" "$work/$name" --seed 1 &&
        make_once "$cases" "$expected" ask_oracle run "$work/$name" "$cases" "$expected" &&
        "$build/test/run_cases" --pre "$work/$name" "$cases" "$ours" &&
        "$build/test/compare_cases" "$expected" "$ours" "$cases" --config "$work/$name/config.json" --lines 10
    rc=$?
    if [ "$rc" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "== $name failed"
    fi
    echo "== $name: $((SECONDS - start)) s"
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
