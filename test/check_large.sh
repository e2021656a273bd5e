#!/bin/bash
# What takes minutes.
#
# long     sessions of 32k and 1M tokens of the released cache geometry, 20 real decode steps each: every count of every layer, 890 bytes a
#          token, scores tile by tile; prints seconds a step, memory, and the ratios between the two lengths. Needs nothing but the build.
# t2 t2c   the real geometry (head 512, 384 experts, top-512, 2048 candidate blocks, and a second time with 32 blocks) against the independent
#          oracle, which makes the checkpoints (205 MB each) and the expected results; they are kept in BUILD/large. The oracle needs python3
#          with numpy and torch; without it these two are skipped.
#
#   test/check_large.sh --build BUILD --python PYTHON ORACLE       (make check-large ORACLE=path/to/v41_oracle.py)
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
passed=0 failed=0 skipped=0

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    exit $((failed > 0))
}
count() { # NAME RC START
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "== $1 failed"
    fi
    echo "== $1: $((SECONDS - $3)) s"
}
skip() {
    echo "skipped: $1"
    skipped=2
    finish
}

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
start=$SECONDS
echo "== long"
"$build/test/long_run"
count long $? "$start"

[ -n "$oracle" ] || skip "no oracle given; make check-large ORACLE=path/to/v41_oracle.py"
if [ ! -r "$oracle" ]; then
    echo "$oracle cannot be read"
    failed=$((failed + 2))
    finish
fi
"$python" -c 'import numpy, torch' 2>/dev/null || skip "$python has no numpy and torch (Debian: python3-torch)"

for name in t2 t2c; do
    start=$SECONDS
    echo "== $name"
    config=$golden/$name-config.json cases=$golden/t2-f32.json
    expected=$work/$name-expected.safetensors ours=$work/$name-ours.safetensors
    make_once "$config" "$work/$name" ask_oracle make "$config" "$work/$name" --seed 1 &&
        make_once "$cases" "$expected" ask_oracle run "$work/$name" "$cases" "$expected" &&
        "$build/test/run_cases" --pre "$work/$name" "$cases" "$ours" &&
        "$build/test/compare_cases" "$expected" "$ours" "$cases" --config "$work/$name/config.json" --lines 10
    count "$name" $? "$start"
done
finish
