"""Programs about files that several ranks would write."""

from __future__ import annotations

import keras
import numpy as np

import tfring.keras as hvd

from .common import fit, net, wrapped
from .table import wrong


class Counted(keras.Sequential):
    """A model that counts how often this rank writes it."""

    written = 0

    def save(self, *arguments, **options):
        Counted.written += 1
        return super().save(*arguments, **options)


def _counted() -> keras.Model:
    model = Counted([keras.Input((4,)), *net(1).layers])
    model.compile(wrapped(), "mse")
    return model


def _written() -> list[np.ndarray]:
    return [np.array(sum(hvd.allgather_object(Counted.written)))]


@wrong(quick=True)
def model_checkpoint_of_one_path():
    model = _counted()
    fit(model, callbacks=hvd.fit_callbacks(keras.callbacks.ModelCheckpoint("model.keras")))
    return _written()


@wrong("BackupAndRestore", "folder")
def backup_in_one_folder():
    model = net(1)
    model.compile(wrapped(), "mse")
    fit(model, callbacks=hvd.fit_callbacks(keras.callbacks.BackupAndRestore("backup")))
