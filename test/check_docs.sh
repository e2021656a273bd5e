#!/bin/bash
# Holds the documentation to the tree: test/check_docs.sh [BUILD LIBS]
#
#   - relative links lead to files, and to headings of them; files that are named in `code` exist; the header's "Source:" too
#   - every command line, of the manual page too, is accepted by the command's own parser
#   - what is shown below `$ kvcsa plan` and `$ kvcsa cost` is what they print
#   - C programs in the guides build without a warning, run, and print what stands below them
#   - the manual page has every command and every option that the help has, and no others; mandoc and man find no fault, where
#     they are installed
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build} libs=${2:-lib}
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
kvcsa=$(realpath "$build/kvcsa") || exit 2
bad=0 n_links=0 n_files=0 n_lines=0 n_shown=0 n_programs=0
complain() { echo "$1"; bad=1; }
mapfile -t pages < <(find . \( -path ./.git -o -path ./build -o -name target -o -name node_modules \) -prune -o -name '*.md' -print |
    sed 's|^\./||' | sort)

# ---------------------------------------------------------------- links and names of files

anchors() { # PAGE: its headings as links name them
    awk '/^ *```/ { code = !code } !code && /^#+ /' "$1" | sed -E 's/^#+ +//; s/[`*]//g' | tr '[:upper:]' '[:lower:]' |
        sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

check_links() { # PAGE
    local page=$1 dir target file
    dir=$(dirname "$page")
    while IFS= read -r target; do
        case $target in *://* | mailto:*) continue ;; esac
        n_links=$((n_links + 1))
        file=${target%%#*}
        file=${file:+$dir/$file}
        file=${file:-$page}
        [ -e "$file" ] || { complain "$page: the link $target leads nowhere"; continue; }
        case $target in
        *#*) anchors "$file" | grep -qxF -- "${target#*#}" || complain "$page: $file has no heading #${target#*#}" ;;
        esac
    done < <(awk '/^ *```/ { code = !code } !code && !/^    /' "$page" | grep -oE '\]\([^) ]+\)' | sed -E 's/^\]\(|\)$//g')
}

check_files() { # PAGE: `path/name.ext` from the root, the page or a room; `name.ext` anywhere
    local page=$1 word
    while IFS= read -r word; do
        n_files=$((n_files + 1))
        if [[ $word == */* ]]; then
            for from in . "$(dirname "$page")" src test cuda; do [ -e "$from/$word" ] && continue 2; done
        else
            grep -qxF -- "$word" "$tmp/names" && continue
        fi
        complain "$page: there is no file $word"
    done < <(awk '/^ *```/ { code = !code } !code && !/^    /' "$page" | grep -oE '`[A-Za-z0-9_./-]+\.(c|h|hpp|cc|cu|cuh|sh|py|md|rs|map|1)`' |
        tr -d '`' | grep -vE '(^|/)([A-Z]+\.|_)' | sort -u)
}

find . \( -path ./.git -o -path ./build \) -prune -o -type f -print | sed 's|.*/||' | sort -u >"$tmp/names"
printf '%s\n' llama.h v41_oracle.py >>"$tmp/names" # of others
for page in "${pages[@]}"; do
    check_links "$page"
    [ "$page" = CHANGELOG.md ] || check_files "$page" # it speaks of what was, too
done
# Every page of docs is in its index.
for page in docs/*.md; do
    [ "$page" = docs/README.md ] || grep -qF "](${page#docs/})" docs/README.md || complain "docs/README.md does not name $page"
done
# `docs/formats.md "Snapshot"` in the header: a page, and a heading of it.
while IFS= read -r source; do
    page=${source%% *}
    heading=${source#*\"}
    heading=${heading%\"}
    [ -e "$page" ] || { complain "include/kvcsa.h names $page"; continue; }
    n_links=$((n_links + 1))
    grep -qE "^#+ $heading\$" "$page" || complain "include/kvcsa.h: $page has no heading \"$heading\""
done < <(tr '\n' ' ' <include/kvcsa.h | sed 's/ \* / /g; s/  */ /g' | grep -oE 'docs/[a-z]+\.md "[^"]+"' | sort -u)

# ---------------------------------------------------------------- command lines

# Lines of code and `code` that begin with the command, continued lines joined; what a shell would take away is cut off.
command_lines() { # PAGE
    {
        awk '/\\$/ { sub(/ *\\$/, " "); held = held $0; next } { print held $0; held = "" }' "$1" |
            sed -nE 's/^ {4,}(\$ )?(build\/)?(kvcsa [a-z-].*)/\3/p; s/^(\$ )?(build\/)?(kvcsa [a-z]+ .*)/\3/p; s/^\.Dl (kvcsa .*)/\1/p' |
            sed 's/\\(dq/"/g'
        grep -v '^    ' "$1" | grep -oE '`(build/)?kvcsa [a-z-][^`]*`' | sed -E 's/^`(build\/)?|`$//g'
    } | sed -E 's/ +(\||&&|>|#|;) .*//; s/   +.*//'
}

accepted() { # PAGE LINE
    local page=$1 line=$2
    n_lines=$((n_lines + 1))
    case $line in
    "kvcsa help"* | "kvcsa version" | "kvcsa --version") line=${line/ COMMAND/ run} ;;
    *) line="$line --help" ;;
    esac
    # N and the like stand for numbers. xargs splits at blanks and quotes as a shell does, and runs nothing but the command.
    sed -E 's/^kvcsa //; s/ (N|TOKENS|BYTES)( |$)/ 1\2/g' <<<"$line" | xargs "$kvcsa" >"$tmp/out" 2>"$tmp/err" ||
        complain "$page: '$line' is not accepted: $(head -n 1 "$tmp/err")"
}
for page in "${pages[@]}" docs/kvcsa.1; do
    while IFS= read -r line; do accepted "$page" "$line"; done < <(command_lines "$page" | sort -u)
done
"$kvcsa" help >"$tmp/overview"
mapfile -t commands < <(sed -nE 's/^  kvcsa ([a-z]+)( .*|$)/\1/p' "$tmp/overview" | sort -u)
[ ${#commands[@]} -ge 12 ] || complain "kvcsa help names ${#commands[@]} commands"
for name in "${commands[@]}"; do
    while IFS= read -r line; do accepted "kvcsa help $name" "$line"; done < <("$kvcsa" help "$name" |
        awk '/^Examples?:/ { on = 1; next } on' | awk '/\\$/ { sub(/ *\\$/, " "); held = held $0; next } { print held $0; held = "" }' |
        sed -nE 's/^ *(kvcsa .*)/\1/p' | sed -E 's/ +(\||&&) .*//')
done
# The parser is what says no: a wrong line must not pass.
"$kvcsa" run model --no-such-option --help >/dev/null 2>&1 && complain "kvcsa accepts an option that does not exist"

# ---------------------------------------------------------------- what commands print

# Each line below `$ kvcsa plan|cost ...` stands in what the command prints, in this order; "..." is anything.
shown() { # PAGE
    awk -v out="$tmp/shown" '
        /^    \$ kvcsa (plan|cost) / { on = 1; n++; line = substr($0, 7); more = line ~ /\\$/; sub(/ *\\$/, " ", line)
                                      if (!more) print line > (out "." n ".line"); next }
        on && more                  { line = line $0; more = line ~ /\\$/; sub(/ *\\$/, " ", line)
                                      if (!more) print line > (out "." n ".line"); next }
        on && /^    \$ /            { on = 0 }
        on && /^ *$/                { next }
        on && !/^    /              { on = 0 }
        on                          { sub(/^    /, ""); print > (out "." n ".text") }
        END                         { print n + 0 }' "$1"
}
for page in "${pages[@]}"; do
    rm -f "$tmp"/shown.*
    for ((i = 1, n = $(shown "$page"); i <= n; i++)); do
        n_shown=$((n_shown + 1))
        sed 's/^kvcsa //' "$tmp/shown.$i.line" | xargs "$kvcsa" >"$tmp/out" 2>"$tmp/err" ||
            complain "$page: '$(cat "$tmp/shown.$i.line")' fails: $(head -n 1 "$tmp/err")"
        [ -s "$tmp/shown.$i.text" ] || { complain "$page: nothing is shown of '$(cat "$tmp/shown.$i.line")'"; continue; }
        awk 'NR == FNR { printed[++n] = $0; next }
             $0 == "..." { next }
             { for (at++; at <= n && printed[at] != $0; at++) ; if (at > n) { print; exit 1 } }' \
            "$tmp/out" "$tmp/shown.$i.text" >"$tmp/first" ||
            complain "$page: '$(cat "$tmp/shown.$i.line")' does not print (there): $(cat "$tmp/first")"
    done
done

# ---------------------------------------------------------------- programs

# ```c blocks with a main; an indented block right behind one is what it prints.
programs() { # PAGE
    awk -v out="$tmp/program" '
        /^```c$/          { n++; code = 1; behind = 0; next }
        code && /^```$/   { code = 0; behind = 1; next }
        code              { print > (out "." n ".c"); next }
        behind && /^ *$/  { held = held "\n"; next }
        behind && /^    / { printf "%s%s\n", started[n] ? held : "", substr($0, 5) > (out "." n ".text"); started[n] = 1; held = ""; next }
                          { behind = 0; held = "" }
        END               { print n + 0 }' "$1"
}
mkdir "$tmp/work" && ln -s "$PWD/examples" "$PWD/test" "$tmp/work/"
for page in README.md docs/*.md; do
    rm -f "$tmp"/program.*
    for ((i = 1, n = $(programs "$page"); i <= n; i++)); do
        grep -q 'int main(' "$tmp/program.$i.c" || continue
        n_programs=$((n_programs + 1))
        # shellcheck disable=SC2086
        ${CC:-cc} ${CFLAGS:-} -std=c11 -Wall -Wextra -Werror -Iinclude -o "$tmp/program" "$tmp/program.$i.c" -L"$libs" -lkvcsa \
            -Wl,-rpath,"$(realpath "$libs")" 2>"$tmp/err" || { complain "$page: program $i does not build: $(head -n 3 "$tmp/err")"; continue; }
        (cd "$tmp/work" && timeout 120 "$tmp/program") </dev/null >"$tmp/out" 2>"$tmp/err" ||
            complain "$page: program $i fails: $(head -n 1 "$tmp/err")"
        [ -s "$tmp/out" ] || complain "$page: program $i prints nothing"
        if [ -e "$tmp/program.$i.text" ]; then
            diff "$tmp/program.$i.text" "$tmp/out" >"$tmp/diff" || { complain "$page: program $i prints something else:"; cat "$tmp/diff"; }
        fi
    done
done
[ "$(find "$tmp/work" -type f | wc -l)" -eq 0 ] || complain "a program of the guides leaves files behind"

# ---------------------------------------------------------------- the manual page

section() { awk -v name="$1" '/^\.S[sh] / { on = $0 == ".Ss " name } on' docs/kvcsa.1; }
for name in "${commands[@]}"; do
    case $name in help | version) continue ;; esac
    grep -q "^\.Cm $name\$" docs/kvcsa.1 || complain "docs/kvcsa.1 has no synopsis of $name"
    section "$name" >"$tmp/section"
    [ -s "$tmp/section" ] || { complain "docs/kvcsa.1 has no section on $name"; continue; }
    while IFS= read -r option; do
        grep -qE -- "^\.It.* Fl -?${option#-}( |\$)" "$tmp/section" || complain "docs/kvcsa.1: $name lacks -$option"
    done < <("$kvcsa" help "$name" | awk '/^(Examples?:|SETTING is)/ { exit } 1' | grep -oE '(^|[ [])--?[a-z][a-z-]*' | tr -d ' [' | sed 's/^-//' | sort -u)
    while IFS= read -r option; do
        "$kvcsa" "$name" "-$option" 1 --help >"$tmp/out" 2>&1
        grep -q 'unknown option' "$tmp/out" && complain "docs/kvcsa.1: $name has no option -$option"
    done < <(grep '^\.It Fl' "$tmp/section" | grep -oE 'Fl [a-z-]+' | sed 's/Fl //' | sort -u)
done
man_tools=none
if command -v mandoc >/dev/null; then
    man_tools=mandoc
    mandoc -T lint docs/kvcsa.1 >"$tmp/out" 2>&1 || { complain "mandoc finds fault with docs/kvcsa.1:"; cat "$tmp/out"; }
fi
if command -v groff >/dev/null; then
    man_tools="${man_tools/none/} groff"
    LC_ALL=C groff -man -mdoc -ww -Tascii docs/kvcsa.1 2>"$tmp/out" >/dev/null
    [ -s "$tmp/out" ] && { complain "groff warns of docs/kvcsa.1:"; cat "$tmp/out"; }
fi

for count in $n_links $n_files $n_lines $n_shown $n_programs; do
    [ "$count" -gt 0 ] || complain "nothing was found to check: $n_links $n_files $n_lines $n_shown $n_programs"
done
[ "$bad" -eq 0 ] && echo "$n_links links, $n_files files, $n_lines command lines, $n_shown outputs, $n_programs programs; manual page seen by: $man_tools"
exit "$bad"
