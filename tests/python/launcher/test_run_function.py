"""tfring.run: a function on several processes, its results by rank."""

import socket
import subprocess
import sys

import launcher_tools as tools
import pytest

import tfring
from tfring.launcher.function import _Server


def _script(folder, text):
    """Runs a program that calls tfring.run, with a main thread of its own."""
    return subprocess.run(
        [sys.executable, tools.write_script(folder, text)],
        capture_output=True,
        text=True,
        env=tools.environment(),
        timeout=tools.LIMIT_SECONDS,
        check=False,
    )


def test_results_by_rank(tmp_path):
    """Arguments, closures, output, results larger than any pipe."""
    done = _script(
        tmp_path,
        """
        import tfring

        offset = 100

        def work(x, y=1):
            import numpy as np
            import tfring as hvd
            from tfring._native import core

            hvd.init()
            print("hello from", hvd.rank())
            total = core.allreduce(np.array([x + hvd.rank()]), name="t", op=hvd.Sum)
            return hvd.rank(), int(total[0]) + y + offset, bytes(20_000_000)

        results = tfring.run(work, (10,), {"y": 5}, np=3)
        assert [r[:2] for r in results] == [(r, 138) for r in range(3)], results
        assert all(len(r[2]) == 20_000_000 for r in results)
        assert tfring.run(lambda: "one") == ["one"]
        """,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert f"[{rank}]<stdout>:hello from {rank}" in done.stdout


def test_failures(tmp_path):
    """An exception comes back as the cause; one that cannot be built again as its traceback."""
    done = _script(
        tmp_path,
        """
        import os
        import tfring

        class Odd(Exception):
            def __init__(self, a, b):
                super().__init__(a)

        def fails(error):
            import tfring as hvd
            hvd.init()
            if hvd.rank() == 1:
                raise error()
            hvd.barrier()

        def message(function, *args, np):
            try:
                tfring.run(function, args, np=np)
            except RuntimeError as error:
                return str(error), error.__cause__
            raise AssertionError("no error")

        text, cause = message(fails, lambda: ValueError("no good"), np=2)
        assert "failed on rank 1" in text and "no good" in text, text
        assert isinstance(cause, ValueError) and cause.args == ("no good",)
        text, cause = message(fails, lambda: Odd(1, 2), np=2)
        assert "Odd: 1" in text and cause is None, (text, cause)
        text, _ = message(lambda: os._exit(3), np=2)
        assert "exit code 3; ranks without a result: 0, 1" in text, text
        text, _ = message(lambda: (lambda: __import__("threading").Lock())(), np=1)
        assert "failed on rank 0" in text and "pickle" in text, text
        """,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_proc": 2, "np": 3}, ValueError, "the same thing"),
        ({"np": 0}, ValueError, "at least one"),
        ({"hosts": "a:1", "hostfile": "b"}, ValueError, "exclude"),
        ({"use_mpi": True}, NotImplementedError, "mpirun"),
        ({"min_np": 1}, NotImplementedError, "elastic"),
        ({"no_such": 1}, TypeError, "no_such"),
        ({"host_discovery_script": "x"}, NotImplementedError, "elastic"),
    ],
)
def test_impossible_wishes(options, error, text):
    with pytest.raises(error, match=text):
        tfring.run(print, **options)


def test_strangers_get_nothing():
    """Who cannot prove to know the secret is hung up on, and the server goes on."""
    with _Server(b"the function", 1, None, None) as server:
        where = server.environment
        address = (where["TFRING_FUNCTION_ADDR"], int(where["TFRING_FUNCTION_PORT"]))
        for greeting in (b"GET / HTTP/1.0\r\n\r\n".ljust(200), bytes(200)):
            with socket.create_connection(address, timeout=20) as stranger:
                stranger.sendall(greeting)
                received = b""
                try:
                    while chunk := stranger.recv(100):
                        received += chunk
                except ConnectionError:
                    pass
                assert b"the function" not in received
        with pytest.raises(RuntimeError, match="without a result: 0"):
            server.results(1)
