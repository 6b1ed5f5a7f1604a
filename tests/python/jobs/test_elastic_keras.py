"""Elastic jobs that train with Keras' fit, whose ranks are killed and replaced while they do."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from elastic_jobs import REPORT, ElasticJob, wait_for_batches, worker_of_rank
from launcher_tools import LIMIT_SECONDS, environment, write_script

from tfring.checkpoint import Checkpointer

pytest.importorskip("tfring.runtime._native")

# Arguments: a folder and a number of epochs. The file "stop" in the folder ends the training
# after an epoch.
FIT = """
    import sys
    import keras
    import numpy as np

    FOLDER, EPOCHS = sys.argv[1], int(sys.argv[2])
    SAMPLES, BATCH = 53, 12

    def asked(name):
        return os.path.exists(f"{FOLDER}/{name}")

    rng = np.random.default_rng(3)
    x = rng.normal(size=(SAMPLES, 6))
    y = np.tanh(x @ rng.normal(size=(6, 2)))

    keras.config.set_floatx("float64")  # so that other orders of adding up make no difference

    class Watch(keras.callbacks.Callback):
        begun, ended = [], []

        def on_epoch_begin(self, epoch, logs=None):
            self.begun.append(epoch)

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.01 if EPOCHS > 9999 else 0)
            step = int(self.model.optimizer.iterations)
            say("batch", epoch=self.begun[-1], batch=batch, step=step)

        def on_epoch_end(self, epoch, logs=None):
            self.ended.append(epoch)
            self.model.stop_training = asked("stop")

    hvd.init()
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(2)]
    model = keras.Sequential([keras.layers.Input((6,)), *layers])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001), num_groups=2)
    model.compile(optimizer, "mse", jit_compile=False)
    watch = Watch()
    history = hvd.elastic.fit(
        model,
        (x, y),
        epochs=EPOCHS,
        policy=BATCH,
        callbacks=[watch],
        checkpoint=f"{FOLDER}/checkpoints",
        verbose=0,
    )
    weights = [w.numpy().tolist() for w in model.trainable_weights]
    more = {"begun": watch.begun, "ended": watch.ended, "iterations": int(optimizer.iterations)}
    say("end", weights=weights, epochs=history.epoch, **more)
"""

FOREVER = 1_000_000


@pytest.fixture
def start(tmp_path):
    """Starts a job whose script trains until it is told to stop."""

    def started(slots, text, **options):
        header = "import tfring.keras as hvd\n" + REPORT
        script = write_script(tmp_path, text, header=header)
        return ElasticJob(script, tmp_path, FOREVER, slots=slots, **options)

    return started


def end_a_moment_later(job, rank, dice, number=signal.SIGKILL):
    """Sends a signal to a rank in the middle of a batch; returns its worker."""
    worker = worker_of_rank(job, rank)
    time.sleep(dice.random() * 0.03)
    job.kill(worker, number)
    return worker


def clean_run(tmp_path, epochs):
    """The result of an undisturbed run of one process."""
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "nothing"), str(epochs)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_fit_goes_on_when_a_rank_is_killed(start, tmp_path):
    """It is rank 0. No step is lost or done twice."""
    with start(2, FIT, min_np=1) as job:
        first = wait_for_batches(job, 2)
        killed = end_a_moment_later(job, 0, random.Random(17))
        wait_for_batches(job, 1)
        (tmp_path / "stop").touch()
        assert job.wait_for_end() == (0, "the training is over")
        ends = job.lines("end")
    [survivor] = first - {killed}
    mine = next(one for one in ends if one["worker"] == survivor)
    epochs = mine["epochs"][-1] + 1
    assert mine["begun"] == mine["ended"] == list(range(epochs))
    steps_of_an_epoch = 5  # SAMPLES in batches of BATCH, the last one smaller
    assert {one["iterations"] for one in ends} == {epochs * steps_of_an_epoch}
    saved = Checkpointer(str(tmp_path / "checkpoints")).latest()
    assert saved is not None and saved.step == mine["iterations"]


@pytest.mark.slow
def test_fit_with_five_changes_is_fit_with_none(start, tmp_path):
    """Two ranks are killed and one leaves, others join; no step is lost or done twice."""
    dice = random.Random(11)
    with start(3, FIT, min_np=1) as job:
        first = wait_for_batches(job, 3, dice.randint(1, 9))
        killed = {end_a_moment_later(job, 2, dice)}
        wait_for_batches(job, 2, dice.randint(1, 9))
        wait_for_batches(job, 3, dice.randint(1, 9))
        killed.add(end_a_moment_later(job, 0, dice))
        left = wait_for_batches(job, 2, dice.randint(1, 9))
        leaver = end_a_moment_later(job, 1, dice, signal.SIGTERM)
        job.wait(lambda: leaver in job.exit_codes)
        wait_for_batches(job, 3)
        (tmp_path / "stop").touch()
        assert job.wait_for_end() == (0, "the training is over")
        ends = job.lines("end")
    [survivor] = first - killed
    assert leaver != survivor and job.exit_codes[leaver] == 76
    assert survivor in left and len(ends) == 3
    mine = next(one for one in ends if one["worker"] == survivor)
    assert mine["pid"] == job.pids[survivor]
    epochs = mine["epochs"][-1] + 1
    assert mine["begun"] == mine["ended"] == list(range(epochs))
    assert all(one["epochs"] == list(range(epochs)) for one in ends)
    assert all(one["weights"] == mine["weights"] for one in ends)
    saved = Checkpointer(str(tmp_path / "checkpoints")).latest()
    assert saved is not None and saved.step == mine["iterations"]
    clean = clean_run(tmp_path, epochs)
    assert clean["epochs"] == list(range(epochs))
    assert {one["iterations"] for one in ends} == {clean["iterations"]}
    for ours, theirs in zip(mine["weights"], clean["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
