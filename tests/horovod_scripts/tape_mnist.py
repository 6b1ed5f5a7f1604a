"""A custom loop with a gradient tape, as Horovod's documentation shows it."""

import os
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()

images, labels = load_digits(return_X_y=True)
dataset = tf.data.Dataset.from_tensor_slices(
    (tf.cast(images / 16.0, tf.float32), tf.cast(labels, tf.int64))
)
dataset = dataset.repeat().shuffle(1000, seed=hvd.rank()).batch(32)

mnist_model = tf.keras.Sequential(
    [tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(10, activation="softmax")]
)
loss = tf.losses.SparseCategoricalCrossentropy()

# Horovod: adjust learning rate based on number of GPUs.
opt = tf.optimizers.legacy.Adam(0.003 * hvd.size())

checkpoint_dir = os.path.join(sys.argv[1], "checkpoints")
checkpoint = tf.train.Checkpoint(model=mnist_model, optimizer=opt)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = mnist_model(images, training=True)
        loss_value = loss(labels, probs)

    # Horovod: add Horovod Distributed GradientTape.
    tape = hvd.DistributedGradientTape(tape)

    grads = tape.gradient(loss_value, mnist_model.trainable_variables)
    opt.apply_gradients(zip(grads, mnist_model.trainable_variables))

    # Horovod: broadcast initial variable states from rank 0 to all other processes. Broadcast
    # should be done after the first gradient step to ensure optimizer initialization.
    if first_batch:
        hvd.broadcast_variables(mnist_model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)

    return loss_value


# Horovod: adjust number of steps based on number of GPUs.
for batch, (images, labels) in enumerate(dataset.take(80 // hvd.size())):
    loss_value = training_step(images, labels, batch == 0)

    if batch % 10 == 0 and hvd.local_rank() == 0:
        print("Step #%d\tLoss: %.6f" % (batch, loss_value))

# Horovod: save checkpoints only on worker 0.
if hvd.rank() == 0:
    checkpoint.save(os.path.join(checkpoint_dir, "ckpt"))
    assert tf.train.latest_checkpoint(checkpoint_dir)

mean_loss = float(hvd.allreduce(loss_value, name="last_loss"))
total = sum(float(np.abs(w).sum()) for w in mnist_model.get_weights())
generation = tf.keras.Model.__module__.split(".")[0]
print(f"RESULT loss={mean_loss:.4f} weights={total:.4f} keras={generation}")
