"""A loop whose hosts come and go between epochs, with what the discovery script prints."""

import json
import os
import sys
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

FOLDER, EPOCHS, BATCHES = sys.argv[1], 3, 3

# Horovod: initialize Horovod.
hvd.init()

host = os.environ["HOROVOD_HOSTNAME"]
rows = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)

lr = 0.02
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(3,))]
)
optimizer = tf.optimizers.legacy.SGD(lr * hvd.size(), momentum=0.5)


@tf.function
def train_one_batch(data, allreduce=True):
    with tf.GradientTape() as tape:
        target = tf.reduce_sum(data, axis=1, keepdims=True)
        error = tf.reduce_mean((model(data, training=True) - target) ** 2)
    if allreduce:
        tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(error, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


# Horovod: create the variables of the optimizer, so that the state knows them.
train_one_batch(tf.zeros((2, 3)), allreduce=False)


def wait_for_change(state):
    """Says which epoch is over, and waits until Horovod has heard that other hosts are there."""
    with open(os.path.join(FOLDER, f"epoch.{state.epoch}"), "w"):
        pass
    while state._host_messages.empty():
        time.sleep(0.05)


@hvd.elastic.run
def train(state):
    state.meetings += 1
    while state.epoch < EPOCHS:
        while state.batch < BATCHES:
            train_one_batch(tf.constant(rows[hvd.rank() :: hvd.size()]))
            state.batch += 1
            state.rates.append(float(optimizer.lr))
            state.check_host_updates()
        if hvd.rank() == 0:
            state.hosts.append(host)
            if state.epoch < EPOCHS - 1:
                wait_for_change(state)
        state.hosts = hvd.broadcast_object(state.hosts, name="hosts")
        state.epoch += 1
        state.batch = 0
        state.commit()


def on_state_reset():
    optimizer.lr.assign(lr * hvd.size())


state = hvd.elastic.TensorFlowKerasState(
    model, optimizer, epoch=0, batch=0, meetings=0, hosts=[], rates=[]
)
state.register_reset_callbacks([on_state_reset])
train(state)

result = {
    "rank": hvd.rank(),
    "size": hvd.size(),
    "host": host,
    "hosts": state.hosts,
    "meetings": state.meetings,
    "rates": [round(rate, 6) for rate in state.rates],
    "iterations": int(optimizer.iterations),
    "weights": model.get_weights()[0].ravel().tolist(),
    "keras": tf.keras.Model.__module__.split(".")[0],
}
print("RESULT", json.dumps(result))
