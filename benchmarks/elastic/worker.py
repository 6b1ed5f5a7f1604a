"""A worker of an elastic job, without real training: run as ``worker.py FOLDER SETTINGS``.

A step sleeps in proportion to its rows of the global batch, sums an array over the ranks and
commits. The sum is known in advance, so each step checks that it has the values of all ranks of
this generation and no others. The weights are a hash of all steps so far.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import hashlib
import json
import os
import pickle
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

STARTED = time.monotonic_ns()

import numpy as np  # noqa: E402

import tfring as hvd  # noqa: E402
from benchmarks.elastic.faults import FaultFile, Victim  # noqa: E402
from tfring.elastic import HostsUpdatedInterrupt, ObjectState, run  # noqa: E402
from tfring.elastic import process as processes  # noqa: E402
from tfring.runtime._native import core  # noqa: E402

_SUM = 1


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the workers of a job.

    Attributes:
        batch: Rows of the global batch.
        row_seconds: Seconds per row.
        samples: Samples of an epoch.
        mb: Megabytes that a step sums.
        state_mb: Megabytes of the state, besides a few numbers.
        steps: The number of steps of the training; 0: until the driver stops it.
        fail_at: The step that fails on all ranks; -1: none.
    """

    batch: int = 32
    row_seconds: float = 0.0006
    samples: int = 4096
    mb: float = 0.25
    state_mb: float = 0.1
    steps: int = 0
    fail_at: int = -1


class Log:
    """The log of this worker, as lines of JSON in its own file."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._fd = os.open(
            folder / f"worker{worker}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        self.common: dict[str, Any] = {}

    def __call__(self, event: str, **more: Any) -> None:
        line = {"e": event, "t": time.monotonic_ns(), **self.common, **more}
        os.write(self._fd, json.dumps(line).encode() + b"\n")


@functools.lru_cache(maxsize=2)
def order_of(epoch: int, samples: int) -> Any:
    """Returns the samples of an epoch in training order."""
    return np.random.default_rng(epoch).permutation(samples)


def value_of(epoch: int, begin: int, end: int, samples: int) -> int:
    """Returns the part of a range of an epoch in the sum of its step."""
    return int((order_of(epoch, samples)[begin:end] % 997).sum())


def hash_of(history: str, epoch: int, begin: int, value: int) -> str:
    """Returns the hash of all steps so far after one more."""
    return hashlib.blake2b(f"{history} {epoch} {begin} {value}".encode(), digest_size=8).hexdigest()


def broadcast(mine: Any, root_rank: int) -> Any:
    """Returns an object of one rank. A collective."""
    data: Any = np.frombuffer(pickle.dumps(mine, protocol=5), np.uint8)
    size = core.broadcast(np.array([data.size]), name="size", root=root_rank)
    if hvd.rank() != root_rank:
        data = np.empty(int(size[0]), np.uint8)
    return pickle.loads(core.broadcast(data, name="data", root=root_rank).tobytes())


class Training:
    """The training of one process."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        worker = int(os.environ["TFRING_X_ELASTIC_WORKER"])
        self.settings, self.log = settings, Log(folder, worker)
        self.faults = FaultFile(folder / "faults")
        self.store_port = int(os.environ["TFRING_X_ELASTIC_STORE"].rpartition(":")[2])
        self.victim = Victim(self.faults, worker, self.log, self._cut)
        imported = time.monotonic_ns()
        hvd.init()
        self.log("up", pid=os.getpid(), started=STARTED, imported=imported, slot=hvd.local_rank())
        self.process: Any = processes.present()
        self._watch(self.process.link)
        self.call_seconds = 0.001  # of the last allreduce
        self.saved = 0  # steps in the last saved state
        weights = np.zeros(max(1, int(settings.state_mb * 2**20 / 8)))
        self.state = _State(self, step=0, epoch=0, consumed=0, history="", weights=weights)
        self._watch_sync()

    def train(self, state: Any) -> int:
        """Trains; elastic.run calls it in each generation."""
        self.log.common = {
            "g": self.process.generation,
            "rank": hvd.rank(),
            "size": hvd.size(),
        }
        self.log(
            "train",
            step=state.step,
            history=state.history,
            weights=float(state.weights.sum()),
            members=[one.worker for one in self.process.record.members],
            fds=len(os.listdir("/proc/self/fd")),
        )
        self.victim.reach("first")
        while self._step(state):
            self.victim.reach("between")
        return int(state.step)

    def _step(self, state: Any) -> bool:
        settings, victim = self.settings, self.victim
        end = min(state.consumed + settings.batch, settings.samples)
        rows, rank, size = end - state.consumed, hvd.rank(), hvd.size()
        low, high = (state.consumed + rows * r // size for r in (rank, rank + 1))
        if state.step == settings.fail_at:
            raise ValueError(f"step {state.step} cannot be done")
        planned = victim.phase()
        if planned != "negotiating":  # this one is the first to submit
            time.sleep((high - low) * settings.row_seconds)
        if planned in ("running", "completing"):  # this one is the last to submit
            time.sleep(0.3 * rows / size * settings.row_seconds + 0.002)
        mine = value_of(state.epoch, low, high, settings.samples)
        data = np.full(max(4, int(settings.mb * 2**18)), mine, np.float32)
        data[0], data[1] = self.faults.stop, state.step
        victim.reach("submit")
        victim.reach("negotiating", (high - low) * settings.row_seconds)
        victim.reach("running", self.call_seconds)
        begin = time.monotonic()
        together = core.allreduce(data, name="gradient", op=_SUM)
        self.call_seconds = time.monotonic() - begin
        victim.reach("completing")
        value = value_of(state.epoch, state.consumed, end, settings.samples)
        if together[1] != size * state.step or (together[2:] != value).any():
            raise AssertionError(
                f"rank {rank}: step {state.step} gave {together[:4]}, and not {value}"
            )
        if together[0]:
            return False
        state.weights[state.step % state.weights.size] += value
        state.history = hash_of(state.history, state.epoch, state.consumed, value)
        place = {"epoch": state.epoch, "all": [state.consumed, end], "mine": [low, high]}
        state.step, state.consumed = state.step + 1, end
        if end == settings.samples:
            state.epoch, state.consumed = state.epoch + 1, 0
        try:
            state.commit()
        finally:
            if self.saved == state.step:
                self.log("commit", step=state.step, history=state.history, **place)
        return not settings.steps or state.step < settings.steps

    def run(self) -> None:
        """Trains until the end."""
        steps = run(self._reported)(self.state)
        self.log("end", step=steps, history=self.state.history)

    def _reported(self, state: Any) -> int:
        try:
            return self.train(state)
        except HostsUpdatedInterrupt:
            self.log("change")
            raise
        except BaseException as error:
            self.log("error", text=f"{type(error).__name__}: {error}"[:300], step=state.step)
            raise

    def _watch(self, link: Any) -> None:
        """Logs the messages of the link, so that the driver knows where time is spent."""

        def wrap(name: str, event: str, before: bool) -> None:
            inner = getattr(link, name)

            @functools.wraps(inner)
            def outer(*args: Any, **kwargs: Any) -> Any:
                if before:
                    self._at(event)
                result = inner(*args, **kwargs)
                if not before:
                    self._at(event)
                return result

            setattr(link, name, outer)

        wrap("stopped", "report", True)
        wrap("next_record", "mesh", False)
        wrap("connected", "connected", True)
        wrap("wait_go", "go", False)
        wrap("synced", "synced", False)

    def _watch_sync(self) -> None:
        """Lets faults happen before a sync.

        It does not override `sync` in _State: for a class that overrides it, rank 0's state counts,
        and not that of the rank that is ahead.
        """
        inner = self.state.sync

        def sync() -> None:
            self.victim.reach("sync")
            inner()
            self.saved = self.state.step

        setattr(self.state, "sync", sync)  # noqa: B010

    def _at(self, event: str) -> None:
        self.log(event)
        self.victim.reach(event)

    def _cut(self) -> None:
        """Ends all connections of this process but the one with the store."""
        for name in os.listdir("/proc/self/fd"):
            try:
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.getpeername()[1] != self.store_port:
                        one.shutdown(socket.SHUT_RDWR)
            except (OSError, IndexError):
                continue


class _State(ObjectState):
    """The state of the training; faults can happen in its methods."""

    def __init__(self, training: Training, **values: Any) -> None:
        self._training = training
        super().__init__(broadcast, hvd.rank, **values)

    def save(self) -> None:
        super().save()
        self._training.saved = self.step
        self._training.victim.reach("commit")

    def restore(self) -> None:
        super().restore()
        self._training.saved = self.step


def main() -> None:
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    folder, settings = Path(sys.argv[1]), Settings(**json.loads(sys.argv[2]))
    Training(folder, settings).run()


if __name__ == "__main__":
    main()
