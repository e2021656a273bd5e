#!/bin/bash
# A guest in foreign processes, seen from outside (rows 45 and 50 of the table in test/README.md; from inside: test_api_guest*.c).
#
#   test/check_guest.sh [BUILD LIBS]
#
#   nothing that a guest must not call is called: environment, output, locale, signals, floating-point mode, the end of the process,
#   by us or by the libraries we bring with us (guest/trap.c); nothing is written to the standard output;
#   a host with a decimal comma gets the same tokens; so does one that has the library twice, static with its names shown and shared.
set -u
cd "$(dirname "$0")/.." || exit 2
libs=${2:-lib}
model=examples/models/tiny
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
bad=0
complain() { echo "$1"; bad=1; }
die() { echo "$1"; exit 1; }
so=$(realpath "$libs/libkvcsa.so")
[ -e "$so" ] && [ -e "$libs/libkvcsa.a" ] || die "$libs/libkvcsa.so or $libs/libkvcsa.a is not built"
unset LD_PRELOAD GUEST_TRAP LOCPATH
# -fno-builtin and no fortification: calls are what they are called.
cc="${CC:-cc} -std=c11 -D_GNU_SOURCE -U_FORTIFY_SOURCE -O1 -g -Wall -Wextra -Werror -fno-builtin -Iinclude -Itest"
$cc -fPIC -shared -o "$tmp/guest_trap.so" test/guest/trap.c || die "the trap does not build"
$cc -fPIC -shared -o "$tmp/bad_guest.so" test/guest/bad_guest.c || die "the bad guest does not build"
$cc -o "$tmp/host" test/guest/host.c -L"$libs" -lkvcsa -Wl,-rpath,"$(realpath "$libs")" || die "the host does not build"
$cc -rdynamic -o "$tmp/host_static" test/guest/host.c "$libs/libkvcsa.a" -ljansson -lpcre2-8 -lutf8proc -lxxhash -lm -pthread -ldl ||
    die "the static host does not build"

host() { # NAME COMMAND...: output in NAME.out and NAME.err
    local name=$1 rc
    shift
    timeout 120 "$@" </dev/null >"$tmp/$name.out" 2>"$tmp/$name.err"
    rc=$?
    [ "$rc" -eq 0 ] || { complain "$name ends with status $rc:"; head -n 5 "$tmp/$name.err"; }
    return "$rc"
}

# The trap sees what it is for.
host bad env LD_PRELOAD="$tmp/guest_trap.so" GUEST_TRAP="$tmp/bad.trap" "$tmp/host" other "$tmp/bad_guest.so"
for call in getenv setenv setlocale fesetround chdir umask signal sigaction printf fprintf write exit; do
    grep -q "^bad_guest.so calls $call(" "$tmp/bad.trap" || complain "the trap does not see $call"
done
# And nothing of a good guest.
host trapped env LD_PRELOAD="$tmp/guest_trap.so" GUEST_TRAP="$tmp/good.trap" "$tmp/host" tour $model "$tmp/snapshot" "$tmp/trapped"
[ -e "$tmp/good.trap" ] && { complain "a guest must not:"; sort "$tmp/good.trap" | uniq -c | head -n 20; }
[ -s "$tmp/trapped.out" ] || [ -s "$tmp/trapped.err" ] && complain "the guest wrote to the host's standard output"
# Not even in an empty environment, where each of these would be looked for.
host bare env -i "$tmp/host" tour $model "$tmp/snapshot" "$tmp/bare"
cmp -s "$tmp/trapped" "$tmp/bare" || complain "the environment changes the tokens"

# Twice in one process: the static one shows all its names to the loader, the shared one must keep to its own.
host two "$tmp/host_static" two $model "$so" "$tmp/two"
[ "$(sort -u "$tmp/two")" = "$(cat "$tmp/trapped")" ] && [ "$(wc -l <"$tmp/two")" -eq 2 ] || complain "two copies give other tokens"

# A decimal comma, if this system can make a locale that has one.
said="no locale with a decimal comma here: that part was left out"
if localedef -i de_DE -f UTF-8 "$tmp/de_DE.UTF-8" >"$tmp/localedef" 2>&1; then
    host comma env LOCPATH="$tmp" "$tmp/host" tour $model "$tmp/snapshot" "$tmp/comma" de_DE.UTF-8
    cmp -s "$tmp/trapped" "$tmp/comma" || complain "the locale of the host changes the tokens"
    said="a decimal comma too"
fi
[ "$bad" -eq 0 ] && echo "a good guest: $(head -c 40 "$tmp/trapped")...; $said"
exit "$bad"
