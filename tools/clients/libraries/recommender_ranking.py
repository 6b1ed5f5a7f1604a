"""TensorFlow Recommenders, which needs Keras 2: a ranking model of users and films."""

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
import tf_keras

import tfring.keras2 as hvd

hvd.init()
hvd.set_random_seed(26)


class Ranking(tfrs.Model):
    def __init__(self):
        super().__init__()
        self.users, self.films = tf_keras.layers.Embedding(30, 4), tf_keras.layers.Embedding(20, 4)
        self.rating = tf_keras.Sequential(
            [tf_keras.layers.Dense(8, activation="relu"), tf_keras.layers.Dense(1)]
        )
        self.task = tfrs.tasks.Ranking(loss=tf_keras.losses.MeanSquaredError())

    def call(self, features):
        both = [self.users(features["user"]), self.films(features["film"])]
        return self.rating(tf.concat(both, axis=1))

    def compute_loss(self, features, training=False):
        return self.task(labels=features["rating"], predictions=self(features))


rng = np.random.default_rng(26)
data = {"user": rng.integers(0, 30, 256), "film": rng.integers(0, 20, 256)}
data["rating"] = ((data["user"] + data["film"]) % 5).astype("float32")[:, None]
model = Ranking()
model.compile(optimizer=hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.05)))
shard = hvd.shard(data, batch_size=32 // hvd.size())
history = model.fit(shard, epochs=3, verbose=0, callbacks=hvd.fit_callbacks())
trained = model.weights
losses = history.history["loss"]
