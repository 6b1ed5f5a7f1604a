"""What programs do with gradients that a wrapped optimizer reduced before it applies any.

They throw them away, change them, mix them with others, apply some of them. In eager mode and in a
tf.function, on two ranks with each Keras.
"""

from __future__ import annotations

from pathlib import Path

import pytest
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
    modes = (lambda step: step, tf.function)

    def variable():
        return (tf.Variable if two else keras.Variable)([10.0])

    def wrapped(op=hvd.Average, **options):
        return horovod.keras.PartialDistributedOptimizer(SGD(1.0), op=op, **options)

    def close(variable, expected):
        value = float(tf.convert_to_tensor(variable)[0])
        assert abs(value - expected) < 1e-5, (value, expected)

    def plain():  # a gradient whose mean over the ranks is 1.5 and whose sum is 3
        return tf.convert_to_tensor([rank + 1.0])

    def early(opt, *variables, factor=1.0):
        def loss():
            return sum(v * (rank + 1.0) * factor for v in variables)
        return opt._compute_gradients(loss, list(variables))

    def refused(step, *words):
        try:
            step()
        except ValueError as error:
            assert all(word in str(error) for word in words), error
        else:
            raise AssertionError("no error")

    def thrown_away(opt, v):
        early(opt, v)
        opt.apply_gradients([(plain(), v)])

    def sharpness(opt, v):  # the weights are moved, and moved back
        ((g, _),) = early(opt, v)
        v.assign(v + 0.1 * g)
        other = plain()
        v.assign(v - 0.1 * g)
        opt.apply_gradients([(other, v)])

    def added(opt, v):
        ((g, _),) = early(opt, v)
        opt.apply_gradients([(g + plain(), v)])

    def divided(opt, v):
        ((g, _),) = early(opt, v, factor=2.0)
        opt.apply_gradients([(plain() / tf.norm(g), v)])

    def clipped(opt, v):
        ((g, _),) = early(opt, v)
        opt.apply_gradients([(tf.clip_by_norm(g, 1.0), v)])

    def summed(opt, v):
        opt.apply_gradients([(sum(early(opt, v)[0][0] for _ in range(3)), v)])

    def vouched(opt, v):  # Keras 3 does not know this argument
        ((g, _),) = early(opt, v)
        opt.apply_gradients([(g + plain(), v)], experimental_aggregate_gradients=False)

    CASES = [(thrown_away, 8.5), (sharpness, 8.5), (added, 7.0), (divided, 9.5), (clipped, 9.0),
             (summed, 5.5), (vouched, 7.0)]
    for step, expected in CASES:
        for mode in modes:
            v, opt = variable(), wrapped()
            run = mode(lambda: step(opt, v))
            run()
            close(v, expected)
            run()  # as often as it is called
            close(v, 2 * expected - 10.0)

    # With op=Sum another reduction gives other values: an error says what to do.
    for step, _ in CASES:
        for mode in modes:
            v, opt = variable(), wrapped(hvd.Sum)
            refused(mode(lambda: step(opt, v)), "op=Sum", "DistributedGradientTape", "unchanged")
            close(v, 10.0)

    # So do the program's own functions, and the share of local layers.
    v, opt = variable(), wrapped()
    opt.register_local_var(v)
    refused(lambda: clipped(opt, v), "local", "unchanged")
    v, opt = variable(), wrapped(scale_local_gradients=False)
    opt.register_local_var(v)
    clipped(opt, v)
    close(v, 9.0)
    v, opt = variable(), wrapped()
    opt.register_local_var(v)
    opt.apply_gradients(early(opt, v))
    close(v, 10.0 - (rank + 1.0) / size)

    # What _compute_gradients returned is applied as it is: in parts, later, twice.
    for mode in modes:
        for op, mean in ((hvd.Sum, 3.0), (hvd.Average, 1.5)):
            v, w, opt = variable(), variable(), wrapped(op)
            two or opt.build([v, w])
            def step():
                pairs = early(opt, v, w)
                opt.apply_gradients(pairs[:1])
                opt.apply_gradients(pairs[1:])
            mode(step)()
            close(v, 10.0 - mean), close(w, 10.0 - mean)
            v, w, opt = variable(), variable(), wrapped(op)
            two or opt.build([v, w])
            def step():
                pairs = early(opt, v), early(opt, w)
                opt.apply_gradients(pairs[0])
                opt.apply_gradients(pairs[1])
            mode(step)()
            close(v, 10.0 - mean), close(w, 10.0 - mean)
            v, opt = variable(), wrapped(op)
            def step():
                pairs = early(opt, v)
                opt.apply_gradients(pairs)
                opt.apply_gradients(pairs)
            mode(step)()
            close(v, 10.0 - 2 * mean)

            # One reduced gradient says nothing about the others.
            v, w, opt = variable(), variable(), wrapped(op)
            two or opt.build([v, w])
            def step():
                opt.apply_gradients([*early(opt, v), (plain(), w)])
            mode(step)()
            close(v, 10.0 - mean), close(w, 10.0 - mean)

    # A reduction that failed has reduced nothing.
    v, opt = variable(), wrapped(hvd.Sum)
    w = (tf.Variable if two else keras.Variable)([0.0] * (1 + rank))
    try:
        opt._compute_gradients(lambda: tf.reduce_sum(v * 1.0) + tf.reduce_sum(w * 1.0), [v, w])
    except tf.errors.FailedPreconditionError:
        pass
    else:
        raise AssertionError("no error")
    opt.apply_gradients([(plain(), v)])
    close(v, 7.0)

    # fit, with a callback that looks at gradients.
    def fit(look):
        opt = hvd.DistributedOptimizer(SGD(0.1))
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
        model.build((None, 1))
        model.compile(opt, "mse", run_eagerly=True)
        x, y = np.ones((8, 1), "float32"), np.full((8, 1), 3.0 * rank, "float32")
        class Norms(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if look:
                    loss = lambda: tf.reduce_mean((model(x) - y) ** 2)
                    opt._compute_gradients(loss, model.trainable_variables)
        begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[begin, Norms()])
        return model.get_weights()[0]
    np.testing.assert_array_equal(fit(False), fit(True))

    # A second reduction in another place names the variable and this way.
    v, first, second = variable(), wrapped(), wrapped()
    pairs = early(first, v)
    name = v.name if two else v.path
    refused(lambda: second.apply_gradients(pairs), name, "_compute_gradients", "in one place")

    # A tape that the program gives need not watch by itself.
    v, opt = variable(), wrapped()
    tape = tf.GradientTape(watch_accessed_variables=False)
    ((g, _),) = opt._compute_gradients(lambda: v * (rank + 1.0), [v], tape=tape)
    assert float(g[0]) == 1.5, g

    if two:
        v, inner = variable(), wrapped(hvd.Sum)
        opt = keras.mixed_precision.LossScaleOptimizer(inner, dynamic=False, initial_scale=8.0)
        for count in (1, 2):
            opt.minimize(lambda: v * (rank + 1.0), [v])
            close(v, 10.0 - 3.0 * count)
        v, opt = variable(), wrapped()
        early(opt, v)
        opt.minimize(lambda: v * (rank + 1.0), [v])
        close(v, 8.5)
        for mode in modes:
            v, opt = variable(), wrapped()
            def step():
                opt._aggregate_gradients([(plain(), v)])
                opt.apply_gradients([(plain(), v)], experimental_aggregate_gradients=False)
            mode(step)()
            close(v, 8.5)
            v, opt = variable(), wrapped(hvd.Sum)
            refused(mode(step), "op=Sum", "unchanged")
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            v = tf.compat.v1.get_variable("v", initializer=[10.0])
            opt = wrapped()
            (g,) = opt.get_gradients(v * (rank + 1.0), [v])
            (other,) = tf.gradients(v * (rank + 1.0), [v])
            update = opt.apply_gradients([(other + g, v)])
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(update)
            assert abs(session.run(v)[0] - 7.0) < 1e-5
    else:
        # The counter of an optimizer that had no accumulators when it was wrapped.
        v, opt = variable(), SGD(1.0)
        opt.build([v])
        opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=2)
        for count in (1, 0, 1):
            opt.apply_gradients([(plain(), v)])
            assert opt._agg_helper.counter.numpy() == count
        assert not hasattr(wrapped(), "_agg_helper")
    print("DONE", 2 if two else 3)
"""


@pytest.mark.slow
@GENERATIONS
def test_gradients_that_were_reduced_early(generation: str, legacy: str, tmp_path: Path) -> None:
    run_on_two_ranks(SCRIPT, generation, legacy, tmp_path)
