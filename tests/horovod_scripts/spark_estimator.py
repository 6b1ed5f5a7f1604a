"""Horovod's example of a Keras estimator on Spark, on digits of scikit-learn in LIBSVM format."""

import argparse
import sys

import horovod.spark.keras as hvd
import numpy as np
import pyspark.sql.types as T
import tensorflow as tf
from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.store import Store
from pyspark import SparkConf
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import OneHotEncoder
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from sklearn.datasets import dump_svmlight_file, load_digits
from tensorflow import keras
from tensorflow.keras.layers import Conv2D, Dense, Dropout, Flatten
from tensorflow.keras.models import Sequential

parser = argparse.ArgumentParser(
    description="Keras Spark Example", formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--num-proc", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--work-dir", required=True)

if __name__ == "__main__":
    args = parser.parse_args()

    # Initialize SparkSession
    conf = SparkConf().setAppName("keras_spark_digits").set("spark.sql.shuffle.partitions", "4")
    spark = SparkSession.builder.config(conf=conf).getOrCreate()

    # Setup our store for intermediate data
    store = Store.create(args.work_dir)

    images, labels = load_digits(return_X_y=True)
    libsvm_path = f"{args.work_dir}/digits.libsvm"
    dump_svmlight_file(images / 16.0, labels, libsvm_path, zero_based=False)
    df = spark.read.format("libsvm").option("numFeatures", "64").load(f"file://{libsvm_path}")

    # One-hot encode labels into SparseVectors
    encoder = OneHotEncoder(inputCols=["label"], outputCols=["label_vec"], dropLast=False)
    df = encoder.fit(df).transform(df)
    train_df, test_df = df.randomSplit([0.9, 0.1], seed=1)

    # Define the Keras model without any Horovod-specific parameters
    model = Sequential()
    model.add(Conv2D(16, kernel_size=(3, 3), activation="relu", input_shape=(8, 8, 1)))
    model.add(Flatten())
    model.add(Dropout(0.1))
    model.add(Dense(10, activation="softmax"))

    optimizer = tf.keras.optimizers.Adam(0.01)
    loss = keras.losses.categorical_crossentropy

    # Train a Horovod Spark Estimator on the DataFrame
    backend = SparkBackend(
        num_proc=args.num_proc,
        stdout=sys.stdout,
        stderr=sys.stderr,
        prefix_output_with_timestamp=True,
    )
    keras_estimator = hvd.KerasEstimator(
        backend=backend,
        store=store,
        model=model,
        optimizer=optimizer,
        loss=loss,
        metrics=["accuracy"],
        feature_cols=["features"],
        label_cols=["label_vec"],
        validation=0.1,
        batch_size=args.batch_size,
        epochs=args.epochs,
        random_seed=1,
        inmemory_cache_all=True,
        verbose=2,
        callbacks=[keras.callbacks.TensorBoard(profile_batch=5)],
    )

    keras_model = keras_estimator.fit(train_df).setOutputCols(["label_prob"])

    # Evaluate the model on the held-out test DataFrame
    pred_df = keras_model.transform(test_df)
    argmax = udf(lambda v: float(np.argmax(v)), returnType=T.DoubleType())
    pred_df = pred_df.withColumn("label_pred", argmax(pred_df.label_prob))
    evaluator = MulticlassClassificationEvaluator(
        predictionCol="label_pred", labelCol="label", metricName="accuracy"
    )
    print("Test accuracy:", evaluator.evaluate(pred_df))

    spark.stop()
