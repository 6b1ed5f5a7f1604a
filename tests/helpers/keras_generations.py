"""Scripts for Horovod that run with Keras 3 and with Keras 2, under the shim."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import launcher_tools as tools
import pytest

# The last line of the script, and TF_USE_LEGACY_KERAS.
GENERATIONS = pytest.mark.parametrize(
    ("generation", "legacy"),
    [
        ("3", "0"),
        pytest.param(
            "2",
            "1",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(
                    importlib.util.find_spec("tf_keras") is None, reason="needs tf_keras"
                ),
            ],
        ),
    ],
)


def run_on_two_ranks(text: str, generation: str, legacy: str, folder: Path) -> None:
    """Runs a script; both ranks have to print DONE and their Keras version."""
    script = tools.write_script(folder, text)
    done = tools.run("-np", 2, "--horovod", sys.executable, script, TF_USE_LEGACY_KERAS=legacy)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count(f"DONE {generation}") == 2, done.stdout
