"""Keras `fit`, as Horovod's users write it."""

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()

gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
dataset = tf.data.Dataset.from_tensor_slices((images, labels.astype(np.int64)))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(1000, seed=hvd.rank()).batch(32)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(8, 3, activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)

scaled_lr = 0.003 * hvd.size()
opt = hvd.DistributedOptimizer(
    tf.keras.optimizers.Adam(scaled_lr),
    backward_passes_per_step=1,
    average_aggregated_gradients=True,
)
model.compile(
    loss=tf.keras.losses.SparseCategoricalCrossentropy(),
    optimizer=opt,
    metrics=["accuracy"],
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, verbose=0),
]
history = model.fit(
    dataset,
    steps_per_epoch=60 // hvd.size(),
    callbacks=callbacks,
    epochs=4,
    verbose=1 if hvd.rank() == 0 else 0,
)
total = sum(float(np.abs(w).sum()) for w in model.get_weights())
print(f"RESULT accuracy={history.history['accuracy'][-1]:.4f} weights={total:.6f}")
