"""Running small jobs as a user would, and watching processes from outside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 120
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# Variables of an outer launcher would be taken for the job's own.
_FOREIGN = ("TFRING_RANK", "TFRING_SIZE", "OMPI_", "PMI", "PMIX_", "RANK", "WORLD_SIZE", "SLURM_")


def environment(**more):
    """This process's environment without any launcher's variables."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    own["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [own.get("PYTHONPATH")])])
    return {**own, **more}


def write_script(folder, text, name="script.py"):
    """A Python file for the ranks."""
    path = Path(folder) / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def run_command(*options):
    """The command line of `tfring run` with options and the ranks' command."""
    return [sys.executable, "-m", "tfring", "run", *map(str, options)]


def start(*options, **more):
    """Starts `tfring run` in the background."""
    return subprocess.Popen(
        run_command(*options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
        preexec_fn=_hear_signals,
    )


def _hear_signals():
    """The tests may run where signals are ignored, as in the background of a shell."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def run(*options, limit=LIMIT_SECONDS, **more):
    """Runs `tfring run` to its end."""
    return subprocess.run(
        run_command(*options),
        capture_output=True,
        text=True,
        env=environment(**more),
        timeout=limit,
        check=False,
    )


def mpirun(count, path, *arguments, **more):
    """Runs a script under Open MPI's mpirun to its end; skips the test where there is none."""
    pytest.importorskip("mpi4py")
    if shutil.which("mpirun") is None:
        pytest.skip("needs mpirun")
    shown = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" not in shown.stdout:
        pytest.skip("needs Open MPI")
    launcher = ["mpirun", "--map-by", ":OVERSUBSCRIBE", "-np", str(count)]
    return subprocess.run(
        [*launcher, sys.executable, path, *arguments],
        capture_output=True,
        text=True,
        env=environment(**AS_ROOT, **more),
        timeout=LIMIT_SECONDS,
        check=False,
    )


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition, seconds=30.0):
    """Waits for a condition; False when time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def pids_in(folder, count):
    """Waits for `count` files named pid.*, which the ranks wrote, and reads them."""
    folder = Path(folder)

    def ready():
        files = list(folder.glob("pid.*"))
        return len(files) == count and all(f.read_text().endswith("\n") for f in files)

    assert wait_until(ready, 60), "the ranks did not come up"
    return {f.name.removeprefix("pid."): int(f.read_text()) for f in folder.glob("pid.*")}
