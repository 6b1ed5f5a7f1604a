"""Elastic jobs without TensorFlow: a coordinator in this process, and workers that can be killed.

Run as a program, this file is an agent: it forks a worker for every line it reads, and writes a
line when one has ended. Workers do not train: they count commits.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

from tfring.elastic.errors import Dismissed, GenerationEnded
from tfring.elastic.link import WorkerLink
from tfring.elastic.records import Position
from tfring.elastic.service import CoordinatorService
from tfring.job.store import TCPStore
from tfring.runtime._native import core

ROOT = Path(__file__).resolve().parents[2]
SECRET = "5e" * 32
LIMIT = 60.0  # seconds; far more than needed
SECOND = 1_000_000_000
COMMIT_SECONDS = 0.005


def coordinator_options(**values):
    """CoordinatorOptions with these values, times in nanoseconds; hosts never cool down."""
    options = core.membership.CoordinatorOptions()
    options.hosts.failures = 1 << 30
    for name, value in values.items():
        setattr(options, name, value)
    return options


def say(**fields):
    """Writes a line for the job in one piece."""
    os.write(1, (json.dumps({**fields, "at": time.monotonic()}) + "\n").encode())


class Training:
    """What a worker does instead of training."""

    def __init__(self, store, link, worker, commits):
        self.store, self.link, self.worker, self.commits = store, link, worker, commits
        self.position, self.ended = Position(), 0

    def generation(self):
        """Connects, gets the state, and trains until the generation ends."""
        record = self.link.next_record()
        number = record.generation
        members = [member.worker for member in record.members]
        say(event="record", worker=self.worker, generation=number, members=members)
        self.link.connected(number)
        try:
            self.link.wait_go(number)
        except GenerationEnded:
            self.link.stopped(number, self.position)
            return
        assert record.position >= self.position
        self.position = record.position
        self.link.synced(number, self.position)
        say(event="runs", worker=self.worker, generation=number, commit=self.position.commit)
        why = self.train(record)
        self.link.stopped(number, self.position, **why)

    def train(self, record):
        """Trains; returns why it stopped."""
        while self.ended < record.generation:
            if self.position.commit >= self.commits:
                return {"done": True}
            time.sleep(COMMIT_SECONDS)
            self.position = Position(self.position.commit + 1, 2 * self.position.commit + 2)
            self.link.step(self.position.step)
            self.link.committed(self.position)
            if self.position.commit % 4 == 0 and self.all_stop(record):
                return {"boundary": True}
        return {}

    def all_stop(self, record):
        """Whether all stop at this commit. Rank 0 decides; the others wait for its decision.

        So all members stop at the same commit, as in a training with collectives.
        """
        commit, key = self.position.commit, f"rank0/{record.generation}"
        if record.members[0].worker == self.worker:
            stops = self.link.change_pending
            self.store.set(key, f"{commit} {int(stops)}")
            return stops
        while self.ended < record.generation:
            if self.store.check([key]):
                at, stops = map(int, self.store.get(key).split())
                if at >= commit:
                    return at == commit and bool(stops)
            time.sleep(COMMIT_SECONDS)
        return False


def run_worker(port, worker, host, slot, commits=1 << 60, patience=0):
    """Runs a worker; returns its exit code."""
    store = TCPStore("localhost", port, secret=SECRET, timeout=LIMIT)
    options = core.membership.WorkerOptions()
    options.patience = patience or options.patience
    training = None

    def abandon(generation):
        training.ended = generation

    link = WorkerLink(store, worker, host, slot, on_abandon=abandon, options=options)
    training = Training(store, link, worker, commits)
    signal.signal(signal.SIGTERM, lambda *_: link.leave())
    link.ready()
    try:
        while True:
            training.generation()
    except Dismissed as dismissed:
        link.close()
        store.close()
        say(event="dismissed", worker=worker, code=dismissed.code, reason=dismissed.reason)
        return dismissed.code


def agent():
    """Forks workers and reaps them, in one thread."""
    selector, running = selectors.DefaultSelector(), {}
    selector.register(0, selectors.EVENT_READ)
    lines = b""
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                *whole, lines = (lines + data).split(b"\n")
                for line in whole:
                    wanted = json.loads(line)
                    pid = os.fork()
                    if pid == 0:
                        code = 1
                        try:
                            code = run_worker(**wanted)
                        except BaseException:
                            traceback.print_exc()
                        finally:
                            os._exit(code)
                    fd = os.pidfd_open(pid)
                    running[fd] = (pid, wanted["worker"])
                    selector.register(fd, selectors.EVENT_READ)
                    say(event="started", worker=wanted["worker"], pid=pid)
            else:
                pid, worker = running.pop(key.fd)
                selector.unregister(key.fd)
                os.close(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                say(event="ended", worker=worker, code=code if code >= 0 else 128 - code)


class ElasticJob:
    """A coordinator, the store's server, and an agent; `said` holds all lines."""

    def __init__(self, hosts, kills=True, worker=None, **options):
        self.said, self.notes, self.pids, self.ends = [], [], {}, []
        self.exit_codes = {}
        self._kills, self._more = kills, worker or {}
        self._condition = threading.Condition()  # guards all above
        self.store = TCPStore("localhost", 0, is_master=True, secret=SECRET, timeout=LIMIT)
        self.agent = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.service = CoordinatorService(
            self.store,
            coordinator_options(**options),
            on_start=self._start,
            on_kill=self._kill,
            on_note=self._note,
            on_end=lambda code, reason: self._hear(self.ends, (code, reason)),
        )
        self.service.set_hosts(hosts)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if exc[0] is not None:
            print(*self.notes, *self.said, self.ends, self.service.record, sep="\n")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.agent.pid, signal.SIGKILL)
        self.agent.stdin.close()
        self.agent.wait()
        self._reader.join(LIMIT)
        self.agent.stdout.close()
        self.service.close()
        self.store.close()

    def wait(self, what, limit=LIMIT):
        """Waits until what() is true and returns it; checks at every line."""
        deadline = time.monotonic() + limit
        with self._condition:
            while not (found := what()):
                assert time.monotonic() < deadline, "waited for too long"
                self._condition.wait(0.2)
            return found

    def wait_for_record(self, wanted, after=0):
        """Waits until a generation with the wanted members trains; returns one member's record."""

        def find():
            running = {}
            for line in self.said:
                if line["event"] == "runs" and line["generation"] > after:
                    running.setdefault(line["generation"], set()).add(line["worker"])
            records = [line for line in self.said if line["event"] == "record"]
            for line in records:
                whole = running.get(line["generation"]) == set(line["members"])
                if whole and wanted(line["members"]):
                    return line
            return None

        return self.wait(find)

    def kill(self, worker, number=signal.SIGKILL):
        """Sends a signal to a worker's process; returns the time in seconds."""
        now = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.wait(lambda: self.pids.get(worker)), number)
        return now

    def _start(self, worker, host, slot):
        wanted = {"port": self.store.port, "worker": worker, "host": host, "slot": slot}
        self.agent.stdin.write(json.dumps({**wanted, **self._more}).encode() + b"\n")
        self.agent.stdin.flush()

    def _kill(self, worker):
        if self._kills and worker in self.pids and worker not in self.exit_codes:
            self.kill(worker)

    def _note(self, note):
        self._hear(self.notes, note)

    def _hear(self, into, what):
        with self._condition:
            into.append(what)
            self._condition.notify_all()

    def _read(self):
        for line in self.agent.stdout:
            heard = json.loads(line)
            with self._condition:
                if heard["event"] == "started":
                    self.pids[heard["worker"]] = heard["pid"]
                if heard["event"] == "ended":
                    self.exit_codes[heard["worker"]] = heard["code"]
                    self.service.process_ended(heard["worker"], heard["code"])
                self.said.append(heard)
                self._condition.notify_all()


if __name__ == "__main__":
    agent()
