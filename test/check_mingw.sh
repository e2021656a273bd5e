#!/bin/bash
# The build for Windows x86-64 under wine: test/check_mingw.sh [BUILD LIBS [MINGW]]
#
# MINGW is made by `make mingw`. The DLL exports what lib/kvcsa.map names and imports nothing but what Windows has. Command and example
# run with the DLL, a program with the static library alone, and all answer as the Linux build does. Then the tests that are built.
# Ends with the line "N passed, N failed, N skipped" of those. 77 = wine or the build is missing.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build} mingw=${3:-${1:-build}/mingw}
cc=${MINGW_CC:-x86_64-w64-mingw32-gcc-posix}
[ -e "$mingw/kvcsa.exe" ] || { echo "$mingw is not built: make mingw"; exit 77; }
command -v wine >/dev/null || { echo "wine is missing: apt-get install -y --no-install-recommends wine wine64"; exit 77; }
tmp=$(mktemp -d) || exit 2
export WINEPREFIX=$tmp/wine WINEDEBUG=-all
# Reading a snapshot directory leaves a lock file in it there.
trap 'wineserver -k 2>/dev/null; rm -rf "$tmp"; find test/golden -name kvcsa.lock -delete' EXIT
bad=0
complain() { echo "$1"; bad=1; }
tiny=examples/models/tiny

objdump=${cc%-gcc*}-objdump
dll=$(ls "$mingw"/lib/libkvcsa-*.dll)
"$objdump" -p "$dll" | sed -n 's/^.*\[ *[0-9]*\].* \([A-Za-z_0-9]*\)$/\1/p' | grep '[a-z]_' | sort -u >"$tmp/exports"
sed -n 's/^ *\(kvcsa_[a-z0-9_]*\);.*/\1/p' lib/kvcsa.map | sort | diff - "$tmp/exports" >"$tmp/diff" ||
    { complain "the DLL exports other names than lib/kvcsa.map:"; head "$tmp/diff"; }
"$objdump" -p "$dll" | sed -n 's/^.*DLL Name: //p' | grep -viE '^(kernel32|msvcrt|advapi32)\.dll$' && complain "the DLL needs more than Windows has"

run() { # NAME COMMAND...: into $tmp/NAME.out, without the carriage returns of text streams
    local name=$1
    shift
    timeout 300 "$@" </dev/null >"$tmp/raw" 2>"$tmp/$name.err" || { complain "$name fails with status $?:"; tail -n 5 "$tmp/$name.err"; }
    tr -d '\r' <"$tmp/raw" >"$tmp/$name.out"
}
same() { # NAME COMMAND-OF-THE-TREE...
    local name=$1
    shift
    "$@" </dev/null >"$tmp/linux.out" 2>/dev/null
    cmp -s "$tmp/linux.out" "$tmp/$name.out" && [ -s "$tmp/$name.out" ] || complain "$name: Windows and Linux answer differently"
}
run first "$mingw/kvcsa" version
same first "$build/kvcsa" version
run shared "$mingw/examples/generate" $tiny "the weather" 24
same shared "$build/examples/generate" $tiny "the weather" 24
run prefix "$mingw/examples/share_prefix" $tiny
run branch "$mingw/examples/branch" $tiny
same branch "$build/examples/branch" $tiny
run tokenize "$mingw/kvcsa" tokenize $tiny -p "häßlich 東京"
same tokenize "$build/kvcsa" tokenize $tiny -p "häßlich 東京"
run plan "$mingw/kvcsa" plan test/data/v41-flash-config.json -n 1000000 --json
same plan "$build/kvcsa" plan test/data/v41-flash-config.json -n 1000000 --json
# Folders are made, files written and renamed, names are UTF-8.
run synth "$mingw/kvcsa" synth test/data/synth-small.json "$tmp/gemälde" -q
"$build/kvcsa" synth test/data/synth-small.json "$tmp/linux" -q >/dev/null 2>&1
diff -r "$tmp/linux" "$tmp/gemälde" >/dev/null || complain "synth writes other files"
"$mingw/kvcsa" info "$tmp/none" >/dev/null 2>"$tmp/err" && complain "a missing model is no error"
grep -q KVCSA_ERR_IO "$tmp/err" || complain "a missing model is not explained: $(cat "$tmp/err")"

# The static library by itself.
$cc -O1 -static -Iinclude -o "$tmp/static.exe" examples/generate.c "$mingw/lib/libkvcsa.a" -L"$build/windeps/lib" \
    -ljansson -lpcre2-8 -lutf8proc -lxxhash -lm -pthread || complain "no program with the static library"
"$objdump" -p "$tmp/static.exe" | grep -i 'DLL Name: *libkvcsa' && complain "the static program needs the DLL"
run static wine "$tmp/static.exe" $tiny "the weather" 24
cmp -s "$tmp/shared.out" "$tmp/static.out" || complain "shared and static answer differently"
[ "$bad" -eq 0 ] || exit 1
echo "DLL, command, examples and a static program run as on Linux"

set --
for program in "$mingw"/test/test_*.exe; do
    [ -e "$program" ] || continue
    program=${program##*/}
    set -- "$@" "${program%.exe}"
done
[ $# -eq 0 ] || TEST_JOBS=${TEST_JOBS:-2} test/run_tests.sh --no-cuda --no-scripts --build "$mingw" "$@"
