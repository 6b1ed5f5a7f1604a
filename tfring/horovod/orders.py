"""Horovod's rules that differ from those of tfring's tapes and optimizers.

In Horovod, options may be positional, in an order that differs between modules. And ranks weigh the
same: `weight_by` is None by default.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

_TAPE = """device_dense device_sparse compression sparse_as_dense op gradient_predivide_factor
    num_groups groups process_set"""
_OPTIMIZER = """name device_dense device_sparse compression sparse_as_dense
    gradient_predivide_factor op"""
_PASSES = "backward_passes_per_step average_aggregated_gradients"
_KERAS = {
    "DistributedGradientTape": f"{_TAPE} scale_local_gradients",
    "PartialDistributedGradientTape": f"{_TAPE} local_layers scale_local_gradients",
    "DistributedOptimizer": f"""{_OPTIMIZER} {_PASSES} num_groups groups process_set
        scale_local_gradients""",
    "PartialDistributedOptimizer": f"""{_OPTIMIZER} {_PASSES} groups process_set local_layers
        scale_local_gradients""",
}
# By tfring's module, whose names a module of Horovod has, and the name.
_ORDERS = {
    "tfring": _KERAS
    | {
        "DistributedOptimizer": """name use_locking device_dense device_sparse compression
            sparse_as_dense backward_passes_per_step op gradient_predivide_factor
            average_aggregated_gradients num_groups groups process_set scale_local_gradients""",
    },
    "tfring.keras": _KERAS,
    "tfring.keras.horovod_keras": _KERAS
    | {"DistributedOptimizer": f"{_OPTIMIZER} num_groups groups"},
}
_WEIGH_ALIKE = {"DistributedOptimizer", "PartialDistributedOptimizer", "load_model"}


def as_in_horovod(module: str, name: str, value: Any) -> Any:
    """Returns a public name as Horovod has it.

    Args:
        module: its module of tfring.
        name: the name.
        value: its value in tfring.
    """
    order = tuple(_ORDERS.get(module, {}).get(name, "").split())
    alike = name in _WEIGH_ALIKE
    return _with(value, order, alike) if order or alike else value


@functools.cache
def _with(function: Callable[..., Any], order: tuple[str, ...], alike: bool) -> Any:
    """Returns a function that takes options by position after the first argument.

    Args:
        function: tfring's.
        order: the options in Horovod's order.
        alike: whether the ranks count alike by default.
    """
    defaults = {"weight_by": None} if alike else {}

    @functools.wraps(function, updated=())
    def call(*args: Any, **options: Any) -> Any:
        own = 1 if order else len(args)
        by_position = args[own:]
        if len(by_position) > len(order):
            raise TypeError(
                f"{function.__name__} takes at most {len(order) + 1} positional arguments, "
                f"not {len(args)}"
            )
        named = dict(zip(order, by_position, strict=False))
        return function(*args[:own], **named, **{**defaults, **options})

    # Imported here because it loads TensorFlow, as the module of `function` has done by now.
    return importlib.import_module("tfring.ops.library").outside_autograph(call)
