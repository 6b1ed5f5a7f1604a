"""Hosts with a slow network: namespaces joined by a program that delays packets.

Each namespace has a TUN device. The program (this file, with a delay and the devices' descriptors)
reads the packets that leave through one device and writes them to the device of their address, a
fixed time later. This needs no kernel module, and the processor's speed does not matter beside
a long delay.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.hosts.network import Network, run

_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADERS = 0x1001  # IFF_TUN | IFF_NO_PI
_LAST_BYTE_OF_DESTINATION = 19  # in the header of IPv4
_QUEUE = "10000"  # packets that wait to be read; the kernel drops more


class DelayedNetwork(Network):
    """Namespaces between which every packet takes `delay` seconds."""

    def __init__(self, hosts: int, delay: float) -> None:
        super().__init__(hosts, "none", "cubic")
        self._delay = delay
        self._forwarder: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        """Makes the namespaces and the forwarding program."""
        with contextlib.ExitStack() as ends:
            numbers = []
            for host in range(self._hosts):
                run("ip", "netns", "add", self.space(host))
                with self.inside(host):
                    device = ends.enter_context(open("/dev/net/tun", "r+b", buffering=0))
                    named = struct.pack("16sH", b"eth0", _TUN_WITHOUT_HEADERS)
                    fcntl.ioctl(device, _TUNSETIFF, named)
                numbers.append(device.fileno())
                inside = ["ip", "-n", self.space(host)]
                run(*inside, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
                run(*inside, "link", "set", "eth0", "txqueuelen", _QUEUE, "up")
                run(*inside, "link", "set", "lo", "up")
            module = [sys.executable, "-m", "benchmarks.hosts.delays"]
            self._forwarder = subprocess.Popen(
                [*module, str(self._delay), *map(str, numbers)], pass_fds=numbers
            )

    def down(self) -> None:
        """Removes what up() made, even if up() failed halfway."""
        if self._forwarder is not None:
            self._forwarder.kill()
            self._forwarder.wait()
        super().down()


@contextlib.contextmanager
def delayed_network(hosts: int, delay: float) -> Iterator[DelayedNetwork]:
    """Makes a network with a delay, in seconds, for the time of the context."""
    made = DelayedNetwork(hosts, delay)
    try:
        made.up()
        yield made
    finally:
        made.down()


def forward(delay: float, devices: list[int]) -> None:
    """Forwards packets between the devices, each `delay` seconds late, until it is killed."""
    for device in devices:
        os.set_blocking(device, False)
    waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for device in select.select(devices, [], [], pause)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(device, 65536)
                    if packet[0] >> 4 == 4:
                        target = packet[_LAST_BYTE_OF_DESTINATION] - 1
                        waiting.append((time.monotonic() + delay, target, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, target, packet = waiting.popleft()
            if 0 <= target < len(devices):
                os.write(devices[target], packet)


if __name__ == "__main__":
    forward(float(sys.argv[1]), [int(number) for number in sys.argv[2:]])
