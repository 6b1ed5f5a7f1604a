"""Keras 2 idioms of Horovod scripts, on Keras 3: accepted with a warning.

Only if `import horovod` means tfring (tfring.horovod.shim) and tf.keras is Keras 3. Each idiom
warns once and names the replacement. Idioms that Keras 3 cannot support raise an error that says
how to get Keras 2. The patches change classes of Keras once, and do not affect code for Keras 3.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import keras
from keras._tf_keras import keras as theirs  # what tf.keras is
from tensorflow.python.util import object_identity

from tfring.horovod import keras2_optimizers
from tfring.horovod.keras2_arguments import accepting, warn_once
from tfring.integration import tf_keras_is_keras2

# Functions in `losses` and `metrics` of Keras 2. Keras 3 has some of them in `keras` only, and some
# in `tf.keras` only.
_LOSSES = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "kld": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
}
_LOSSES.update({name.upper(): new for name, new in _LOSSES.items() if len(name) <= 4})
_LOSSES.update({new: new for new in _LOSSES.values()})

# For each ..._generator method of Keras 2, its parameters after `generator`, in order.
_QUEUE = ("max_queue_size", "workers", "use_multiprocessing")
_GENERATOR_METHODS = {
    "fit": (
        *("steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data"),
        *("validation_steps", "validation_freq", "class_weight", *_QUEUE, "shuffle"),
        "initial_epoch",
    ),
    "evaluate": ("steps", "callbacks", *_QUEUE, "verbose"),
    "predict": ("steps", "callbacks", *_QUEUE, "verbose"),
}


def install() -> None:
    """Patches Keras 3, which has been loaded; a second call changes nothing."""
    if hasattr(keras.optimizers.Optimizer, "lr"):
        return
    keras2_optimizers.install(_modules("optimizers.legacy"))
    for module in _modules("backend"):
        vars(module)["set_value"] = _set_value
    _lend("backend", {"get_value": (lambda: theirs.backend.get_value, "write variable.numpy()")})
    functions = {old: _loss(new) for old, new in _LOSSES.items()}
    for name in ("losses", "metrics"):
        _lend(name, functions)
    generator = "use a keras.utils.PyDataset, or layers such as keras.layers.RandomFlip"
    _lend(
        "preprocessing.image",
        {"ImageDataGenerator": (lambda: theirs.preprocessing.image.ImageDataGenerator, generator)},
    )
    norm = keras.layers.BatchNormalization
    norm.__init__ = accepting(norm.__init__, "BatchNormalization")
    # Before Keras 3.7 weights have another class than keras.Variable.
    for cls in (keras.Variable, keras.src.backend.Variable):
        if not hasattr(cls, "ref"):
            cls.ref = _ref
    for method in ("compile", "fit", "evaluate", "predict"):
        owner = next(cls for cls in keras.Model.__mro__ if method in vars(cls))
        setattr(owner, method, accepting(vars(owner)[method], method))
    trainer = next(cls for cls in keras.Model.__mro__ if "fit" in vars(cls))
    for method in _GENERATOR_METHODS:
        setattr(trainer, f"{method}_generator", _generator_method(method))


def _modules(public: str) -> list[ModuleType]:
    """Returns the module `public` below `keras` and below `tf.keras`, as attribute and by import.

    `import tensorflow.keras.losses` would load the file of tf.keras.losses a second time. This
    gives it the same module, unless it has been loaded before.
    """
    packages = {"keras": keras, "keras._tf_keras.keras": theirs, "tensorflow.keras": theirs}
    if tf_keras_is_keras2():
        del packages["tensorflow.keras"]
    found = []
    for name, package in packages.items():
        module = operator.attrgetter(public)(package)
        found += [module, sys.modules.setdefault(f"{name}.{public}", module)]
    return found


def _lend(public: str, names: Mapping[str, tuple[Callable[[], Any], str]]) -> None:
    """Gives the modules `public` missing names: the value of each, and the advice to print."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module 'keras.{public}' has no attribute {name!r}", name=name)
        value, instead = names[name]
        warn_once(f"keras.{public}.{name}", instead)
        return value()

    for module in _modules(public):
        vars(module)["__getattr__"] = get


def _loss(name: str) -> tuple[Callable[[], Any], str]:
    return lambda: keras.losses.get(name), f'pass compile the name, "{name}"'


def _ref(variable: Any) -> Any:
    warn_once("variable.ref()", "use id(variable), or variable.path")
    return _Reference(variable)


class _Reference(object_identity.Reference):  # type: ignore[misc]
    """The result of `variable.ref()`: equals the reference of the tf.Variable inside."""

    def __init__(self, variable: Any) -> None:
        super().__init__(variable._value)
        self._variable = variable

    def deref(self) -> Any:
        return self._variable


def _set_value(x: Any, value: Any) -> None:
    """As tf.keras.backend.set_value, which fails for variables of Keras 3."""
    warn_once("tf.keras.backend.set_value", "write variable.assign(value)")
    if not hasattr(x, "assign"):
        raise TypeError(
            "The learning rate follows a schedule and cannot be set. Give the optimizer a number."
        )
    x.assign(value)


def _generator_method(method: str) -> Any:
    """Returns Model.fit_generator, or that of another method; batches are made in this process."""

    def run(self: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        warn_once(f"model.{method}_generator", f"use model.{method}, which takes generators")
        kwargs.update(zip(_GENERATOR_METHODS[method], args, strict=False))
        for name in _QUEUE:
            kwargs.pop(name, None)
        kwargs.setdefault("verbose", int(method == "fit"))
        return getattr(self, method)(generator, **kwargs)

    run.__name__ = f"{method}_generator"
    return run
