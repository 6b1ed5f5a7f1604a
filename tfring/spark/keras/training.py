"""The training of an estimator on a rank."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tfring.keras as hvd
from tfring.spark.data.datasets import dataset
from tfring.spark.data.frames import Prepared
from tfring.spark.data.parquet import ParquetData, RankRows
from tfring.spark.keras.saved import model_bytes, model_of, optimizer_of, unpacked
from tfring.spark.keras.shapes import Arrangement

_log = logging.getLogger("tfring")

# The part of the row memory for training. The rest is for validation, whose rows are not mixed.
_TRAINING_PART = 0.75


class Plan(NamedTuple):
    """The work of all ranks, in a form that is sent.

    Attributes:
        model: the model's bytes.
        optimizer: its config.
        objects: the user's other objects: a dictionary, from `packed`.
        numbers: plain parameters, by name.
        data: the rows.
        features: their columns.
        labels: their columns.
        run_id: the name of the run.
    """

    model: bytes
    optimizer: Any
    objects: bytes
    numbers: dict[str, Any]
    data: Prepared
    features: tuple[str, ...]
    labels: tuple[str, ...]
    run_id: str


class Trained(NamedTuple):
    """The result of rank 0: the model's bytes, and the values of each epoch."""

    model: bytes
    history: dict[str, list[float]]


def train(plan: Plan) -> Trained | None:
    """Trains; every rank calls it."""
    hvd.init()
    numbers = plan.numbers
    if numbers["use_gpu"]:
        _pin_gpu()
    if numbers["random_seed"] is not None:
        hvd.set_random_seed(numbers["random_seed"])
    objects, custom = unpacked(plan.objects)
    model = model_of(plan.model, custom)
    options = {"backward_passes_per_step": numbers["backward_passes_per_step"]}
    if objects["gradient_compression"] is not None:
        options["compression"] = objects["gradient_compression"]
    optimizer = optimizer_of(plan.optimizer, custom)
    _scale_rate(optimizer, objects["callbacks"])
    model.compile(
        optimizer=hvd.DistributedOptimizer(optimizer, **options),
        **{name: objects[name] for name in ("loss", "loss_weights", "metrics", "weighted_metrics")},
    )
    folder = tempfile.mkdtemp(prefix="tfring-estimator-")
    try:
        return _fit(plan, model, objects, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fit(plan: Plan, model: Any, objects: dict[str, Any], folder: str) -> Trained | None:
    """Fits the model; a folder of this rank holds its files meanwhile."""
    numbers, store, first = plan.numbers, plan.data.store, hvd.rank() == 0
    arrange = Arrangement.of(
        model, plan.features, plan.labels, objects["label_shapes"], numbers["sample_weight_col"]
    )
    steps = numbers["train_steps_per_epoch"]
    best = objects["checkpoint_callback"] if first else None
    if best is not None:
        best.filepath = os.path.join(folder, "best.keras")
    history = model.fit(
        _rows(plan, arrange, objects["transformation_fn"], plan.data.train, steps),
        epochs=numbers["epochs"],
        steps_per_epoch=steps,
        validation_data=_validation(plan, arrange, objects["transformation_fn"]),
        validation_steps=numbers["validation_steps_per_epoch"],
        verbose=numbers["verbose"] if first else 0,
        callbacks=_callbacks(plan, model, objects["callbacks"], best, folder),
    )
    if not first:
        return None
    content = model_bytes(model)
    if best is not None and os.path.exists(best.filepath):
        with open(best.filepath, "rb") as file:
            content = file.read()
    elif best is not None:
        _log.warning(
            "checkpoint_callback has kept no model, so the result is the last one. It chooses by "
            "%r, but the training reports %s",
            getattr(best, "monitor", None),
            sorted(history.history),
        )
    if store.saving_runs():
        store.write(store.get_checkpoint_path(plan.run_id), content)
        if os.path.isdir(logs := os.path.join(folder, "logs")):
            store.upload(logs, store.get_logs_path(plan.run_id))
    return Trained(content, {n: list(map(float, v)) for n, v in history.history.items()})


def _scale_rate(optimizer: Any, callbacks: Sequence[Any] | None) -> None:
    """Multiplies the learning rate by the number of ranks, as Horovod does; leaves a schedule."""
    import keras

    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    given = getattr(inner, "_learning_rate", None)
    if not hasattr(given, "assign"):  # a schedule, or a function
        return
    rate = float(keras.ops.convert_to_numpy(given)) * hvd.size()
    optimizer.learning_rate = rate
    for callback in callbacks or ():
        if isinstance(callback, hvd.callbacks.LearningRateScheduleCallback):
            callback.initial_lr = rate


def _pin_gpu() -> None:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")


def _rows(
    plan: Plan,
    arrange: Arrangement,
    change: Callable[[Any], Any] | None,
    path: str,
    steps: int | None,
    *,
    validates: bool = False,
) -> Any:
    """Returns this rank's part of data as a dataset."""
    numbers, store = plan.numbers, plan.data.store
    columns = list(plan.data.columns.values())
    part = 1 - _TRAINING_PART if validates else _TRAINING_PART
    seed = numbers["random_seed"] or 0
    shuffled = numbers["shuffle"] and numbers["shuffle_buffer_size"] != 0  # 0 is Horovod's "off"
    rows = RankRows(
        ParquetData(store.filesystem(), store.path_in_filesystem(path)),
        columns,
        rank=hvd.rank(),
        size=hvd.size(),
        batch_size=(numbers["val_batch_size"] if validates else None) or numbers["batch_size"],
        memory_bytes=int(numbers["memory_bytes"] * part),
        seed=seed if shuffled and not validates else None,
        mixing_rows=numbers["shuffle_buffer_size"],
    )
    found = dataset(rows, columns, arrange, change=change)
    return found if steps is None else found.repeat()


def _validation(plan: Plan, arrange: Arrangement, change: Callable[[Any], Any] | None) -> Any:
    path, steps = plan.data.validation, plan.numbers["validation_steps_per_epoch"]
    if path is None:
        return None
    return _rows(plan, arrange, change, path, steps, validates=True)


def _callbacks(
    plan: Plan, model: Any, given: Sequence[Any] | None, best: Any, folder: str
) -> list[Any]:
    """Returns the callbacks of this rank; only rank 0 writes files."""
    import keras

    first, store = hvd.rank() == 0, plan.data.store
    found = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    for callback in given or ():
        if isinstance(callback, keras.callbacks.TensorBoard):
            callback.log_dir = os.path.join(folder, "logs")
            if not first:
                continue
        found.append(callback)
    if best is not None:
        found.append(best)
    elif first and store.saving_runs():
        path = store.get_checkpoint_path(plan.run_id)
        found.append(
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: store.write(path, model_bytes(model))
            )
        )
    return found
