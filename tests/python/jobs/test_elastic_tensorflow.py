"""Elastic jobs with custom loops in TensorFlow that lose ranks while they train."""

from __future__ import annotations

import pytest
from elastic_jobs import REPORT, ElasticJob, wait_for_commits, worker_of_rank
from launcher_tools import write_script

pytest.importorskip("tfring.runtime._native")

# A TensorFlow loop with a Keras model. Random values differ from rank to rank.
TAPE = """
    import sys
    import keras
    import numpy as np
    import tensorflow as tf

    WORKER = int(os.environ["TFRING_X_ELASTIC_WORKER"])
    FOLDER = sys.argv[1]

    def asked(name):
        return os.path.exists(f"{FOLDER}/{name}")

    hvd.init()
    say("up", worker=WORKER, local_rank=hvd.local_rank(), local_op=int(hvd.local_rank_op()))
    keras.utils.set_random_seed(WORKER)
    layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def train_step(x, fails):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - x[:, :1]) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        with tf.control_dependencies([tf.debugging.Assert(not fails, ["asked to fail"])]):
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    @hvd.elastic.run
    def train(state):
        say("train", step=state.step)
        while hvd.allreduce(tf.constant(float(asked("stop"))), op=hvd.Max, name="stop") == 0:
            x = np.random.default_rng([state.step, hvd.rank()]).normal(size=(8, 4))
            train_step(tf.constant(x, tf.float32), tf.constant(asked(f"raise.{WORKER}")))
            state.step += 1
            state.commit()
            say("commit", step=state.step)
        return state.step

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0)
    state.register_reset_callbacks([lambda: say("reset")])
    steps = train(state)
    weights = [w.numpy().tolist() for w in model.trainable_variables]
    say("end", steps=steps, iterations=int(optimizer.iterations), weights=weights)
"""


# A step that XLA compiles, with two reductions. A commit comes after each fourth one.
JITTED = """
    import hashlib, random, signal, sys, threading
    import keras
    import numpy as np
    import tensorflow as tf

    WORKER = int(os.environ["TFRING_X_ELASTIC_WORKER"])
    FOLDER = sys.argv[1]

    def asked(name):
        return os.path.exists(f"{FOLDER}/{name}")

    hvd.init()
    layers = [keras.layers.Dense(256, "tanh"), keras.layers.Dense(4)]
    model = keras.Sequential([keras.layers.Input((256,)), *layers])
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    groups = [layer.trainable_variables for layer in reversed(layers)]

    def values():
        found = [*model.weights, *optimizer.variables]
        return hashlib.sha256(b"".join(v.numpy().tobytes() for v in found)).hexdigest()

    @tf.function(jit_compile=True)
    def train_step(x):
        with hvd.DistributedGradientTape(tf.GradientTape(), groups=groups) as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    @hvd.elastic.run
    def train(state):
        say("train", step=state.step, values=values())
        while hvd.allreduce(tf.constant(float(asked("stop"))), op=hvd.Max, name="stop") == 0:
            dies = asked(f"die.{WORKER}") and state.step % 4 == 2
            if dies:
                moment = random.random() * 0.003
                threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
            train_step(tf.random.normal([64, 256]))
            if dies:
                time.sleep(60)  # it comes to no other step
            state.step += 1
            say("step", step=state.step, values=values())
            if state.step % 4 == 0:
                state.commit()
                say("commit", step=state.step, values=values())

    train(hvd.elastic.TensorFlowKerasState(model, optimizer, step=0))
"""


@pytest.fixture
def start(tmp_path):
    """Starts a job of one of the scripts above."""

    def started(slots, text, **options):
        header = "import tfring as hvd\n" + REPORT
        script = write_script(tmp_path, text, header=header)
        return ElasticJob(script, tmp_path, slots=slots, **options)

    return started


@pytest.mark.slow
def test_a_loop_of_tensorflow(start, tmp_path):
    """A rank is killed and replaced, and then the step of another rank fails."""
    with start(3, TAPE, min_np=1) as job:
        first = wait_for_commits(job, 3)
        killed = worker_of_rank(job, 0)
        job.kill(killed)
        wait_for_commits(job, 2)
        wait_for_commits(job, 3)
        failed, survivor = first - {killed}
        (tmp_path / f"raise.{failed}").touch()
        left = wait_for_commits(job, 2)
        assert failed not in left and survivor in left
        (tmp_path / "stop").touch()
        job.wait(lambda: job.end and {*left, failed} <= set(job.exit_codes))
        assert job.end == (0, "the training is over")
        assert job.exit_codes[failed] == 1 and "asked to fail" in job.stderr_of(failed)
        ends = job.lines("end")
        assert {one["worker"] for one in ends} >= left
        assert all(one["steps"] == one["iterations"] == ends[0]["steps"] for one in ends)
        assert all(one["weights"] == ends[0]["weights"] for one in ends)
        assert {one["pid"] for one in job.lines("commit", worker=survivor)} == {job.pids[survivor]}
        steps = [one["step"] for one in job.lines("commit", worker=survivor)]
        assert steps == sorted(set(steps))  # none came twice
        assert all(one["local_rank"] == one["local_op"] for one in job.lines("up"))


def test_a_rank_is_lost_in_a_step_that_xla_compiles(start, tmp_path):
    """XLA may have spoiled the variables; the others still go on from the last commit."""
    with start(2, JITTED, min_np=1) as job:
        killed, survivor = sorted(wait_for_commits(job, 2, 1))
        (tmp_path / f"die.{killed}").touch()
        wait_for_commits(job, 1, 1)
        (tmp_path / "stop").touch()
        assert job.wait(lambda: job.end) == (0, "the training is over")
        said = [one for one in job.said if one["worker"] == survivor]
    again = max(n for n, one in enumerate(said) if one["event"] == "train" and one["size"] == 1)
    committed = max(n for n in range(again) if said[n]["event"] == "commit")
    assert said[again - 1]["event"] == "step"  # done after the commit, and gone
    assert said[again - 1]["values"] != said[committed]["values"]
    for what in ("step", "values"):
        assert said[again][what] == said[committed][what]
