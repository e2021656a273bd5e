#!/bin/bash
# Installs into an empty folder, builds the example against that with pkg-config (shared and static), runs it, looks at what
# the library needs at run time, uninstalls and finds nothing left.
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
for file in /usr/bin/kvcsa /usr/include/kvcsa.h /usr/lib/libkvcsa.a /usr/lib/libkvcsa.so /usr/lib/pkgconfig/kvcsa.pc \
    /usr/share/man/man1/kvcsa.1; do
    [ -f "$root$file" ] || complain "$file was not installed"
done
[ "$(wc -l <"$tmp/installed")" -eq 8 ] || complain "eight files were to be installed"
grep -q "$root\|@" "$root/usr/lib/pkgconfig/kvcsa.pc" && complain "kvcsa.pc holds a path of this build or an unfilled place"

# The prefix is /usr inside a root of its own, as a package builder has it.
export PKG_CONFIG_PATH=$root/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
pc() { ${PKG_CONFIG:-pkg-config} "$@" kvcsa; }
header() { sed -n "s/^#define KVCSA_$1  *\([0-9]*\).*/\1/p" include/kvcsa.h; }
version=$(header VERSION_MAJOR).$(header VERSION_MINOR).$(header VERSION_PATCH)
[ "$(pc --modversion)" = "$version" ] || complain "kvcsa.pc says $(pc --modversion), the header $version"

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
cmp -s "$tmp/shared.out" "$tmp/static.out" || complain "shared and static give different text"

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

make -s uninstall "${install_args[@]}" || complain "make uninstall failed"
find "$root" ! -type d >"$tmp/left"
[ -s "$tmp/left" ] && { complain "uninstall left:"; cat "$tmp/left"; }

[ "$bad" -eq 0 ] && echo "installed, used both ways, removed"
exit "$bad"
