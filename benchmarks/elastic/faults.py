"""Faults at chosen moments of a worker: the driver asks for them, the worker carries them out.

A worker that kills itself with SIGKILL dies as if another process killed it, but at a place
in its step that can be chosen.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# The phases of a step. "sync" is all of `State.restore` and `sync` between two generations.
STEP_PHASES = (
    "submit",
    "negotiating",
    "running",
    "completing",
    "between",
    "commit",
    "sync",
    "report",
    "mesh",
    "first",
)
# Phases that a worker reaches only after another worker was lost.
RECOVERY_PHASES = ("report", "mesh", "connected", "sync", "synced", "first")
PHASES = ("none", *dict.fromkeys((*STEP_PHASES, *RECOVERY_PHASES)))
KILL, STOP, RAISE, CUT, LEAVE = "kill", "stop", "raise", "cut", "leave"
ACTIONS = (KILL, STOP, RAISE, CUT, LEAVE)
_LINE = struct.Struct("<IIIi")
_WORKERS = 1 << 14
_HEADER = 64


class Fault(NamedTuple):
    """A fault of a worker.

    Attributes:
        phase: The phase in which it happens.
        delay: Seconds after the phase begins; a share of the call if it negotiates or runs.
        action: SIGKILL, SIGSTOP, an exception, the end of its connections with other ranks, or
            exit code 0.
    """

    phase: str
    delay: float = 0.0
    action: str = KILL


class FaultFile:
    """The faults of all workers of a job: the driver writes them, workers map them."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        size = _HEADER + _WORKERS * _LINE.size
        if create:
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)

    def arm(self, worker: int, fault: Fault) -> None:
        """Plants a fault, from the worker's next step on."""
        delay, action = int(fault.delay * 1e6), ACTIONS.index(fault.action)
        line = _LINE.pack(PHASES.index(fault.phase), delay, action, 0)
        begin = _HEADER + worker * _LINE.size
        self._map[begin + 4 : begin + _LINE.size] = line[4:]
        self._map[begin : begin + 4] = line[:4]

    def disarm(self, worker: int) -> None:
        """Takes a fault back."""
        begin = _HEADER + worker * _LINE.size
        self._map[begin : begin + 4] = bytes(4)

    def fault_of(self, worker: int) -> Fault | None:
        """Returns the fault that was planted for a worker."""
        phase, delay, action, _ = _LINE.unpack_from(self._map, _HEADER + worker * _LINE.size)
        return Fault(PHASES[phase], delay / 1e6, ACTIONS[action]) if phase else None

    @property
    def stop(self) -> bool:
        """Whether the training is to end."""
        return self._map[0] != 0

    @stop.setter
    def stop(self, value: bool) -> None:
        self._map[0] = int(value)


class Planted(Exception):
    """The exception of a worker that was asked to raise one."""


class Victim:
    """The faults of this process."""

    def __init__(
        self, file: FaultFile, worker: int, log: Callable[..., None], cut: Callable[[], None]
    ) -> None:
        self._file, self._worker, self._log, self._cut = file, worker, log, cut

    def phase(self) -> str:
        """Returns the phase of the planted fault; "none" if there is none."""
        fault = self._file.fault_of(self._worker)
        return fault.phase if fault else "none"

    def reach(self, phase: str, length: float = 1.0) -> None:
        """Called when this process enters a phase: carries out its fault, after the delay if any.

        Args:
            phase: The phase.
            length: Factor of the fault's delay.
        """
        fault = self._file.fault_of(self._worker)
        if fault is None or fault.phase != phase:
            return
        self._file.disarm(self._worker)
        if fault.action in (RAISE, LEAVE):
            self._log("fault", action=fault.action, phase=phase)
            if fault.action == LEAVE:
                raise SystemExit(0)
            raise Planted(f"worker {self._worker} was asked to fail")
        if fault.delay == 0:
            self._act(fault)
        else:
            later = fault._replace(delay=fault.delay * length)
            threading.Thread(target=self._later, args=(later,), daemon=True).start()

    def _later(self, fault: Fault) -> None:
        time.sleep(fault.delay)
        self._act(fault)

    def _act(self, fault: Fault) -> None:
        self._log("fault", action=fault.action, phase=fault.phase)
        if fault.action == CUT:
            self._cut()
        else:
            os.kill(os.getpid(), signal.SIGKILL if fault.action == KILL else signal.SIGSTOP)
