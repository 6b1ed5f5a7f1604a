"""Makes `lr=` count in the optimizers of Keras 2, under the shim.

Optimizers outside `optimizers.legacy` only log that `lr` is deprecated, and train with their
default rate. They refuse `decay=` themselves. Methods of a class that they never call are an error.
"""

from __future__ import annotations

from typing import Any

from tfring.horovod.keras2_methods import never_called


def install() -> None:
    """Patches Keras 2, which has been loaded."""
    import tf_keras

    base = tf_keras.optimizers.Optimizer
    root = next((cls for cls in base.__mro__ if "_process_kwargs" in vars(cls)), base)
    process, build = root._process_kwargs, root._build_learning_rate

    def process_kwargs(self: Any, kwargs: dict[str, Any]) -> None:
        if methods := never_called(type(self), base):
            name = type(self).__name__
            raise TypeError(
                f"only an optimizer of tf.keras.optimizers.legacy calls {name}.{methods[0]}. "
                f"Derive {name} from a class of optimizers.legacy"
            )
        if "lr" in kwargs:
            object.__setattr__(self, "_tfring_lr", kwargs.pop("lr"))
        process(self, kwargs)

    def build_learning_rate(self: Any, learning_rate: Any) -> Any:
        return build(self, vars(self).pop("_tfring_lr", learning_rate))

    root._process_kwargs = process_kwargs
    root._build_learning_rate = build_learning_rate
