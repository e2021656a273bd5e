#!/bin/bash
# The source archive and the Debian packages: test/check_package.sh [BUILD LIBS]
#
# The archive is made twice, from different places, and must be the same bytes; unpacked, without git, it gives itself again, builds,
# and what it built answers as this tree's build does. The packages are made and looked into where dpkg, debhelper and lintian are
# there (KV_PACKAGE=deb; minutes, so not in make check). Hosts that cannot run the library are refused by the compiler.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build} what=${KV_PACKAGE:-dist}
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
bad=0
complain() { echo "$1"; bad=1; }
die() { echo "$1"; exit 1; }
unset MAKEFLAGS MFLAGS MAKELEVEL
header() { sed -n "s/^#define KVCSA_$1  *\([0-9]*\).*/\1/p" include/kvcsa.h; }
version=$(header VERSION_MAJOR).$(header VERSION_MINOR).$(header VERSION_PATCH) abi=$(header ABI)
name=kvcsa-$version

# ---------------------------------------------------------------- hosts that are refused
refused() { # WHY FLAG...
    local why=$1
    shift
    printf '#include "base/checked.h"\n' | ${CC:-cc} -std=c11 -ffreestanding "$@" -Isrc -Iinclude -fsyntax-only -x c - >"$tmp/out" 2>&1 &&
        complain "a compiler for a host that is not $why takes the sources"
    grep -q "kvcsa runs on $why hosts only" "$tmp/out" || { complain "it is not said that hosts must be $why:"; cat "$tmp/out"; }
}
printf '#include "base/checked.h"\n' | ${CC:-cc} -std=c11 -Isrc -Iinclude -fsyntax-only -x c - || complain "this host is refused"
refused little-endian -U__BYTE_ORDER__ -D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__
case $(${CC:-cc} -dumpmachine) in
x86_64*) refused 64-bit -m32 ;;
esac
# no build goes without this file
for file in src/base/alloc.c; do
    ${CC:-cc} -std=c11 -D_GNU_SOURCE -Isrc -Iinclude -M "$file" | grep -q base/checked.h || complain "$file does not look at the host"
done

# ---------------------------------------------------------------- the source archive
if [ -e .git ]; then
    # what would be committed now, without a word to the repository
    GIT_OBJECT_DIRECTORY=$tmp/objects
    GIT_ALTERNATE_OBJECT_DIRECTORIES=$(realpath "$(git rev-parse --git-path objects)")
    GIT_INDEX_FILE=$tmp/index
    mkdir "$GIT_OBJECT_DIRECTORY"
    cp "$(git rev-parse --git-path index)" "$GIT_INDEX_FILE"
    export GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_INDEX_FILE
    git add -A && DIST_TREE=$(git write-tree) || die "the work tree cannot be listed"
    export DIST_TREE
    git ls-tree -r --name-only "$DIST_TREE" | sort >"$tmp/tracked"
fi
lib/debian/make_dist.sh "$tmp/one" "$name" >/dev/null 2>"$tmp/err" || die "make dist failed: $(cat "$tmp/err")"
(umask 077 && TZ=Asia/Tokyo LC_ALL=C.UTF-8 lib/debian/make_dist.sh "$tmp/two" "$name" >/dev/null 2>&1) || die "make dist failed the second time"
cmp "$tmp/one/$name.tar.gz" "$tmp/two/$name.tar.gz" || complain "two runs of make dist give different archives"
[ -e "$tmp/one/$name.tar.gz" ] || die "no archive"
tar -xzf "$tmp/one/$name.tar.gz" -C "$tmp" || die "the archive cannot be unpacked"
(cd "$tmp/$name" && find . ! -type d | sed 's|^\./||' | sort) >"$tmp/packed"
[ ! -e "$tmp/tracked" ] || diff "$tmp/tracked" "$tmp/packed" >"$tmp/diff" || { complain "the archive has other files than git:"; head "$tmp/diff"; }
tar -tvzf "$tmp/one/$name.tar.gz" --numeric-owner | awk '$2 != "0/0" { print; e = 1 } END { exit e }' || complain "owners in the archive"
[ "$(tar -tvzf "$tmp/one/$name.tar.gz" --full-time | awk '{ print $4, $5 }' | sort -u | wc -l)" -eq 1 ] || complain "several times in the archive"
unset DIST_TREE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_INDEX_FILE

# From here on as somebody who has the archive alone; not optimised, which is what takes the time.
export GIT_CEILING_DIRECTORIES=$tmp
cd "$tmp/$name" || exit 2
make -s dist >/dev/null 2>"$tmp/err" || complain "make dist fails in the archive: $(cat "$tmp/err")"
cmp "build/$name.tar.gz" "$tmp/one/$name.tar.gz" || complain "the archive does not give itself again"
make -s -j"$(nproc)" CFLAGS=-O0 KERNEL_OPT= libs build/kvcsa build/examples/generate >"$tmp/log" 2>&1 || { tail "$tmp/log"; die "the archive does not build"; }
make -s dist >/dev/null 2>&1
cmp "build/$name.tar.gz" "$tmp/one/$name.tar.gz" || complain "what was built gets into the archive"
build/examples/generate examples/models/tiny "the weather" 8 >"$tmp/archive.out" 2>&1 || complain "the example of the archive fails"
[ -s "$tmp/archive.out" ] || complain "the example of the archive says nothing"
for script in check_tree check_layers check_headers; do
    test/$script.sh build lib >"$tmp/log" 2>&1 || { complain "test/$script.sh fails in the archive:"; cat "$tmp/log"; }
done
cd "$OLDPWD" || exit 2
"$build/examples/generate" examples/models/tiny "the weather" 8 >"$tmp/tree.out" 2>&1 || complain "the example of the tree fails"
cmp -s "$tmp/tree.out" "$tmp/archive.out" || complain "the archive's build answers otherwise"
if [ "$what" != deb ]; then
    [ "$bad" -eq 0 ] && echo "archive: $(wc -l <"$tmp/packed") files, twice the same, builds"
    exit "$bad"
fi

# ---------------------------------------------------------------- Debian packages
lib/debian/make_deb.sh "$tmp/one" "$version" "$abi" >"$tmp/log" 2>&1 || { cat "$tmp/log"; die "make deb failed"; }
cd "$tmp/one/deb" || exit 2
for package in "libkvcsa$abi" libkvcsa-dev kvcsa; do
    deb=$(ls "${package}_${version}"-*.deb) || complain "no package $package"
    mkdir -p "$tmp/root/$package" && dpkg-deb -x "$deb" "$tmp/root/$package"
    dpkg-deb -f "$deb" Depends | tr ',' '\n' | sed 's/^ *//' | sort >"$tmp/depends.$package"
done
needs() { # PACKAGE DEPENDENCY...
    local package=$1 name
    shift
    for name; do grep -qE "^$name( |\$)" "$tmp/depends.$package" || complain "$package does not depend on $name"; done
}
needs "libkvcsa$abi" libc6 libjansson4 libpcre2-8-0 libutf8proc2 libxxhash0
needs libkvcsa-dev "libkvcsa$abi" libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev
needs kvcsa "libkvcsa$abi" libjansson4
(cd "$tmp/root" && find . ! -type d | sed 's|^\./||' | grep -v '/usr/share/doc/\|/usr/share/man/') | sort >"$tmp/files"
triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
{
    echo kvcsa/usr/bin/kvcsa
    for file in libkvcsa.a libkvcsa.so pkgconfig/kvcsa.pc cmake/kvcsa/kvcsa-config.cmake cmake/kvcsa/kvcsa-config-version.cmake; do
        echo "libkvcsa-dev/usr/lib/$triplet/$file"
    done
    for file in "$OLDPWD"/include/*.h "$OLDPWD"/include/*.hpp; do [ -e "$file" ] && echo "libkvcsa-dev/usr/include/${file##*/}"; done
    echo "libkvcsa$abi/usr/lib/$triplet/libkvcsa.so.$abi"
    echo "libkvcsa$abi/usr/lib/$triplet/libkvcsa.so.$version"
} | sort | diff - "$tmp/files" >"$tmp/diff" || { complain "the packages hold other files (< were to be, > are):"; cat "$tmp/diff"; }
readelf -d "$tmp/root/kvcsa/usr/bin/kvcsa" | grep -E 'RPATH|RUNPATH' && complain "the packaged command has a search path"
dpkg-deb --info "libkvcsa${abi}_${version}"-*.deb symbols 2>/dev/null | grep -q 'kvcsa_pool_create@KVCSA_0.1 0.1$' || complain "no symbols file"
# The three together are an installation.
mkdir "$tmp/all"
for package in "libkvcsa$abi" libkvcsa-dev kvcsa; do cp -a "$tmp/root/$package/." "$tmp/all/"; done
LD_LIBRARY_PATH="$tmp/all/usr/lib/$triplet" "$tmp/all/usr/bin/kvcsa" version | grep -qF "$version" || complain "the packaged command does not run"
[ "$bad" -eq 0 ] && echo "archive and packages are good"
exit "$bad"
