#!/bin/bash
# Builds what `make bench` compares the library with: test/bench/build_peers.sh DIR [PEER]...
#
#   ggml     its CPU backend, from the source archive of PyPI's llama-cpp-python (cmake, a C++ compiler)
#   blas     OpenBLAS, PyPI's scipy-openblas32
#   onednn   oneDNN, PyPI's onednn-cpu-gomp: the last one that runs without a SYCL runtime
#   torch    PyTorch's matmul (MKL), PyPI's torch: 540 MB; only its CPU library is used, without the CUDA packages that the
#            wheel asks for, but for two small ones that it is linked to
#
# All of them without PEER. Each becomes DIR/peer_NAME.so, a shim around the real thing (test/bench/peers); everything that is
# fetched stays in DIR. A peer that cannot be built is left out with a message: its rows then say "peer absent". Set versions by the
# variables below, PYTHON (3.9 or later, with venv), CC, CXX, JOBS.
set -u
cd "$(dirname "$0")/../.."
dir=${1:?folder}
shift
peers=("$@")
[ ${#peers[@]} -gt 0 ] || peers=(ggml blas onednn torch)
python=${PYTHON:-python3}
cc=${CC:-cc}
cxx=${CXX:-c++}
jobs=${JOBS:-1}
: "${LLAMA_CPP_PYTHON:=0.3.36}" "${OPENBLAS:=0.3.34.481.3}" "${ONEDNN:=2023.2.0}" "${TORCH:=2.15.0}" "${CUDA:=13.2}"

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
src=$PWD/test/bench/peers
log=$dir/log
failed=()

quiet() { "$@" >>"$log" 2>&1 || { echo "peers: failed: $1 (see $log)" >&2; return 1; }; }
# Packages as they are, without what they ask for.
packages() { quiet "$dir/venv/bin/python" -m pip install -q --no-deps "$@"; }
site() { "$dir/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }
# shim NAME COMPILER ARGUMENTS...: with the version as the shim is to tell it
shim() {
    local name=$1
    shift
    quiet "$@" -O2 -fPIC -shared -fvisibility=hidden -I"$src" -o "$dir/peer_$name.so"
}

build_ggml() {
    local archive tree
    mkdir -p "$dir/ggml"
    archive=$dir/ggml/llama_cpp_python-$LLAMA_CPP_PYTHON.tar.gz
    [ -f "$archive" ] || quiet "$dir/venv/bin/python" -m pip download -q --no-deps --no-binary :all: -d "$dir/ggml" \
        "llama-cpp-python==$LLAMA_CPP_PYTHON" || return 1
    tree=$dir/ggml/llama_cpp_python-$LLAMA_CPP_PYTHON/vendor/llama.cpp/ggml
    [ -d "$tree" ] || quiet tar -xzf "$archive" -C "$dir/ggml" || return 1
    [ -f "$tree/ggml.pc.in" ] || : >"$tree/ggml.pc.in" # the archive lacks it, cmake wants it
    quiet cmake -S "$tree" -B "$dir/ggml/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF \
        -DGGML_CCACHE=OFF &&
        quiet cmake --build "$dir/ggml/build" -j "$jobs" &&
        shim ggml "$cxx" -std=c++17 "-DPEER_FROM=\"llama-cpp-python $LLAMA_CPP_PYTHON\"" -I"$tree/include" "$src/peer_ggml.cpp" \
            -Wl,--whole-archive "$dir/ggml/build/src/libggml-cpu.a" -Wl,--no-whole-archive "$dir/ggml/build/src/libggml.a" \
            "$dir/ggml/build/src/libggml-base.a" -Wl,--exclude-libs,ALL -fopenmp -lpthread -ldl -lm
}

build_blas() {
    local at
    packages "scipy-openblas32==$OPENBLAS" || return 1
    at=$(site)/scipy_openblas32
    shim blas "$cc" -std=gnu11 "$src/peer_blas.c" "-I$at/include" -L"$at/lib" -lscipy_openblas "-Wl,-rpath,$at/lib"
}

build_onednn() {
    packages "onednn-cpu-gomp==$ONEDNN" "onednn-devel-cpu-gomp==$ONEDNN" || return 1
    shim onednn "$cc" -std=gnu11 "$src/peer_onednn.c" "-I$dir/venv/include" "$dir/venv/lib/libdnnl.so.3" "-Wl,-rpath,$dir/venv/lib"
}

build_torch() {
    local at
    packages "torch==$TORCH" "nvidia-cuda-runtime==$CUDA.*" "nvidia-cuda-cupti==$CUDA.*" || return 1
    at=$(site)
    shim torch "$cxx" -std=c++20 -w "$src/peer_torch.cpp" -isystem "$at/torch/include" \
        -isystem "$at/torch/include/torch/csrc/api/include" -L"$at/torch/lib" -ltorch_cpu -lc10 \
        "-Wl,-rpath,$at/torch/lib:$at/nvidia/cu13/lib" -Wl,--allow-shlib-undefined
}

: >"$log"
[ -x "$dir/venv/bin/python" ] || quiet "$python" -m venv "$dir/venv" || exit 1
for peer in "${peers[@]}"; do
    echo "peers: $peer" >&2
    "build_$peer" || failed+=("$peer")
done
[ ${#failed[@]} -eq 0 ] || { echo "peers: absent: ${failed[*]}" >&2; exit 1; }
