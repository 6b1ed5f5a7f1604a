"""TensorFlow Probability fits a posterior; its solver makes its own tape and gets the optimizer."""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras

import tfring.keras2 as hvd

hvd.init()
tfd = tfp.distributions
rng = np.random.default_rng(23)
x = rng.normal(size=(64, 3))
y = x @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=64)
mine_x, mine_y = x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]
prior = tfd.MultivariateNormalDiag(scale_diag=tf.ones(3, tf.float64))


def log_density(weights):
    noise = tfd.Normal(tf.linalg.matvec(mine_x, weights), tf.constant(1.0, tf.float64))
    # The average over the ranks is that of all rows.
    return prior.log_prob(weights) + hvd.size() * tf.reduce_sum(noise.log_prob(mine_y), axis=-1)


posterior = tfd.MultivariateNormalDiag(
    loc=tf.Variable(np.zeros(3)),
    scale_diag=tfp.util.TransformedVariable(np.ones(3), tfp.bijectors.Softplus()),
)
optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.Adam(0.05))
found = tfp.vi.fit_surrogate_posterior(
    lambda weights: tf.map_fn(log_density, weights),
    posterior,
    optimizer=optimizer,
    num_steps=40,
    sample_size=4,
    seed=(1, 2),  # the same on every rank
)
trained = posterior.trainable_variables
losses = [hvd.allreduce(found[i]) for i in (0, -1)]
