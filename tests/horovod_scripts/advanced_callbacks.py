"""Warm-up, schedules, compression, generators, checkpoints on rank 0: `horovod.keras`."""

import math
import os
import sys

import horovod.keras as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import backend as K
from tensorflow.keras.layers import BatchNormalization, Dense
from tensorflow.keras.models import Sequential

# Horovod: initialize Horovod.
hvd.init()

batch_size = 30
epochs = 6

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype("float32")
x_train, x_test = images[:1500], images[1500:]
y_train = keras.utils.to_categorical(labels[:1500], 10)
y_test = keras.utils.to_categorical(labels[1500:], 10)
train_batches = len(x_train) // batch_size
test_batches = len(x_test) // batch_size


def flow(x, y):
    rng = np.random.default_rng(hvd.rank())
    while True:
        rows = rng.integers(len(x), size=batch_size)
        yield x[rows], y[rows]


model = Sequential()
model.add(Dense(48, activation="relu", input_shape=(64,)))
model.add(BatchNormalization())
model.add(Dense(10, activation="softmax"))

# Horovod: adjust learning rate based on number of GPUs.
initial_lr = 0.02 * hvd.size()
opt = keras.optimizers.SGD(learning_rate=initial_lr, momentum=0.9)

# Horovod: add Horovod Distributed Optimizer.
opt = hvd.DistributedOptimizer(opt, compression=hvd.Compression.fp16)

model.compile(
    loss=keras.losses.categorical_crossentropy,
    optimizer=opt,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)

callbacks = [
    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    # Horovod: average metrics among workers at the end of every epoch. It must come before
    # ReduceLROnPlateau and other callbacks that use metrics.
    hvd.callbacks.MetricAverageCallback(),
    # Horovod: using `lr = 1.0 * hvd.size()` from the very beginning leads to worse accuracy.
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=initial_lr, warmup_epochs=2, verbose=1),
    # Horovod: after the warmup reduce the learning rate at given epochs.
    hvd.callbacks.LearningRateScheduleCallback(
        initial_lr=initial_lr, multiplier=1.0, start_epoch=2, end_epoch=4
    ),
    hvd.callbacks.LearningRateScheduleCallback(
        initial_lr=initial_lr, multiplier=lambda epoch: 1e-1, start_epoch=4
    ),
    keras.callbacks.ReduceLROnPlateau(patience=10, verbose=1),
]

# Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting them.
if hvd.rank() == 0:
    path = os.path.join(sys.argv[1], "checkpoint-{epoch}.h5")
    callbacks.append(keras.callbacks.ModelCheckpoint(path))

# Train the model. Horovod: the training will randomly sample 1 / N batches of training data and
# 3 / N batches of validation data on every worker, where N is the number of workers.
model.fit_generator(
    flow(x_train, y_train),
    steps_per_epoch=int(math.ceil(train_batches / hvd.size())),
    callbacks=callbacks,
    epochs=epochs,
    verbose=1 if hvd.rank() == 0 else 0,
    workers=1,
    validation_data=flow(x_test, y_test),
    validation_steps=3 * test_batches // hvd.size(),
)

# Horovod: average the results over all workers.
score = hvd.allreduce(model.evaluate(x_test, y_test, verbose=0))
rate = K.get_value(model.optimizer.lr)
if hvd.rank() == 0:
    again = keras.models.load_model(path.format(epoch=epochs))
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
total = sum(float(np.abs(w).sum()) for w in model.trainable_variables)
generation = tf.keras.Model.__module__.split(".")[0]
print(
    f"RESULT accuracy={score[1]:.4f} rate={rate / initial_lr:.4f} weights={total:.4f} "
    f"keras={generation}"
)
