"""Ways of writing of Keras 2 that scripts for Horovod have, on Keras 3: accepted with a warning.

Only where `import horovod` means tfring (tfring.compat.shim) and tf.keras is Keras 3. Each idiom
warns once and says what to write instead. What Keras 3 cannot do honestly is an error that says how
to get Keras 2. The patches change classes of Keras, once, and do nothing to code for Keras 3.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import keras

USE_KERAS_2 = "set TF_USE_LEGACY_KERAS=1 and install tf_keras to run this script with Keras 2"

LEGACY_OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD")

_QUEUE = "{} has no effect in Keras 3: give it to the keras.utils.PyDataset that makes the batches"
# Arguments that Keras 3 does not take and that can be left out, by method.
_LEFT_OUT: dict[str, dict[str, str]] = {
    "compile": {
        "experimental_run_tf_function": "{} has had no effect since TensorFlow 2.2: leave it out"
    },
    **{
        method: dict.fromkeys(("workers", "use_multiprocessing", "max_queue_size"), _QUEUE)
        for method in ("fit", "evaluate", "predict")
    },
}
_RENAMED = {"compile": {"experimental_steps_per_execution": "steps_per_execution"}}
_REFUSED = {
    "compile": ("distribute", "options", "run_metadata", "sample_weight_mode", "target_tensors")
}

_warned: set[str] = set()


def install() -> None:
    """Patches Keras 3, which has been loaded; a second call changes nothing."""
    base = keras.optimizers.Optimizer
    if hasattr(base, "lr"):
        return
    _install_legacy(keras.optimizers.legacy)
    _install_legacy(keras._tf_keras.keras.optimizers.legacy)
    keras._tf_keras.keras.backend.set_value = _set_value
    for cls in (*reversed(base.__mro__), keras.optimizers.LossScaleOptimizer):
        own = vars(cls).get("variables")
        if isinstance(own, property):
            cls.variables = property(_callable_variables(own.fget))
    base.lr = property(_get_lr, _set_lr)
    for method in ("compile", "fit", "evaluate", "predict"):
        owner = next(cls for cls in keras.Model.__mro__ if method in vars(cls))
        setattr(owner, method, _accepting(vars(owner)[method], method))
    trainer = next(cls for cls in keras.Model.__mro__ if "fit" in vars(cls))
    trainer.fit_generator = _fit_generator
    trainer.evaluate_generator = _generator_method("evaluate")
    trainer.predict_generator = _generator_method("predict")


def _install_legacy(module: ModuleType) -> None:
    """Gives a module `optimizers.legacy` of Keras 3, where all names raise, what Keras 3 has."""
    for name in LEGACY_OPTIMIZERS:
        setattr(module, name, _Legacy(name, (), {"__module__": module.__name__}))
    vars(module)["Optimizer"] = keras.optimizers.Optimizer


def warn_once(what: str, instead: str) -> None:
    """Warns of an idiom, the first time that it is used in this process."""
    if what not in _warned:
        _warned.add(what)
        warnings.warn(f"{what} is of Keras 2: {instead}", UserWarning, stacklevel=3)


class _CallableVariables(list[Any]):
    """An optimizer's variables, which Keras 2 got by a call."""

    def __call__(self) -> list[Any]:
        warn_once("optimizer.variables()", "write optimizer.variables, which is a list")
        return self


def _callable_variables(getter: Any) -> Callable[[Any], _CallableVariables]:
    return lambda optimizer: _CallableVariables(getter(optimizer))


def _get_lr(optimizer: Any) -> Any:
    warn_once("optimizer.lr", "write optimizer.learning_rate")
    return optimizer.learning_rate


def _set_lr(optimizer: Any, value: Any) -> None:
    warn_once("optimizer.lr", "write optimizer.learning_rate")
    optimizer.learning_rate = value


def _set_value(x: Any, value: Any) -> None:
    """As tf.keras.backend.set_value, which in Keras 3 fails for the variables of Keras 3."""
    warn_once("tf.keras.backend.set_value", "write variable.assign(value)")
    x.assign(value)


def _accepting(function: Any, method: str) -> Any:
    """Returns a method that takes the arguments of Keras 2 and calls the one of Keras 3."""

    @functools.wraps(function)
    def accept(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name, text in _LEFT_OUT.get(method, {}).items():
            if name in kwargs:
                warn_once(f"{method}({name}=...)", text.format(name))
                del kwargs[name]
        for name, new in _RENAMED.get(method, {}).items():
            if name in kwargs:
                warn_once(f"{method}({name}=...)", f"write {new}=")
                kwargs[new] = kwargs.pop(name)
        for name in _REFUSED.get(method, ()):
            if kwargs.get(name) is not None:
                raise TypeError(
                    f"{method}({name}=...) is of Keras 2 and not in Keras 3: {USE_KERAS_2}"
                )
            kwargs.pop(name, None)
        return function(self, *args, **kwargs)

    return accept


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


class _Legacy(type):
    """The class of tf.keras.optimizers.legacy.X: calling X makes Keras 3's own optimizer."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        name = f"tf.keras.optimizers.legacy.{cls.__name__}"
        warn_once(name, f"write keras.optimizers.{cls.__name__}, which takes its place here")
        return _real(cls.__name__)(*args, **_translated(name, kwargs))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _real(cls.__name__))

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: Mapping[str, Any]) -> None:
        super().__init__(name, bases, dict(namespace))
        if bases:
            raise TypeError(
                f"{name} derives from tf.keras.optimizers.legacy.{bases[0].__name__}, whose "
                f"methods Keras 3 does not have: {USE_KERAS_2}"
            )


def _real(name: str) -> Any:
    return getattr(keras.optimizers, name)


def _translated(optimizer: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that Keras 3's optimizer takes instead; TypeError if it has none."""
    given = dict(kwargs)
    if "lr" in given:
        given["learning_rate"] = given.pop("lr")
    for name in ("decay", "gradient_aggregator", "gradient_transformers"):
        if given.pop(name, None):
            raise TypeError(f"{optimizer}({name}=...) is not in Keras 3: {USE_KERAS_2}")
    return given
