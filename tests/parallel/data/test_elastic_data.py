"""Elastic data in a job: training is that of one process, whatever the number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import keras_cases as cases
import numpy as np
import pytest
import tensorflow as tf
from tiers import slow

import tfring.keras as hvd
from tfring.data.cursor import Cursor

BATCH, SEED = 8, 5
# The last batch of an epoch has one sample: with several ranks, most get none of it.
SAMPLES = 3 * BATCH + 1


def samples() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(SAMPLES, cases.FEATURES)).astype(np.float32)
    return x, rng.integers(0, cases.CLASSES, SAMPLES)


def optimizer() -> Any:
    return keras.optimizers.SGD(0.2, momentum=0.9)


def reference(epochs: int) -> Any:
    """The weights that one process with plain Keras gets from the same batches: rank 0 does it."""
    if hvd.rank() == 0:
        x, y = samples()
        model = cases.build_model(seed=3)
        model.compile(optimizer(), cases.loss(), jit_compile=False)
        for epoch in range(epochs):
            order = Cursor(SAMPLES, SEED, epoch=epoch).order()
            model.fit(x[order], y[order], batch_size=BATCH, shuffle=False, verbose=0)
    return hvd.broadcast_object(model.get_weights() if hvd.rank() == 0 else None)


def elastic(**more: Any) -> Any:
    x, y = samples()
    return hvd.data.ElasticDataset(lambda i: (x[i], y[i]), x, BATCH, seed=SEED, **more)


def fit(model: Any, data: Any, epochs: int, *callbacks: Any, initial_epoch: int = 0) -> Any:
    return model.fit(
        data,
        epochs=epochs,
        initial_epoch=initial_epoch,
        shuffle=False,
        verbose=0,
        callbacks=[*hvd.fit_callbacks(), hvd.callbacks.CursorCallback(data), *callbacks],
    )


@pytest.mark.any_ranks
@pytest.mark.parametrize("workers", [slow(1), 3])
def test_fit_is_that_of_one_process(workers: int) -> None:
    model = cases.compiled(optimizer(), seed=3 + hvd.rank(), jit_compile=False)
    data = elastic(workers=workers)
    history = fit(model, data, 2)
    cases.assert_same_weights(model, reference(2))
    cases.assert_same_on_all_ranks(model)
    assert len(history.history["loss"]) == 2
    assert (data.epoch, data.cursor.consumed) == (1, SAMPLES)


def test_training_goes_on_within_an_epoch(tmp_path: Path) -> None:
    """A job stops after five of eight steps; another one, with new objects, does the rest."""
    model = cases.compiled(optimizer(), seed=3, jit_compile=False)
    data = elastic()

    def stop(batch: int, logs: Any) -> None:
        model.stop_training = data.epoch == 1

    fit(model, data, 2, keras.callbacks.LambdaCallback(on_train_batch_end=stop))
    state = data.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, BATCH)
    path = tmp_path / "model.keras"
    model.save(path)

    resumed = hvd.load_model(str(path))
    goes_on = elastic()
    goes_on.load_state_dict(state)
    fit(resumed, goes_on, 3, initial_epoch=goes_on.epoch)
    assert int(resumed.optimizer.iterations) == 3 * 4
    cases.assert_same_weights(resumed, reference(3))


def test_a_loop_of_ones_own_with_index_dataset() -> None:
    x, y = (tf.constant(values) for values in samples())
    cursor = hvd.data.DataCursor(SAMPLES, BATCH, seed=SEED)
    batches = hvd.data.index_dataset(lambda i: (tf.gather(x, i), tf.gather(y, i)), cursor)
    model, loss, sgd = cases.build_model(seed=3), cases.loss(), optimizer()
    sgd.build(model.trainable_variables)

    @tf.function(reduce_retracing=True)
    def train(inputs: Any, targets: Any, weights: Any) -> None:
        with tf.GradientTape() as tape:
            error = loss(targets, model(inputs, training=True), weights)
        tape = hvd.DistributedGradientTape(tape, weight_by=tf.shape(inputs)[0])
        gradients = tape.gradient(error, model.trainable_variables)
        sgd.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    state = cursor.state_dict()
    for _ in range(3):  # the second time after one step that was not committed
        for step, batch in enumerate(batches):
            if step == 2 and cursor.epoch == 0 and cursor.consumed == 2 * BATCH:
                state = cursor.state_dict()
                cursor.load_state_dict(state)
                break
            train(*batch)
            cursor.commit()
    cases.assert_same_weights(model, reference(2))


@pytest.mark.any_ranks
def test_every_sample_once_when_the_batch_grows_with_the_job() -> None:
    x, _ = samples()
    data = hvd.data.ElasticDataset(
        lambda i: (i, i), x, hvd.data.Policy(3, per_rank=True), seed=SEED
    )
    for epoch in range(2):
        mine = [int(i) for batch in data for i, w in zip(batch[0], batch[2], strict=True) if w > 0]
        everywhere = hvd.allgather_object(mine)
        assert sorted(i for rank in everywhere for i in rank) == list(range(SAMPLES)), epoch
    assert data.rate_factor == hvd.size()


@pytest.mark.any_ranks
def test_sync_goes_to_the_rank_that_has_come_farthest() -> None:
    ahead = hvd.size() - 1
    data = elastic()
    iter_over = iter(data)
    for _ in range(3 if hvd.rank() == ahead else 2):
        next(iter_over)
        data.commit()
    data.cursor.applied = 2.0 + hvd.rank()
    data.sync()
    assert (data.epoch, data.cursor.consumed) == (0, 3 * BATCH)
    assert data.cursor.applied == 2.0 + ahead
    if hvd.rank() == 0 and hvd.size() > 1:
        data.load_state_dict({**data.state_dict(), "epoch": 1, "consumed": 0})
    data.sync()
    assert (data.epoch, data.cursor.consumed) == ((1, 0) if hvd.size() > 1 else (0, 3 * BATCH))


def test_sync_refuses_other_data(several: int) -> None:
    cursor = hvd.data.DataCursor(20 + hvd.rank(), 4)
    with pytest.raises(ValueError, match=r"differ in samples \(rank 0: 20, rank 1: 21"):
        cursor.sync()
