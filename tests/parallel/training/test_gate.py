"""Behind the gate of elastic jobs, a step whose last reduction fails on one rank changes nothing.

The fault is in the backward pass between two buckets: the gradients of the second one never come on
the last rank. Before it fails, that rank gives an update of the first bucket's variables, which is
reduced by then, time to happen; without the gate it does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
import tfring.keras as hvd_keras
from tfring.runtime import topology

# What an update without the gate has at most; with it, this time passes once per test.
_TIME_TO_UPDATE = 1.0


@pytest.fixture(autouse=True)
def elastic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process takes itself for a worker of an elastic job."""
    monkeypatch.setattr(topology, "_slot", topology.local_rank())
    yield


class Net:
    """Two layers whose gradients are two buckets; a fault can be planted between them."""

    def __init__(self, patience: float = _TIME_TO_UPDATE) -> None:
        self._patience = patience
        self.first = tf.Variable(tf.ones([3, 4]))
        self.last = tf.Variable(tf.ones([4, 2]))
        self.fails = False
        self.variables = [self.last, self.first]  # in the order in which their gradients come
        self.groups = [[self.last], [self.first]]

    def loss(self, x: Any) -> Any:
        hidden = self._fault(tf.matmul(x, self.first))
        return tf.reduce_mean(tf.matmul(hidden, self.last) ** 2)

    def _fault(self, x: Any) -> Any:
        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def plant(value: Any) -> Any:
            return tf.identity(value), self._fail

        return plant(x)

    def _fail(self, gradient: Any) -> Any:
        def wait_and_fail(value: Any) -> Any:
            if not self.fails:
                return value
            before, until = self.last.numpy(), time.monotonic() + self._patience
            while np.array_equal(self.last.numpy(), before) and time.monotonic() < until:
                time.sleep(0.001)
            raise ValueError("planted")

        # Not stateful: TensorFlow would wait for it before it runs any collective.
        value = tf.numpy_function(wait_and_fail, [gradient], tf.float32, stateful=False)
        return tf.ensure_shape(value, [None, 4])


def by_optimizer(net: Net, optimizer: Any, **options: Any) -> Any:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    hvd_keras.DistributedOptimizer(inner, groups=net.groups, **options)

    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = net.loss(x)
            loss = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(loss, net.variables), net.variables)

    return step


def plain(net: Net) -> tuple[Any, Any]:
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    return optimizer, by_optimizer(net, optimizer)


def loss_scale(net: Net) -> tuple[Any, Any]:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1))
    return optimizer, by_optimizer(net, optimizer)


def accumulating(net: Net) -> tuple[Any, Any]:
    """Two passes per update, by tfring: the optimizer is built before it is wrapped."""
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(net.variables)
    return optimizer, by_optimizer(net, optimizer, backward_passes_per_step=2)


def by_tape(net: Net) -> tuple[Any, Any]:
    """Without an optimizer: those of Keras 3 happen to wait for all gradients."""

    def step(x: Any) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape(), groups=net.groups) as tape:
            loss = net.loss(x)
        for variable, gradient in zip(
            net.variables, tape.gradient(loss, net.variables), strict=True
        ):
            variable.assign_sub(0.1 * gradient)

    return None, step


def values(net: Net, optimizer: Any) -> list[Any]:
    """What a failed step must not change."""
    state = [] if optimizer is None else optimizer.variables
    return [v.numpy() for v in (*net.variables, *state)]


@pytest.mark.parametrize("eager", [False, True], ids=["function", "eager"])
@pytest.mark.parametrize("by", [plain, loss_scale, accumulating, by_tape])
def test_a_step_is_done_whole_or_not_at_all(by: Any, eager: bool) -> None:
    net = Net()
    optimizer, one_step = by(net)
    one_step = one_step if eager else tf.function(one_step)

    def step() -> None:
        with hvd.step():
            one_step(tf.fill([2, 3], 1.0 + hvd.rank()))

    passes = 2 if by is accumulating else 1
    for _ in range(2 * passes - 1):  # the second update is to fail, in the last of its passes
        step()
    if passes == 1:
        step()
    before = values(net, optimizer)
    net.fails = hvd.rank() == hvd.size() - 1
    with pytest.raises((tf.errors.OpError, ValueError), match="planted"):
        step()
    for value, now in zip(before, values(net, optimizer), strict=True):
        np.testing.assert_array_equal(value, now)
    net.fails = False
    for _ in range(passes):
        step()
    hvd.assert_equal(net.variables)
    assert not np.array_equal(before[0], net.last.numpy())
