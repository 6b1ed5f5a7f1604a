"""`optimizer._compute_gradients` of a wrapped optimizer: reduced gradients, to be clipped.

Written as Horovod's own tests of it are; one job of two ranks for each Keras.
"""

from __future__ import annotations

from pathlib import Path

from keras_generations import GENERATIONS, run_on_two_ranks

SCRIPT = """
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras
    import horovod.keras
    import horovod.tensorflow.keras as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    two = keras.Model.__module__.startswith("tf_keras")
    SGD = keras.optimizers.legacy.SGD

    def variable(value):
        return tf.Variable(value) if two else keras.Variable(value)

    # Rank r has the gradient 2 * (r + 1), so the mean of two is 3. Clipped to 1, and in all steps.
    def train(function, **applied):
        v = variable([10.0])
        opt = hvd.DistributedOptimizer(SGD(1.0))
        def step():
            pairs = opt._compute_gradients(lambda: v * 2.0 * (rank + 1.0), [v])
            opt.apply_gradients([(tf.clip_by_norm(g, 1.0), v) for g, v in pairs], **applied)
            return pairs[0][0]
        step = function(step)
        for count in (1, 2, 3):
            assert float(step()[0]) == 1.0 + size, "not reduced"
            assert float(tf.convert_to_tensor(v)[0]) == 10.0 - count, "reduced or clipped wrongly"
        return v, opt

    for function in (lambda step: step, tf.function):
        train(function)
        v, opt = train(function, experimental_aggregate_gradients=False)

    # Gradients are reduced once, by whichever of the two methods: with op=Sum it shows.
    for early in (False, True):
        v = variable([0.0])
        opt = horovod.keras.PartialDistributedOptimizer(SGD(1.0), op=hvd.Sum)
        for step in (1, 2):
            pairs = [(tf.constant([rank + 1.0]), v)]
            if early:
                pairs = opt._compute_gradients(lambda: v * (rank + 1.0), [v])
            opt.apply_gradients(pairs)
            assert float(tf.convert_to_tensor(v)[0]) == -3.0 * step, (early, v)

    # Local variables keep their own gradient, divided by the number of ranks.
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 3]) * (rank + 1.0)))
    plain = tape.gradient(loss, model.trainable_variables)
    opt = horovod.keras.PartialDistributedOptimizer(SGD(), local_layers=model.layers[:1])
    pairs = opt._compute_gradients(loss, model.trainable_variables, tape=tape)
    local = [v.ref() for v in model.layers[0].trainable_variables]
    for (gradient, v), own in zip(pairs, plain):
        mean = own if v.ref() in local else horovod.keras.allreduce(own)
        expected = own / size if v.ref() in local else mean
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)

    # minimize and fit reduce once, whatever _compute_gradients does.
    if two:
        v = tf.Variable([0.0])
        opt = horovod.keras.PartialDistributedOptimizer(SGD(1.0), op=hvd.Sum)
        opt.minimize(lambda: v * (rank + 1.0), [v])
        assert float(v[0]) == -3.0, v
        v = tf.Variable([0.0])
        opt = horovod.keras.PartialDistributedOptimizer(SGD(1.0), op=hvd.Sum)
        opt = keras.mixed_precision.LossScaleOptimizer(opt, dynamic=False, initial_scale=8.0)
        opt.minimize(lambda: v * (rank + 1.0), [v])
        assert float(v[0]) == -3.0, v

    # Accumulated over passes: what _compute_gradients gives is reduced when it is applied.
    v = variable([0.0])
    opt = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    for count, value in ((1, 0.0), (0, -3.0), (1, -3.0), (0, -6.0), (1, -6.0)):
        opt.apply_gradients(opt._compute_gradients(lambda: v * (rank + 1.0), [v]))
        assert opt._agg_helper.counter.numpy() == count
        assert abs(float(tf.convert_to_tensor(v)[0]) - value) < 1e-6, (count, v)
    print("DONE", 2 if two else 3)
"""


@GENERATIONS
def test_reduced_gradients_can_be_clipped(generation: str, legacy: str, tmp_path: Path) -> None:
    run_on_two_ranks(SCRIPT, generation, legacy, tmp_path)
