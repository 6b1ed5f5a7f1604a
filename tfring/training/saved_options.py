"""Options of DistributedOptimizer in the archive of a saved model, and back.

A saved model holds the plain optimizer, so Keras loads it without tfring. Keras also lets an
optimizer write files beside the model, and ignores them when it loads a plain optimizer. One such
file, in JSON, holds the options that are not the defaults. It names variables by their positions,
as Keras does for the optimizer's state.
"""

from __future__ import annotations

import json
import os
import types
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring.collectives.compression import Compression
from tfring.ops import reduce_ops
from tfring.runtime import process_sets
from tfring.training.local_variables import LocalVariables, variable_key
from tfring.training.options import LOSS, OptimizerOptions, ReduceOptions

SAVED: Any = "saved"
"""For arguments of load_model: use the file's value, or the default without one."""

FILE = "tfring.json"
_PLACES = [f"assets/optimizer/{FILE}", f"assets/optimizer/inner_optimizer/{FILE}"]
_COMPRESSIONS = {"none": Compression.none, "fp16": Compression.fp16, "bf16": Compression.bf16}


_INSTEAD = {
    "groups": "Give load_model groups=None, or a number.",
    "local_layers": "Give load_model local_layers=None, and then call "
    "model.optimizer.register_local_var(variable) for each variable.",
}


def write(
    folder: str, options: ReduceOptions, local: LocalVariables, variables: Sequence[Any]
) -> None:
    """Writes a file into `folder`, unless all options are the defaults.

    Args:
        folder: where Keras keeps the optimizer's files of the archive.
        options: of the optimizer.
        local: the optimizer's local variables.
        variables: those that the optimizer was built for, in its order; [] before it is built.
    """
    defaults = _values(ReduceOptions(weight_by=LOSS), LocalVariables(), [])
    kept = {k: v for k, v in _values(options, local, variables).items() if v != defaults[k]}
    if kept:
        with tf.io.gfile.GFile(os.path.join(folder, FILE), "w") as file:
            file.write(json.dumps(kept))


def read(filepath: Any) -> dict[str, Any]:
    """Returns the options that `write` put into a saved model; {} for a file without options."""
    path = str(filepath)
    if tf.io.gfile.isdir(path):
        for place in _PLACES:
            if tf.io.gfile.exists(inside := os.path.join(path, place)):
                with tf.io.gfile.GFile(inside) as file:
                    return dict(json.loads(file.read()))
    elif path.endswith(".keras"):
        with tf.io.gfile.GFile(path, "rb") as file, zipfile.ZipFile(file) as archive:
            for place in set(_PLACES).intersection(archive.namelist()):
                return dict(json.loads(archive.read(place)))
    return {}


def of_file(filepath: Any, given: Mapping[str, Any], variables: Sequence[Any]) -> ReduceOptions:
    """Returns the options for an optimizer that was loaded from a file.

    Args:
        filepath: of the saved model.
        given: options of DistributedOptimizer, which win; an option that is SAVED is not given.
        variables: those that the loaded optimizer was built for, in its order.

    Raises:
        ValueError: an option cannot be made again from the file.
        TypeError: an unknown option.
    """
    asked = {name: value for name, value in given.items() if value is not SAVED}
    for name, value in read(filepath).items():
        if name not in asked:
            asked[name] = _argument(name, value, variables)
    return ReduceOptions.read("load_model", {"weight_by": LOSS, **asked}, OptimizerOptions)


def _values(
    options: ReduceOptions, local: LocalVariables, variables: Sequence[Any]
) -> dict[str, Any]:
    """Returns all saved options as JSON values."""
    positions = {variable_key(v): i for i, v in enumerate(variables)}
    groups: Any = options.groups
    if groups is not None and not isinstance(groups, int):
        groups = [[positions.get(variable_key(v)) for v in group] for group in groups]
        if any(None in group for group in groups):
            groups = {"lost": "lists of variables"}
    layers: Any = sorted(local.positions(variables))
    if local and not layers:
        layers = {"lost": "layers without weights"}
    weight = options.weight_by
    if isinstance(weight, (int, float, np.number)):
        weight = float(weight)
    compression = [name for name, c in _COMPRESSIONS.items() if c is options.compression]
    return {
        "op": reduce_ops.name_of(options.op),
        "compression": compression[0] if compression else _lost(options.compression),
        "sparse_as_dense": options.sparse_as_dense,
        "gradient_predivide_factor": float(options.gradient_predivide_factor),
        "groups": groups,
        "process_set": options.members.ranks if _is_part(options.process_set) else None,
        "before_reduce": options.before_reduce and _lost(options.before_reduce),
        "after_reduce": options.after_reduce and _lost(options.after_reduce),
        "weight_by": weight if isinstance(weight, (str, float, type(None))) else _lost(weight),
        "backward_passes_per_step": options.backward_passes_per_step,
        "average_aggregated_gradients": options.average_aggregated_gradients,
        "local_layers": layers,
        "scale_local_gradients": options.scale_local_gradients,
        "shard_states": options.shard_states,
    }


def _is_part(process_set: Any) -> bool:
    return process_set is not None and process_sets.checked_id(process_set) != 0


def _lost(value: Any) -> dict[str, str]:
    """Returns the file's stand-in for an object that no file can hold."""
    return {"lost": getattr(value, "__name__", None) or type(value).__name__}


def _argument(name: str, value: Any, variables: Sequence[Any]) -> Any:
    """Returns the option of DistributedOptimizer that a saved option stands for."""
    if isinstance(value, dict):
        again = f"Write load_model(path, {name}={value['lost']}), or give another {name}."
        raise _error(name, value["lost"], _INSTEAD.get(name, again))
    if name == "op":
        return {known: number for number, known in reduce_ops.NAMES.items()}[value]
    if name == "compression":
        return _COMPRESSIONS[value]
    if name == "process_set":
        for each in process_sets.registered().values():
            if each.ranks == value:
                return each
        add = f"Call hvd.add_process_set({value}) on all ranks before, or give process_set=."
        raise _error(name, value, add)
    if isinstance(value, list):
        try:
            if name == "groups":
                return [[variables[i] for i in group] for group in value]
            return types.SimpleNamespace(trainable_weights=[variables[i] for i in value])
        except IndexError:
            raise _error(name, "variables of a model that is not built", _INSTEAD[name]) from None
    return value


def _error(name: str, text: Any, instead: str) -> ValueError:
    return ValueError(
        f"The optimizer of this model had {name}={text}. load_model cannot make that from the "
        "file.\n"
        f"{instead}"
    )
