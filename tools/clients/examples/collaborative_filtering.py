"""Predicts ratings from vectors of users and films. The loss is a mean over the samples."""

import keras
import numpy as np

import tfring.keras as hvd

hvd.init()
hvd.set_random_seed(8)
USERS, FILMS = 30, 20


class Recommender(keras.Model):
    def __init__(self):
        super().__init__()
        self.users, self.films = (keras.layers.Embedding(n, 4) for n in (USERS, FILMS))
        self.user_bias, self.film_bias = (keras.layers.Embedding(n, 1) for n in (USERS, FILMS))

    def call(self, pairs):
        user, film = pairs[:, 0], pairs[:, 1]
        likes = keras.ops.sum(self.users(user) * self.films(film), axis=1, keepdims=True)
        return keras.ops.sigmoid(likes + self.user_bias(user) + self.film_bias(film))


rng = np.random.default_rng(7)
pairs = np.stack([rng.integers(0, USERS, 320), rng.integers(0, FILMS, 320)], axis=1)
rating = ((pairs.sum(axis=1, keepdims=True) % 5) / 4).astype("float32")
model = Recommender()
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.Adam(0.01, epsilon=1e-3)), "binary_crossentropy"
)
data = hvd.shard((pairs, rating), batch_size=64 // hvd.size())
history = model.fit(data, epochs=3, verbose=0, callbacks=hvd.fit_callbacks())
trained = model.weights
losses = history.history["loss"]
