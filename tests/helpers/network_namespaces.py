"""Hosts that a test makes: network namespaces of this machine, joined by a bridge."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_tools import environment

# An address that no machine has: packets to it are lost silently.
_NOWHERE = "02:00:00:00:ff:ff"
# Command prefix: the kernel kills the command if this process dies without clearing up.
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """Namespaces with one address each; hosts are named h0, h1, ... They end with the context."""

    def __init__(self, count: int) -> None:
        self._prefix = f"tf{os.getpid() % 10000}"
        self.count = count
        self._moved: dict[int, str] = {}  # the new address of each host that was moved
        self._files: dict[str, Path] = {}  # by file: what processes see instead

    def name(self, host: int) -> str:
        """Returns the name of a host's namespace."""
        return f"{self._prefix}n{host}"

    def address(self, host: int) -> str:
        """Returns the address of a host."""
        return self._moved.get(host, f"10.213.7.{host + 1}")

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
        """Removes what up() made, even if up() failed halfway."""
        for host in range(self.count):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("link", "del", f"{self._prefix}v{host}")
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self.name(host))
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"{self._prefix}b")

    def name_all(self, folder: Path) -> None:
        """Lets processes that inside() starts from now on find all hosts by name.

        Args:
            folder: Folder of the file that they see as /etc/hosts.
        """
        lines = [f"{self.address(host)} h{host}\n" for host in range(self.count)]
        self.replace(folder, "/etc/hosts", "".join(["127.0.0.1 localhost\n", *lines]))

    def replace(self, folder: Path, path: str, text: str) -> None:
        """Lets processes that inside() starts from now on see this text as the content of a file.

        Args:
            folder: Folder of the file with the text.
            path: The file that it replaces; it must exist.
            text: The content.
        """
        file = folder / path.strip("/").replace("/", "-")
        file.write_text(text)
        self._files[path] = file

    def inside(self, host: int, name: str | None = None) -> list[str]:
        """Returns the command prefix that runs a command on a host, as root.

        Args:
            host: The host.
            name: The host name there, if not h and its number.
        """
        inside = 'hostname "$0" 2>/dev/null || echo "$0" > /proc/sys/kernel/hostname; '
        for path, file in self._files.items():
            inside += f"mount --bind {file} {path}; "
        # `ip netns exec` would mount a new /sys, without the control groups that Slurm needs.
        command = ["nsenter", f"--net=/run/netns/{self.name(host)}"]
        command += ["unshare", "--uts", "--mount", "sh", "-c"]
        return [*command, inside + 'exec "$@"', name or f"h{host}"]

    def pids(self, host: int) -> list[int]:
        """Returns the process ids on a host."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.name(host)], check=True, capture_output=True, text=True
        )
        return [int(pid) for pid in found.stdout.split()]

    def kill_all(self) -> None:
        """Kills all processes on all hosts, until none is left."""
        self.kill(*range(self.count))

    def kill(self, *hosts: int) -> None:
        """Kills all processes on some hosts, until none is left."""
        while pids := [pid for host in hosts for pid in self.pids(host)]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def connect(self, host: int, connected: bool) -> None:
        """Takes a host off the network silently, or puts it back."""
        _ip("link", "set", f"{self._prefix}v{host}", "up" if connected else "down")

    def move(self, host: int, address: str) -> None:
        """Changes the address of a host. name_all() writes the new one."""
        _ip("-n", self.name(host), "addr", "flush", "dev", "eth0")
        _ip("-n", self.name(host), "addr", "add", f"{address}/24", "dev", "eth0")
        self._moved[host] = address

    def cut(self, one: int, other: int) -> None:
        """Drops all packets between two hosts from now on, in both directions, silently."""
        for here, there in ((one, other), (other, one)):
            neighbour = ["neigh", "replace", self.address(there), "lladdr", _NOWHERE]
            _ip("-n", self.name(here), *neighbour, "nud", "permanent", "dev", "eth0")

    def start(self, host: int, *arguments: object, **more: str) -> subprocess.Popen[str]:
        """Starts Python on a host as this rank, with `more` in its environment."""
        job = {
            "TFRING_X_RANK": str(host),
            "TFRING_X_SIZE": str(self.count),
            "TFRING_RENDEZVOUS_ADDR": self.address(0),
            "TFRING_RENDEZVOUS_PORT": "29571",
            "TFRING_SECRET": "only-for-this-test-0123456789abcdef",
        }
        return subprocess.Popen(
            [*self.inside(host), sys.executable, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**job, **more),
        )


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Makes hosts for the time of the context; skips the test if that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    missing = [
        name for name in ("ip", "nsenter", "setpriv", "unshare") if shutil.which(name) is None
    ]
    if missing:
        pytest.skip(f"needs the programs {', '.join(missing)}: apt-get install iproute2 util-linux")
    made = Hosts(count)
    try:
        try:
            made.up()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this system does not allow network namespaces: {error.stderr.strip()}")
        yield made
    finally:
        made.down()
