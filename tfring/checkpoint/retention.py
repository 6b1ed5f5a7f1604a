"""Which checkpoints are kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tfring.checkpoint.manifest import CheckpointInfo


@dataclasses.dataclass(frozen=True)
class Retention:
    """The last `last` checkpoints, and the best `best` by a metric."""

    last: int = 3  # at least 1
    best: int = 0
    metric: str | None = None  # the name of what the best are chosen by
    mode: str = "min"  # or "max": which values are good ones

    def __post_init__(self) -> None:
        if self.last < 1 or self.best < 0:
            raise ValueError(
                f"keep_last={self.last}, keep_best={self.best}: at least the last checkpoint is "
                "kept, and no negative number"
            )
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode={self.mode!r}: it is 'min' or 'max'")
        if self.best and self.metric is None:
            raise ValueError(f"keep_best={self.best} needs metric=, the name of a metric")

    def expired(self, found: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
        """Returns those that are not kept, in the order of `found`.

        A checkpoint without the metric, or with NaN, is none of the best; of equal ones the newer
        is better.
        """
        newest_first = sorted(found, key=lambda info: info.order, reverse=True)
        kept = {info.order for info in newest_first[: self.last]}
        if self.best and self.metric is not None:
            values = [(info.metrics.get(self.metric, math.nan), info) for info in newest_first]
            measured = [(value, info) for value, info in values if not math.isnan(value)]
            measured.sort(key=lambda pair: pair[0] if self.mode == "min" else -pair[0])
            kept |= {info.order for _, info in measured[: self.best]}
        return [info for info in found if info.order not in kept]
