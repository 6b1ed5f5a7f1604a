#!/usr/bin/env bash
# parallel_tests.sh RANKS...: runs tests/parallel once under mpirun for each number of ranks. Every
# rank runs every test; mpirun ends the others and fails when one rank fails. With three ranks and
# more, tests are left out whose code does not depend on the number of ranks beyond two; every test
# holds for any number of ranks all the same. FOLDERS="keras ops" chooses folders. Ranks whose tests
# fail run them once more: if they pass then, the test that failed is named as UNSTEADY, here and at
# the end of .ci/run, so that somebody finds out why.
set -uo pipefail
cd "$(dirname "$0")/.."

folders_for() {
  if [[ -n ${FOLDERS:-} ]]; then
    printf 'tests/parallel/%s ' $FOLDERS
  elif (($1 <= 2)); then
    echo tests/parallel
  else
    printf 'tests/parallel/%s ' collectives native process_sets training sharding comparison \
      test_world.py
    (($1 == 3)) && printf 'tests/parallel/keras/test_%s.py ' batch_norm equivalence evaluate join \
      several_optimizers sparse_equals_dense
  fi
}

run_with() {
  local ranks=$1 started=$SECONDS code=0
  timeout --kill-after=20 "${TFRING_TEST_LIMIT:-1800}" \
    tools/mpi_run.sh "$ranks" python -m pytest -q -x --color=no -p no:cacheprovider \
    $(folders_for "$ranks") || code=$?
  echo "== tests/parallel with $ranks rank(s) took $((SECONDS - started)) s"
  return $code
}

# The tests that failed, of a log.
failures() {
  grep -aoE '^(FAILED|ERROR) [^ ]+' "$1" | sort -u
}

# Into the log, and at the same time to the output: not through a pipe, which something that a test
# has left behind could keep open.
run_and_show() {
  local ranks=$1 log=$2 code=0 shows
  : >"$log"
  tail -n +1 -f "$log" &
  shows=$!
  run_with "$ranks" >"$log" 2>&1 || code=$?
  sleep 1
  kill "$shows"
  wait "$shows" 2>/dev/null
  return $code
}

run_or_again() {
  local ranks=$1 code=0 log named
  log=$(mktemp)
  run_and_show "$ranks" "$log" || code=$?
  named=$(failures "$log")
  # Not after a crash, or when the time was over.
  if ((code == 1)) && [[ -n $named ]]; then
    echo "== tests/parallel with $ranks rank(s), again"
    code=0
    run_with "$ranks" || code=$?
    if ((code == 0)); then
      sed "s/^[A-Z]*/UNSTEADY with $ranks rank(s):/" <<<"$named"
    fi
  fi
  rm -f "$log"
  return $code
}

failed=()
single_log=$(mktemp)
trap 'rm -f "$single_log"' EXIT
single=
for ranks in "$@"; do
  if [[ $ranks == 1 && $# -gt 1 ]]; then
    # A job of one rank uses one core: it runs at the same time as the others, and its output is
    # printed at the end.
    run_or_again 1 >"$single_log" 2>&1 &
    single=$!
  elif ! run_or_again "$ranks"; then
    failed+=("$ranks")
  fi
done
if [[ -n $single ]]; then
  wait "$single" || failed+=(1)
  cat "$single_log"
fi
if ((${#failed[@]})); then
  echo "tests/parallel FAILED with ${failed[*]} rank(s)"
  exit 1
fi
