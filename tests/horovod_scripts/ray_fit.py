"""Keras `fit` on Ray, as Horovod's documentation shows it."""

import argparse
import os

import horovod.tensorflow.keras as hvd
import ray
import tensorflow as tf
from horovod.ray import RayExecutor
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(
    description="Tensorflow Ray example",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
parser.add_argument("--address", type=str, help="Ray cluster address")


def train(num_epochs):
    # Horovod: initialize Horovod.
    print({k: v for k, v in os.environ.items() if "HOROVOD" in k})
    hvd.init()

    # Horovod: pin GPU to be used to process local rank (one GPU per process)
    gpus = tf.config.experimental.list_physical_devices("GPU")
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    images, labels = load_digits(return_X_y=True)
    dataset = tf.data.Dataset.from_tensor_slices(
        (tf.cast(images / 16.0, tf.float32), tf.cast(labels, tf.int64))
    )
    dataset = dataset.repeat().shuffle(1000, seed=hvd.rank()).batch(32)

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )

    # Horovod: adjust learning rate based on number of GPUs.
    scaled_lr = 0.002 * hvd.size()
    opt = hvd.DistributedOptimizer(tf.optimizers.Adam(scaled_lr))

    # Horovod: Specify `experimental_run_tf_function=False` to ensure TensorFlow
    # uses hvd.DistributedOptimizer() to compute gradients.
    model.compile(
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
    # Horovod: adjust number of steps based on number of GPUs.
    history = model.fit(
        dataset,
        steps_per_epoch=80 // hvd.size(),
        callbacks=callbacks,
        epochs=num_epochs,
        verbose=0,
    )
    return hvd.rank(), history.history["accuracy"][-1]


if __name__ == "__main__":
    args = parser.parse_args()
    ray.init(address=args.address)
    settings = RayExecutor.create_settings(timeout_s=120)
    executor = RayExecutor(settings, num_hosts=2, num_slots=1, use_gpu=False, cpus_per_slot=1)
    executor.start()
    results = executor.run(train, kwargs={"num_epochs": 4})
    executor.shutdown()
    for rank, accuracy in results:
        print(f"RESULT {rank} {accuracy:.4f}")
