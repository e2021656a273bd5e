#!/bin/bash
# The network against the independent reference (test/golden/README.md): test/check_parity.sh BUILD. Two kinds of check:
#   T1    cached bytes, selections and logits of the golden cases, each with every exception listed
#   tiny  bits per byte of the held-out text by the trained model, as its data card gives them
# Ends with the line "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build}
golden=test/golden/t1
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

verdict() { # NAME STATUS
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); echo "ok $1"; else failed=$((failed + 1)); echo "not ok $1"; fi
}

# Threads and chunks differ from case file to case file: they must not matter.
t1() { # CASES THREADS CHUNK [portable]: with these kernels, or those of the processor
    local limit=(--exempt 0.01)
    [ -n "${4:-}" ] && limit=(--exempt 0.001)
    echo "== $1 ${4:-}"
    "$build/test/run_cases" --pre ${4:+--portable} test/data/t1 "$golden/$1.json" "$dir/$1.safetensors" "$2" "$3" >"$dir/log" 2>&1 ||
        { cat "$dir/log"; verdict "$1" 1; return; }
    # Other numerics round other codes of T1, whose random weights carry each of them far; portable ones come closest to the reference.
    "$build/test/compare_cases" "$golden/$1.safetensors" "$dir/$1.safetensors" "$golden/$1.json" --config test/data/t1/config.json \
        "${limit[@]}"
    verdict "$1 ${4:-}" $?
}
t1 t1-f32 2 0
t1 t1-f32 1 0 portable
t1 t1-f32-pre 1 50
t1 t1-f32-pre 2 0 portable
t1 t1-bf16 3 1

score() { # CONTEXT WANTED
    local got
    got=$("$build/kvcsa" score examples/models/tiny -f test/data/heldout.txt --context "$1" 2>/dev/null)
    echo "== heldout.txt, context $1: $got (wanted $2 within 0.0005)"
    awk -v want="$2" '{ d = $1 - want; exit !($2 == "bits/byte" && d <= 0.0005 && d >= -0.0005) } END { if (NR == 0) exit 1 }' <<<"$got"
    verdict "score-$1" $?
}
score 512 1.2752
score 2048 1.2697

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
