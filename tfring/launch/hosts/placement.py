"""Assigns ranks to hosts."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfring.job.bootstrap.hosts import host_name, interface_addresses
from tfring.launch.hosts.errors import NoRanksError, UsageError
from tfring.launch.hosts.lists import parse_entry, split_list

MOST_RANKS = 100_000

Hosts = tuple[tuple[str, int], ...]
"""Hosts, each with its slots."""


@dataclass(frozen=True)
class Slot:
    """The host of one rank, and its rank among those of the host and across hosts."""

    rank: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def variables(self, prefix: str, size: int) -> dict[str, str]:
        """Returns its numbers as variables, in a job of `size` ranks."""
        numbers = {
            "RANK": self.rank,
            "SIZE": size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_SIZE": self.local_size,
            "CROSS_RANK": self.cross_rank,
            "CROSS_SIZE": self.cross_size,
        }
        return {f"{prefix}{name}": str(number) for name, number in numbers.items()}


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """Reads ``host:slots,host:slots``, or raises UsageError; without a number it is one slot."""
    hosts = [host for part in split_list(text) for host in parse_entry(part, part)]
    if not hosts:
        raise UsageError(f"-H {text!r} names no host. Check the variables of your shell.")
    return hosts


def parse_hostfile(text: str) -> list[tuple[str, int]]:
    """Reads a host file: ``host slots=4`` or ``host:4`` per line, # starts a comment.

    UsageError names a line that has another form.
    """
    hosts: list[tuple[str, int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        slots = [re.fullmatch(r"slots=(\d+)", word) for word in words[1:]]
        if len(words) > 2 or not all(slots):
            raise UsageError(f'Line {number} of the host file is "{line}". Write "host slots=4".')
        entry = f"{words[0]}:{slots[0].group(1)}" if slots and slots[0] else words[0]
        try:
            hosts += parse_entry(entry, line)
        except UsageError as error:
            raise UsageError(f"Line {number} of the host file: {error}") from None
    return hosts


def read_hostfile(path: str) -> list[tuple[str, int]]:
    """Returns the hosts of a file, or raises UsageError: see parse_hostfile."""
    try:
        return parse_hostfile(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The host file cannot be read: {error}") from None


def assign_slots(ranks: int | None, hosts: Sequence[tuple[str, int]]) -> list[Slot]:
    """Fills the slots of the hosts with ranks, in order.

    Without a number of ranks it fills every slot; without hosts this one has as many slots as
    ranks. UsageError: there are too few slots or too many ranks, or a host is named twice.
    """
    if ranks is not None and ranks < 1:
        raise UsageError(f"{ranks} ranks are too few: a job needs at least one.")
    if not hosts:
        if ranks is None:
            raise NoRanksError(
                "The number of ranks is missing. Write: tfring run -np 2 python train.py\nWithin a "
                "job of Slurm, PBS, LSF or SGE its hosts are used."
            )
        hosts = [(host_name(), ranks)]
    names = [address_of(host) for host, _ in hosts]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"The host {twice} is named twice. Add up its slots in one entry.")
    total = sum(slots for _, slots in hosts)
    ranks = total if ranks is None else ranks
    if ranks > MOST_RANKS:
        raise UsageError(f"{ranks} ranks are too many: a job has at most {MOST_RANKS}.")
    if ranks > total:
        raise UsageError(
            f"{ranks} ranks need more slots than the {total} of all hosts.\nGive each host its "
            "number, such as -H node1:4. Without one a host has 1 slot."
        )
    used: list[tuple[str, int]] = []
    left = ranks
    for host, slots in hosts:
        used.append((host, min(slots, left)))
        left -= used[-1][1]
    used = [(host, count) for host, count in used if count > 0]
    return _number_ranks(used)


def _number_ranks(used: list[tuple[str, int]]) -> list[Slot]:
    slots: list[Slot] = []
    for index, (host, count) in enumerate(used):
        for local in range(count):
            cross = sum(1 for _, other in used[:index] if other > local)
            across = sum(1 for _, other in used if other > local)
            slots.append(Slot(len(slots), host, local, count, cross, across))
    return slots


def crowded(slots: Sequence[Slot]) -> str:
    """Returns what to say where this host has more ranks than cores; "" elsewhere."""
    here = {host for host in {slot.host for slot in slots} if is_local(host)}
    ranks, cores = sum(slot.host in here for slot in slots), len(os.sched_getaffinity(0))
    if ranks <= cores:
        return ""
    have = "1 core, which this host has" if cores == 1 else f"the {cores} cores of this host"
    return (
        f"tfring run: {ranks} ranks share {have}: each step takes about {ranks / cores:.2g} times "
        f"as long as with -np {cores}.\nStart fewer ranks, or name more hosts with -H."
    )


def address_of(host: str) -> str:
    """Returns a host without the user that ssh logs in as: ``node1`` of ``me@node1``."""
    return host.rpartition("@")[2]


def _own_name() -> str | None:
    """Returns the name of this process's user; None: the system has none, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def is_local(host: str) -> bool:
    """Whether a host is this machine, and no other user is to run the ranks there."""
    user, _, host = host.rpartition("@")
    if user and user != _own_name():
        return False
    if host in ("localhost", "::1", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found & {a.address for a in interface_addresses()})
