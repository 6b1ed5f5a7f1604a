"""Asks a user's script each second which hosts there are."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable

from tfring.launch.agents.processes import end_with_parent
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.lists import parse_entry
from tfring.launch.hosts.placement import address_of

Hosts = list[tuple[str, int]]
_EACH_SECONDS, _LIMIT_SECONDS = 1.0, 10.0
_MOST_SHOWN = 300
# Runs a command, and kills all that it has started at SIGTERM.
_SHELL = """trap 'kill -KILL 0' TERM; sh -c "$0" & wait $!"""


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
    """A thread that runs the script until `close`.

    In it `on_hosts` gets the hosts when they have changed, and `on_note` texts for the user.
    """

    def __init__(
        self,
        command: str,
        slots: int | None,
        on_hosts: Callable[[Hosts], None],
        on_note: Callable[[str], None],
    ) -> None:
        self._command = command
        self._discovered = Discovered(slots)
        self._on_hosts, self._on_note = on_hosts, on_note
        self._closing = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and the script if it runs."""
        self._closing.set()
        if (process := self._process) is not None:
            _kill(process)
        self._thread.join()

    def _work(self) -> None:
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                self._take(*self._run())
            except Exception as error:  # no process more can be made, say: there may be a next time
                self._take(126, "", f"{type(error).__name__}: {error}")
            self._closing.wait(began + _EACH_SECONDS - time.monotonic())

    def _take(self, code: int | None, out: str, err: str) -> None:
        changed, note = self._discovered.take(code, out, err)
        if self._closing.is_set():
            return
        if note:
            self._on_note(note)
        if changed:
            self._on_hosts(self._discovered.hosts)

    def _run(self) -> tuple[int | None, str, str]:
        """Runs the script once; returns its exit code (None: it took too long) and its output."""
        launcher = os.getpid()
        process = self._process = subprocess.Popen(
            ["sh", "-c", _SHELL, self._command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # The kernel sends it when this thread ends, which waits for the script.
            preexec_fn=lambda: end_with_parent(launcher, signal.SIGTERM),
            text=True,
            errors="replace",
        )
        with process:
            if self._closing.is_set():  # since the thread has looked
                _kill(process)
            try:
                out, err = process.communicate(timeout=_LIMIT_SECONDS)
                return process.returncode, out, err
            except subprocess.TimeoutExpired:
                return None, "", ""
            finally:
                _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills a script with all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def hosts_text(hosts: Hosts) -> str:
    """Returns ``node1:4, node2:4``, or ``none``."""
    return ", ".join(f"{name}:{count}" for name, count in hosts) or "none"
