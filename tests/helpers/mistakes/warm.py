"""Runs the programs of ranks in processes forked from one that has loaded TensorFlow.

`tfring run` starts `relay.py PROGRAM` as its ranks. A relay passes its output, environment and
folder to this process, which forks the rank; the relay ends as the rank ends. So a job costs what
its program does, and not two imports of TensorFlow.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOCKET = "TFRING_TEST_WARM_SOCKET"
_MOST = 1 << 20  # bytes of a request, which has an environment
_FILES = 16  # modules that a rank has loaded at its start


@contextlib.contextmanager
def warm_process(path: Path) -> Iterator[None]:
    """Starts the forking process, which listens at `path`."""
    command = [sys.executable, "-m", "mistakes.warm", str(path)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
    }
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield
        process.communicate()  # the process ends when its input ends


def main(path: str) -> None:
    """Forks a keeper for each request, until the input ends."""
    import tfring.keras as hvd

    for name in dir(hvd):  # loads what each rank would have to load otherwise
        getattr(hvd, name, None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _keep(connection)
            connection.close()


def _keep(connection: socket.socket) -> None:
    """Forks a rank and reports how it ended; kills it if the relay is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked, files, _, _ = socket.recv_fds(connection, _MOST, _FILES)
    rank = os.fork()
    if rank == 0:
        _be_rank(files, **json.loads(asked))
    for file in files:
        os.close(file)
    connection.send(str(rank).encode())
    ended, status = 0, 0
    while not ended:
        if select.select([connection], [], [], 0.02)[0]:  # the relay is gone
            os.kill(rank, signal.SIGKILL)
        ended, status = os.waitpid(rank, os.WNOHANG)
    with contextlib.suppress(OSError):
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _be_rank(
    files: list[int], numbers: list[int], program: str, environment: dict[str, str], folder: str
) -> None:
    """Runs a program as Python runs it, and ends as Python ends."""
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, 500) for file in files]
    os.closerange(3, 500)
    for number, file in zip(numbers, moved, strict=True):
        os.dup2(file, number)
    os.closerange(500, 500 + _FILES)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [program]
    sys.stdout.reconfigure(line_buffering=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: Any = 0
    try:
        text = Path(program).read_text()
        exec(compile(text, program, "exec"), {"__name__": "__main__", "__file__": program})
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:
        code = 1
        assert error.__traceback__ is not None
        error.__traceback__ = error.__traceback__.tb_next  # without this function
        sys.last_type, sys.last_value = type(error), error
        sys.excepthook(type(error), error, error.__traceback__)
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def relay(program: str) -> None:
    """Asks for a rank, passes signals on to it, and ends as it ends."""
    # Rank 0 gets a socket, too.
    numbers = [n for n in range(_FILES) if os.path.exists(f"/proc/self/fd/{n}")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(os.environ[SOCKET])
        asked = {
            "program": program,
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "numbers": numbers,
        }
        socket.send_fds(connection, [json.dumps(asked).encode()], numbers)
        rank = int(connection.recv(64))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(rank, number))
        code = int(connection.recv(64))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
        time.sleep(60)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
