"""evaluate: what model.evaluate says, over the data of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tfring import _native, topology
from tfring.collectives import objects
from tfring.exceptions import tf_errors
from tfring.keras2 import facts
from tfring.ops import reduce_ops


def evaluate(model: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
    """Evaluates a model on this rank's part of the data and returns the result for all parts.

    A collective. The ranks' parts may have different sizes, at least one sample each. The states of
    Keras' metrics (sums, counts, numbers of true positives) are added up over the ranks, so the
    result is that of one process with all the data, AUC and Precision included. Other results are
    means, weighted by the number of samples: those of metrics with an update_state of their own,
    and of a model's own test_step.

    Args:
        model: a compiled model, with the same weights on all ranks.
        args: as for `model.evaluate`, for this rank's part: x, y and so on.
        kwargs: the same; `verbose` is 0 unless it is given.

    Returns:
        The results by name, the same on all ranks.

    Raises:
        RuntimeError: the ranks have different metrics; on every rank.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    given = {"verbose": 0, **kwargs, "return_dict": True}
    local = {name: float(value) for name, value in model.evaluate(*args, **given).items()}
    metrics = [metric for metric in _leaves(model.metrics) if _adds_up(metric)]
    variables = [variable for metric in metrics for variable in metric.variables]
    values = [np.asarray(variable, np.float64) for variable in variables]
    others = [metric.name for metric in _leaves(model.metrics) if not _adds_up(metric)]
    from_states = _results(model)
    mine = {
        "names": sorted(local),
        "shapes": [list(value.shape) for value in values],
        # What a test_step has made in another way than from the states of metrics is left out.
        "added": [
            name
            for name, value in local.items()
            if name in from_states
            and np.isclose(value, from_states[name], equal_nan=True)
            and not any(name == other or name.endswith(f"_{other}") for other in others)
        ],
    }
    everywhere = objects.allgather_json(mine, name="tfring.evaluate")
    _refuse_different(everywhere)
    tracker = facts.loss_tracker(model)
    samples = facts.number(tracker.count) if tracker is not None else 0.0
    totals, means = _over_ranks(values, samples, [local[name] for name in sorted(local)])
    _assign(variables, totals)
    together = _results(model)
    _assign(variables, values)
    added = set(mine["added"]).intersection(*(each["added"] for each in everywhere))
    averaged = dict(zip(sorted(local), means, strict=True))
    return {name: together[name] if name in added else averaged[name] for name in local}


def _over_ranks(
    values: list[Any], samples: float, results: list[float]
) -> tuple[list[Any], list[float]]:
    """Returns the sums of the values over the ranks, and the weighted means of the results."""
    parts = [np.array([samples, 1.0]), samples * np.array(results), np.array(results), *values]
    flat = np.concatenate([np.ravel(part) for part in parts])
    with tf_errors():
        total = _native.core.allreduce(flat, name="tfring.evaluate.sum", op=reduce_ops.Sum)
    ends = np.cumsum([part.size for part in parts])
    counts, weighted, plain, *sums = np.split(total, ends[:-1])
    means = weighted / counts[0] if counts[0] else plain / counts[1]
    shaped = [part.reshape(value.shape) for part, value in zip(sums, values, strict=True)]
    return shaped, [float(mean) for mean in means]


def _assign(variables: Iterable[Any], values: Iterable[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(np.asarray(value, np.asarray(variable).dtype))


def _results(model: Any) -> dict[str, float]:
    """Returns what the states of the model's metrics give, without the levels of nested dicts."""

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
        if isinstance(inner, (list, tuple)):
            yield from _leaves(inner)
        else:
            yield metric


def _adds_up(metric: Any) -> bool:
    """Whether the state of a metric over all data is the sum of those over the parts."""
    return type(metric).update_state.__module__.split(".")[0] in ("keras", "tf_keras")


def _refuse_different(everywhere: list[dict[str, Any]]) -> None:
    first = everywhere[0]
    if any(
        (each["names"], each["shapes"]) != (first["names"], first["shapes"]) for each in everywhere
    ):
        listed = "; ".join(f"rank {r}: {', '.join(e['names'])}" for r, e in enumerate(everywhere))
        raise RuntimeError(
            f"rank {topology.rank()}: the ranks evaluate different metrics ({listed}): compile the "
            "model alike on every rank"
        )
