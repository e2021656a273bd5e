#!/bin/bash
# What the built library shows and what it calls.
#
#   header declarations = lib/kvcsa.map = symbols of the shared library, each in the node of the release that its comment
#   names; the static one has kvcsa_ and kvi_ only;
#   every function but kvcsa_get_api is a member of the table that that one gives, in the order of lib/kvcsa_api.txt;
#   the plug-ins show kvcsa_backend_query and nothing else; our own calls are not left to the loader;
#   public functions are defined by src/api and src/measure alone; a guest never aborts, exits, prints, reads the environment or keeps
#   global state; functions that libm picks by CPU are not used.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build} libs=${2:-lib} plugins=0
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
bad=0
complain() { echo "$1"; bad=1; }
same() { # WHAT A B
    diff -u "$2" "$3" >"$tmp/diff" || { complain "$1 differ (- first, + second):"; grep '^[-+][^-+]' "$tmp/diff"; }
}
so=$libs/libkvcsa.so
ar=$libs/libkvcsa.a
[ -e "$so" ] && [ -e "$ar" ] || { echo "$so or $ar is not built"; exit 1; }

# The preprocessor drops comments and joins nothing else; KVCSA_API expands to a mark that survives it.
printf '#define KVCSA_BUILDING\n#include "kvcsa.h"\n' | ${CC:-cc} -std=c11 -Iinclude -E -P -x c - |
    tr '\n' ' ' | grep -oE '__attribute__\(\(visibility\("default"\)\)\)[^;{]*' |
    sed -n 's/.*[ *]\(kvcsa_[a-z0-9_]*\) *(.*/\1/p' | sort >"$tmp/header"
# Every prototype is marked.
printf '#include "kvcsa.h"\n' | ${CC:-cc} -std=c11 -Iinclude -E -P -x c - | tr '\n' ' ' | tr ';{}' '\n\n\n' |
    grep -v typedef | grep -v '^[^(]*(\*' | sed -n 's/^[^(]*[ *]\(kvcsa_[a-z0-9_]*\) *(.*/\1/p' | sort >"$tmp/prototypes"
sed -n 's/^ *\(kvcsa_[a-z0-9_]*\);.*/\1/p' lib/kvcsa.map | sort >"$tmp/map"
nm -D --defined-only "$so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$tmp/so"
same "prototypes of the header and those marked KVCSA_API" "$tmp/prototypes" "$tmp/header"
same "the header's functions and lib/kvcsa.map" "$tmp/header" "$tmp/map"
same "lib/kvcsa.map and the symbols of $so" "$tmp/map" "$tmp/so"
[ -s "$tmp/header" ] || complain "no function found in the header"

# Every exported symbol carries the version node of a release: the one that the header's "Since:" and the map name.
nm -D --defined-only "$so" | awk '$2 != "A" && $3 !~ /@@KVCSA_[0-9]+\.[0-9]+$/ { print "without a version: " $3; e = 1 } END { exit e }' ||
    bad=1
nm -D --defined-only "$so" | awk '$2 != "A" { sub(/@@/, " ", $3); print $3 }' | sort >"$tmp/so_nodes"
awk '/^KVCSA_[0-9]/ { node = $1 } /^ *kvcsa_[a-z0-9_]*;/ { sub(/;.*/, "", $1); print $1, node }' lib/kvcsa.map | sort >"$tmp/map_nodes"
awk '/\/\*\*/        { since = "" }
     /Since: +[0-9]/ { match($0, /Since: +[0-9]+\.[0-9]+/); since = substr($0, RSTART, RLENGTH); sub(/Since: +/, "", since) }
     /^KVCSA_API /   { name = $0; sub(/ *\(.*/, "", name); sub(/.*[ *]/, "", name); print name, "KVCSA_" since }' \
    include/kvcsa.h | sort >"$tmp/header_nodes"
same "nodes of lib/kvcsa.map and of the symbols of $so" "$tmp/map_nodes" "$tmp/so_nodes"
same "the header's \"Since:\" and the nodes of lib/kvcsa.map" "$tmp/header_nodes" "$tmp/map_nodes"
# A node that follows another inherits it.
awk '/^KVCSA_[0-9]/ { node = $1; n++ }
     /^}/           { want = n > 1 ? "} " last ";" : "};"
                      if ($0 != want) { print "node " node " ends with \"" $0 "\", not \"" want "\""; e = 1 } last = node }
     END            { exit e }' lib/kvcsa.map || bad=1

# The table: names and order of the header's members are those of the list. A member of another type than its function is an error.
sed -n '/^typedef struct kvcsa_api {/,/^} kvcsa_api;/s/.*(\*\([a-z0-9_]*\))(.*/kvcsa_\1/p' include/kvcsa.h >"$tmp/members"
awk '!/^#/ { print $2 }' lib/kvcsa_api.txt >"$tmp/list"
same "members of kvcsa_api and lib/kvcsa_api.txt" "$tmp/members" "$tmp/list"
sort "$tmp/list" >"$tmp/list_sorted"
grep -vx kvcsa_get_api "$tmp/map" >"$tmp/map_others"
same "lib/kvcsa.map and lib/kvcsa_api.txt" "$tmp/map_others" "$tmp/list_sorted"
${CC:-cc} -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -fsyntax-only -Iinclude -Isrc src/api/api_table.c || complain "src/api/api_table.c"
# Each member came with the release of its function, or with the first table.
awk 'NR == FNR { since[$1] = $2; next }
     !/^#/     { node = "KVCSA_" $3
                 if (since[$2] != node && !($3 == "0.4" && since[$2] ~ /^KVCSA_0\.[123]$/)) { print $2 ": release " $3 " in the list, " since[$2] " in the map"; e = 1 } }
     END       { exit e }' "$tmp/map_nodes" lib/kvcsa_api.txt || bad=1

# No function without a reason.
while read -r name; do
    grep -q "\`${name#kvcsa_}\`" docs/design/api.md || complain "docs/design/api.md does not say why there is $name"
done <"$tmp/map"

# One symbol of a plug-in, whichever of them are built; the test device has the whole library inside. The emulated one is linked
# without its map: what is left of templates of the C++ library is weak, and its tests ask it by names of their own (kvi_emu_).
for plugin in "$libs/libkvcsa_cuda.so" "$build"/test/*/libkvcsa_cuda.so "$build"/check/test/*/libkvcsa_cuda.so; do
    [ -e "$plugin" ] || continue
    weak=none own=none
    [[ $plugin == */emulated/* ]] && weak='^[WVu]$' own='^kvi_emu_'
    shown=$(nm -D --defined-only "$plugin" | awk -v weak="$weak" -v own="$own" '
        $2 != "A" && $2 !~ weak && $3 !~ own { sub(/@.*/, "", $3); print $3 }' | tr '\n' ' ')
    [ "$shown" = "kvcsa_backend_query " ] || complain "$plugin shows: $shown"
    plugins=$((plugins + 1))
done
# Our own calls are bound inside: another copy of the library that was loaded first must not answer them.
readelf -rW "$so" | grep -oE '\bkvcsa_[a-z0-9_]+' | sort -u >"$tmp/bound_outside"
[ -s "$tmp/bound_outside" ] && { complain "$so leaves these to the loader (-Bsymbolic-functions):"; head -n 5 "$tmp/bound_outside"; }

nm -A --defined-only --extern-only "$ar" | awk '{ n = split($1, p, ":"); print p[n - 1], $NF }' >"$tmp/static"
awk '$2 !~ /^(kvcsa|kvi)_/ { print "static library exports " $2 " (" $1 ")"; e = 1 } END { exit e }' "$tmp/static" || bad=1
(cd src && ls api/*.c measure/*.c) | sed 's|.*/\(.*\)\.c$|\1.o|' >"$tmp/public"
awk 'NR == FNR { public[$1] = 1; next }
     $2 ~ /^kvcsa_/ && !($1 in public) { print $2 " is defined in " $1 ", not in src/api or src/measure"; e = 1 }
     END { exit e }' "$tmp/public" "$tmp/static" || bad=1

# A good guest: calls that end, print, ask the environment or change the process.
nm -u "$so" | awk '{ sub(/@.*/, "", $2); print $2 }' | sort -u >"$tmp/calls"
process='abort|exit|_exit|_Exit|quick_exit|atexit|on_exit|__cxa_atexit|raise|kill|signal|sigaction|__assert_fail'
print='printf|fprintf|vprintf|vfprintf|dprintf|vdprintf|puts|fputs|putchar|putc|fputc|perror|psignal|stdout|stderr|stdin|syslog'
state='getenv|secure_getenv|setenv|putenv|environ|setlocale|uselocale|chdir|fchdir|umask|fesetround|fesetenv|feenableexcept'
state="$state|rand|srand|random|srandom|strtok|localtime|gmtime|system|fork|execve|popen"
math='exp|expf|exp2f|exp2|expm1f|log|logf|log2f|log1p|log1pf|pow|powf|sin|sinf|cos|cosf|sincos|sincosf|tanhf|tanh'
if grep -xE "$process|$print|$state" "$tmp/calls" >"$tmp/found"; then
    complain "$so calls what a guest must not:"
    cat "$tmp/found"
fi
if grep -xE "$math" "$tmp/calls" >"$tmp/found"; then
    complain "$so calls functions that libm picks by CPU (base/fmath.h has ours):"
    cat "$tmp/found"
fi

# No mutable globals: nothing in the sections that are writable after loading. (.data.rel.ro is constant.)
size -A "$ar" | awk '
    / : *$| +\(ex .*\):$/                              { member = $1 }
    $1 ~ /^\.(data|bss|tdata|tbss)(\..*)?$/ && $1 !~ /^\.data\.rel\.ro/ && $2 > 0 {
        print "writable global data: " $2 " bytes of " $1 " in " member; e = 1 }
    END { exit e }' || bad=1

[ "$bad" -eq 0 ] && echo "$(wc -l <"$tmp/header") functions in header, map, table and library; $plugins plug-ins"
exit "$bad"
