#!/usr/bin/env bash
# fuzz.sh BUILD SECONDS [SEED]: the decoders of messages under the address and undefined-behaviour
# sanitizers, each fed with mutated messages for SECONDS from a seed that it prints.
set -euo pipefail
cd "$(dirname "$0")/.."

folder="$1-address"
mkdir -p "$folder"
cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DTFRING_SANITIZE=address,undefined -DTFRING_BUILD_TESTS=ON -DTFRING_BUILD_OPS=OFF \
  -DTFRING_BUILD_BINDINGS=OFF \
  >"$folder/configure.log"
fuzzers=(protocol_message_wire_fuzz_test membership_messages_fuzz_test)
cmake --build "$folder" -j "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" --target "${fuzzers[@]}"
for fuzzer in "${fuzzers[@]}"; do
  UBSAN_OPTIONS=halt_on_error=1 "$folder/tests/cc/$fuzzer" "$2" "${3:-$RANDOM}"
done
