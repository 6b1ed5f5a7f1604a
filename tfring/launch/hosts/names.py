"""Whether the names of hosts are known here, before anything is started on them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from tfring.job.handshake.listener import LOOKUP_SECONDS, look_up
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import address_of, is_local

_SSH_SECONDS = 10.0


def refuse_unknown(hosts: Iterable[str]) -> None:
    """Raises UsageError for a host that ssh could not reach, because its name has no address here.

    Hosts are as users write them, me@node1. ssh's own settings may say what a name stands for.
    """
    for host in hosts:
        if not is_local(host) and not _has_address(address_of(host)) and not _ssh_knows(host):
            raise UsageError(
                f"The host {address_of(host)} is unknown: its name does not resolve here.\n"
                "Check -H or the host file, and /etc/hosts."
            )


def _has_address(name: str) -> bool:
    try:
        return bool(look_up(name, 0, LOOKUP_SECONDS))
    except OSError:
        return False


def _ssh_knows(host: str) -> bool:
    """Whether ssh's settings name another host for this one, or a way that leads to it."""
    try:
        shown = subprocess.run(
            ["ssh", "-G", "--", host],
            capture_output=True,
            text=True,
            timeout=_SSH_SECONDS,
            stdin=subprocess.DEVNULL,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return False
    settings = dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)
    ways = [settings.get(name, "none") for name in ("proxyjump", "proxycommand")]
    named = settings.get("hostname", "").lower()
    return named not in ("", address_of(host).lower()) or any(way != "none" for way in ways)
