"""Records the weights after each step, under `tfring run --compare`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfring.runtime import topology
from tfring.training.comparison.hashes import name_of, value_of
from tfring.training.comparison.runs import BATCH_NORMS


class StepRecord:
    """Writes the weights of this process's first steps to files; does nothing in other runs.

    Rank 0 writes: the other ranks have the same weights. Used by the thread that trains; one per
    process.
    """

    def __init__(self) -> None:
        """Reads what `tfring run` has set."""
        folder = os.environ.get("TFRING_X_COMPARE_FOLDER")
        self._folder = Path(folder) if folder else None
        self._steps = int(os.environ.get("TFRING_X_COMPARE_STEPS", "0"))
        self._next = 0  # the step to be recorded; 0: before the first

    @property
    def active(self) -> bool:
        """Whether this run is recorded."""
        return self._folder is not None

    @property
    def begun(self) -> bool:
        """Whether the weights before the first step are recorded, or need not be."""
        return self._folder is None or self._next > 0

    def add(self, variables: Sequence[Any], batch_norms: Sequence[str]) -> bool:
        """Records one more step.

        Args:
            variables: the weights after it.
            batch_norms: names of layers that normalize with each rank's own batch.

        Returns:
            Whether all steps have been recorded, so that training can end.
        """
        if self._folder is None:
            return False
        if self._next <= self._steps and topology.rank() == 0:
            named = {f"{i:06d} {name_of(v)}": value_of(v) for i, v in enumerate(variables)}
            values = {
                name.replace("/", "|"): value
                if value.dtype.kind in "fiub"
                else value.astype(np.float64)
                for name, value in named.items()
            }
            self._folder.mkdir(parents=True, exist_ok=True)
            np.savez(self._folder / f"step-{self._next:06d}.npz", **values)
            (self._folder / BATCH_NORMS).write_text("\n".join(batch_norms))
        self._next += 1
        return self._next > self._steps


record = StepRecord()
