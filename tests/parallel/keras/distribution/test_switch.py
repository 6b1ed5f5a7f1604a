"""What enable() makes of keras.distribution, what it refuses, and what disable() puts back."""

from __future__ import annotations

import random
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers import data_adapters
from keras.src.utils import rng_utils
from keras_cases import (
    PER_RANK,
    assert_same_on_all_ranks,
    assert_same_weights,
    build_model,
    loss,
    my_data,
    whole_data,
)

import tfring.keras as hvd
from tfring.keras.distribution import switch, training
from tfring.keras.hook import find_hook

SGD = keras.optimizers.SGD


def dataset(steps: int = 2) -> Any:
    x, y = whole_data(steps)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(hvd.size() * PER_RANK)


def model(optimizer: Any = None, seed: int = 1) -> Any:
    made = build_model(seed)
    made.compile(optimizer or SGD(0.1), loss())
    return made


def part_of(data: Any) -> Any:
    """What `fit` makes of a dataset."""
    return data_adapters.get_data_adapter(data).get_tf_dataset()


def replaced() -> list[Any]:
    """What enable replaces, as it is at present."""
    return [
        *(getattr(keras.distribution, name) for name in ("list_devices", "ModelParallel")),
        keras.distribution.ModelParallel.__init__,
        keras.Model.fit,
        keras.Model.evaluate,
        keras.Model.train_on_batch,
        keras.distribution.list_devices(),
    ]


def test_twice_and_back() -> None:
    before = replaced()
    hvd.distribution.disable()  # nothing to do
    hvd.distribution.enable()
    once = replaced()
    hvd.distribution.enable()
    assert replaced() == once
    assert once != before
    assert hvd.distribution.is_enabled()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    hvd.distribution.disable()
    assert replaced() == before
    assert not hvd.distribution.is_enabled()
    assert keras.distribution.distribution() is None
    hvd.distribution.disable()


@pytest.mark.any_ranks
def test_devices_and_processes(data_parallel: None) -> None:
    devices = [f"cpu:{rank}" for rank in range(hvd.size())]
    assert keras.distribution.list_devices() == keras.distribution.list_devices("cpu") == devices
    assert keras.distribution.list_devices("gpu") == []
    chosen = keras.distribution.distribution()
    assert list(chosen.device_mesh.devices) == devices
    if hasattr(chosen, "data_shard_id"):  # from Keras 3.15
        assert (chosen.num_processes, chosen.data_shard_id) == (hvd.size(), hvd.rank())
    if hasattr(keras.distribution, "get_device_count"):
        assert keras.distribution.get_device_count() == hvd.size()


@pytest.mark.any_ranks
def test_parts_of_a_dataset(data_parallel: None) -> None:
    """The parts of a batch are those of the ranks, in their order; unless the user says no."""
    whole = tf.data.Dataset.range(4 * hvd.size()).batch(2 * hvd.size())
    mine = [batch.numpy().tolist() for batch in part_of(whole)]
    first = 2 * hvd.rank()
    other = first + 2 * hvd.size()
    assert mine == [[first, first + 1], [other, other + 1]]
    own = keras.distribution.DataParallel(auto_shard_dataset=False)
    keras.distribution.set_distribution(own)
    assert part_of(whole) is whole


@pytest.mark.any_ranks
def test_numbers_of_batches_where_they_are_certain(several: int, data_parallel: None) -> None:
    numbers = tf.data.Dataset.range(4 * several)
    full = numbers.batch(2 * several, drop_remainder=True)
    assert len(part_of(full)) == 2
    assert part_of(full.repeat()).cardinality() == tf.data.INFINITE_CARDINALITY
    assert part_of(numbers.batch(3 * several)).cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert part_of(full.filter(lambda _: True)).cardinality() == tf.data.UNKNOWN_CARDINALITY


def test_a_keras_without_what_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """enable says what is missing in which Keras, and changes nothing."""
    before = replaced()
    more = (*switch._WRAPPED, (keras.Model, "fit_all", training.distributed_fit))
    monkeypatch.setattr(switch, "_WRAPPED", more)
    said = rf"Keras {keras.__version__} has no Model\.fit_all, .*tested with Keras 3\.0 to"
    with pytest.raises(NotImplementedError, match=said):
        hvd.distribution.enable()
    monkeypatch.undo()
    assert not hvd.distribution.is_enabled()
    assert replaced() == before


def test_arrays_that_are_this_ranks_own(enabled: None) -> None:
    if not hasattr(keras.distribution.DataParallel, "auto_shard_dataset"):
        pytest.skip("Keras before 3.12 wants a tf.data.Dataset from ranks of several")
    own = keras.distribution.DataParallel(auto_shard_dataset=False)
    keras.distribution.set_distribution(own)
    made = model(seed=1 + hvd.rank())
    made.fit(*my_data(3), batch_size=PER_RANK, shuffle=False, verbose=0)
    assert_same_on_all_ranks(made)
    keras.distribution.set_distribution(None)
    by_hand = model(hvd.DistributedOptimizer(SGD(0.1)))
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    how = {"batch_size": PER_RANK, "shuffle": False, "verbose": 0, "callbacks": [broadcast]}
    by_hand.fit(*my_data(3), **how)
    for ours, theirs in zip(made.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Batches(keras.utils.PyDataset):
    """The data of all ranks in batches for one rank."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.x, self.y = whole_data(steps)

    def __len__(self) -> int:
        return len(self.x) // PER_RANK

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        rows = slice(index * PER_RANK, (index + 1) * PER_RANK)
        return self.x[rows], self.y[rows]


def test_batches_of_a_pydataset_are_dealt_to_the_ranks(data_parallel: None) -> None:
    if not hasattr(keras.distribution.DataParallel, "num_data_shards"):
        pytest.skip("Keras before 3.16 wants a tf.data.Dataset from ranks of several")
    dealt, cut = (model(seed=1 + hvd.rank()) for _ in range(2))
    dealt.fit(Batches(3), shuffle=False, verbose=0)
    cut.fit(dataset(3), verbose=0)
    assert_same_weights(dealt, cut.get_weights())


def test_what_a_program_wraps_and_adds_itself(data_parallel: None) -> None:
    """Is not wrapped or added again; one callback may stand for a list."""
    made = model(hvd.DistributedOptimizer(SGD(0.1)))
    hook = find_hook(made.optimizer)
    own = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    made.fit(dataset(), verbose=0, callbacks=own)
    assert find_hook(made.optimizer) is hook
    assert [type(each) for each in training.with_ours(own)] == [
        hvd.callbacks.MetricAverageCallback,
        type(own),
    ]
    assert len(training.with_ours(None)) == 2


def test_a_model_that_has_trained_alone(several: int, data_parallel: None) -> None:
    """Its train function reduced nothing; it is made anew."""
    keras.distribution.set_distribution(None)
    made = model(SGD(0.1, momentum=0.9), seed=1 + hvd.rank())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.fit(*my_data(2), batch_size=PER_RANK, verbose=0)
    assert sum("no distribution is set" in str(each.message) for each in caught) == 1
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    made.fit(dataset(), verbose=0)
    assert_same_on_all_ranks(made)


def test_two_optimizers_of_one_model(data_parallel: None) -> None:
    """As a GAN has them: an own train_step applies both."""

    class Two(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.body = build_model(1 + hvd.rank())
            self.second = SGD(0.01)

        def call(self, x: Any) -> Any:
            return self.body(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                cost = self.compute_loss(y=y, y_pred=self(x))
            first, *rest = self.trainable_variables
            gradients = tape.gradient(cost, [first, *rest])
            self.optimizer.apply(gradients[:1], [first])
            self.second.apply(gradients[1:], rest)
            return {"loss": cost}

    made = Two()
    made.compile(SGD(0.1), loss())
    made.fit(dataset(), verbose=0)
    assert find_hook(made.second) is not None
    assert_same_on_all_ranks(made)


def test_evaluate_is_over_all_data(data_parallel: None) -> None:
    made = model()
    x, y = whole_data(2)
    everywhere = made.evaluate(dataset(), verbose=0)
    assert everywhere == made.evaluate(dataset(), verbose=0, return_dict=True)["loss"]
    keras.distribution.set_distribution(None)
    np.testing.assert_allclose(everywhere, made.evaluate(x, y, verbose=0), rtol=1e-5)


def test_evaluate_takes_its_arguments_in_any_form(enabled: None) -> None:
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    made = model()
    x, y = whole_data(2)
    first = made.evaluate(x, y, 8, 0)
    assert first == made.evaluate(x, y, batch_size=8, verbose=0)
    assert first == made.evaluate(x=x, y=y, batch_size=8, verbose=0, return_dict=True)["loss"]
    assert first == made.evaluate(x, y=y, batch_size=8, verbose=0, sample_weight=np.ones(len(x)))


def test_model_parallel_is_refused(enabled: None) -> None:
    mesh = keras.distribution.DeviceMesh((1, hvd.size()), ("batch", "model"))
    layouts = keras.distribution.LayoutMap(mesh)
    with pytest.raises(NotImplementedError, match=r"ModelParallel: tfring trains with .*DataPara"):
        keras.distribution.ModelParallel(layout_map=layouts)
    cut = keras.distribution.TensorLayout(("model",), mesh)
    with pytest.raises(NotImplementedError, match="cuts the tensor"):
        keras.distribution.distribute_tensor(tf.zeros(4), cut)
    whole = keras.distribution.TensorLayout((None,), mesh)
    values = tf.range(4)
    assert keras.distribution.distribute_tensor(values, whole) is values


def test_a_distribution_that_was_made_for_another_job(several: int) -> None:
    hvd.distribution.enable()
    try:
        devices = keras.distribution.list_devices()[:1]
        one_device = keras.distribution.DataParallel(devices=devices)
        keras.distribution.set_distribution(one_device)
        with pytest.raises(RuntimeError, match=f"of {several} with 1 devices: make it after"):
            model().fit(dataset(), verbose=0)
    finally:
        hvd.distribution.disable()


def test_initialize_compares_its_arguments_with_the_job(enabled: None) -> None:
    size, rank = hvd.size(), hvd.rank()
    keras.distribution.initialize(num_processes=size, process_id=rank)
    with pytest.raises(ValueError, match=f"num_processes={size + 1}.*says {size}"):
        keras.distribution.initialize(num_processes=size + 1)
    with pytest.raises(ValueError, match=f"process_id={rank + 1}.*says {rank}"):
        keras.distribution.initialize(process_id=rank + 1)


def test_what_only_the_program_can_decide_is_refused(data_parallel: None) -> None:
    made = model()
    with pytest.raises(NotImplementedError, match=r"train_on_batch .*model\.fit"):
        made.train_on_batch(*my_data(1))
    with pytest.raises(TypeError, match="give fit a list of callbacks"):
        made.fit(dataset(), callbacks=keras.callbacks.CallbackList([]))


def test_one_seed_for_all_ranks_unless_the_program_has_one() -> None:
    hvd.distribution.enable()
    state = random.getstate()
    try:
        keras.utils.set_random_seed(100 + hvd.rank())
        keras.distribution.initialize()
        own = hvd.allgather_object(random.random())
        # Keras before 3.10 does not say whether the program has set a seed.
        assert len(set(own)) == (hvd.size() if hasattr(rng_utils, "get_random_seed") else 1)
        keras.utils.clear_session()  # forgets the seed
        random.seed(200 + hvd.rank())
        keras.distribution.initialize()
        drawn = hvd.allgather_object((random.random(), float(tf.random.uniform([]))))
        assert len(set(drawn)) == 1
        layer = keras.layers.Dense(2)
        layer.build((None, 2))
        (first, *others) = hvd.allgather_object(layer.get_weights()[0].tolist())
        assert all(other == first for other in others)
    finally:
        random.setstate(state)
        hvd.distribution.disable()
