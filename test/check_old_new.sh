#!/bin/bash
# Old programs with today's library, and programs of today with older libraries: test/old/README.md.
#
#   test/check_old_new.sh BUILD LIBS [history]
#
# history: the libraries of the releases in test/old/releases are built from git (minutes) and run too, `make check-old`.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build} libs=${2:-lib} history=${3:-}
model=examples/models/tiny
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
bad=0 n=0
complain() { echo "$1"; bad=1; }
die() { echo "$1"; exit 1; }
header() { sed -n "s/^#define KVCSA_$1  *\([0-9]*\).*/\1/p" include/kvcsa.h; }
cc="${CC:-cc} -std=c11 -O1 -g -Wall -Wextra -Werror -D_GNU_SOURCE"
soname=libkvcsa.so.$(header ABI)
minor=$(header VERSION_MINOR)
[ -e "$libs/$soname" ] && [ -e "$libs/libkvcsa.a" ] || die "$libs/$soname or $libs/libkvcsa.a is not built"
today=$(realpath "$libs")
unset LD_LIBRARY_PATH LD_PRELOAD

# The map up to a release, and a library of empty functions with its symbols to link old programs with.
cut_map() { awk -v last="KVCSA_$1" '{ print } /^KVCSA_/ { node = $1 } /^}/ && node == last { exit }' lib/kvcsa.map; }
functions() { sed -n 's/^ *\(kvcsa_[a-z0-9_]*\);.*/\1/p' "$1"; }
empty_library() { # RELEASE DIR
    cut_map "$1" >"$2/map"
    functions "$2/map" | sed 's/.*/void &(void);\nvoid &(void) {}/' >"$2/empty.c"
    $cc -fPIC -shared -Wl,-soname,"$soname" -Wl,--version-script="$2/map" -o "$2/$soname" "$2/empty.c"
}
run() { # WANTED-STATUS LIBRARY-DIR PROGRAM ARGS...: output in $tmp/out, status checked, never a signal
    local want=$1 dir=$2 rc
    shift 2
    LD_LIBRARY_PATH=$dir timeout 120 "$@" </dev/null >"$tmp/out" 2>"$tmp/err"
    rc=$?
    n=$((n + 1))
    [ "$rc" -eq "$want" ] && return
    complain "$(basename "$1") with $(basename "$dir"): status $rc, not $want"
    head -n 5 "$tmp/out" "$tmp/err"
    return 1
}

old_program() { # RELEASE LIBRARY-DIR
    local args=("$model")
    [ "$1" = 0.2 ] && args+=("$tmp/snapshot")
    run 0 "$2" "$tmp/$1/use" "${args[@]}" || return
    diff "test/old/use_${1/./_}.expected" "$tmp/out" || complain "the program of $1 with $(basename "$2") prints something else"
}

# Old programs: header, symbols and structs of their release.
for file in test/old/kvcsa-*.h; do
    release=$(basename "$file" .h) release=${release#kvcsa-}
    dir=$tmp/$release
    mkdir "$dir" && cp "$file" "$dir/kvcsa.h" || exit 2
    empty_library "$release" "$dir" || die "no library of empty functions for $release"
    $cc -I"$dir" -Itest/old -o "$dir/use" "test/old/use_${release/./_}.c" "$dir/$soname" || die "the program of $release does not build"
    old_program "$release" "$today"
    # No node of an old release has lost a function, and none has been given one since.
    grep -oE '\bkvcsa_[a-z0-9_]+ *\(' "$file" | tr -d ' (' | sort -u >"$tmp/declared"
    functions "$dir/map" | sort >"$tmp/mapped"
    comm -13 "$tmp/declared" "$tmp/mapped" | sed "s/\$/ is in the nodes up to $release of lib\/kvcsa.map, not in its header/" >"$tmp/diff"
    grep -oE '^KVCSA_API [^(]*\(' "$file" | sed 's/.*[ *]\(kvcsa_[a-z0-9_]*\) *(/\1/' | sort -u | comm -23 - "$tmp/mapped" |
        sed "s/\$/ of the header of $release is not in lib\/kvcsa.map/" >>"$tmp/diff"
    [ -s "$tmp/diff" ] && { bad=1; cat "$tmp/diff"; }
done

# Programs of today.
for name in new_names new_structs new_by_hand; do
    $cc -Iinclude -o "$tmp/$name" "test/old/$name.c" "$libs/$soname" || die "$name does not build"
done
run 0 "$today" "$tmp/new_names"
run 0 "$today" "$tmp/new_structs" "$model" "$(header VERSION_NUMBER)"
run 0 "$today" "$tmp/new_by_hand" "$today/$soname"

new_programs() { # RELEASE LIBRARY-DIR: an older library
    local dir=$2
    # The loader names the node and the program, and nothing has run.
    run 1 "$dir" "$tmp/new_names" &&
        { grep -q "version \`KVCSA_0.$minor' not found (required by " "$tmp/err" && [ ! -s "$tmp/out" ] ||
            complain "the loader does not say what $(basename "$dir") lacks: $(head -n 1 "$tmp/err")"; }
    run 0 "$dir" "$tmp/new_structs" "$model" $((${1#0.} * 100)) && sed "s|^|$(basename "$dir"): |" "$tmp/out"
    run 3 "$dir" "$tmp/new_by_hand" "$dir/$soname"
}

# 0.1 of today's code: today's names are changed, those of 0.1 stand in front of them.
dir=$tmp/as_0.1
mkdir "$dir"
functions lib/kvcsa.map | sed 's/.*/& now_&/' >"$dir/names"
${OBJCOPY:-objcopy} --redefine-syms="$dir/names" "$libs/libkvcsa.a" "$dir/now.a" || die "objcopy failed"
$cc -fPIC -fvisibility=default -I"$tmp/0.1" -Isrc -c -o "$dir/old.o" test/old/old_library.c || die "old_library.c does not build"
${NM:-nm} --defined-only "$dir/old.o" | awk '{ print $3 }' | sort >"$dir/own"
functions "$tmp/0.1/map" | sort | comm -23 - "$dir/own" | sed 's/.*/-Wl,--defsym=&=now_&/' >"$dir/same"
# shellcheck disable=SC2046
$cc -shared -Wl,-soname,"$soname" -Wl,--version-script="$tmp/0.1/map" -Wl,-s $(cat "$dir/same") -o "$dir/$soname" "$dir/old.o" \
    -Wl,--whole-archive "$dir/now.a" -Wl,--no-whole-archive -ljansson -lpcre2-8 -lutf8proc -lxxhash -lm -pthread -ldl ||
    die "a library of 0.1 cannot be linked"
old_program 0.1 "$dir"
new_programs 0.1 "$dir"

if [ "$history" = history ]; then
    while read -r release commit; do
        dir=$build/old/$release
        if [ ! -e "$dir/lib/$soname" ]; then
            git cat-file -e "$commit^{commit}" 2>/dev/null || die "the history has no $commit: a full clone is needed"
            mkdir -p "$dir" && git archive "$commit" | tar x -C "$dir" || die "cannot take $release from the history"
            env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -j"$(nproc)" -C "$dir" lib/libkvcsa.so || die "$release does not build"
        fi
        cmp -s "$dir/include/kvcsa.h" "test/old/kvcsa-$release.h" || complain "test/old/kvcsa-$release.h is not the header of $commit"
        ln -sfn "$(realpath "$dir/lib")" "$tmp/real_$release"
        old_program "$release" "$tmp/real_$release"
        new_programs "$release" "$tmp/real_$release"
    done <test/old/releases
fi
[ "$bad" -eq 0 ] && echo "$n runs of old and new programs"
exit "$bad"
