"""The options of tapes and optimizers: names, types, defaults and checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import tensorflow as tf

from tfring.collectives.compression import Compression
from tfring.ops import reduce_ops
from tfring.runtime import process_sets
from tfring.training import gate

GradientTransform = Callable[[list[Any], list[Any]], Sequence[Any]]
"""Takes gradients and their variables, returns one gradient for each."""

LOSS = "loss"
"""For weight_by: what the losses of `compile` are divided by."""


class TapeOptions(TypedDict, total=False):
    """The keywords of DistributedGradientTape; DistributedOptimizer describes them."""

    op: int
    compression: Any
    sparse_as_dense: Any
    gradient_predivide_factor: float
    num_groups: int
    groups: Any
    process_set: Any
    device_dense: str
    device_sparse: str
    before_reduce: GradientTransform | None
    after_reduce: GradientTransform | None
    weight_by: Any
    local_layers: Any
    scale_local_gradients: bool


class OptimizerOptions(TapeOptions, total=False):
    """The keywords of DistributedOptimizer."""

    name: str | None
    backward_passes_per_step: int
    average_aggregated_gradients: bool
    use_locking: bool
    shard_states: bool


@dataclasses.dataclass(frozen=True)
class ReduceOptions:
    """The values of all options; checked when created, constant afterwards.

    `groups` is a number, lists of variables, or None for a cut by size. `process_set=None` means
    all ranks.
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
    local_layers: Any = None
    scale_local_gradients: bool = True
    name: str | None = None
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    use_locking: bool = False
    shard_states: bool = False

    @classmethod
    def read(cls, function: str, given: Mapping[str, Any], known: type) -> ReduceOptions:
        """Makes options from the keywords of a call.

        Args:
            function: the function's name, for errors.
            given: the keywords.
            known: TapeOptions or OptimizerOptions: the keywords that the function takes.

        Raises:
            TypeError: an unknown keyword, or a value of a wrong type.
            ValueError: a value is out of range, or options contradict each other.
        """
        for name in given:
            if name not in known.__annotations__:
                options = ", ".join(sorted(known.__annotations__))
                raise TypeError(f"{function} has no option {name!r}. Its options are {options}.")
        values = dict(given)
        number, groups = values.pop("num_groups", 0), values.pop("groups", None)
        if number and groups is not None:
            raise ValueError("give num_groups or groups, not both")
        if number < 0:
            raise ValueError(f"num_groups must not be negative, not {number}")
        return cls(groups=number or groups or None, **values)

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
                    "compression must have the methods of tfring.Compressor, but "
                    f"{self.compression!r} has no {method}"
                )
        for hook in (self.before_reduce, self.after_reduce):
            if hook is not None and not callable(hook):
                raise TypeError(f"before_reduce and after_reduce must be callable, not {hook!r}")
        self._check_weight(name)

    def _check_weight(self, op: str) -> None:
        weight = self.weight_by
        if isinstance(weight, str) and weight != LOSS:
            raise ValueError(
                f'weight_by must be "loss", None, a number or a function, not {weight!r}'
            )
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
        """Whether ranks may have different weights."""
        return self.weight_by is not None and self.op == reduce_ops.Average

    def narrow(self, variables: Sequence[Any]) -> bool:
        """Whether gradients of these variables may have only the range of float16."""
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
    def shards(self) -> bool:
        """Whether this rank has a part of the optimizer's states: not if it stays alone."""
        if not self.shard_states or not self.included:
            return False
        return (self.members.size() or 1) > 1 or gate.wanted()

    @property
    def depends_on_magnitude(self) -> bool:
        """Whether hooks or compression need the gradients without a loss scale."""
        hooked = self.before_reduce is not None or self.after_reduce is not None
        return hooked or self.compression is not Compression.none


def call_hook(
    hook: GradientTransform | None, gradients: Sequence[Any], variables: Sequence[Any]
) -> list[Any]:
    """Returns what a hook makes of the gradients; without a hook, the gradients themselves.

    Raises:
        ValueError: the hook returned a different number of gradients.
    """
    if hook is None:
        return list(gradients)
    returned = list(hook(list(gradients), list(variables)))
    if len(returned) != len(gradients):
        raise ValueError(
            f"the hook {getattr(hook, '__name__', hook)!r} got {len(gradients)} gradients but "
            f"returned {len(returned)}. It must return one for each, or None where there is none"
        )
    return returned
