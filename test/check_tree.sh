#!/bin/bash
# The tree itself: nothing of a machine in it, unique names, the version in one place, commands of the documents that exist.
set -u
cd "$(dirname "$0")/.." || exit 2
bad=0
unset MAKEFLAGS MFLAGS MAKELEVEL
complain() { echo "$1"; bad=1; }
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT

# Files of the project: git knows them; without git (a source archive) all but what is built.
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -co --exclude-standard | while IFS= read -r f; do [ -f "$f" ] && echo "$f"; done >"$tmp/files"
else
    find . -type f -not -path './build/*' -not -path './.git/*' -not -name '*.so*' -not -name '*.a' | sed 's|^\./||' >"$tmp/files"
fi
[ -s "$tmp/files" ] || complain "no file found"
grep -vE '\.(safetensors|png|gz)$|^test/fuzz/corpus/' "$tmp/files" >"$tmp/text"

find_text() { # PATTERN WHY [EXCEPT]: the patterns are written so that this file does not match itself
    tr '\n' '\0' <"$tmp/text" | xargs -0 grep -nIHE -- "$1" | grep -vE -- "${3:-^$}" >"$tmp/found"
    [ -s "$tmp/found" ] && { complain "$2:"; head -n 8 "$tmp/found"; }
}
find_text '(^|[^a-zA-Z0-9_.$)}])/(w[o]rk|ro[o]t|ho[m]e/[a-z]+|Us[e]rs/[a-z]+)/' 'a path of some machine'
find_text '(py[p]i\.org|pythonho[s]ted|deb\.deb[i]an\.org|npm[j]s\.|crates[.]io/api|proxy\.gol[a]ng|rubyg[e]ms\.org|mav[e]n\.org)' \
    'the host of a package registry'
find_text '^(<<<<<<<|>>>>>>>) ' 'a merge that was not finished'
find_text 'TBD-ME[A]SURE' 'a figure that nobody has measured yet'

# One word, one file: names are unique in all of src.
grep -E '^(src|cuda|include)/' "$tmp/files" | sed 's|.*/||' | sort | uniq -d >"$tmp/twice"
[ -s "$tmp/twice" ] && { complain "file names that occur twice in the sources:"; cat "$tmp/twice"; }

# The version is written in the header; CHANGELOG tells of releases, documents may quote it.
number() { sed -n "s/^#define KVCSA_$1  *\([0-9]*\).*/\1/p" include/kvcsa.h; }
version=$(number VERSION_MAJOR).$(number VERSION_MINOR).$(number VERSION_PATCH)
[ "$(number VERSION_NUMBER)" -eq $(($(number VERSION_MAJOR) * 10000 + $(number VERSION_MINOR) * 100 + $(number VERSION_PATCH))) ] ||
    complain "KVCSA_VERSION_NUMBER does not fit KVCSA_VERSION_MAJOR, MINOR and PATCH"
grep -E '^(src|include|cuda|examples|test|lib|\.ci)/[^ ]*\.(c|h|cu|cuh|sh|py|rs|toml|in|map)$|^Makefile$|^kvcsa\.pc\.in$|^\.ci/run$' "$tmp/text" |
    grep -v '^examples/models/' >"$tmp/code"
tr '\n' '\0' <"$tmp/code" | xargs -0 grep -nHE "(^|[^0-9.])${version//./\\.}([^0-9.]|\$)" |
    grep -vE '^include/kvcsa\.h:[0-9]+:.*for example' >"$tmp/found"
[ -s "$tmp/found" ] && { complain "the version $version is written outside include/kvcsa.h:"; cat "$tmp/found"; }
grep -qE "^## \[$version\]" CHANGELOG.md || complain "CHANGELOG.md has no entry for $version"
grep -qE "^## \[Unreleased\]" CHANGELOG.md || complain "CHANGELOG.md has no [Unreleased] head"
grep -qE "^KVCSA_$(number VERSION_MAJOR)\.$(number VERSION_MINOR) \{" lib/kvcsa.map ||
    complain "lib/kvcsa.map has no node for $(number VERSION_MAJOR).$(number VERSION_MINOR)"
awk '/^## \[[0-9]/ { if (release && !abi) { print release " has no ABI: line"; e = 1 } release = $2; abi = 0 }
     /^ABI: /      { abi = 1 }
     END           { if (release && !abi) { print release " has no ABI: line"; e = 1 } exit e }' CHANGELOG.md || bad=1

# Commands that the documents give exist.
make -pRrq : 2>/dev/null | sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' | sort -u >"$tmp/targets"
sed -n 's/^ *make  *\([a-z][a-z-]*\).*/\1/p' README.md docs/*.md | sort -u >"$tmp/commands"
grep -hoE '`make [a-z][a-z -]*' README.md CHANGELOG.md docs/*.md lib/*.md | sed 's/^`make //' | tr ' ' '\n' | grep . >>"$tmp/commands"
while read -r word; do
    grep -qx -- "$word" "$tmp/targets" || complain "a document says 'make $word', which the Makefile does not have"
done < <(sort -u "$tmp/commands")
for word in demo check; do
    grep -qE "make $word\b" README.md || complain "README.md does not say 'make $word'"
    grep -qx "$word" "$tmp/targets" || complain "the Makefile has no target $word"
done
# make help names every target that a person starts.
make -s help >"$tmp/help"
sed -n '/^\.PHONY:/,/[^\\]$/p' Makefile | tr -d '\\' | tr ' ' '\n' | grep -E '^[a-z]' | grep -vE '^(all|fuzz-run)$' >"$tmp/phony"
while read -r word; do
    grep -qE "(make |[a-z] )$word( |\$)" "$tmp/help" || complain "make help does not tell of '$word'"
done <"$tmp/phony"

# Files that documents point to exist (links in brackets).
for doc in README.md docs/*.md lib/README.md; do
    awk '/^ *```/ { code = !code } !code' "$doc" | grep -oE '\]\([^)#: ]+' | sed 's/^](//' | while read -r link; do
        [ -e "$(dirname "$doc")/$link" ] || echo "$doc points to $link, which does not exist"
    done
done >"$tmp/links"
[ -s "$tmp/links" ] && { complain "dead links:"; cat "$tmp/links"; }

# What is built stays out of the tree, and so do very large files.
grep -E '\.(o|d|so|a|gcda|gcno|pyc)$|\.so\.[0-9]|^build/' "$tmp/files" && complain "built files in the tree"
while IFS= read -r f; do
    [ "$(stat -c %s "$f")" -le 9437184 ] || complain "$f is larger than 9 MiB; make it with a script"
done <"$tmp/files"
grep -E '^(src|include)/.*\.[ch]$' "$tmp/text" | tr '\n' '\0' | xargs -0 grep -nHP '\t| +$' | head -n 5 >"$tmp/found"
[ -s "$tmp/found" ] && { complain "tabs or blanks at the end of a line:"; cat "$tmp/found"; }

[ "$bad" -eq 0 ] && echo "$(wc -l <"$tmp/files") files, version $version"
exit "$bad"
