"""Keras' fit and evaluate where a distribution is set: what a program for tfring does by hand.

Keras' trainer for TensorFlow does not ask for the distribution; only its datasets do.
"""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfring.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from tfring.keras.callbacks.metrics import MetricAverageCallback
from tfring.keras.distribution import backend
from tfring.keras.evaluation import evaluate
from tfring.keras.hook import find_hook
from tfring.keras.model_optimizers import optimizers_of
from tfring.keras.optimizer import DistributedOptimizer
from tfring.runtime import topology

_inside = threading.local()  # Keras' fit calls evaluate, and our evaluate calls Keras'


def distributed_fit(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `fit` with wrapped optimizers and the callbacks that all ranks need."""
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if backend.data_parallel() is None:
            _warn_of_ranks_alone(self)
            return original(self, *args, **kwargs)
        bound = parameters.bind(self, *args, **kwargs)
        bound.arguments["callbacks"] = with_ours(bound.arguments.get("callbacks"))
        wrap_optimizers(self)
        with _entered():
            return original(*bound.args, **bound.kwargs)

    return fit


def distributed_evaluate(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `evaluate` over the data of all ranks, but not for the validation within `fit`."""
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def evaluate_all(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "fit_or_evaluate", False) or backend.data_parallel() is None:
            return original(self, *args, **kwargs)
        given = dict(parameters.bind(self, *args, **kwargs).arguments)
        del given["self"]
        given |= given.pop("kwargs", {})  # which Keras refuses, or not, itself
        as_dict = given.pop("return_dict", False)
        with _entered():
            results = evaluate(self, **{"verbose": "auto", **given})
        return results if as_dict else self._flatten_metrics_in_order(results)

    return evaluate_all


def distributed_train_on_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `train_on_batch`, which is refused where a distribution is set."""

    @functools.wraps(original)
    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if backend.data_parallel() is not None:
            raise NotImplementedError(
                "model.train_on_batch with keras.distribution: tfring trains in model.fit, which "
                "gives all ranks the same weights first. For a loop of your own call "
                "keras.distribution.set_distribution(None), and use tfring.DistributedOptimizer "
                "and tfring.broadcast_variables"
            )
        return original(self, *args, **kwargs)

    return train_on_batch


def counted_parts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns TFDatasetAdapter's constructor, where a part that it cuts knows its size if certain.

    A dataset that was cut does not know its number of batches. Keras then counts one iteration of
    the optimizer too many in each epoch, which changes learning rates and Adam's first steps.
    """

    @functools.wraps(original)
    def __init__(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        original(self, dataset, *args, **kwargs)
        if keras.distribution.distribution() is not None:
            self._dataset = _counted(self.get_tf_dataset(), dataset)

    return __init__


def _counted(part: Any, dataset: Any) -> Any:
    count = int(dataset.cardinality())
    if part is dataset or (count < 0 and count != tf.data.INFINITE_CARDINALITY):
        return part
    if not all(spec.shape[0] for spec in tf.nest.flatten(dataset.element_spec)):
        return part  # the last batch may be smaller, and not every rank get a piece of it
    return part.apply(tf.data.experimental.assert_cardinality(count))


def wrap_optimizers(model: Any) -> None:
    """Makes the optimizers of a model reduce gradients, but for those that do already.

    What was traced before is made anew: the callbacks drop the train function.
    """
    for optimizer in optimizers_of(model).values():
        if find_hook(optimizer) is None:
            DistributedOptimizer(optimizer, resumed=True)


def with_ours(callbacks: Any) -> list[Any]:
    """Returns the callbacks with those that the ranks need in front, where they are missing."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        raise TypeError(
            "model.fit(callbacks=CallbackList) with keras.distribution: tfring adds callbacks of "
            "its own in front, so give fit a list of callbacks"
        )
    given = list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    given = [callback for callback in given if callback is not None]
    ours: list[tuple[type, Callable[[], Any]]] = [
        (BroadcastGlobalVariablesCallback, lambda: BroadcastGlobalVariablesCallback(0)),
        (MetricAverageCallback, lambda: MetricAverageCallback()),
    ]
    return [*(make() for kind, make in ours if not _any(given, kind)), *given]


def _any(values: Iterable[Any], kind: type) -> bool:
    return any(isinstance(value, kind) for value in values)


def _warn_of_ranks_alone(model: Any) -> None:
    optimizer = getattr(model, "optimizer", None)
    if not topology.is_initialized() or topology.size() == 1 or optimizer is None:
        return
    if find_hook(optimizer) is None:
        warnings.warn(
            f"rank {topology.rank()}: tfring.keras.distribution is enabled and no distribution is "
            f"set, so each of the {topology.size()} ranks trains a model of its own: call "
            "keras.distribution.set_distribution(keras.distribution.DataParallel()) before fit, "
            "also after keras.utils.clear_session()",
            stacklevel=3,
        )


@contextmanager
def _entered() -> Iterator[None]:
    before = getattr(_inside, "fit_or_evaluate", False)
    _inside.fit_or_evaluate = True
    try:
        yield
    finally:
        _inside.fit_or_evaluate = before
