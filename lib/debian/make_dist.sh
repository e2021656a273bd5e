#!/bin/bash
# The source archive BUILD/NAME.tar.gz: lib/debian/make_dist.sh BUILD NAME
#
# The same bytes whoever makes it and when: files of the commit (DIST_TREE: another tree of git) in the order of their names, owner 0,
# modes without what umask did, one time for all. That time is SOURCE_DATE_EPOCH, else the commit's. Without git, in an unpacked
# archive, it is the time that the files have from there, so an archive gives itself again.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1 name=$2
export LC_ALL=C TZ=UTC
mkdir -p "$build"
tmp=$(mktemp -d "$build/dist.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/$name"

if [ -e .git ]; then
    git archive --format=tar "${DIST_TREE:-HEAD}" | tar -xf - -C "$tmp/$name"
    epoch=$(git log -1 --format=%ct)
    git diff --quiet HEAD || echo "note: what is not committed is not in it" >&2
else
    # built files lie in these places only, see .gitignore
    tar -cf - --exclude='./build' --exclude="./$build" --exclude='./lib/libkvcsa.a' --exclude='./lib/libkvcsa*.so*' \
        --exclude='__pycache__' --exclude='*.pyc' . | tar -xf - -C "$tmp/$name"
    epoch=$(stat -c %Y CHANGELOG.md)
fi
tar -cf - --format=ustar --sort=name --mtime="@${SOURCE_DATE_EPOCH:-$epoch}" --owner=0 --group=0 --numeric-owner \
    --mode='u=rwX,go=rX' -C "$tmp" "$name" | gzip -n -9 >"$tmp/out"
mv "$tmp/out" "$build/$name.tar.gz"
chmod 644 "$build/$name.tar.gz"
echo "$build/$name.tar.gz"
