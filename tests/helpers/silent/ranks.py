"""Runs programs on ranks that are forked from one process that has imported TensorFlow.

So each program has its own processes, and tfring's messages at their end count, too. The process
that forks has not run TensorFlow: `python -m silent.ranks` reads lines of JSON, each with a
program, a number of ranks and a folder.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 150.0  # of a program; one that hangs is killed
END_OF_EPOCH = "---- the first epoch is over ----"


class Ranks:
    """The forking process, as the tests see it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "silent.ranks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_NUM_INTRAOP_THREADS": "1",
                "TF_NUM_INTEROP_THREADS": "2",
            },
        )

    def run(self, program: str, ranks: int, folder: Path) -> list[Outcome]:
        """Runs the program; returns the result and the messages of each rank."""
        assert self._process.stdin is not None and self._process.stdout is not None
        folder.mkdir()
        print(json.dumps([program, ranks, str(folder)]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer == "done\n", f"the process that forks is gone: {answer!r}"
        return [Outcome(folder / str(rank)) for rank in range(ranks)]

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


class Outcome:
    """The files of one rank in its folder."""

    def __init__(self, folder: Path) -> None:
        said = (folder / "stderr").read_text(errors="replace")
        self.said, _, self.said_at_end = said.partition(END_OF_EPOCH)
        self.status = (folder / "status").read_text()
        result = folder / "result"
        self.result: Any = pickle.loads(result.read_bytes()) if result.exists() else None


def _rank(program: str, rank: int, ranks: int, folder: Path) -> None:
    """Runs the program as a rank and ends as a Python program ends."""
    output = os.open(folder / "stderr", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.chdir(folder.parent)
    import tfring.keras as hvd

    from .table import PROGRAMS

    # Ranks meet by a file: the port of another test's job could be the same, and cause a message.
    hvd.init(init_method=f"file://{folder.parent}/meeting", rank=rank, size=ranks)
    result = PROGRAMS[program].run()
    if result is not None:
        (folder / "result").write_bytes(pickle.dumps(result))
    sys.stderr.flush()
    os.write(2, f"\n{END_OF_EPOCH}\n".encode())


def _fork(program: str, ranks: int, folder: Path) -> None:
    """Forks the ranks and waits for them."""
    children = {}
    for rank in range(ranks):
        mine = folder / str(rank)
        mine.mkdir()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _rank(program, rank, ranks, mine)
                code = 0
            except BaseException:
                traceback.print_exc()
            _leave(code)
        children[child] = mine
    end = time.monotonic() + LIMIT_SECONDS
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            (children.pop(child) / "status").write_text(str(os.waitstatus_to_exitcode(status)))
        elif time.monotonic() > end:
            for child in children:
                os.kill(child, signal.SIGKILL)
            end = float("inf")
        else:
            time.sleep(0.02)


def _leave(code: int) -> None:
    """Runs the exit handlers, but nothing that the parent has on its stack."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Forks for each line of the input."""
    import tfring.keras as hvd

    from . import programs  # noqa: F401

    for name in dir(hvd):  # loads what each rank would have to load otherwise
        getattr(hvd, name, None)
    for line in sys.stdin:
        program, ranks, folder = json.loads(line)
        _fork(program, ranks, Path(folder))
        print("done", flush=True)


if __name__ == "__main__":
    main()
