"""Restore and Save: rank 0 keeps the state of training in a folder, and all ranks go on from it."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

from tfring import topology
from tfring.collectives import objects
from tfring.keras.callbacks.base import DistributedCallback
from tfring.keras.checks import refuse_to_resume
from tfring.keras2 import detect

_STATE = "state-{epoch}.weights.h5"
_POINTER = "latest.json"  # names the last state that is whole


class Save(DistributedCallback):
    """Writes weights and optimizer state after every epoch, on rank 0.

    Each state is a file of its own; a small file that names it is replaced after it is complete. So
    a job that is killed while it writes leaves the state before. Comes after every callback that
    changes the weights or the learning rate.
    """

    def __init__(self, folder: Any) -> None:
        """Sets where to write.

        Args:
            folder: path of a folder; made if it does not exist. Only rank 0 uses it.
        """
        super().__init__()
        self.folder = Path(os.fspath(folder))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_epoch_end(epoch, logs)
        if topology.rank() != 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        name = _STATE.format(epoch=epoch + 1)
        self.model.save_weights(self.folder / name, overwrite=True)
        pointer = self.folder / f"{_POINTER}.new"
        pointer.write_text(json.dumps({"epochs": epoch + 1, "state": name}), encoding="utf-8")
        pointer.replace(self.folder / _POINTER)
        for old in self.folder.glob(_STATE.format(epoch="*")):
            if old.name != name:
                old.unlink()


class Restore(DistributedCallback):
    """Loads what Save wrote, on rank 0, and makes all ranks begin with the same epoch.

    Comes before BroadcastGlobalVariablesCallback, which gives the state to the other ranks.
    """

    def __init__(self, folder: Any) -> None:
        """Sets where to read.

        Args:
            folder: that of Save; it may be missing. Only rank 0 uses it.
        """
        super().__init__()
        self.folder = Path(os.fspath(folder))

    def set_model(self, model: Any) -> None:
        """As in keras.callbacks.Callback.

        Raises:
            NotImplementedError: a model of Keras 2 or 3.0.
        """
        if detect.is_model(model):
            raise NotImplementedError(
                "fit_callbacks(checkpoint=...) is for Keras 3: with Keras 2 load the model with "
                "hvd.load_model on rank 0, and give fit the same initial_epoch on every rank"
            )
        refuse_to_resume(
            model, "fit_callbacks(checkpoint=...)", "leave it out, and save the model yourself"
        )
        super().set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback.

        Raises:
            RuntimeError: rank 0 cannot load its state; on every rank.
        """
        super().on_train_begin(logs)
        epochs, failure = 0, None
        if topology.rank() == 0:
            try:
                epochs = self._load()
            except Exception as error:
                failure = error
        mine = {"epochs": epochs, "failed": failure and f"{type(failure).__name__}: {failure}"}
        root = objects.allgather_json(mine, name="tfring.restore")[0]
        if root["failed"]:
            raise RuntimeError(
                f"rank {topology.rank()}: rank 0 cannot go on from the state in {self.folder}: "
                f"{root['failed']}. Give fit the model that was saved, or delete the folder to "
                "begin anew"
            ) from failure
        if root["epochs"]:
            self.model._initial_epoch = root["epochs"]
            self._warn_of_no_epochs(root["epochs"])

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_train_end(logs)
        self.model._initial_epoch = None  # a later fit begins where it is told to

    def _warn_of_no_epochs(self, trained: int) -> None:
        wanted = (self.params or {}).get("epochs")
        if topology.rank() == 0 and wanted is not None and trained >= wanted:
            warnings.warn(
                f"fit has nothing to do: the state in {self.folder} has been trained for {trained} "
                f"epochs, and fit was given epochs={wanted}. Give it more, or another folder for "
                "another training",
                stacklevel=3,
            )

    def _load(self) -> int:
        """Loads the last state; returns how many epochs it has been trained, 0 if there is none."""
        pointer = self.folder / _POINTER
        if not pointer.exists():
            return 0
        found = json.loads(pointer.read_text(encoding="utf-8"))
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self.model.load_weights(self.folder / found["state"])
        return int(found["epochs"])
