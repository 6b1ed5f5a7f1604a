"""One process in several generations with different ranks and sizes.

Functions that were traced in one are called in the next; ranks leave one in the middle of calls.
"""

from __future__ import annotations

import contextlib
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import (
    assert_same_weights,
    broadcast,
    build_model,
    compiled,
    fit,
    train_alone,
)
from tiers import slow

import tfring as hvd
from tfring import world
from tfring.observe.recorder.own import own_path
from tfring.observe.recorder.reader import read_record
from tfring.ops import library
from tfring.runtime._native import core


def meet(first):
    """Waits for all ranks. One that is not the `first` to go may find that another one has gone."""
    late = contextlib.nullcontext() if first else contextlib.suppress(tf.errors.UnavailableError)
    with late:
        hvd.barrier()


def leave():
    """Abandons the generation, when all its calls have ended; others may have done so already."""
    with contextlib.suppress(tf.errors.UnavailableError):
        hvd.barrier()
    world.abandon("the test goes on with other ranks")


class Steps:
    """Functions that hold what they can of the generation in which they are traced."""

    def __init__(self, rank, size):
        self.value = tf.constant([float(rank + 1)])
        self.first = hvd.add_process_set([0])
        self.variable = tf.Variable([1.0, 2.0])
        tape_options = {"process_set": self.first}

        @tf.function
        def reduce(x):
            total = hvd.allreduce(x, op=hvd.Sum, name="total")
            mean = hvd.allreduce(x, name="mean")
            return total, mean, hvd.allgather(x, name="rows"), hvd.size_op(), hvd.rank_op()

        @tf.function
        def train(x):
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(self.variable * x)
            tape = hvd.DistributedGradientTape(inner, **tape_options)
            return tape.gradient(loss, [self.variable])[0]

        @tf.function
        def reduce_in_set(x):
            return hvd.allreduce(x, op=hvd.Sum, name="in set", process_set=self.first)

        @tf.function
        def pass_on(x):
            if rank == 0:
                for dest in range(1, size):
                    hvd.send(x, dest=dest, name="passed")
                return x
            return hvd.recv(0, tf.float32, [1], name="passed")

        self.reduce, self.train = reduce, train
        self.reduce_in_set, self.pass_on = reduce_in_set, pass_on

    def run(self, rank, ranks):
        """Runs calls that must give right values: `ranks` of the first job are in this one."""
        values = [old + 1.0 for old in ranks]
        total, mean, rows, size, own = self.reduce(self.value)
        assert total.numpy().item() == sum(values)
        assert mean.numpy().item() == pytest.approx(np.mean(values))
        assert rows.numpy().tolist() == values
        assert (int(size), int(own)) == (len(ranks), ranks.index(rank))


@pytest.mark.any_ranks
def test_old_functions_work_in_a_new_generation_or_say_what_to_do(rank, several):
    number = core.generation_state().number
    steps = Steps(rank, several)
    steps.run(rank, list(range(several)))
    assert steps.train(steps.value).shape == [2]
    if rank == 0:
        assert steps.reduce_in_set(steps.value).numpy().item() == 1.0
    assert steps.pass_on(steps.value).numpy().item() == 1.0
    old_id = steps.first.process_set_id
    leave()
    # Where there are enough ranks the job becomes smaller; in any case all numbers change.
    members = list(range(several))[::-1][: max(2, several - 1)]
    if rank in members:
        hvd.init(comm=members)
        assert hvd.size() == len(members) and hvd.rank() == members.index(rank)
        assert core.generation_state().number == number + 1
        steps.run(rank, members)
        # Its set does not exist: not for those who were in it, nor for those who were not.
        with pytest.raises(tf.errors.InvalidArgumentError, match="there is no process set"):
            steps.train(steps.value)
        if rank == 0:
            with pytest.raises(tf.errors.InvalidArgumentError, match="has to be traced again"):
                steps.reduce_in_set(steps.value)
        # On a rank whose part makes sense the step fails because of the other's.
        failed = (tf.errors.InvalidArgumentError, tf.errors.AbortedError)
        with pytest.raises(failed, match="traced before another init"):
            steps.pass_on(steps.value)
        again = hvd.add_process_set([0])
        assert again.process_set_id > old_id  # an old function finds no other set by its id
        steps.run(rank, members)
        leave()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, several)
    steps.run(rank, list(range(several)))


class Eager:
    """One collective, called without a graph."""

    of_a_lost_rank: type[Exception] = tf.errors.UnavailableError

    def __init__(self, rank):
        self.value = tf.constant([float(rank + 1)])

    def block(self):
        return hvd.allreduce(self.value, op=hvd.Sum, name="eager")

    def run(self, ranks):
        assert self.block().numpy().item() == sum(ranks) + len(ranks)


class Graph(Eager):
    """A function with collectives side by side, and others behind them."""

    def __init__(self, rank):
        super().__init__(rank)

        @tf.function
        def step(x):
            first = [hvd.allreduce(x * i, op=hvd.Sum, name=f"side {i}") for i in range(1, 4)]
            mean = hvd.allreduce(tf.add_n(first), name="behind them")
            return mean, hvd.allgather(x + 0 * mean, name="rows")

        self.block = lambda: step(self.value)

    def run(self, ranks):
        mean, rows = self.block()
        assert rows.numpy().tolist() == [old + 1.0 for old in ranks]
        assert mean.numpy().item() == 6 * (sum(ranks) + len(ranks))


class Compiled(Eager):
    """A function that XLA has compiled."""

    # TensorFlow replaces UnavailableError where the operation that fails is not a collective's own.
    of_a_lost_rank = tf.errors.InternalError

    def __init__(self, rank):
        super().__init__(rank)

        @tf.function(jit_compile=True)
        def step(x):
            first = [hvd.allreduce(x * i, op=hvd.Sum, name=f"in XLA {i}") for i in range(1, 4)]
            return hvd.allreduce(tf.add_n(first), name="behind them in XLA")

        self.block = lambda: step(self.value)

    def run(self, ranks):
        assert self.block().numpy().item() == 6 * (sum(ranks) + len(ranks))


class Fit(Eager):
    """Keras' fit, whose compiled step is traced once and used in all generations."""

    def __init__(self, rank):
        super().__init__(rank)
        self.model = compiled(keras.optimizers.SGD(0.1), jit_compile=False)

    def block(self):
        return fit(self.model)

    def run(self, ranks):
        del ranks
        expected = train_alone(keras.optimizers.SGD(0.1), steps=3, seed=1)
        self.model.set_weights(build_model(1).get_weights())
        fit(self.model, broadcast())
        assert_same_weights(self.model, expected)


def abandon_when_a_call_waits():
    while not read_record(own_path()).open_calls:
        time.sleep(0.01)
    world.abandon("the test frees this rank")


def freed_from(call, ends, why):
    """Makes a call that waits for a rank that will not come; it has to end with such an error."""
    # What a step calls after the end is refused, with the same reason.
    with pytest.raises((*ends, tf.errors.FailedPreconditionError), match=why):
        call()


no_xla = pytest.mark.skipif(bool(library.xla_trouble()), reason=f"no XLA: {library.xla_trouble()}")


@pytest.mark.parametrize("work", [Eager, Graph, pytest.param(Compiled, marks=no_xla), slow(Fit)])
@pytest.mark.parametrize("who", ["first", pytest.param("last", marks=pytest.mark.any_ranks)])
def test_calls_that_wait_end_and_the_next_generation_trains(rank, several, monkeypatch, work, who):
    """All but the last rank wait in calls; one of them abandons, then all the others do."""
    monkeypatch.setenv("TFRING_START_TIMEOUT", "600")  # the rank left out waits for the others
    everybody, members = list(range(several)), list(range(several - 1))
    freed, absent = members[0 if who == "first" else -1], several - 1
    if who == "last" and freed == 0:
        pytest.skip("needs three ranks, or the first one is the last")
    work = work(rank)
    work.run(everybody)
    meet(first=rank == freed)
    if rank == absent:
        while core.generation_state().phase.name == "up":
            time.sleep(0.01)
        assert core.generation_state().lost
        world.abandon("a rank was lost")
    else:
        helper = threading.Thread(target=abandon_when_a_call_waits)
        if rank == freed:
            helper.start()
        if rank == freed:
            freed_from(work.block, (tf.errors.AbortedError,), "is over on rank .*: the test frees")
        else:
            freed_from(work.block, (work.of_a_lost_rank,), "was lost")
        if rank == freed:
            helper.join()
            assert not hvd.is_initialized()
        else:
            assert core.generation_state().lost
            world.abandon("a rank was lost")
    if rank != absent:
        hvd.init(comm=members)
        work.run(members)
        leave()
    hvd.init()
    work.run(everybody)
    while core.abandoned():  # the old ones end by themselves
        time.sleep(0.01)


@pytest.mark.any_ranks
@pytest.mark.parametrize("who", ["first", "last"])
def test_a_goodbye_is_known_when_calls_that_wait_end(rank, several, who):
    """One rank shuts down as at the end of its data, while the others wait for it."""
    leaver = 0 if who == "first" else several - 1
    Eager(rank).run(list(range(several)))
    meet(first=rank == leaver)
    if rank == leaver:
        hvd.shutdown()
        assert core.generation_state().phase.name == "down"
    else:
        ends, why = (tf.errors.CancelledError,), f"rank {leaver} .*has shut down"
        if several > 2:  # one that comes late may find that another one has abandoned
            ends, why = (*ends, tf.errors.UnavailableError), f"{why}|was lost"
        freed_from(Eager(rank).block, ends, why)
        state = core.generation_state()
        assert state.phase.name == "broken"
        assert leaver in state.departed and leaver not in state.lost
        if not state.lost:
            assert f"rank {leaver} " in state.error
        world.abandon("a rank has left")
        assert leaver in core.generation_state().departed
    hvd.init()
    Eager(rank).run(list(range(several)))


@no_xla
def test_compiled_functions_know_that_their_process_set_is_gone(rank, several):
    """Also a rank that was not in the set, whose program holds no collective."""
    first = hvd.add_process_set([0])
    variable = tf.Variable([1.0, 2.0])

    @tf.function(jit_compile=True)
    def train(x):
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum(variable * x)
        tape = hvd.DistributedGradientTape(inner, process_set=first)
        return tape.gradient(loss, [variable])[0]

    @tf.function(jit_compile=True)
    def rows(x):
        return hvd.allgather(x, name="compiled rows"), hvd.size_op()

    assert train(tf.constant(3.0)).numpy().tolist() == [3.0, 3.0]
    gathered, size = rows(tf.constant([float(rank)]))
    assert gathered.numpy().tolist() == list(range(several)) and size.numpy() == several
    leave()
    hvd.init()
    with pytest.raises(tf.errors.InvalidArgumentError, match="there is no process set"):
        train(tf.constant(3.0))
    gathered, size = rows(tf.constant([float(rank)]))
    assert gathered.numpy().tolist() == list(range(several)) and size.numpy() == several
