"""Compares the weights that two runs of a program have recorded. Needs no TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

# The largest difference, relative to the largest element of a variable, that is taken for rounding:
# the ranks' sums are added in another order than those of one process.
TOLERANCE = 1e-3


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
    for step, (a, b) in enumerate(zip(*files, strict=False)):
        with np.load(a) as mine, np.load(b) as theirs:
            when = f"after step {step}" if step else "before the first step"
            shapes = [[(key, each[key].shape) for key in each.files] for each in (mine, theirs)]
            if [s for _, s in shapes[0]] != [s for _, s in shapes[1]]:
                return Outcome(False, f"{when} the runs have weights of other numbers or shapes")
            for key, other in zip(mine.files, theirs.files, strict=True):
                at, relative = _difference(mine[key], theirs[other])
                worst = max(worst, relative)
                if not relative <= TOLERANCE:
                    values = [float(mine[key][at]), float(theirs[other][at])]
                    name = key.partition(" ")[2].replace("|", "/")
                    return Outcome(False, _text(when, name, at, values, names, step))
    if len(files[0]) != len(files[1]):
        counts = [len(found) - 1 for found in files]
        return Outcome(
            False,
            f"{names[0]} took {counts[0]} steps, {names[1]} {counts[1]}; as long as both "
            "went on, their weights were equal",
        )
    steps = len(files[0]) - 1
    return Outcome(True, f"{steps} steps: equal weights (largest relative difference {worst:.1e})")


def _difference(a: np.ndarray, b: np.ndarray) -> tuple[tuple[int, ...], float]:
    """Returns where two arrays differ most, and by how much relative to the largest element."""
    if a.size == 0 or np.array_equal(a, b):
        return (), 0.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    distance = np.abs(a - b)
    distance[np.isnan(distance)] = np.inf
    index = np.unravel_index(int(np.argmax(distance)), distance.shape)
    at = tuple(int(i) for i in index)
    largest = max(float(np.max(np.abs(a))), np.finfo(np.float64).tiny)
    return at, float(distance[at]) / largest


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
        else "the initial weights differ: call hvd.set_seed(42) before the model is made"
    )
    return (
        f"{when} {name}{element} is {values[0]:.7g} with {names[0]} and {values[1]:.7g} with "
        f"{names[1]}: {advice}"
    )
