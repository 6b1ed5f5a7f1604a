"""The names that scripts import, and what importing them costs."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOROVOD_NAMES = {
    "tfring": """
    init shutdown is_initialized rank size local_rank local_size cross_rank cross_size
    allreduce grouped_allreduce allgather broadcast broadcast_variables broadcast_object
    broadcast_object_fn allgather_object barrier Compression DistributedGradientTape
    DistributedOptimizer LocalGradientAggregationHelper PartialDistributedGradientTape
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
    StragglerCallback CommunicationMetrics BatchNormAverageCallback
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
    ("tfring", "DistributedGradientTape"): """gradtape device_dense device_sparse compression
        sparse_as_dense op gradient_predivide_factor num_groups groups process_set
        scale_local_gradients""",
    ("tfring", "DistributedOptimizer"): """optimizer name use_locking device_dense device_sparse
        compression sparse_as_dense backward_passes_per_step op gradient_predivide_factor
        average_aggregated_gradients num_groups groups process_set scale_local_gradients""",
    ("tfring.keras", "DistributedOptimizer"): """optimizer name device_dense device_sparse
        compression sparse_as_dense gradient_predivide_factor op backward_passes_per_step
        average_aggregated_gradients num_groups groups process_set scale_local_gradients""",
    ("tfring", "PartialDistributedGradientTape"): """gradtape device_dense device_sparse compression
        sparse_as_dense op gradient_predivide_factor num_groups groups process_set local_layers
        scale_local_gradients""",
    ("tfring.keras", "PartialDistributedOptimizer"): """optimizer name device_dense device_sparse
        compression sparse_as_dense gradient_predivide_factor op backward_passes_per_step
        average_aggregated_gradients groups process_set local_layers scale_local_gradients""",
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


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("tfring", "DistributedOptimizer"),
        ("tfring.keras", "DistributedOptimizer"),
        ("tfring.keras", "PartialDistributedOptimizer"),
    ],
)
def test_no_parameter_of_an_optimizer_is_dropped(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfring.keras import horovod_tensorflow, optimizer
    from tfring.training.options import ReduceOptions

    def reduce_options(*args: Any, **kwargs: Any) -> Any:
        return inspect.signature(ReduceOptions).bind(*args, **kwargs).arguments

    for place in (horovod_tensorflow, optimizer):
        monkeypatch.setattr(place, "ReduceOptions", reduce_options)
        monkeypatch.setattr(place, "LocalVariables", lambda *layers, **rest: (layers, rest))
        monkeypatch.setattr(place, "resolve_groups", lambda number, groups: (number, groups))
    monkeypatch.setattr(optimizer, "wrap", lambda *given: given)
    function = getattr(importlib.import_module(module), name)
    parameters = set(inspect.signature(function).parameters) - {"use_locking"}
    given = {parameter: object() for parameter in parameters}
    wrapped, options, resumed = function(**given)
    layers = (given["local_layers"],) if "local_layers" in given else ()
    scale, process_set = given["scale_local_gradients"], given["process_set"]
    assert wrapped is given["optimizer"] and resumed is given["resumed"]
    assert options.local == (layers, {"scale": scale, "process_set": process_set})
    assert options.reduction.pop("groups") == (given.get("num_groups", 0), given["groups"])
    assert options.reduction == {key: given[key] for key in options.reduction}
    assert (options.name, options.passes) == (given["name"], given["backward_passes_per_step"])
    assert options.average is given["average_aggregated_gradients"]
    assert parameters == {
        "optimizer",
        "name",
        "groups",
        "scale_local_gradients",
        "backward_passes_per_step",
        "resumed",
        "average_aggregated_gradients",
        *options.reduction,
        *(parameters & {"num_groups", "local_layers"}),
    }


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
