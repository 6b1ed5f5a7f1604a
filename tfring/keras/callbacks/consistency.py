"""ConsistencyCheckCallback: raises an error when weights differ between ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfring.keras.callbacks import state
from tfring.keras.callbacks.base import LocalVariablesCallback, wait_for_all
from tfring.runtime import _native, topology
from tfring.runtime.exceptions import tf_errors
from tfring.training.comparison import hashes as compared

_LISTED = 5  # variables in a message


class ConsistencyCheckCallback(LocalVariablesCallback):
    """Compares the trainable weights of all ranks, every `every` steps and after every epoch.

    The ranks exchange eight bytes per variable, a hash of its value, so weights count as equal only
    if all bits are. Needs the same `every` on every rank.
    """

    def __init__(
        self,
        every: int = 100,
        *,
        local_variables: Any = None,
        non_trainable: bool = False,
        optimizer_state: bool = False,
    ) -> None:
        """Sets what to compare and when.

        Args:
            every: steps between checks within an epoch; each reads all the weights.
            local_variables: variables that may differ between ranks, like those that the optimizer
                knows as local (register_local_var, local_layers).
            non_trainable: compare the other weights, too; the moving statistics of a plain
                BatchNormalization, for one, differ between ranks.
            optimizer_state: compare the optimizer's variables, too, except accumulated gradients.

        Raises:
            ValueError: `every` is less than 1.
        """
        super().__init__(local_variables)
        if every < 1:
            raise ValueError(f"ConsistencyCheckCallback needs every >= 1, not {every}")
        self.every = every
        self.non_trainable = non_trainable
        self.optimizer_state = optimizer_state
        self._epoch = 0
        self._steps = 0
        self._equal = ""  # when the last check found no difference

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_train_begin(logs)
        self._equal = ""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_epoch_begin(epoch, logs)
        # Counting starts again: the epoch before may have had more steps on some ranks.
        self._epoch, self._steps = epoch, 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_train_batch_end(batch, logs)
        before, self._steps = self._steps, batch + 1
        if self._steps // self.every > before // self.every:
            self.check(f"after step {self._steps} of epoch {self._epoch + 1}")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_epoch_end(epoch, logs)
        wait_for_all(self.model)
        self.check(f"at the end of epoch {epoch + 1}")

    def check(self, when: str) -> None:
        """Compares now; a collective.

        Args:
            when: for the message.

        Raises:
            RuntimeError: Variables differ; on every rank.
        """
        variables = self._variables()
        hashes = [topology.rank(), *(compared.hash_of(variable) for variable in variables)]
        mine = np.array([len(variables), _combined(variables)], dtype=np.int64)
        with tf_errors():
            _native.note_call_site()
            layouts = _native.core.allgather(mine, name="tfring.consistency.layout").reshape(-1, 2)
            if len(np.unique(layouts, axis=0)) > 1:
                counts = ", ".join(map(str, layouts[:, 0].tolist()))
                raise RuntimeError(
                    f"rank {topology.rank()}: the ranks' models differ in number, shapes or dtypes "
                    f"of variables ({counts} variables): build the same model on every rank"
                )
            row = np.array([hashes], dtype=np.int64)
            _native.note_call_site()
            rows = _native.core.allgather(row, name="tfring.consistency.hashes")
        differing = _differences(rows[:, 0].tolist(), rows[:, 1:], variables)
        since = f"; they were equal {self._equal}" if self._equal else ""
        self._equal = when
        if differing:
            more = f"; and {len(differing) - _LISTED} more" if len(differing) > _LISTED else ""
            raise RuntimeError(
                f"rank {topology.rank()}: the weights differ between ranks {when}: "
                f"{'; '.join(differing[:_LISTED])}{more}{since}. Start from equal weights "
                "(BroadcastGlobalVariablesCallback), change them only through the distributed "
                "optimizer, and name variables that are meant to differ in local_variables="
            )

    def _variables(self) -> list[Any]:
        local = self.local()
        weights = state.shared_weights(self.model, local)
        chosen = [v for v in weights if v.trainable or self.non_trainable]
        if self.optimizer_state:
            chosen += state.shared_state(self.model, local, accumulators=False)
        return chosen


def _differences(ranks: Sequence[int], hashes: Any, variables: Sequence[Any]) -> list[str]:
    """Describes each variable that differs: which ranks have another value than most ranks."""
    found = []
    for position, variable in enumerate(variables):
        column = hashes[:, position].tolist()
        # Of equally frequent values the one on the lowest rank counts as right.
        usual = max(column, key=column.count)
        odd = [rank for rank, value in zip(ranks, column, strict=True) if value != usual]
        if odd:
            reference = ranks[column.index(usual)]
            name = compared.name_of(variable)
            listed = ", ".join(map(str, odd))
            found.append(
                f"variable {name} (number {position}) of rank {listed} is not that of rank "
                f"{reference}"
            )
    return found


def _combined(variables: Sequence[Any]) -> int:
    kinds = [(str(v.dtype), tuple(v.shape)) for v in variables]
    digest = hashlib.blake2b(repr(kinds).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)
