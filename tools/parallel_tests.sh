#!/usr/bin/env bash
# parallel_tests.sh MARKS RANKS...: runs tests/parallel under mpirun, once for each number of ranks:
# the tests that pytest's `-m MARKS` selects. Every rank runs every test; mpirun ends the others and
# fails when one rank fails. All tests run with 2 ranks. With other numbers those marked `any_ranks`
# run: their code depends on the number. Runs with 3 ranks have no GPU library, which tensors in
# host memory must not need. FOLDERS="keras ops" selects folders.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly marks=$1
shift
if (($# == 0)) || [[ ! "$*" =~ ^([1-9][0-9]* ?)+$ ]]; then
  echo "parallel_tests.sh: '$*' are no numbers of ranks, such as 1 2 3 4" >&2
  exit 2
fi
folders=()
for folder in ${FOLDERS:-}; do
  folders+=("tests/parallel/$folder")
done
((${#folders[@]})) || folders=(tests/parallel)
failed=()
readonly host_only=$(mktemp -d)
trap 'rm -r "$host_only"' EXIT
ln -s "${TFRING_X_LIB_DIR:-$PWD/tfring/_lib}"/* "$host_only"
rm -f "$host_only/libtfring_cuda.so"

for ranks in "$@"; do
  started=$SECONDS
  selected=$marks
  ((ranks == 2)) || selected="($marks) and any_ranks"
  # With two ranks tests/conftest.py switches oneDNN off.
  with=("TF_ENABLE_ONEDNN_OPTS=1")
  ((ranks == 2)) && with=()
  ((ranks == 3)) && with+=("TFRING_X_LIB_DIR=$host_only")
  env "${with[@]}" timeout --foreground --kill-after=20 "${TFRING_TEST_LIMIT:-1800}" \
    tools/mpi_run.sh "$ranks" python -m pytest -q -x --color=no -p no:cacheprovider \
    -m "$selected" "${folders[@]}"
  code=$?
  # 5: no test has these marks. All tests together have them, with 2 ranks.
  if ((code != 0)) && { ((code != 5)) || [[ $ranks == 2 && -z ${FOLDERS:-} ]]; }; then
    failed+=("$ranks")
  fi
  echo "== tests/parallel with $ranks rank(s) took $((SECONDS - started)) s"
done
if ((${#failed[@]})); then
  echo "tests/parallel FAILED with ${failed[*]} rank(s)"
  exit 1
fi
