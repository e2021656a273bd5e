#!/bin/bash
# The Debian packages of a source archive: lib/debian/make_deb.sh BUILD VERSION ABI
#
# BUILD/kvcsa-VERSION.tar.gz (make dist) is the upstream archive; the folder debian/ is made here from the files beside this script.
# What depends on the version or the soname is filled in: names of packages, the change log, the symbols file (from lib/kvcsa.map,
# whose nodes say since which release a symbol is there). Packages come to lie in BUILD/deb, checked by lintian where it is.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1 version=$2 abi=$3
here=lib/debian
out=$build/deb
source=$out/kvcsa-$version
die() { echo "$*" >&2; exit 1; }

packages=
command -v dpkg-buildpackage >/dev/null || packages="$packages dpkg-dev"
command -v dh >/dev/null || packages="$packages debhelper"
command -v lintian >/dev/null || packages="$packages lintian"
[ -z "$packages" ] || die "missing:$packages. As root: apt-get install -y --no-install-recommends$packages"

rm -rf "$out"
mkdir -p "$out"
cp "$build/kvcsa-$version.tar.gz" "$out/kvcsa_$version.orig.tar.gz"
tar -xzf "$out/kvcsa_$version.orig.tar.gz" -C "$out"
mkdir -p "$source/debian/source"
cp "$here/rules" "$here/copyright" "$source/debian/"
cp "$here/source/format" "$source/debian/source/"
maintainer="${DEBFULLNAME:-the kvcsa authors} <${DEBEMAIL:-kvcsa@localhost.localdomain}>"
sed -e "s/@ABI@/$abi/g" -e "s/@MAINTAINER@/$maintainer/" "$here/control.in" >"$source/debian/control"
for kind in install docs examples manpages; do
    for name in runtime:libkvcsa"$abi" dev:libkvcsa-dev command:kvcsa; do
        [ ! -e "$here/${name%%:*}.$kind" ] || cp "$here/${name%%:*}.$kind" "$source/debian/${name#*:}.$kind"
    done
done
page=$(cd "$source" && ls docs/*.1 docs/man/*.1 2>/dev/null || true)
[ -z "$page" ] || echo 'usr/share/man/man1' >>"$source/debian/kvcsa.install"

# Each symbol with the release that brought it.
{
    echo "libkvcsa.so.$abi libkvcsa$abi #MINVER#"
    awk '/^KVCSA_[0-9.]+ / { node = $1; since = node; sub(/KVCSA_/, "", since); print " " node "@" node " " since }
         /^ *kvcsa_[a-z0-9_]*;/ { sub(/;.*/, "", $1); print " " $1 "@" node " " since }' lib/kvcsa.map
} >"$source/debian/libkvcsa$abi.symbols"
# The date of the archive, so that the same archive gives the same packages.
epoch=$(stat -c %Y "$source/CHANGELOG.md")
{
    printf 'kvcsa (%s-1) unstable; urgency=medium\n\n' "$version"
    printf '  * Release %s; see CHANGELOG.md of libkvcsa-dev.\n\n' "$version"
    printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -R -u -d "@$epoch")"
} >"$source/debian/changelog"

log=$out/build.log
unset MAKEFLAGS MFLAGS MAKELEVEL
(cd "$source" && dpkg-buildpackage -us -uc ${DEB_ARGS:-}) >"$log" 2>&1 || { tail -n 30 "$log"; die "dpkg-buildpackage failed, see $log"; }
rm -rf "$source"
# The project has no mail address; whoever publishes the packages has one.
no_address=
[ -n "${DEBEMAIL:-}" ] || no_address='--suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog'
# shellcheck disable=SC2086
lintian --fail-on error --profile debian $no_address "$out"/*.changes >"$out/lintian.log" 2>&1 ||
    { cat "$out/lintian.log"; die "lintian found errors"; }
cat "$out/lintian.log"
ls "$out"/*.deb
