"""The mistakes of a first day, and the message of `tfring run` for each.

A mistake keeps its number, because tests are named after it. A letter marks a variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mistake:
    """A mistake, made with `tfring run` on this host.

    On a busy host one rank may be stopped before it prints what all would print; so no text begins
    with "All 2 ranks".

    Attributes:
        number: Its number, with a letter for variants.
        title: The mistake in words.
        what: Text in the line that says what is wrong; "" if nothing is.
        do: Text that says what to do, in that line or in one of the two after it.
        code: The exit code.
        program: The ranks' program, in processes that have TensorFlow; "": one that says hello.
        options: Words before the program on the command line.
        behind: Words behind it.
        environment: Additional environment variables.
        cores: The number of cores the job may use; 0: all.
        slow: Takes seconds, and shows what quicker tests show as well.
    """

    number: str
    title: str
    what: str = ""
    do: str = ""
    code: int = 1
    program: str = ""
    options: str = "-np 2"
    behind: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: int = 0
    slow: bool = False


def _program(rest: str, init: str = "hvd.init()", seed: str = "7", units: str = "8") -> str:
    return f"""\
import os, sys, time
import keras
import numpy as np
import tensorflow as tf
import tfring.keras as hvd

{init}
rank = int(os.environ["TFRING_X_RANK"])
keras.utils.set_random_seed({seed})
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x[:, :1] * 2
model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense({units}), keras.layers.Dense(1)]
)
sgd = keras.optimizers.SGD(0.01)
{rest}
"""


_COMPILE = 'model.compile(hvd.DistributedOptimizer(sgd), "mse", run_eagerly=True)\n'
_FIT = "model.fit(hvd.shard((x, y), batch_size=8), verbose=0, callbacks=hvd.fit_callbacks())\n"


def _loop(tape: str, **differs: str) -> str:
    return _program(
        f"""\
for bx, by in hvd.shard((x, y), batch_size=8):
    with {tape} as tape:
        loss = tf.reduce_mean((model(bx) - by) ** 2)
    sgd.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
""",
        **differs,
    )


def _in_callback(what: str) -> str:
    """A program whose rank 1 runs a statement after its third batch."""
    return _program(f"""\
{_COMPILE}
class Mine(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if rank == 1 and batch == 2:
            {what}

callbacks = [*hvd.fit_callbacks(), Mine()]
model.fit(hvd.shard((x, y), batch_size=8), verbose=0, callbacks=callbacks)
""")


_TAPE = "hvd.DistributedGradientTape(tf.GradientTape())"
_LONE = "Give compile() the result of hvd.DistributedOptimizer"
_SAME_WEIGHTS = "Add callbacks=hvd.fit_callbacks() to model.fit, or call hvd.broadcast_variables("
_COUNT = "is not a whole number from 1 to 100000."
_ON_RANK_1 = """\
import os
import tfring.keras as hvd
from tfring.job.bootstrap import records
if os.environ["TFRING_X_RANK"] == "1":
    {}
hvd.init()
"""

_PROGRAMS = (
    Mistake(
        "1",
        "no init",
        "tfring has not been initialized.",
        "Call hvd.init() at the beginning of the program.",
        program=_program(f"{_COMPILE}model.fit(x, y, verbose=0)", init=""),
    ),
    Mistake(
        "2",
        "rank() before init",
        "failed in train.py:2: NotInitializedError: tfring has not been initialized",
        "call init() first",
        program="import tfring.keras as hvd\nprint(hvd.rank())\n",
    ),
    Mistake(
        "3",
        "wrapped twice",
        "failed in train.py:16: ValueError: optimizer 'sgd' is wrapped by",
        "wrap it once",
        program=_program("hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd))"),
    ),
    Mistake(
        "4",
        "no DistributedOptimizer",
        "the model's optimizer 'sgd' (SGD) does not reduce gradients over the 2 ranks",
        "Give compile() what hvd.DistributedOptimizer returned.",
        program=_program(f'model.compile(sgd, "mse")\n{_FIT}'),
    ),
    Mistake(
        "5",
        "no callbacks",
        "RuntimeError: the ranks train different weights: element 0 of 'sequential/dense/kernel'",
        _SAME_WEIGHTS,
        program=_program(
            f"{_COMPILE}model.fit(hvd.shard((x, y), batch_size=8), verbose=0)", seed="rank"
        ),
    ),
    Mistake(
        "6",
        "a loop without a broadcast",
        "failed in train.py:19: RuntimeError: the ranks train different weights:",
        _SAME_WEIGHTS,
        program=_loop(_TAPE, seed="rank"),
    ),
    Mistake(
        "7",
        "a loop without a tape",
        "rank 0 of 2 has applied gradients to 'sequential/dense/kernel' and other variables but "
        "reduced none: it trained its own model.",
        "or take gradients from an hvd.DistributedGradientTape",
        0,
        _loop("tf.GradientTape()"),
    ),
    Mistake(
        "8",
        "nothing but init",
        "reduced none: it trained its own model.",
        _LONE,
        0,
        _program('model.compile(sgd, "mse", run_eagerly=True)\nmodel.fit(x, y, verbose=0)'),
    ),
    Mistake(
        "8b",
        "not even init",
        "no process called tfring.init(), so the 2 processes were programs of their own",
        "A script for Horovod needs --horovod.",
        0,
    ),
    Mistake(
        "9",
        "all data on every rank",
        "all 2 ranks have computed the same gradients in their first steps",
        "Give each rank its own part of the data: model.fit(hvd.shard((x, y), batch_size=32), ...)",
        0,
        _program(f"{_COMPILE}model.fit(x, y, verbose=0, batch_size=8)"),
    ),
    Mistake(
        "10",
        "other units on rank 1",
        "failed in train.py:17: RuntimeError: Rank 1 builds another model than rank 0: "
        "weight 1 is 'sequential/dense/kernel' of float32 (4, 9) there, 'sequential/dense/kernel' "
        "of float32 (4, 8) on rank 0",
        "Build the same model on every rank; look for code that depends on hvd.rank().",
        program=_program(_COMPILE + _FIT, units="8 + rank"),
    ),
    Mistake(
        "11",
        "one layer more on rank 1",
        "Rank 1 builds another model than rank 0: weight 5 is missing there",
        "(4 and 6 weights in all)",
        program=_program("if rank == 0:\n    model.add(keras.layers.Dense(1))\n" + _COMPILE + _FIT),
    ),
    Mistake(
        "12",
        "another learning rate",
        "1 rank has another learning rate than rank 0 (rank 1: 0.02).",
        "Give optimizer the same learning rate on every rank.",
        0,
        _program(f"sgd.learning_rate = 0.01 * (1 + rank)\n{_COMPILE}{_FIT}"),
        slow=True,
    ),
    Mistake(
        "13",
        "a package that rank 1 lacks",
        "failed in train.py:5: ModuleNotFoundError: No module named 'of_mine'.",
        "Install it for the Python of each host, or name its folder in PYTHONPATH.",
        program=_ON_RANK_1.replace("import tfring", "import tfring", 1).format("import of_mine"),
    ),
    Mistake(
        "14",
        "a firewall before the port where ranks meet",
        "rank 0 waited 3 s, and rank 1 of 2 did not come",
        "if they run on other hosts, check that they can reach 127.0.0.1 port",
        program=_ON_RANK_1.format(
            'os.environ.update(TFRING_RENDEZVOUS_ADDR="203.0.113.1", TFRING_START_TIMEOUT="99")'
        ),
        environment={"TFRING_START_TIMEOUT": "3"},
    ),
    Mistake(
        "15",
        "the same, as the rank behind it sees it",
        "rank 1 could not reach rank 0 at 203.0.113.1 port ",
        "check that its server runs, and that this host can reach it.",
        program=_ON_RANK_1.format(
            'os.environ.update(TFRING_RENDEZVOUS_ADDR="203.0.113.1", TFRING_START_TIMEOUT="1")'
        ),
    ),
    Mistake(
        "24",
        "another tfring",
        "rank 1 on host",
        "install the same version everywhere",
        program=_ON_RANK_1.format('records.__version__ = "0.2.0"'),
    ),
    Mistake(
        "25",
        "another TensorFlow",
        "has TensorFlow 2.19",
        "install the same version everywhere",
        program=_ON_RANK_1.format('records._tensorflow_version = lambda: "2.19.0"'),
        slow=True,
    ),
    Mistake(
        "26",
        "a TensorFlow that is not served",
        "ImportError: TensorFlow 2.19.0 is installed, but this tfring supports ",
        'Run: pip install "tensorflow==',
        program=_program('tf.__version__ = "2.19.0"\nhvd.allreduce(tf.ones(3))'),
    ),
    Mistake(
        "27",
        "a GPU is asked for and there is none",
        "TFRING_GPU_OPERATIONS=nccl, but rank 0 has no GPU (CUDA_VISIBLE_DEVICES=-1 hides all)",
        "Leave that variable out, or look at what `tfring doctor` says of GPUs.",
        0,
        "import tfring.keras as hvd\nhvd.init()\n",
        environment={"TFRING_GPU_OPERATIONS": "nccl", "CUDA_VISIBLE_DEVICES": "-1"},
    ),
    Mistake(
        "28",
        "no memory",
        "failed in train.py:21 (on_train_batch_end): _ArrayMemoryError: Unable to allocate "
        "3.64 TiB for an array with shape (1000000, 1000000)",
        "Use a smaller batch or model, or give the job more memory.",
        program=_in_callback("np.ones((1_000_000, 1_000_000), np.float32)"),
        slow=True,
    ),
    Mistake(
        "30",
        "kill -9",
        "Rank 1 was killed by SIGKILL from outside the job",
        "It was at train.py:",
        137,
        _in_callback("os.kill(os.getpid(), 9)"),
    ),
    Mistake(
        "31",
        "NaN",
        "The loss became NaN in step ",
        "Run again with TFRING_CHECK_VALUES=error: it stops at the first gradient that is NaN",
        0,
        _program(f'x[5] = float("nan")\n{_COMPILE}{_FIT}'),
        slow=True,
    ),
    Mistake(
        "34",
        "an exception in a callback of one rank",
        "failed in train.py:21 (on_train_batch_end): KeyError: 'image_id'.",
        "Rank 0 was stopped.",
        program=_in_callback('raise KeyError("image_id")'),
    ),
    Mistake(
        "35",
        "sys.exit on one rank",
        "Rank 1 called sys.exit(3) in train.py:21 (on_train_batch_end)",
        "while rank 0 still trained.",
        3,
        _in_callback("sys.exit(3)"),
    ),
    Mistake(
        "36",
        "init twice, and no shutdown",
        code=0,
        program="import tfring.keras as hvd\nhvd.init()\nhvd.init()\nhvd.allreduce(1.0)\n",
    ),
    Mistake(
        "38",
        "uneven steps",
        "the ranks differ in steps per epoch (rank 0: 8, rank 1: 4): they would wait",
        "Give every rank equally many batches",
        program=_program(
            f"{_COMPILE}n = 64 - 32 * rank\n"
            "model.fit(x[:n], y[:n], batch_size=8, verbose=0, callbacks=hvd.fit_callbacks())"
        ),
    ),
    Mistake(
        "39",
        "batches for shard",
        "shard got a dataset of batches, not of samples: its elements have the shapes (None, 4), "
        "(None, 1).",
        "Use hvd.shard_batches(dataset), which takes this rank's rows of each batch",
        program=_program(
            "hvd.shard(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), batch_size=8)"
        ),
    ),
    Mistake(
        "40",
        "a generator for shard",
        "shard needs a tf.data.Dataset, or arrays or tensors with one row per sample, not "
        "builtins.generator.",
        "For data in batches, such as a PyDataset or a generator, use hvd.shard_batches(data).",
        program=_program("hvd.shard((pair for pair in [(x, y)]), batch_size=8)"),
    ),
    Mistake(
        "41",
        "import horovod without --horovod",
        "failed in train.py:1: ModuleNotFoundError: No module named 'horovod'.",
        "Start the program with tfring run --horovod, and tfring stands in for horovod.",
        program="import horovod.tensorflow.keras as hvd\n",
    ),
    Mistake(
        "43",
        "a rank that is late",
        "rank 0 waited 2 s, and rank 1 of 2 did not come",
        "If they only need longer, raise TFRING_START_TIMEOUT",
        program=_ON_RANK_1.format("import time; time.sleep(60)"),
        environment={"TFRING_START_TIMEOUT": "2"},
    ),
)

_COMMANDS = (
    Mistake(
        "16",
        "the first host is unknown",
        "The host nodea.invalid is unknown: its name does not resolve here.",
        "Check -H or the host file, and /etc/hosts.",
        2,
        options="-H nodea.invalid:1,localhost:1",
    ),
    Mistake(
        "17",
        "the second host is unknown",
        "The host nodeb.invalid is unknown: its name does not resolve here.",
        "Check -H or the host file, and /etc/hosts.",
        2,
        options="-H localhost:1,nodeb.invalid:1",
    ),
    Mistake(
        "18",
        "ssh is refused",
        "Rank 1 on host 127.0.0.2 was lost: ssh could not reach the host, or lost it.",
        "Check that `ssh 127.0.0.2` reaches it without a password.",
        255,
        options="-H localhost:1,127.0.0.2:1 --ssh-port 1",
    ),
    Mistake(
        "19",
        "there is no ssh",
        "tfring cannot start its agent on host 127.0.0.2: there is no program ssh",
        "Install it on this host",
        2,
        options="-H localhost:1,127.0.0.2:1",
        environment={"PATH": "/nowhere"},
    ),
    Mistake("20", "no ranks", "-np/--num-proc: 0", _COUNT, 2, options="-np 0"),
    Mistake("20b", "fewer than none", "-np/--num-proc: -2", _COUNT, 2, options="-np -2"),
    Mistake("20c", "no number", "-np/--num-proc: two", _COUNT, 2, options="-np two"),
    Mistake("20d", "no -np", "The number of ranks is missing", "tfring run -np 2 ", 2, options=""),
    Mistake(
        "20e", "no program", "There is no program to run", "tfring run -np 2 ", 2, behind="none"
    ),
    Mistake(
        "21",
        "-np behind the program",
        "-np 2 stands behind the program and went to it.",
        "Write: tfring run -np 2 ",
        2,
        options="",
        behind="-np 2",
    ),
    Mistake("22", "--np", "there is no option --np.", "Did you mean -np?", 2, options="--np 2"),
    Mistake(
        "23",
        "more ranks than slots",
        "3 ranks need more slots than the 2 of all hosts",
        "Give each host its number, such as -H node1:4.",
        2,
        options="-np 3 -H localhost:2",
    ),
    Mistake(
        "23b",
        "more ranks than cores",
        "2 ranks share 1 core, which this host has: each step takes about 2 times as long",
        "Start fewer ranks, or name more hosts with -H.",
        0,
        cores=1,
    ),
    Mistake(
        "42",
        "an unknown variable",
        "the variable TFRING_FUSION_TRESHOLD is unknown and has no effect",
        "did you mean TFRING_FUSION_THRESHOLD?",
        0,
        "import tfring\ntfring.init()\n",
        environment={"TFRING_FUSION_TRESHOLD": "1"},
    ),
    Mistake(
        "42b",
        "an impossible value",
        'TFRING_FUSION_THRESHOLD is "64MB"',
        "has to be a whole number of bytes from 0 to ",
        2,
        environment={"TFRING_FUSION_THRESHOLD": "64MB"},
    ),
)

MISTAKES = (*_PROGRAMS, *_COMMANDS)
