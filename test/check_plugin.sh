#!/bin/bash
# The CUDA plug-in as nvcc makes it: test/check_plugin.sh MAKE BUILD LIBS
#
#   it exports one symbol, and links neither the driver nor cuBLAS, cuRAND, the CUDA runtime or libkvcsa;
#   no kernel of any architecture spills or uses local memory; registers of each are in BUILD/cuda/resources.txt, shared memory of
#   launches in BUILD/cuda/shared.txt;
#   without a device the loader says why, and the CPU is used.
# Without nvcc it is skipped, and says so. Ends with "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.." || exit 2
make=${1:-make} build=${2:-build} libs=${3:-lib}
passed=0 failed=0
mkdir -p "$build/cuda"
folder=$(realpath "$build/cuda")
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
    # What ptxas said of each image: Compiling entry function 'NAME' for 'ARCH', then a line with stack and spills, then registers.
    find "$build/cuda" -name '*.ptxas' -exec cat {} + | awk '
        function number(text, what) {
            return match(text, "[0-9]+ " what) ? substr(text, RSTART, RLENGTH - length(what) - 1) + 0 : 0
        }
        /Compiling entry function/ { split($0, part, "\047"); name = part[2]; arch = part[4] }
        /bytes stack frame/ {
            stack = number($0, "bytes stack frame")
            spill = number($0, "bytes spill stores") + number($0, "bytes spill loads")
        }
        /: Used [0-9]+ registers/ {
            match($0, /Used [0-9]+/)
            printf "%-8s regs %3d stack %4d spills %4d  %s\n", arch, substr($0, RSTART + 5, RLENGTH - 5), stack, spill, name
        }' | c++filt | sort -k 8 >"$build/cuda/resources.txt"
    n=$(wc -l <"$build/cuda/resources.txt")
    per_arch=$(awk '{ print $1 }' "$build/cuda/resources.txt" | sort | uniq -c | sort -k 2 | awk '{ printf "%s%s %s", s, $2, $1; s = ", " }')
    [ "$n" -gt 0 ] && [ "$(awk '{ print $1 }' "$build/cuda/resources.txt" | sort -u | wc -l)" -ge 4 ]
    judge "kernel images are listed in cuda/resources.txt: $per_arch" $?
    ! grep -vE ' stack +0 spills +0 ' "$build/cuda/resources.txt"
    judge "none of $n images spills or has a stack frame" $?
    # Shared memory is chosen at launch: the most that a kernel has had in the emulated tests.
    rm -f "$build/cuda/launches.txt"
    for t in attend attend_sm90 cache candidates copy dense index linear moe norm paged paged_write rand route select slices; do
        KVI_EMU_SHARED=$folder/launches.txt "$build/check/test/test_cuda_$t" >"$build/cuda/test.log" 2>&1 ||
            { echo "test_cuda_$t failed" && tail -5 "$build/cuda/test.log"; }
    done
    awk -F '\t' '$2 > most[$1] + 0 { most[$1] = $2 } { seen[$1] = 1 }
        END { for (k in seen) printf "shared %6d  %s\n", most[k], k }' "$build/cuda/launches.txt" | sort -k 3 >"$build/cuda/shared.txt"
    [ "$(wc -l <"$build/cuda/shared.txt")" -ge 20 ] && ! awk '$2 > 227 * 1024' "$build/cuda/shared.txt" | grep .
    rc=$?
    judge "shared memory of $(wc -l <"$build/cuda/shared.txt") kernels is in cuda/shared.txt, none above 227 KiB" $rc
    why=$("$build/check/test/load_plugin" "$(realpath "$libs")")
    rc=$?
    echo "         $why"
    [ $rc -le 1 ] && [ -n "$why" ]
    judge "the loader says what it found" $?
fi
counts $passed $failed 0
[ $failed -eq 0 ]
