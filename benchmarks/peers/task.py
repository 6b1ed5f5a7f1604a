"""Shared by the programs of peers, which run beside each rank and wait for their turn.

They are separate processes because TensorFlow's collectives must be set up before anything
else in a process, and change how all of it runs. A peer process reads lines of JSON from its
standard input and answers on the descriptor ANSWERS:

    begins with {"address": "host:port"}, gets {"addresses": [...]} of all ranks; {"ok": null}
    {"case": SPEC}   prepares a case: {"ok": null}, or {"ok": "why it cannot"}
    {"calls": 5}     a turn: {"took": [milliseconds, ...]}
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Protocol

from tfring.bench.shared_barrier import SharedBarrier
from tfring.bench.timing import Turn, timed

_PR_SET_PDEATHSIG = 1

Call = Callable[[], object]


@dataclass(frozen=True)
class Place:
    """The place of this process among those of the peer; its rank sends it as JSON.

    Attributes:
        rank: The rank of the process.
        size: The number of processes.
        host: The address at which the others reach this one.
        interface: The network interface of the address.
        threads: The number of computing threads.
        answers: The descriptor for answers.
        barrier: The name of a SharedBarrier, if all are on one host.
    """

    rank: int
    size: int
    host: str
    interface: str
    threads: int
    answers: int
    barrier: int | None


class Peer(Protocol):
    """The interface of a peer."""

    address: str  # "host:port", at which it listens

    def join(self, addresses: list[str]) -> None:
        """Connects the processes, whose addresses are given by rank."""

    def prepare(self, spec: dict[str, Any]) -> tuple[Call, Call | None]:
        """Returns a function that runs a case, and one without communication to subtract, if any.

        Raises:
            NotImplementedError: The peer cannot run it; the message says why.
        """

    def barrier(self) -> None:
        """Waits for the peer's processes of all ranks."""


def serve(make: Callable[[Place], Peer]) -> None:
    """Runs the program of a peer; ends the process when its rank ends.

    Args:
        make: Makes the peer.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    place = Place(**json.loads(sys.argv[1]))
    peer = make(place)
    with os.fdopen(place.answers, "w", encoding="utf-8") as answers:
        _say(answers, {"address": peer.address})
        peer.join(json.loads(sys.stdin.readline())["addresses"])
        _say(answers, {"ok": None})
        wait = peer.barrier
        if place.barrier is not None:
            wait = SharedBarrier(place.barrier, place.rank, place.size).wait
        _answer(peer, wait, answers)
    os._exit(0)  # ends silently; the others end, too


def _answer(peer: Peer, wait: Callable[[], None], answers: IO[str]) -> None:
    turn: Turn | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "case" in request:
            turn = None
            gc.collect()
            try:
                turn = _turn(wait, *peer.prepare(request["case"]))
                turn(1)
                why = None
            except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
                # TensorFlow puts the reason in the last line.
                lines = str(error).strip().splitlines() or [type(error).__name__]
                turn, why = None, lines[-1].strip()
            _say(answers, {"ok": why})
        else:
            assert turn is not None
            _say(answers, {"took": turn(request["calls"])})


def _turn(wait: Callable[[], None], call: Call, bare: Call | None) -> Turn:
    """Returns a turn that times calls, minus those without communication if given."""
    whole = timed(wait, call)
    if bare is None:
        return whole
    without = timed(wait, bare)

    def turn(calls: int) -> list[float]:
        base = without(calls)
        return [a - b for a, b in zip(whole(calls), base, strict=True)]

    return turn


def _say(answers: IO[str], value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
