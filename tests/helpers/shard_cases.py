"""Optimizers and ways to train with shard_states=True, which several test files share."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_cases import PER_RANK, build_model, fit, loss, my_data

import tfring.keras as hvd

optimizers = keras.optimizers
# They treat each element of a variable by itself.
ELEMENTWISE: dict[str, Any] = {
    "SGD": lambda **how: optimizers.SGD(0.1, momentum=0.9, nesterov=True, **how),
    "plain SGD": lambda **how: optimizers.SGD(0.1, **how),
    "RMSprop": lambda **how: optimizers.RMSprop(0.01, momentum=0.5, centered=True, **how),
    "Adam": lambda **how: optimizers.Adam(0.02, amsgrad=True, **how),
    "AdamW": lambda **how: optimizers.AdamW(0.02, weight_decay=0.1, **how),
    "Adadelta": lambda **how: optimizers.Adadelta(1.0, **how),
    "Adagrad": lambda **how: optimizers.Adagrad(0.1, **how),
    "Adamax": lambda **how: optimizers.Adamax(0.02, **how),
    "Nadam": lambda **how: optimizers.Nadam(0.02, **how),
    "Ftrl": lambda **how: optimizers.Ftrl(0.1, l2_regularization_strength=0.01, **how),
    "Lion": lambda **how: optimizers.Lion(0.01, **how),
}
if hasattr(optimizers, "ScheduleFreeAdamW"):  # not in an older Keras
    ELEMENTWISE["ScheduleFreeAdamW"] = lambda **how: optimizers.ScheduleFreeAdamW(0.02, **how)
# They need whole variables.
BY_VARIABLE: dict[str, Any] = {
    "Adafactor": lambda **how: optimizers.Adafactor(0.1, **how),
    "Lamb": lambda **how: optimizers.Lamb(0.02, weight_decay=0.1, **how),
    "Muon": lambda **how: optimizers.Muon(0.02, **how),
}
KINDS = {**ELEMENTWISE, **BY_VARIABLE}
WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "mixed_float16": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "clipping": {"global_clipnorm": 0.1},
    "clipnorm": {"clipnorm": 0.05},
    "clipvalue": {"clipvalue": 0.01},
    "ema": {"use_ema": True, "ema_overwrite_frequency": 2},
}
STEPS = 4


def trained(
    optimizer: Any, shard: bool, *callbacks: Any, process_set: Any = None, **how: Any
) -> Any:
    """A model after some steps of `fit`, with states that are sharded or not."""
    model = build_model(1)
    options = {"shard_states": shard, "process_set": process_set}
    model.compile(hvd.DistributedOptimizer(optimizer, **options), loss())
    fit(model, *callbacks, **{"steps": STEPS, **how})
    return model


def trained_by_tape(optimizer: Any, shard: bool, process_set: Any = None) -> Any:
    """The same in a loop of the program; with the policy mixed_float16 it scales the loss."""
    model = build_model(1)
    if keras.config.dtype_policy().name == "mixed_float16":
        optimizer = optimizers.LossScaleOptimizer(optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer, shard_states=shard, process_set=process_set)
    x, y = my_data(STEPS)
    for first in range(0, STEPS * PER_RANK, PER_RANK):
        rows = slice(first, first + PER_RANK)
        with tf.GradientTape() as tape:
            value = optimizer.scale_loss(loss()(y[rows], model(x[rows], training=True)))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    optimizer.finalize_variable_values(model.trainable_variables)
    model.optimizer = optimizer
    return model


LOOPS: dict[str, Any] = {"fit": trained, "tape": trained_by_tape}


def states(model: Any) -> int:
    """The number of elements of the optimizer's states on this rank."""
    return sum(int(np.prod(v.shape)) for v in model.optimizer.variables)
