"""Trains with every optimizer, and saves checkpoints or goes on from them.

    resumed_optimizers.py FOLDER save|restore

`save` trains an epoch with each case, and writes the final variables. `restore` is a second
process, in which Keras numbers layers and optimizers differently and the cases run in a different
order; it writes the variables when training goes on.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from zoo_optimizers import OPTIMIZERS

import tfring.keras as hvd
from tfring.keras.facts import Keras2Callback
from tfring.keras.gradient_hook import innermost

SAMPLES, FEATURES = 8, 6


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to use an optimizer.

    Attributes:
        options: options of the optimizer.
        wrap: turns the optimizer into the argument of compile.
        policy: Keras' dtype policy.
        built: "save" or "restore" if the optimizer is built before `fit` there.
        names: the optimizers that it is for.
    """

    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    wrap: Callable[[Any], Any] = hvd.DistributedOptimizer
    policy: str = "float32"
    built: str = ""
    names: tuple[str, ...] = ("Adam",)


def scaled(optimizer: Any) -> Any:
    return keras.optimizers.LossScaleOptimizer(optimizer, dynamic_growth_steps=3)


def one_of_two(optimizer: Any) -> Any:
    by_path = {"head/.*": keras.optimizers.SGD(0.1, momentum=0.5)}
    optimizers = keras.optimizers.OptimizerMap(optimizer, by_path)
    return hvd.DistributedOptimizer(keras.optimizers.MultiOptimizer(optimizers))


WAYS = {
    "plain": Way(names=("Adafactor", "Muon", "ScheduleFreeAdamW")),
    "mixed_float16": Way(policy="mixed_float16"),
    "scaled_inside": Way(wrap=lambda optimizer: hvd.DistributedOptimizer(scaled(optimizer))),
    "scaled_outside": Way(wrap=lambda optimizer: scaled(hvd.DistributedOptimizer(optimizer))),
    "several": Way(wrap=one_of_two),
    "ema": Way({"use_ema": True}, names=("AdamW", "LossScaleOptimizer", "MultiOptimizer")),
    "accumulation": Way({"gradient_accumulation_steps": 2}),
    "built_first": Way(built="save", names=("LossScaleOptimizer",)),
    "built_later": Way(built="restore", names=("LossScaleOptimizer",)),
}
KERAS_2: dict[str, Callable[[], Any]] = {
    "Adam": lambda: tf_keras.optimizers.Adam(0.01, use_ema=True),
    "legacy.Adam": lambda: tf_keras.optimizers.legacy.Adam(0.01, decay=0.1),
    "scaled": lambda: tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.Adam(0.01)),
}


def model_of(package: Any) -> Any:
    """A model of Keras 3 or tf_keras; some of its weights are not trained."""
    layers = package.layers
    return package.Sequential(
        [
            layers.Input((FEATURES,)),
            layers.Dense(3),
            layers.BatchNormalization(),
            layers.Dense(1, name="head", dtype="float32"),
        ]
    )


class Apart(keras.Model):  # type: ignore[misc]
    """Two layers, each with its own optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = keras.layers.Dense(3), keras.layers.Dense(1)
        self.others = {"head": [hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5))]}

    def call(self, inputs: Any) -> Any:
        return self.head(self.body(inputs))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            error = tf.reduce_mean(tf.square(self(x) - y))
        pairs = ((self.optimizer, self.body), (self.others["head"][0], self.head))
        for optimizer, layer in pairs:
            weights = layer.trainable_variables
            optimizer.apply(tape.gradient(error, [w.value for w in weights]), weights)
        return {"loss": error}


class Look(Keras2Callback, keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the values of all variables at one moment, in Keras' order."""

    def __init__(self, life: str) -> None:
        super().__init__()
        self._life = life
        self.values: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._life == "restore":
            self._look()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._life == "save":
            self._look()

    def _look(self) -> None:
        optimizer = self.model.optimizer
        known = optimizer.variables
        known = list(known() if callable(known) else known)
        if isinstance(self.model, Apart):
            known += self.model.others["head"][0].variables
        accumulated = getattr(innermost(optimizer), "_accumulated_gradients", None) or ()
        left_out = {id(v) for v in accumulated}
        kept = [v for v in known if id(v) not in left_out]
        self.values = [v.numpy() for v in (*self.model.weights, *kept)]


def run(life: str, folder: Path, model: Any) -> list[Any]:
    """Trains the model one epoch beyond its checkpoint; returns the values that Look kept."""
    rng = np.random.default_rng(hvd.rank())
    x = rng.normal(size=(SAMPLES, FEATURES)).astype("float32")
    look = Look(life)
    checkpoints = hvd.callbacks.CheckpointCallback(folder, at_sigterm="ignore")
    # Without BroadcastGlobalVariablesCallback, which builds most optimizers before `fit` does.
    how = {"batch_size": 4, "epochs": 1 if life == "save" else 2, "verbose": 0}
    model.fit(x, x[:, :1], callbacks=[checkpoints, look], **how)
    return look.values


def keras_3(name: str, way: Way, life: str, folder: Path) -> list[Any]:
    keras.mixed_precision.set_global_policy(way.policy)
    model = model_of(keras)
    model.compile(way.wrap(OPTIMIZERS[name](**way.options)), "mse", jit_compile=False)
    if way.built == life:
        model.optimizer.build(model.trainable_variables)
    return run(life, folder, model)


def apart(life: str, folder: Path) -> list[Any]:
    model = Apart()
    model(np.zeros((1, FEATURES), "float32"))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), jit_compile=False)
    return run(life, folder, model)


def keras_2(name: str, life: str, folder: Path) -> list[Any]:
    model = model_of(tf_keras)
    model.compile(hvd.DistributedOptimizer(KERAS_2[name]()), "mse")
    return run(life, folder, model)


def jobs() -> dict[str, Callable[[str, Path], list[Any]]]:
    """Returns the training of each case, to save or to restore."""
    found: dict[str, Callable[[str, Path], list[Any]]] = {}
    for kind, way in WAYS.items():
        for name in way.names:
            found[f"{kind}/{name}"] = functools.partial(keras_3, name, way)
    found["apart/Adam"] = apart
    for name in KERAS_2:
        found[f"keras_2/{name}"] = functools.partial(keras_2, name)
    return found


def main() -> None:
    folder, life = Path(sys.argv[1]), sys.argv[2]
    hvd.init()
    tf.config.run_functions_eagerly(True)
    cases = jobs()
    if life == "restore":
        cases = dict(reversed(cases.items()))
        for _ in range(7):  # so that Keras gives different names than in the first process
            model_of(keras), keras.optimizers.Adam(), keras.Variable(0.0)
    for case, train in cases.items():
        place = folder / case
        values = train(life, place / "checkpoints")
        np.savez(place / f"{life}-{hvd.rank()}.npz", *values)


if __name__ == "__main__":
    main()
