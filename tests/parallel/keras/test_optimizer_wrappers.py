"""Optimizers that hold another one: Lookahead, averages, schedules of a user's own."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import PER_RANK, build_model, fit, loss, my_data, whole_data
from tiers import cases

import tfring.keras as hvd

pytestmark = pytest.mark.usefixtures("eager_functions")

STEPS = 5


class Lookahead(keras.optimizers.Optimizer):  # type: ignore[misc]
    """The optimizer that it holds takes the steps; every second one is taken back by half."""

    def __init__(self, base: Any) -> None:
        super().__init__(learning_rate=0.1, name="lookahead")
        self.base = base

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.base.build(variables)
        self.slow = [self.add_variable_from_reference(v, name="slow") for v in variables]
        for slow, variable in zip(self.slow, variables, strict=True):
            slow.assign(variable)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        if not self.built:
            self.build(trainable_variables)
        self.step(grads, trainable_variables)
        self._iterations.assign_add(1)
        back = tf.equal(self._iterations.value % 2, 0)
        for slow, variable in zip(self.slow, trainable_variables, strict=True):
            middle = slow + 0.5 * (variable - slow)
            slow.assign(tf.where(back, middle, slow))
            variable.assign(tf.where(back, middle, variable))

    def step(self, grads: Any, variables: Any) -> None:
        self.base.apply(grads, variables)


class ByItself(Lookahead):
    """Takes only the learning rate of the optimizer that it holds."""

    def step(self, grads: Any, variables: Any) -> None:
        for gradient, variable in zip(grads, variables, strict=True):
            variable.assign_sub(gradient * self.base.learning_rate)


def sgd() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def trained(optimizer: Any, data: Any, batch: int, *callbacks: Any) -> Any:
    model = build_model(1)
    model.compile(optimizer, loss())
    fit(model, *callbacks, data=data, batch_size=batch)
    return model.get_weights()


@pytest.mark.any_ranks
@pytest.mark.parametrize("wrapped", cases(["inside", "outside", "two deep"], quick=["inside"]))
def test_either_optimizer_may_be_wrapped(wrapped: str) -> None:
    """All gradients are reduced, and once: the weights are those of one process."""
    optimizer: Any
    if wrapped == "inside":
        optimizer = Lookahead(hvd.DistributedOptimizer(sgd()))
    elif wrapped == "outside":
        optimizer = hvd.DistributedOptimizer(Lookahead(sgd()))
    else:
        optimizer = Lookahead(Lookahead(hvd.DistributedOptimizer(sgd())))
    alone = Lookahead(Lookahead(sgd())) if wrapped == "two deep" else Lookahead(sgd())
    got = trained(optimizer, my_data(STEPS), PER_RANK, *hvd.fit_callbacks())
    expected = trained(alone, whole_data(STEPS), PER_RANK * hvd.size())
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.any_ranks
def test_ranks_with_unequal_batches_count_by_their_rows() -> None:
    """The wrapped optimizer inside gets the weights of fit, too."""
    x, y = whole_data(2)
    sizes = [1 + rank for rank in range(hvd.size())]
    begin = sum(sizes[: hvd.rank()])
    mine = slice(begin, begin + sizes[hvd.rank()])
    total = slice(0, sum(sizes))
    optimizer = Lookahead(hvd.DistributedOptimizer(sgd()))
    got = trained(optimizer, (x[mine], y[mine]), sizes[-1], *hvd.fit_callbacks())
    expected = trained(Lookahead(sgd()), (x[total], y[total]), sum(sizes))
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_both_cannot_be_wrapped() -> None:
    inner = Lookahead(hvd.DistributedOptimizer(sgd()))
    with pytest.raises(ValueError, match=r"holds 'sgd.*', which is wrapped.*\n.*outermost"):
        hvd.DistributedOptimizer(inner)


def test_a_wrapper_that_applies_gradients_by_itself_is_found() -> None:
    if hvd.size() == 1:
        pytest.skip("one rank has nothing to reduce")
    optimizer = ByItself(hvd.DistributedOptimizer(sgd()))
    with pytest.raises(RuntimeError, match=r"no gradient was reduced.*the outermost"):
        trained(optimizer, my_data(STEPS), PER_RANK, *hvd.fit_callbacks())
