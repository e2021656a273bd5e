#!/bin/bash
# kvcsa synth as a user runs it: test/check_synth.sh BUILD. Prints a line per check; exit status 0 = all passed.
set -u
cd "$(dirname "$0")/.." || exit 2
kv=${1:-build}/kvcsa
config=test/data/synth-small.json
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
bad=0
[ -x "$kv" ] || { echo "$kv is missing"; exit 1; }
check() { # NAME CONDITION...
    local name=$1
    shift
    if "$@"; then echo "ok $name"; else bad=1; echo "not ok $name"; sed 's/^/#   /' "$dir/out" "$dir/err" | head -n 20; fi
}
run() { "$@" >"$dir/out" 2>"$dir/err" </dev/null; }
says() { grep -qF -- "$2" "$dir/$1"; }
status() { local want=$1; shift; run "$@"; [ $? -eq "$want" ]; }

check "help" status 0 "$kv" help synth
check "help has an example" says out "kvcsa synth config.json random --seed 1"
check "counting" status 0 "$kv" synth test/data/v41-flash-config.json --dry-run
check "counting says how much" says out "93,378 tensors, 501,382,549,968 B"
check "counting in JSON" status 0 "$kv" synth "$config" --dry-run --json
check "JSON has numbers" says out '"bytes": 407214'
check "writing" status 0 "$kv" synth "$config" "$dir/a" --seed 3 --shard-size 100K
check "writing says what" says out "263 tensors, 407,214 B, shards: 5"
check "what was written opens" status 0 "$kv" info "$dir/a"
check "all of it is used" says out "263 tensors"
check "it runs" status 0 "$kv" run "$dir/a" -p "badu koki" -n 5
check "again" status 0 "$kv" synth "$config" "$dir/b" --seed 3 --shard-size 100K
check "the same bytes" diff -r "$dir/a" "$dir/b"
check "no second checkpoint in a directory" status 1 "$kv" synth "$config" "$dir/a"
check "it says why" says err "nothing is overwritten"
check "a directory is wanted" status 2 "$kv" synth "$config"
check "a configuration is wanted" status 1 "$kv" synth "$dir/none.json" "$dir/c"
check "nothing is made without one" test ! -e "$dir/c"

# The release would take hours. A job of a script ignores SIGINT unless it has a group of its own.
begin_long() {
    set -m
    "$kv" synth test/data/v41-flash-config.json "$dir/c" >"$dir/out" 2>"$dir/err" &
    pid=$!
    set +m
    for _ in $(seq 200); do [ -s "$dir/c/model-00001-of-00075.safetensors" ] && break; sleep 0.05; done
    check "a long one has begun" test -s "$dir/c/model-00001-of-00075.safetensors"
}
begin_long
kill -INT "$pid"
wait "$pid"
check "Ctrl-C ends it with 1" test $? -eq 1
check "it says so" says err "KVCSA_ERR_CANCELLED"
check "nothing is left of it" test ! -e "$dir/c"
begin_long
kill -KILL "$pid"
wait "$pid" 2>/dev/null
check "killed: no checkpoint to open" test ! -e "$dir/c/config.json"
check "what is left is not overwritten" status 1 "$kv" synth test/data/v41-flash-config.json "$dir/c"
check "and named" says err "model-00001-of-00075.safetensors is there already"
exit $bad
