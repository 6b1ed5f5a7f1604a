"""evaluate: what model.evaluate says, over the data of all ranks."""

from __future__ import annotations

from typing import Any

from tfring.keras import metric_states


def evaluate(model: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
    """Evaluates a model on this rank's part of the data and returns the result for all parts.

    A collective. The ranks' parts may have different sizes, at least one sample each. The states of
    Keras' metrics (sums, counts, numbers of true positives) are added up over the ranks, so the
    result is that of one process with all the data, AUC and Precision included. So are those of
    metrics of your own whose update_state only adds to their states (assign_add). Other results are
    means, weighted by the number of samples: those of other metrics, and of a model's own
    test_step. `fit(validation_data=...)` with `hvd.fit_callbacks()` reports the same.

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
    [together] = metric_states.over_ranks(
        model,
        [metric_states.Part(local, metric_states.states_of(model))],
        name="tfring.evaluate",
        what="evaluate different metrics",
        advice="compile the model alike on every rank",
    )
    return together
