"""A training whose number of ranks changes while a test watches, for jobs on Ray and Spark."""

import queue
import threading
import time

SECONDS = 240


def training(folder):
    """Counts steps together until a file says stop; each rank reports the number of ranks."""

    def train():
        import json
        import os
        import time

        import numpy as np

        import tfring as hvd
        from tfring.runtime._native import core

        def broadcast(data, root_rank):  # without TensorFlow, which takes seconds to load
            data = np.frombuffer(json.dumps(data).encode(), np.uint8)
            size = core.broadcast(np.array([data.size]), name="size", root=root_rank)
            data = data if hvd.rank() == root_rank else np.empty(int(size[0]), np.uint8)
            return json.loads(core.broadcast(data, name="data", root=root_rank).tobytes())

        hvd.init()
        state = hvd.elastic.ObjectState(broadcast, hvd.rank, step=0, sizes=[])

        @hvd.elastic.run
        def loop(state):
            while True:
                stop = os.path.exists(f"{folder}/stop")
                mine = np.array([int(stop), 1], dtype=np.int64)
                total = core.allreduce(mine, name="step", op=1)
                state.step += 1
                if total[1] not in state.sizes[-1:]:
                    state.sizes = [*state.sizes, int(total[1])]
                if hvd.rank() == 0:
                    with open(f"{folder}/new", "w") as file:
                        file.write(" ".join(map(str, state.sizes)))
                    os.rename(f"{folder}/new", f"{folder}/sizes")
                if total[0]:
                    return state.sizes
                time.sleep(0.02)
                state.commit()

        sizes = loop(state)
        return hvd.rank(), state.step, sizes

    return train


def wait_for(folder, size, since=0):
    """Waits until the job has had this many ranks; returns the number of changes so far."""
    until = time.monotonic() + SECONDS
    while True:
        path = folder / "sizes"
        sizes = path.read_text().split() if path.exists() else []
        if str(size) in sizes[since:]:
            return sizes.index(str(size), since) + 1
        assert time.monotonic() < until, f"there were never {size} ranks, but {sizes}"
        time.sleep(0.1)


class Job(threading.Thread):
    """Runs a job in a second thread; stops its training at the end.

    `run_job` gets the training function and returns the results of the ranks.
    """

    def __init__(self, run_job, folder):
        super().__init__(daemon=True)  # a job that hangs must not keep the tests from ending
        self._run_job, self._folder = run_job, folder
        self._outcome = queue.SimpleQueue()

    def run(self):
        try:
            self._outcome.put((self._run_job(training(str(self._folder))), None))
        except BaseException as error:
            self._outcome.put((None, error))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        (self._folder / "stop").touch()
        self.join(SECONDS)
        assert not self.is_alive(), f"the job did not end within {SECONDS} s of the word stop"

    def results(self):
        """The results of the ranks."""
        results, error = self._outcome.get_nowait()
        if error is not None:
            raise error
        return results
