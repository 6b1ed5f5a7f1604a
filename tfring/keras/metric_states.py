"""A model's metrics over the data of all ranks: sums of their states, means of other results.

The states of Keras' metrics are sums and counts, or numbers of true positives per threshold. Their
sums over the ranks give the result of one process with all the data. A metric with an update_state
of its own is one of these if it only adds to its states what does not depend on them. All other
results (of a model's own train_step or test_step, of callbacks) become means, weighted by the
number of samples that Keras has counted in its loss metric.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import logging
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfring.collectives import objects
from tfring.keras import facts
from tfring.ops import reduce_ops
from tfring.runtime import _native, topology
from tfring.runtime.exceptions import tf_errors

_log = logging.getLogger("tfring")


@dataclasses.dataclass
class States:
    """The states of a model's metrics on this rank, at one time.

    Attributes:
        variables: those that add up.
        values: their values.
        results: the results of the metrics, by name.
        samples: how many samples Keras has counted.
    """

    variables: list[Any] = dataclasses.field(default_factory=list)
    values: list[Any] = dataclasses.field(default_factory=list)
    results: dict[str, float] = dataclasses.field(default_factory=dict)
    samples: float = 0.0


@dataclasses.dataclass
class Part:
    """Results of this rank that belong to one set of states: of training, or of a validation.

    Attributes:
        results: by name.
        states: without states all results become means.
        batches: how many there were; the weight where no rank has counted samples.
        prefix: of the names in messages.
    """

    results: dict[str, float]
    states: States
    batches: int = 0
    prefix: str = ""


def states_of(model: Any) -> States:
    """Returns the present states of a model's metrics."""
    leaves = list(_leaves(model.metrics))
    variables = [v for metric in leaves if _adds_up(metric) for v in metric.variables]
    others = [metric.name for metric in leaves if not _adds_up(metric)]
    results = {
        name: value
        for name, value in _results(model).items()
        if not any(name == other or name.endswith(f"_{other}") for other in others)
    }
    tracker = facts.loss_tracker(model)
    samples = facts.number(tracker.count) if tracker is not None else 0.0
    return States(variables, [np.asarray(v, np.float64) for v in variables], results, samples)


def over_ranks(
    model: Any, parts: Sequence[Part], *, name: str, what: str, advice: str
) -> list[dict[str, float]]:
    """Returns the results of each part over the data of all ranks; a collective.

    The metrics of the model keep their states.

    Args:
        model: the model of all states.
        parts: as many on every rank.
        name: of the collectives.
        what: for a message, if the ranks' results have different names: what the ranks do.
        advice: what to do then.

    Raises:
        RuntimeError: the results of the ranks have different names; on every rank.
    """
    mine: list[dict[str, Any]] = [
        {
            "names": [f"{part.prefix}{key}" for key in sorted(part.results)],
            "shapes": [list(value.shape) for value in part.states.values],
            "added": [key for key, value in part.results.items() if _is_from(part, key, value)],
            "weight": [part.states.samples, part.batches],
        }
        for part in parts
    ]
    everywhere = objects.allgather_json(mine, name=name)
    _refuse_different(everywhere, what, advice)
    sums = _sums(parts, [_share(everywhere, i) for i in range(len(parts))], f"{name}.sum")
    found = []
    for i, part in enumerate(parts):
        states = sums[i][: len(part.states.values)]
        together = _results_with(model, part.states.variables, states)
        means = dict(zip(sorted(part.results), sums[i][-1], strict=True))
        added = set(mine[i]["added"]).intersection(*(each[i]["added"] for each in everywhere))
        found.append({k: together[k] if k in added else float(means[k]) for k in part.results})
    return found


def _is_from(part: Part, key: str, value: float) -> bool:
    """Returns whether a result is that of the states; a test_step may have made it differently."""
    known = part.states.results
    return key in known and bool(np.isclose(value, known[key], equal_nan=True))


def _share(everywhere: list[Any], i: int) -> float:
    """Returns this rank's share in part number i."""
    weights = np.array([each[i]["weight"] for each in everywhere], np.float64)
    counted = bool(np.all((weights[:, 0] > 0) | (weights[:, 1] == 0)))
    column = weights[:, 0 if counted else 1]
    total = float(column.sum())
    return float(column[topology.rank()]) / total if total else 1 / len(everywhere)


def _sums(parts: Sequence[Part], shares: list[float], name: str) -> list[list[Any]]:
    """Returns for each part the sums of its states, and then the means of its results by name."""
    lists = []
    for part, share in zip(parts, shares, strict=True):
        results = np.array([part.results[key] for key in sorted(part.results)], np.float64)
        # A rank without samples has nothing to say, be it NaN.
        weighted = share * results if share else np.zeros_like(results)
        lists.append([*part.states.values, weighted])
    flat = np.concatenate([np.ravel(value) for values in lists for value in values])
    with tf_errors():
        _native.note_call_site()
        total = _native.core.allreduce(flat, name=name, op=reduce_ops.Sum)
    ends = np.cumsum([value.size for values in lists for value in values])
    pieces = iter(np.split(total, ends[:-1]))
    return [[next(pieces).reshape(value.shape) for value in values] for values in lists]


def _results_with(model: Any, variables: list[Any], states: list[Any]) -> dict[str, float]:
    """Returns what the metrics of a model give with other states."""
    before = [np.asarray(variable) for variable in variables]
    _assign(variables, states)
    try:
        return _results(model)
    finally:
        _assign(variables, before)


def _assign(variables: Iterable[Any], values: Iterable[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(np.asarray(value, np.asarray(variable).dtype))


def _results(model: Any) -> dict[str, float]:
    """Returns the results of the model's metrics, without the levels of nested dicts."""

    def flat(results: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        for name, value in results.items():
            if isinstance(value, Mapping):
                yield from flat(value)
            elif np.ndim(value) == 0:
                yield name, float(value)

    return dict(flat(model.get_metrics_result()))


def _leaves(metrics: Iterable[Any]) -> Iterator[Any]:
    """Yields the metrics themselves in place of what Keras keeps them in."""
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        if isinstance(inner, (list, tuple)) and inner:
            yield from _leaves(inner)
        else:
            yield metric


def _refuse_different(everywhere: list[Any], what: str, advice: str) -> None:
    named = [[name for part in each for name in part["names"]] for each in everywhere]
    shapes = [[part["shapes"] for part in each] for each in everywhere]
    if any(each != named[0] for each in named) or any(each != shapes[0] for each in shapes):
        listed = "; ".join(f"rank {r}: {', '.join(names)}" for r, names in enumerate(named))
        raise RuntimeError(f"rank {topology.rank()}: the ranks {what} ({listed}): {advice}")


def _adds_up(metric: Any) -> bool:
    """Returns whether the state of a metric over all data is the sum of those over the parts."""
    inner = [each for each in getattr(metric, "_metrics", ()) if each is not metric]
    updates = [vars(each).get("update_state") for each in type(metric).__mro__]
    own = all(_is_kerass(each) or _only_adds(each) for each in updates if each is not None)
    if not own and topology.size() > 1 and topology.rank() == 0:
        _say_mean(metric.name, type(metric).__name__)
    return own and all(_adds_up(each) for each in inner)


def _is_kerass(function: Any) -> bool:
    return function.__module__.split(".")[0] in ("keras", "tf_keras")


def _only_adds(function: Any) -> bool:
    """Returns whether an update_state only adds to states, and reads none of them."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return False
    nodes = [ast.dump(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    adds = [call for call in calls if _attribute(call) in ("assign_add", "assign_sub")]
    sums = [call for call in calls if _attribute(call) == "assign"]
    used: list[str] = []  # each state, as often as adding to it reads it
    for call in adds:
        used.append(ast.dump(call.func.value))  # type: ignore[attr-defined]
    for call in sums:
        target = ast.dump(call.func.value)  # type: ignore[attr-defined]
        value = call.args[0] if call.args else None
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
            return False
        if target not in (ast.dump(value.left), ast.dump(value.right)):
            return False
        used += [target, target]
    delegated = any(_attribute(call) == "update_state" for call in calls)
    return (bool(used) or delegated) and all(nodes.count(t) == used.count(t) for t in used)


def _attribute(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


@functools.cache
def _say_mean(name: str, kind: str) -> None:
    _log.warning(
        f"Rank 0 reports the metric {name!r} as the mean of the ranks' values, which one process "
        f"may not have: the update_state of {kind} does more than add to its states.\nLet it only "
        "call assign_add with what does not depend on the states: tfring then adds these up over "
        "the ranks."
    )
