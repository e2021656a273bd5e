#!/bin/bash
# The example whose attention is a custom operator of ggml, where ggml is: test/check_ggml.sh [BUILD LIBS]
#
# It compares itself with ggml's own attention; here its lines are read once more, and it is built again with faults that it has to
# see. ggml is found by pkg-config, or by GGML_CFLAGS and GGML_LIBS, which make passes on.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build} libs=${2:-lib}
if [ -z "${GGML_LIBS:-}" ]; then
    pkg-config --exists 'ggml >= 0.9' 2>/dev/null ||
        { echo "skipped: no ggml 0.9 or later, neither by pkg-config nor by GGML_CFLAGS and GGML_LIBS"; exit 77; }
    GGML_CFLAGS=$(pkg-config --cflags ggml) GGML_LIBS="$(pkg-config --libs ggml) -lggml-base"
fi
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
bad=0
complain() { echo "$1"; bad=1; }

unset MAKEFLAGS MFLAGS MAKELEVEL
program=$build/examples/ggml_attention
make -s B="$build" L="$libs" GGML_CFLAGS="${GGML_CFLAGS:-}" GGML_LIBS="$GGML_LIBS" "$program" >"$tmp/log" 2>&1 ||
    { echo "$program was not built:"; cat "$tmp/log"; exit 1; }
timeout 600 "$program" </dev/null >"$tmp/out" 2>"$tmp/err" || complain "ggml_attention failed with status $?"
for line in '^ggml [0-9.]+, [1-9]' '^the first +0 +0 +[1-9]' '^no chunk is open +KVCSA_ERR_ARG' '^another, same prompt +0 +[1-9]' \
    '^the first once more +0 +[1-9]' '^with q8_0 entries +0 +0 ' '^a fork in its question +[1-9]' '^the first goes on +[1-9]' \
    '^the other, rewound +[1-9]' ' and 0 after release$' '^nothing differs$'; do
    grep -qE -- "$line" "$tmp/out" || complain "no line like '$line'"
done
[ "$(grep -c ' 24 of 24 tokens' "$tmp/out")" -ge 6 ] || complain "six sessions with f32 entries must write what ggml writes"
[ "$bad" -eq 0 ] || cat "$tmp/out" "$tmp/err"

# A comparison that sees nothing is none: each fault makes it fail, by what is compared.
rpath=$(sed -n 's/^.*-L *\([^ ]*\).*/\1/p' <<<"$GGML_LIBS")
planted() { # WHAT SED
    sed -e "$2" examples/ggml_attention.c >"$tmp/planted.c"
    cmp -s examples/ggml_attention.c "$tmp/planted.c" && complain "nothing to plant: $1"
    # shellcheck disable=SC2086
    ${CC:-cc} -O1 -std=c11 -D_GNU_SOURCE -Iinclude ${GGML_CFLAGS:-} -o "$tmp/planted" "$tmp/planted.c" -L"$libs" -lkvcsa $GGML_LIBS -lm \
        "-Wl,--disable-new-dtags,-rpath,$(realpath "$libs")${rpath:+:$rpath}" >"$tmp/log" 2>&1 ||
        { complain "$1 does not build:"; cat "$tmp/log"; return; }
    timeout 600 "$tmp/planted" </dev/null >"$tmp/out" 2>&1
    if [ $? -ne 1 ] || ! grep -q '^something differs$' "$tmp/out"; then
        complain "$1 is not seen"
        cat "$tmp/out"
    fi
}
planted "another scale" 's/^\( *\)attention\.n_heads = .*/&\n\1attention.scale = 0.17f;/'
planted "values in the place of keys" 's/rows_of(k);/rows_of(v);/'

[ "$bad" -eq 0 ] && echo "a network in ggml writes the same with its cache here; planted faults are seen"
exit "$bad"
