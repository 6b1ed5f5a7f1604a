"""Checkpoints in the form of `model.save`, read back by load_model on rank 0: `horovod.keras`."""

import argparse
import os

import horovod.keras as hvd
import numpy as np
import tensorflow as tf
from tensorflow import keras

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.h5")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

# Horovod: initialize Horovod.
hvd.init()

# If set > 0, will resume training from a given checkpoint.
resume_from_epoch = 0
for try_epoch in range(args.epochs, 0, -1):
    if os.path.exists(args.checkpoint_format.format(epoch=try_epoch)):
        resume_from_epoch = try_epoch
        break

# Horovod: broadcast resume_from_epoch from rank 0 (which will have checkpoints) to other ranks.
resume_from_epoch = hvd.broadcast(resume_from_epoch, 0, name="resume_from_epoch")

# Horovod: print logs on the first worker.
verbose = 1 if hvd.rank() == 0 else 0

slope = np.linspace(-1, 1, 6)[:, None]


def flow():
    rng = np.random.default_rng(hvd.rank())
    while True:
        x = rng.normal(size=[20, 6]).astype("float32")
        yield x, (x @ slope).astype("float32")


compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
initial_lr = 0.02 * hvd.size()

# Restore from a previous checkpoint, if initial_epoch is specified. Horovod: restore on the first
# worker, which will broadcast both model and optimizer weights to other workers.
if resume_from_epoch > 0 and hvd.rank() == 0:
    path = args.checkpoint_format.format(epoch=resume_from_epoch)
    model = hvd.load_model(path, compression=compression)
else:
    model = keras.models.Sequential([keras.layers.Dense(1, input_shape=(6,))])
    opt = keras.optimizers.SGD(learning_rate=initial_lr, momentum=0.9)
    opt = hvd.DistributedOptimizer(opt, compression=compression)
    model.compile(loss=keras.losses.MeanSquaredError(), optimizer=opt)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=initial_lr, warmup_epochs=1),
]
# Horovod: save checkpoints only on the first worker.
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint(args.checkpoint_format))

history = model.fit(
    flow(),
    steps_per_epoch=6,
    callbacks=callbacks,
    epochs=args.epochs,
    verbose=verbose,
    workers=1,
    initial_epoch=resume_from_epoch,
)
steps = int(model.optimizer.iterations)
loss = history.history["loss"][-1]
error = float(np.abs(model.get_weights()[0] - slope).max())
generation = tf.keras.Model.__module__.split(".")[0]
print(f"RESULT error={error:.6f} loss={loss:.6f} steps={steps} keras={generation}")
