"""Methods that legacy optimizers of Keras 2 call, and no other optimizer of either Keras."""

from __future__ import annotations

_METHODS = (
    "_compute_gradients",
    "_prepare",
    "_prepare_local",
    "_resource_apply_dense",
    "_resource_apply_sparse",
    "get_gradients",
)


def never_called(cls: type, base: type) -> list[str]:
    """Returns the methods of these that a class defines itself, not through `base`."""
    return [n for n in _METHODS if getattr(cls, n, None) is not getattr(base, n, None)]
