"""ConsistencyCheckCallback: raises an error when weights differ between ranks."""

from __future__ import annotations

from typing import Any

from tfring.keras.callbacks import state
from tfring.keras.callbacks.base import LocalVariablesCallback, wait_for_all
from tfring.training.comparison.assert_equal import assert_equal


class ConsistencyCheckCallback(LocalVariablesCallback):
    """Compares the trainable weights of all ranks, every `every` steps and after every epoch.

    Each comparison is `hvd.assert_equal`: weights count as equal only if all bits are. Needs the
    same `every` on every rank.
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
            local_variables: variables that may differ between ranks, besides those that the
                optimizer knows as local (register_local_var, local_layers).
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
        super().on_train_begin(logs)
        self._equal = ""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        # Counting starts again: the epoch before may have had more steps on some ranks.
        self._epoch, self._steps = epoch, 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_train_batch_end(batch, logs)
        before, self._steps = self._steps, batch + 1
        if self._steps // self.every > before // self.every:
            self.check(f"after step {self._steps} of epoch {self._epoch + 1}")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        wait_for_all(self.model)
        self.check(f"at the end of epoch {epoch + 1}")

    def check(self, when: str) -> None:
        """Compares now; a collective.

        Args:
            when: for the message.

        Raises:
            RuntimeError: variables differ; on every rank.
        """
        local = self.local()
        weights = state.shared_weights(self.model, local)
        chosen = [v for v in weights if v.trainable or self.non_trainable]
        if self.optimizer_state:
            chosen += state.shared_state(self.model, local, accumulators=False)
        since = f" (they were equal {self._equal})" if self._equal else ""
        try:
            assert_equal(chosen, f"{when}{since}")
        except RuntimeError as error:
            advice = "Name variables that are meant to differ in local_variables="
            raise RuntimeError(f"{error}. {advice}.") from None
        self._equal = when
