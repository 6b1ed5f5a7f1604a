"""GPflow: a sparse variational model with natural gradients for q and Adam for the rest."""

import gpflow
import numpy as np
import tensorflow as tf

import tfring as hvd

hvd.init()
rng = np.random.default_rng(24)
x = 10 * rng.random((200, 1))
y = np.sin(x) + 0.1 * rng.normal(size=x.shape)
model = gpflow.models.SVGP(
    gpflow.kernels.SquaredExponential(),
    gpflow.likelihoods.Gaussian(),
    x[:12].copy(),
    num_data=len(x),
)
for variable in (model.q_mu, model.q_sqrt):
    gpflow.set_trainable(variable, False)


class MeanNaturalGradient(gpflow.optimizers.NaturalGradient):
    """It makes its own tape; here its gradients are averaged over the ranks."""

    def _natgrad_apply_gradients(self, for_mu, for_sqrt, *rest, **options):
        both = [tf.convert_to_tensor(one) for one in (for_mu, for_sqrt)]
        for_mu, for_sqrt = hvd.grouped_allreduce(both, name="natural")
        return super()._natgrad_apply_gradients(for_mu, for_sqrt, *rest, **options)


natural = MeanNaturalGradient(gamma=0.5)
adam = tf.keras.optimizers.Adam(0.01)
adam.build(model.trainable_variables)
hvd.broadcast_variables(list(model.variables), root_rank=0)


@tf.function
def step(x, y):
    natural.minimize(lambda: model.training_loss((x, y)), [(model.q_mu, model.q_sqrt)])
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = model.training_loss((x, y))
    gradients = tape.gradient(loss, model.trainable_variables)
    adam.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


losses = []
for _ in range(3):
    for batch in hvd.shard((x, y), batch_size=40 // hvd.size()):
        loss = step(*batch)
    losses.append(hvd.allreduce(loss))
trained = list(model.variables)
