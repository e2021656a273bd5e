#!/bin/bash
# include/kvcsa.hpp: clean in every mode, complete, its tests (test_cpp.cc) built three ways and run; and the samples of
# guide-cpp.md.
#
#   test/check_cpp.sh [BUILD LIBS]
set -u
cd "$(dirname "$0")/.." || exit 2
libs=${2:-lib}
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
bad=0
complain() { echo "$1"; bad=1; }
link=(-L"$libs" "-Wl,-rpath,$(realpath "$libs")" -lkvcsa -pthread)
strict='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -Iinclude'

compilers=()
for cxx in ${CXX:-g++} clang++; do command -v "$cxx" >/dev/null && compilers+=("$cxx"); done
[ ${#compilers[@]} -gt 0 ] || { echo "no C++ compiler"; exit 77; }

# Alone and twice, in two languages, with and without exceptions and run-time types.
printf '#include <kvcsa.hpp>\n#include <kvcsa.hpp>\n' >"$tmp/alone.cc"
n=0
for cxx in "${compilers[@]}"; do
    for standard in c++17 c++20; do
        for mode in '' '-fno-exceptions -fno-rtti'; do
            # shellcheck disable=SC2086
            "$cxx" -std=$standard $mode $strict -fsyntax-only "$tmp/alone.cc" || complain "kvcsa.hpp: $cxx -std=$standard $mode"
            n=$((n + 1))
        done
    done
done

# Every function of the C header is in it, but for those of a host that loads the library by hand.
left_out='^kvcsa_get_api$'
n_functions=0
for name in $(sed -n '/^KVCSA_API/,/;/p' include/kvcsa.h | grep -oE '\bkvcsa_[a-z0-9_]+ ?\(' | tr -d ' (' | sort -u); do
    n_functions=$((n_functions + 1))
    grep -qw "$name" include/kvcsa.hpp || [[ $name =~ $left_out ]] || complain "kvcsa.hpp lacks $name"
done
[ "$n_functions" -gt 70 ] || complain "the functions of kvcsa.h were not found"

run() { # NAME COMPILER FLAGS...: test_cpp with the other file of the program always built without exceptions as C++17
    local name=$1 cxx=$2
    shift 2
    # shellcheck disable=SC2086
    "$cxx" "$@" $strict -o "$tmp/$name" test/test_cpp.cc "$tmp/other.o" "${link[@]}" ||
        { complain "test_cpp does not build: $name"; return; }
    mkdir -p "$tmp/$name.d"
    timeout 120 "$tmp/$name" examples/models/tiny "$tmp/$name.d" </dev/null >"$tmp/$name.out" 2>&1 ||
        { complain "test_cpp ($name) failed:"; cat "$tmp/$name.out"; }
    grep -qE '^[1-9][0-9]* passed, 0 failed, 0 skipped$' "$tmp/$name.out" || complain "test_cpp ($name) has no result"
}
# shellcheck disable=SC2086
"${compilers[0]}" -std=c++17 -fno-exceptions -fno-rtti -DTEST_CPP_OTHER $strict -c -o "$tmp/other.o" test/test_cpp.cc ||
    complain "the other file of test_cpp does not build"
last=${compilers[-1]}
run exceptions_17 "${compilers[0]}" -std=c++17
run exceptions_20 "$last" -std=c++20
run without_exceptions "$last" -std=c++17 -fno-exceptions -fno-rtti

# The programs of the guide, as they stand there (check_docs.sh does the same for those in C).
awk -v dir="$tmp" '
    $0 == "```cpp" { on = 1; n++; next }
    /^```$/        { on = 0 }
    on             { print >(dir "/guide_" n ".cc") }' docs/guide-cpp.md
n_guides=0
for source in "$tmp"/guide_*.cc; do
    n_guides=$((n_guides + 1))
    # shellcheck disable=SC2086
    if ! "$last" -std=c++17 $strict -o "$tmp/guide" "$source" "${link[@]}"; then
        complain "$(basename "$source") of guide-cpp.md does not build"
    elif ! timeout 60 "$tmp/guide" </dev/null >"$tmp/guide.out" 2>&1; then
        complain "$(basename "$source") of guide-cpp.md failed:"
        cat "$tmp/guide.out"
    fi
done
[ "$n_guides" -ge 4 ] || complain "the programs of guide-cpp.md were not found"

# What the types forbid does not compile.
refuse() { # CODE WHY
    printf '#include <kvcsa.hpp>\nvoid probe(kvcsa::pool &p, kvcsa::session &s) { (void)p, (void)s; %s }\n' "$1" >"$tmp/bad.cc"
    # shellcheck disable=SC2086
    "${compilers[0]}" -std=c++17 $strict -fsyntax-only "$tmp/bad.cc" 2>/dev/null && complain "compiles, and should not ($2): $1"
}
refuse 'kvcsa::session t = s; (void)t;' 'a handle has one owner'
refuse 'kvcsa::chunk c, d = c; (void)d;' 'a chunk has one owner'
refuse 'kvcsa::chunk c; c.commit();' 'an ignored status'
refuse 'p.step(s);' 'an ignored status'
refuse 's.append(1);' 'an ignored result'
refuse '(void)p.step(s, [](kvcsa_session *, std::uint64_t, std::uint64_t) { return true; });' 'a bool that may mean both'
refuse '(void)kvcsa::make_executor(1, [](std::uint32_t, kvcsa::executor_task) {});' 'an executor that may throw'
printf '#include <kvcsa.hpp>\nvoid probe(kvcsa::status s) { kvcsa::or_throw(s); }\n' >"$tmp/bad.cc"
"${compilers[0]}" -std=c++17 -fno-exceptions -Iinclude -fsyntax-only "$tmp/bad.cc" 2>/dev/null &&
    complain "or_throw without exceptions"
# A refusal is of the line, not of what stands around it.
printf '#include <kvcsa.hpp>\nvoid probe(kvcsa::pool &p, kvcsa::session &s) { (void)p, (void)s; }\n' >"$tmp/good.cc"
# shellcheck disable=SC2086
"${compilers[0]}" -std=c++17 $strict -fsyntax-only "$tmp/good.cc" || complain "the frame of refusals does not compile"

[ "$bad" -eq 0 ] && echo "kvcsa.hpp: $n modes, three programs, $n_guides samples of the guide"
exit "$bad"
