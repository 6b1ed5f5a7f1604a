"""What the first steps of a job show: different weights are an error, equal batches a warning."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd
from tfring import DistributedGradientTape, join
from tfring.training import first_steps

WRONG = r"the ranks train different weights: element 0 of '\S*kernel\S*' is .* on rank 0 and .* "
REMEDY = r"hvd.broadcast_variables\(model.weights, 0\).*TFRING_CHECK_START=0"
SAME = "train on the same batches"


@pytest.fixture(autouse=True)
def as_in_a_new_job() -> None:
    first_steps._state.begin()
    first_steps._state.warned = False


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Expects the error; of a rank that another was ahead of it has the first line only."""
    with pytest.raises((RuntimeError, tf.errors.OpError), match=WRONG) as caught:
        yield
    if not isinstance(caught.value, tf.errors.AbortedError):
        assert re.search(REMEDY, str(caught.value), re.DOTALL)


def odd_model(odd: bool = True) -> Any:
    """A model whose weights are those of no other rank, if `odd`."""
    keras.utils.set_random_seed(hvd.rank() if odd else 7)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])


def data(own: bool = True) -> tuple[Any, Any]:
    x = np.random.default_rng(hvd.rank() if own else 7).normal(size=(16, 4)).astype(np.float32)
    return x, x.sum(axis=1, keepdims=True)


class Loop:
    """A training loop of one's own."""

    def __init__(self, model: Any, *, traced: bool, own_data: bool = True) -> None:
        self.model = model
        self.optimizer = keras.optimizers.SGD(0.01)
        self.data = tuple(map(tf.constant, data(own_data)))
        self.run = tf.function(self._step) if traced else self._step

    def _step(self) -> Any:
        x, y = self.data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x) - y))
        weights = self.model.trainable_variables
        gradients = DistributedGradientTape(tape).gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss


@pytest.mark.parametrize("traced", [False, True])
def test_different_weights_are_named_in_the_second_step(several: int, traced: bool) -> None:
    loop = Loop(odd_model(), traced=traced)
    loop.run()
    with refused():
        loop.run()


def test_weights_that_one_rank_changes_later_are_named(several: int) -> None:
    loop = Loop(odd_model(odd=False), traced=True)
    for _ in range(9):
        loop.run()
    if hvd.rank() == several - 1:
        kernel = loop.model.trainable_variables[0]
        kernel.assign(1.1 * kernel)
    with pytest.raises((RuntimeError, tf.errors.OpError), match=WRONG) as caught:
        loop.run()
    aborted = isinstance(caught.value, tf.errors.AbortedError)
    assert aborted or "must do so on all ranks" in str(caught.value)


def test_fit_without_a_broadcast_is_an_error(several: int) -> None:
    model = odd_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
    with refused():
        model.fit(*data(), batch_size=4, epochs=1, verbose=0)


def test_a_broadcast_after_the_first_step_is_right(several: int, caplog: Any) -> None:
    loop = Loop(odd_model(), traced=True)
    for step in range(6):
        loop.run()
        if step == 0:
            hvd.broadcast_variables(loop.model.weights, root_rank=0)
    hvd.assert_equal(loop.model.trainable_variables)
    assert not caplog.records


def test_weights_of_one_rank_are_left_out(several: int, caplog: Any) -> None:
    model = odd_model(odd=False)
    local = model.layers[0].kernel
    local.assign(local + hvd.rank())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    optimizer.register_local_var(local)
    model.compile(optimizer, "mse", jit_compile=False)
    model.fit(*data(), batch_size=4, epochs=2, verbose=0)
    assert not caplog.records


@pytest.mark.parametrize("relative", [1e-6, 1e-2])
def test_rounding_is_no_error(several: int, relative: float) -> None:
    model = odd_model(odd=False)
    kernel = model.layers[0].kernel
    kernel.assign(kernel * (1 + relative * hvd.rank()))
    loop = Loop(model, traced=False)
    loop.run()
    if relative < 1e-4:
        loop.run()
    else:
        with refused():
            loop.run()


def test_each_process_set_compares_its_own(several: int) -> None:
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    model = odd_model()
    mine = sets[hvd.rank()]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), process_set=mine)
    model.compile(optimizer, "mse", jit_compile=False)
    model.fit(*data(), batch_size=4, verbose=0)
    for each in sets:
        hvd.remove_process_set(each)


def test_the_setting_leaves_it_out(several: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFRING_CHECK_START", "0")
    loop = Loop(odd_model(), traced=True)
    for _ in range(3):
        loop.run()


@pytest.mark.parametrize("traced", [False, True])
def test_counts_begin_anew_after_a_join(several: int, traced: bool) -> None:
    """Rank 1 compares alone before the join. Rank 0 would compare after it, and wait for ever."""
    loop = Loop(odd_model(odd=False), traced=traced)
    for _ in range(2):
        for _ in range(1 + 2 * hvd.rank()):
            loop.run()
        hvd.broadcast_variables(loop.model.weights, root_rank=join())
    kernel = loop.model.layers[0].kernel
    kernel.assign(kernel + hvd.rank())
    loop.run()
    with refused():
        loop.run()


def test_scripts_of_horovod_get_a_warning(
    several: int, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setitem(sys.modules, "horovod", sys)
    loop = Loop(odd_model(), traced=True)
    for _ in range(6):
        loop.run()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == (hvd.rank() == 0)
    assert all(re.search(WRONG, text) for text in texts)


@pytest.mark.parametrize(("traced", "own"), [(False, False), (True, False), (True, True)])
def test_the_same_batches_are_a_warning_once(
    several: int, traced: bool, own: bool, caplog: Any
) -> None:
    with caplog.at_level(logging.WARNING, "tfring"):
        for _ in range(2):
            loop = Loop(odd_model(odd=False), traced=traced, own_data=own)
            for _ in range(6):
                loop.run()
            first_steps._state.begin()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == (hvd.rank() == 0 and not own)
    assert all(SAME in text and "hvd.shard" in text for text in texts)


def test_nothing_of_a_traced_step_is_kept(several: int) -> None:
    """TensorFlow keeps the functions of tf.numpy_function for ever. (Keras keeps its graphs.)"""
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable**2)
        [gradient] = DistributedGradientTape(tape).gradient(loss, [variable])
        variable.assign_sub(gradient)

    step()
    graph = weakref.ref(step.get_concrete_function().graph)
    del step
    gc.collect()
    assert graph() is None
