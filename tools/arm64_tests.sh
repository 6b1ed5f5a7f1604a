#!/usr/bin/env bash
# arm64_tests.sh BUILD PYTHON: the runtime and its C++ tests for 64-bit ARM, by Debian's cross-compiler,
# run by qemu. TFRING_ARM64_TENSORFLOW=FOLDER, of an unpacked TensorFlow wheel for ARM, also builds the
# op libraries. TFRING_ARM64_TESTS is the expression by which ctest chooses tests. Skipped with the
# reason where compiler or qemu are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly build=$1 python=$2
# Not the simulators, nor the fakes of NCCL and of the CUDA driver.
folders='base|thread_pool|transport|backend_(arena|reduction|schedule|algorithms|cpu)|membership|process'
readonly tests=${TFRING_ARM64_TESTS:-"^($folders|protocol|recorder)_"}
# Some of their cases need features that qemu lacks: MADV_DONTFORK, TCP_INFO, RLIMIT_AS, and a
# silent SIGABRT. Their other cases run below.
readonly partly='^(base_check|process_process_runtime|transport_shm_segment|transport_sockets)_test$'
readonly cases=(
  base/check_test.ATrueCondition base/check_test.AFalseConditionPrints
  process/process_runtime_test.BeforeInit process/process_runtime_test.OneRankInits
  process/process_runtime_test.TwoRanksWork
  process/process_runtime_test.AFailedInit process/process_runtime_test.Shutdown
  process/process_runtime_test.AForkedChild
  transport/shm_segment_test.OpenRefuses transport/shm_segment_test.ASegmentCannotChange
  transport/sockets_test.FrameReader transport/sockets_test.AWatchedStream
  transport/sockets_test.AHostileLength transport/sockets_test.ABrokenPipe
  transport/sockets_test.TheEndOfAProcess transport/sockets_test.DescriptorsAre
  transport/sockets_test.AForkedChild transport/sockets_test.ADeadline
)

for program in aarch64-linux-gnu-g++ qemu-aarch64-static; do
  if ! command -v "$program" >/dev/null; then
    echo "SKIPPED: there is no $program: apt-get install g++-aarch64-linux-gnu qemu-user-static"
    exit 0
  fi
done
ops=OFF
[[ -n ${TFRING_ARM64_TENSORFLOW:-} ]] && ops=ON
cmake -S . -B "$build" -G Ninja --toolchain "$PWD/tools/arm64.cmake" -DCMAKE_BUILD_TYPE=Release \
  -DTFRING_BUILD_TESTS=ON -DTFRING_BUILD_BINDINGS=OFF -DTFRING_BUILD_OPS="$ops" \
  "-DTFRING_TENSORFLOW=${TFRING_ARM64_TENSORFLOW:-}" "-DPython_EXECUTABLE=$python"
if [[ $ops == ON ]]; then
  cmake --build "$build" --target tfring_libraries
fi
programs=(algorithms backend base membership process protocol transport)
cmake --build "$build" --target tfring_runtime "${programs[@]/%/_tests}" \
  membership_messages_fuzz_test protocol_message_wire_fuzz_test
tools/cc_tests.sh "$build" --timeout 900 -R "$tests" -E "$partly"
for case in "${cases[@]}"; do
  qemu-aarch64-static -L /usr/aarch64-linux-gnu "$build/tests/cc/${case%%/*}_tests" "$case"
done
