#!/bin/bash
# Looks for what the build and the tests need and installs what is missing on Debian.
#
#   test/install_deps.sh [check|all]     all: also what check-all and fuzz need
#
# Without root it says the one line to run, and fails.
#
# Each need is looked for by what is used of it (a command, a header, a library of the compiler), so a system that has them from
# elsewhere is left alone. Nothing is done when everything is there.
set -u
want=${1:-check}
cc=${CC:-cc}
missing=() lacks=()

need() { # PACKAGE WHAT PROBE...
    local package=$1 what=$2
    shift 2
    "$@" >/dev/null 2>&1 && return
    missing+=("$package")
    lacks+=("$what")
}
has_command() { command -v "$1"; }
has_header() { printf '#include <%s>\n' "$1" | "$cc" -x c -E -; }
# cmocka.h wants four headers in front of it.
has_cmocka() { printf '#include <stdarg.h>\n#include <stddef.h>\n#include <setjmp.h>\n#include <stdint.h>\n#include <cmocka.h>\n' | "$cc" -x c -E -; }
has_pcre2() { printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\n' | "$cc" -x c -E -; }
has_qemu() { command -v qemu-aarch64 || command -v qemu-aarch64-static; }
has_arm64() { compgen -G "/usr/lib/aarch64-linux-gnu/$1*.so"; }
has_libfuzzer() {
    local dir
    dir=$(mktemp -d) || return 1
    printf 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n);\nint LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return (void)d, (void)n, 0; }\n' |
        "${CLANG:-clang}" -x c -fsanitize=fuzzer,address,undefined -o "$dir/probe" -
    local rc=$?
    rm -rf "$dir"
    return $rc
}

need gcc "$cc" has_command "$cc"
need gcc gcc has_command gcc
need libc6-dev stdio.h has_header stdio.h
need g++ g++ has_command g++
need make make has_command make
need pkg-config pkg-config has_command pkg-config
need git git has_command git
need libjansson-dev jansson.h has_header jansson.h
need libpcre2-dev pcre2.h has_pcre2
need libutf8proc-dev utf8proc.h has_header utf8proc.h
need libxxhash-dev xxhash.h has_header xxhash.h
need libcmocka-dev cmocka.h has_cmocka
need abigail-tools abidiff has_command abidiff
need python3 python3 has_command "${PYTHON:-python3}"
if [ "$want" = all ]; then
    need qemu-user qemu-aarch64 has_qemu
    need gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc has_command aarch64-linux-gnu-gcc
    for library in libjansson libpcre2 libutf8proc libxxhash libcmocka; do
        need "$library-dev:arm64" "$library for arm64" has_arm64 "$library"
    done
    need valgrind valgrind has_command valgrind
    need clang clang has_command "${CLANG:-clang}"
    need doxygen doxygen has_command doxygen
    need python3 python3 has_command python3
    need mandoc mandoc has_command mandoc
    need groff-base groff has_command groff
    need libclang-rt-14-dev libFuzzer has_libfuzzer
fi
[ ${#missing[@]} -eq 0 ] && exit 0
if [ -n "${KV_INSTALLED:-}" ]; then
    echo "still missing: ${lacks[*]}" >&2
    exit 1
fi

packages=$(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')
packages=${packages% }
line="apt-get install -y --no-install-recommends $packages"
add_arm64=
case $packages in *:arm64*) add_arm64="dpkg --add-architecture arm64 && " ;; esac
if ! command -v apt-get >/dev/null; then
    echo "missing: ${lacks[*]}. On Debian: $line; install what provides them here." >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "missing: ${lacks[*]}. As root run:" >&2
    echo "${add_arm64}apt-get update && $line" >&2
    exit 1
fi
echo "missing: ${lacks[*]}; installing $packages"
export DEBIAN_FRONTEND=noninteractive
[ -z "$add_arm64" ] || dpkg --add-architecture arm64
apt-get update -q </dev/null && $line -q </dev/null || { echo "apt-get could not install $packages" >&2; exit 1; }
# What was installed is what was looked for.
KV_INSTALLED=1 exec "$0" "$want"
