"""tfring refuses features that a version of Keras cannot support, by name."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import keras
import pytest
from keras_recorder import build_model
from launcher_tools import finish

from tfring import world
from tfring.keras.callbacks.checkpoints.callback import CheckpointCallback
from tfring.keras.optimizer import DistributedOptimizer
from tfring.keras.sync_batch_norm import SyncBatchNormalization
from tfring.runtime import keras_version

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def job() -> Any:
    world.init()
    yield
    world.shutdown()


def test_keras_2_under_the_name_keras(tmp_path: Any) -> None:
    for version in ("3.0.5", "3.15.1", f"{keras_version.NEWEST_TESTED}.0.dev2026102704"):
        keras_version.check_version(version)
    (tmp_path / "keras-2.15.0.dist-info").mkdir()
    (tmp_path / "keras-2.15.0.dist-info" / "METADATA").write_text("Name: keras\nVersion: 2.15.0\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = finish([sys.executable, "-c", "import tfring.keras"], PYTHONPATH=paths)
    said = done.stderr.splitlines()[-1]
    assert re.search(r"ImportError: .*Keras 3, and keras 2\.15\.0 is installed.*tf_keras", said)


def test_a_keras_that_nobody_has_tested() -> None:
    """tfring warns once, and uses it."""
    newest = keras_version.NEWEST_TESTED
    for version in ("3.99.0rc1", "10.1.0"):
        said = rf"Keras 3\.0 to {newest}, and Keras {version} is installed"
        with pytest.warns(UserWarning, match=said):
            keras_version.check_version(version)


def test_a_nightly_keras_is_known(tmp_path: Any) -> None:
    folder = tmp_path / "keras_nightly-3.99.0.dev1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: keras-nightly\nVersion: 3.99.0.dev1\n")
    without_others = "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]"
    script = tmp_path / "script.py"
    script.write_text(f"{without_others}\nimport tfring.keras\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    said = finish([sys.executable, script], PYTHONPATH=paths).stderr
    assert said.count("Keras 3.99.0.dev1 is installed") == 1, said
    assert f"{script}:2: UserWarning" in said and "install one of these" in said


class WithoutClip(keras.optimizers.SGD):  # type: ignore[misc]
    """An optimizer of a Keras that has removed a method."""

    @property
    def _clip_gradients(self) -> Any:
        raise AttributeError("_clip_gradients")


def test_an_optimizer_without_what_is_replaced() -> None:
    said = (
        rf"Keras {keras.__version__} has no WithoutClip\._clip_gradients, without which "
        r"tfring\.keras\.DistributedOptimizer does not work; tfring was tested with Keras 3\.0 to "
    )
    with pytest.raises(NotImplementedError, match=said):
        DistributedOptimizer(WithoutClip(0.1))


def test_batch_normalization_without_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """An override that is never called would silently normalize the batch of one rank."""
    monkeypatch.delattr(keras.layers.BatchNormalization, "_moments")
    with pytest.raises(NotImplementedError, match=r"has no BatchNormalization\._moments, without"):
        SyncBatchNormalization()


def test_keras_whose_fit_cannot_begin_later(tmp_path: Any) -> None:
    model = build_model()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    if hasattr(model, "_initial_epoch"):  # from Keras 3.1 on
        del model._initial_epoch
    callback = CheckpointCallback(tmp_path)
    with pytest.raises(NotImplementedError, match=r"rank 0: .*needs Keras 3\.1:"):
        callback.set_model(model)
        callback.on_train_begin()


def test_another_backend_of_keras_is_refused_at_the_import() -> None:
    what = "import tfring; tfring.fit_callbacks"
    done = finish([sys.executable, "-c", what], KERAS_BACKEND="jax")
    said = done.stderr.splitlines()[-1]
    assert re.search(r"ImportError: tfring works .*'jax': set KERAS_BACKEND=tensorflow", said)
