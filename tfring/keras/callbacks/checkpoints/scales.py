"""The scales of the ranks' weights (see training/weights.py), by the place of the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring.keras.model_optimizers import hooks_of
from tfring.training import weights


def scales_of(model: Any) -> list[Any]:
    """Returns the scales of all reductions, as values of JSON. All ranks call it.

    The names of reductions depend on how many optimizers a process has wrapped. So the place of an
    optimizer in the model identifies its reductions. A reduction without a name gets one here.
    """
    found, names = [], _names(model)
    for members, name, value in weights.scales():
        place, rest = "", name
        for other, hook_name in names.items():
            if name.startswith(f"{hook_name}."):
                place, rest = other, name.removeprefix(hook_name)
        found.append([place, members, rest, value])
    return found


def begin_with_scales(model: Any, saved: Sequence[Any]) -> None:
    """Resumes with what `scales_of` returned; the same on all ranks."""
    names = _names(model)
    known = [each for each in saved if not each[0] or each[0] in names]
    weights.begin_with_scales(
        [(members, names.get(place, "") + rest, value) for place, members, rest, value in known]
    )


def _names(model: Any) -> dict[str, str]:
    return {place: hook.name for place, hook in hooks_of(model).items()}
