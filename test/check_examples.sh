#!/bin/bash
# The examples that check themselves, on the shipped model: test/check_examples.sh [BUILD [LIBS]]
#
# Each gives back all memory that it took, counted at the allocator hook (guest/balance.c).
# What examples/generate says is compared with the command in check_cli.sh, and it is built against an installed library in
# check_install.sh.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build} libs=${2:-lib}
tiny=(examples/models/tiny) # what examples are given first
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
bad=0
complain() { echo "$1"; bad=1; }
unset LD_PRELOAD

watch=(timeout 300 env LD_PRELOAD="$tmp/guest_balance.so" GUEST_BALANCE="$tmp/balance")
balanced() { # NAME: it left nothing of what it took
    grep -qE '^[1-9][0-9]* taken, 0 blocks of 0 bytes left$' "$tmp/balance" || complain "$1: $(cat "$tmp/balance")"
    rm -f "$tmp/balance"
}
cc="${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -Iinclude"
$cc -fPIC -shared -o "$tmp/guest_balance.so" test/guest/balance.c || exit 1
# It sees a model that stays.
printf '#include <kvcsa.h>\nint main(int n, char **args) { kvcsa_model *m = 0; return n != 2 || kvcsa_model_open(args[1], 0, &m, 0); }\n' |
    $cc -o "$tmp/leaks" -x c - -L"$libs" -lkvcsa -Wl,-rpath,"$(realpath "$libs")" || exit 1
"${watch[@]}" "$tmp/leaks" "$tiny" || complain "the program that leaks fails"
(balanced leaks) | grep -q '^leaks: .* [1-9][0-9]* bytes left$' || complain "a leak is not seen"

more=() # arguments behind the model
run() { # NAME PATTERN...: it succeeds, says nothing on stderr, and every pattern is a line of its output
    local name=$1 pattern
    shift
    "${watch[@]}" "$build/examples/$name" "${tiny[@]}" "${more[@]}" </dev/null >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        complain "$name failed with status $?"
    balanced "$name"
    [ -s "$tmp/$name.err" ] && { complain "$name complains:"; cat "$tmp/$name.err"; }
    for pattern; do
        grep -qE -- "$pattern" "$tmp/$name.out" || complain "$name: no line like '$pattern'"
    done
    [ "$bad" -eq 0 ] || cat "$tmp/$name.out"
}
"${watch[@]}" "$build/examples/generate" "$tiny" "the weather" 24 >/dev/null 2>&1 || complain "generate failed with status $?"
balanced generate

run share_prefix '^ +1 +[0-9]+ +0 +0 ' '^ +30 +[0-9]+ +[1-9][0-9]* ' '[1-9][0-9]* tokens pinned'
run branch '14 branches' '^Taken back'
# The same branch twice: forked, and after an undo.
forked=$(grep -m 1 '^"We turn back' "$tmp/branch.out")
undone=$(tail -n 1 "$tmp/branch.out" | sed 's/^ *//')
[ -n "$forked" ] && [ "$forked" = "$undone" ] || complain "branch: '$undone' after an undo, '$forked' in a fork"

run host_allocator '^after release +0 bytes' '"open the model" answers KVCSA_ERR_NOMEM' '"step" answers KVCSA_ERR_NOMEM' \
    '^memory again: the answer has 24 tokens' '^[1-9][0-9]* allocations were refused; 0 bytes are left'
run game_loop '^The captain is cut: [1-9]' ' 0 frames over the budget by our doing' 'while eleven waited$' \
    '^Computed again alone and in one piece, 12 of 12 are the same bits' ', 0 left after release'
more=("$tmp/tour.cache")
run desktop_notes '^First start: there is no snapshot' 'KVCSA_ERR_CORRUPT' 'KVCSA_ERR_FORMAT' '^First start .* times as fast' \
    '^0 bytes are left'
[ -e "$tmp/tour.cache" ] && complain "desktop_notes leaves its snapshot behind after the tour"
# Two starts that are two processes.
head -c 6000 examples/texts/moby-dick.txt >"$tmp/document.txt"
more=("$tmp/notes.cache" "$tmp/document.txt")
run desktop_notes '^The document is new' '^ +0 of [0-9]+ tokens loaded'
sed '1,/ computed in /d' "$tmp/desktop_notes.out" >"$tmp/answer"
run desktop_notes '^The document was read before' ', 0 computed in '
sed '1,/ computed in /d' "$tmp/desktop_notes.out" | cmp -s - "$tmp/answer" ||
    complain "desktop_notes: another answer at the second start"
[ -s "$tmp/answer" ] || complain "desktop_notes says nothing"
more=()

# A network of its own: no model is read.
model=("${tiny[@]}") tiny=()
run bring_your_own '^f32 entries: 4096 bytes a token' '^second +[0-9]+ +[1-9][0-9]* +[0-9]+ ' '^other weights +[0-9]+ +0$' \
    '^back, once more +[0-9]+ +0 +49 ' '^5 texts .*; 5 of them' '^0 bytes are left'
more=(q8_0)
run bring_your_own '^q8_0 entries: 1088 bytes a token' '^second +[0-9]+ +[1-9][0-9]* ' '^5 texts ' '^0 bytes are left'
more=() tiny=("${model[@]}")
"$build/examples/bring_your_own" fp5 >"$tmp/out" 2>"$tmp/err"
[ $? -eq 2 ] && grep -q '^usage: ' "$tmp/err" || complain "bring_your_own does not say what is wrong with a format"

# A wrong call is explained, as by any program.
for name in share_prefix branch host_allocator game_loop desktop_notes; do
    [ $name = desktop_notes ] && more=("$tmp/nothing.cache")
    "$build/examples/$name" "$tmp/nothing" "${more[@]}" >"$tmp/out" 2>"$tmp/err"
    [ $? -eq 1 ] && grep -q KVCSA_ERR_IO "$tmp/err" || complain "$name does not say what is wrong with a missing model"
done
[ "$bad" -eq 0 ] && echo "examples do what they say"
exit "$bad"
