"""The peers of this run, as a rank sees them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.children import Child
from benchmarks.peers.mpi import mpi_call
from benchmarks.peers.task import Place
from tfring.bench.sync import shared_file
from tfring.bench.timing import Sync, Turn, timed
from tfring.collectives.objects import allgather_json
from tfring.job.bootstrap.hosts import LOOPBACK, interface_addresses
from tfring.runtime.settings.environment import read_settings
from tfring.runtime.topology import rank, size


class Team:
    """Prepares cases for all peers; all ranks make the same calls.

    Args:
        names: The names of the peers.
        sync: The ranks.

    Raises:
        PeerError: A process of a peer failed.
    """

    def __init__(self, names: Sequence[str], sync: Sync) -> None:
        self._sync = sync
        self._mpi = "mpi" in names
        self._children: dict[str, Child] = {}
        for name in (name for name in names if name != "mpi"):
            barrier = shared_file()
            interface, host = ("lo", LOOPBACK) if barrier is not None else _own_address()
            place = Place(rank(), size(), host, interface, 1, -1, barrier)
            child = self._children[name] = Child(name, place)
            addresses = allgather_json(child.address(), f"benchmarks.peers.{name}")
            child.join([str(address) for address in addresses])

    def close(self) -> None:
        """Ends the processes of the peers."""
        for child in self._children.values():
            child.close()

    def prepare(
        self, spec: dict[str, Any], local_step: Callable[[], object]
    ) -> tuple[dict[str, Turn], list[str]]:
        """Returns the turns of the peers that can run a case, and why the others cannot.

        Args:
            spec: The description of the case.
            local_step: For a training step, the step without communication.
        """
        turns: dict[str, Turn] = {}
        reasons: dict[str, str | None] = {}
        if self._mpi:
            call = mpi_call(spec, local_step if spec["kind"] == "step" else None)
            reasons["mpi"] = call if isinstance(call, str) else None
            if not isinstance(call, str):
                turns["mpi"] = timed(self._sync.barrier, call)
        for name, child in self._children.items():
            reasons[name] = child.prepare(spec)
            turns[name] = child.turn()
        left_out = {}
        for there in allgather_json(reasons, "benchmarks.peers"):
            left_out.update({name: why for name, why in there.items() if why is not None})
        kept = {name: turn for name, turn in turns.items() if name not in left_out}
        return kept, [f"{name}: {why}" for name, why in left_out.items()]


def _own_address() -> tuple[str, str]:
    """Returns the network interface and the address at which other hosts reach this one."""
    wanted = read_settings(os.environ).interface
    found = [
        each for each in interface_addresses() if not each.loopback and ":" not in each.address
    ]
    chosen = [each for each in found if each.interface in wanted] if wanted else found
    if not chosen:
        raise RuntimeError(
            f"rank {rank()}: no network interface with an IPv4 address is up"
            f"{' of ' + ', '.join(wanted) if wanted else ''}, which peers need on several hosts: "
            "leave out --against"
        )
    return chosen[0].interface, chosen[0].address
