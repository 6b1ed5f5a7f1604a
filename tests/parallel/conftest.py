"""One job for all parallel tests: `mpirun -np N python -m pytest tests/parallel`, for any N.

Every rank runs the same tests in the same order. A rank whose test fails reports it and leaves
the job; the others, which may wait for it, get an error and stop, too. A watchdog ends a hang.
Only rank 0 reports progress.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
from iterator_ends import without_autotuner  # noqa: F401 (a fixture)

import tfring
from tfring.runtime._native import core

# Only a hang takes this long. A soak test may need more: see test_failed_steps.py.
WATCHDOG_SECONDS = max(180.0, 6.0 * int(os.environ.get("TFRING_TEST_ROUNDS", "0")))

_failed = False
_error_output = 2


def pytest_configure() -> None:
    """Keeps the real stderr: during a test pytest captures it."""
    global _error_output
    _error_output = os.dup(2)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Joins the job; silences all ranks but the first."""
    tfring.init()
    if tfring.rank() == 0:
        return
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Ends the session of a rank at its first failure: the ranks' collectives no longer match."""
    global _failed
    report: Any = yield
    if report.failed:
        _failed = True
        item.session.shouldfail = f"stopping at the first failure: {item.nodeid}"
        if core.is_initialized() and core.rank() != 0:
            text = f"\n[rank {core.rank()}] {item.nodeid} ({report.when})\n{report.longreprtext}\n"
            os.write(_error_output, text.encode())
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Bounds every test, its fixtures included."""
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True, file=_error_output)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_sessionfinish() -> None:
    """Leaves the job, so that no rank waits for this one."""
    tfring.shutdown()


@pytest.fixture(autouse=True)
def in_step(request: pytest.FixtureRequest) -> Iterator[None]:
    """Waits until all ranks begin the next test, unless this rank has failed.

    Each test starts with the same TensorFlow seed on all ranks.
    """
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.random.set_seed(1)
    yield
    if not _failed and core.is_initialized():
        core.barrier(name=f"tests.{request.node.nodeid}")


@pytest.fixture
def eager_functions() -> Iterator[None]:
    """Runs tf.functions eagerly, for tests that do not look into the step.

    Tracing takes most of the time of a small test.
    """
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def rank() -> int:
    """This process's rank."""
    return tfring.rank()


@pytest.fixture
def size() -> int:
    """The number of ranks."""
    return tfring.size()


@pytest.fixture
def several(size: int) -> int:
    """The number of ranks, for tests that need two."""
    if size < 2:
        pytest.skip("needs two ranks")
    return size
