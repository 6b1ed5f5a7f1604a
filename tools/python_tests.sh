#!/usr/bin/env bash
# python_tests.sh JOBS [FOLDER]: tests/python, or a folder of it, with JOBS processes beside each
# other, then those that judge the pace of ranks, alone. Up to three tests that fail run again one
# after the other: one that passes then counted on its share of a busy processor, or shows a race. It
# is named as UNSTEADY, here and at the end of .ci/run, so that somebody finds out which.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly most_again=3
readonly folder=${2:-tests/python}
readonly cache=.pytest_cache/v/cache/lastfailed

names_of_failed() {
  [[ -f $cache ]] && python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' $cache
}

tests() {
  python -m pytest -q --cache-clear "$folder" "$@"
  local code=$? failed
  mapfile -t failed < <(names_of_failed)
  if ((code == 1 && ${#failed[@]} >= 1 && ${#failed[@]} <= most_again)); then
    echo "== again, one after the other: ${#failed[@]}"
    python -m pytest -q "${failed[@]}"
    code=$?
    ((code == 0)) && printf 'UNSTEADY %s\n' "${failed[@]}"
  fi
  return $code
}

tests -m "not wheel and not alone" -n "$1" --dist loadfile --no-loadscope-reorder \
  --max-worker-restart 0 || exit
tests -m alone
