"""What a user can ask for when wrapping a tape or an optimizer, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives.compression import Compression
from tfring.ops import reduce_ops
from tfring.runtime import process_sets
from tfring.training.local_variables import LocalVariables

GradientTransform = Callable[[list[Any], list[Any]], Sequence[Any]]
"""Takes gradients and their variables, returns as many gradients."""

LOSS = "loss"
"""For weight_by: what the losses of `compile` divide by."""


@dataclasses.dataclass(frozen=True)
class ReduceOptions:
    """How gradients are reduced; checked when it is made, constant afterwards.

    DistributedGradientTape describes the parameters of the same names. `groups` is a number, lists
    of variables, or None for a cut by size; None for `process_set` is the set of all ranks.
    """

    op: int = reduce_ops.Average
    compression: Any = Compression.none
    sparse_as_dense: Any = False
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    process_set: Any = None
    device_dense: str = ""
    device_sparse: str = ""
    before_reduce: GradientTransform | None = None
    after_reduce: GradientTransform | None = None
    weight_by: Any = None

    def __post_init__(self) -> None:
        name = reduce_ops.name_of(self.op)
        if self.gradient_predivide_factor <= 0:
            raise ValueError(
                f"gradient_predivide_factor must be positive, not {self.gradient_predivide_factor}"
            )
        if self.gradient_predivide_factor != 1.0 and self.op != reduce_ops.Average:
            raise ValueError(f"gradient_predivide_factor needs op=Average, not {name}")
        if self.sparse_as_dense not in (True, False, "auto"):
            raise ValueError(
                f'sparse_as_dense must be True, False or "auto", not {self.sparse_as_dense!r}'
            )
        process_sets.checked_id(self.process_set)
        if isinstance(self.groups, bool) or (isinstance(self.groups, int) and self.groups < 1):
            raise ValueError(f"groups must be a positive number or a list, not {self.groups!r}")
        for method in ("compress", "decompress"):
            if not callable(getattr(self.compression, method, None)):
                raise TypeError(
                    f"compression must have the methods of tfring.Compressor, and "
                    f"{self.compression!r} has no {method}"
                )
        for hook in (self.before_reduce, self.after_reduce):
            if hook is not None and not callable(hook):
                raise TypeError(f"before_reduce and after_reduce must be callable, not {hook!r}")
        self._check_weight(name)

    def _check_weight(self, op: str) -> None:
        weight = self.weight_by
        if isinstance(weight, str) and weight != LOSS:
            raise ValueError(f'weight_by must be "loss", None, a number or a function: {weight!r}')
        if weight is None or isinstance(weight, str):
            return
        if self.op != reduce_ops.Average:
            raise ValueError(
                f"weight_by makes a weighted average, so it needs op=Average, not op={op}"
            )
        if not callable(weight) and tf.TensorShape(getattr(weight, "shape", ())).rank not in (
            0,
            None,
        ):
            raise ValueError(f"weight_by must be one number for this rank, not {weight!r}")

    @property
    def weighs(self) -> bool:
        """Whether the ranks may count differently."""
        return self.weight_by is not None and self.op == reduce_ops.Average

    def narrow(self, variables: Sequence[Any]) -> bool:
        """Whether gradients of these variables may have no more than the range of float16."""
        narrow = any(tf.as_dtype(v.dtype) == tf.float16 for v in variables)
        return narrow or self.compression is not Compression.none

    @property
    def members(self) -> process_sets.ProcessSet:
        """The process set that takes part."""
        return self.process_set or process_sets.global_process_set

    @property
    def included(self) -> bool:
        """Whether this rank takes part."""
        return process_sets.checked_id(self.process_set) == 0 or self.members.included()

    @property
    def depends_on_magnitude(self) -> bool:
        """Whether hooks or compression must get the gradients without a loss scale."""
        hooked = self.before_reduce is not None or self.after_reduce is not None
        return hooked or self.compression is not Compression.none


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """What a user can ask for when wrapping an optimizer.

    Attributes:
        reduction: how gradients are reduced.
        local: the variables whose gradients stay this rank's own.
        name: a part of the collectives' names, the same on every rank. None for the optimizer's
            number among the wrapped ones, in the order in which they are first used.
        passes: how many backward passes are accumulated on this rank before one reduction and
            update (backward_passes_per_step).
        average: use the mean over these passes instead of their sum. (Keras' own
            gradient_accumulation_steps always uses the mean.)
    """

    reduction: ReduceOptions
    local: LocalVariables
    name: str | None = None
    passes: int = 1
    average: bool = False


def resolve_groups(num_groups: int, groups: Any) -> Any:
    """Joins Horovod's two ways of asking for groups into one; ValueError for both at once."""
    if num_groups and groups is not None:
        raise ValueError("give num_groups or groups, not both")
    if num_groups < 0:
        raise ValueError(f"num_groups must not be negative, not {num_groups}")
    return num_groups or groups or None


def call_hook(
    hook: GradientTransform | None, gradients: Sequence[Any], variables: Sequence[Any]
) -> list[Any]:
    """Returns what a hook makes of the gradients; the gradients themselves if there is no hook.

    Raises:
        ValueError: the hook returned another number of gradients.
    """
    if hook is None:
        return list(gradients)
    returned = list(hook(list(gradients), list(variables)))
    if len(returned) != len(gradients):
        raise ValueError(
            f"the hook {getattr(hook, '__name__', hook)!r} was given {len(gradients)} gradients "
            f"and returned {len(returned)}; it must return one for each, None where there is none"
        )
    return returned
