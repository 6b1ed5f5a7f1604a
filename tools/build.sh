#!/usr/bin/env bash
# build.sh BUILD TARGET... [-- CMAKE_OPTION...]: configures and builds targets with CMake and Ninja.
# Prints a line at each quarter of the steps, and the compiler's messages. The libraries go into
# tfring/_lib.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly build=$1
shift
targets=()
while (($#)) && [[ $1 != -- ]]; do
  targets+=("$1")
  shift
done
(($#)) && shift

mkdir -p "$build"
# One at a time: parallel sections of .ci/run use the same folder.
exec 9>"$build/lock"
flock 9
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTFRING_PACK_BINARIES=OFF \
  "-DTFRING_OUTPUT_DIR=$PWD/tfring/_lib" "-DPython_EXECUTABLE=$(command -v python)" "$@" \
  >"$build/configure.log" 2>&1 || {
  cat "$build/configure.log"
  exit 1
}
NINJA_STATUS='[%f/%t] ' cmake --build "$build" -j "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" \
  --target "${targets[@]}" | awk '
  match($0, /^\[[0-9]+\/[0-9]+\] /) {
    split(substr($0, 2, RLENGTH - 3), steps, "/")
    quarter = int(4 * steps[1] / steps[2])
    if (quarter > shown) printf "   compiled %d of %d\n", steps[1], steps[2]
    if (quarter > shown) shown = quarter
    fflush()
    next
  }
  $0 !~ /^ninja: no work to do/ { print; fflush() }
  END { if (shown) print "   compiled" }'
