"""Compares the weights that two runs of a program have recorded. Needs no TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

# The largest difference that is taken for rounding: the ranks' sums are added in another order than
# those of one process. It is relative to the larger of two: the variable's largest element, and the
# largest change of any weight since the start. (A bias before a batch normalization is all noise.)
TOLERANCE = 1e-3
# But at most to this multiple of that change: a wrong rate must show where weights hardly change.
_CHANGES = 50
_ROUNDINGS = 4  # by so many times its precision a weight may differ even then
# A file in the folder of a run: the layers that normalize with each rank's own batch.
BATCH_NORMS = "batch_norms"
_LISTED = 3  # layers in a message


class Outcome(NamedTuple):
    """What two runs have in common.

    Attributes:
        equal: Whether all weights of all steps were equal but for rounding.
        text: For the user.
    """

    equal: bool
    text: str


def compare_runs(first: Path, second: Path, names: tuple[str, str]) -> Outcome:
    """Finds the first step and variable in which two runs differ.

    Args:
        first: the folder that one run has written.
        second: that of the other.
        names: what the runs are called.
    """
    files = [sorted(folder.glob("step-*.npz")) for folder in (first, second)]
    for name, found in zip(names, files, strict=True):
        if not found:
            return Outcome(
                False,
                f"{name} recorded no step: the program has to call fit with a callback of tfring's "
                "(hvd.fit_callbacks())",
            )
    worst = 0.0
    start: dict[str, np.ndarray] = {}
    for step, (a, b) in enumerate(zip(*files, strict=False)):
        with np.load(a) as mine, np.load(b) as theirs:
            when = f"after step {step}" if step else "before the first step"
            shapes = [[(key, each[key].shape) for key in each.files] for each in (mine, theirs)]
            if [s for _, s in shapes[0]] != [s for _, s in shapes[1]]:
                return Outcome(False, f"{when} the runs have weights of other numbers or shapes")
            start = start or dict(mine)
            change = max((_largest(mine[key] - start[key]) for key in start), default=0.0)
            for key, other in zip(mine.files, theirs.files, strict=True):
                at, relative = _difference(mine[key], theirs[other], change)
                worst = max(worst, relative)
                if not relative <= TOLERANCE:
                    values = [float(mine[key][at]), float(theirs[other][at])]
                    name = key.partition(" ")[2].replace("|", "/")
                    text = _text(when, name, at, values, names, step)
                    return Outcome(False, text + (_batch_norms(first) if step else ""))
    if len(files[0]) != len(files[1]):
        counts = [len(found) - 1 for found in files]
        return Outcome(
            False,
            f"{names[0]} took {counts[0]} steps, {names[1]} {counts[1]}; as long as both "
            "went on, their weights were equal",
        )
    steps = len(files[0]) - 1
    return Outcome(True, f"{steps} steps: equal weights (largest relative difference {worst:.1e})")


def _largest(a: np.ndarray) -> float:
    return float(np.max(np.abs(a.astype(np.float64)), initial=0.0))


def _difference(a: np.ndarray, b: np.ndarray, change: float) -> tuple[tuple[int, ...], float]:
    """Returns where two arrays differ most, and by how much: see TOLERANCE.

    Args:
        a: of one run.
        b: of the other.
        change: the largest of any weight since the start; 0 before the first step.
    """
    if a.size == 0 or np.array_equal(a, b):
        return (), 0.0
    precision = float(np.finfo(a.dtype).eps) if a.dtype.kind == "f" else 0.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    distance = np.abs(a - b)
    distance[np.isnan(distance)] = np.inf
    index = np.unravel_index(int(np.argmax(distance)), distance.shape)
    at = tuple(int(i) for i in index)
    scale = max(_largest(a), change, np.finfo(np.float64).tiny)
    if change:
        scale = min(scale, change * _CHANGES)
        scale = max(scale, _ROUNDINGS * precision * _largest(a) / TOLERANCE)
    return at, float(distance[at]) / scale


def _text(
    when: str,
    name: str,
    at: tuple[int, ...],
    values: list[float],
    names: tuple[str, str],
    step: int,
) -> str:
    element = f" at {list(at)}" if at else ""
    advice = (
        "the gradients, the batches, the learning rate or the dropout differ: every step needs the "
        "same samples (batch_size // hvd.size() per rank, or hvd.shard), and the same rate"
        if step
        else "the initial weights differ: call hvd.set_random_seed(42) before the model is made"
    )
    return (
        f"{when} {name}{element} is {values[0]:.7g} with {names[0]} and {values[1]:.7g} with "
        f"{names[1]}: {advice}"
    )


def _batch_norms(folder: Path) -> str:
    """Returns what to say of layers that are different for any other number of ranks."""
    names = (folder / BATCH_NORMS).read_text().splitlines()
    if not names:
        return ""
    listed = ", ".join(map(repr, names[:_LISTED]))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (
        f". The model has BatchNormalization ({listed}{more}), which normalizes with each rank's "
        "own batch; that alone makes such a difference: use hvd.SyncBatchNormalization"
    )
