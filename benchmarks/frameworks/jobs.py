"""Starts the job of a framework as its users do, and waits for its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.frameworks import environments

_PROGRAMS = "benchmarks.frameworks.programs"
_POLL, _UNTIL_LINE = 0.05, 300.0  # seconds


@dataclass(frozen=True)
class Peer:
    """A framework, and how it is started.

    Attributes:
        name: in tables and options.
        program: of benchmarks.frameworks.programs.
        start: "tfring", "torchrun" or "hand" (one process for each rank).
        own: whether it runs in the environment of tfring.
        variables: of its environment.
    """

    name: str
    program: str
    start: str
    own: bool = False
    variables: tuple[tuple[str, str], ...] = ()


PEERS = (
    Peer("tfring", "tfring_fit", "tfring", own=True),
    Peer("tfring-tcp", "tfring_fit", "tfring", True, (("TFRING_CPU_OPERATIONS", "tcp"),)),
    Peer("torch-ddp", "torch_ddp", "torchrun", variables=(("KERAS_BACKEND", "torch"),)),
    Peer("keras-torch", "keras_distribution", "hand", variables=(("KERAS_BACKEND", "torch"),)),
    Peer("keras-jax", "keras_distribution", "hand", variables=(("KERAS_BACKEND", "jax"),)),
    Peer("mwms", "mwms", "hand", own=True),
)


@dataclass
class Ended:
    """How a job ended.

    Attributes:
        codes: exit codes of what was started.
        lines: what it said, and when, by time.monotonic().
        ends: when each ended by itself; None: it was killed at the limit.
    """

    codes: list[int] = field(default_factory=list)
    lines: list[tuple[float, str]] = field(default_factory=list)
    ends: list[float | None] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where jobs run.

    Attributes:
        network: the name of a network namespace, or None.
        python: the Python of the frameworks that are not `own`.
        folder: for the files of a job.
    """

    network: str | None
    python: Path | None
    folder: Path


def run(
    peer: Peer, place: Place, ranks: int, words: Sequence[str], limit: float, since: str = ""
) -> Ended:
    """Runs a job, which writes files into the folder of the place.

    Args:
        peer: the framework.
        place: where.
        ranks: how many; 0: one process by itself.
        words: options of the program.
        limit: seconds after which the job is killed.
        since: the line that they count from; the job has some minutes to say it.
    """
    ended = Ended()
    inside = ["ip", "netns", "exec", place.network] if place.network else []
    processes = [
        subprocess.Popen(
            [*inside, *command],
            env=variables,
            cwd=environments.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for command, variables in _commands(peer, place, ranks, words)
    ]
    readers = [threading.Thread(target=_read, args=(process, ended.lines)) for process in processes]
    for reader in readers:
        reader.start()
    began = time.monotonic()
    try:
        ended.ends = [None] * len(processes)
        while None in ended.ends:
            time.sleep(_POLL)
            now = time.monotonic()
            for number, process in enumerate(processes):
                if ended.ends[number] is None and process.poll() is not None:
                    ended.ends[number] = now
            begins = [at for at, line in ended.lines if since and since in line]
            first = begins[0] if begins else began + (_UNTIL_LINE if since else 0.0)
            if now > first + limit:
                break
    finally:
        _kill(place.network, processes)
    for reader in readers:
        reader.join()
    ended.codes = [process.wait() for process in processes]
    return ended


def _commands(
    peer: Peer, place: Place, ranks: int, words: Sequence[str]
) -> list[tuple[list[str], dict[str, str]]]:
    """Returns what to start, each with its environment."""
    python = sys.executable if peer.own else str(place.python)
    program = ["-m", f"{_PROGRAMS}.{peer.program}", str(place.folder), *words]
    base = _environment(peer)
    if ranks == 0:
        return [([python, *program], base)]
    if peer.start == "tfring":
        command = [python, "-m", "tfring", "run", "-np", str(ranks), python, *program]
        return [(command, base)]
    ports = _free_ports(ranks)
    if peer.start == "torchrun":
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        launcher += ["--master-addr", "127.0.0.1", "--master-port", str(ports[0])]
        return [([python, *launcher, *program], base)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    by_hand = []
    for rank in range(ranks):
        numbers = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
        numbers["KERAS_DISTRIBUTION_JOB_ADDRESSES"] = ",".join(addresses)
        numbers["KERAS_DISTRIBUTION_NUM_PROCESSES"] = str(ranks)
        numbers["KERAS_DISTRIBUTION_PROCESS_ID"] = str(rank)
        cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        numbers["TF_CONFIG"] = json.dumps(cluster)
        by_hand.append(([python, *program], {**base, **numbers}))
    return by_hand


def _environment(peer: Peer) -> dict[str, str]:
    outer = ["TFRING_", "OMPI_", "PMIX_", "KERAS_", "TF_CONFIG", "RANK", "WORLD_SIZE"]
    # The checkout's modules are compiled once, as pip compiles those of installed packages.
    outer.append("PYTHONDONTWRITEBYTECODE")
    base = {name: value for name, value in os.environ.items() if not name.startswith(tuple(outer))}
    more = {
        "PYTHONPATH": str(environments.ROOT),
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return {**base, **more, **dict(peer.variables)}


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _read(process: subprocess.Popen[bytes], lines: list[tuple[float, str]]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.append((time.monotonic(), line.decode("utf-8", "replace").rstrip()))


def _kill(network: str | None, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kills what is left of a job: launchers give their ranks sessions of their own."""
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    while network and (left := environments.processes_in(network)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
