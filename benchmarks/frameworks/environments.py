"""The environment of frameworks that are not TensorFlow, and a network for the jobs alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build-compare"


class Missing(RuntimeError):
    """Something cannot be had here; the message says why."""


def python_of_peers(install: bool) -> Path:
    """Returns the Python that has torch, JAX and Keras: the extra `compare` of pyproject.toml.

    Args:
        install: whether to make the environment if it is not there; it needs about 6 GB.

    Raises:
        Missing: it cannot be had here.
    """
    python = FOLDER / "bin/python"
    ready = FOLDER / "ready"
    if not ready.exists():
        if not install:
            raise Missing("torch, JAX and Keras' nightly build are not in build-compare")
        wanted = _run(sys.executable, str(ROOT / "tools/requirements.py"), "compare").split("\n")
        _run(sys.executable, "-m", "venv", str(FOLDER))
        _run(str(python), "-m", "pip", "install", "-q", *filter(None, wanted))
        ready.touch()
    return python


@contextmanager
def network() -> Iterator[str | None]:
    """Makes a network namespace: what it carries are the bytes of one job alone.

    Yields:
        Its name; None if this user may not make one.
    """
    name = f"compare{os.getpid()}"
    with ExitStack() as made:
        found: str | None = name
        try:
            _run("ip", "netns", "add", name)
            made.callback(_run, "ip", "netns", "del", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        except (Missing, OSError) as error:
            print(f"The jobs share the loopback device with all other programs: {error}")
            found = None
        yield found


def processes_in(network: str) -> list[int]:
    """Returns the ids of the processes in a namespace."""
    return [int(word) for word in _run("ip", "netns", "pids", network).split()]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise Missing(f"{' '.join(command[:5])} ...: {lines[-1]}")
    return done.stdout
