"""Settings of all tests, in one process and parallel."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

# Set before TensorFlow is loaded, here and in the processes that tests start.
_LEAN = str(Path(__file__).parent / "helpers" / "lean_imports")
if _LEAN not in sys.path:
    sys.path.insert(0, _LEAN)
    sys.modules.pop("sitecustomize", None)  # of the system
    import sitecustomize  # noqa: F401

    rest = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{_LEAN}{os.pathsep}{rest}" if rest else _LEAN

# Containers often set this variable. Then each process that a test starts would compile all of
# tfring again: a third of the processor time of a job without TensorFlow.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Without oneDNN one pass less rewrites the graph of each traced function, and no op waits 10 s for
# memory. Runs of tests/parallel with one, three and four ranks keep oneDNN, as users have it.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

# Where SIGINT is ignored, as in jobs that a shell started in the background, so it would be in all
# that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the long tests, unless their mark is asked for."""
    if "soak" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
