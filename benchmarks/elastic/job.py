"""An elastic job with the coordinator in this process: it starts workers and reads their logs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.elastic.faults import FaultFile
from benchmarks.elastic.worker import Settings
from tfring.elastic.service import CoordinatorService
from tfring.job.store import TCPStore
from tfring.runtime._native import core
from tfring.runtime.texts.errors import read_error

ROOT = Path(__file__).resolve().parents[2]
HOST = "localhost"
SECOND = 1_000_000_000
_MARK = "BENCHMARK_OF_ELASTIC_JOBS"
# The job would take an outer launcher's variables for its own. Without the last one Python would
# compile all modules in each worker, which no installed package needs.
_FOREIGN = (
    "TFRING_",
    "OMPI_",
    "PMI",
    "RANK",
    "WORLD_SIZE",
    "SLURM_",
    "HOROVOD_",
    "PYTHONDONTWRITEBYTECODE",
)
# Seconds without any log line that mean a hang; and the longest wait as a multiple of them.
HANG_SECONDS = 60.0
_LONGEST_WAIT = 5
_LOOK_SECONDS = 0.02


def own_environment(**more: str) -> dict[str, str]:
    """Returns this process's environment with these variables and without those of a launcher."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    path = [str(ROOT), *filter(None, [own.get("PYTHONPATH")])]
    return {**own, "PYTHONPATH": os.pathsep.join(path), **more}


class Hang(AssertionError):
    """A wait took too long; the message holds the stacks of all workers."""


def coordinator_options(**values: Any) -> Any:
    """CoordinatorOptions with these values, times in nanoseconds; the host never cools down."""
    options = core.membership.CoordinatorOptions()
    # The policy is a part of the options, so values set on it stay.
    options.hosts.failures = 1 << 30
    for name, value in values.items():
        setattr(options, name, value)
    return options


class Job:
    """A job of one host. `events` holds the log lines of workers, with the worker's id added."""

    def __init__(
        self,
        folder: Path,
        slots: int,
        settings: Settings,
        *,
        hang_seconds: float = HANG_SECONDS,
        kills: bool = True,
        **options: Any,
    ) -> None:
        """Starts the job.

        Args:
            folder: An empty folder for logs.
            slots: The number of slots of the host.
            settings: The settings of the workers.
            hang_seconds: The longest time without a log line of any worker.
            kills: Whether to kill workers that the coordinator wants ended. False: as if their
                host could not be reached.
            **options: Options of the coordinator; np and max_np default to `slots`.
        """
        self._closed = False
        self.folder, self.settings = folder, settings
        self.faults = FaultFile(folder / "faults", create=True)
        self.events: list[dict[str, Any]] = []
        self.pids: dict[int, int] = {}
        self._hang_seconds, self._kills = hang_seconds, kills
        self._mark, self._secret = uuid.uuid4().hex, uuid.uuid4().hex * 2
        self._read: dict[int, int] = {}  # bytes of each log
        self._read_whole: set[int] = set()  # workers that will log no more
        self._condition = threading.Condition()  # guards the fields below
        self.notes: list[tuple[float, str]] = []
        self.exits: dict[int, int] = {}
        self.end: tuple[int, str] | None = None
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._reapers: list[threading.Thread] = []
        # In shared memory, as for `tfring run`.
        self._records = tempfile.TemporaryDirectory(prefix="tfring-records.", dir="/dev/shm")
        self.store = TCPStore(HOST, 0, is_master=True, secret=self._secret)
        made = coordinator_options(**{"max_np": slots, "np": slots, **options})
        self._first = int(made.np)
        self.service = CoordinatorService(
            self.store,
            made,
            on_start=self._start,
            on_kill=lambda worker: self.signal(worker) if self._kills else None,
            on_note=self._note,
            on_end=self._on_end,
        )
        self.set_slots(slots)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None:
            print(self.describe())
        self.close()

    def close(self) -> None:
        """Ends the processes that are left of the job."""
        if self._closed:
            return
        self._closed = True
        self.service.close()
        for process in list(self._processes.values()):
            process.kill()
        for reaper in self._reapers:
            reaper.join(HANG_SECONDS)
        self.store.close()
        self.read()
        self._records.cleanup()

    def describe(self) -> str:
        """Returns the last lines about the job and of its workers."""
        notes = [f"{when:.3f} {text}" for when, text in self.notes[-40:]]
        said = [json.dumps(event) for event in self.events[-40:]]
        errors = []
        for worker in sorted(self.pids)[-12:]:
            if text := (self.folder / f"worker{worker}.err").read_text(errors="replace")[-3000:]:
                errors.append(f"--- error output of worker {worker}\n{text}")
        return "\n".join([*notes, str(self.service.record), str(self.exits), *said, *errors])

    def set_slots(self, slots: int) -> None:
        """Changes the number of slots of the host."""
        self.service.set_hosts([(HOST, slots)])

    def signal(self, worker: int, number: int = signal.SIGKILL) -> int:
        """Sends a signal to a worker; returns the time in nanoseconds."""
        process, now = self._processes.get(worker), time.monotonic_ns()
        if process is not None and process.poll() is None:
            process.send_signal(number)
        return now

    def alive(self) -> list[int]:
        """The workers whose processes run."""
        return [worker for worker, one in list(self._processes.items()) if one.poll() is None]

    def members(self) -> list[int]:
        """The workers of the last generation, in rank order."""
        return [one.worker for one in self.service.record.members]

    def read(self) -> None:
        """Reads the new log lines of the workers."""
        new = []
        for worker in list(self.pids):
            if worker in self._read_whole:
                continue
            ended = worker in self.exits
            path = self.folder / f"worker{worker}.log"
            if not path.exists():
                continue
            if ended:
                self._read_whole.add(worker)
            with path.open("rb") as file:
                file.seek(self._read.get(worker, 0))
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._read[worker] = self._read.get(worker, 0) + len(data)
            new += [{**json.loads(line), "w": worker} for line in data.splitlines()]
        self.events += sorted(new, key=lambda event: event["t"])

    def wait(self, what: Callable[[], Any], why: str) -> Any:
        """Waits until what() is true, and returns it.

        Raises:
            Hang: No worker logged anything for too long, or the wait took far too long.
        """
        begin = last = time.monotonic()
        while True:
            heard = len(self.events)
            self.read()
            if found := what():
                return found
            now = time.monotonic()
            last = now if len(self.events) > heard else last
            if max(now - last, (now - begin) / _LONGEST_WAIT) > self._hang_seconds:
                raise Hang(f"waited too long for {why}\n{self.stacks()}")
            with self._condition:
                self._condition.wait(_LOOK_SECONDS)

    def wait_for_size(self, size: int, steps: int = 1, after: int | None = None) -> int:
        """Waits until this many ranks have trained together; returns the generation.

        Args:
            size: The number of ranks.
            steps: The steps that each has to commit in that generation.
            after: Counts only generations after this one; None: after the last fault.
        """

        def found() -> int:
            counts: dict[int, dict[int, int]] = {}
            for event in reversed(self.events):
                if event["e"] == "fault" and after is None:
                    break
                if event["e"] == "commit" and event["g"] <= (after or 0):
                    break
                if event["e"] == "commit" and event["size"] == size:
                    ranks = counts.setdefault(event["g"], {})
                    ranks[event["rank"]] = ranks.get(event["rank"], 0) + 1
                    if len(ranks) == size and min(ranks.values()) >= steps:
                        return int(event["g"])
            return 0

        return int(self.wait(found, f"{size} ranks that commit {steps} steps together"))

    def wait_for_spares(self, count: int) -> None:
        """Waits until this many workers are waiting."""
        self.wait(lambda: len(self.service.waiting) >= count, f"{count} spares")

    def wait_for_end(self) -> tuple[int, str]:
        """Waits until the job and all its processes have ended; returns its code and reason."""
        self.wait(lambda: self.end is not None and not self.alive(), "the end of the job")
        assert self.end is not None
        return self.end

    def stacks(self) -> str:
        """Returns the stacks of all workers and the state of the job."""
        for worker in self.alive():
            self.signal(worker, signal.SIGUSR2)
        time.sleep(2.0)
        return self.describe()

    def planted(self, worker: int, action: str) -> int:
        """Notes a fault of the driver, as workers do for their own faults.

        Returns:
            Its time, in nanoseconds.
        """
        now = time.monotonic_ns()
        number = self.service.record.generation
        fault = {"e": "fault", "t": now, "w": worker, "g": number, "phase": "", "action": action}
        self.events.append(fault)
        return now

    def evicted(self) -> set[int]:
        """The workers without a heartbeat for too long; an overloaded machine causes that, too."""
        found = (re.match(r"worker (\d+) .* was silent", text) for _, text in self.notes)
        return {int(match.group(1)) for match in found if match is not None}

    def in_order(self) -> list[dict[str, Any]]:
        """All log events so far, in time order."""
        self.read()
        return sorted(self.events, key=lambda event: int(event["t"]))

    def left_over(self) -> list[str]:
        """Returns the processes and the open port that are left after close()."""
        mark, found = f"{_MARK}={self._mark}".encode(), []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(f"process {entry.name}")
            except OSError:
                continue
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", self.store.port)) == 0:
                found.append(f"port {self.store.port}")
        return found

    def _start(self, worker: int, host: str, slot: int) -> None:
        first = self.service.record.generation == 0 and len(self._processes) < self._first
        variables = {
            "TFRING_X_ELASTIC_WORKER": str(worker),
            "TFRING_X_ELASTIC_STORE": f"{HOST}:{self.store.port}",
            "TFRING_X_ELASTIC_HOST": host,
            "TFRING_X_ELASTIC_SLOT": str(slot),
            "TFRING_X_ELASTIC_FIRST": str(int(first)),
            "TFRING_SECRET": self._secret,
            "TFRING_RECORD_DIR": self._records.name,
            _MARK: self._mark,
        }
        program = [sys.executable, "-m", "benchmarks.elastic.worker"]
        with (self.folder / f"worker{worker}.err").open("wb") as errors:
            process = subprocess.Popen(
                [*program, str(self.folder), json.dumps(asdict(self.settings))],
                env=own_environment(**variables),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )
        with self._condition:
            self._processes[worker], self.pids[worker] = process, process.pid
            self.events.append({"e": "spawn", "t": time.monotonic_ns(), "w": worker})
        reaper = threading.Thread(target=self._reap, args=(worker, process), daemon=True)
        reaper.start()
        self._reapers.append(reaper)

    def _reap(self, worker: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        code = code if code >= 0 else 128 - code
        errors = (self.folder / f"worker{worker}.err").read_text(errors="replace")
        error = read_error(errors) if code == 1 else None
        cause = error.line() if error is not None else ""
        with self._condition:
            self.exits[worker] = code
            self._condition.notify_all()
        self.service.process_ended(worker, code, cause)

    def _note(self, text: str) -> None:
        with self._condition:
            self.notes.append((time.monotonic(), text))

    def _on_end(self, code: int, reason: str) -> None:
        with self._condition:
            self.end = (code, reason)
            self._condition.notify_all()
