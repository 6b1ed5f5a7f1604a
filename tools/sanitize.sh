#!/usr/bin/env bash
# sanitize.sh BUILD [--build-only]: the C++ tests of `make test` with the address and undefined
# sanitizers, then the tests with threads with the thread sanitizer. Each in a folder beside BUILD.
set -euo pipefail
cd "$(dirname "$0")/.."
build_only=${2:-}

run() {
  local folder=$1 kinds=$2 target=$3
  shift 3
  mkdir -p "$folder"
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DTFRING_SANITIZE=$kinds" \
    -DTFRING_BUILD_OPS=OFF -DTFRING_BUILD_BINDINGS=OFF -DTFRING_BUILD_TESTS=ON \
    >"$folder/configure.log" || {
    cat "$folder/configure.log"
    return 1
  }
  cmake --build "$folder" -j "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" --target "$target"
  if [[ -n $build_only ]]; then
    return 0
  fi
  tools/cc_tests.sh "$folder" --timeout 600 "$@"
}

export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
echo "== address, undefined"
# Leaves out sim_checker_test: it tests the simulator's checks, and the simulator itself runs here.
run "$1-address" address,undefined tfring_tests --exclude-regex '^sim_checker_test$'
echo "== thread"
run "$1-thread" thread tests_with_threads --label-regex '^threads$'
