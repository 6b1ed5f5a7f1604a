"""JoinCallback: `fit` with different numbers of batches on the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfring.collectives import sync
from tfring.collectives.variables import broadcast_variables
from tfring.keras.callbacks import state
from tfring.keras.callbacks.base import LocalVariablesCallback
from tfring.keras.callbacks.fits import register_join
from tfring.runtime import _native, topology
from tfring.runtime.exceptions import tf_errors


class JoinCallback(LocalVariablesCallback):
    """Makes a rank that has used up its batches wait for the others at the end of the epoch.

    Meanwhile the others go on; they average gradients over the ranks that still train. When all
    have finished, they get the weights and the optimizer's state of the rank that trained longest,
    and begin the next epoch alike. Accumulated gradients stay with their rank for the next update.
    The waiting happens before validation, and before collectives of tfring's other callbacks,
    wherever this one is in the list. Put it before your own callbacks that run collectives. Every
    rank needs at least one batch, and the same number of epochs.

    Attributes:
        last_rank: the rank whose weights all ranks got at the end of the last epoch, or None.
    """

    def __init__(self, local_variables: Any = None, device: str = "") -> None:
        """Sets what this rank keeps.

        Args:
            local_variables: this rank's own variables, which are not overwritten, besides those
                that the optimizer knows as local (register_local_var, local_layers).
            device: TensorFlow device for the broadcast, "" for TensorFlow's choice.
        """
        super().__init__(local_variables)
        self.device = device
        self.last_rank: int | None = None
        self._training = False
        self._most_steps: tuple[int | None] | None = None

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._training, self._most_steps = False, None
        if model is not None:
            register_join(model, self)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._training = True

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.join_once()  # validation comes before on_epoch_end

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        self.join_once()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_end(logs)
        register_join(self.model, None)

    def join_once(self) -> None:
        """Waits until all ranks have used up their batches; once per epoch."""
        if not self._training:
            return
        self._training = False
        self.last_rank = _join()
        local = self.local()
        weights = state.shared_weights(self.model, local)
        slots = state.shared_state(self.model, local, accumulators=False)
        broadcast_variables([*weights, *slots], root_rank=self.last_rank, device=self.device)

    def most_steps(self) -> int | None:
        """Returns the largest number of steps per epoch of any rank; None if one is unknown.

        The first call in a `fit` is a collective.
        """
        if self._most_steps is None:
            mine = np.array([self.params.get("steps") or 0], dtype=np.int64)
            with tf_errors():
                _native.note_call_site()
                steps = _native.core.allgather(mine, name="tfring.join_callback.steps")
            self._most_steps = (int(steps.max()) if steps.min() else None,)
        return self._most_steps[0]


def _join() -> int:
    return 0 if topology.size() == 1 else int(sync.join())
