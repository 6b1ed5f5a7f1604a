# `make demo` and `make test` do all set-up that they need; so does each other target.
# Needs python3 (3.10 or newer, with venv), make and a C++17 compiler. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Two targets at once would share build/ and .venv. The compiler uses JOBS processes, pytest
# PYTEST_JOBS.
.NOTPARALLEL:
ifneq ($(words $(CURDIR)),1)
  $(error the path of this folder has a space, which make cannot have in its rules: $(CURDIR))
endif

PYTHON ?= python3
VENV ?= $(CURDIR)/.venv
BUILD ?= $(CURDIR)/build
JOBS ?= 2
RANKS ?= 1 2 3 4
# Most of tests/python waits for jobs, so there can be more processes than cores.
PYTEST_JOBS ?= 3
# What `make check` compares with: a commit; empty for the last one.
BASE ?=

ifeq ($(origin PYTHON) $(wildcard $(VENV)/bin/python),command line $(VENV)/bin/python)
  $(warning PYTHON=$(PYTHON) is not used, because .venv exists: remove that folder to have another Python)
endif

# The environment's programs come first: its mpirun, cmake and formatters are the tested ones.
export PATH := $(VENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet
CXX_FILES = $$(git ls-files 'ops/*.cc' 'ops/*.h' 'tests/cc/*.cc' 'tests/cc/*.h' \
	'tests/fakes/*.cc' 'tests/fakes/*.h' \
	'tools/gpu_check/*.cc' 'tools/gpu_check/*.h' 'tools/wheels/*.cc' 'ops/*.cu')
PY_FILES := tfring tests benchmarks examples packages tools setup.py

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- The environment. Each target installs the groups of requirements that it needs.

# $(call install,GROUPS,PIP_OPTIONS)
install = $(PY) tools/requirements.py $(1) > "$(VENV)/requirements-$(firstword $(1)).txt"; \
	$(PIP) $(2) -r "$(VENV)/requirements-$(firstword $(1)).txt"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("tfring needs Python 3.10 or newer")'
	@$(PYTHON) -m venv "$(VENV)"

$(VENV)/.ready-%: pyproject.toml tools/requirements.py | $(VENV)/bin/python
	@echo "== Installing what '$*' needs into .venv"
	@$(call install,$*)
	@touch "$@"

# `keras2-tests` asks for `tensorflow`, which would overwrite tensorflow-cpu.
$(VENV)/.ready-keras2-tests: PIP += --no-deps
# MPICH has its own folder, because Open MPI's files have the same names. Some platforms lack it.
$(VENV)/.ready-mpich: pyproject.toml tools/requirements.py | $(VENV)/bin/python
	@{ $(call install,mpich,--no-deps --ignore-installed --prefix "$(VENV)/mpich"); } && touch "$@" || \
	  echo "no MPICH: its plug-in is not built, and tests that need it are skipped"

BUILD_READY := $(VENV)/.ready-build
DEMO_READY := $(BUILD_READY) $(VENV)/.ready-demo
TEST_READY := $(DEMO_READY) $(VENV)/.ready-test $(VENV)/.ready-keras2-tests

.PHONY: setup
setup: $(TEST_READY) $(foreach group,mpich wheels lint docs,$(VENV)/.ready-$(group)) ## Make the virtual environment .venv with all that targets need, except Ray and Spark

# ---- Build and demo.

# Installs the package in place once, with its `tfring` command. The libraries are built already.
$(VENV)/.tfring-installed: setup.py pyproject.toml | libraries
	@$(PIP) --no-build-isolation --no-deps -e .
	@touch "$@"

.PHONY: libraries build demo
libraries: $(DEMO_READY)
	@echo "== Compiling the libraries"
	@tools/build.sh "$(BUILD)" tfring_libraries

build: libraries $(VENV)/.tfring-installed ## Compile the libraries in place, and install the package in place

# Without oneDNN, which TensorFlow would announce at each start.
demo: build ## Train a Keras model on two ranks under mpirun
	@echo "== Training on two ranks: mpirun -np 2 python examples/keras_fit.py"
	@TF_ENABLE_ONEDNN_OPTS=0 tools/mpi_run.sh 2 $(PY) examples/keras_fit.py
	@echo "== That was one model, trained by two processes. Next:"
	@echo "   .venv/bin/tfring run -np 2 .venv/bin/python examples/custom_loop.py"
	@echo "   .venv/bin/tfring doctor    # what is installed, how it is set, what is wrong"
	@echo "   make test                  # the tests"

# ---- Tests. `make test` finds nearly all faults; `make test-all` runs everything.

.PHONY: test-build test test-cc test-python test-parallel test-all soak
test-build: build $(TEST_READY) ## Compile the C++ tests
	@tools/build.sh "$(BUILD)" tfring_tests -- -DTFRING_BUILD_TESTS=ON

PYTHON_FOLDERS := tests/python
PYTHON_TESTS := $(PY) -m pytest -q --durations=15 $(PYTHON_FOLDERS)
BESIDE_EACH_OTHER := -n $(PYTEST_JOBS) --dist loadfile --max-worker-restart 0
QUICK_PYTHON := $(PYTHON_TESTS) $(BESIDE_EACH_OTHER) -m "not (slow or wheel)"
QUICK_PARALLEL := tools/parallel_tests.sh "not slow"
WITH_TWO := $(or $(filter 2,$(RANKS)),$(RANKS))
WITH_OTHERS := $(filter-out $(WITH_TWO) 3 4,$(RANKS))
WITH_MANY := $(filter 3 4,$(RANKS))

# Both sides at the same time, because each waits for processes half of the time. With two ranks all
# tests run, with other numbers few: the C++ tests, the Python tests and those with one rank follow
# each other, so that both sides take equally long. Three and four ranks are among the slow tests.
test: test-build ## The tests: nearly all that a change can break
	@echo "== C++ and Python tests; those under mpirun run meanwhile, and what they print comes at the end"
	@$(PY) tools/side_by_side.py "$(BUILD)/test-parallel.log" $(QUICK_PARALLEL) $(WITH_TWO) -- \
	  $(MAKE) --no-print-directory --keep-going test-cc test-python $(if $(WITH_OTHERS),other-ranks)

.PHONY: other-ranks
other-ranks: | test-build
	$(QUICK_PARALLEL) $(WITH_OTHERS)

test-cc: test-build ## C++ tests
	tools/cc_tests.sh "$(BUILD)"

test-python: test-build ## Python tests of one process, and of jobs that they start
	$(QUICK_PYTHON)

test-parallel: test-build ## Python tests under mpirun (RANKS="2 3")
	$(QUICK_PARALLEL) $(RANKS)

.PHONY: slow-build test-slow test-slow-cc test-slow-python test-slow-parallel test-slow-alone
# With the plug-in for MPICH. The group `wheels` has NVRTC, by which a test compiles the GPU kernels
# again.
slow-build: test-build $(VENV)/.ready-mpich $(VENV)/.ready-wheels
	@tools/build.sh "$(BUILD)" tfring_libraries tfring_all_tests -- -DTFRING_BUILD_TESTS=ON

# The tests of the same folders that only `make test-all` runs.
test-slow: test-slow-cc test-slow-python test-slow-parallel test-slow-alone ## The tests that `make test` leaves out

test-slow-cc: slow-build
	tools/cc_tests.sh "$(BUILD)" --slow

test-slow-python: slow-build
	$(PYTHON_TESTS) $(BESIDE_EACH_OTHER) -m "slow and not alone"

test-slow-alone: slow-build
	$(PYTHON_TESTS) -m alone

test-slow-parallel: slow-build
	tools/parallel_tests.sh slow $(RANKS)
	$(if $(WITH_MANY),$(QUICK_PARALLEL) $(WITH_MANY))

test-all: test test-slow test-gpu test-ray test-spark docs wheel-test wheels-test sanitize fuzz bazel ## Everything

soak: test-build ## Tests that run for long, hours in all: stores, elastic jobs real and simulated
	"$(BUILD)/ops/sim/membership/tfring_membership_sim" --seeds=10000
	$(PY) -m pytest -q -m soak tests/python

.PHONY: gpu-build gpu-fake test-gpu gpu-check gpu-check-build test-ray test-spark
gpu-build: test-build ## Compile the fakes of the CUDA driver and of NCCL
	@tools/build.sh "$(BUILD)" tfring_libraries tfring_fakes tfring_gpu_check -- -DTFRING_BUILD_TESTS=ON

gpu-fake: gpu-build ## Download TensorFlow's GPU wheel (600 MB) to run it on a fake CUDA driver
	$(PY) tests/helpers/gpu_fake.py

test-gpu: gpu-build ## TensorFlow's GPU wheel on a fake CUDA driver; skipped if it cannot be downloaded
	$(PY) tests/helpers/gpu_fake.py || echo "tests/gpu will be skipped"
	$(PY) -m pytest -q --durations=15 tests/gpu

# With kernels for all GPUs, as in wheels; a build from source has PTX, which the driver compiles.
gpu-check-build: test-build $(VENV)/.ready-wheels
	@tools/build.sh "$(BUILD)" tfring_libraries tfring_fakes tfring_gpu_check -- \
	  -DTFRING_BUILD_TESTS=ON -DTFRING_PACK_BINARIES=ON

# On a machine that only got the built files there is no environment, and nothing is built.
CARRIED := $(if $(wildcard $(PY)),,$(wildcard $(BUILD)/tools/gpu_check/tfring_gpu_check))
gpu-check: $(if $(CARRIED),,gpu-check-build) ## tfring on a GPU, step by step; on the fakes with GPU_CHECK_FAKE=1. JSON in build/
	$(if $(CARRIED),$(PYTHON),$(PY)) tools/gpu_check.py --build "$(BUILD)" \
	  --output "$(BUILD)/gpu_check.jsonl" $(GPU_CHECK_ARGS)

.PHONY: ray-ready spark-ready
ray-ready: $(TEST_READY)
	$(call install,ray) || echo "Ray cannot be installed: its tests are skipped"

spark-ready: $(TEST_READY)
	$(call install,spark spark-tests) || echo "Spark cannot be installed: its tests are skipped"

test-ray: build ray-ready ## tfring.ray on Ray itself; skipped with the reason if it cannot be installed
	$(PY) -m pytest -q --durations=15 tests/engines/ray

test-spark: build spark-ready ## tfring.spark on Spark itself; skipped with the reason where it or Java is missing
	$(PY) -m pytest -q --durations=15 tests/engines/spark

.PHONY: clients
clients: libraries ## Software of others, and programs as users write them, on tfring (FEW=--few)
	$(PY) tools/clients/run.py --folder "$(BUILD)-clients" $(FEW)

.PHONY: wheel wheel-test wheels wheels-test wheels-check
wheel: $(DEMO_READY) ## Make a wheel in dist/
	rm -f dist/*.whl  # `make wheels` has a folder of its own there
	$(PY) -m pip wheel --no-build-isolation --no-deps --wheel-dir dist .
	@ls -l dist

wheel-test: wheel $(TEST_READY) ## Install the wheel into a new environment without a compiler and test it there
	TFRING_TEST_WHEEL="$$(ls $(CURDIR)/dist/*.whl)" $(PY) -m pytest -q -m wheel tests/python

wheels: $(DEMO_READY) $(VENV)/.ready-wheels ## A wheel per Python in dist/wheels, for all versions of TensorFlow (MINORS=2.21, PYTHONS=3.11)
	$(PY) tools/wheels/make_wheels.py --jobs "$(JOBS)" --minors "$(MINORS)" --pythons "$(PYTHONS)"

wheels-test: wheels wheels-check ## Install them beside each TensorFlow, without a compiler, and test them (KERAS="3.1 3.8", FEW=--few)

wheels-check: $(DEMO_READY) # the wheels that are in dist/wheels
	$(PY) tools/wheels/check_wheels.py --minors "$(MINORS)" --keras "$(KERAS)" $(FEW)

.PHONY: release
release: $(DEMO_READY) ## What a release publishes, in dist/release, and tests of the wheels (TWICE=--twice compares two builds)
	$(PY) tools/release/make_release.py --jobs "$(JOBS)" --minors "$(MINORS)" --pythons "$(PYTHONS)" $(TWICE)
	$(PY) tools/wheels/check_wheels.py --wheels dist/release --minors "$(MINORS)" --keras "$(KERAS)" $(FEW)

.PHONY: canary
canary: build ## Test the newest pre-releases of TensorFlow and Keras (2 GB; TENSORFLOW=tf-nightly)
	tools/canary.sh "$(BUILD)-canary" $(PY)

# ---- Checks of the sources.

.PHONY: check lint lint-cc lint-python lint-packages tidy analyze format
check: $(TEST_READY) $(VENV)/.ready-lint ## On a built checkout, in three minutes: format, lint, types, tests of what changed (BASE=main)
	@$(PY) tools/check.py --build "$(BUILD)" --base "$(BASE)"

lint: lint-python lint-cc lint-packages tidy ## All linters

lint-python: $(TEST_READY) $(VENV)/.ready-lint ## ruff, mypy, and the rules about arrows and sizes
	$(VENV)/bin/ruff check $(PY_FILES)
	$(VENV)/bin/ruff format --check $(PY_FILES)
	$(VENV)/bin/mypy
	$(PY) -m pytest -q tests/python/structure/test_structure.py

lint-cc: $(VENV)/.ready-lint ## clang-format
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)

lint-packages: $(VENV)/.ready-lint ## hadolint on Dockerfiles; rattler-build renders conda's recipe
	$(VENV)/bin/hadolint $$(git ls-files '*Dockerfile')
	$(PY) tools/release/check_recipe.py

tidy: $(DEMO_READY) $(VENV)/.ready-lint ## clang-tidy on the runtime
	tools/tidy.sh "$(BUILD)-tidy"

# Without the check that takes the value of a std::optional for uninitialised.
analyze: $(DEMO_READY) $(VENV)/.ready-lint ## clang's static analyzer on the runtime: five minutes, so it is no part of `make lint`
	tools/tidy.sh "$(BUILD)-tidy" \
	  --checks='-*,clang-analyzer-core*,clang-analyzer-cplusplus*,-clang-analyzer-core.uninitialized.Assign'

.PHONY: settings
settings: $(DEMO_READY) ## Write what is made from settings and options: the runtime's Config, two pages of the docs
	$(PY) tools/settings.py
	$(PY) tools/commands.py

format: $(VENV)/.ready-lint ## Reformat all sources
	$(VENV)/bin/clang-format -i $(CXX_FILES)
	$(VENV)/bin/ruff format $(PY_FILES)
	$(VENV)/bin/ruff check --fix $(PY_FILES)

.PHONY: sanitize sanitize-build fuzz bazel bazel-build test-arm
sanitize: $(DEMO_READY) ## C++ tests with the address, undefined-behaviour and thread sanitizers
	tools/sanitize.sh "$(BUILD)-sanitize"

sanitize-build: $(DEMO_READY)
	tools/sanitize.sh "$(BUILD)-sanitize" --build-only

fuzz: $(DEMO_READY) ## Feed broken messages to the decoders (SECONDS_TO_FUZZ for each, default 60)
	tools/fuzz.sh "$(BUILD)-sanitize" $${SECONDS_TO_FUZZ:-60}

bazel-build:
	tools/bazel_offline.sh build

bazel: ## Build the runtime and run the C++ tests with Bazel, without a network
	tools/bazel_offline.sh

test-arm: $(DEMO_READY) ## Build the runtime for 64-bit ARM, and run its C++ tests with qemu
	tools/arm64_tests.sh "$(BUILD)-arm64" $(PY)

# ---- Documentation, benchmarks, leftovers.

.PHONY: docs bench compare clean distclean
docs: build $(TEST_READY) $(VENV)/.ready-docs ## The documentation as HTML in docs/_build/html; warnings are errors
	$(PY) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(PY) tools/search_docs.py docs/_build/html

.PHONY: drawings
drawings: ## Draw the pictures of docs/images whose text is there (needs graphviz)
	for text in docs/images/*.dot; do dot -Tsvg $$text -o $${text%.dot}.svg || exit 1; done

bench: build $(TEST_READY) ## Benchmarks on two ranks, compared with Open MPI alone; JSON in build/bench
	@tools/build.sh "$(BUILD)" tfring_executor_benchmark -- -DTFRING_BUILD_TESTS=ON
	tools/bench.sh "$(BUILD)/bench"

compare: build $(TEST_READY) ## Keras on tfring, torch, JAX and MultiWorkerMirroredStrategy: hours, and a download of 3 GB
	@mkdir -p "$(BUILD)/bench"
	$(PY) -m benchmarks.frameworks --json "$(BUILD)/bench/frameworks.json"

clean: ## Remove what was built
	rm -rf build build-* dist tfring/_lib/*.so tfring/_lib/build.json docs/_build docs/reference *.egg-info

distclean: clean ## Also remove the virtual environment
	rm -rf "$(VENV)"
