#!/bin/bash
# Runs every libFuzzer target for a while: test/fuzz/run_fuzz.sh BUILD SECONDS
#
# New inputs stay in BUILD/corpus and are used again by the next run; those worth keeping are copied to test/fuzz/corpus by hand.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=$1 seconds=$2
bad=0 n=0
mkdir -p "$build/crashes"
for source in test/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    [ "$name" = fuzz_main ] && continue
    target=${name#fuzz_}
    mkdir -p "$build/corpus/$target"
    seeds=()
    [ -d "test/fuzz/corpus/$target" ] && seeds=("test/fuzz/corpus/$target")
    # Inputs are small; a slow one (10 s) or a large allocation (2 GiB) is a finding.
    "$build/test/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/crashes/$target-" "$build/corpus/$target" "${seeds[@]}" </dev/null >"$build/$name.log" 2>&1
    rc=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log")
    n=$((n + 1))
    if [ "$rc" -eq 0 ]; then
        echo "ok       $name  ${runs:-?} inputs in $seconds s"
    else
        echo "FAILED   $name  (exit status $rc; inputs in $build/crashes)"
        grep -vE '^#[0-9]+' "$build/$name.log" | tail -n 60 | sed 's/^/    | /'
        bad=$((bad + 1))
    fi
done
echo "$((n - bad)) $bad 0" >"$build/counts"
[ "$n" -gt 0 ] && [ "$bad" -eq 0 ]
