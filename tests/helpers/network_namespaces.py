"""Hosts that a test makes itself: network namespaces of this machine, joined by a bridge."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from launcher_tools import environment

# An address of no machine: what is sent to it is lost without a trace.
_NOWHERE = "02:00:00:00:ff:ff"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """Namespaces with one address each, named h0, h1, ... as hosts. They end with the context."""

    def __init__(self, count: int) -> None:
        self._prefix = f"tf{os.getpid() % 10000}"
        self.count = count

    def name(self, host: int) -> str:
        """Returns the name of a host's namespace."""
        return f"{self._prefix}n{host}"

    def address(self, host: int) -> str:
        """Returns the address of a host."""
        return f"10.213.7.{host + 1}"

    def up(self) -> None:
        """Makes the bridge, the namespaces and the links between them."""
        bridge = f"{self._prefix}b"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for host in range(self.count):
            space, outside = self.name(host), f"{self._prefix}v{host}"
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", outside, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def down(self) -> None:
        """Removes what up() made, also if it did not get to its end."""
        for host in range(self.count):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("link", "del", f"{self._prefix}v{host}")
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self.name(host))
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"{self._prefix}b")

    def cut(self, one: int, other: int) -> None:
        """Loses all that goes between two hosts from now on, in both directions, silently."""
        for here, there in ((one, other), (other, one)):
            neighbour = ["neigh", "replace", self.address(there), "lladdr", _NOWHERE]
            _ip("-n", self.name(here), *neighbour, "nud", "permanent", "dev", "eth0")

    def start(self, host: int, *arguments: object, **more: str) -> subprocess.Popen[str]:
        """Starts Python on a host as the rank of that number, with `more` in its environment."""
        inside = 'hostname "$0" 2>/dev/null || echo "$0" > /proc/sys/kernel/hostname; exec "$@"'
        job = {
            "TFRING_RANK": str(host),
            "TFRING_SIZE": str(self.count),
            "TFRING_RENDEZVOUS_ADDR": self.address(0),
            "TFRING_RENDEZVOUS_PORT": "29571",
            "TFRING_SECRET": "only-for-this-test-0123456789abcdef",
        }
        command = ["ip", "netns", "exec", self.name(host), "unshare", "--uts", "sh", "-c", inside]
        return subprocess.Popen(
            [*command, f"h{host}", sys.executable, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**job, **more),
        )


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Makes hosts for the time of the context; skips the test where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs the programs ip and unshare")
    made = Hosts(count)
    try:
        try:
            made.up()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this system does not allow network namespaces: {error.stderr.strip()}")
        yield made
    finally:
        made.down()
