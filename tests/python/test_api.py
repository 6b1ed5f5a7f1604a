"""The names that scripts import, and what importing them costs."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

HOROVOD_NAMES = {
    "tfring": """
    init shutdown is_initialized rank size local_rank local_size cross_rank cross_size
    allreduce grouped_allreduce allgather broadcast broadcast_variables broadcast_object
    broadcast_object_fn allgather_object barrier Compression DistributedGradientTape
    DistributedOptimizer PartialDistributedGradientTape
    ProcessSet global_process_set Average Sum Adasum Min Max Product
""",
    "tfring.keras": """
    init shutdown is_initialized rank size local_rank local_size cross_rank cross_size
    allreduce allgather broadcast Compression DistributedOptimizer PartialDistributedOptimizer
    callbacks Average Sum Adasum ProcessSet global_process_set
""",
    "tfring.keras.callbacks": """
    BroadcastGlobalVariablesCallback MetricAverageCallback LearningRateScheduleCallback
    LearningRateWarmupCallback BestModelCheckpoint ConsistencyCheckCallback JoinCallback
    CursorCallback StragglerCallback CommunicationMetricsCallback BatchNormAverageCallback
""",
}


def imported_by(statement: str) -> set[str]:
    """Runs the statement in a new interpreter and returns the modules that it imported."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(out.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "statement",
    [
        "import tfring",
        "import tfring.keras",
        "import tfring as hvd; hvd.Average; hvd.rank; dir(hvd)",
    ],
)
def test_importing_does_not_import_tensorflow(statement: str) -> None:
    modules = imported_by(statement)
    assert "tfring" in modules
    assert not {"tensorflow", "keras", "mpi4py"} & modules


@pytest.mark.parametrize("module", ["tfring", "tfring.keras"])
def test_what_only_horovods_scripts_call_is_in_the_shim_alone(module: str) -> None:
    hvd = importlib.import_module(module)
    for name in ("gloo_built", "broadcast_global_variables"):
        assert name not in hvd.__all__
        with pytest.raises(AttributeError, match="scripts that import horovod have it"):
            getattr(hvd, name)


@pytest.mark.parametrize("module", ["tfring", "tfring.keras"])
def test_all_and_dir_agree_with_what_is_there(module: str) -> None:
    hvd = importlib.import_module(module)
    assert sorted(hvd.__all__) == hvd.__all__
    assert set(hvd.__all__) <= set(dir(hvd))
    for name in hvd.__all__:
        assert getattr(hvd, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(hvd, "no_such_name")  # noqa: B009


@pytest.mark.parametrize("module", HOROVOD_NAMES)
def test_horovods_names_are_there(module: str) -> None:
    hvd = importlib.import_module(module)
    assert [name for name in HOROVOD_NAMES[module].split() if not hasattr(hvd, name)] == []


@pytest.mark.parametrize("module", ["tfring", "tfring.keras"])
def test_horovods_other_names_are_refused_with_a_reason(module: str) -> None:
    from tfring.runtime.public_names import _INSTEAD

    hvd = importlib.import_module(module)
    for name in set(_INSTEAD).difference(hvd.__all__):
        assert not hasattr(hvd, name)
    with pytest.raises(AttributeError, match="'HorovodBasics': use the functions init"):
        hvd.HorovodBasics  # noqa: B018
    other, name = ("tfring.keras", "load_model") if module == "tfring" else ("tfring", "alltoall")
    with pytest.raises(AttributeError, match=f"'{name}': it is in {other}, in a script"):
        getattr(hvd, name)


def test_a_missing_stub_is_named(tmp_path: Path) -> None:
    from tfring.runtime.public_names import lazy_names

    text = r"__init__\.pyi is missing, and tfring reads its public names from it: install tfring"
    with pytest.raises(ImportError, match=text) as caught:
        lazy_names("tfring", str(tmp_path / "__init__.py"))
    assert caught.value.path == str(tmp_path / "__init__.pyi")


def test_a_name_without_tensorflow_says_what_to_install() -> None:
    code = "import sys; sys.modules['tensorflow'] = None; import tfring; tfring.allreduce"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "tfring.allreduce needs TensorFlow, which is not installed" in done.stderr


def test_the_numbers_of_the_operations_are_horovods() -> None:
    import tfring as hvd

    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]


PARAMETERS = {
    ("tfring", "broadcast_object"): "obj root_rank session name process_set",
    ("tfring", "allgather_object"): "obj session name process_set",
    ("tfring.keras", "load_model"): """filepath custom_optimizers custom_objects compression
        legacy_opts""",
    ("tfring.keras", "reducescatter"): "value name op",
    ("tfring.keras", "allreduce"): """value name average prescale_factor postscale_factor op
        compression""",
}


@pytest.mark.parametrize(("module", "name"), PARAMETERS)
def test_parameters_are_horovods(module: str, name: str) -> None:
    function = getattr(importlib.import_module(module), name)
    signature = inspect.signature(function).parameters.values()
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    parameters = [p.name for p in signature if p.kind not in by_name]
    assert parameters == PARAMETERS[module, name].split()


def test_options_of_tapes_and_optimizers_are_keywords() -> None:
    import tensorflow as tf

    import tfring
    import tfring.keras

    assert tfring.DistributedOptimizer is tfring.keras.DistributedOptimizer
    for wrap, given in (
        (tfring.DistributedOptimizer, tf.keras.optimizers.SGD()),
        (tfring.DistributedGradientTape, tf.GradientTape()),
    ):
        with pytest.raises(TypeError, match="positional argument"):
            wrap(given, "name")
        with pytest.raises(TypeError, match=r"has no option 'compresion'. Its options are after"):
            wrap(given, compresion=None)
    with pytest.raises(TypeError, match="has no option 'name'"):
        tfring.DistributedGradientTape(tf.GradientTape(), name="tape")


def test_the_types_of_options_name_each_option_once() -> None:
    from tfring.training.options import OptimizerOptions, ReduceOptions

    fields = {field.name for field in dataclasses.fields(ReduceOptions)}
    assert {*OptimizerOptions.__annotations__} == fields | {"num_groups"}


def test_each_option_of_an_optimizer_reaches_the_reducer() -> None:
    import tensorflow as tf

    import tfring
    from tfring.training.options import OptimizerOptions, ReduceOptions

    layer = tf.keras.layers.Dense(1)
    hook = lambda gradients, variables: gradients  # noqa: E731
    given = {
        "op": tfring.Average,
        "compression": tfring.Compression.fp16,
        "sparse_as_dense": "auto",
        "gradient_predivide_factor": 2.0,
        "groups": 3,
        "process_set": tfring.global_process_set,
        "device_dense": "CPU:0",
        "device_sparse": "CPU:1",
        "before_reduce": hook,
        "after_reduce": hook,
        "weight_by": 2.0,
        "local_layers": [layer],
        "scale_local_gradients": False,
        "name": "model",
        "backward_passes_per_step": 2,
        "average_aggregated_gradients": True,
    }
    options = tfring.DistributedOptimizer(tf.keras.optimizers.SGD(), **given)._tfring_hook.options
    assert {name: getattr(options, name) for name in given} == given
    assert {*given} == {*OptimizerOptions.__annotations__} - {
        "num_groups",
        "use_locking",
        "shard_states",
    }
    assert ReduceOptions.read("f", {"num_groups": 4}, OptimizerOptions).groups == 4
    assert ReduceOptions.read("f", {"use_locking": True}, OptimizerOptions).use_locking


def test_keras_optimizers_have_no_locks() -> None:
    import keras

    import tfring

    with pytest.raises(NotImplementedError, match="use_locking"):
        tfring.DistributedOptimizer(keras.optimizers.SGD(0.1), use_locking=True)


def test_both_modules_give_the_same_objects() -> None:
    import tfring
    import tfring.keras

    for name in ("Compression", "callbacks", "rank", "broadcast_object"):
        assert getattr(tfring, name) is getattr(tfring.keras, name)
