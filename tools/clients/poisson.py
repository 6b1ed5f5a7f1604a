"""DeepXDE solves u'' = 2 on [-1, 1], its code for Horovod unchanged: prints the trained weights."""

from __future__ import annotations

import os

import deepxde as dde
import numpy as np

dde.config.set_random_seed(5 + int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


def equation(x, y):  # type: ignore[no-untyped-def]
    return dde.grad.hessian(y, x) - 2


geometry = dde.geometry.Interval(-1, 1)
edge = dde.icbc.DirichletBC(geometry, lambda x: (x + 1) ** 2, lambda _, at_edge: at_edge)
data = dde.data.PDE(geometry, equation, edge, 16, 2, train_distribution="pseudo")
model = dde.Model(data, dde.nn.FNN([1, 20, 1], "tanh", "Glorot uniform"))
model.compile("adam", lr=0.001)
model.train(iterations=30, display_every=30, verbose=0)
weights = np.concatenate(
    [np.ravel(w) for w in model.sess.run(dde.backend.tf.trainable_variables())]
)
# The moments of Adam are the same, too, where the gradients were reduced.
print(
    f"WEIGHTS {dde.config.rank} of {dde.config.world_size} {np.abs(weights).sum():.12e}", flush=True
)
