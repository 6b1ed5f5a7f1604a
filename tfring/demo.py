"""``python -m tfring.demo``: trains a small model on two ranks, and compares it with one process.

It makes its data itself. Under `tfring run`, `mpirun` or a scheduler it is one rank of the job.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import tfring.keras as hvd
from tfring.job.environments import ALONE, IdentityError, find_identity
from tfring.launch.cli import main as tfring

_DIGITS = """
.###. ..#.. .###. ##### ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# ...#. ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ..#.. .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ...#. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# .#... #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..
"""
_HEIGHT, _WIDTH, _CLASSES = 7, 5, 10
_SIDE = 8  # of a picture
_PICTURES, _NEW = 8192, 2048
_EPOCHS, _BATCH = 3, 32
# Sums in another order differ by rounding; training lets that grow.
_ROUNDING = 1e-4


def pictures(count: int, seed: int) -> tuple[Any, Any]:
    """Returns pictures of digits, each moved a little and with noise, and which digits they are."""
    rows = [line.split() for line in _DIGITS.split("\n") if line]
    shapes = np.array([[[c == "#" for c in row[d]] for row in rows] for d in range(_CLASSES)])
    random = np.random.default_rng(seed)
    labels = random.integers(0, _CLASSES, count)
    found = random.normal(0, 0.3, (count, _SIDE, _SIDE)).astype(np.float32)
    downs = random.integers(0, _SIDE - _HEIGHT + 1, count)
    rights = random.integers(0, _SIDE - _WIDTH + 1, count)
    for picture, label, down, right in zip(found, labels, downs, rights, strict=True):
        picture[down : down + _HEIGHT, right : right + _WIDTH] += shapes[label]
    return found, labels


def main() -> int:
    """Starts two ranks, or is one of them; returns 1 if the weights differ."""
    try:
        alone = find_identity(os.environ).source == ALONE
    except IdentityError as error:
        print(f"tfring.demo: {error}", file=sys.stderr)
        return 2
    if alone:
        command = ["run", "-np", "2", sys.executable, "-m", "tfring.demo"]
        print(f"tfring {' '.join(command)}", flush=True)
        return tfring(command)
    return _train()


def _train() -> int:
    hvd.init()
    _choose_device()
    first = hvd.rank() == 0
    x, y = pictures(_PICTURES, seed=1)
    model = _model(hvd.DistributedOptimizer)
    data = hvd.shard((x, y), _BATCH, seed=None)
    model.fit(data, epochs=_EPOCHS, verbose=2 if first else 0, callbacks=hvd.fit_callbacks())
    weights = _weights(model)
    of_ranks = np.asarray(hvd.allgather(weights[np.newaxis]))
    equal = bool((of_ranks == weights).all())
    if not first:
        return 0 if equal else 1
    right = model.evaluate(*pictures(_NEW, seed=2), verbose=0)[1]
    alone = _model(lambda optimizer: optimizer)
    alone.fit(x, y, _BATCH * hvd.size(), _EPOCHS, verbose=0, shuffle=False)
    apart = float(np.abs(weights - _weights(alone)).max())
    same = apart < _ROUNDING
    print(
        f"{hvd.size()} ranks trained a model: {right:.1%} of {_NEW} new pictures are right.\n"
        f"The weights of the ranks are {'equal' if equal else 'NOT EQUAL'}. Those of one process "
        f"with the same batches are {'the same' if same else 'DIFFERENT'}: they differ by at most "
        f"{apart:.0e}.",
        flush=True,
    )
    return 0 if equal and same else 1


def _choose_device() -> None:
    """Takes one GPU for each rank of this host if there are that many, else none."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    mine = gpus[hvd.local_rank()] if len(gpus) >= hvd.local_size() else []
    tf.config.set_visible_devices(mine, "GPU")
    # It would round more than the comparison allows.
    tf.config.experimental.enable_tensor_float_32_execution(False)


def _model(wrap: Any) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Input((_SIDE, _SIDE)),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(_CLASSES),
    ]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(wrap(keras.optimizers.SGD(0.2)), loss, metrics=["accuracy"])
    return model


def _weights(model: Any) -> Any:
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


if __name__ == "__main__":
    sys.exit(main())
