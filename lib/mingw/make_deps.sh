#!/bin/bash
# What kvcsa links, for Windows x86-64: lib/mingw/make_deps.sh BUILD [CC]
#
# Debian has a mingw-w64 compiler and none of our four libraries for it, so they are built from Debian's source packages, static,
# into BUILD/windeps (include, lib, lib/pkgconfig). cmocka comes along for the tests. Sources are fetched with apt-get from the
# servers that this system names, with lists of their own in BUILD: neither root nor a change of the system is needed. Versions are
# those of the Debian release. Does nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1 cc=${2:-x86_64-w64-mingw32-gcc-posix}
cross=${cc%-gcc*}
mkdir -p "$build/windeps"
prefix=$(realpath "$build/windeps")
work=$prefix/source
flags="-O2 -ffile-prefix-map=$work=. -Wa,-muse-unaligned-vector-move"
die() { echo "$*" >&2; exit 1; }
[ -e "$prefix/done" ] && exit 0
packages=
command -v "$cc" >/dev/null || packages=" gcc-mingw-w64-x86-64"
command -v dpkg-source >/dev/null || packages="$packages dpkg-dev"
command -v cmake >/dev/null || packages="$packages cmake"
[ -z "$packages" ] || die "missing:$packages. As root: apt-get install -y --no-install-recommends$packages"

# The system's own lists with sources switched on.
lists=$work/apt
mkdir -p "$lists/parts" "$lists/lists/partial" "$lists/archives/partial" "$prefix/include" "$prefix/lib/pkgconfig"
{
    cat /etc/apt/sources.list.d/debian.sources 2>/dev/null | sed 's/^Types:.*/Types: deb-src/'
} >"$lists/parts/debian.sources"
sed -n 's/^deb \(.*debian.*\)/deb-src \1/p' /etc/apt/sources.list 2>/dev/null >"$lists/parts/debian.list" || true
options=(-q -o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$lists/parts" -o "Dir::State::lists=$lists/lists"
    -o "Dir::Cache=$lists" -o "APT::Sandbox::User=" -o "APT::Get::List-Cleanup=0")
log=$prefix/log
apt-get "${options[@]}" update >"$log" 2>&1 || { tail -n 5 "$log"; die "the lists of source packages cannot be fetched"; }
# Of each the newest version; where a mirror has not got that one, the one that the release came with.
codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
for package in jansson pcre2 utf8proc xxhash cmocka; do
    (cd "$work" && { apt-get "${options[@]}" source "$package" || apt-get "${options[@]}" source "$package/$codename"; }) >>"$log" 2>&1 ||
        { tail -n 5 "$log"; die "the source of $package cannot be fetched"; }
done

pc() { # FILE PACKAGE VERSION-OF LIBRARY [PRIVATE-FLAGS]
    printf 'prefix=%s\nName: %s\nDescription: %s for Windows\nVersion: %s\nLibs: -L${prefix}/lib -l%s\nCflags: -I${prefix}/include %s\n' \
        "$prefix" "$1" "$1" "$2" "$3" "${4:-}" >"$prefix/lib/pkgconfig/$1.pc"
}
version() { basename "$(ls -d "$work/$1"-[0-9]*/)" | sed "s/^$1-//"; }
with_cmake() { # PACKAGE OPTION...
    local source
    source=$(ls -d "$work/$1"-[0-9]*/)
    shift
    # cmake 4 refuses what asks for less than 3.5, unless it is told
    cmake -S "$source" -B "$source/out" -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_C_COMPILER="$cc" -DCMAKE_RC_COMPILER="$cross-windres" \
        -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY \
        -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS="$flags" \
        -DCMAKE_POLICY_VERSION_MINIMUM=3.5 -DBUILD_SHARED_LIBS=OFF "$@" &&
        cmake --build "$source/out" -j "${JOBS:-2}" && cmake --install "$source/out"
}
build_all() { # set -e does not hold in front of ||
    with_cmake jansson -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF &&
        with_cmake pcre2 -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF -DPCRE2_SUPPORT_JIT=ON -DPCRE2_SUPPORT_UNICODE=ON &&
        with_cmake cmocka -DWITH_EXAMPLES=OFF -DUNIT_TESTING=OFF -DBUILD_SHARED_LIBS=OFF -DWITH_STATIC_LIB=ON &&
        { [ -e "$prefix/lib/libcmocka.a" ] ||
            cp "$(find "$work"/cmocka-[0-9]*/out -name 'libcmocka*.a' ! -name '*.dll.a' | head -n 1)" "$prefix/lib/libcmocka.a"; } &&
        cd "$(ls -d "$work"/utf8proc-[0-9]*/)" &&
        "$cc" $flags -std=c99 -DUTF8PROC_STATIC -c -o utf8proc.o utf8proc.c &&
        "$cross-ar" rcs "$prefix/lib/libutf8proc.a" utf8proc.o &&
        cp utf8proc.h "$prefix/include/" &&
        cd "$(ls -d "$work"/xxhash-[0-9]*/)" &&
        "$cc" $flags -c -o xxhash.o xxhash.c &&
        "$cross-ar" rcs "$prefix/lib/libxxhash.a" xxhash.o &&
        cp xxhash.h xxh3.h "$prefix/include/"
}
(build_all) >>"$log" 2>&1 || { tail -n 20 "$log"; die "a library for Windows cannot be built, see $log"; }
pc jansson "$(version jansson)" jansson
pc libpcre2-8 "$(version pcre2)" pcre2-8 -DPCRE2_STATIC
pc libutf8proc "$(version utf8proc)" utf8proc -DUTF8PROC_STATIC
pc libxxhash "$(version xxhash)" xxhash
# JANSSON_BUILD_SHARED_LIBS and the like have names of their own: only archives may be there
rm -f "$prefix/lib"/*.dll.a
ls "$prefix/lib"/lib{jansson,pcre2-8,utf8proc,xxhash,cmocka}.a >/dev/null || die "a library for Windows is missing, see $log"
rm -rf "$work"
touch "$prefix/done"
