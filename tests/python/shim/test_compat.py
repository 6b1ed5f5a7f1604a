"""What `import horovod` means under the shim: modules, names, Keras 2 idioms."""

import importlib.util
import subprocess
import sys

import launcher_tools as tools
import pytest

from tfring.horovod import likely
from tfring.runtime.horovod_path import search_path

needs_tf_keras = pytest.mark.skipif(
    importlib.util.find_spec("tf_keras") is None, reason="needs tf_keras"
)


def _compat(*words):
    return tools.run_python("-m", "tfring.horovod", *map(str, words))


EXCEPTIONS = """
    from horovod.tensorflow import rank
    from horovod.common import util
    from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
    from horovod.common.elastic import ObjectState, State
    from horovod.tensorflow import elastic
    import horovod.tensorflow.elastic, tfring.elastic.loop
    assert horovod.tensorflow.elastic.run is elastic.run is tfring.elastic.loop.run
    assert elastic.HorovodInternalError is HorovodInternalError
    assert elastic.HostsUpdatedInterrupt is HostsUpdatedInterrupt
    assert issubclass(elastic.TensorFlowKerasState, ObjectState) and elastic.State is State
    assert HostsUpdatedInterrupt(skip_sync=True).skip_sync
    assert issubclass(HorovodInternalError, RuntimeError)
    assert util.num_rank_is_power_2(4) and not util.extension_available("torch")
    assert util.is_version_greater_equal_than("2.21.0", "2.9.1")
    util.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", "", "mpi_lib")
    with util.env(NAME="value"):
        assert __import__("os").environ["NAME"] == "value"

    try:
        rank()
    except ValueError as error:
        assert isinstance(error, RuntimeError) and "init" in str(error), error
    else:
        raise AssertionError("rank() before init()")
    print("DONE exceptions")
"""

STAR_IMPORTS = """
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
    from tfring.runtime import process_sets
    assert process_sets.checked_id(process_sets.global_process_set) == 0
    print("DONE star imports")
"""

# Runs the scripts that the arguments name in one process, which loads TensorFlow once.
ONE_AFTER_THE_OTHER = """
    import runpy, sys

    for path in sys.argv[1:]:
        runpy.run_path(path)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What scripts that do not call init have printed, all in one process."""
    folder = tmp_path_factory.mktemp("scripts")
    scripts = {"exceptions.py": EXCEPTIONS, "star_imports.py": STAR_IMPORTS}
    paths = [tools.write_script(folder, text, name) for name, text in scripts.items()]
    done = _compat(tools.write_script(folder, ONE_AFTER_THE_OTHER), *paths)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_rank_of_a_process_that_an_elastic_job_has_not_taken_in_yet(monkeypatch):
    """Scripts ask for it in order to leave files to rank 0."""
    monkeypatch.setattr(likely, "waiting", lambda: True)
    monkeypatch.setenv("HOROVOD_RANK", "2")
    monkeypatch.setenv("HOROVOD_SIZE", "3")
    assert (likely.rank(), likely.size()) == (2, 3)
    monkeypatch.delenv("HOROVOD_RANK")
    monkeypatch.delenv("HOROVOD_SIZE")
    assert (likely.rank(), likely.size()) == (0, 1)


def test_names_and_modules(tmp_path):
    """The modules that scripts import, and what is said about those that are not there."""
    script = tools.write_script(
        tmp_path,
        """
        import sys
        import helper  # beside the script
        import horovod
        import horovod.keras, horovod.tensorflow, horovod.tensorflow.keras.callbacks
        from horovod.common.process_sets import ProcessSet, global_process_set
        from horovod.data.data_loader_base import AsyncDataLoaderMixin
        from horovod.tensorflow.compression import Compression
        from horovod.tensorflow.mpi_ops import init, rank, size
        import tfring, tfring.keras

        assert horovod.__version__ == "0.28.1" and horovod.run is tfring.run
        assert horovod.tensorflow.allreduce is tfring.allreduce
        assert horovod.tensorflow.keras.broadcast_variables is tfring.keras.broadcast_variables
        assert horovod.keras.DistributedOptimizer is not tfring.keras.DistributedOptimizer
        assert horovod.keras.callbacks.__name__ and horovod.tensorflow.Compression is Compression
        assert global_process_set is tfring.global_process_set
        assert horovod.data.AsyncDataLoaderMixin is AsyncDataLoaderMixin
        import horovod.keras.elastic, horovod.tensorflow.keras.elastic
        for module in (horovod.keras.elastic, horovod.tensorflow.keras.elastic):
            assert module.KerasState is tfring.keras.elastic.KerasState
            assert module.run is tfring.elastic.run and module.CommitStateCallback
        assert not hasattr(horovod.tensorflow, "no_such_name")
        names = {}
        exec("from horovod.tensorflow import *", names)
        assert names["allreduce"] is tfring.allreduce
        for name, text in {
            "horovod.torch": "Keras, Ray and Spark parts only",
            "horovod.tensorflow.data.compute_service": "does not have the data service",
            "horovod.runner.launch": "tfring run",
            "horovod.tensorflow.gradient_aggregation_eager": "LocalGradientAggregationHelper",
            "horovod._keras": "import public names from horovod.tensorflow",
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


def test_exceptions_and_helpers(printed: str) -> None:
    """What scripts import beside the collectives, and what is known only after init."""
    assert "DONE exceptions" in printed


def test_modules_are_like_those_of_files(tmp_path):
    """What tools ask of a module, answered without TensorFlow or the runtime."""
    script = tools.write_script(
        tmp_path,
        """
        import importlib, inspect, pkgutil, sys
        import horovod
        import horovod.common.process_sets, horovod.runner, horovod.tensorflow as hvd
        from tfring.horovod import shim

        for module in (hvd, horovod.common.process_sets, horovod.runner):
            assert module.__file__ == module.__spec__.origin == shim.__file__
            assert inspect.getsourcefile(module) == shim.__file__ in repr(module)
            assert module.__name__ in module.__doc__ and importlib.reload(module) is module
        assert "horovod.tensorflow: tfring under" in hvd.__doc__

        listed = {m.name: m.ispkg for m in pkgutil.iter_modules(horovod.__path__, "horovod.")}
        packages = {"horovod.common", "horovod.keras", "horovod.runner", "horovod.tensorflow"}
        packages |= {"horovod.data", "horovod.ray", "horovod.spark"}
        others = {f"horovod.{name}" for name in ("_keras", "mxnet", "torch")}
        assert listed == {**dict.fromkeys(packages, True), **dict.fromkeys(others, False)}, listed
        below = [m.name for m in pkgutil.iter_modules(horovod.tensorflow.__path__)]
        assert "keras" in below and "mpi_ops" in below and "callbacks" not in below, below
        below = [m.name for m in pkgutil.walk_packages(horovod.common.__path__, "horovod.common.")]
        names = ("basics", "elastic", "exceptions", "process_sets", "util")
        assert below == [f"horovod.common.{name}" for name in names]
        below = [m.name for m in pkgutil.iter_modules(horovod.runner.__path__)]
        assert below == ["elastic", "launch"], below

        try:
            from horovod.runner import no_such_name
        except ImportError as error:
            assert shim.__file__ in str(error), error
        for name in ("horovod.nothing", "horovod.tensorflow.nothing", "horovod.runner.nothing"):
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


def test_star_imports_bring_public_names_only(printed: str) -> None:
    assert "DONE star imports" in printed


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


@pytest.mark.parametrize(
    "words", [["x"], ["--lr", "0.1", "-m"], ["-n", "1"], ["-q"], ["--", "-h"], ["-m", "x"]]
)
def test_a_module_gets_its_arguments_as_from_python_itself(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools.write_script(
        tmp_path, "import sys, horovod.runner; print('ARGV', sys.argv, __name__)", "module.py"
    )
    done = _compat("-m", "module", *words)
    assert done.returncode == 0, done.stderr
    argv = [str(tmp_path / "module.py"), *words]
    assert done.stdout == f"ARGV {argv} __main__\n"


def test_pytest_is_run_as_a_module(tmp_path):
    path = tools.write_script(
        tmp_path, "def test_import():\n    import horovod.runner\n", "test_it.py"
    )
    done = _compat("-m", "pytest", "-q", "-p", "no:cacheprovider", path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_nothing_to_run():
    for words in ([], ["-m"], ["--verbose", "x.py"]):
        done = _compat(*words)
        assert done.returncode == 2 and "python -m tfring.horovod train.py" in done.stderr
        assert "Traceback" not in done.stderr
    done = _compat("--help")
    assert done.returncode == 0 and "usage: python -m tfring.horovod" in done.stdout


def test_horovod_is_unknown_without_being_asked_for():
    done = tools.run_python("-c", "import tfring, horovod")
    assert done.returncode != 0 and "No module named 'horovod'" in done.stderr


# Horovod 0.28's public names, by module; docs/migration.md says what became of each.
HOROVOD_NAMES = {
    "horovod.tensorflow": """
        init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank
        local_rank cross_rank is_homogeneous size_op local_size_op rank_op local_rank_op
        process_set_included_op mpi_threads_supported mpi_enabled mpi_built gloo_enabled
        gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built gpu_available
        Average Sum Adasum Min Max Product allreduce grouped_allreduce allgather
        grouped_allgather broadcast broadcast_
        broadcast_variables broadcast_object broadcast_object_fn allgather_object
        broadcast_global_variables BroadcastGlobalVariablesHook alltoall reducescatter
        grouped_reducescatter join ProcessSet global_process_set add_process_set remove_process_set
        DistributedOptimizer DistributedGradientTape PartialDistributedGradientTape Compression
        SyncBatchNormalization LocalGradientAggregationHelper elastic check_num_rank_power_of_2
        handle_average_backwards_compatibility split_list check_extension data""",
    "horovod.tensorflow.keras": """
        init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank
        local_rank cross_rank is_homogeneous mpi_threads_supported mpi_enabled mpi_built
        gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built ProcessSet
        global_process_set add_process_set remove_process_set Average Sum Compression
        DistributedOptimizer
        PartialDistributedOptimizer broadcast_global_variables allreduce allgather broadcast
        reducescatter load_model callbacks elastic""",
    "horovod.keras": """
        init shutdown is_initialized size rank local_rank local_size Average Sum Adasum Compression
        DistributedOptimizer PartialDistributedOptimizer broadcast_global_variables allreduce
        allgather broadcast reducescatter load_model callbacks elastic""",
    "horovod.keras.callbacks": """
        BroadcastGlobalVariablesCallback MetricAverageCallback LearningRateScheduleCallback
        LearningRateWarmupCallback BestModelCheckpoint""",
}


def test_horovods_defaults_stay_where_those_of_tfring_are_others(tmp_path):
    script = tools.write_script(
        tmp_path,
        """
        import tfring, tfring.keras
        import horovod.keras, horovod.tensorflow, horovod.tensorflow.keras
        from horovod.tensorflow import mpi_ops
        from horovod.tensorflow.keras.callbacks import MetricAverageCallback
        from tfring.collectives import horovod_gradients
        from tfring.keras import horovod_gradients as of_keras

        for name in ("allgather", "broadcast", "reducescatter"):
            theirs = getattr(horovod_gradients, name)
            assert theirs is getattr(horovod.tensorflow, name) is getattr(mpi_ops, name)
            assert theirs is not getattr(tfring, name)
            theirs = getattr(of_keras, name)
            assert theirs is getattr(horovod.keras, name)
            assert theirs is getattr(horovod.tensorflow.keras, name)
            assert theirs is not getattr(tfring.keras, name)
        grouped = horovod.tensorflow.grouped_allgather
        assert grouped is horovod_gradients.grouped_allgather
        assert not MetricAverageCallback().exact
        assert not horovod.keras.callbacks.MetricAverageCallback().exact
        assert tfring.keras.callbacks.MetricAverageCallback().exact
        print("DONE")
        """,
    )
    done = _compat(script)
    assert done.returncode == 0 and "DONE" in done.stdout, done.stderr


@pytest.mark.parametrize("tf_keras", [False, pytest.param(True, marks=needs_tf_keras)])
def test_every_public_name_is_there_or_says_what_to_use(tf_keras, tmp_path):
    script = tools.write_script(
        tmp_path,
        f"""
        import importlib
        missing = {{}}
        for module, names in {HOROVOD_NAMES!r}.items():
            for name in names.split():
                try:
                    getattr(importlib.import_module(module), name)
                except AttributeError as error:
                    assert "does not have the data service: " in str(error), error
                    missing.setdefault(module, set()).add(name)
        assert missing == {{"horovod.tensorflow": {{"data"}}}}, missing
        for module, name, text in (
            ("horovod.keras.callbacks", "CommitStateCallback", "horovod.keras.elastic"),
            ("horovod.tensorflow.keras", "alltoall", "it is in tfring"),
            ("horovod.tensorflow", "load_model", "it is in tfring.keras"),
        ):
            try:
                getattr(importlib.import_module(module), name)
            except AttributeError as error:
                assert text in str(error), error
            else:
                raise AssertionError(name)
        import horovod.tensorflow.keras as hvd
        package = hvd.SyncBatchNormalization.__mro__[1].__module__.split(".")[0]
        assert package == ("tf_keras" if {tf_keras} else "keras"), package
        print("DONE")
        """,
    )
    done = tools.run_python("-m", "tfring.horovod", script, TF_USE_LEGACY_KERAS=str(int(tf_keras)))
    assert done.returncode == 0 and "DONE" in done.stdout, done.stderr


def test_keras_is_unchanged_without_the_shim():
    done = tools.run_python(
        "-c",
        "import keras, tfring.keras as hvd; hvd.init(); hvd.DistributedOptimizer; "
        "assert not hasattr(keras.optimizers.Optimizer, 'lr')\n"
        "import sys; assert 'tf_keras' not in sys.modules",
    )
    assert done.returncode == 0, done.stderr
