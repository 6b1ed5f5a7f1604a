"""Elastic jobs of `tfring run` as a user starts them, watched from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time

from launcher_tools import LIMIT_SECONDS, run_command, start_command, write_script

# Trains without TensorFlow: a step is an allreduce, the weight is a hash of all steps so far. The
# first argument is a folder; files in it tell the ranks what to do.
TRAINING = """
    import json, os, sys, time
    import numpy as np
    import tfring as hvd
    from tfring.runtime._native import core

    FOLDER, WORKER = sys.argv[1], int(os.environ["TFRING_X_ELASTIC_WORKER"])
    HOST = os.environ["TFRING_X_ELASTIC_HOST"]

    def say(event, **more):
        line = {"event": event, "worker": WORKER, "pid": os.getpid(), "host": HOST, **more}
        os.write(1, (json.dumps(line) + "\\n").encode())

    def asked(name):
        return os.path.exists(f"{FOLDER}/{name}")

    def broadcast(value, root_rank):
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        size = core.broadcast(np.array([data.size]), name="size", root=root_rank)
        data = data if hvd.rank() == root_rank else np.empty(int(size[0]), np.uint8)
        return json.loads(core.broadcast(data, name="data", root=root_rank).tobytes())

    say("start", variables={k: v for k, v in os.environ.items() if k.startswith("HOROVOD_")})
    hvd.init()

    @hvd.elastic.run
    def train(state):
        members = core.allreduce(np.eye(hvd.size(), dtype=np.int64)[hvd.rank()] * WORKER,
                                 name="members", op=1).tolist()
        say("train", rank=hvd.rank(), size=hvd.size(), step=state.step, members=members,
            local_rank=hvd.local_rank())
        while True:
            if asked(f"raise.{WORKER}") or asked(f"raise.{HOST}") or asked("raise.all"):
                raise ValueError("the disk is full")
            stop = core.allreduce(np.array([int(asked("stop"))]), name="stop", op=4)[0]
            if stop:
                return state.step
            time.sleep(0.005)
            state.history = (state.history * 31 + state.step) % 1000003
            state.step += 1
            state.commit()

    state = hvd.elastic.ObjectState(broadcast, hvd.rank, step=0, history=7)
    steps = train(state)
    say("end", rank=hvd.rank(), step=steps, history=state.history)
"""


def history_of(steps):
    """The result of the training above after this many steps."""
    value = 7
    for step in range(steps):
        value = (value * 31 + step) % 1000003
    return value


class ElasticRun:
    """A job of `tfring run`; `said` holds the lines of its workers, `errors` all others."""

    def __init__(self, folder, *options, script=TRAINING, inside=(), **environment):
        """Starts the job.

        Args:
            folder: folder of the script and of the files that it looks for.
            *options: options of `tfring run`.
            script: the workers' program; it gets the folder as its argument.
            inside: words before `tfring run` on the command line.
            **environment: additional environment variables.
        """
        self.folder, self.said, self.errors, self.output = folder, [], [], []
        path = write_script(folder, script)
        self._condition = threading.Condition()  # guards `said` and `errors`
        # So that all ranks start before the first generation on a slow machine, too.
        command = run_command(
            "--start-timeout", LIMIT_SECONDS, *options, sys.executable, path, folder
        )
        self.process = start_command([*inside, *command], **environment)
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, lines), daemon=True)
            for pipe, lines in (
                (self.process.stdout, self.output),
                (self.process.stderr, self.errors),
            )
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        if kind is not None:
            with self._condition:
                print(*self.errors[-80:], *self.said[-40:], sep="\n")
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(LIMIT_SECONDS)

    def ask(self, name):
        """Creates a file that the workers look for."""
        (self.folder / name).write_text("")

    def take_back(self, name):
        """Removes that file."""
        (self.folder / name).unlink()

    def wait(self, what):
        """Waits until what() is true and returns it; checks at every line."""
        deadline = time.monotonic() + LIMIT_SECONDS
        with self._condition:
            while not (found := what()):
                assert time.monotonic() < deadline, "waited for too long"
                assert self.process.poll() is None or self._ended(), "the job is over"
                self._condition.wait(0.2)
            return found

    def _ended(self):
        return any(reader.is_alive() for reader in self._readers)

    def trains(self, wanted, after=0):
        """Waits until the wanted workers train together; returns their ids in rank order.

        Args:
            wanted: called with the ids; returns whether they are the wanted ones.
            after: number of lines of `said` to skip.
        """

        def find():
            for line in reversed(self.said[after:]):
                if line["event"] == "train" and wanted(line["members"]):
                    return line["members"]
            return None

        return self.wait(find)

    def pid(self, worker):
        """The process id of a worker."""
        return next(line["pid"] for line in self.said if line["worker"] == worker)

    def kill(self, worker, number=signal.SIGKILL):
        """Sends a signal to a worker."""
        os.kill(self.pid(worker), number)

    def heard(self, pattern):
        """Waits until the launcher prints a match of a regular expression; returns the match."""
        return self.wait(
            lambda: next(filter(None, (re.search(pattern, e) for e in self.errors)), 0)
        )

    def finish(self):
        """Waits for the end of the job; returns its exit code."""
        code = self.process.wait(LIMIT_SECONDS)
        for reader in self._readers:
            reader.join(LIMIT_SECONDS)
        return code

    def _read(self, pipe, lines):
        for line in pipe:
            with self._condition:
                lines.append(line.rstrip("\n"))
                if found := re.match(r"(?:(?:worker )?\d+\| )?(\{.*)", line):
                    self.said.append(json.loads(found[1]))
                self._condition.notify_all()
        pipe.close()
