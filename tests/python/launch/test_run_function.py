"""tfring.run: a function on several processes, its results by rank."""

import launcher_tools as tools
import pytest

import tfring
from tfring.job.handshake.listener import bind
from tfring.launch import function, function_task
from tfring.launch.function import FunctionServer


def test_results_by_rank(tmp_path):
    """Arguments, closures, output, results larger than any pipe."""
    path = tools.write_script(
        tmp_path,
        """
        import tfring

        offset = 100

        def work(x, y=1):
            import numpy as np
            import tfring as hvd
            from tfring.runtime._native import core

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
    done = tools.run_python(path)
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert f"hello from {rank}\n" in done.stdout


def test_failures(tmp_path):
    """An exception comes back as the cause; one that cannot be unpickled as its traceback."""
    path = tools.write_script(
        tmp_path,
        """
        import os
        import tfring

        class Odd(Exception):
            def __init__(self, a, b):
                super().__init__(a)

        def fails(error):
            import tfring as hvd
            from tfring.runtime._native import core

            hvd.init()
            if hvd.rank() == 1:
                raise error()
            core.barrier(name="end")

        def message(function, *args, np):
            try:
                tfring.run(function, args, np=np)
            except RuntimeError as error:
                return str(error), error.__cause__
            raise AssertionError("no error")

        text, cause = message(fails, lambda: ValueError("no good"), np=2)
        assert "Rank 1 failed" in text and "no good" in text, text
        assert isinstance(cause, ValueError) and cause.args == ("no good",)
        text, cause = message(fails, lambda: Odd(1, 2), np=2)
        assert "Odd: 1" in text and cause is None, (text, cause)
        text, _ = message(lambda: os._exit(3), np=2)
        assert "exit code 3; ranks without a result: 0, 1" in text, text
        text, _ = message(lambda: (lambda: __import__("threading").Lock())(), np=1)
        assert "Rank 0 failed" in text and "the result cannot be pickled" in text, text
        lock = __import__("threading").Lock()
        try:
            tfring.run(lambda: lock)
        except TypeError as error:
            assert "something that it uses, cannot be pickled (TypeError: " in str(error), error
            assert "inside the function" in str(error)
        else:
            raise AssertionError("no error")
        """,
    )
    done = tools.run_python(path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_proc": 2, "np": 3}, ValueError, "the same thing"),
        ({"np": "2"}, TypeError, "whole numbers of ranks, and not '2'"),
        ({"use_mpi": True}, NotImplementedError, "mpirun"),
        ({"min_np": 1}, NotImplementedError, "elastic"),
        ({"no_such": 1}, TypeError, "no_such"),
        ({"env": {"A": 1}}, ValueError, "both as strings"),
        ({"env": {"A=B": "1"}}, ValueError, "the name of a variable"),
        ({"host_discovery_script": "x"}, NotImplementedError, "elastic"),
    ],
)
def test_impossible_parameters(options, error, text):
    with pytest.raises(error, match=text):
        tfring.run(print, **options)


def test_the_function_and_results_are_larger_than_a_value_of_a_store(monkeypatch):
    large = bytes(range(256)) * (80 << 10)
    call = function.pickled_call(lambda data: (len(data), data), [large], {})
    with FunctionServer(call, bind("127.0.0.1", 0, 16)) as server:
        for rank in range(2):
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("TFRING_X_RANK", str(rank))
            assert function_task.main() == 0
        assert server.results(2, 0) == [(len(large), large)] * 2
    with FunctionServer(function.pickled_call(int, ["x"], {}), bind("127.0.0.1", 0, 16)) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        assert function_task.main() == 1
        with pytest.raises(RuntimeError, match="Rank 1 failed") as failed:
            server.results(2, 1)
        assert isinstance(failed.value.__cause__, ValueError)
