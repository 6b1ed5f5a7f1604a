"""Ways of writing of Keras 2 that scripts for Horovod have, on Keras 3: accepted with a warning.

Only where `import horovod` means tfring (tfring.compat.shim) and tf.keras is Keras 3. Each idiom
warns once and says what to write instead. What Keras 3 cannot do honestly is an error that says how
to get Keras 2. The patches change classes of Keras, once, and do nothing to code for Keras 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import keras
from keras._tf_keras import keras as theirs  # what tf.keras is

from tfring.compat import keras2_optimizers
from tfring.compat.keras2_arguments import accepting, warn_once

# Functions that Keras 2 has in `losses` and `metrics`. Keras 3 has some of them in `keras` only,
# and some in `tf.keras` only.
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


def install() -> None:
    """Patches Keras 3, which has been loaded; a second call changes nothing."""
    if hasattr(keras.optimizers.Optimizer, "lr"):
        return
    keras2_optimizers.install()
    theirs.backend.set_value = _set_value
    for name in ("losses", "metrics"):
        for package in (keras, theirs):
            functions = {old: _loss(new) for old, new in _LOSSES.items()}
            _lend(getattr(package, name), name, functions)
    generator = "write a keras.utils.PyDataset, or use layers as keras.layers.RandomFlip"
    _lend(
        keras.preprocessing.image,
        "preprocessing.image",
        {"ImageDataGenerator": (lambda: theirs.preprocessing.image.ImageDataGenerator, generator)},
    )
    norm = keras.layers.BatchNormalization
    norm.__init__ = accepting(norm.__init__, "BatchNormalization")
    # Before Keras 3.7 weights are of another class than keras.Variable.
    for cls in (keras.Variable, keras.src.backend.Variable):
        if not hasattr(cls, "ref"):
            cls.ref = _ref
    for method in ("compile", "fit", "evaluate", "predict"):
        owner = next(cls for cls in keras.Model.__mro__ if method in vars(cls))
        setattr(owner, method, accepting(vars(owner)[method], method))
    trainer = next(cls for cls in keras.Model.__mro__ if "fit" in vars(cls))
    trainer.fit_generator = _fit_generator
    trainer.evaluate_generator = _generator_method("evaluate")
    trainer.predict_generator = _generator_method("predict")


def _lend(
    module: ModuleType, public: str, names: Mapping[str, tuple[Callable[[], Any], str]]
) -> None:
    """Gives a module of Keras, `public`, names: what each is, and what to write instead."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name)
        value, instead = names[name]
        warn_once(f"keras.{public}.{name}", instead)
        return value()

    vars(module)["__getattr__"] = get


def _loss(name: str) -> tuple[Callable[[], Any], str]:
    return lambda: keras.losses.get(name), f'give compile the name, "{name}"'


def _ref(variable: Any) -> Any:
    warn_once("variable.ref()", "write id(variable), or variable.path")
    return _Reference(variable)


class _Reference:
    """What `variable.ref()` returns: can be a key where the variable itself cannot."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable

    def deref(self) -> Any:
        return self._variable

    def __hash__(self) -> int:
        return id(self._variable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reference) and self._variable is other._variable


def _set_value(x: Any, value: Any) -> None:
    """As tf.keras.backend.set_value, which in Keras 3 fails for the variables of Keras 3."""
    warn_once("tf.keras.backend.set_value", "write variable.assign(value)")
    x.assign(value)


def _fit_generator(
    self: Any,
    generator: Any,
    steps_per_epoch: Any = None,
    epochs: int = 1,
    verbose: Any = 1,
    callbacks: Any = None,
    validation_data: Any = None,
    validation_steps: Any = None,
    validation_freq: Any = 1,
    class_weight: Any = None,
    max_queue_size: int = 10,
    workers: int = 1,
    use_multiprocessing: bool = False,
    shuffle: bool = True,
    initial_epoch: int = 0,
) -> Any:
    """As Model.fit_generator of Keras 2; batches are made in this process."""
    del max_queue_size, workers, use_multiprocessing
    warn_once("model.fit_generator", "write model.fit, which takes generators")
    return self.fit(
        generator,
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        verbose=verbose,
        callbacks=callbacks,
        validation_data=validation_data,
        validation_steps=validation_steps,
        validation_freq=validation_freq,
        class_weight=class_weight,
        shuffle=shuffle,
        initial_epoch=initial_epoch,
    )


def _generator_method(method: str) -> Any:
    def run(
        self: Any,
        generator: Any,
        steps: Any = None,
        callbacks: Any = None,
        max_queue_size: int = 10,
        workers: int = 1,
        use_multiprocessing: bool = False,
        verbose: Any = 0,
    ) -> Any:
        del max_queue_size, workers, use_multiprocessing
        warn_once(f"model.{method}_generator", f"write model.{method}, which takes generators")
        return getattr(self, method)(generator, steps=steps, callbacks=callbacks, verbose=verbose)

    run.__name__ = f"{method}_generator"
    return run
