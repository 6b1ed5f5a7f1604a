# `make demo` and `make test` do all the set-up they need; every other target builds on the same.
# Needs python3 (3.10 or newer, with venv), make and a C++17 compiler. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= $(CURDIR)/.venv
BUILD ?= $(CURDIR)/build
JOBS ?= 2
# Most of tests/python waits for jobs that it has started. In the order of their names the files with
# the longest tests do not come last.
PYTEST_JOBS ?= 3
RANKS ?= 1 2 3 4

# The environment's own programs come first: its mpirun, cmake and formatters are the tested ones.
export PATH := $(VENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet
READY := $(VENV)/.tfring-ready
CXX_FILES = $$(git ls-files 'ops/*.cc' 'ops/*.h' 'tests/cc/*.cc' 'tests/cc/*.h' \
	'tests/doubles/*.cc' 'tests/doubles/*.h' \
	'tools/gpu_check/*.cc' 'tools/gpu_check/*.h' 'tools/wheels/*.cc' 'ops/*.cu')
PY_FILES := tfring tests benchmarks examples tools setup.py

.PHONY: help setup build demo test test-cc test-python test-parallel soak gpu-double test-gpu test-ray test-spark \
	wheel wheel-test lint lint-cc lint-python format tidy analyze sanitize fuzz bazel test-arm docs bench gpu-check \
	clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml tools/requirements.py
	test -x "$(PY)" || $(PYTHON) -m venv "$(VENV)"
	$(PIP) --upgrade pip tomli
	$(PY) tools/requirements.py > "$(VENV)/requirements.txt"
	$(PIP) -r "$(VENV)/requirements.txt"
	$(PY) tools/requirements.py keras2-tests > "$(VENV)/requirements-keras2.txt"
	$(PIP) --no-deps -r "$(VENV)/requirements-keras2.txt"
	$(PY) tools/requirements.py mpich > "$(VENV)/requirements-mpich.txt"
	$(PIP) --no-deps --ignore-installed --prefix "$(VENV)/mpich" -r "$(VENV)/requirements-mpich.txt" || \
	  echo "no MPICH: its plug-in is not built, and tests that need it are skipped"
	touch "$@"

setup: $(READY) ## Make the virtual environment .venv with everything that is needed

.PHONY: libraries
libraries: $(READY)
	@mkdir -p "$(BUILD)"
	cmake -S . -B "$(BUILD)" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTFRING_BUILD_TESTS=ON \
	  "-DTFRING_OUTPUT_DIR=$(CURDIR)/tfring/_lib" "-DPython_EXECUTABLE=$(PY)" \
	  >"$(BUILD)/configure.log" || { cat "$(BUILD)/configure.log"; exit 1; }
	cmake --build "$(BUILD)" -j $(JOBS)

# Once: installs the package in place, with its `tfring` command. The libraries are built already.
$(VENV)/.tfring-installed: $(READY) setup.py | libraries
	$(PIP) --no-build-isolation --no-deps -e .
	touch "$@"

build: libraries $(VENV)/.tfring-installed ## Compile the libraries and the C++ tests in place

demo: build ## Train a Keras model on two ranks under mpirun
	tools/mpi_run.sh 2 $(PY) examples/keras_fit.py

test: test-cc test-python test-parallel ## All tests

test-cc: build ## C++ tests
	tools/cc_tests.sh "$(BUILD)" --timeout 300

test-python: build ## Python tests of one process
	tools/python_tests.sh $(PYTEST_JOBS)

test-parallel: build ## Python tests under mpirun with 1, 2, 3 and 4 ranks (RANKS="2 3")
	tools/parallel_tests.sh $(RANKS)

soak: build ## Tests that run for long, hours in all: stores, elastic jobs real and simulated
	"$(BUILD)/ops/sim/membership/tfring_membership_sim" --seeds=10000
	$(PY) -m pytest -q -m soak tests/python

gpu-double: build ## Download TensorFlow's GPU wheel (600 MB) to run it on a fake CUDA driver
	$(PY) tests/helpers/gpu_double.py

test-gpu: build ## TensorFlow's GPU wheel on a fake CUDA driver; skipped if it cannot be downloaded
	$(PY) tests/helpers/gpu_double.py || echo "tests/gpu will be skipped"
	$(PY) -m pytest -q tests/gpu

test-ray: build ## tfring.ray on Ray itself; skipped with the reason if it cannot be installed
	$(PY) tools/requirements.py ray > "$(VENV)/requirements-ray.txt"
	$(PIP) -r "$(VENV)/requirements-ray.txt" || echo "Ray cannot be installed: its tests are skipped"
	$(PY) -m pytest -q tests/engines/ray

test-spark: build ## tfring.spark on Spark itself; skipped with the reason where it or Java is missing
	$(PY) tools/requirements.py spark spark-tests > "$(VENV)/requirements-spark.txt"
	$(PIP) -r "$(VENV)/requirements-spark.txt" || echo "Spark cannot be installed: its tests are skipped"
	$(PY) -m pytest -q tests/engines/spark

wheel: $(READY) ## Make a wheel in dist/
	rm -f dist/*.whl  # `make wheels` has a folder of its own there
	$(PY) -m pip wheel --no-build-isolation --no-deps --wheel-dir dist .
	@ls -l dist

wheel-test: wheel ## Install the wheel into a new environment without a compiler and test it there
	TFRING_TEST_WHEEL="$$(ls $(CURDIR)/dist/*.whl)" $(PY) -m pytest -q -m wheel tests/python

.PHONY: wheels wheels-test
wheels: $(READY) ## A wheel per Python in dist/wheels, for all versions of TensorFlow (MINORS=2.21, PYTHONS=3.11)
	$(PY) tools/requirements.py wheels > "$(VENV)/requirements-wheels.txt"
	$(PIP) -r "$(VENV)/requirements-wheels.txt"
	$(PY) tools/wheels/make_wheels.py --jobs "$(JOBS)" --minors "$(MINORS)" --pythons "$(PYTHONS)"

wheels-test: wheels ## Install them beside each TensorFlow, without a compiler, and test them (KERAS="3.1 3.8", FEW=--few)
	$(PY) tools/wheels/check_wheels.py --minors "$(MINORS)" --keras "$(KERAS)" $(FEW)

lint: lint-python lint-cc tidy ## All linters

lint-python: $(READY) ## ruff, mypy, and the rules about arrows and sizes
	$(VENV)/bin/ruff check $(PY_FILES)
	$(VENV)/bin/ruff format --check $(PY_FILES)
	$(VENV)/bin/mypy
	$(PY) -m pytest -q tests/python/structure/test_structure.py

lint-cc: $(READY) ## clang-format
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)

tidy: build ## clang-tidy on the runtime
	tools/tidy.sh "$(BUILD)"

# Without the check that takes what a std::optional holds for uninitialised.
analyze: build ## clang's static analyzer on the runtime: five minutes, so it is no part of `make lint`
	tools/tidy.sh "$(BUILD)" \
	  --checks='-*,clang-analyzer-core*,clang-analyzer-cplusplus*,-clang-analyzer-core.uninitialized.Assign'

format: $(READY) ## Reformat all sources
	$(VENV)/bin/clang-format -i $(CXX_FILES)
	$(VENV)/bin/ruff format $(PY_FILES)
	$(VENV)/bin/ruff check --fix $(PY_FILES)

sanitize: $(READY) ## C++ tests with the address, undefined-behaviour and thread sanitizers
	tools/sanitize.sh "$(BUILD)-sanitize"

.PHONY: sanitize-build
sanitize-build: $(READY)
	tools/sanitize.sh "$(BUILD)-sanitize" --build-only

fuzz: $(READY) ## Feed broken messages to the decoders (SECONDS_TO_FUZZ for each, default 60)
	tools/fuzz.sh "$(BUILD)-sanitize" $${SECONDS_TO_FUZZ:-60}

.PHONY: bazel-build
bazel-build:
	tools/bazel_offline.sh build

bazel: ## Build the runtime and run the C++ tests with Bazel, without a network
	tools/bazel_offline.sh

test-arm: $(READY) ## Build the runtime for 64-bit ARM, and run its C++ tests with qemu
	tools/arm64_tests.sh "$(BUILD)-arm64" $(PY)

docs: build ## The documentation as HTML in docs/_build/html; warnings are errors
	$(PY) -m sphinx -W --keep-going -q -b html docs docs/_build/html

bench: build ## Benchmarks on two ranks, compared with Open MPI alone; JSON in build/bench
	tools/bench.sh "$(BUILD)/bench"

gpu-check: build ## tfring on a GPU, step by step; on the doubles with GPU_CHECK_DOUBLE=1. JSON in build/
	$(PY) tools/gpu_check.py --build "$(BUILD)" --output "$(BUILD)/gpu_check.jsonl" $(GPU_CHECK_ARGS)

clean: ## Remove what was built
	rm -rf build build-* dist tfring/_lib/*.so *.egg-info

distclean: clean ## Also remove the virtual environment
	rm -rf "$(VENV)"
