"""Asks a user's script, again and again, which hosts there are."""

from __future__ import annotations

import re

from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.lists import parse_entry
from tfring.launch.hosts.placement import address_of

Hosts = list[tuple[str, int]]
_MOST_SHOWN = 300


class DiscoveryError(ValueError):
    """A script has printed what is no list of hosts."""


def parse_hosts_found(text: str, slots: int | None) -> Hosts:
    """Reads what a discovery script prints: a line ``host:slots`` or ``host`` for each host.

    Returns the hosts in the order of the lines. `slots` is for lines that say none;
    None: each line has to.

    Raises:
        DiscoveryError: A line has another form, or a host is named twice.
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
    """The hosts that a script has named last. Hosts that stay keep their places: oldest first.

    `slots` is for hosts for which the script says none.
    """

    def __init__(self, slots: int | None) -> None:
        self._slots = slots
        self.hosts: Hosts = []
        self._trouble = ""  # what was wrong the last time

    def take(self, code: int | None, out: str, err: str) -> tuple[bool, str]:
        """Takes what a run of the script has given. Without a code it took too long, and was ended.

        Returns whether the hosts have changed, and what to tell the user, if anything. What is
        wrong several times in a row is told once; the hosts then stay.
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
