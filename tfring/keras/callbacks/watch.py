"""ReductionWatch: notices weights whose gradients are not reduced, before the ranks go apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring.collectives import objects
from tfring.keras import checks, facts
from tfring.keras.callbacks import state
from tfring.keras.model_optimizers import optimizers_of
from tfring.runtime import topology
from tfring.training.comparison import hashes
from tfring.training.local_variables import variable_key
from tfring.training.reduction_record import reductions
from tfring.training.value_names import variable_name

_LISTED = 5  # variables in a message
_UNKNOWN = None  # the hash of a variable that did not exist yet


class ReductionWatch:
    """Watches the weights of a model with a train_step of its own during one `fit`.

    It also watches a model whose optimizer holds the wrapped one. Such a step may reduce gradients
    by a tape, by a wrapped optimizer, or by itself, each for some of the weights. So no optimizer
    or tape can be refused by its looks. After the first batch (once more after the second if the
    first has made weights) and then between epochs, the ranks exchange a hash of every weight whose
    gradient was not seen to be reduced during this `fit` (the step may have been traced before). If
    weights were equal before and differ now, each rank has trained them on its own.
    """

    def __init__(self, model: Any) -> None:
        """Prepares the watch, before the train function is traced; does not keep the model."""
        self._since = reductions.now()
        self._hashes: dict[Any, int] = {}  # by variable, when the ranks last compared it
        self._settled: set[Any] = set()  # variables whose gradients all ranks have reduced
        self._look = True  # at what the next batch changes
        self._wanted = topology.size() > 1 and checks.may_skip_reduction(model)

    def start(self, model: Any, local: Sequence[Any]) -> None:
        """Takes the values from which the first step starts, or those that ranks were given."""
        if self._wanted:
            self._settled |= checks.settled(model)
            unsettled = self._unsettled(model, local)
            self._hashes = {key: hashes.hash_of(v) for key, v in unsettled.items()}

    def after_batch(self, model: Any, local: Sequence[Any], batch: int, *, again: bool) -> None:
        """Checks after the first batch, and once more if that has made weights and `again` is true.

        A collective.
        """
        if self._look:
            self._look = self.check(model, local, f"after batch {batch}") and again

    def check(self, model: Any, local: Sequence[Any], when: str) -> bool:
        """Compares; a collective. Returns whether a weight is new on some rank: check again then.

        Raises:
            RuntimeError: a weight has changed and differs between ranks, and its gradient was not
                reduced; on every rank.
        """
        if not self._wanted:
            return False
        variables = self._unsettled(model, local)
        now = {key: hashes.hash_of(v) for key, v in variables.items()}
        rows = [
            (self._hashes.get(key, _UNKNOWN), now[key], reductions.covers(v, self._since))
            for key, v in variables.items()
        ]
        everywhere = objects.allgather_json(rows, name="tfring.reduction_watch")
        if len(set(map(len, everywhere))) > 1:
            return False  # the ranks have different models, which broadcasts and checks say better
        wrong = []
        for position, (key, variable) in enumerate(variables.items()):
            before, after, reduced = zip(*(each[position] for each in everywhere), strict=True)
            if all(reduced):
                self._settled.add(key)
            elif len(set(after)) > 1 and len(set(before)) == 1 and before[0] is not _UNKNOWN:
                wrong.append(variable)
        self._hashes = now
        if wrong:
            raise RuntimeError(_message(wrong, when))
        checks.settle(model, self._settled)
        return any(before is _UNKNOWN for each in everywhere for before, _, _ in each)

    def _unsettled(self, model: Any, local: Sequence[Any]) -> dict[Any, Any]:
        """Returns the trained weights not known to be reduced, in the same order on all ranks."""
        trained = facts.weights_of(model, trainable=True)
        for optimizer in optimizers_of(model).values():
            trained = [*trained, *(getattr(optimizer, "_trainable_variables", None) or ())]
        left_out = {variable_key(v) for v in state.local_variables(model, local)}
        found = {variable_key(v): v for v in trained}
        return {
            key: v
            for key, v in found.items()
            if v.trainable and key not in left_out and key not in self._settled
        }


def _message(variables: Sequence[Any], when: str) -> str:
    names = ", ".join(variable_name(v) for v in variables[:_LISTED])
    more = f" and {len(variables) - _LISTED} more" if len(variables) > _LISTED else ""
    return (
        f"rank {topology.rank()}: {when} these weights differ between the ranks, and no gradient "
        f"was reduced for them: {names}{more}. Wrap the optimizer that trains them in "
        "DistributedOptimizer (the outermost, if one holds another), or the tape in "
        "DistributedGradientTape. If your train_step reduces gradients itself, pass them through "
        "hvd.mark_reduced(gradients, variables); if it trains on every rank alone and you average "
        "weights later, say reduced_by_user=True to BroadcastGlobalVariablesCallback; weights that "
        "belong to one rank go into its local_variables"
    )
