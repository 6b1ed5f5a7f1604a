"""Writers: of several ranks that would write one file, only the first does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras

from tfring.collectives import objects
from tfring.keras.callbacks.base import DistributedCallback
from tfring.keras.callbacks.checkpoint import BestModelCheckpoint
from tfring.keras.model_optimizers import refuse_parts_of_sets, sharded_hooks
from tfring.keras.saving import SavedTogether
from tfring.runtime import topology

# Where Keras' callbacks write, by class: the attribute with the path.
_WRITE = {
    BestModelCheckpoint: "filepath",
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.TensorBoard: "log_dir",
}
_BACKUP = keras.callbacks.BackupAndRestore  # which reads, too, and so has to be on all ranks


class Writers(DistributedCallback):
    """Keeps all ranks but the first from writing the files that the first one writes.

    All ranks have the same weights and metrics, so one file is enough; two ranks that write it at
    once destroy it. Files of other names are left alone. So are subclasses with an on_epoch_end or
    the like of their own, which may be needed on all ranks. Put it before the callbacks that it is
    given.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        super().__init__()
        self._callbacks = list(callbacks)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Finds the files; a collective.

        Raises:
            RuntimeError: two ranks have a BackupAndRestore in the same folder; on every rank.
        """
        super().on_train_begin(logs)
        for callback in self._callbacks:
            _wake(callback)  # the first rank may be another one than in the last fit
        files = [_file(each) for each in self._callbacks]
        backups = [_path(b.backup_dir) for b in self._callbacks if isinstance(b, _BACKUP)]
        saves = [one for one in self._callbacks if isinstance(one, keras.callbacks.ModelCheckpoint)]
        if saves:
            refuse_parts_of_sets(self.model, "a ModelCheckpoint")
        sharded = bool(sharded_hooks(self.model))
        mine = {
            "files": [each for each in files if each],
            "backups": backups,
            "saves": len(saves) if sharded else 0,
        }
        everywhere = objects.allgather_json(mine, name="tfring.writers")
        seen: dict[str, int] = {}
        for rank, each in enumerate(everywhere):
            for path in each["backups"]:
                if path in seen:
                    raise RuntimeError(
                        f"rank {topology.rank()}: BackupAndRestore of ranks {seen[path]} and "
                        f"{rank} would both write to {path}: give each rank a folder of its own, "
                        "or use fit_callbacks(checkpoint=...) in its place"
                    )
                seen[path] = rank
        counts = [each["saves"] for each in everywhere]
        if len(set(counts)) > 1:
            raise RuntimeError(
                f"rank {topology.rank()}: the ranks have {counts} ModelCheckpoints, and each rank "
                "has a part of the optimizer's states (shard_states=True).\nGive "
                "hvd.fit_callbacks the same ModelCheckpoints on every rank; rank 0 writes."
            )
        before = {tuple(each) for other in everywhere[: topology.rank()] for each in other["files"]}
        for callback, file in zip(self._callbacks, files, strict=True):
            writes = not file or tuple(file) not in before
            if sharded and callback in saves:
                _save_together(callback, self.model)
            elif not writes:
                _silence(callback)


def _file(callback: Any) -> list[str] | None:
    """Returns the kind of file that a callback writes, and its path; None for one left alone."""
    kind = next((kind for kind in _WRITE if isinstance(callback, kind)), None)
    if kind is None:
        return None
    mro = type(callback).__mro__
    own = mro[: mro.index(kind)]
    if any(name.startswith("on_") for each in own for name in vars(each)):
        return None
    return [kind.__name__, _path(getattr(callback, _WRITE[kind]))]


def _path(path: Any) -> str:
    text = str(os.fspath(path))
    return text if "://" in text else os.path.abspath(text)


def _save_together(callback: Any, model: Any) -> None:
    """Makes all ranks save when rank 0 decides to, because each has a part of the states."""
    callback.set_model(SavedTogether(model, writes=topology.rank() == 0))
    if not hasattr(type(callback), "_should_save_model"):  # of an older Keras
        if callback.save_freq != "epoch":
            raise NotImplementedError(
                "shard_states=True and a ModelCheckpoint with a number for save_freq need Keras "
                "3.15 or newer: ranks would decide apart whether to save"
            )
        return

    def agreed(*args: Any) -> bool:
        mine = bool(type(callback)._should_save_model(callback, *args))
        return bool(objects.allgather_json(mine, name="tfring.writers.save")[0])

    callback._should_save_model = agreed


def _silence(callback: Any) -> None:
    """Makes a callback do nothing from now on."""
    for name in dir(callback):
        if name.startswith("on_"):
            setattr(callback, name, _nothing)


def _wake(callback: Any) -> None:
    """Undoes `_silence`."""
    for name in [name for name, value in vars(callback).items() if value is _nothing]:
        delattr(callback, name)


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass
