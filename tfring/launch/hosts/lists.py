"""Hosts as users and schedulers write them: ``user@host``, ``[fe80::1]``, ``node[01-04]``."""

from __future__ import annotations

import ipaddress
import re

from tfring.job.bootstrap.hosts import host_name
from tfring.launch.hosts.errors import UsageError

# No job has more hosts; a slip of the pen in a range can ask for billions.
_MOST_HOSTS = 100_000
# Nor has a host more slots.
_MOST_SLOTS = 100_000
_ENTRY = re.compile(
    r"(?P<user>[A-Za-z0-9_][\w.-]*@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?\]|[A-Za-z0-9_][A-Za-z0-9_.,/\[\]-]*)"
    r"(?::(?P<slots>\d+))?",
    re.ASCII,
)


def split_list(text: str) -> list[str]:
    """Splits a list at its commas, but for those within brackets; empty parts are left out."""
    parts = re.findall(r"(?:\[[^\]]*\]|[^,])+", text)
    return [part.strip() for part in parts if part.strip()]


def parse_entry(entry: str, shown: str) -> list[tuple[str, int]]:
    """Reads ``host:slots``, where the host may stand for several; without a number it is one slot.

    Such as ``me@node[01-04]:2`` or ``[fe80::1]:4``. Returns each host, with the user but without
    the brackets of an address, and its slots. This host has its own name, as its ranks call it, and
    not ``localhost``. UsageError names what is `shown`.
    """
    match = _ENTRY.fullmatch(entry)
    if match is None or match["slots"] == "0":
        hint = ""
        if entry.count(":") > 1:
            hint = "; an IPv6 address stands in brackets: [fd00::1]:4"
        raise UsageError(f'"{shown}" is not host:slots, as in -H node1:4,node2:4{hint}')
    user, digits = match["user"] or "", match["slots"] or "1"
    if len(digits) > 20 or int(digits) > _MOST_SLOTS:
        raise UsageError(f'"{shown[:80]}" has more than {_MOST_SLOTS} slots')
    slots = int(digits)
    host = match["host"]
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError as error:
            raise UsageError(f'"{shown}" names no IPv6 address: {error}') from None
        return [(user + host[1:-1], slots)]
    if host == "localhost" and not user:
        return [(host_name(), slots)]
    return [(user + name, slots) for name in expand(host)]


def expand(names: str) -> list[str]:
    """Returns the hosts that a list with ranges stands for: ``a[1-2],b`` is a1, a2, b.

    UsageError: the list has another form, or the library for ranges is missing.
    """
    found: list[str] = []
    for part in split_list(names):
        found += _expand_ranges(part) if "[" in part or "]" in part else [part]
        if len(found) > _MOST_HOSTS:
            raise UsageError(f'"{names}" stands for more than {_MOST_HOSTS} hosts')
    if any("/" in name for name in found):
        raise UsageError(f'"{names}" is not a list of hosts')
    return found


def _expand_ranges(names: str) -> list[str]:
    try:
        from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetParseError
        from ClusterShell.RangeSet import RangeSetException
    except ImportError:
        raise UsageError(
            f'to read "{names}" ClusterShell is needed: pip install "tfring[cluster]", or name the '
            "hosts one by one"
        ) from None
    if re.search(r"\d{7,}", names):  # before it makes a list of them
        raise UsageError(f'"{names}" stands for too many hosts')
    try:
        nodes = NodeSet(names, resolver=RESOLVER_NOGROUP)
    except (NodeSetParseError, RangeSetException) as error:
        raise UsageError(f'"{names}" is not a list of hosts, as node[01-04]: {error}') from None
    return [str(name) for name in nodes]
