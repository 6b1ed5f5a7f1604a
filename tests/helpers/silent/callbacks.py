"""Programs about callbacks in fit: what they change and what they decide by."""

from __future__ import annotations

import keras
import numpy as np

import tfring.keras as hvd

from .common import X, Y, fit, net, part, wrapped
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


@wrong(
    "(hidden|head)/kernel",
    "callback|rank 0|broadcast",
    silent="a callback of the user's ends training after the comparison of weights",
)
def best_weights_restored_by_each_ranks_own_loss():
    class Best(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            shift = 0.1 * hvd.rank()
            self.model.set_weights([w + shift for w in self.model.get_weights()])

    return _fitted(*hvd.fit_callbacks(Best()))


def _labels(values):
    return (values > 0).astype("float32")


@wrong()
def auc_and_precision_that_fit_reports():
    model = net(1, activation="sigmoid")
    metrics = [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]
    model.compile(wrapped(), "binary_crossentropy", metrics=metrics)
    bounds = np.linspace(0, 50, hvd.size() + 1).astype(int) + 7 * (np.arange(hvd.size() + 1) % 2)
    bounds[-1] = 50
    mine = slice(bounds[hvd.rank()], bounds[hvd.rank() + 1]) if hvd.size() > 1 else slice(0, 50)
    validation = (X[mine], _labels(Y)[mine])
    history = fit(model, y=part(_labels(Y)), validation_data=validation).history
    return [np.array(history[name]) for name in sorted(history)]


@wrong()
def early_stopping_by_auc():
    model = net(1, activation="sigmoid")
    model.compile(wrapped(1.0), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    stop = keras.callbacks.EarlyStopping("val_auc", patience=1, mode="max")
    validation = (part(X), part(_labels(X[:, :1] * X[:, 1:2])))
    callbacks = hvd.fit_callbacks(stop)
    fit(model, y=part(_labels(Y)), epochs=8, validation_data=validation, callbacks=callbacks)
    return model.get_weights()
