"""Elastic jobs whose optimizer states are sharded: ranks are killed, and others take their place.

The training has to be that of one process with the plain optimizer.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from elastic_jobs import REPORT, ElasticJob, wait_for_batches, worker_of_rank
from launcher_tools import LIMIT_SECONDS, environment, write_script

from tfring.checkpoint import Checkpointer

pytest.importorskip("tfring.runtime._native")

# Arguments: a folder, a number of epochs, the optimizer, and whether there are checkpoints. The
# file "stop" in the folder ends the training after an epoch. The file "die.PLACE.RANK" kills a rank
# at a place.
FIT = """
    import signal, sys
    import keras
    import numpy as np
    from tfring.keras.elastic.state_parts import StateParts

    FOLDER, EPOCHS, KIND, SAVES = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "True"
    SAMPLES, BATCH = 53, 12

    def die(place):
        file = f"{FOLDER}/die.{place}.{hvd.rank()}"
        if os.path.exists(file):
            os.remove(file)
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(name):
        original = getattr(StateParts, name)

        def method(self, *arguments):
            die(f"before {name}")
            result = original(self, *arguments)
            die(f"after {name}")
            return result

        setattr(StateParts, name, method)

    for name in ("exchange", "settle", "choose", "take", "_swap"):
        dying(name)

    rng = np.random.default_rng(3)
    x = rng.normal(size=(SAMPLES, 6))
    y = np.tanh(x @ rng.normal(size=(6, 2)))

    keras.config.set_floatx("float64")  # so that other orders of adding up make no difference

    class Watch(keras.callbacks.Callback):
        epoch = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_begin(self, batch, logs=None):
            die("step")

        def on_train_batch_end(self, batch, logs=None):
            die("committed")
            time.sleep(0.01 if EPOCHS > 9999 else 0)
            step = int(self.model.optimizer.iterations)
            say("batch", epoch=self.epoch, step=step)

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = os.path.exists(f"{FOLDER}/stop")

    hvd.init()
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(17, activation="tanh"), keras.layers.Dense(2)]
    model = keras.Sequential([keras.layers.Input((6,)), *layers])
    how = {"global_clipnorm": 0.5} if KIND == "Lamb" else {}
    optimizer = getattr(keras.optimizers, KIND)(0.003, **how)
    optimizer = hvd.DistributedOptimizer(optimizer, shard_states=True)
    model.compile(optimizer, "mse", jit_compile=False)
    history = hvd.elastic.fit(
        model,
        (x, y),
        epochs=EPOCHS,
        policy=BATCH,
        callbacks=[Watch(), keras.callbacks.LearningRateScheduler(lambda e: 0.003 / (1 + e % 3))],
        checkpoint=f"{FOLDER}/checkpoints" if SAVES else None,
        verbose=0,
    )
    weights = [w.numpy().tolist() for w in model.trainable_weights]
    states = sum(v.numpy().size for v in optimizer.variables)
    more = {"iterations": int(optimizer.iterations), "states": states}
    say("end", weights=weights, epochs=history.epoch, **more)
"""

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

FOREVER = 1_000_000
PLACES = (
    "step",
    "before exchange",
    "before _swap",
    "after _swap",
    "after exchange",
    "committed",
    "before settle",
    "after settle",
)


@pytest.fixture
def start(tmp_path):
    """Starts a job whose script trains until it is told to stop."""

    def started(slots, kind="Adam", saves=False, **options):
        header = "import tfring.keras as hvd\n" + REPORT
        script = write_script(tmp_path, FIT, header=header)
        return ElasticJob(script, tmp_path, FOREVER, kind, saves, slots=slots, **options)

    return started


def let_die(job, folder, place, rank):
    """Kills a rank at a place, and waits until others train without it, and with a new one."""
    before = set(job.exit_codes)
    (folder / f"die.{place}.{rank}").touch()
    job.wait(lambda: set(job.exit_codes) - before)
    wait_for_batches(job, 3)


def alone(folder, *arguments):
    """What one process says at its end."""
    command = [sys.executable, folder / "script.py", folder / "nothing", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment()
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def assert_like_one_process(job, folder, kind="Adam", ranks=3):
    """Ends the training, and compares it with that of one process."""
    (folder / "stop").touch()
    assert job.wait_for_end() == (0, "the training is over")
    ends = job.lines("end")
    assert len(ends) == ranks
    epochs = ends[0]["epochs"][-1] + 1
    clean = alone(folder, str(epochs), kind, "False")
    assert {one["iterations"] for one in ends} == {clean["iterations"]}
    assert max(one["states"] for one in ends) < clean["states"] * 0.8
    for one in ends:
        assert one["epochs"] == list(range(epochs))
        assert_same(one, clean)


def assert_same(one, other):
    for ours, theirs in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_a_killed_rank_takes_no_states_with_it(start, tmp_path):
    """Three ranks, two, and three again."""
    with start(3, min_np=2) as job:
        wait_for_batches(job, 3, 5)
        let_die(job, tmp_path, "after exchange", 1)
        assert_like_one_process(job, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Adam", "Lamb"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_is_killed_at_each_place_of_a_step(start, tmp_path, kind, rank):
    with start(3, kind, min_np=2) as job:
        wait_for_batches(job, 3, 5)
        for place in PLACES:
            let_die(job, tmp_path, place, rank)
        assert_like_one_process(job, tmp_path, kind)


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
