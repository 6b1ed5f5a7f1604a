"""Images per second on random data, as Horovod's documentation measures it."""

import argparse
import timeit

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--num-warmup-batches", type=int, default=2)
parser.add_argument("--num-batches-per-iter", type=int, default=2)
parser.add_argument("--num-iters", type=int, default=3)
args = parser.parse_args()

hvd.init()
model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(16, 3, strides=2, input_shape=(32, 32, 3)),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.ReLU(),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
opt = tf.optimizers.SGD(0.01)
data = tf.random.uniform([args.batch_size, 32, 32, 3])
target = tf.random.uniform([args.batch_size, 1], minval=0, maxval=9, dtype=tf.int64)


@tf.function
def benchmark_step(first_batch):
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    with tf.GradientTape() as tape:
        probs = model(data, training=True)
        loss = tf.reduce_mean(tf.losses.sparse_categorical_crossentropy(target, probs))
    tape = hvd.DistributedGradientTape(tape, compression=compression)
    gradients = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(gradients, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)


def log(text):
    if hvd.rank() == 0:
        print(text)


device = "/cpu:0"
log(f"Batch size: {args.batch_size}, {device}, {hvd.size()} workers")
with tf.device(device):
    benchmark_step(first_batch=True)
    timeit.timeit(lambda: benchmark_step(first_batch=False), number=args.num_warmup_batches)
    rates = []
    for _ in range(args.num_iters):
        seconds = timeit.timeit(
            lambda: benchmark_step(first_batch=False), number=args.num_batches_per_iter
        )
        rates.append(args.batch_size * args.num_batches_per_iter / seconds)
log(f"Img/sec per worker: {np.mean(rates):.1f} +- {1.96 * np.std(rates):.1f}")
total = sum(float(np.abs(w).sum()) for w in model.trainable_variables)
generation = tf.keras.Model.__module__.split(".")[0]
print(f"RESULT iterations={len(rates)} weights={total:.4f} keras={generation}")
