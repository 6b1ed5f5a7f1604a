"""Runs a discovery script each second, and prints a line of JSON for each run.

It is a process of its own, which the agent of the launcher's host supervises as it does workers:
the launcher waits for no script, and nothing of it is left when the launcher is gone. Run as
``python discovery_process.py COMMAND SECONDS LIMIT``; only the standard library is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time


def run_once(command: str, limit: float) -> dict[str, object]:
    """Runs a command once; returns its exit code (None: it took too long) and its output.

    After `limit` seconds it is killed, with all that it has started.
    """
    process = subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        out, err = process.communicate(timeout=limit)
        return {"code": process.returncode, "out": out, "err": err}
    except subprocess.TimeoutExpired:
        return {"code": None, "out": "", "err": ""}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()


def main(command: str, seconds: float, limit: float) -> None:
    """Runs a command every `seconds`, until the reader of the output is gone."""
    while True:
        begin = time.monotonic()
        line = json.dumps(run_once(command, limit)).encode() + b"\n"
        while line:
            line = line[os.write(1, line) :]
        time.sleep(max(0.0, begin + seconds - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
