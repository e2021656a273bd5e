#!/bin/bash
# Installs into an empty folder, builds the example against that with pkg-config and with CMake (shared and static), runs it, looks at
# what the library needs at run time, uninstalls and finds nothing left but what was there before. Then once more into folders of
# other names.
#
#   test/check_install.sh [BUILD LIBS]
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build} libs=${2:-lib}
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
root=$tmp/root
bad=0
complain() { echo "$1"; bad=1; }
die() { echo "$1"; exit 1; }
cc=${CC:-cc}

# The calling make's flags (-j, its variables) are not for this one.
unset MAKEFLAGS MFLAGS MAKELEVEL
install_args=(DESTDIR="$root" PREFIX=/usr B="$build" L="$libs")
make -s install "${install_args[@]}" || die "make install failed"
find "$root" ! -type d | sed "s|^$root||" | sort >"$tmp/installed"
cat "$tmp/installed"
header() { sed -n "s/^#define KVCSA_$1  *\([0-9]*\).*/\1/p" include/kvcsa.h; }
version=$(header VERSION_MAJOR).$(header VERSION_MINOR).$(header VERSION_PATCH)
# This list and no other; headers and man pages are those of the tree.
expected() { # BIN LIB INCLUDE MAN
    printf '%s\n' "$1/kvcsa" "$2/libkvcsa.a" "$2/libkvcsa.so" "$2/libkvcsa.so.$(header ABI)" "$2/libkvcsa.so.$version" \
        "$2/pkgconfig/kvcsa.pc" "$2/cmake/kvcsa/kvcsa-config.cmake" "$2/cmake/kvcsa/kvcsa-config-version.cmake"
    for file in include/*.h include/*.hpp; do [ -e "$file" ] && echo "$3/${file##*/}"; done
    for file in docs/*.1 docs/man/*.1; do [ -e "$file" ] && echo "$4/man1/${file##*/}"; done
}
expected /usr/bin /usr/lib /usr/include /usr/share/man | sort | diff - "$tmp/installed" >"$tmp/diff" ||
    { complain "installed is something else (< was to be, > is):"; cat "$tmp/diff"; }
[ "$(readlink "$root/usr/lib/libkvcsa.so")" = "libkvcsa.so.$(header ABI)" ] || complain "libkvcsa.so is no link to the soname"
[ "$(readlink "$root/usr/lib/libkvcsa.so.$(header ABI)")" = "libkvcsa.so.$version" ] || complain "the soname is no link to the library"
grep -q "$root\|@" "$root"/usr/lib/pkgconfig/kvcsa.pc && complain "kvcsa.pc holds a path of this build or an unfilled place"
grep -rqE "$root|@[A-Z]|/usr" "$root"/usr/lib/cmake && complain "the CMake files hold a path or an unfilled place"

# The prefix is /usr inside a root of its own, as a package builder has it.
export PKG_CONFIG_PATH=$root/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
pc() { ${PKG_CONFIG:-pkg-config} "$@" kvcsa; }
[ "$(pc --modversion)" = "$version" ] || complain "kvcsa.pc says $(pc --modversion), the header $version"

# A shared host links kvcsa alone; a static one gets what the archive needs.
[ "$(pc --libs | tr ' ' '\n' | grep -c '^-l')" -eq 1 ] || complain "pkg-config --libs says '$(pc --libs)', which is not kvcsa alone"
for name in kvcsa jansson pcre2-8 utf8proc xxhash m dl; do
    pc --static --libs | tr ' ' '\n' | grep -qx -- "-l$name" || complain "pkg-config --static --libs lacks -l$name"
done
[ "$(pc --define-variable=prefix=/moved --variable=includedir)" = "$root/moved/include" ] ||
    [ "$(pc --define-variable=prefix=/moved --variable=includedir)" = /moved/include ] || complain "kvcsa.pc cannot be moved"

cp examples/generate.c "$tmp/generate.c" || die "no examples/generate.c"
# shellcheck disable=SC2046
$cc -O1 -o "$tmp/shared" "$tmp/generate.c" $(pc --cflags --libs) || die "does not build against the shared library"
# shellcheck disable=SC2046
$cc -O1 -static -o "$tmp/static" "$tmp/generate.c" $(pc --static --cflags --libs) || die "does not build statically"
ldd "$tmp/static" >/dev/null 2>&1 && complain "the static program is not static"

run() { # what every user sees first: the example writes text and says nothing else
    local what=$1
    shift
    timeout 120 "$@" test/data/t1 "the weather" 8 </dev/null >"$tmp/$what.out" 2>"$tmp/$what.err" ||
        { complain "the example ($what) failed with status $?:"; cat "$tmp/$what.err"; }
    [ -s "$tmp/$what.out" ] || complain "the example ($what) wrote nothing"
}
run shared env LD_LIBRARY_PATH="$root/usr/lib" "$tmp/shared"
run static "$tmp/static"

# find_package in a project of somebody else: both targets, the version, and a request for what there is not.
if command -v cmake >/dev/null; then
    mkdir "$tmp/host"
    cp examples/generate.c "$tmp/host/generate.c"
    cat >"$tmp/host/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.13)
project(host C)
find_package(kvcsa ${WANTED} CONFIG REQUIRED)
foreach(kind kvcsa static)
  add_executable(with_${kind} generate.c)
  target_link_libraries(with_${kind} PRIVATE kvcsa::${kind})
endforeach()
END
    host() { cmake -S "$tmp/host" -B "$tmp/host/$1" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$root/usr" -DWANTED="$2" >"$tmp/cmake" 2>&1; }
    host out "$version" && cmake --build "$tmp/host/out" >"$tmp/cmake" 2>&1 || { complain "a host with CMake does not build:"; cat "$tmp/cmake"; }
    run with_kvcsa "$tmp/host/out/with_kvcsa"
    run with_static "$tmp/host/out/with_static"
    ldd "$tmp/host/out/with_static" 2>/dev/null | grep -q libkvcsa && complain "kvcsa::static links the shared library"
    ldd "$tmp/host/out/with_kvcsa" | grep -q "libkvcsa.so.$(header ABI) => $root" || complain "kvcsa::kvcsa does not link the installed library"
    cmp -s "$tmp/with_kvcsa.out" "$tmp/shared.out" && cmp -s "$tmp/with_static.out" "$tmp/shared.out" || complain "CMake's programs give other text"
    host newer "$(header VERSION_MAJOR).$(($(header VERSION_MINOR) + 1))" && complain "CMake takes a version that is older than wanted"
    host other "$(($(header VERSION_MAJOR) + 1)).0" && complain "CMake takes another major version"
else
    echo "cmake is missing: find_package was not tried"
fi
cmp -s "$tmp/shared.out" "$tmp/static.out" || complain "shared and static give different text"

# The C++ header, where there is a compiler.
if command -v "${CXX:-c++}" >/dev/null; then
    # shellcheck disable=SC2046
    ${CXX:-c++} -std=c++17 -o "$tmp/game_loop" examples/game_loop.cc $(pc --cflags --libs) || complain "game_loop.cc does not build"
fi

# The sample of README.md, as it stands there.
awk '/^```c$/ { on = 1; next } /^```$/ { if (on) exit } on' README.md >"$tmp/readme.c"
# shellcheck disable=SC2046
$cc -std=c11 -Wall -Wextra -Werror -o "$tmp/readme" "$tmp/readme.c" $(pc --cflags --libs) || complain "the sample of README.md does not build"
LD_LIBRARY_PATH="$root/usr/lib" timeout 120 "$tmp/readme" </dev/null >"$tmp/readme.out" || complain "the sample of README.md failed"
[ -s "$tmp/readme.out" ] || complain "the sample of README.md wrote nothing"

# The installed command finds the installed library, without help.
ldd "$root/usr/bin/kvcsa" | grep -q "libkvcsa.so.$(header ABI) => $root/" || complain "the command does not find its library"
"$root/usr/bin/kvcsa" --help >"$tmp/help" 2>&1 || complain "kvcsa --help failed"
grep -q 'run' "$tmp/help" || complain "kvcsa --help does not tell of run"

# What a host program takes on: these and nothing else.
allowed='linux-vdso|ld-linux-x86-64|ld-linux-aarch64|libc|libm|libpthread|libdl|libjansson|libpcre2-8|libutf8proc|libxxhash'
ldd "$root/usr/lib/libkvcsa.so" | awk '{ print $1 }' | sed 's|.*/||' | grep -vE "^($allowed)\.so" >"$tmp/needs"
[ -s "$tmp/needs" ] && { complain "the library needs more than it may:"; cat "$tmp/needs"; }
soname=$(readelf -d "$root/usr/lib/libkvcsa.so" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[ "$soname" = "libkvcsa.so.$(header ABI)" ] || complain "soname is $soname"
readelf -dW "$root/usr/lib/libkvcsa.so" | grep -E 'TEXTREL|RPATH|RUNPATH' && complain "text relocations or a search path in the library"
readelf -lW "$root/usr/lib/libkvcsa.so" | grep -E 'GNU_STACK.*RWE' && complain "the library asks for an executable stack"
grep -aFq "$PWD" "$root/usr/lib/libkvcsa.so" && complain "the library holds the path of this tree"

# Uninstall takes what install wrote and leaves the rest.
echo other >"$root/usr/lib/libother.a"
echo other >"$root/usr/include/kvcsa_of_somebody.h"
make -s uninstall "${install_args[@]}" || complain "make uninstall failed"
find "$root" ! -type d | sed "s|^$root||" | sort >"$tmp/left"
printf '%s\n' /usr/include/kvcsa_of_somebody.h /usr/lib/libother.a | diff - "$tmp/left" >"$tmp/diff" ||
    { complain "uninstall left or took too much (< was to stay, > stayed):"; cat "$tmp/diff"; }

# Every folder by a name of its own, with a blank in DESTDIR.
other="$tmp/other root"
other_args=(DESTDIR="$other" PREFIX=/opt/kv BINDIR=/opt/kv/b LIBDIR=/opt/kv/lib64 INCLUDEDIR=/opt/inc/kv MANDIR=/opt/man B="$build" L="$libs")
make -s install "${other_args[@]}" || complain "make install failed with folders of other names"
find "$other" ! -type d | sed "s|^$other||" | sort >"$tmp/installed"
expected /opt/kv/b /opt/kv/lib64 /opt/inc/kv /opt/man | sort | diff - "$tmp/installed" >"$tmp/diff" ||
    { complain "installed elsewhere is something else (< was to be, > is):"; cat "$tmp/diff"; }
"$other/opt/kv/b/kvcsa" version >/dev/null || complain "the command does not find its library in folders of other names"
grep -qx 'libdir=${prefix}/lib64' "$other/opt/kv/lib64/pkgconfig/kvcsa.pc" && grep -qx 'includedir=/opt/inc/kv' "$other/opt/kv/lib64/pkgconfig/kvcsa.pc" ||
    complain "kvcsa.pc does not tell the folders"
make -s uninstall "${other_args[@]}" || complain "make uninstall failed with folders of other names"
[ -z "$(find "$other" ! -type d)" ] || complain "uninstall left something in folders of other names"

[ "$bad" -eq 0 ] && echo "installed, used both ways, removed"
exit "$bad"
