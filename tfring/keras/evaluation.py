"""evaluate: the result of model.evaluate over the data of all ranks."""

from __future__ import annotations

import warnings
from typing import Any

from tfring.collectives import objects
from tfring.keras import metric_states, preprocessing
from tfring.keras.callbacks import state
from tfring.keras.callbacks.guard import ROUNDING
from tfring.runtime import topology
from tfring.training.comparison.assert_equal import first_difference
from tfring.training.comparison.hashes import fingerprint


def evaluate(model: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
    """Evaluates a model on this rank's part of the data and returns the result for all parts.

    A collective. The ranks' parts may have different sizes, at least one sample each. The states of
    Keras' metrics (sums, counts, numbers of true positives) are added up over the ranks. So the
    result is that of one process with all the data, AUC and Precision included. The same holds for
    metrics of your own whose update_state only adds to their states (assign_add). Other results are
    means, weighted by the number of samples: those of other metrics, and of a model's own
    test_step. `fit(validation_data=...)` with `hvd.fit_callbacks()` reports the same.

    `loss` is Keras' mean over batches, weighted by rows. It is that of one process if the loss
    divides by rows. If it divides by what a mask leaves or by sample weights, it is a mean of the
    ranks' means of a batch. With the reduction "sum" it is 1/size() of the sum.

    Warns on rank 0 if the ranks' weights, or the states of preprocessing layers, differ by more
    than rounding.

    Args:
        model: a compiled model, with the same weights on all ranks.
        args: as for `model.evaluate`, for this rank's part: x, y and so on.
        kwargs: likewise; `verbose` is 0 unless it is given.

    Returns:
        The results by name, the same on all ranks.

    Raises:
        RuntimeError: the ranks have different metrics; on every rank.
        tf.errors.FailedPreconditionError: tfring is not initialized.
    """
    given = {"verbose": 0, **kwargs, "return_dict": True}
    local = {name: float(value) for name, value in model.evaluate(*args, **given).items()}
    [together] = metric_states.over_ranks(
        model,
        [metric_states.Part(local, metric_states.states_of(model))],
        name="tfring.evaluate",
        what="evaluate different metrics",
        advice="compile the model alike on every rank",
    )
    _compare_weights(model)
    return together


def _compare_weights(model: Any) -> None:
    weights = state.shared_weights(model, state.local_variables(model, ()))
    learnt = preprocessing.digests(model)
    everywhere = objects.allgather_json([fingerprint(weights), learnt], name="tfring.evaluate")
    odd = [path for path in learnt if any(each.get(path) != learnt[path] for _, each in everywhere)]
    if odd and topology.rank() == 0:
        warnings.warn(
            "tfring: hvd.evaluate averages results of different models, since ranks have adapted "
            f"{preprocessing.names_of(model, odd)} to different data. hvd.adapt(layer, data) "
            "adapts a layer to the data of all ranks",
            stacklevel=3,
        )
    hashes = [each for each, _ in everywhere]
    if len(set(hashes)) == 1:
        return
    found = first_difference(weights)
    if topology.rank() == 0 and found.largest > ROUNDING:
        more = f" ({found.others} more weights differ)" if found.others else ""
        warnings.warn(
            "tfring: hvd.evaluate averages results of different models, since the ranks' weights "
            f"differ: {found.text}{more}. Broadcast them first: "
            "hvd.broadcast_variables(model.weights, 0). The statistics of BatchNormalization are "
            "each rank's own; hvd.callbacks.BatchNormAverageCallback averages them",
            stacklevel=3,
        )
