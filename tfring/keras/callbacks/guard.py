"""DivergenceGuard: notices weights that differ between the ranks, at the end of the epoch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from tfring.keras import facts
from tfring.keras.callbacks import state
from tfring.keras.model_optimizers import hooks_of
from tfring.observe.recorder.marks import EQUAL, ROUNDED
from tfring.runtime import _native, process_sets, topology
from tfring.runtime.settings.environment import read_settings
from tfring.training.comparison.assert_equal import first_difference
from tfring.training.comparison.hashes import fingerprint
from tfring.training.reduction_record import reductions

# Between two comparisons rounding lets a difference grow by at most this, relative to the largest
# element: different processors or numbers of threads sum in a different order.
ROUNDING = 1e-4
_WARN_AGAIN = 10.0  # times the difference of the last warning


class DivergenceGuard:
    """Compares the weights of all ranks between the epochs of one `fit`.

    Each rank sends two hashes of eight bytes with what the ranks exchange anyway: of the weights
    that gradients train, and of others (state.moving_weights), which layers may learn from their
    batches. Only if hashes differ are variables compared one by one.

    Other weights that differ cause one warning. A difference of trained weights that can come from
    rounding is a warning, too. It grows slowly while training goes on, because all ranks apply the
    same gradients. So the guard looks at its growth since the last comparison: faster growth is an
    error on all ranks. TFRING_DIVERGENCE_GUARD=0 switches the guard off.
    """

    def __init__(self) -> None:
        self._wanted = read_settings(os.environ).divergence_guard
        self._largest = 0.0  # difference at the last comparison
        self._warned_at = 0.0
        self._moving = True  # whether other weights are compared
        self._equal: bool | None = None  # at the last comparison; None: there was none

    def hashes(self, model: Any, local: Sequence[Any]) -> list[int] | None:
        """Returns the two hashes of this rank's weights, or None if there is nothing to compare.

        The second is 0 after the warning. `local` are this rank's own variables.
        """
        if not self._wanted or not train_together(model):
            return None
        moving = fingerprint(_moving(model, local)) if self._moving else 0
        return [fingerprint(_trained(model, local)), moving]

    def compare(
        self, model: Any, local: Sequence[Any], hashes: Sequence[list[int] | None], when: str
    ) -> None:
        """Finds the first variable that differs, if hashes do; a collective then.

        Raises:
            RuntimeError: trained weights differ; on every rank.
        """
        known = [each for each in hashes if each is not None]
        self._equal = None
        if len(known) < len(hashes):
            self._largest = 0.0
            return
        trained, moving = (set(column) for column in zip(*known, strict=True))
        # A rank that has joined an elastic job has not given the warning of the others.
        if 0 not in moving and len(moving) > 1:
            self._moving = self._warn_of_moving(_moving(model, local), when)
        if len(trained) == 1:
            self._equal = True if self._moving and len(moving) == 1 else None
            self._largest = 0.0
            return
        self._equal = False
        found = first_difference(_trained(model, local))
        more = f" ({found.others} more weights differ)" if found.others else ""
        text = f"rank {topology.rank()}: {when} the ranks' weights differ: {found.text}{more}."
        if found.largest > self._largest + ROUNDING:
            raise RuntimeError(f"{text} {_ADVICE}")
        self._largest = found.largest
        if found.largest > self._warned_at * _WARN_AGAIN:
            self._warned_at = found.largest
            if topology.rank() == 0:
                warnings.warn(f"{text} {_MAY_BE_ROUNDING}", stacklevel=2)

    def end(self) -> None:
        """Notes in the record of rank 0 what the last comparison of a training has shown."""
        if self._equal is not None and topology.rank() == 0:
            _native.core.mark(EQUAL if self._equal else ROUNDED)

    def _warn_of_moving(self, weights: Sequence[Any], when: str) -> bool:
        """Warns on rank 0 if it is more than rounding; returns whether to compare them again."""
        found = first_difference(weights)
        if found.largest <= ROUNDING:
            return True
        if topology.rank() == 0:
            more = f" ({found.others} more of them differ)" if found.others else ""
            warnings.warn(
                f"tfring: {when} weights that no gradient trains differ: {found.text}{more}. "
                f"{_LEARNT}",
                stacklevel=3,
            )
        return False


_ADVICE = (
    "Only some ranks changed them: in a callback, by loading a state during fit, or by gradients "
    "that were not reduced. Weights that are one rank's own go into local_variables "
    "of BroadcastGlobalVariablesCallback. TFRING_DIVERGENCE_GUARD=0 switches this check off"
)
_LEARNT = (
    "A layer probably learns them from its batches (codebooks, queues, normalisers), so each rank "
    "trains with a state of its own. In the layer, average the statistics of a batch by "
    "hvd.allreduce, or gather the batch by hvd.allgather. Weights that are one rank's own go into "
    "local_variables of BroadcastGlobalVariablesCallback"
)
_MAY_BE_ROUNDING = (
    "The difference is small and may come from rounding, where ranks have different processors or "
    "numbers of threads; it can grow. hvd.assert_equal finds the step after which it begins"
)


def _trained(model: Any, local: Sequence[Any]) -> list[Any]:
    left_out = state.local_variables(model, local)
    return [v for v in state.shared_weights(model, left_out) if v.trainable]


def _moving(model: Any, local: Sequence[Any]) -> list[Any]:
    return state.moving_weights(model, state.local_variables(model, local))


def train_together(model: Any) -> bool:
    """Returns whether all optimizers and tapes reduce the model's gradients over all ranks."""
    if reductions.any_in_process_set(facts.weights_of(model, trainable=True)):
        return False
    hooks = hooks_of(model).values()
    return all(process_sets.checked_id(hook.process_set) == 0 for hook in hooks)
