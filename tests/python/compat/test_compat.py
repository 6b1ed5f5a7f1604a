"""Unmodified Horovod scripts on tfring: `import horovod` means tfring where that was asked for."""

import re
import subprocess
import sys

import launcher_tools as tools
import pytest

from tfring.compat.shim import search_path

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


def test_modules_are_like_those_of_files(tmp_path):
    """What tools ask of a module, answered without TensorFlow or the runtime."""
    script = tools.write_script(
        tmp_path,
        """
        import importlib, inspect, pkgutil, sys
        import horovod
        import horovod.common.process_sets, horovod.runner, horovod.tensorflow as hvd
        from tfring.compat import shim

        for module in (hvd, horovod.common.process_sets, horovod.runner):
            assert module.__file__ == module.__spec__.origin == shim.__file__
            assert inspect.getsourcefile(module) == shim.__file__ in repr(module)
            assert module.__name__ in module.__doc__ and importlib.reload(module) is module
        assert "horovod.tensorflow: tfring under" in hvd.__doc__

        listed = {m.name: m.ispkg for m in pkgutil.iter_modules(horovod.__path__, "horovod.")}
        packages = {"horovod.common", "horovod.keras", "horovod.runner", "horovod.tensorflow"}
        others = {"horovod.mxnet", "horovod.ray", "horovod.spark", "horovod.torch"}
        assert listed == {**dict.fromkeys(packages, True), **dict.fromkeys(others, False)}, listed
        below = [m.name for m in pkgutil.iter_modules(horovod.tensorflow.__path__)]
        assert "keras" in below and "mpi_ops" in below and "callbacks" not in below, below
        below = [m.name for m in pkgutil.walk_packages(horovod.common.__path__, "horovod.common.")]
        assert below == ["horovod.common.process_sets"]
        assert not list(pkgutil.iter_modules(horovod.runner.__path__))

        try:
            from horovod.runner import no_such_name
        except ImportError as error:
            assert shim.__file__ in str(error), error
        for name in ("horovod.nothing", "horovod.tensorflow.nothing", "horovod.runner.launch"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                assert str(error) == f"No module named {name!r}", error
            else:
                raise AssertionError(name)
        assert not {"tensorflow", "keras", "mpi4py", "tfring.keras"} & set(sys.modules)
        print("DONE")
        """,
    )
    done = _compat(script)
    assert done.returncode == 0 and "DONE" in done.stdout, done.stderr


def test_star_imports_bring_public_names_only(tmp_path):
    script = tools.write_script(
        tmp_path,
        """
        def star(module):
            names = {}
            exec(f"from {module} import *", names)
            return set(names) - {"__builtins__"}

        process_sets = {"ProcessSet", "add_process_set", "get_process_set_ids_and_ranks"}
        process_sets |= {"global_process_set", "registered", "remove_process_set"}
        assert star("horovod.common.process_sets") == process_sets
        assert star("horovod.runner") == {"run"}
        compressors = {"BF16Compressor", "Compression", "Compressor", "FP16Compressor"}
        assert star("horovod.tensorflow.compression") == {*compressors, "NoneCompressor"}
        import tfring.process_sets
        assert tfring.process_sets.checked_id(tfring.process_sets.global_process_set) == 0
        print("DONE")
        """,
    )
    done = _compat(script)
    assert done.returncode == 0 and "DONE" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("horovod.runner", "'horovod.runner' is a package and cannot be directly executed"),
        ("horovod.tensorflow.mpi_ops", "No code object available for horovod.tensorflow.mpi_ops"),
    ],
)
def test_modules_cannot_be_run(module, text):
    done = subprocess.run(
        [sys.executable, "-m", module],
        capture_output=True,
        text=True,
        env={**tools.environment(), "PYTHONPATH": search_path(tools.environment())},
        timeout=tools.LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 1 and text in done.stderr and "Traceback" not in done.stderr


def test_nothing_to_run():
    done = _compat()
    assert done.returncode == 2 and "say what to run" in done.stderr


def test_horovod_is_unknown_without_being_asked_for():
    done = tools.run_python("-c", "import tfring, horovod")
    assert done.returncode != 0 and "No module named 'horovod'" in done.stderr
