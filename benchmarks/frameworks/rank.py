"""What the program of each framework does on a rank: train alone, then together, and note times.

A program imports nothing of tfring here: most of them run in an environment without it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.frameworks import models

# Launchers name a rank and the number of ranks like this: `tfring run`, torchrun, and jobs.py.
_RANKS = (("TFRING_X_RANK", "TFRING_X_SIZE"), ("RANK", "WORLD_SIZE"))
FAULT_RANK, FAULT_EPOCH, FAULT_STEP = 1, 2, 5
SLOW_SECONDS = 0.2
FAULT_LINE = "the fault is made now"


class Framework(Protocol):
    """A framework, as a rank uses it."""

    init_first: bool  # it must be set up before anything is computed
    packages: tuple[str, ...]  # whose versions count

    def init(self, rank: int, size: int) -> None:
        """Meets the other ranks."""

    def model(self, kind: str, together: bool) -> Any:
        """Returns a Keras model, ready to train; together: with equal weights on all ranks."""

    def fit(self, model: Any, kind: str, epochs: int, clock: Clock, together: bool) -> None:
        """Trains, and tells the clock about epochs and steps."""

    def moved_bytes(self) -> int:
        """Returns how many bytes the framework says that it has sent; 0: it does not say."""


class Clock:
    """Notes the seconds of each step of an epoch but the first, and makes the fault.

    Args:
        moved: returns the bytes that the framework says that it has sent.
        fault: "kill", "stop", "slow", "diverge", or "" for none.
        change: changes the weights of this rank alone.
    """

    def __init__(self, moved: Callable[[], int], fault: str, change: Callable[[], None]) -> None:
        self.epochs: list[list[float]] = []
        # At each epoch: bytes through the network, bytes moved, seconds of the processor.
        self.counts: list[tuple[int, int, float]] = []
        self._moved, self._fault, self._change = moved, fault, change
        self._last = 0.0
        self._step = 0

    def epoch(self) -> None:
        """An epoch begins."""
        self.count()
        self.epochs.append([])
        self._step = 0
        if self._fault == "diverge" and len(self.epochs) == FAULT_EPOCH:
            print(FAULT_LINE, flush=True)
            self._change()

    def step(self) -> None:
        """A step has ended."""
        if self._fault and self._fault != "diverge":
            self._break()
        now = time.perf_counter()
        if self._step:
            self.epochs[-1].append(now - self._last)
        self._last = now
        self._step += 1

    def count(self) -> None:
        """Notes what this job has sent, and this process has computed, so far."""
        lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
        sent = next(line.split()[9] for line in lines if line.strip().startswith("lo:"))
        self.counts.append((int(sent), self._moved(), time.process_time()))

    def _break(self) -> None:
        here = len(self.epochs) == FAULT_EPOCH and self._step == FAULT_STEP
        if here:
            print(FAULT_LINE, flush=True)
        if self._fault == "slow" and len(self.epochs) >= FAULT_EPOCH:
            time.sleep(SLOW_SECONDS)
        if here and self._fault in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if self._fault == "kill" else signal.SIGSTOP)


def callback(keras: Any, clock: Clock) -> Any:
    """Returns a callback of Keras that tells a clock about epochs and steps."""

    class Tell(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            clock.epoch()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            clock.step()

    return Tell()


def own_rows(kind: str) -> list[Any]:
    """Returns the inputs and labels of this rank's part of each global batch."""
    return [models.rows_of(values, *place()) for values in models.epoch(kind)]


def fit_rows(model: Any, kind: str, epochs: int, callbacks: list[Any]) -> None:
    """Calls `fit` with this rank's rows."""
    x, y = own_rows(kind)
    part = models.GLOBAL_BATCH // place()[1]
    model.fit(x, y, batch_size=part, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


def place() -> tuple[int, int]:
    """Returns the rank and the number of ranks."""
    for rank, size in _RANKS:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def share_cores() -> None:
    """Keeps this rank on its share of the cores. Call it before a framework is imported."""
    rank, size = place()
    cores = sorted(os.sched_getaffinity(0))
    first = rank * len(cores) // size
    os.sched_setaffinity(0, cores[first : max(first + 1, (rank + 1) * len(cores) // size)])


def main(make: Callable[[], Framework]) -> None:
    """Runs a program: python -m benchmarks.frameworks.programs.NAME FOLDER [options].

    Args:
        make: imports the framework and returns it.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", required=True, help='the epochs of each: "mlp=4,cnn=2"')
    parser.add_argument("--fault", default="")
    parser.add_argument("--save", action="store_true", help="rank 0 writes the weights")
    parser.add_argument("--reference", action="store_true", help="one process trains by itself")
    options = parser.parse_args()
    share_cores()
    _Rank(make(), options).run()


class _Rank:
    def __init__(self, framework: Framework, options: argparse.Namespace) -> None:
        self._framework, self._options = framework, options
        self._rank, self._size = place()
        self._init_s = 0.0

    def run(self) -> None:
        """Trains each model, and writes what was measured."""
        options = self._options
        if self._framework.init_first and not options.reference:
            self._init()
        plan = [pair.split("=") for pair in options.models.split(",")]
        ways = ["alone"] if options.reference or not (options.fault or options.save) else []
        found: dict[str, Any] = {
            way: {kind: self._train(kind, int(n), False) for kind, n in plan} for way in ways
        }
        if not options.reference:
            if not self._framework.init_first:
                self._init()
            found["together"] = {kind: self._train(kind, int(n), True) for kind, n in plan}
        found.update(init_s=self._init_s, versions=_versions(self._framework.packages))
        path = options.folder / f"rank-{self._rank}.json"
        path.write_text(json.dumps(found), encoding="utf-8")
        print(f"rank {self._rank} has trained", flush=True)

    def _init(self) -> None:
        started = time.perf_counter()
        self._framework.init(self._rank, self._size)
        self._init_s = time.perf_counter() - started

    def _train(self, kind: str, epochs: int, together: bool) -> dict[str, Any]:
        framework, options = self._framework, self._options
        started = time.perf_counter()
        model = framework.model(kind, together)
        built = time.perf_counter() - started
        if not together:
            self._meet(kind)

        def change() -> None:
            model.set_weights([weight + 0.01 for weight in model.get_weights()])

        fault = options.fault if self._rank == FAULT_RANK else ""
        clock = Clock(framework.moved_bytes, fault, change)
        framework.fit(model, kind, epochs, clock, together)
        clock.count()
        weights = [np.asarray(weight) for weight in model.get_weights()]
        if options.save and self._rank == 0 and (together or options.reference):
            np.savez(options.folder / f"{kind}.npz", *weights)
        digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()
        return {"build_s": built, "epochs": clock.epochs, "counts": clock.counts, "weights": digest}

    def _meet(self, kind: str) -> None:
        """Waits for the other ranks, without a framework: by files."""
        folder = self._options.folder
        (folder / f"{kind}-{self._rank}").touch()
        while not all((folder / f"{kind}-{rank}").exists() for rank in range(self._size)):
            time.sleep(0.001)


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    return {name: sys.modules[name].__version__ for name in packages}
