"""Warm-up, schedules, resumed epochs, compression, checkpoints on rank 0: `horovod.keras`."""

import os
import tempfile

import horovod.keras as hvd
import keras
import numpy as np
from sklearn.datasets import load_digits

hvd.init()
EPOCHS = 6

folder = tempfile.mkdtemp() if hvd.rank() == 0 else None
resume_from_epoch = hvd.broadcast(0, 0, name="resume_from_epoch")

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype("float32")
train_x, test_x = images[:1500], images[1500:]
train_y, test_y = labels[:1500], labels[1500:]

model = keras.Sequential(
    [
        keras.layers.Dense(48, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
initial_lr = 0.02 * hvd.size()
opt = hvd.DistributedOptimizer(
    keras.optimizers.SGD(learning_rate=initial_lr, momentum=0.9), compression=hvd.Compression.fp16
)
model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=initial_lr, warmup_epochs=2, verbose=1),
    hvd.callbacks.LearningRateScheduleCallback(
        initial_lr=initial_lr, multiplier=1.0, start_epoch=2, end_epoch=4
    ),
    hvd.callbacks.LearningRateScheduleCallback(
        initial_lr=initial_lr, multiplier=1e-1, start_epoch=4
    ),
]
if hvd.rank() == 0:
    path = os.path.join(folder, "checkpoint-{epoch}.keras")
    callbacks.append(keras.callbacks.ModelCheckpoint(path))

shard = slice(hvd.rank(), None, hvd.size())
rows = len(train_x) // hvd.size()
model.fit(
    train_x[shard][:rows],
    train_y[shard][:rows],
    batch_size=30,
    callbacks=callbacks,
    initial_epoch=int(resume_from_epoch),
    epochs=EPOCHS,
    verbose=0,
    validation_data=(test_x, test_y),
)
score = hvd.allreduce(model.evaluate(test_x, test_y, verbose=0))
rate = float(np.asarray(model.optimizer.learning_rate))
if hvd.rank() == 0:
    again = keras.models.load_model(os.path.join(folder, f"checkpoint-{EPOCHS}.keras"))
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
total = sum(float(np.abs(w).sum()) for w in model.trainable_variables)
print(f"RESULT accuracy={score[1]:.4f} rate={rate / initial_lr:.4f} weights={total:.6f}")
