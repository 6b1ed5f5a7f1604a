#!/usr/bin/env bash
# cc_tests.sh BUILD [CTEST_ARGUMENTS...]: the C++ tests of a build folder. Up to three that fail, and
# did not crash, run again, alone: one that passes then counted on its share of a busy processor. It
# is named as UNSTEADY, here and at the end of .ci/run, so that somebody finds out why.
set -uo pipefail
readonly build=$1
shift
readonly most_again=3
readonly failed=$build/Testing/Temporary/LastTestsFailed.log
readonly log=$build/Testing/cc_tests.log

rm -f "$failed"
mkdir -p "$build/Testing"
ctest --test-dir "$build" -j "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" --output-on-failure \
  --no-tests=error --output-log "$log" "$@"
code=$?
if ((code != 0)) && [[ -f $failed ]] && (($(wc -l <"$failed") <= most_again)) &&
  ! grep -q '\*\*\*Exception' "$log"; then
  names=$(cut -d: -f2 "$failed")
  echo "== again, one after the other:" $names
  ctest --test-dir "$build" --output-on-failure --rerun-failed "$@"
  code=$?
  ((code == 0)) && printf 'UNSTEADY %s\n' $names
fi
exit "$code"
