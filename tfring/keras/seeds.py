"""set_random_seed: equal initial weights on all ranks, different dropout on each."""

from __future__ import annotations

import functools
import random
from typing import Any

import keras
import numpy as np

from tfring.ops import arguments
from tfring.runtime import topology

_LARGEST = 10**9  # of the seeds that Keras draws


def set_random_seed(seed: int) -> None:
    """Makes a program draw the same random numbers in every run.

    Equal on all ranks: the initial weights of layers, and `random`, `numpy.random`, `tf.random`,
    tf.data's shuffles. Each rank's own: what Keras 3 draws while it trains, by `keras.random` and
    by the seed generators of layers that are made after this call: dropout and augmentation. A
    layer that is given a seed keeps it. If a step of yours draws by `tf.random`, call
    `tf.random.set_seed(seed + hvd.rank())` when the data and the model are made.

    Call it on every rank after `init` and before the model is made. Runs with a different number
    of ranks begin with the same weights.

    Args:
        seed: the same on all ranks, at least 0.

    Raises:
        ValueError: the seed is not a whole number.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    arguments.require_init("set_random_seed")
    keras.utils.set_random_seed(seed)
    _make_generators_differ()


def _own(seed: int) -> int:
    """Returns this rank's variant of a seed; rank 0 keeps it."""
    if topology.rank() == 0:
        return seed
    mixed = np.random.SeedSequence([seed, topology.rank()]).generate_state(1)
    return int(mixed[0]) % _LARGEST + 1


def _make_generators_differ() -> None:
    """Gives generators without a seed this rank's own, once per process.

    The seed that Keras would draw is drawn all the same, so that the initializers of later layers
    get the same seeds on all ranks.
    """
    original = keras.random.SeedGenerator.__init__
    if getattr(original, "draws_own_seeds", False):
        return

    @functools.wraps(original)
    def make(self: Any, seed: int | None = None, *args: Any, **kwargs: Any) -> None:
        if seed is None and topology.is_initialized():
            seed = _own(random.randint(1, _LARGEST))
        original(self, seed, *args, **kwargs)

    make.draws_own_seeds = True  # type: ignore[attr-defined]
    keras.random.SeedGenerator.__init__ = make
