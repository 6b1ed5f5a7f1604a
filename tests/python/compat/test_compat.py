"""Unmodified Horovod scripts on tfring: `import horovod` means tfring where that was asked for."""

import re
import sys

import launcher_tools as tools
import pytest

SCRIPTS = tools.ROOT / "tests" / "horovod_scripts"


def _results(stdout):
    return re.findall(r"^\[\d+\]<stdout>:RESULT (.*)$", stdout, re.MULTILINE)


def _value(result, name):
    return float(re.search(rf"{name}=(-?[0-9.]+)", result).group(1))


@pytest.mark.parametrize(
    ("script", "checks"),
    [
        ("fit_mnist.py", {"accuracy": (0.8, 1.0)}),
        ("tape_mnist.py", {"loss": (0.0, 1.6)}),
        ("advanced_callbacks.py", {"accuracy": (0.8, 1.0), "rate": (0.1, 0.1)}),
        ("synthetic_benchmark.py", {"iterations": (3, 3)}),
        ("alltoall_embedding.py", {"rows": (12, 12)}),
    ],
)
def test_script_runs_unmodified(script, checks):
    done = tools.run("-np", 2, "--horovod", sys.executable, SCRIPTS / script)
    assert done.returncode == 0, done.stderr
    results = _results(done.stdout)
    assert len(results) == 2 and results[0] == results[1], done.stdout
    for name, (low, high) in checks.items():
        assert low <= _value(results[0], name) <= high, results


def test_graph_and_session_script():
    """TF1: a wrapped tf.train.Optimizer, the hook, a monitored session."""
    done = tools.run("-np", 2, "--horovod", sys.executable, SCRIPTS / "legacy_session.py")
    assert done.returncode == 0, done.stderr
    first, second = _results(done.stdout)
    assert first == second
    slope = [float(w) for w in re.findall(r"-?[0-9.]+", first)]
    assert abs(slope[0] - 2) < 0.3 and abs(slope[1] + 1) < 0.3, slope


def test_process_sets_script():
    """Every half has its own result."""
    done = tools.run("-np", 3, "--horovod", sys.executable, SCRIPTS / "process_sets.py")
    assert done.returncode == 0, done.stderr
    halves = sorted(_results(done.stdout))
    assert halves == ["half=[1.0, 1.0] size=3", *["half=[2.0, 2.0] size=3"] * 2], halves


def test_scripts_do_not_know_tfring():
    for script in SCRIPTS.glob("*.py"):
        assert "tfring" not in script.read_text()


def _compat(*words):
    return tools.run_python("-m", "tfring.compat", *map(str, words))


def test_names_and_modules(tmp_path, monkeypatch):
    """The modules that scripts import, and what is said about those that are not there."""
    script = tools.write_script(
        tmp_path,
        """
        import sys
        import helper  # beside the script
        import horovod
        import horovod.keras, horovod.tensorflow, horovod.tensorflow.keras.callbacks
        from horovod.common.process_sets import ProcessSet, global_process_set
        from horovod.tensorflow.compression import Compression
        from horovod.tensorflow.mpi_ops import init, rank, size
        import tfring, tfring.keras

        assert horovod.__version__ == "0.28.1" and horovod.run is tfring.run
        assert horovod.tensorflow.allreduce is tfring.allreduce
        assert horovod.tensorflow.keras.DistributedOptimizer is tfring.keras.DistributedOptimizer
        assert horovod.keras.DistributedOptimizer is not tfring.keras.DistributedOptimizer
        assert horovod.keras.callbacks.__name__ and horovod.tensorflow.Compression is Compression
        assert global_process_set is tfring.global_process_set
        assert not hasattr(horovod.tensorflow, "no_such_name")
        names = {}
        exec("from horovod.tensorflow import *", names)
        assert names["allreduce"] is tfring.allreduce
        for name, text in {
            "horovod.tensorflow.elastic": "not there yet",
            "horovod.keras.elastic": "not there yet",
            "horovod.torch": "TensorFlow and Keras parts only",
        }.items():
            try:
                __import__(name)
            except ImportError as error:
                assert text in str(error), error
            else:
                raise AssertionError(name)
        init()
        assert (rank(), size()) == (0, 1)
        assert float(horovod.keras.allreduce(4.0, average=False)) == 4.0
        print("ARGV", sys.argv[1:], __name__)
        """,
    )
    (tmp_path / "helper.py").write_text("")
    done = _compat(script, "--lr", "0.1", "-m")
    assert done.returncode == 0, done.stderr
    assert "ARGV ['--lr', '0.1', '-m'] __main__" in done.stdout
    monkeypatch.chdir(tmp_path)
    done = _compat("-m", "script", "x")
    assert done.returncode == 0, done.stderr
    assert "ARGV ['x'] __main__" in done.stdout


def test_nothing_to_run():
    done = _compat()
    assert done.returncode == 2 and "say what to run" in done.stderr


def test_horovod_is_unknown_without_being_asked_for():
    done = tools.run_python("-c", "import tfring, horovod")
    assert done.returncode != 0 and "No module named 'horovod'" in done.stderr
