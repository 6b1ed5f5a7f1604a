"""The command line of ssh."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

# A name, an alias of ssh's settings or an address, with or without a user.
_HOST = re.compile(r"(?!-)([^\s\x00-\x1f]+@)?(?!-)[^\s\x00-\x1f@;]+")


def check_host(host: str) -> None:
    """Raises ValueError if a text cannot be the name of a host; ssh takes some for its options."""
    if not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is no name of a host")


@dataclass(frozen=True)
class SshOptions:
    """How to reach other hosts."""

    port: int | None = None
    identity_file: str | None = None
    connect_seconds: float = 60.0
    silence_seconds: float = 45.0  # after so long without an answer ssh ends the connection

    @property
    def program(self) -> str:
        """The name of what it starts here."""
        return "ssh"

    def command(self, host: str, remote: list[str]) -> list[str]:
        """Returns the command line that runs ``remote`` on ``host``. It contains no secret.

        Raises:
            ValueError: See check_host.
        """
        check_host(host)
        words = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveCountMax=3"]
        words += ["-o", f"ServerAliveInterval={max(1, round(self.silence_seconds / 3))}"]
        words += ["-o", f"ConnectTimeout={max(1, round(self.connect_seconds))}"]
        if self.port is not None:
            words += ["-p", str(self.port)]
        if self.identity_file is not None:
            words += ["-i", self.identity_file]
        return [*words, "--", host, shlex.join(remote)]
