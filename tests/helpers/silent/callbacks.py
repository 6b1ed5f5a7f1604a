"""Programs about callbacks in fit: what they change and what they decide by."""

from __future__ import annotations

import keras

import tfring.keras as hvd

from .common import fit, net, wrapped
from .table import wrong


class OnRank0(keras.callbacks.Callback):
    """Changes the model after a batch, on rank 0 only."""

    def __init__(self, action, after):
        super().__init__()
        self.action, self.after = action, after

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.after and hvd.rank() == 0:
            self.action(self.model)


def _spoil(model):
    model.layers[0].kernel.assign(model.layers[0].kernel * 2.0)


def _fitted(*callbacks):
    model = net(1)
    model.compile(wrapped(), "mse")
    fit(model, callbacks=list(callbacks))
    return model.get_weights()


@wrong("hidden/kernel", "callback|rank 0", quick=True)
def callback_changes_weights_on_rank_0():
    return _fitted(*hvd.fit_callbacks(OnRank0(_spoil, 4)))


@wrong("(hidden|head)/kernel", "callback|rank 0|broadcast")
def callback_changes_weights_on_rank_0_without_callbacks_of_tfring():
    return _fitted(OnRank0(_spoil, 4))


def _slower(model):
    model.optimizer.learning_rate = 0.001


@wrong("learning.rate|hidden/kernel", "callback|all ranks|every rank")
def callback_sets_the_learning_rate_on_rank_0():
    return _fitted(*hvd.fit_callbacks(OnRank0(_slower, 4)))


@wrong("learning.rate|(hidden|head)/kernel", "callback|all ranks|every rank|broadcast")
def callback_sets_the_learning_rate_on_rank_0_without_callbacks_of_tfring():
    return _fitted(OnRank0(_slower, 4))


@wrong("epoch|stop", "MetricAverage|fit_callbacks|all ranks|every rank")
def each_rank_stops_early_by_its_own_loss():
    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 0 and hvd.rank() == 0

    model = net(1)
    model.compile(wrapped(), "mse")
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, epochs=3, callbacks=[first, Own()])


@wrong("learning.rate", "MetricAverage|fit_callbacks|all ranks|every rank")
def plateau_of_each_ranks_own_loss():
    class Plateau(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if hvd.rank() == 0:
                self.model.optimizer.learning_rate = 0.01

    model = net(1)
    model.compile(wrapped(), "mse")
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, epochs=2, callbacks=[first, Plateau()])
