r"""A step that fails on some ranks fails on all, and the next one works.

TFRING_TEST_ROUNDS=200 plays more rounds than the few of an ordinary run, and holds them to the 2 s
that are promised; with -s the time that the ranks took to learn of a failure is printed. TensorFlow
waits 10 s for memory before an op fails, with TF_ENABLE_ONEDNN_OPTS=0 it does not. ::

    TFRING_TEST_ROUNDS=200 TF_ENABLE_ONEDNN_OPTS=0 tools/mpi_run.sh 4 python -m pytest -s -q \
        -p no:cacheprovider tests/parallel/training/test_failed_steps.py -k rounds
"""

from __future__ import annotations

import math
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from failing_steps import (
    BUCKETS,
    KINDS,
    MEMORY_SECONDS,
    MODES,
    NEVER,
    expected,
    happened,
    maybe_fail,
    run_step,
)

import tfring as hvd
from tfring.ops import library

ROUNDS = int(os.environ.get("TFRING_TEST_ROUNDS", "12"))
# Seconds from the first failure to an exception on each rank. The promise is 2 s; in an ordinary
# run the ranks share their cores with others.
LIMIT_SECONDS = 2.0 if "TFRING_TEST_ROUNDS" in os.environ else 10.0
CTRL_C = KINDS.index("Ctrl-C")


def failure_of(step: Any, what: str) -> Exception:
    """The exception that this rank gets: in the step, or in its next collective."""
    try:
        step()
        hvd.barrier()
    except (tf.errors.OpError, ValueError) as error:
        return error
    pytest.fail(f"neither the step nor the next collective failed on this rank: {what}")


def told_by(error: BaseException) -> int:
    """The rank that the error of another one names; the cause is what was planted there."""
    assert isinstance(error, tf.errors.AbortedError), repr(error)
    named = re.search(r"the step of rank (\d+) \(host .*\) failed: (.*)", str(error))
    assert named, str(error)
    # NaN or infinite, the exception, no memory, Ctrl-C.
    assert re.search(r"planted|allocat|OOM|interrupted \(Ctrl-C|KeyboardInterrupt", named[2]), named
    return int(named[1])


def planned(dice: random.Random, size: int, kinds: list[int]) -> dict[int, tuple[int, int]]:
    """Where in the step and how ranks are to fail, by rank; one at least does."""
    ranks = dice.sample(range(size), dice.randint(1, size))
    return {rank: (dice.randint(0, BUCKETS), dice.choice(kinds)) for rank in ranks}


def interrupted_failure_of(step: Callable[[], Any], what: str) -> BaseException:
    """As failure_of, on a rank whose user presses Ctrl-C: what belongs together is a block."""
    error: BaseException
    try:
        try:
            with hvd.step():
                step()
                hvd.barrier()
            pytest.fail(f"the interrupted step did not fail: {what}")
        except tf.errors.OpError as of_another:
            error = of_another
        if happened:  # after the failure of another rank; Python raises it when it gets to it
            time.sleep(10)
            pytest.fail(f"no KeyboardInterrupt: {what}")
    except KeyboardInterrupt as own:
        error = own
    return error


def play(
    mode: str, x: Any, plan: dict[int, tuple[int, int]], rank: int, amounts: list[int], what: str
) -> tuple[float, int | None, float]:
    """Makes a step that fails; checks what this rank gets.

    Returns:
        When the failure that was planted on this rank happened (infinite: it never came to that),
        which rank the error names (None: it is this rank's own), and when the error was raised.
    """
    at, kind = plan.get(rank, (NEVER, 0))
    happened.clear()
    make = interrupted_failure_of if rank in plan and kind == CTRL_C else failure_of
    error = make(lambda: run_step(mode, x, at, kind, amounts), what)
    raised = time.monotonic()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = 3.0 * x
    assert tape.gradient(y, x) is not None, f"tapes record nothing any more: {what}, {error!r}"
    own = happened and not isinstance(error, tf.errors.AbortedError)
    if own and kind == CTRL_C:
        assert isinstance(error, KeyboardInterrupt), repr(error)
    return min(happened, default=math.inf), None if own else told_by(error), raised


@pytest.mark.any_ranks
def test_rounds_of_failures(rank: int, size: int) -> None:
    """Random ranks fail, each at a point and in a way of its own; then all take a step together."""
    shared, own = random.Random(5), random.Random(rank)
    amounts = [0] * BUCKETS
    for mode in MODES:
        run_step(mode, tf.zeros([5]), NEVER, 0, amounts)  # traces and compiles
    slowest, waited, counts = 0.0, 0.0, Counter[str]()
    for number in range(ROUNDS):
        mode = MODES[number % len(MODES)]
        patient = MEMORY_SECONDS == 0.0 or number % 6 == 1  # else too many seconds
        plan = planned(shared, size, [i for i in range(4) if patient or KINDS[i] != "no memory"])
        amounts = [own.randrange(300) for _ in range(BUCKETS)]
        x = tf.fill([5], float(rank + number))
        mine = play(mode, x, plan, rank, amounts, f"round {number}, {mode}, {plan}")

        for again in range(2):
            total = run_step(mode, x + float(again), NEVER, 0, amounts)
            values = [float(r + number + again) for r in range(size)]
            assert total.numpy().tolist() == [expected(mode, values)] * 5, (number, mode)

        told = hvd.allgather_object(mine)
        failed = {r: KINDS[plan[r][1]] for r in plan if told[r][0] < math.inf}
        assert {named for _, named, _ in told} <= {None, *failed}, (told, plan)
        counts.update(failed.values())
        seconds = max(raised for *_, raised in told) - min(begin for begin, *_ in told)
        if "no memory" in failed.values() and MEMORY_SECONDS:
            waited = max(waited, seconds)
        else:
            slowest = max(slowest, seconds)
    if rank == 0:
        print(
            f"\n{ROUNDS} rounds on {size} ranks, {dict(counts)}: every rank had its error at most "
            f"{slowest:.2f} s after the first failure; {waited:.2f} s where TensorFlow waited for "
            "memory"
        )
    assert slowest < LIMIT_SECONDS and waited < MEMORY_SECONDS + LIMIT_SECONDS, (slowest, waited)
    assert library.steps_in_flight() == 0


def test_a_disagreement_is_one_error_for_a_step_and_for_an_eager_call(
    rank: int, several: int
) -> None:
    """Rank 0 is in a step, the others call eagerly; each has one error, and all go on."""

    @tf.function
    def step(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="mixed")

    def eager(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="mixed")

    def block(x: Any) -> Any:
        with hvd.step():
            return eager(x)

    def inside(x: Any) -> Any:
        return tf.function(lambda v: tf.py_function(eager, [v], tf.float32))(x)

    for of_rank_0 in (step, block, inside):
        mine = of_rank_0 if rank == 0 else eager
        for _ in range(3):
            with pytest.raises(tf.errors.OpError, match="disagree on the shape"):
                mine(tf.ones([2 + min(rank, 1)]))
            for _ in range(2):
                assert mine(tf.ones([2])).numpy().tolist() == [several] * 2
    # No step is concerned: what waits goes on.
    with pytest.raises(tf.errors.FailedPreconditionError):
        eager(tf.ones([2 + rank % 2]))
    assert step(tf.ones([2])).numpy().tolist() == [several] * 2


@pytest.mark.any_ranks
@pytest.mark.parametrize("again", range(3))
def test_failure_concerns_the_members_of_its_process_set(rank: int, size: int, again: int) -> None:
    """The other ranks of the job go on.

    Again and again: in some runs the guard of the graph comes after the collective has failed.
    """
    del again
    if size < 3:
        pytest.skip("needs three ranks")
    pair = hvd.add_process_set([0, 1])

    @tf.function
    def step(x: Any, at: Any) -> Any:
        total = hvd.allreduce(
            maybe_fail(x, 0, at, tf.constant(0)), op=hvd.Sum, name="pair", process_set=pair
        )
        return maybe_fail(total, 1, at, tf.constant(0))

    if rank < 2:
        for at in (0, 1):
            with pytest.raises(tf.errors.OpError):
                step(tf.ones([2]), tf.constant(at if rank == 1 else NEVER))
                hvd.barrier(process_set=pair)
            assert float(step(tf.ones([2]), tf.constant(NEVER))[0]) == 2.0
    assert float(hvd.allreduce(tf.ones([]), op=hvd.Sum, name="all")) == size
    hvd.remove_process_set(pair)


@pytest.mark.any_ranks
def test_end_of_the_data_is_no_failure(rank: int, size: int) -> None:
    """A rank whose data end earlier joins; the others go on."""

    @tf.function
    def step(data: Any) -> Any:
        return hvd.allreduce(next(data), op=hvd.Sum, name="until.the.end")

    data = iter(tf.data.Dataset.from_tensors(tf.ones([2])).repeat(2 + rank))
    steps = 0
    try:
        while True:
            step(data)
            steps += 1
    except tf.errors.OutOfRangeError:
        assert hvd.join() == size - 1
    assert steps == 2 + rank
