"""Elastic jobs whose optimizer states are sharded, and whose ranks are killed at chosen places."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import numpy as np
from elastic_jobs import HOST, REPORT, ElasticJob, wait_for_batches
from launcher_tools import LIMIT_SECONDS, environment, write_script

from tfring.training.shard_moves import holders

FOREVER = 1_000_000

# Arguments: a folder; and, all or none: a number of epochs, the optimizer, and whether there are
# checkpoints. The file "stop" in the folder ends the training after an epoch. The file
# "die.PLACE.RANK" kills a rank at a place, "die.PLACE.RANK of SIZE" only among so many ranks.
_FIT = """
    import signal, sys
    import keras
    import numpy as np
    from tfring.keras.elastic.state import KerasState
    from tfring.keras.elastic.state_parts import StateParts

    _, FOLDER, *MORE = sys.argv
    EPOCHS, KIND, SAVES = MORE or ("1000000", "Adam", "False")
    EPOCHS = int(EPOCHS)
    SAMPLES, BATCH = 53, 12
    WORKER = int(os.environ.get("TFRING_X_ELASTIC_WORKER", 0))

    def note(event, **more):
        host = os.environ.get("TFRING_X_ELASTIC_HOST")
        say(event, t=time.monotonic(), worker=WORKER, host=host, **more)

    def die(place):
        rank, size = hvd.rank(), hvd.size()
        for file in (f"{FOLDER}/die.{place}.{rank}", f"{FOLDER}/die.{place}.{rank} of {size}"):
            if os.path.exists(file):
                os.remove(file)
                note("dies", place=place)
                os.kill(os.getpid(), signal.SIGKILL)

    within = []  # the methods that run

    def dying(name):
        original = getattr(StateParts, name)

        def method(self, *arguments):
            place = " in ".join([name, *within[-1:]])
            die(f"before {place}")
            within.append(name)
            try:
                result = original(self, *arguments)
            finally:
                within.pop()
            if name == "settle":
                note("settled", commit=self._versions.kept[-1][0].commit)
            if name == "take":
                version, _, _, lost = arguments[0]
                note("taken", commit=version.commit if version else 0, lost=list(lost))
            die(f"after {place}")
            return result

        setattr(StateParts, name, method)

    for name in ("exchange", "settle", "choose", "take", "_move", "_swap"):
        dying(name)

    restore = KerasState.restore

    def restored(self):
        note("noticed")
        restore(self)

    KerasState.restore = restored

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
            time.sleep(0.05 if EPOCHS > 9999 else 0)  # so that one process soon does as much
            step = int(self.model.optimizer.iterations)
            note("batch", epoch=self.epoch, step=step)

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
        checkpoint=f"{FOLDER}/checkpoints" if SAVES == "True" else None,
        verbose=0,
    )
    weights = [w.numpy().tolist() for w in model.trainable_weights]
    states = sum(v.numpy().size for v in optimizer.variables)
    more = {"iterations": int(optimizer.iterations), "states": states}
    note("end", weights=weights, epochs=history.epoch, **more)
"""
FIT = "import tfring.keras as hvd\n" + REPORT + textwrap.dedent(_FIT)

# Where a rank is killed in a step,
PLACES = (
    "step",
    "before exchange",
    "before _swap in exchange",
    "after _swap in exchange",
    "after exchange",
    "committed",
    "before settle",
    "after settle",
)
# and after the loss of another one.
PLACES_OF_RECOVERY = (
    "before choose",
    "after choose",
    "before take",
    "before _move in take",
    "before _swap in _move",
    "after _swap in _move",
    "after _move in take",
    "after take",
)


def start_job(folder, slots, kind="Adam", saves=False, **options):
    """Starts a job whose script trains until it is told to stop."""
    script = write_script(folder, FIT)
    return ElasticJob(script, folder, FOREVER, kind, saves, slots=slots, **options)


def let_die(job, folder, *kills, ranks):
    """Kills ranks at places, and waits until others train without them, and `ranks` again.

    Args:
        job: the ElasticJob.
        folder: its folder.
        *kills: pairs of a place and a rank, or "RANK of SIZE".
        ranks: of the whole job.
    """
    before = set(job.exit_codes)
    plan_deaths(folder, kills)
    job.wait(lambda: len(set(job.exit_codes) - before) >= len(kills))
    wait_for_batches(job, ranks)
    left = sorted(folder.glob("die.*"))
    assert not left, "a rank was not killed where it should have been"


def plan_deaths(folder, kills):
    """Makes the files that kill ranks; `kills` as for let_die.

    The last one comes first: no rank is at its place before the loss of the one before.
    """
    for place, rank in reversed(kills):
        (folder / f"die.{place}.{rank}").touch()


def in_order(said):
    """Returns the lines that have a time, by that time."""
    return sorted((one for one in said if "t" in one), key=lambda one: one["t"])


def pairs_without_copies(ranks):
    """Returns the pairs of ranks of one host that hold no copy of each other's part."""
    by = holders([HOST] * ranks)
    pairs = ((one, other) for one in range(ranks) for other in range(ranks) if one != other)
    return [(one, other) for one, other in pairs if other not in by[one] and one not in by[other]]


def lost_commits(said):
    """Returns how many commits had returned somewhere, and the ranks went on without them."""
    assert any(line["event"] == "settled" for line in said), "no commit has returned"
    newest = lost = 0
    for line in in_order(said):
        if line["event"] == "settled":
            newest = max(newest, line["commit"])
        elif line["event"] == "taken":
            lost += max(0, newest - line["commit"])
            newest = line["commit"]
    return lost


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
    assert_ends_like_one_process(job.said, folder, kind, ranks)


def assert_ends_like_one_process(said, folder, kind="Adam", ranks=3):
    """Compares what all ranks say at the end with what one process says."""
    ends = [one for one in said if one["event"] == "end"]
    assert len(ends) == ranks
    epochs = ends[0]["epochs"][-1] + 1
    clean = alone(folder, str(epochs), kind, "False")
    assert {one["iterations"] for one in ends} == {clean["iterations"]}
    if ranks > 1:
        assert max(one["states"] for one in ends) < clean["states"] * 0.8
    for one in ends:
        assert one["epochs"] == list(range(epochs))
        assert_same(one, clean)


def assert_same(one, other):
    for ours, theirs in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
