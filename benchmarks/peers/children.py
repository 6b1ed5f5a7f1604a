"""The processes of a peer library, as a rank sees them."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.task import Place
from tfring.bench.timing import Turn

_ANSWER_SECONDS = 120.0
_LINES = 8  # of its output in an error message


class PeerError(RuntimeError):
    """A process of a peer has failed; the message is for the user."""


class Child:
    """The process of a peer that belongs to this rank.

    Args:
        name: The name of the peer.
        place: The place of the process; the descriptor for answers is added.
    """

    def __init__(self, name: str, place: Place) -> None:
        self._name, self._rank = name, place.rank
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._answers, theirs = os.pipe()
        place = dataclasses.replace(place, answers=theirs)
        given = json.dumps(dataclasses.asdict(place))
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.peers.{name}", given],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            env=_environment(),
            pass_fds=[theirs, *([] if place.barrier is None else [place.barrier])],
        )
        os.close(theirs)
        self._pending = b""

    def address(self) -> str:
        """Returns the address at which the process listens, once it does."""
        return str(self._answer()["address"])

    def join(self, addresses: Sequence[str]) -> None:
        """Connects the process to those of the other ranks."""
        self._ask({"addresses": list(addresses)})

    def prepare(self, spec: dict[str, Any]) -> str | None:
        """Prepares a case; returns the reason if it cannot, or None."""
        why = self._ask({"case": spec})["ok"]
        return None if why is None else str(why)

    def turn(self) -> Turn:
        """Returns a function that runs a turn of the prepared case."""

        def turn(calls: int) -> list[float]:
            return [float(took) for took in self._ask({"calls": calls})["took"]]

        return turn

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        os.close(self._answers)
        self._said.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failed("has ended") from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        while b"\n" not in self._pending:
            if not select.select([self._answers], [], [], _ANSWER_SECONDS)[0]:
                raise self._failed(f"has not answered for {_ANSWER_SECONDS:g} s")
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise self._failed("has ended")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def _failed(self, what: str) -> PeerError:
        self._said.seek(0)
        said = self._said.read().decode("utf-8", "replace").strip().splitlines()
        lines = "\n".join(["", *said[-_LINES:]])
        return PeerError(
            f"rank {self._rank}: the process of the peer {self._name} {what}; leave it out of "
            f"--against, or see what it said:{lines}"
        )


def _environment() -> dict[str, str]:
    """Returns the environment of the process, which is not a rank of this job."""
    theirs = {k: v for k, v in os.environ.items() if not k.startswith(("TFRING_", "TF_CONFIG"))}
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return {**theirs, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}
