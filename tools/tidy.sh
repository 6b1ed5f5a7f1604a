#!/usr/bin/env bash
# tidy.sh BUILD [OPTION...] [-- FILE...]: clang-tidy over these files, or over all sources of the
# runtime, the GPU code and the simulator. Configures BUILD with one unit per source, and compiles
# nothing. Leaves out files that include TensorFlow or pybind11: each takes half a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
options=()
while (($#)) && [[ $1 != -- ]]; do
  options+=("$1")
  shift
done
if (($#)); then
  shift
  files=("$@")
else
  mapfile -t files < <(git ls-files 'ops/runtime/*.cc' 'ops/gpu/*.cc' 'ops/sim/*.cc')
fi
mkdir -p "$build"
cmake -S . -B "$build" -G Ninja -DTFRING_BUILD_TESTS=ON -DTFRING_UNITY=OFF -DTFRING_BUILD_OPS=OFF \
  -DTFRING_BUILD_BINDINGS=OFF "-DPython_EXECUTABLE=$(command -v python)" \
  >"$build/configure.log" 2>&1 || {
  cat "$build/configure.log"
  exit 1
}
printf '%s\n' "${files[@]}" | xargs -P 2 -n 4 clang-tidy --quiet -p "$build" "${options[@]}"
