"""Options of DistributedOptimizer in the file of a saved model, and what plain Keras gets of it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras_cases import (
    assert_same_on_all_ranks,
    assert_same_weights,
    broadcast,
    build_model,
    fit,
    loss,
    my_data,
)

import tfring.keras as hvd
from tfring.keras.gradient_hook import find_hook

pytestmark = pytest.mark.usefixtures("eager_functions")

SGD = keras.optimizers.SGD
ENTRY = "assets/optimizer/tfring.json"


def shared(path: Path) -> Path:
    """The path of rank 0."""
    return Path(hvd.broadcast_object(str(path), root_rank=0, name="test.path"))


def trained(steps: int = 6, optimizer: Any = None, seed: int = 3, **options: Any) -> Any:
    model = build_model(seed)
    local = options.pop("local", None)
    if local is not None:
        options["local_layers"] = [model.layers[local]]
    wrap = hvd.DistributedOptimizer if local is None else hvd.PartialDistributedOptimizer
    model.compile(wrap(optimizer or SGD(0.1, momentum=0.9), **options), loss())
    fit(model, broadcast(), steps=steps)
    return model


def written(model: Any, path: Path) -> Path:
    """Where rank 0 has saved the model."""
    path = shared(path)
    if hvd.rank() == 0:
        model.save(path)
    hvd.barrier()
    return path


def entry(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(ENTRY)) if ENTRY in archive.namelist() else {}


def options_of(model: Any) -> Any:
    return find_hook(model.optimizer).options


def test_a_loaded_model_goes_on_as_the_same_object(tmp_path: Path) -> None:
    model = trained(backward_passes_per_step=3, op=hvd.Sum)
    path = written(model, tmp_path / "model.keras")
    loaded = hvd.load_model(path)
    for each in (model, loaded):
        fit(each, broadcast(), steps=6)
    assert_same_weights(loaded, model.get_weights(), tolerance=1e-6)
    assert_same_on_all_ranks(loaded)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 4


def test_options_are_kept_and_arguments_win(tmp_path: Path) -> None:
    kept = {
        "gradient_predivide_factor": 2.0,
        "compression": hvd.Compression.bf16,
        "sparse_as_dense": "auto",
        "groups": 2,
        "weight_by": None,
    }
    path = written(trained(steps=1, **kept), tmp_path / "model.keras")
    loaded = hvd.load_model(path)
    for name, value in kept.items():
        assert getattr(options_of(loaded), name) == value
    assert set(entry(path)) == set(kept)
    other: dict[str, Any] = {
        "op": hvd.Average,
        "gradient_predivide_factor": 1.0,
        "compression": hvd.Compression.none,
        "sparse_as_dense": False,
        "groups": 3,
        "weight_by": "loss",
    }
    again = options_of(hvd.load_model(path, **other))
    assert {name: getattr(again, name) for name in other} == other


def test_local_layers_and_groups_of_variables_are_kept(several: int, tmp_path: Path) -> None:
    model = trained(local=1, optimizer=SGD(0.1), scale_local_gradients=False)
    path = shared(tmp_path) / f"model{hvd.rank()}.keras"  # local weights differ by rank
    model.save(path)
    loaded = hvd.load_model(path)
    local = find_hook(loaded.optimizer).local_among(loaded.trainable_variables)
    assert [v.path for v in local] == [v.path for v in loaded.layers[1].trainable_variables]
    for each in (model, loaded):
        fit(each, broadcast())
    assert_same_weights(loaded, model.get_weights(), tolerance=1e-6)
    with pytest.raises(AssertionError):
        assert_same_on_all_ranks(loaded)

    model = build_model(1)
    parts = [list(layer.trainable_variables) for layer in model.layers]
    model.compile(hvd.DistributedOptimizer(SGD(0.1), groups=parts), loss())
    fit(model, broadcast())
    loaded = hvd.load_model(written(model, tmp_path / "groups.keras"))
    places = [[v.path for v in group] for group in options_of(loaded).groups]
    assert places == [[v.path for v in layer.trainable_variables] for layer in loaded.layers]
    assert_same_on_all_ranks(loaded)


def test_a_process_set_is_found_again_or_asked_for(several: int, tmp_path: Path) -> None:
    members = hvd.add_process_set([several - 1])
    # Members may have trained with more optimizers in such a set than others.
    model = trained(steps=1, process_set=members, name="of_a_set")
    path = written(model, tmp_path / "model.keras")
    assert options_of(hvd.load_model(path)).process_set is members
    hvd.remove_process_set(members)
    with pytest.raises(
        ValueError,
        match=rf"process_set=\[{several - 1}\](?s:.*)hvd.add_process_set\(\[{several - 1}\]\)",
    ):
        hvd.load_model(path)
    everyone = hvd.load_model(path, process_set=hvd.global_process_set)
    assert options_of(everyone).process_set is hvd.global_process_set
    assert not hvd.load_model(path, compile=False).compiled


class Halved(hvd.Compression.none):  # type: ignore[name-defined,misc]
    """A compression of the program's own."""


def rows(x: Any, y: Any, sample_weight: Any) -> Any:
    return tf.cast(tf.shape(x)[0], tf.float32)


@pytest.mark.parametrize(
    ("name", "value", "without"),
    [("compression", Halved, hvd.Compression.none), ("weight_by", rows, "loss")],
)
def test_what_no_file_can_hold_is_named(
    name: str, value: Any, without: Any, tmp_path: Path
) -> None:
    path = written(trained(steps=1, **{name: value}), tmp_path / "model.keras")
    with pytest.raises(ValueError, match=rf"{name}=.*{value.__name__}(?s:.*){name}="):
        hvd.load_model(path)
    for given in (value, without):
        assert getattr(options_of(hvd.load_model(path, **{name: given})), name) == given


def test_local_layers_of_a_model_that_was_not_trained(tmp_path: Path) -> None:
    model = build_model(1)
    optimizer = hvd.PartialDistributedOptimizer(SGD(0.1), local_layers=model.layers[1])
    model.compile(optimizer, loss())
    path = written(model, tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"local_layers(?s:.*)register_local_var"):
        hvd.load_model(path)
    loaded = hvd.load_model(path, local_layers=None)
    loaded.optimizer.register_local_var(loaded.layers[1].kernel)


def test_plain_keras_gets_the_optimizer_that_was_wrapped(tmp_path: Path) -> None:
    """It goes on as a plain optimizer does that takes each batch, with the state of the file."""
    given = SGD(0.1, momentum=0.9, name="given")
    model = trained(optimizer=given, backward_passes_per_step=3, op=hvd.Sum)
    path = written(model, tmp_path / "model.keras")
    loaded = keras.saving.load_model(path)
    assert loaded.optimizer.get_config() == SGD(0.1, momentum=0.9, name="given").get_config()
    assert int(loaded.optimizer.iterations) == 2
    expected = build_model(3)
    expected.compile(SGD(0.1, momentum=0.9), loss())
    expected.optimizer.build(expected.trainable_variables)
    expected.set_weights(model.get_weights())
    for ours, theirs in zip(expected.optimizer.variables, model.optimizer.variables, strict=True):
        ours.assign(theirs)
    x, y = my_data(2)
    for each in (loaded, expected):
        each.fit(x, y, batch_size=6, shuffle=False, verbose=0)
    assert_same_weights(loaded, expected.get_weights(), tolerance=1e-6)


def test_files_without_options_load_as_before(tmp_path: Path) -> None:
    path = written(trained(steps=1), tmp_path / "plain.keras")
    assert entry(path) == {}
    assert options_of(hvd.load_model(path)).op == hvd.Average


def test_an_unzipped_model(tmp_path: Path) -> None:
    model = trained(steps=1, op=hvd.Sum)
    path = shared(tmp_path / "model")
    if hvd.rank() == 0:
        model.save(path, zipped=False)
    hvd.barrier()
    assert options_of(hvd.load_model(path)).op == hvd.Sum


class KeepsMore(SGD):
    """An optimizer with a file of its own beside the model."""

    def save_assets(self, dir_path: str) -> None:
        Path(dir_path, "own.txt").write_text("kept", encoding="utf-8")


def test_assets_of_the_optimizers_own_class_are_kept(tmp_path: Path) -> None:
    path = written(trained(1, KeepsMore(0.1), op=hvd.Sum), tmp_path / "model.keras")
    with zipfile.ZipFile(path) as archive:
        assert archive.read("assets/optimizer/own.txt") == b"kept"
    loaded = hvd.load_model(path, custom_optimizers=[KeepsMore])
    assert options_of(loaded).op == hvd.Sum
