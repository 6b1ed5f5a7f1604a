"""Tells the runtime which variables a bucket's gradients belong to.

The runtime looks for NaN and Inf in each rank's input of a reduction, and for the first variable
whose gradient differs between ranks. It knows collectives by their names only.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tfring.runtime import _native

_SPACES = str.maketrans("\t\n", "  ")

_lock = threading.Lock()  # guards the two below
_told: dict[str, tuple[list[str], bool]] = {}  # by collective
_described: set[int] = set()  # layout hashes, a limited number
_MOST_DESCRIBED = 1000


def variable_name(variable: Any) -> str:
    """Returns the name of a variable for reports and messages."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "?"))


def name_gradients(collective: str, variables: Sequence[Any], *, loss_scaled: bool) -> None:
    """Makes reports name the tensors of a collective after these variables.

    Call it each time the collective is built: in eager mode, in every step.

    Args:
        collective: its name.
        variables: in the order of its tensors.
        loss_scaled: the gradients are multiplied by a loss scale, which the optimizer lowers when
            they are not finite. So this happens now and then.
    """
    names = [variable_name(v) for v in variables]
    with _lock:
        if _told.get(collective) == (names, loss_scaled):
            return
        _told[collective] = (names, loss_scaled)
    _native.core.name_tensors(collective, names, loss_scaled)


def describe_layout(
    layout: int, kinds: Sequence[str], variables: Sequence[Any], specs: Sequence[str]
) -> None:
    """Tells the runtime what a layout hash of gradients stands for.

    Args:
        layout: the hash.
        kinds: one letter per variable, as for buckets.layout_hash.
        variables: one per gradient.
        specs: the dtype and shape of each.
    """
    with _lock:
        if layout in _described or len(_described) >= _MOST_DESCRIBED:
            return
        _described.add(layout)
    lines = [
        f"{kind}{variable_name(variable).translate(_SPACES)}\t{spec}"
        for kind, variable, spec in zip(kinds, variables, specs, strict=True)
    ]
    _native.core.describe_layout(layout, "\n".join(lines))
