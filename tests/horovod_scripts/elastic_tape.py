"""A loop with a gradient tape that goes on when a worker is lost. It commits every other batch."""

import json
import sys

import faults
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

FOLDER = sys.argv[1]
EPOCHS, BATCHES, BATCHES_PER_COMMIT = 2, 4, 2

# Horovod: initialize Horovod.
hvd.init()

gpus = tf.config.experimental.list_physical_devices("GPU")
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

rows = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)


def next_batch():
    mine = rows[hvd.rank() :: hvd.size()]
    return tf.constant(mine), tf.constant(mine.sum(axis=1, keepdims=True))


lr = 0.02
start = tf.keras.initializers.Constant(hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, kernel_initializer=start)])
optimizer = tf.optimizers.SGD(lr * hvd.size(), momentum=0.5)
loss = tf.losses.MeanSquaredError()


@tf.function
def train_one_batch(data, target, allreduce=True):
    with tf.GradientTape() as tape:
        error = loss(target, model(data, training=True))
    if allreduce:
        tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(error, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return error


# Horovod: create the variables of model and optimizer, so that the state knows them.
train_one_batch(tf.zeros((2, 3)), tf.zeros((2, 1)), allreduce=False)


# Horovod: what changes during training is in the state; this function begins where that is.
@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, EPOCHS):
        for state.batch in range(state.batch, BATCHES):
            if (hvd.rank(), state.epoch, state.batch) == (1, 1, 2):
                faults.power_cut(FOLDER, "worker")
            train_one_batch(*next_batch())
            state.rates.append(float(optimizer.lr))
            if state.batch % BATCHES_PER_COMMIT == 0:
                state.commit()
        state.batch = 0


def on_state_reset():
    optimizer.lr.assign(lr * hvd.size())


state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0, epoch=0, rates=[])
state.register_reset_callbacks([on_state_reset])
train(state)

result = {
    "rank": hvd.rank(),
    "size": hvd.size(),
    "rates": [round(rate, 6) for rate in state.rates],
    "iterations": int(optimizer.iterations),
    "weights": model.get_weights()[0].ravel().tolist(),
    "keras": tf.keras.Model.__module__.split(".")[0],
}
print("RESULT", json.dumps(result))
