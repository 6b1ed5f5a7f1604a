"""What cannot be served with a version of Keras is refused by name."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import keras
import numpy as np
import pytest
from keras_recorder import X, Y, build_model
from launcher_tools import finish

from tfring import world
from tfring.compat import keras_version
from tfring.keras.callbacks.checkpoints.callback import CheckpointCallback
from tfring.keras.callbacks.resume import Restore


@pytest.fixture(autouse=True)
def job() -> Any:
    world.init()
    yield
    world.shutdown()


def test_keras_2_under_the_name_keras(tmp_path: Any) -> None:
    for version in ("3.0.5", "3.15.1", "10.1.0"):
        keras_version.check_version(version)
    (tmp_path / "keras-2.15.0.dist-info").mkdir()
    (tmp_path / "keras-2.15.0.dist-info" / "METADATA").write_text("Name: keras\nVersion: 2.15.0\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = finish([sys.executable, "-c", "import tfring.keras"], PYTHONPATH=paths)
    said = done.stderr.splitlines()[-1]
    assert re.search(r"ImportError: .*Keras 3, and keras 2\.15\.0 is installed.*tf_keras", said)


@pytest.mark.parametrize("make", [CheckpointCallback, Restore])
def test_keras_whose_fit_cannot_begin_later(tmp_path: Any, make: Any) -> None:
    model = build_model()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    if hasattr(model, "_initial_epoch"):  # from Keras 3.1 on
        del model._initial_epoch
    callback = make(tmp_path)
    with pytest.raises(NotImplementedError, match=r"rank 0: .*needs Keras 3\.1:"):
        callback.set_model(model)
        callback.on_train_begin()


def test_checkpoints_without_resuming_need_no_newer_keras(tmp_path: Any) -> None:
    model = build_model()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    if hasattr(model, "_initial_epoch"):
        del model._initial_epoch
    callback = CheckpointCallback(tmp_path, restore=False)
    callback.set_model(model)
    callback.set_params({"epochs": 1})
    callback.on_train_begin()
    assert np.isfinite(model.evaluate(X, Y, verbose=0))
