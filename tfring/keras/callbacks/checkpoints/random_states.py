"""The states of a rank's random generators, which a checkpoint keeps of each rank."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from tensorflow.python.ops import stateful_random_ops

_SEED = "seed_generator_state"


def random_states(model: Any) -> dict[str, Any]:
    """Returns the states of this rank's generators, as values of JSON.

    These are those of Python, of numpy's functions, of `tf.random.get_global_generator()` and of
    keras.random if they were used, and the seed generators of the model.
    """
    version, words, gauss = random.getstate()
    found = {
        "python": [version, _packed(np.array(words, np.uint32)), gauss],
        "seeds": [variable.numpy().tolist() for variable in _seed_generators(model)],
    }
    numpy_state: Any = np.random.get_state()
    if numpy_state[0] == "MT19937":
        _, keys, *rest = numpy_state
        found["numpy"] = [_packed(keys), *rest]
    generator = stateful_random_ops.global_generator
    if generator is not None:
        found["tensorflow"] = [generator.state.numpy().tolist(), int(generator.algorithm)]
    keras_generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    if keras_generator is not None:
        found["keras"] = keras_generator.state.numpy().tolist()
    return found


def set_random_states(model: Any, saved: Mapping[str, Any]) -> list[str]:
    """Gives the generators the states that `random_states` returned.

    Returns:
        Which have none, and go on with the seeds that they have.
    """
    anew = []
    setters: dict[str, Callable[[Any], None]] = {
        "keras": _set_keras,  # first: Keras draws the seed of a new generator from Python's
        "tensorflow": _set_tensorflow,
        "numpy": _set_numpy,
        "python": _set_python,
    }
    for name, give in setters.items():
        if name in saved:
            give(saved[name])
    variables, seeds = _seed_generators(model), saved["seeds"]
    if [tuple(v.shape) for v in variables] == [np.shape(seed) for seed in seeds]:
        for variable, seed in zip(variables, seeds, strict=True):
            variable.assign(np.array(seed, variable.numpy().dtype))
    elif len(variables):
        anew.append(f"{len(variables)} seed generators of the model ({len(seeds)} were saved)")
    return anew


def _seed_generators(model: Any) -> list[Any]:
    return [v for v in model.variables if v.name.split("/")[-1] == _SEED]


def _packed(words: Any) -> str:
    return base64.b64encode(words.astype("<u4").tobytes()).decode()


def _unpacked(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), "<u4")


def _set_python(state: Sequence[Any]) -> None:
    version, words, gauss = state
    random.setstate((version, tuple(_unpacked(words).tolist()), gauss))


def _set_numpy(state: Sequence[Any]) -> None:
    keys, position, has_gauss, gauss = state
    np.random.set_state(("MT19937", _unpacked(keys), position, has_gauss, gauss))


def _set_tensorflow(state: Sequence[Any]) -> None:
    values, algorithm = state
    generator = stateful_random_ops.global_generator
    if generator is None or int(generator.algorithm) != algorithm:
        made = tf.random.Generator.from_state(np.array(values, np.int64), algorithm)
        tf.random.set_global_generator(made)
    else:
        generator.state.assign(np.array(values, np.int64))


def _set_keras(state: Sequence[int]) -> None:
    variable = seed_generator.global_seed_generator().state
    variable.assign(np.array(state, variable.numpy().dtype))
