"""What Keras 2 (tf_keras) ignores of scripts for Horovod, for the shim: `lr=` of its optimizers.

Those that are not in `optimizers.legacy` log that `lr` is deprecated, and train with their default
rate. They refuse `decay=` themselves.
"""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Patches Keras 2, which has been loaded."""
    import tf_keras

    mro = tf_keras.optimizers.Optimizer.__mro__
    root = next(cls for cls in mro if "_process_kwargs" in vars(cls))
    process, build = root._process_kwargs, root._build_learning_rate

    def process_kwargs(self: Any, kwargs: dict[str, Any]) -> None:
        if "lr" in kwargs:
            object.__setattr__(self, "_tfring_lr", kwargs.pop("lr"))
        process(self, kwargs)

    def build_learning_rate(self: Any, learning_rate: Any) -> Any:
        return build(self, vars(self).pop("_tfring_lr", learning_rate))

    root._process_kwargs = process_kwargs
    root._build_learning_rate = build_learning_rate
