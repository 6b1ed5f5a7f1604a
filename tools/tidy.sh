#!/usr/bin/env bash
# tidy.sh BUILD [OPTIONS]: clang-tidy over the sources of the runtime and the simulator, with the
# compile commands of BUILD. Files that include TensorFlow or pybind11 are left out: each takes half a
# minute.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
git ls-files 'ops/runtime/*.cc' 'ops/sim/*.cc' | xargs -P 2 -n 4 clang-tidy --quiet -p "$build" "$@"
