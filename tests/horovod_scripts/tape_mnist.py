"""A custom loop with a gradient tape, as Horovod's users write it."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((images, labels.astype(np.int64)))
dataset = dataset.repeat().shuffle(1000, seed=hvd.rank()).batch(32)

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(10)]
)
loss = tf.losses.SparseCategoricalCrossentropy(from_logits=True)
opt = tf.optimizers.Adam(0.003 * hvd.size())


@tf.function
def training_step(batch, targets, first_batch):
    with tf.GradientTape() as tape:
        loss_value = loss(targets, model(batch, training=True))
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)
    return loss_value


checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)
for step, (batch, targets) in enumerate(dataset.take(80 // hvd.size())):
    loss_value = training_step(batch, targets, step == 0)
    if step % 20 == 0 and hvd.local_rank() == 0:
        print(f"step {step} loss {float(loss_value):.4f}")

mean_loss = float(hvd.allreduce(loss_value, name="last_loss"))
total = sum(float(np.abs(w).sum()) for w in model.get_weights())
if hvd.rank() == 0:
    assert checkpoint.model is model
print(f"RESULT loss={mean_loss:.4f} weights={total:.6f}")
