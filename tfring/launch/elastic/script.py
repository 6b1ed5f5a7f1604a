"""A discovery script that runs again and again, supervised by the agent of the launcher's host."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tfring.launch.agents.connections import Connections
from tfring.launch.agents.host import Host
from tfring.launch.elastic.discovery import Discovered, Hosts

# The number of its process among those of the agent: ids of workers begin with 1.
NUMBER = 0
_EACH_SECONDS, _LIMIT_SECONDS = 1.0, 10.0
_PROCESS = str(Path(__file__).with_name("discovery_process.py"))


class DiscoveryScript:
    """Starts the process that runs the script, and takes what it says. Used by one thread.

    `slots` is for hosts for which the script says none.
    """

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

        Returns whether the hosts have changed, and what to tell the user.

        Raises:
            UsageError: The agent cannot be started.
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
