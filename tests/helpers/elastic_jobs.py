"""Elastic jobs of real processes: a coordinator in this one starts workers as a launcher does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from launcher_tools import LIMIT_SECONDS, environment

from tfring.elastic.service import CoordinatorService
from tfring.job.environments.elastic import make_memory, memory_variables
from tfring.job.store import TCPStore
from tfring.runtime._native import core

SECRET = "7a" * 32
HOST = "localhost"
SECOND = 1_000_000_000

# The beginning of a worker's script. `say` writes a line of JSON in one piece.
REPORT = """
import json, os, time

def say(event, **more):
    line = {"event": event, "pid": os.getpid(), "rank": hvd.rank(), "size": hvd.size(), **more}
    os.write(1, (json.dumps(line) + "\\n").encode())
"""


class ElasticJob:
    """A job of one host. `said` holds the lines of all workers, in the order of arrival.

    Each line is a dictionary, with the worker's id added. Workers that end, and workers that the
    coordinator wants killed, are handled as by a launcher.
    """

    def __init__(self, script, *arguments, slots, env=None, kills=True, **options):
        """Starts the coordinator, which starts the workers.

        Args:
            script: path of the workers' program.
            *arguments: arguments of the program.
            slots: the number of slots of the host.
            env: additional environment variables of the workers.
            kills: whether to kill processes that the coordinator declared dead, as an agent does.
            **options: options of the coordinator; max_np defaults to `slots`.
        """
        self.said, self.notes, self.exit_codes, self.pids = [], [], {}, {}
        self.end = None  # code and reason
        self._command = [sys.executable, script, *map(str, arguments)]
        self._env = dict(env or {})
        self._errors = {}
        self._processes = {}
        self._condition = threading.Condition()  # guards all above
        self._first = True
        self._memory = make_memory()
        self._store = TCPStore("localhost", 0, is_master=True, secret=SECRET)
        self._readers = []
        self.service = CoordinatorService(
            self._store,
            _options(**{"max_np": slots, "np": slots, **options}),
            on_start=self._start,
            on_kill=lambda worker: self.kill(worker) if kills else None,
            on_note=self._note,
            on_end=self._on_end,
        )
        self.service.set_hosts([(HOST, slots)])

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        if kind is not None:
            print("\n".join(self.notes), self.end, self.exit_codes, sep="\n")
            for worker, path in self._errors.items():
                print(f"--- worker {worker}\n", Path(path).read_text()[-4000:])
            print(*self.said[-60:], sep="\n")
        for process in list(self._processes.values()):
            process.kill()
        for reader in self._readers:
            reader.join(LIMIT_SECONDS)
        self.service.close()
        self._store.close()
        for file in self._memory:
            os.close(file)

    def set_slots(self, slots):
        """Changes the number of slots of the host."""
        self.service.set_hosts([(HOST, slots)])

    def kill(self, worker, number=signal.SIGKILL):
        """Sends a signal to a worker."""
        process = self._processes.get(worker)
        if process is not None and process.poll() is None:
            process.send_signal(number)

    def lines(self, event, **fields):
        """The lines of one kind that have these values."""
        return [
            line
            for line in list(self.said)
            if line["event"] == event and all(line[name] == v for name, v in fields.items())
        ]

    def wait(self, what):
        """Waits until what() is true and returns it; checks at every event."""
        deadline = time.monotonic() + LIMIT_SECONDS
        with self._condition:
            while not (found := what()):
                assert time.monotonic() < deadline, "waited for too long"
                self._condition.wait(1.0)
            return found

    def wait_for_end(self):
        """Waits for the end of the job and its processes; returns the job's code and reason."""
        self.wait(lambda: self.end is not None and len(self.exit_codes) == len(self._processes))
        return self.end

    def stderr_of(self, worker):
        """The stderr output of a worker."""
        return Path(self._errors[worker]).read_text()

    def _start(self, worker, host, slot):
        variables = {
            "TFRING_X_ELASTIC_WORKER": str(worker),
            "TFRING_X_ELASTIC_STORE": f"localhost:{self._store.port}",
            "TFRING_X_ELASTIC_HOST": host,
            "TFRING_X_ELASTIC_SLOT": str(slot),
            "TFRING_X_ELASTIC_FIRST": "1" if self.service.record.generation == 0 else "0",
            "TFRING_SECRET": SECRET,
            **memory_variables(self._memory),
            **self._env,
        }
        errors = Path(self._command[1]).with_name(f"worker{worker}.err")
        with errors.open("wb") as file:
            process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment(**variables),
                pass_fds=self._memory,
            )
        with self._condition:
            self._processes[worker], self._errors[worker] = process, errors
            self.pids[worker] = process.pid
        reader = threading.Thread(target=self._read, args=(worker, process), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _read(self, worker, process):
        for line in process.stdout:
            if line.startswith(b"{"):
                with self._condition:
                    self.said.append({**json.loads(line), "worker": worker})
                    self._condition.notify_all()
        process.stdout.close()
        code = process.wait()
        code = code if code >= 0 else 128 - code
        with self._condition:
            self.exit_codes[worker] = code
            self._condition.notify_all()
        self.service.process_ended(worker, code, self._cause(worker, code))

    def _cause(self, worker, code):
        """The last line of a traceback, as a launcher finds it."""
        if code != 1:
            return ""
        lines = self.stderr_of(worker).strip().splitlines()
        return lines[-1] if lines else ""

    def _note(self, note):
        with self._condition:
            self.notes.append(note)
            self._condition.notify_all()

    def _on_end(self, code, reason):
        with self._condition:
            self.end = (code, reason)
            self._condition.notify_all()


def wait_for_commits(job, size, count=3, event="commit"):
    """Waits until each rank of a job of this size has said `event` more times; returns workers."""
    begin = len(job.said)

    def found():
        lines = [one for one in job.said[begin:] if one["event"] == event]
        of_size = [one for one in lines if one["size"] == size]
        workers = {one["worker"] for one in of_size}
        each = (sum(one["worker"] == worker for one in of_size) for worker in workers)
        return workers if len(workers) == size and all(n >= count for n in each) else None

    return job.wait(found)


def wait_for_batches(job, size, count=3):
    """Waits until each rank of a job of this size has trained on `count` more batches."""
    return wait_for_commits(job, size, count, "batch")


def worker_of_rank(job, rank):
    """Returns the worker that had this rank last."""
    return next(one["worker"] for one in reversed(job.said) if one["rank"] == rank)


def _options(**values):
    """CoordinatorOptions with these values, times in nanoseconds.

    Hosts never cool down, and limits are long: a slow process is not taken for a dead one.
    """
    options = core.membership.CoordinatorOptions()
    options.hosts.failures = 1 << 30
    options.lease = options.stop_limit = options.connect_limit = 100 * SECOND
    options.start_limit = options.start_wait = 200 * SECOND
    for name, value in values.items():
        setattr(options, name, value)
    return options


def alive(pid):
    """Whether a process runs."""
    return os.path.exists(f"/proc/{pid}")
