"""Keras `fit`, as Horovod's documentation shows it for elastic training; a worker fails."""

import json
import os
import sys

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from tensorflow import keras

FOLDER, EPOCHS, STEPS = sys.argv[1], 3, 12

# Horovod: initialize Horovod.
hvd.init()

rows = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((rows, rows.sum(axis=1, keepdims=True)))
dataset = dataset.repeat().batch(12)

lr = 0.01
model = keras.Sequential([keras.layers.Dense(1, use_bias=False, input_shape=(3,))])

# Horovod: scale the learning rate by the number of workers, add the distributed optimizer.
opt = hvd.DistributedOptimizer(keras.optimizers.Adadelta(lr * hvd.size()))
model.compile(loss="mse", optimizer=opt, metrics=["mae"])


def on_state_reset():
    keras.backend.set_value(model.optimizer.lr, lr * hvd.size())


# Horovod: the state; it is synchronized when training begins, and each time that workers change.
state = hvd.elastic.KerasState(model, batch=0, epoch=0, sizes=[])
state.register_reset_callbacks([on_state_reset])


class Accident(keras.callbacks.Callback):
    """Notes sizes; worker 2 fails in the second epoch."""

    def on_batch_begin(self, batch, logs=None):
        if (hvd.rank(), state.epoch, state.batch) == (2, 1, 1):
            raise RuntimeError(f"worker on {os.environ['HOROVOD_HOSTNAME']} fails")

    def on_batch_end(self, batch, logs=None):
        state.sizes.append(hvd.size())


callbacks = [
    hvd.elastic.CommitStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.UpdateEpochStateCallback(state),
    Accident(),
]

if hvd.rank() == 0:
    path = os.path.join(FOLDER, "checkpoint-{epoch}.h5")
    callbacks.append(keras.callbacks.ModelCheckpoint(path))


@hvd.elastic.run
def train(state):
    model.fit(
        dataset,
        steps_per_epoch=STEPS // hvd.size(),
        callbacks=callbacks,
        epochs=EPOCHS - state.epoch,
        verbose=1 if hvd.rank() == 0 else 0,
    )


train(state)

result = {
    "rank": hvd.rank(),
    "size": hvd.size(),
    "host": os.environ["HOROVOD_HOSTNAME"],
    "epoch": state.epoch,
    "sizes": state.sizes,
    "iterations": int(opt.iterations),
    "rate": float(keras.backend.get_value(opt.lr)),
    "weights": model.get_weights()[0].ravel().tolist(),
    "keras": keras.Model.__module__.split(".")[0],
}
print("RESULT", json.dumps(result))
