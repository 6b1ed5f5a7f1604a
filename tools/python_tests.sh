#!/usr/bin/env bash
# python_tests.sh JOBS MARKS [PYTEST_ARGUMENT...]: tests/python, those that pytest's `-m MARKS`
# selects. JOBS processes run beside each other, then the tests marked `alone`.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly jobs=$1 marks=$2
shift 2
code=0

run() {
  python -m pytest -q --durations=15 tests/python "$@"
  local ended=$?
  ((ended == 0 || ended == 5)) || code=$ended # 5: no test has these marks
}

run -m "($marks) and not wheel and not alone" -n "$jobs" --dist loadfile \
  --max-worker-restart 0 "$@"
run -m "($marks) and alone" "$@"
exit $code
