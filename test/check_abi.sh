#!/bin/bash
# Compares the library with the dump of the last release (lib/kvcsa.abi); needs libabigail.
#
#   test/check_abi.sh [--update] [BUILD] [LIBS]
#
# Any difference that is not in lib/kvcsa.abignore fails, whatever abidiff's status bits call it: it reports the growth of
# a struct that callers embed as "compatible".
set -u
cd "$(dirname "$0")/.." || exit 2
update=0
[ "${1:-}" = --update ] && { update=1; shift; }
libs=${2:-${1:-lib}}
so=$libs/libkvcsa.so

if ! command -v abidw >/dev/null || ! command -v abidiff >/dev/null; then
    echo "skipped: abidw and abidiff (package abigail-tools) are not installed"
    exit 77
fi
[ -e "$so" ] || { echo "$so is not built"; exit 1; }
if [ "$update" = 1 ]; then
    # Places stay in (relative ones: -ffile-prefix-map): without them abidiff takes every type for a private one and sees nothing.
    abidw --no-comp-dir-path --no-corpus-path --headers-dir include --out-file lib/kvcsa.abi "$so" || exit 1
    echo "wrote lib/kvcsa.abi"
    exit 0
fi
[ -e lib/kvcsa.abi ] || { echo "lib/kvcsa.abi is missing; see docs/release.md"; exit 1; }
abidiff --no-added-syms --headers-dir2 include --suppressions lib/kvcsa.abignore lib/kvcsa.abi "$so"
rc=$?
[ "$rc" -eq 0 ] && { echo "no difference from lib/kvcsa.abi"; exit 0; }
echo "abidiff's status is $rc: the interface has changed"
exit 1
