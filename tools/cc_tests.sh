#!/usr/bin/env bash
# cc_tests.sh BUILD [--slow|--all] [CTEST_ARGUMENTS...]: the C++ tests of a build folder. Without an
# option those of `make test`; --slow: those that only `make test-all` runs.
set -euo pipefail
readonly build=$1
shift
tier=(--label-exclude '^slow$')
case ${1:-} in
  --slow) tier=(--label-regex '^slow$') ;;
  --all) tier=() ;;
esac
if [[ ${1:-} == --slow || ${1:-} == --all ]]; then
  shift
fi
# Many tests wait for threads or time limits, so more of them run than there are processors.
readonly jobs=$((2 * ${CMAKE_BUILD_PARALLEL_LEVEL:-2}))
ctest --test-dir "$build" --parallel "$jobs" --output-on-failure --no-tests=error --timeout 300 \
  "${tier[@]}" "$@"
