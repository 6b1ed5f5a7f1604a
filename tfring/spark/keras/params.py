"""Horovod's parameters of estimators, as parameters of Spark ML with setters and getters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params

# Name of a parameter: its default and its meaning.
Table = Mapping[str, tuple[Any, str]]
Class = TypeVar("Class", bound=type)

MEMORY_BYTES = 256 << 20

_EFFECTIVE: Table = {
    "num_proc": (None, "The number of ranks; None: spark.default.parallelism."),
    "model": (None, "A built Keras model with its inputs."),
    "backend": (None, "Runs the training, a tfring.spark.backend.Backend; None: Spark."),
    "store": (None, "Holds data, checkpoints and logs: a Store, or a path for one."),
    "custom_objects": (None, "Classes and functions that the model needs, by name."),
    "optimizer": (None, "A Keras optimizer or its name; None: that of the compiled model."),
    "loss": (None, "A loss, a name, or a list of them; None: that of the compiled model."),
    "loss_weights": (None, "The weight of each loss; None: those of the compiled model."),
    "metrics": (None, "Metrics or their names; None: those of the compiled model."),
    "feature_cols": (None, "The columns for the model's inputs, in their order."),
    "label_cols": (None, "The columns for the model's outputs, in their order."),
    "sample_weight_col": (None, "The column with the weight of each row."),
    "label_shapes": (None, "The shape of each label, -1 for the rows; None: as in the data."),
    "validation": (None, "The part of the rows for validation, or the column that says which."),
    "callbacks": (None, "Keras callbacks, for all ranks; TensorBoard for rank 0 only."),
    "checkpoint_callback": (None, "Chooses the resulting model: a ModelCheckpoint."),
    "batch_size": (32, "Rows of a batch of one rank."),
    "val_batch_size": (None, "batch_size for validation; None: batch_size."),
    "epochs": (1, "The number of epochs."),
    "train_steps_per_epoch": (None, "Batches of an epoch; None: all rows of the rank."),
    "validation_steps_per_epoch": (
        None,
        "Batches of a validation pass; None: all rows of the rank.",
    ),
    "shuffle": (True, "Whether to mix rows, in a different order in each epoch."),
    "shuffle_buffer_size": (None, "The most rows to mix; None: as memory_bytes allows."),
    "memory_bytes": (MEMORY_BYTES, "The most memory of a rank for waiting rows."),
    "partitions_per_process": (
        None,
        "The number of partitions per rank for the rows before training.",
    ),
    "transformation_fn": (None, "Gets each batch as a pandas data frame and returns it changed."),
    "gradient_compression": (None, "A hvd.Compression."),
    "backward_passes_per_step": (1, "Batches whose gradients are added up before an update."),
    "random_seed": (None, "For shuffling, splitting and the ranks' seeds."),
    "run_id": (None, "The name of the run in the store; an existing run is resumed."),
    "use_gpu": (True, "Whether each rank uses a GPU, if there are any."),
    "backend_env": (None, "Variables for all ranks."),
    "verbose": (1, "Of fit, on rank 0."),
}

# Further parameters of Horovod, with defaults and the reason why they have no effect.
_SPARSE = "Has no effect: sparse vectors are written as lists of numbers."
_PYARROW = "Has no effect: data is read with pyarrow, in the rank's own threads."
_WITHOUT_EFFECT: Table = {
    "compress_sparse": (False, _SPARSE),
    "compress_sparse_cols": (False, _SPARSE),
    "data_module": (None, _PYARROW),
    "inmemory_cache_all": (False, "Has no effect: memory_bytes is the limit."),
    "mp_start_method": (None, "Has no effect: no processes are started to read data."),
    "reader_pool_type": ("thread", _PYARROW),
    "train_async_data_loader_queue_size": (None, _PYARROW),
    "train_reader_num_workers": (2, _PYARROW),
    "val_async_data_loader_queue_size": (None, _PYARROW),
    "val_reader_num_workers": (2, _PYARROW),
}
# Further parameters of Horovod that are refused.
_REFUSED: Table = {
    "transformation_edit_fields": (
        None,
        "transformation_fn must keep the columns and their types",
    ),
    "transformation_removed_fields": (None, "transformation_fn must keep the columns"),
}
ESTIMATOR: Table = {**_EFFECTIVE, **_WITHOUT_EFFECT, **_REFUSED}

# Setters and getters of Horovod whose names differ from the parameter's: additional ones.
_METHODS = {
    "inmemory_cache_all": "InMemoryCacheAll",
    "label_columns": "LabelColoumns",  # Horovod's own spelling
    "shuffle_buffer_size": "ShufflingBufferSize",
    "train_reader_num_workers": "TrainReaderNumWorker",
    "val_reader_num_workers": "ValReaderNumWorker",
}

MODEL: Table = {
    "model": (None, "The trained Keras model, or its content as a .keras file."),
    "feature_columns": (None, "The columns for the model's inputs, in their order."),
    "label_columns": (None, "The label columns, in the order of the model's outputs."),
    "output_cols": (None, "The names of the new columns; None: the labels' with __output."),
    "custom_objects": (None, "Classes and functions that the model needs, by name."),
    "history": (None, "The values of each epoch, by metric."),
    "run_id": (None, "The name of the run in the store."),
    "batch_size": (256, "The number of rows to predict at once."),
}


def with_params(table: Table) -> Callable[[Class], Class]:
    """Returns a decorator that gives a class parameters, with setters and getters.

    Args:
        table: The parameters.
    """

    def decorate(cls: Class) -> Class:
        for name, (_, meaning) in table.items():
            setattr(cls, name, Param(Params._dummy(), name, meaning))
            camel = "".join(word.capitalize() for word in name.split("_"))
            for method, function in (("set", _setter(name)), ("get", _getter(name))):
                function.__doc__ = f"{method.capitalize()}s {name}: {meaning}"
                for suffix in {camel, _METHODS.get(name, camel)}:
                    if not hasattr(cls, f"{method}{suffix}"):
                        setattr(cls, f"{method}{suffix}", function)
        return cls

    return decorate


def set_defaults(target: Any, table: Table) -> None:
    """Sets the defaults of an object, which its constructor does before all else."""
    target._setDefault(**{name: default for name, (default, _) in table.items()})


def set_params(target: Any, table: Table, given: Mapping[str, Any]) -> Any:
    """Sets parameters of an object; returns it.

    Args:
        target: an object of a class with these parameters.
        table: the parameters.
        given: by name.

    Raises:
        TypeError: there is no such parameter.
        NotImplementedError: tfring refuses this parameter of Horovod.
    """
    for name, value in given.items():
        if name not in table:
            raise TypeError(f"{type(target).__name__} has no parameter {name!r}")
        if name in _REFUSED and value:
            raise NotImplementedError(
                f"tfring does not support {name}={value!r}: {_REFUSED[name][1]}"
            )
    return target._set(**given)


def _setter(name: str) -> Callable[[Any, Any], Any]:
    def setter(self: Any, value: Any) -> Any:
        return self.setParams(**{name: value})

    return setter


def _getter(name: str) -> Callable[[Any], Any]:
    def getter(self: Any) -> Any:
        return self.getOrDefault(name)

    return getter
