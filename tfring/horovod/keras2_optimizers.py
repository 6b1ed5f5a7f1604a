"""Attributes of Keras 2's optimizers that Keras 3's lack, for the shim."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from tfring.horovod.keras2_arguments import USE_KERAS_2, accepting, warn_once
from tfring.horovod.keras2_methods import never_called

LEGACY_OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD")
_LACKING = ("_build_learning_rate", "_get_hyper", "_set_hyper", "add_slot", "get_slot")


def install(legacy: Iterable[ModuleType]) -> None:
    """Patches Keras 3's optimizers.

    Args:
        legacy: the modules `optimizers.legacy`.
    """
    base = keras.optimizers.Optimizer
    for module in legacy:
        _install_legacy(module)
    for cls in (*reversed(base.__mro__), keras.optimizers.LossScaleOptimizer):
        own = vars(cls).get("variables")
        if isinstance(own, property):
            cls.variables = property(_callable_variables(own.fget))
    # The class whose __init__ all others call, with unknown keywords.
    root = next(cls for cls in reversed(base.__mro__) if hasattr(cls, "apply_gradients"))
    root.__init__ = _taking_a_name(accepting(root.__init__, "optimizer"))
    root.apply_gradients = _by_position(accepting(root.apply_gradients, "apply_gradients"))
    root.update_step = _update_step
    base.lr = property(_get_lr, _set_lr)
    for name in _LACKING:
        setattr(base, name, _lacking(name))
    base._compute_gradients = _compute_gradients


def _install_legacy(module: ModuleType) -> None:
    """Gives a module `optimizers.legacy` of Keras 3, where all names raise, real optimizers."""
    for name in LEGACY_OPTIMIZERS:
        setattr(module, name, _Legacy(name, (), {"__module__": module.__name__}))
    vars(module)["Optimizer"] = keras.optimizers.Optimizer
    vars(module)["optimizer_v2"] = types.SimpleNamespace(OptimizerV2=keras.optimizers.Optimizer)


class _CallableVariables(list[Any]):
    """An optimizer's variables, which Keras 2 got by a call."""

    def __call__(self) -> list[Any]:
        warn_once("optimizer.variables()", "use optimizer.variables, which is a list")
        return self


with contextlib.suppress(ImportError):  # Keras then has other means to walk through lists
    import optree

    optree.register_pytree_node(
        _CallableVariables,
        lambda variables: (list(variables), None),
        lambda _, children: list(children),
        namespace="keras",
    )


def _callable_variables(getter: Any) -> Callable[[Any], _CallableVariables]:
    return lambda optimizer: _CallableVariables(getter(optimizer))


def _get_lr(optimizer: Any) -> Any:
    warn_once("optimizer.lr", "write optimizer.learning_rate")
    return optimizer.learning_rate


def _set_lr(optimizer: Any, value: Any) -> None:
    warn_once("optimizer.lr", "write optimizer.learning_rate")
    optimizer.learning_rate = value


def _taking_a_name(init: Any) -> Any:
    """Returns the __init__ of Keras' optimizers; classes of Keras 2 may give it a name alone."""

    @functools.wraps(init)
    def take(self: Any, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        _refuse_methods(cls)
        if args and isinstance(args[0], str):
            args, kwargs = args[1:], {"name": args[0], **kwargs}
        given = args or {"learning_rate", "lr"} & set(kwargs)
        if not given and cls.update_step is _update_step:
            what = f"{cls.__name__}(name=...)"
            warn_once(what, "also give learning_rate=, whose default is 1.0")
            kwargs["learning_rate"] = 1.0
        init(self, *args, **kwargs)

    return take


def _refuse_methods(cls: Any) -> None:
    """Raises TypeError if a class has methods that Keras 3 would ignore or call differently."""
    methods = never_called(cls, keras.optimizers.Optimizer)
    if cls.update_step is _update_step and "_resource_apply_dense" in methods:
        # update_step calls _resource_apply_dense, and refuses sparse gradients.
        methods = [name for name in methods if not name.startswith("_resource_apply_")]
    if methods:
        raise TypeError(f"Keras 3 never calls {cls.__name__}.{methods[0]}: {USE_KERAS_2}")
    try:
        inspect.signature(cls.update_step).bind(None, None, None, None)
    except TypeError:
        raise TypeError(
            f"Keras 3 calls {cls.__name__}.update_step with (gradient, variable, learning_rate), "
            f"which it does not take: {USE_KERAS_2}"
        ) from None


def _by_position(apply_gradients: Any) -> Any:
    """Returns apply_gradients with positional arguments, as in Keras 2."""
    names = ("name", "experimental_aggregate_gradients")

    @functools.wraps(apply_gradients)
    def apply(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.update(zip(names, args, strict=False))
        return apply_gradients(self, grads_and_vars, **kwargs)

    return apply


def _lacking(name: str) -> Callable[..., None]:
    def fail(self: Any, *args: Any, **kwargs: Any) -> None:
        raise TypeError(f"optimizer.{name} exists in Keras 2 only, not in Keras 3: {USE_KERAS_2}")

    return fail


def _update_step(self: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    """Lets a class of Keras 2 update a variable; classes of Keras 3 have their own update_step."""
    del learning_rate
    update = getattr(self, "_resource_apply_dense", None)
    if update is None:
        raise NotImplementedError(f"{type(self).__name__} has no update_step")
    if isinstance(gradient, tf.IndexedSlices) and hasattr(self, "_resource_apply_sparse"):
        raise TypeError(
            f"Keras 3 does not call {type(self).__name__}._resource_apply_sparse of Keras 2 for "
            f"the gradient of {variable.name}, tf.IndexedSlices: {USE_KERAS_2}"
        )
    warn_once("Optimizer._resource_apply_dense", "write update_step")
    # Keras 2 gives it a tf.Variable.
    update(
        tf.convert_to_tensor(gradient), variable.value if hasattr(variable, "path") else variable
    )


def _compute_gradients(
    self: Any, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
) -> list[tuple[Any, Any]]:
    """As `optimizer._compute_gradients` of Keras 2; a wrapped optimizer reduces them."""
    warn_once("optimizer._compute_gradients", "use tape.gradient with a DistributedGradientTape")
    if hasattr(self, "inner_optimizer"):
        raise TypeError(
            "_compute_gradients of a LossScaleOptimizer exists in Keras 2 only, not in Keras 3: "
            f"{USE_KERAS_2}"
        )
    if not callable(loss) and tape is None:
        raise ValueError("_compute_gradients of a tensor needs tape=, the tape that recorded it")
    tape = tf.GradientTape() if tape is None else tape
    if callable(loss):
        with tape:
            if not callable(var_list):
                flat = tf.nest.flatten(var_list)
                tape.watch([v.value if hasattr(v, "path") else v for v in flat])
            loss = loss()
    variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
    gradients = tape.gradient(loss, variables, grad_loss)
    hook = getattr(self, "_tfring_hook", None)
    if hook is not None and hook.optimizer is self:  # not that of an optimizer that it copies
        gradients = hook.reduce_early(gradients, variables)
    return list(zip(gradients, variables, strict=True))


class _Legacy(type):
    """The class of tf.keras.optimizers.legacy.X: calling X makes Keras 3's own optimizer."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        name = f"tf.keras.optimizers.legacy.{cls.__name__}"
        warn_once(name, f"use keras.optimizers.{cls.__name__}, which replaces it here")
        return _real(cls.__name__)(*args, **kwargs)

    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        return cls(**config)

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
