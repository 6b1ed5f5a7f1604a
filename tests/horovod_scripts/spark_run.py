"""Horovod on Spark as its documentation writes it: a function that trains, run by horovod.spark."""

import os

from pyspark.sql import SparkSession


def train(num_epochs):
    # Everything is imported in the function, so that it can be pickled.
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf
    from sklearn.datasets import load_digits

    hvd.init()

    # Horovod: pin GPU to be used to process local rank (one GPU per process)
    gpus = tf.config.experimental.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    images, labels = load_digits(return_X_y=True)
    # Partition the data.
    images = images[hvd.rank() :: hvd.size()] / 16.0
    labels = labels[hvd.rank() :: hvd.size()]

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    opt = tf.keras.optimizers.Adam(0.004 * hvd.size())
    opt = hvd.DistributedOptimizer(opt)
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(),
        optimizer=opt,
        metrics=["accuracy"],
        experimental_run_tf_function=False,
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    history = model.fit(
        images[:896], labels[:896], batch_size=32, callbacks=callbacks, epochs=num_epochs, verbose=0
    )
    assert os.environ["APPLICATION"] == "digits"
    return hvd.rank(), history.history["accuracy"][-1]


if __name__ == "__main__":
    import horovod.spark

    spark = SparkSession.builder.appName("keras_spark_run").getOrCreate()
    results = horovod.spark.run(
        train,
        args=(8,),
        num_proc=2,
        env={**os.environ, "APPLICATION": "digits"},
        use_gloo=True,
        start_timeout=300,
        verbose=2,
    )
    for rank, accuracy in results:
        print(f"RESULT {rank} {accuracy:.4f}")
    spark.stop()
