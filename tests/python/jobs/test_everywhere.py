"""What users' programs do with a rank: child processes, threads, saved models."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from launcher_tools import run, write_script

SAVE = """
    import sys
    import keras, tensorflow as tf
    import tfring as hvd

    class Layer(keras.layers.Layer):
        def call(self, x):
            return x * hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum)

    class Trainer(tf.Module):
        def __init__(self):
            self.weights = tf.Variable([1.0, 2.0])

        @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
        def step(self, x):
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                y = self.weights
                for _ in tf.range(2):
                    y = hvd.allreduce(y * x)
                loss = tf.reduce_sum(y)
            self.weights.assign_sub(tape.gradient(loss, self.weights))
            return hvd.allreduce(loss, op=hvd.Sum)

    hvd.init()
    trainer = Trainer()
    trainer.step(tf.ones(2))
    if hvd.rank() == 0:
        tf.saved_model.save(trainer, sys.argv[1] + "/trainer")
        keras.Sequential([keras.Input((2,)), Layer()]).export(sys.argv[1] + "/layer")
    hvd.barrier()
    again = tf.saved_model.load(sys.argv[1] + "/trainer")
    assert float(again.step(tf.ones(2))) == 2.0 * 1.0
"""

LOAD = """
    import sys
    import tensorflow as tf
    import tfring as hvd

    hvd.load_ops()
    trainer = tf.saved_model.load(sys.argv[1] + "/trainer")
    try:
        trainer.step(tf.ones(2))
        raise AssertionError("it ran without init")
    except tf.errors.FailedPreconditionError as error:
        assert "call init() first" in str(error), error
    hvd.init()
    assert float(trainer.step(tf.ones(2))) == 2.0 * 1.0
    layer = tf.saved_model.load(sys.argv[1] + "/layer")
    assert layer.serve(tf.ones([1, 2])).numpy().tolist() == [[4.0, 4.0]]
"""

THREADS = """
    import threading
    import tensorflow as tf
    import tfring as hvd

    hvd.init()
    failures = []

    def work(number):
        @tf.function
        def step(x):
            return hvd.allreduce(x, op=hvd.Sum, name=f"function.{number}")

        try:
            for i in range(20):
                x = tf.constant(float(100 * number + i))
                eager = hvd.allreduce(x, op=hvd.Sum, name=f"eager.{number}")
                assert float(eager) == float(step(x)) == 2 * (100 * number + i)
        except BaseException as error:
            failures.append(error)
            raise

    order = range(6) if hvd.rank() == 0 else reversed(range(6))
    threads = [threading.Thread(target=work, args=(n,)) for n in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
"""

THREADS_WITHOUT_NAMES = """
    import threading
    import tensorflow as tf
    import tfring as hvd

    hvd.init()
    together, told = threading.Barrier(6), []

    def work():
        together.wait()
        try:
            told.append(float(hvd.allreduce(tf.constant(3.0), op=hvd.Sum)))
        except tf.errors.FailedPreconditionError as error:
            told.append(str(error))
        together.wait()  # the thread whose calls count is alive as long as the others call

    for _ in range(5):
        told.clear()
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [text for text in told if isinstance(text, str)]
        assert len(refused) == 5 and told.count(6.0) == 1, told
        assert all("thread" in text and "name" in text for text in refused), refused
"""


def test_processes_started_by_a_rank(tmp_path):
    """Forked and spawned workers and subprocesses know their rank; none of them joins the job."""
    path = write_script(
        tmp_path,
        """
    import multiprocessing, subprocess, sys
    import numpy as np
    import tfring as hvd
    from tfring.runtime._native import core

    hvd.init()

    def who(_):
        return hvd.rank(), hvd.size(), hvd.local_rank(), hvd.is_initialized()

    def refused(_):
        try:
            hvd.allreduce(1.0)
        except Exception as error:
            return type(error).__name__, str(error)

    if __name__ == "__main__":
        mine = (hvd.rank(), 2, hvd.rank(), False)
        for method in ("fork", "spawn"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                assert pool.map(who, [0, 1]) == [mine] * 2, method
                if method == "spawn" and hvd.rank() == 1:
                    name, text = pool.apply(refused, (0,))
                    assert name == "FailedPreconditionError" and "started by rank" in text, text
        code = "import tfring as hvd; print(hvd.rank(), flush=True); hvd.init()"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert child.returncode == 1 and child.stdout == f"{hvd.rank()}\\n", child
        assert f"this process was started by rank {hvd.rank()}" in child.stderr, child.stderr
        alone = {"TFRING_X_PARENT": "", "TFRING_X_RANK": "", "TFRING_X_SIZE": ""}
        code = "import os; os.environ.update(%r); import tfring as hvd; hvd.init()" % alone
        subprocess.run([sys.executable, "-c", code], check=True)
        assert core.allgather(np.array([hvd.rank()]), name="ranks").tolist() == [0, 1]
    """,
    )
    done = run("-np", 2, sys.executable, path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_saved_models(tmp_path: Path) -> None:
    """A traced step and a layer with collectives can be saved, and run elsewhere after init."""
    for text in (SAVE, LOAD):
        done = run("-np", 2, sys.executable, write_script(tmp_path, text), tmp_path)
        assert done.returncode == 0, done.stderr


def test_threads(tmp_path: Path) -> None:
    """Named collectives and functions in any order; of calls without names one thread's count."""
    texts = [textwrap.dedent(text) for text in (THREADS, THREADS_WITHOUT_NAMES)]
    path = write_script(tmp_path, "\nhvd.shutdown()\n".join(texts))
    done = run("-np", 2, sys.executable, path)
    assert done.returncode == 0, done.stderr


def test_a_script_without_its_python(tmp_path):
    path = write_script(tmp_path, "import sys; print(sys.executable)")
    done = run("-np", 2, path)
    assert done.returncode == 0 and done.stdout.count(sys.executable) == 2, done.stderr


def test_run_in_a_thread_and_interrupted(tmp_path):
    path = write_script(
        tmp_path,
        """
    import os, signal, threading, time
    import tfring

    def started():
        open(os.environ["STARTED"], "w").close()
        time.sleep(60)

    if __name__ == "__main__":
        found = []
        thread = threading.Thread(target=lambda: found.append(tfring.run(lambda: 5, np=2)))
        thread.start()
        thread.join(60)
        assert found == [[5, 5]], found

        os.environ["STARTED"] = __file__ + ".started"

        def interrupt():
            while not os.path.exists(os.environ["STARTED"]):
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            tfring.run(started, np=1)
        except Exception as error:
            raise AssertionError("an except clause swallowed Ctrl-C") from error
        except KeyboardInterrupt:
            print("interrupted")
    """,
    )
    done = run("-np", 1, sys.executable, path)
    assert done.returncode == 0 and "interrupted" in done.stdout, done.stderr
