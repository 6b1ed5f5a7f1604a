"""load_model: keras.saving.load_model, with an optimizer that reduces gradients again."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import h5py
import keras
import numpy as np

from tfring.collectives import sync
from tfring.keras import facts
from tfring.keras.gradient_hook import find_hook, innermost
from tfring.keras.model_optimizers import sharded_hooks
from tfring.keras.optimizer import wrap
from tfring.keras.sync_batch_norm import SyncBatchNormalization
from tfring.runtime import process_sets
from tfring.training import saved_options
from tfring.training.saved_options import SAVED


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = SAVED,
    legacy_opts: bool = False,
    *,
    compile: bool = True,
    safe_mode: bool = True,
    weight_by: Any = SAVED,
    **options: Any,
) -> Any:
    """Loads a model and wraps its optimizer in DistributedOptimizer, which keeps its state.

    A saved model contains the plain optimizer, even if it was wrapped when the model was saved. So
    this works for any model that Keras saved, and keras.saving.load_model loads it without tfring.
    A .keras file has the options of DistributedOptimizer, but `name` and devices; an HDF5 file has
    none. No file has the accumulated gradients of an unfinished update.

    Args:
        filepath: a .keras or .h5 file.
        custom_optimizers: classes of optimizers that Keras does not know, if the model has one.
        custom_objects: as in keras.saving.load_model: objects by name.
        compression: for DistributedOptimizer; by default that of the file.
        legacy_opts: without effect: Keras 3 has no legacy optimizers and loads its own instead.
        compile: as in keras.saving.load_model; without it the model gets no optimizer.
        safe_mode: as in keras.saving.load_model: refuse files that hold Python code (lambdas).
        weight_by: for DistributedOptimizer; by default that of the file.
        **options: others of PartialDistributedOptimizer, in place of those of the file. `name` is
            needed where some ranks use other optimizers before this.

    Returns:
        The model; compiled, with a distributed optimizer, if it was compiled when it was saved.

    Raises:
        ValueError: the optimizer had a function, a compression of your own or a process set that
            cannot be made again from the file: give that option.
    """
    if legacy_opts:
        warnings.warn(
            "legacy_opts=True: Keras 3 has no legacy optimizers; the model gets Keras 3's own",
            stacklevel=2,
        )
    classes = (SyncBatchNormalization, *(custom_optimizers or ()))
    model = keras.saving.load_model(
        filepath,
        custom_objects=objects_of(classes, custom_objects),
        compile=compile,
        safe_mode=safe_mode,
    )
    if getattr(model, "optimizer", None) is not None:
        _restore_optimizer(model, filepath)
        options.update(compression=compression, weight_by=weight_by)
        wrap_loaded(model, filepath, options)
    return model


def save_model(model: Any, filepath: Any, *, process_set: Any = None, **options: Any) -> None:
    """Saves a model with `model.save` on rank 0, or the first of a set; a collective.

    Needed where an optimizer has shard_states=True: each rank has a part of its states. The file
    has all of them, so that one process, or any number of ranks, can load it. Then all ranks may
    load it as soon as this returns.

    Args:
        model: a model of Keras 3.
        filepath: where that rank writes it.
        process_set: that of the optimizer, if it has one. Its ranks call this, and the first of
            them writes.
        **options: of `model.save`.

    Raises:
        ValueError: the states are divided among the ranks of another process set.
        NotImplementedError: an HDF5 file of a model with sharded states.
        Exception: on the rank that writes: what `model.save` raises.
    """
    members, sharded = process_set or process_sets.global_process_set, sharded_hooks(model)
    for hook in sharded:
        if process_sets.checked_id(hook.process_set) != process_sets.checked_id(members):
            raise ValueError(
                f"save_model: the states of optimizer {hook.optimizer.name!r} are divided among "
                f"ranks {hook.process_set.ranks}, not among {members.ranks}.\nCall it on these "
                "ranks with the process_set that DistributedOptimizer got."
            )
    included = members.included()
    writes = included and members.rank() == 0
    try:
        save_together(model, model.save if writes else None, filepath, **options)
    finally:
        if included and sharded:
            sync.barrier(members)


def save_together(model: Any, write: Callable[..., None] | None, *args: Any, **kwargs: Any) -> None:
    """Gathers the model's sharded states on one rank and calls `write`; a collective.

    `write` is None on the ranks that write nothing. The file is the first argument.
    """
    path = str(args[0] if args else kwargs.get("filepath", ""))
    if sharded_hooks(model) and path.endswith((".h5", ".hdf5")) and ".weights." not in path:
        raise NotImplementedError(
            f"{path}: an HDF5 file would have a part of the optimizer's states (shard_states=True)."
            "\nGive the file the suffix .keras."
        )
    with contextlib.ExitStack() as gathered:
        for hook in sharded_hooks(model):
            gathered.enter_context(hook.shards.gathered(f"{hook.name}.states"))
        if write is not None:
            write(*args, **kwargs)


class SavedTogether:
    """A model with sharded states as a ModelCheckpoint sees it: all ranks save, one writes."""

    def __init__(self, model: Any, writes: bool) -> None:
        """Takes the model, and whether this rank writes."""
        self.model, self._writes = model, writes

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Saves as `model.save`; a collective."""
        save_together(self.model, self.model.save if self._writes else None, *args, **kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        """Saves as `model.save_weights`, whose file has the optimizer, too; a collective."""
        write = self.model.save_weights if self._writes else None
        save_together(self.model, write, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def objects_of(classes: Iterable[type], more: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the custom objects with which Keras finds these classes, and more objects by name."""
    return {**{each.__name__: each for each in classes}, **(more or {})}


def wrap_loaded(model: Any, filepath: Any, options: dict[str, Any]) -> None:
    """Wraps the optimizer of a model with the options of its file, or those given in place."""
    trained = getattr(innermost(model.optimizer), "_trainable_variables", [])
    read = saved_options.of_file(filepath, options, trained)
    whole = model.optimizer
    if not read.shards:
        wrap(whole, read, resumed=True)
        return
    model.optimizer = optimizer = type(whole).from_config(whole.get_config())
    wrap(optimizer, read, resumed=True)
    if whole.built:
        facts.build_for(optimizer, facts.trained_by(innermost(whole), []))
        if optimizer is not innermost(optimizer):  # the states of loss scaling
            for variable, value in zip(optimizer._variables, whole._variables, strict=True):
                variable.assign(value)
        states = [variable.numpy() for variable in innermost(whole).variables]
        find_hook(optimizer).shards.take(states)


def _restore_optimizer(model: Any, filepath: Any) -> None:
    """Gives the model of an HDF5 file an optimizer with the state that is in the file.

    Keras builds it for an empty list of variables, so it has no state and cannot train.
    """
    known = getattr(innermost(model.optimizer), "_trainable_variables", None)
    lost = model.optimizer.built and not known and model.trainable_variables
    if not lost or not h5py.is_hdf5(filepath):
        return
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    optimizer.build(model.trainable_variables)
    with h5py.File(filepath, "r") as file:
        group = file["optimizer_weights"]
        stored = [np.asarray(group[name]) for name in group.attrs["weight_names"]]
    variables = optimizer.variables
    if [tuple(v.shape) for v in variables] != [value.shape for value in stored]:
        warnings.warn(
            f"the state of optimizer {optimizer.name!r} in {filepath} does not fit the model's "
            "variables; it starts anew",
            stacklevel=3,
        )
    else:
        for variable, value in zip(variables, stored, strict=True):
            variable.assign(value)
    model.optimizer = optimizer
