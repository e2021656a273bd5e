#!/bin/bash
# The CUDA plug-in as nvcc makes it: test/check_plugin.sh MAKE BUILD LIBS
#
#   it exports one symbol, and links neither the driver nor cuBLAS, cuRAND, the CUDA runtime or libkvcsa;
#   no kernel of any architecture spills or uses local memory; registers and shared memory of each are in BUILD/cuda/resources.txt;
#   without a device the loader says why, and the CPU is used.
# Without nvcc it is skipped, and says so. Ends with "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.." || exit 2
make=${1:-make} build=${2:-build} libs=${3:-lib}
passed=0 failed=0
mkdir -p "$build/cuda"
counts() {
    echo "$1 $2 $3" >"$build/cuda/counts"
    echo "$1 passed, $2 failed, $3 skipped"
}
if ! command -v "${NVCC:-nvcc}" >/dev/null; then
    echo "nvcc is missing: the CUDA plug-in is not built"
    counts 0 0 1
    exit 0
fi
judge() { # WHAT RC
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1)) && echo "ok       $1"
    else
        failed=$((failed + 1)) && echo "FAILED   $1"
    fi
}
$make --no-print-directory cuda B="$build" L="$libs"
judge "builds for every architecture" $?
so=$libs/libkvcsa_cuda.so
if [ -e "$so" ]; then
    [ "$(nm -D --defined-only "$so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')" = kvcsa_backend_query ]
    judge "exports kvcsa_backend_query and nothing else" $?
    ! ldd "$so" | grep -E 'libcuda|libcublas|libcurand|libkvcsa|libcudart'
    judge "links no driver, no CUDA library, no libkvcsa" $?
    cuobjdump=$(dirname "$(command -v "${NVCC:-nvcc}")")/cuobjdump
    "$cuobjdump" -res-usage "$so" 2>/dev/null | awk '
        /^ *Function |arch =/ {
            if ($1 == "arch") arch = $3
            if ($1 == "Function") { name = $2; sub(/:$/, "", name) }
        }
        /REG:/ {
            line = $0
            for (i = 1; i <= split("REG STACK SHARED LOCAL", key, " "); i++) {
                match(line, key[i] ":[0-9]+")
                value[i] = substr(line, RSTART + length(key[i]) + 1, RLENGTH - length(key[i]) - 1)
            }
            printf "%-8s regs %3d stack %4d shared %6d local %4d  %s\n", arch, value[1], value[2], value[3], value[4], name
        }' | c++filt >"$build/cuda/resources.txt"
    [ -s "$build/cuda/resources.txt" ]
    judge "resources of $(wc -l <"$build/cuda/resources.txt") kernel images are listed" $?
    ! grep -vE ' stack +0 .* local +0 ' "$build/cuda/resources.txt"
    judge "no kernel spills or uses local memory" $?
    why=$("$build/check/test/load_plugin" "$(realpath "$libs")")
    rc=$?
    echo "         $why"
    [ $rc -le 1 ] && [ -n "$why" ]
    judge "the loader says what it found" $?
fi
counts $passed $failed 0
[ $failed -eq 0 ]
