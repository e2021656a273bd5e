#!/bin/bash
# Makes the reference of include/kvcsa.h: without a warning, with every function, and with nothing of the header's own form left
# over. Needs doxygen and python3, else it is skipped.
#
#   test/check_reference.sh [BUILD LIBS]
set -u
cd "$(dirname "$0")/.." || exit 2
for tool in doxygen python3; do
    command -v "$tool" >/dev/null || { echo "no $tool: the reference was not made"; exit 77; }
done
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
bad=0
complain() { echo "$1"; bad=1; }

python3 docs/doxygen/filter.py --check include/kvcsa.h >"$tmp/said" || { complain "comments in include/kvcsa.h:"; cat "$tmp/said"; }
DOC_VERSION=check DOC_OUT=$tmp/doc
export DOC_VERSION DOC_OUT
mkdir "$DOC_OUT"
doxygen docs/doxygen/Doxyfile >"$tmp/out" 2>&1 || complain "doxygen fails or warns:"
[ -s "$tmp/out" ] && { complain "doxygen says:"; cat "$tmp/out"; }

functions() { tr '\n' ' ' <include/kvcsa.h | grep -oE 'KVCSA_API [^;(]*\bkvcsa_[a-z0-9_]+ ?\(' | grep -oE 'kvcsa_[a-z0-9_]+ ?\($' | tr -d ' ('; }
functions | sort >"$tmp/declared"
[ "$(wc -l <"$tmp/declared")" -gt 60 ] || complain "only $(wc -l <"$tmp/declared") functions were found in the header"
awk '/<compound kind="file">/ { on = 1 } /<\/compound>/ { on = 0 } on && /kind="function"/ { f = 1 } f && /<name>/ { print; f = 0 }' \
    "$DOC_OUT/kvcsa.tag" | sed -E 's/.*<name>|<\/name>.*//g' | sort >"$tmp/described"
diff "$tmp/declared" "$tmp/described" >"$tmp/diff" || { complain "functions of the header (<) and of the reference (>) differ:"; cat "$tmp/diff"; }
# Each function has its threads and its release; labels have become paragraphs.
cat "$DOC_OUT"/html/group__*.html >"$tmp/html"
for label in Thread Since; do
    [ "$(grep -o "<dt>$label</dt>" "$tmp/html" | wc -l)" -ge "$(wc -l <"$tmp/declared")" ] || complain "functions without '$label' in the reference"
done
sed 's/<[^>]*>//g' "$tmp/html" | grep -nE '(^|[ .])(Status|Thread|Owner|Source|Since|Waits): ' && complain "the lines above kept the form of the header"
grep -nE '@(par|param|since|defgroup|addtogroup)\b|\\(par|param)\b' "$tmp/html" && complain "the lines above show commands of doxygen"
[ "$bad" -eq 0 ] && echo "$(wc -l <"$tmp/declared") functions in the reference"
exit "$bad"
