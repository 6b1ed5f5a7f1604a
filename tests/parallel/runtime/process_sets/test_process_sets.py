"""Process sets of a running job: numbers, overlap, sets of one, removal, wrong use."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
import tfring.keras
from tfring.runtime import process_sets
from tfring.runtime._native import core

pytestmark = pytest.mark.any_ranks


@pytest.fixture
def added():
    """Adds sets that the test does not have to remove."""
    mine = []

    def add(ranks):
        mine.append(hvd.add_process_set(ranks))
        return mine[-1]

    yield add
    for one in mine:
        if one.process_set_id is not None:
            hvd.remove_process_set(one)


def total(process_set, value, name):
    return float(
        core.allreduce(
            np.array([value], np.float64), name=name, op=1, process_set=process_set.process_set_id
        )[0]
    )


def start_again(rank, **arguments):
    hvd.barrier()  # rank 0 counts for all sets: nobody may wait for one when it leaves
    hvd.shutdown()
    hvd.init(**arguments)
    assert hvd.rank() == rank


def test_added_set_tells_who_is_in_it(rank, several, added):
    evens = added(range(0, several, 2))
    assert evens.process_set_id >= 1 and evens.ranks == list(range(0, several, 2))
    assert evens.size() == (several + 1) // 2
    assert evens.included() == (rank % 2 == 0)
    assert evens.rank() == (rank // 2 if rank % 2 == 0 else -1)
    assert hvd.rank() == rank
    assert str(evens) == (
        f"ProcessSet(process_set_id={evens.process_set_id}, ranks={evens.ranks}, mpi_comm=None)"
    )
    known = process_sets.get_process_set_ids_and_ranks()
    assert known[0] == list(range(several)) and known[evens.process_set_id] == evens.ranks
    assert process_sets.registered()[evens.process_set_id] is evens


def test_set_of_one(rank, several, added):
    alone = added([several - 1])
    if alone.included():
        assert total(alone, 5.0, "alone") == 5.0
        assert hvd.allreduce(tf.constant([2.0]), process_set=alone).numpy().tolist() == [2.0]
        hvd.barrier(alone)
    assert alone.size() == 1 and alone.rank() == (0 if rank == several - 1 else -1)


def test_removed_set_says_so_and_its_number_is_not_used_again(several):
    one, two = hvd.add_process_set([0]), hvd.add_process_set([several - 1])
    first, second = one.process_set_id, two.process_set_id
    assert second == first + 1
    assert hvd.remove_process_set(one) is True
    assert one.process_set_id is None and first not in process_sets.registered()
    for use in (
        lambda: hvd.allreduce(tf.constant(1.0), process_set=one),
        lambda: hvd.barrier(one),
        lambda: hvd.remove_process_set(one),
    ):
        with pytest.raises(ValueError, match="remove_process_set has removed it"):
            use()
    three = hvd.add_process_set(range(1, several)) if several > 2 else hvd.add_process_set([0])
    assert three.process_set_id == second + 1 and two.process_set_id == second
    if three.included():
        assert total(three, 1.0, "again") == three.size()
        hvd.barrier(three)
    assert hvd.remove_process_set(three) and hvd.remove_process_set(two)
    assert hvd.add_process_set(one) is one and one.process_set_id == second + 2
    assert hvd.remove_process_set(one)


def test_a_function_traced_with_a_removed_set_says_so(several, rank):
    """It never runs among the ranks of a set that was added later."""
    old = hvd.add_process_set([0])

    @tf.function
    def step():
        return hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="step", process_set=old)

    if rank == 0:
        assert step().numpy() == 1
    hvd.remove_process_set(old)
    new = hvd.add_process_set([0, 1] if several > 2 else [1])
    if rank == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="once it is removed"):
            step()
    hvd.remove_process_set(new)


def test_what_a_rank_did_in_an_earlier_set_means_nothing(rank, size, added):
    """Members of a new set agree on names, whatever they did in an earlier one."""
    if size < 3:
        pytest.skip("needs three ranks")
    for ranks in ([0, 1], [1, 2]):
        members = added(ranks)
        if members.included():
            variable = tf.Variable([1.0, 2.0])
            with hvd.DistributedGradientTape(tf.GradientTape(), process_set=members) as tape:
                loss = tf.reduce_sum(variable) * rank
            np.testing.assert_array_equal(tape.gradient(loss, variable), [sum(ranks) / 2] * 2)
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=members)
            weight = keras.Variable([0.0])
            optimizer.apply([tf.constant([float(rank)])], [weight])
            np.testing.assert_array_equal(weight, [-sum(ranks) / 2])
            layer = tfring.keras.SyncBatchNormalization(process_set=members, momentum=0.0)
            layer(tf.fill([1, 2], float(rank)), training=True)
            np.testing.assert_allclose(layer.moving_mean, [sum(ranks) / 2] * 2)
        hvd.remove_process_set(members)


def test_wrong_use(rank, size, added):
    everybody = hvd.global_process_set
    assert hvd.remove_process_set(everybody) is False
    with pytest.raises(ValueError, match="registered already"):
        hvd.add_process_set(everybody)
    with pytest.raises(ValueError, match="registered already"):
        hvd.add_process_set(list(range(size)))
    with pytest.raises(ValueError, match=f"rank {size}"):
        hvd.add_process_set([0, size])
    with pytest.raises(ValueError, match="not registered: pass it to init"):
        hvd.allreduce(tf.constant(1.0), process_set=hvd.ProcessSet([0]))
    with pytest.raises(ValueError, match="has to be a ProcessSet"):
        hvd.barrier(process_set=[0])
    if size > 1:
        pair = added([0])
        with pytest.raises(ValueError, match="registered already"):
            hvd.add_process_set([0])
        with pytest.raises(ValueError, match="registered already"):
            hvd.add_process_set(pair)
    assert total(everybody, 1.0, "usable") == size


def test_ranks_that_disagree_are_told_at_once(rank, several):
    with pytest.raises(tf.errors.FailedPreconditionError, match="rank"):
        hvd.add_process_set([0] if rank == 0 else [1])
    assert total(hvd.global_process_set, 1.0, "usable") == several


def test_barriers_in_graphs_and_outside(rank, several, added):
    evens = added(range(0, several, 2))

    @tf.function
    def step():
        hvd.barrier()
        if evens.included():
            hvd.barrier(evens)

    for _ in range(2):
        assert step() is None and hvd.barrier() is None
        if evens.included():
            hvd.barrier(process_set=evens)


def test_sets_given_to_init(rank, several):
    first, second = hvd.ProcessSet([several - 1]), hvd.ProcessSet(range(several - 1))
    for _ in range(2):
        last = core.last_process_set()  # ids go on after those of earlier jobs of the processes
        start_again(rank, process_sets=[first, second])
        assert (first.process_set_id, second.process_set_id) == (last + 1, last + 2)
        mine = first if first.included() else second
        assert total(mine, 1.0, "static") == mine.size()
    start_again(rank, process_sets="dynamic")
    assert first.process_set_id is None
    with pytest.raises(ValueError, match=r"shutdown\(\) has removed it"):
        hvd.barrier(first)
    assert process_sets.registered() == {0: hvd.global_process_set}
    assert hvd.remove_process_set(hvd.add_process_set(first))


def test_init_refuses_sets_on_all_ranks(rank, size):
    bad = [
        ([hvd.ProcessSet(range(size))], "equal to the global"),
        ([hvd.ProcessSet([size])], "names rank"),
    ]
    if size > 1:
        bad.append(([hvd.ProcessSet([0]), hvd.ProcessSet([0])], "equal to process set 0"))
        bad.append(([hvd.ProcessSet([min(rank, 1)])], "on rank 0 and"))
        bad.append(([hvd.ProcessSet([0])] if rank == 0 else [], "rank 0 passed 1 process sets"))
    hvd.shutdown()
    for sets, words in bad:
        with pytest.raises(ValueError, match=words):
            hvd.init(process_sets=sets)
        assert not hvd.is_initialized()
        assert all(s.process_set_id is None for s in sets)
    hvd.init()


def test_threads_add_and_remove_at_the_same_time(several):
    """Both threads use names of their own in one order; only one of them changes the sets."""
    errors = []

    def reduce_all():
        try:
            for count in range(20):
                total(hvd.global_process_set, 1.0, f"thread.{count}")
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=reduce_all)
    thread.start()
    for _ in range(10):
        one = hvd.add_process_set([0])
        if one.included():
            total(one, 1.0, "inside")
        assert hvd.remove_process_set(one)
    thread.join()
    assert not errors
