"""RankState: what a checkpoint keeps of each rank."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from tfring.checkpoint.manifest import as_json
from tfring.keras.callbacks.checkpoints.epoch_metrics import EpochMetrics
from tfring.keras.callbacks.checkpoints.random_states import random_states, set_random_states
from tfring.runtime import topology

_log = logging.getLogger("tfring")


class RankState:
    """This rank's random states, its metrics of the epoch, its data cursor.

    Attributes:
        metrics: what `give_back` has found of the metrics of the epoch.
    """

    def __init__(self, model: Any, cursor: Any, *, within_epoch: bool = False) -> None:
        self._model, self._cursor, self._within_epoch = model, cursor, within_epoch
        self.metrics: EpochMetrics | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns it for a checkpoint."""
        cursor = self._cursor
        state = None if cursor is None else as_json(cursor.state_dict(), "the state of the cursor")
        metrics = EpochMetrics.of(self._model).as_json() if self._within_epoch else None
        return {"random": random_states(self._model), "cursor": state, "metrics": metrics}

    def give_back(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Takes what was kept of this rank, and of the others where a cursor counts for all."""
        rank, size = topology.rank(), topology.size()
        if len(ranks) != size and rank == 0:
            _log.warning(_other_ranks(len(ranks), size, ranks[0]["metrics"] is not None))
        if rank < len(ranks):
            anew = set_random_states(self._model, ranks[rank]["random"])
            if anew:
                _log.warning("rank %d: the checkpoint does not fit %s", rank, ", ".join(anew))
        if len(ranks) == size and ranks[rank]["metrics"] is not None:
            self.metrics = EpochMetrics.of_json(ranks[rank]["metrics"])
        if self._cursor is not None:
            _load_cursor(self._cursor, [each["cursor"] for each in ranks])


def _other_ranks(saved: int, now: int, within_epoch: bool) -> str:
    more = f"ranks from {saved} on go on with other seeds"
    fewer = f"those of ranks from {now} on are not used"
    rest = ", and the metrics of this epoch are those of its rest" if within_epoch else ""
    return (
        f"the checkpoint has random states of {saved} ranks, and there are {now} now: "
        f"{more if now > saved else fewer}{rest}"
    )


def _load_cursor(cursor: Any, states: Sequence[Any]) -> None:
    rank, size = topology.rank(), topology.size()
    if all(state is None for state in states):
        warnings.warn("the checkpoint has no data cursor: the data begins anew", stacklevel=3)
    elif len(states) == size:
        cursor.load_state_dict(states[rank])
    elif all(state == states[0] for state in states):
        cursor.load_state_dict(states[0])
    else:
        raise RuntimeError(
            f"rank {rank}: the checkpoint has another data cursor for each of {len(states)} ranks, "
            f"and there are {size} now: start as many, or use a cursor that counts the samples of "
            "all ranks"
        )
