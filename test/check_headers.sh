#!/bin/bash
# Every header compiles alone; the public one also as C99 and C++17, with any compiler at hand, and keeps the rules of an
# interface that other languages can see.
set -u
cd "$(dirname "$0")/.." || exit 2
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
bad=0
complain() { echo "$1"; bad=1; }
header=include/kvcsa.h
strict='-Wall -Wextra -Wpedantic -Werror -fsyntax-only'

n=0
try() { # COMPILER LANGUAGE STANDARD FLAGS...
    local cc=$1 language=$2 standard=$3
    shift 3
    command -v "$cc" >/dev/null || return 0
    # Twice: the guard works.
    printf '#include <kvcsa.h>\n#include <kvcsa.h>\nkvcsa_status kv_probe(void);\nkvcsa_status kv_probe(void) { return KVCSA_OK; }\n' >"$tmp/probe"
    # shellcheck disable=SC2086
    "$cc" -x "$language" -std="$standard" $strict "$@" -Iinclude "$tmp/probe" || complain "$header: $cc -std=$standard"
    n=$((n + 1))
}
for cc in gcc clang; do
    try $cc c c11 -Wstrict-prototypes -Wmissing-prototypes -Wconversion
    try $cc c c99 -Wstrict-prototypes
done
for cc in g++ clang++; do
    try $cc c++ c++17
done
[ "$n" -ge 2 ] || complain "no compiler found to try $header with"

for file in src/*/*.h test/support/*.h; do
    [ -e "$file" ] || continue
    case $file in *v16.h) continue ;; esac # kernels: compiled inside the variant files of an instruction set
    # shellcheck disable=SC2086
    ${CC:-cc} -x c -std=c11 -D_GNU_SOURCE $strict -Wno-psabi -Wno-unused-function -Iinclude -Isrc -Itest -include "$file" /dev/null \
        2>"$tmp/err" || { complain "$file does not compile alone:"; head -n 5 "$tmp/err"; }
    guard=$(sed -n 's/^#ifndef \([A-Z0-9_]*\)$/\1/p' "$file" | head -n 1)
    [ -n "$guard" ] && grep -q "^#define $guard\$" "$file" || complain "$file has no include guard"
done
# Two headers with one guard hide each other.
sed -n 's/^#ifndef \(KVI_[A-Z0-9_]*_H\)$/\1/p' src/*/*.h | sort | uniq -d | sed 's/^/guard used twice: /' >"$tmp/twice"
[ -s "$tmp/twice" ] && { cat "$tmp/twice"; bad=1; }

# Rules of the interface, on the text without comments.
${CC:-cc} -std=c11 -fpreprocessed -dD -E -P -x c "$header" 2>/dev/null >"$tmp/text"
[ -s "$tmp/text" ] || complain "$header could not be read without comments"
grep -n '#include' "$tmp/text" | grep -vE '<(stddef|stdint)\.h>' && complain "$header may include stddef.h and stdint.h only"
grep -nwE 'bool|_Bool|long|short|FILE|va_list|union|inline|wchar_t|unsigned|static' "$tmp/text" |
    grep -v 'visibility' && complain "$header: types and words that do not cross the interface"
grep -nE 'enum +[a-z]+' "$tmp/text" && complain "$header: a named enum; use int32_t or uint32_t and plain constants"
grep -nE '\b(u?int[0-9]+_t|float|size_t) +[a-z_]+ *: *[0-9]+' "$tmp/text" && complain "$header: a bit-field"
grep -nE '^#define [A-Z_]+\(' "$tmp/text" && complain "$header: a macro that does work"

# Every function says who may call it and since when; every one that takes an error says which statuses.
awk '
    /\/\*\*/                 { doc = "" ; in_doc = 1 }
    in_doc                   { doc = doc $0 "\n" }
    /\*\//                   { in_doc = 0 }
    /^KVCSA_API /            { proto = $0; while (proto !~ /;/ && (getline line) > 0) proto = proto line
                               name = proto; sub(/ *\(.*/, "", name); sub(/.*[ *]/, "", name)
                               if (doc !~ /Thread: /) { print name " has no Thread: line"; e = 1 }
                               if (doc !~ /Since: /)  { print name " has no Since: line"; e = 1 }
                               if (proto ~ /kvcsa_error \*err/ && doc !~ /Status: /) { print name " has no Status: line"; e = 1 }
                               doc = ""; n++ }
    END { if (n == 0) { print "no function found"; e = 1 } exit e }' "$header" || bad=1

[ "$bad" -eq 0 ] && echo "headers stand alone ($n ways for the public one)"
exit "$bad"
