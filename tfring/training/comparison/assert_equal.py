"""assert_equal: raises if variables differ between ranks, and says where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfring.collectives import objects
from tfring.runtime import _native, topology
from tfring.runtime.exceptions import tf_errors
from tfring.training.comparison.hashes import fingerprint, hash_of, value_of
from tfring.training.value_names import variable_name


class Difference(NamedTuple):
    """The first variable that differs between ranks.

    Attributes:
        text: the variable, the ranks, the place and the values.
        largest: the largest difference of an element between two ranks, over all variables,
            relative to the largest element of its variable; inf if it is not a number.
        others: how many more variables differ.
    """

    text: str
    largest: float
    others: int


def assert_equal(variables: Iterable[Any], when: str = "") -> None:
    """Raises on every rank if variables differ between ranks in any bit. A collective.

    While they are equal, each rank sends eight bytes.

    Args:
        variables: tf.Variable, keras.Variable or tensors, in the same order on every rank, for
            example `model.trainable_variables`. (`model.variables` includes the seeds of dropout,
            which differ between ranks.)
        when: for the message, for example "after step 100".

    Raises:
        RuntimeError: the values differ; the message names the first such variable, the ranks and
            both values. Also if numbers, shapes or dtypes of the variables differ.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    given = list(variables)
    mine = np.array([fingerprint(given)], dtype=np.int64)
    with tf_errors():
        _native.note_call_site()
        everywhere = _native.core.allgather(mine, name="tfring.assert_equal")
    if len(set(everywhere.tolist())) == 1:
        return
    found = first_difference(given)
    more = f" ({found.others} more variables differ)" if found.others else ""
    when = f" {when}" if when else ""
    raise RuntimeError(
        f"rank {topology.rank()}: the ranks' variables differ{when}: {found.text}{more}. Give all "
        "ranks the same values (broadcast_variables), and change them only with reduced gradients"
    )


def first_difference(variables: Sequence[Any]) -> Difference:
    """Finds the first variable that is not equal on all ranks, bit by bit. A collective.

    Args:
        variables: at least one differs in value, shape or dtype, or the ranks have different
            numbers of them.
    """
    kinds = [f"{value.dtype}{list(value.shape)}" for value in map(value_of, variables)]
    rows = [list(row) for row in zip(kinds, map(hash_of, variables), strict=True)]
    everywhere = objects.allgather_json(rows, name="tfring.first_difference")
    counts = [len(each) for each in everywhere]
    if len(set(counts)) > 1:
        return Difference(f"their numbers are {_listed(counts)}", np.inf, 0)
    differing = [p for p, column in enumerate(zip(*everywhere, strict=True)) if _differ(column)]
    position = differing[0]
    name = variable_name(variables[position])
    others = len(differing) - 1
    shapes = [each[position][0] for each in everywhere]
    if _differ(shapes):
        text = f"{name} (number {position}) is {_listed(shapes)}"
        return Difference(text, np.inf, others)
    hashes = [each[position][1] for each in everywhere]
    right = _right(hashes)
    odd = [rank for rank, value in enumerate(hashes) if value != hashes[right]]
    where = _element(value_of(variables[position]), right, odd[0])
    text = f"{name} (number {position}, {shapes[0]}) of rank {_ranks(odd)} is not that of rank "
    if any(_differ(each[p][0] for each in everywhere) for p in differing):
        return Difference(f"{text}{right}: {where}", np.inf, others)
    rights = {p: _right([each[p][1] for each in everywhere]) for p in differing}
    return Difference(f"{text}{right}: {where}", _largest(variables, rights), others)


def _right(hashes: Sequence[int]) -> int:
    """Returns the rank with the right value: the most frequent one, the lowest rank first."""
    return hashes.index(max(hashes, key=hashes.count))


def _largest(variables: Sequence[Any], rights: Mapping[int, int]) -> float:
    """Returns the largest relative difference of these variables from the right ranks' values.

    Args:
        variables: all variables that are compared.
        rights: for each index that differs, the rank with the right value.
    """
    mine: list[float | None] = []
    for position, right in rights.items():
        value = value_of(variables[position])
        mine.append(_relative(value.reshape(-1), _sent(value, right)))
    everywhere = objects.allgather_json(mine, name="tfring.first_difference.largest")
    return max(np.inf if each is None else each for row in everywhere for each in row)


def _sent(value: Any, root: int) -> Any:
    """Returns the flat value of the root rank; every rank gives its own."""
    data = value.reshape(-1).view(np.uint8)
    with tf_errors():
        _native.note_call_site()
        sent = _native.core.broadcast(data, name="tfring.first_difference.value", root=root)
    return sent.view(value.dtype).reshape(-1)


def _element(value: Any, right: int, odd: int) -> str:
    """Compares two ranks' values of a variable; every rank gets the odd rank's result."""
    theirs, mine = _sent(value, right), value.reshape(-1)
    size = value.dtype.itemsize
    bytes_differ = (theirs.view(np.uint8) != mine.view(np.uint8)).reshape(-1, size).any(axis=1)
    found = ""
    if topology.rank() == odd:
        at = int(np.argmax(bytes_differ))
        index = [int(i) for i in np.unravel_index(at, value.shape)]
        place = f"element {index} is " if index else "it is "
        found = f"{place}{theirs[at]} on rank {right} and {mine[at]} on rank {odd}"
    return str(objects.allgather_json(found, name="tfring.first_difference.found")[odd])


def _relative(mine: Any, theirs: Any) -> float | None:
    """Returns the largest difference relative to the largest element; None if not a number."""
    try:
        a, b = mine.astype(np.float64), theirs.astype(np.float64)
    except (TypeError, ValueError):
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), np.finfo(np.float64).tiny))
    return ratio if np.isfinite(ratio) else None


def _differ(values: Iterable[Any]) -> bool:
    first, *others = values
    return any(other != first for other in others)


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
