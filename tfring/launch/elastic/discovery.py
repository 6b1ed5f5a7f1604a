"""Asks a user's script, again and again, which hosts there are.

The agent of the launcher's host supervises the process that runs it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from tfring.launch.agents.connections import Connections
from tfring.launch.agents.host import Host
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.lists import parse_entry
from tfring.launch.hosts.placement import address_of

Hosts = list[tuple[str, int]]
# The number of its process among those of the agent: ids of workers begin with 1.
NUMBER = 0
_EACH_SECONDS, _LIMIT_SECONDS = 1.0, 10.0
_PROCESS = str(Path(__file__).with_name("discovery_process.py"))
_MOST_SHOWN = 300


class DiscoveryError(ValueError):
    """A script has printed what is no list of hosts."""


def parse_hosts_found(text: str, slots: int | None) -> Hosts:
    """Reads what a discovery script prints: a line ``host:slots`` or ``host`` for each host.

    `slots` is for lines that say none; None: each line has to.

    DiscoveryError: a line has another form, or a host is named twice.
    """
    found: Hosts = []
    names: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip()
        if not entry:
            continue
        try:
            entries = parse_entry(entry, entry)
        except UsageError as error:
            raise DiscoveryError(f"line {number}: {error}") from None
        if re.search(r":\d+$", entry) is None:
            if slots is None:
                raise DiscoveryError(
                    f'line {number}: "{entry}" says no number of slots: print host:slots, or '
                    "give --slots"
                )
            entries = [(host, slots) for host, _ in entries]
        for host, count in entries:
            if address_of(host) in names:
                raise DiscoveryError(f"line {number}: {host} is named a second time")
            names.add(address_of(host))
            found.append((host, count))
    return found


class Discovered:
    """The hosts that a script named last. Hosts that stay keep their places: oldest first.

    `slots` is for hosts for which the script says none.
    """

    def __init__(self, slots: int | None) -> None:
        self._slots = slots
        self.hosts: Hosts = []
        self._trouble = ""  # what was wrong the last time

    def take(self, code: int | None, out: str, err: str) -> tuple[bool, str]:
        """Takes the result of a run of the script. No code: it took too long, and was ended.

        Returns whether the hosts have changed, and a text for the user, if there is one. After an
        error the hosts stay; the same error in a row gives one text.
        """
        try:
            if code is None:
                raise DiscoveryError("it did not end in time")
            if code != 0:
                how = f"exit code {code}" if code > 0 else f"signal {-code}"
                said = err.strip()[-_MOST_SHOWN:]
                raise DiscoveryError(f"it ended with {how}" + (f": {said}" if said else ""))
            found = parse_hosts_found(out, self._slots)
            if self.hosts and not found:  # where it asks is away, more likely than all hosts
                raise DiscoveryError("it named no hosts")
        except DiscoveryError as error:
            repeated, self._trouble = str(error) == self._trouble, str(error)
            stay = "the hosts stay as they are" if self.hosts else "there are no hosts yet"
            return False, "" if repeated else f"the host discovery script failed, {stay}: {error}"
        note = "the host discovery script works again" if self._trouble and self.hosts else ""
        self._trouble = ""
        now = dict(found)
        ordered = [(host, now[host]) for host, _ in self.hosts if host in now]
        old = {host for host, _ in self.hosts}
        ordered += [(host, count) for host, count in found if host not in old]
        changed, self.hosts = ordered != self.hosts, ordered
        return changed, note


class DiscoveryScript:
    """Starts the process that runs the script, and takes what it says. Used by one thread."""

    def __init__(self, connections: Connections, command: str, slots: int | None) -> None:
        self._connections = connections
        self._command = command
        self._discovered = Discovered(slots)
        self._output = b""
        self._host: Host | None = None  # whose agent runs the process
        self.start_at = 0.0  # when it is started again, if it does not run

    @property
    def hosts(self) -> Hosts:
        """The hosts that the script has named last."""
        return self._discovered.hosts

    def feed(self, data: bytes) -> None:
        """Takes output of the process."""
        self._output += data

    def step(self, now: float) -> tuple[bool, list[str]]:
        """Starts the process where it does not run, and looks at what it has said.

        Returns whether the hosts have changed, and what to tell the user. UsageError: the agent
        cannot be started.
        """
        host = self._host
        if host is not None and (host.ended or host.poll(NUMBER) is not None):
            self._host, self._output, self.start_at = None, b"", now + _EACH_SECONDS
        if self._host is None and now >= self.start_at:
            self._start()
        *lines, self._output = self._output.split(b"\n")
        changed, notes = False, []
        for line in lines:
            new, note = self._discovered.take(**json.loads(line))
            changed = changed or new
            notes += [note] if note else []
        return changed, notes

    def _start(self) -> None:
        host = self._host = self._connections.host("localhost")
        seconds = (f"{_EACH_SECONDS:g}", f"{_LIMIT_SECONDS:g}")
        command = [sys.executable, "-I", "-S", _PROCESS, self._command, *seconds]
        job = {"argv": command, "env": {}, "cwd": os.getcwd()}
        host.start(NUMBER, json.dumps(job).encode())
        host.flush()


def hosts_text(hosts: Hosts) -> str:
    """Returns ``node1:4, node2:4``, or ``none``."""
    return ", ".join(f"{name}:{count}" for name, count in hosts) or "none"
