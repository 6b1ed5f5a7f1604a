"""Keras 2 (tf_keras): Horovod's elastic callbacks, where training goes on within an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tfring
import tfring.keras as hvd

tfk = pytest.importorskip("tf_keras")

# They hold for any number of ranks; one number is enough, and saves time.
pytestmark = pytest.mark.skipif(tfring.size() != 2, reason="run with two ranks")

STEPS, PER_RANK, EPOCHS = 4, 3, 9


class Fault(tfk.callbacks.Callback):  # type: ignore[misc]
    """Fails once: after a batch of the second epoch, or at its end. Ends training after the third.

    The number of the batch is that within the epoch; none stands for the end of the epoch.
    """

    def __init__(self, state: Any, batch: int | None) -> None:
        super().__init__()
        self.state, self.batch, self.planted = state, batch, False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.fail(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.fail(None)
        if self.state.epoch == 2:
            self.model.stop_training = True

    def fail(self, batch: int | None) -> None:
        if self.state.epoch == 1 and batch == self.batch and not self.planted:
            self.planted = True
            raise hvd.elastic.HorovodInternalError("planted")


@pytest.mark.usefixtures("eager_functions")
@pytest.mark.parametrize(("batches_per_commit", "batch"), [(1, 0), (3, 2), (3, None)])
def test_each_batch_of_an_epoch_counts_once(batches_per_commit: int, batch: int | None) -> None:
    tfk.utils.set_random_seed(5)
    model = tfk.Sequential([tfk.Input((6,)), tfk.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(tfk.optimizers.Adam(0.01)), "mse")
    x = np.random.default_rng(hvd.rank()).normal(size=(STEPS * PER_RANK, 6))
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    fault = Fault(state, batch)

    @hvd.elastic.run
    def train(state: Any) -> None:
        model.fit(
            x,
            x[:, :2],
            batch_size=PER_RANK,
            verbose=0,
            epochs=EPOCHS,
            initial_epoch=state.epoch,
            callbacks=[
                fault,
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.CommitStateCallback(state, batches_per_commit),
            ],
        )

    train(state)
    assert fault.planted
    assert (state.epoch, state.batch) == (3, 0)
    assert int(model.optimizer.iterations) == 3 * STEPS
