#!/bin/bash
# The examples that check themselves, on the shipped model: test/check_examples.sh [BUILD]
#
# examples/generate is compared with the command in check_cli.sh, and built against an installed library in
# check_install.sh.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build}
tiny=examples/models/tiny
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
bad=0
complain() { echo "$1"; bad=1; }

run() { # NAME PATTERN...: it succeeds, says nothing on stderr, and every pattern is a line of its output
    local name=$1 pattern
    shift
    timeout 300 "$build/examples/$name" "$tiny" </dev/null >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        complain "$name failed with status $?"
    [ -s "$tmp/$name.err" ] && { complain "$name complains:"; cat "$tmp/$name.err"; }
    for pattern; do
        grep -qE -- "$pattern" "$tmp/$name.out" || complain "$name: no line like '$pattern'"
    done
    [ "$bad" -eq 0 ] || cat "$tmp/$name.out"
}
run share_prefix '^ +1 +[0-9]+ +0 +0 ' '^ +30 +[0-9]+ +[1-9][0-9]* ' '[1-9][0-9]* tokens pinned'
run branch '14 branches' '^Taken back'
# The same branch twice: forked, and after an undo.
forked=$(grep -m 1 '^"We turn back' "$tmp/branch.out")
undone=$(tail -n 1 "$tmp/branch.out" | sed 's/^ *//')
[ -n "$forked" ] && [ "$forked" = "$undone" ] || complain "branch: '$undone' after an undo, '$forked' in a fork"

# A wrong call is explained, as by any program.
for name in share_prefix branch; do
    "$build/examples/$name" "$tmp/nothing" >"$tmp/out" 2>"$tmp/err"
    [ $? -eq 1 ] && grep -q KVCSA_ERR_IO "$tmp/err" || complain "$name does not say what is wrong with a missing model"
done
[ "$bad" -eq 0 ] && echo "examples do what they say"
exit "$bad"
