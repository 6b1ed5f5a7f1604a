"""Elastic jobs whose optimizer states are sharded: ranks are killed, and others take their place.

The training has to be that of one process with the plain optimizer.
"""

from __future__ import annotations

import pytest
from elastic_jobs import REPORT, ElasticJob, wait_for_batches, worker_of_rank
from launcher_tools import write_script
from shard_jobs import (
    FOREVER,
    PLACES,
    PLACES_OF_RECOVERY,
    alone,
    assert_like_one_process,
    assert_same,
    let_die,
    lost_commits,
    pairs_without_copies,
    start_job,
)

from tfring.checkpoint import Checkpointer

pytest.importorskip("tfring.runtime._native")

# Arguments: a folder and a number of steps. Each rank has an equal part of a batch of 12.
LOOP = """
    import sys
    import keras
    import numpy as np
    import tensorflow as tf

    FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
    hvd.init()
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(7), keras.layers.Dense(2)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.003), shard_states=True)

    @hvd.elastic.run
    def train(state):
        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

        while state.step < STEPS:
            ends = os.path.exists(f"{FOLDER}/stop")
            if hvd.allreduce(np.float32(ends), op=hvd.Max, name="ends"):
                return
            rng = np.random.default_rng(state.step)
            x = rng.normal(size=(12, 6)).astype("float32")
            rows = slice(hvd.rank(), None, hvd.size())
            step(x[rows], np.tanh(x[rows, :2]))
            state.step += 1
            state.commit()
            say("batch", step=state.step)

    state = hvd.elastic.KerasState(model, optimizer, step=0)
    train(state)
    weights = [w.numpy().tolist() for w in model.trainable_weights]
    say("end", weights=weights, step=state.step)
"""


@pytest.fixture
def start(tmp_path):
    """Starts a job whose script trains until it is told to stop."""

    def started(slots, kind="Adam", saves=False, **options):
        return start_job(tmp_path, slots, kind, saves, **options)

    return started


def test_a_killed_rank_takes_no_states_with_it(start, tmp_path):
    """Three ranks, two, and three again."""
    with start(3, min_np=2) as job:
        wait_for_batches(job, 3, 5)
        let_die(job, tmp_path, ("after exchange", 1), ranks=3)
        assert_like_one_process(job, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Adam", "Lamb"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_is_killed_at_each_place_of_a_step(start, tmp_path, kind, rank):
    with start(3, kind, min_np=2) as job:
        wait_for_batches(job, 3, 5)
        for place in PLACES:
            let_die(job, tmp_path, (place, rank), ranks=3)
        assert lost_commits(job.said) == 0
        assert_like_one_process(job, tmp_path, kind)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 5])
def test_two_ranks_without_each_others_copies_are_lost_at_once(start, tmp_path, ranks):
    with start(ranks, min_np=2) as job:
        wait_for_batches(job, ranks, 5)
        for one, other in [pair for pair in pairs_without_copies(ranks) if pair[0] < pair[1]][:3]:
            before = set(job.exit_codes)
            workers = worker_of_rank(job, one), worker_of_rank(job, other)
            for worker in workers:
                job.kill(worker)
            job.wait(lambda: len(set(job.exit_codes) - before) == 2)  # noqa: B023
            wait_for_batches(job, ranks)
        assert lost_commits(job.said) == 0
        assert_like_one_process(job, tmp_path, ranks=ranks)


@pytest.mark.slow
def test_a_rank_is_lost_while_the_loss_of_another_is_handled(start, tmp_path):
    """Ranks 1 and 3 of four hold no copies of each other. Rank 3 then is rank 2 of three."""
    with start(4, min_np=2) as job:
        wait_for_batches(job, 4, 5)
        for place in PLACES_OF_RECOVERY:
            let_die(job, tmp_path, ("step", 1), (place, "2 of 3"), ranks=4)
        assert lost_commits(job.said) == 0
        assert_like_one_process(job, tmp_path, ranks=4)


@pytest.mark.slow
def test_a_rank_is_lost_while_another_joins(start, tmp_path):
    with start(3, min_np=1) as job:
        wait_for_batches(job, 3, 5)
        for place in PLACES_OF_RECOVERY[::2]:
            let_die(job, tmp_path, ("step", 1), (place, "0 of 3"), ranks=3)
        assert lost_commits(job.said) == 0
        assert_like_one_process(job, tmp_path)


@pytest.mark.slow
def test_ranks_leave_and_join(start, tmp_path):
    """A host is asked for fewer ranks, two at once, and for more."""
    with start(4, min_np=1, np=4) as job:
        wait_for_batches(job, 4, 5)
        job.set_slots(2)
        wait_for_batches(job, 2, 5)
        job.set_slots(3)
        wait_for_batches(job, 3, 5)
        assert_like_one_process(job, tmp_path)


@pytest.mark.slow
def test_a_loop_of_the_program(tmp_path):
    header = "import tfring.keras as hvd\n" + REPORT
    script = write_script(tmp_path, LOOP, header=header)
    with ElasticJob(script, tmp_path, FOREVER, slots=3, min_np=2) as job:
        wait_for_batches(job, 3, 5)
        job.kill(next(one["worker"] for one in reversed(job.said) if one["rank"] == 1))
        wait_for_batches(job, 2)
        wait_for_batches(job, 3)
        (tmp_path / "stop").touch()
        assert job.wait_for_end() == (0, "the training is over")
        ends = job.lines("end")
    clean = alone(tmp_path, str(ends[0]["step"]))
    for one in ends:
        assert one["step"] == clean["step"]
        assert_same(one, clean)


@pytest.mark.slow
def test_the_last_rank_is_lost_before_another_has_joined(start, tmp_path):
    """A rank that is alone copies its commits, with all states, into memory of the host."""
    with start(2, min_np=1) as job:
        wait_for_batches(job, 2, 5)
        for rank, left in ((1, 1), (0, 2)):
            job.kill(worker_of_rank(job, rank))
            if left == 1:
                wait_for_batches(job, 1)
                last = job.said[-1]["step"]
        begin = len(job.said)
        wait_for_batches(job, 2)
        assert all(one["step"] > last for one in job.said[begin:])
        assert_like_one_process(job, tmp_path, ranks=2)


def kill_two(job):
    """Kills a rank, and the one that has the copy of its part."""
    for rank in (1, 2):
        job.kill(worker_of_rank(job, rank))


@pytest.mark.slow
def test_a_rank_and_its_copy_are_lost(start, tmp_path):
    """Training goes back to the newest checkpoint, and is the same in the end."""
    with start(3, saves=True, min_np=1) as job:
        saved = Checkpointer(str(tmp_path / "checkpoints"))
        job.wait(lambda: saved.latest() is not None)
        wait_for_batches(job, 3, 3)  # within an epoch
        [first] = {one["worker"] for one in job.said if one["rank"] == 0}
        kill_two(job)
        wait_for_batches(job, 3)
        text = job.stderr_of(first)
        assert "The optimizer states of rank 1 (of 3) after commit" in text
        assert "Training goes back to the checkpoint of step" in text
        assert_like_one_process(job, tmp_path)


@pytest.mark.slow
def test_without_a_checkpoint_it_is_an_error(start):
    with start(3, min_np=1) as job:
        wait_for_batches(job, 3, 5)
        [first] = {one["worker"] for one in job.said if one["rank"] == 0}
        kill_two(job)
        job.wait(lambda: first in job.exit_codes)
        assert job.exit_codes[first] == 1
        text = job.stderr_of(first)
    assert "The optimizer states of rank 1 (of 3) after commit" in text
    assert "Start again from a checkpoint." in text
