"""Keras `fit` whose workers are lost and come back, as Horovod's elastic example does it."""

import json
import os
import sys
import time

import faults
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

FOLDER, EPOCHS, STEPS = sys.argv[1], 4, 8

# Horovod: initialize Horovod.
hvd.init()

rows = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)


def shard():
    mine = rows[hvd.rank() :: hvd.size()]
    pairs = tf.data.Dataset.from_tensor_slices((mine, mine.sum(axis=1, keepdims=True)))
    return pairs.repeat().batch(len(mine))


lr = 0.01
layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(3,))
model = tf.keras.Sequential([layer])

# Horovod: add Horovod DistributedOptimizer.
opt = tf.keras.optimizers.SGD(lr * hvd.size(), momentum=0.5)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(loss="mse", optimizer=opt, metrics=["mae"], experimental_run_tf_function=False)

# Horovod: create the variables of the optimizer, so that the state knows them.
model.fit(shard(), steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)

state = hvd.elastic.KerasState(model, batch=0, epoch=0, rates=[])


def on_state_reset():
    tf.keras.backend.set_value(state.model.optimizer.lr, lr * hvd.size())
    # New workers do one batch before they join.
    state.model.fit(shard(), steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)
    state.rates.append(lr * hvd.size())


state.register_reset_callbacks([on_state_reset])


class Diary(tf.keras.callbacks.Callback):
    """Notes learning rates, and plays the accident."""

    def on_batch_begin(self, batch, logs=None):
        if (hvd.rank(), state.epoch, state.batch) == (1, 1, 2):
            faults.power_cut(FOLDER, "worker")
        # The host is used again after a while; then there are two workers again.
        while state.epoch == EPOCHS - 1 and hvd.size() < 2:
            time.sleep(0.05)
            state.check_host_updates()

    def on_batch_end(self, batch, logs=None):
        state.rates.append(float(tf.keras.backend.get_value(self.model.optimizer.lr)))


callbacks = [
    Diary(),
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.CommitStateCallback(state),
]

# Horovod: save checkpoints only on worker 0.
if hvd.rank() == 0:
    path = os.path.join(FOLDER, "checkpoint-{epoch}.h5")
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(path))
    print("checkpoints:", path)


# Horovod: adjust the number of steps to the number of workers.
@hvd.elastic.run
def train(state):
    state.model.fit(
        shard(),
        steps_per_epoch=STEPS // hvd.size(),
        epochs=EPOCHS - state.epoch,
        callbacks=callbacks,
        verbose=0,
    )


train(state)

result = {
    "rank": hvd.rank(),
    "size": hvd.size(),
    "epoch": state.epoch,
    "rates": [round(rate, 6) for rate in state.rates],
    "iterations": int(opt.iterations),
    "weights": model.get_weights()[0].ravel().tolist(),
    "keras": tf.keras.Model.__module__.split(".")[0],
}
print("RESULT", json.dumps(result))
