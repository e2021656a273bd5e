#!/bin/bash
# Where the time of a decode step at 128k goes: test/bench/profile.sh [--functions] [BUILD]. Prints the share of every operator and of
# all that is outside of them, from the clock around each call (`bench --only step`). With --functions also the functions that most
# samples fall into, from perf, which sees them below the operators: the network's fill-up and the other steps are among the samples.
set -eu
cd "$(dirname "$0")/../.."
functions=
[ "${1:-}" = --functions ] && { functions=1; shift; }
build=${1:-build}
bench=$build/test/bench
[ -x "$bench" ] || { echo "no $bench: make $bench" >&2; exit 1; }

"$bench" --only step --one-thread | grep -E '^(kernel|decode step|step share)'
[ -n "$functions" ] || exit 0
command -v perf >/dev/null || { echo "no perf" >&2; exit 1; }
data=$(mktemp)
trap 'rm -f "$data"' EXIT
perf record -q -F 999 -o "$data" -- "$bench" --only step --one-thread --quick >"$data.out" 2>&1 || { cat "$data.out" >&2; exit 1; }
rm -f "$data.out"
echo
perf report -q -i "$data" --stdio --percent-limit 1 --sort symbol 2>/dev/null | grep -v '^$' | head -n 40
