"""Keras `fit`, as Horovod's documentation shows it."""

import os
import sys

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

# Horovod: initialize Horovod.
hvd.init()

# Horovod: pin GPU to be used to process local rank (one GPU per process)
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = load_digits(return_X_y=True)
dataset = tf.data.Dataset.from_tensor_slices(
    (tf.cast(images[..., tf.newaxis] / 16.0, tf.float32), tf.cast(labels, tf.int64))
)
dataset = dataset.repeat().shuffle(1000, seed=hvd.rank()).batch(32)

mnist_model = tf.keras.Sequential(
    [
        tf.keras.layers.Reshape([8, 8, 1]),
        tf.keras.layers.Conv2D(8, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)

# Horovod: adjust learning rate based on number of GPUs.
scaled_lr = 0.003 * hvd.size()
opt = tf.keras.optimizers.legacy.Adam(scaled_lr)

# Horovod: add Horovod DistributedOptimizer.
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)

# Horovod: Specify `experimental_run_tf_function=False` to ensure TensorFlow
# uses hvd.DistributedOptimizer() to compute gradients.
mnist_model.compile(
    loss=tf.losses.SparseCategoricalCrossentropy(),
    optimizer=opt,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, verbose=1),
]

# Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting them.
if hvd.rank() == 0:
    path = os.path.join(sys.argv[1], "checkpoint-{epoch}.h5")
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(path))

verbose = 1 if hvd.rank() == 0 else 0
history = mnist_model.fit(
    dataset, steps_per_epoch=60 // hvd.size(), callbacks=callbacks, epochs=4, verbose=verbose
)
total = sum(float(np.abs(w).sum()) for w in mnist_model.get_weights())
saved = len(os.listdir(sys.argv[1])) if hvd.rank() == 0 else 4
generation = tf.keras.Model.__module__.split(".")[0]
print(
    f"RESULT accuracy={history.history['accuracy'][-1]:.4f} weights={total:.4f} saved={saved} "
    f"keras={generation}"
)
