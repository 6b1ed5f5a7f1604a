#!/usr/bin/env bash
# parallel_tests.sh RANKS...: runs tests/parallel once under mpirun for each number of ranks. Every
# rank runs every test; mpirun ends the others and fails when one rank fails.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
for ranks in "$@"; do
  echo "== tests/parallel with $ranks rank(s)"
  started=$SECONDS
  if ! timeout --kill-after=20 "${TFRING_TEST_LIMIT:-420}" \
    tools/mpi_run.sh "$ranks" python -m pytest -q -x --color=no -p no:cacheprovider tests/parallel; then
    failed+=("$ranks")
  fi
  echo "== $ranks rank(s) took $((SECONDS - started)) s"
done
if ((${#failed[@]})); then
  echo "tests/parallel FAILED with ${failed[*]} rank(s)"
  exit 1
fi
