"""Parts of datasets of Ray Data as tf.data."""

import numpy as np
import pytest
import ray

from tfring.ray import RayExecutor, dataset_shard

pytestmark = pytest.mark.usefixtures("nothing_left")


def _rows(count):
    x = np.repeat(np.arange(count, dtype=np.float32), 3).reshape(count, 3)
    return ray.data.from_items([{"x": x[i], "y": i} for i in range(count)])


def test_every_rank_gets_as_many_rows_of_its_own():
    def read(passes):
        import tfring as hvd
        from tfring.ray import dataset_shard, iterator_shard

        hvd.init()
        data = dataset_shard("numbers", feature_columns="x", label_columns="y", batch_size=4)
        found = []
        for _ in range(passes):
            batches = [(x.shape, y.numpy().tolist()) for x, y in data]
            assert all(tuple(shape)[1:] == (3,) for shape, _ in batches)
            found.append([y for _, labels in batches for y in labels])
        assert iterator_shard("numbers") is not None
        return found

    with RayExecutor(num_workers=2) as executor:
        executor.start()
        first, second = executor.run(read, [2], datasets={"numbers": _rows(41)})
        for one, other in zip(first, second, strict=True):
            assert len(one) == len(other) == 20
            assert len({*one, *other}) == 40
        # Without datasets a later function has none.
        with pytest.raises(RuntimeError, match="no part of a dataset named 'numbers'"):
            executor.run(read, [1])


def test_keras_fits_on_it():
    def train():
        import keras

        import tfring.keras as hvd
        from tfring.ray import dataset_shard

        hvd.init()
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1e-4)), "mse")
        data = dataset_shard(feature_columns="x", label_columns="y", batch_size=8)
        history = model.fit(data, epochs=3, verbose=0, callbacks=hvd.fit_callbacks())
        return history.history["loss"], [w.tolist() for w in model.get_weights()]

    with RayExecutor(num_workers=2) as executor:
        executor.start()
        (losses, weights), other = executor.run(train, datasets={"train": _rows(64)})
    assert (losses, weights) == other
    assert losses[2] < losses[0]


def test_outside_of_a_worker():
    with pytest.raises(KeyError, match="parts of: none"):
        dataset_shard(feature_columns="x", label_columns="y")
