"""BroadcastGlobalVariablesCallback: all ranks start from the same weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfring import topology
from tfring.collectives import objects
from tfring.collectives.variables import broadcast_variables, describe_variables
from tfring.keras.callbacks import state
from tfring.keras.callbacks.base import DistributedCallback, find_join
from tfring.keras.hook import find_hook

_MUST_BE_EQUAL = {
    "steps": (
        "steps per epoch",
        "give every rank equally many batches, by equal shards of the data or by steps_per_epoch=, "
        "or put a JoinCallback among the callbacks",
    ),
    "optimizer": (
        "the name of the optimizer",
        "some used more optimizers than others before this one. Give DistributedOptimizer the same "
        "name= on every rank",
    ),
    "executions": ("steps_per_execution", "compile the model alike on every rank"),
}
"""What BroadcastGlobalVariablesCallback compares: what it is, and what to do if ranks differ."""


class BroadcastGlobalVariablesCallback(DistributedCallback):
    """Gives every rank the weights and the optimizer state of one rank, in every `fit`.

    Broadcasts twice. Before the first batch, what exists by then on every rank, so that all ranks
    take their first step from the same weights. After the first batch, when every optimizer has its
    state, all of it again; this is where Horovod broadcasts. Random seeds of layers stay each
    rank's own. Before the first batch it also refuses ranks that differ in what would make them
    wait for each other: steps per epoch, where `fit` knows them, steps_per_execution, and the name
    of the optimizer.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """Sets what to broadcast.

        Args:
            root_rank: the rank whose values all get.
            device: TensorFlow device for the broadcast, "" for TensorFlow's choice.
            local_variables: variables that are this rank's own and stay as they are.
        """
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self._local = list(local_variables or ())
        self._pending = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_train_begin(logs)
        self._pending = True
        weights = state.shared_weights(self.model, self._local)
        slots = state.shared_state(self.model, self._local)
        mine = {
            "weights": describe_variables(weights),
            "state": describe_variables(slots),
            "steps": self._steps(),
            "optimizer": self._optimizer_name(),
            "executions": self._executions(),
        }
        everywhere = objects.allgather_json(mine, name="tfring.broadcast_callback.begin")
        _refuse_different_ranks(everywhere)
        # Ranks may differ in what exists by now, for example if the root alone has resumed from a
        # checkpoint. Then only the weights are broadcast: the root's first step uses its own state,
        # and the state of all is broadcast after that step.
        same = [key for key in ("weights", "state") if _all_equal(o[key] for o in everywhere)]
        if same == ["weights", "state"]:
            self._broadcast([*weights, *slots])
        elif "weights" in same:
            self._broadcast(weights)

    def _steps(self) -> int | None:
        """Returns the steps per epoch if they are known and every step waits for all ranks."""
        hook = find_hook(self.model.optimizer)
        joins = find_join(self.model) is not None
        every_step = hook is not None and not hook.accumulates and not joins
        return self.params.get("steps") if every_step else None

    def _executions(self) -> int | None:
        """Returns how many steps Keras runs between two calls of the callbacks."""
        hook = find_hook(self.model.optimizer)
        return None if hook is None else int(getattr(self.model, "steps_per_execution", 1))

    def _optimizer_name(self) -> str | None:
        hook = find_hook(self.model.optimizer)
        return None if hook is None else hook.name

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_train_batch_end(batch, logs)
        if self._pending:
            self._pending = False
            weights = state.shared_weights(self.model, self._local)
            slots = state.shared_state(self.model, self._local, accumulators=False)
            self._broadcast([*weights, *slots])

    def _broadcast(self, variables: list[Any]) -> None:
        broadcast_variables(variables, root_rank=self.root_rank, device=self.device)


def _all_equal(values: Iterable[Any]) -> bool:
    first, *others = values
    return all(other == first for other in others)


def _refuse_different_ranks(everywhere: list[dict[str, Any]]) -> None:
    """Raises RuntimeError on every rank if some would wait for collectives that others never run.

    Args:
        everywhere: what each rank has under the keys of _MUST_BE_EQUAL.
    """
    for key, (what, advice) in _MUST_BE_EQUAL.items():
        values = {rank: mine[key] for rank, mine in enumerate(everywhere)}
        if key == "steps":  # a rank whose number is unknown may be right
            values = {rank: steps for rank, steps in values.items() if steps is not None}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"rank {rank}: {value}" for rank, value in values.items())
            none = "; None: the optimizer is not wrapped" if None in values.values() else ""
            raise RuntimeError(
                f"rank {topology.rank()}: the ranks differ in {what} ({listed}{none}), and would "
                f"wait for each other: {advice}"
            )
