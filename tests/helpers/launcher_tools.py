"""Runs small jobs as a user does, and watches their processes from outside."""

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
LIMIT_SECONDS = 300  # of a job that hangs; other jobs end long before, also on slow machines
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# The beginning of scripts that report to the test. Files appear complete in the folder that the
# first argument names.
REPORT = """
import os, sys

def report(name, value):
    with open(f"{sys.argv[1]}/tmp.{name}", "w") as file:
        file.write(f"{value}\\n")
    os.rename(f"{sys.argv[1]}/tmp.{name}", f"{sys.argv[1]}/{name}")
"""

# What follows it in the scripts of ranks.
_RANK = """
import signal, subprocess, time
rank = int(os.environ["TFRING_X_RANK"])
life = int(os.environ.get("TFRING_X_RESTART_COUNT", "0"))  # an agent alone gives none

def wait_for(name):
    while not os.path.exists(f"{sys.argv[1]}/{name}"):
        time.sleep(0.05)
"""

# The job would take the variables of an outer launcher for its own.
_FOREIGN = (
    "TFRING_X_PARENT",
    "TFRING_X_RANK",
    "TFRING_X_SIZE",
    "OMPI_",
    "PMI",
    "PMIX_",
    "RANK",
    "WORLD_SIZE",
    "SLURM_",
)


def environment(**more):
    """This process's environment without the variables of launchers."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    own["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [own.get("PYTHONPATH")])])
    return {**own, **more}


def write_script(folder, text, name="script.py", header=""):
    """Writes a Python file for the ranks and returns its path."""
    path = Path(folder) / name
    path.write_text(header + textwrap.dedent(text))
    return str(path)


def script(folder, text):
    """Writes a Python file for ranks that report to the test; returns its path."""
    return write_script(folder, text, header=REPORT + _RANK)


def run_command(*options):
    """The command line of `tfring run` with options and the ranks' command.

    Lines of several ranks are not merged, because what is merged depends on time.
    """
    return [sys.executable, "-m", "tfring", "run", "--no-merge-lines", *map(str, options)]


def start(*options, **more):
    """Starts `tfring run` in the background."""
    return start_command(run_command(*options), **more)


def start_command(command, **more):
    """Starts a command in the background."""
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
        preexec_fn=_default_signals,
    )


def _default_signals():
    """Restores the default signal handlers, which a shell's background jobs ignore."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def run(*options, **more):
    """Runs `tfring run` to its end."""
    return finish(run_command(*options), **more)


def run_python(*arguments, **more):
    """Runs Python to its end, as a job of one process."""
    return finish([sys.executable, *arguments], **more)


def finish(command, **more):
    """Runs a command to its end, with `more` in its environment."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment(**more),
        timeout=LIMIT_SECONDS,
        check=False,
    )


def mpirun(count, path, *arguments, **more):
    """Runs a script under Open MPI's mpirun to its end."""
    command = [*open_mpi_command(), "-np", str(count), sys.executable, path, *arguments]
    return finish(command, **AS_ROOT, **more)


def open_mpi_command(major=""):
    """The mpirun of Open MPI with options; skips the test where this MPI or mpi4py is missing."""
    pytest.importorskip("mpi4py")
    if shutil.which("mpirun") is None:
        pytest.skip("needs mpirun")
    shown = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False)
    if f"Open MPI) {major}" not in shown.stdout:
        pytest.skip(f"needs Open MPI {major}")
    return ["mpirun", "--map-by", ":OVERSUBSCRIBE"]


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition, seconds=LIMIT_SECONDS):
    """Waits for a condition; False when time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def pids_in(folder, count):
    """Waits for `count` files named pid.* of the ranks, and reads them."""
    folder = Path(folder)

    def ready():
        files = list(folder.glob("pid.*"))
        return len(files) == count and all(f.read_text().endswith("\n") for f in files)

    assert wait_until(ready), "the ranks did not come up"
    return {f.name.removeprefix("pid."): int(f.read_text()) for f in folder.glob("pid.*")}


RUN_HERE = """\
printf '%s\\n' "$*" >> "${0%/bin/ssh}/ssh.log"
while [[ "$1" == -* ]]; do
  case "$1" in -o|-p|-i) shift;; esac
  shift
done
shift
exec env -i PATH=/usr/bin:/bin HOME=/ bash -c "$*"
"""


def fake_ssh(folder, text=RUN_HERE):
    """A PATH with a fake ssh that records the command and runs it here, in an empty environment."""
    path = Path(folder) / "bin" / "ssh"
    path.parent.mkdir()
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)
    return f"{path.parent}{os.pathsep}{os.environ['PATH']}"
