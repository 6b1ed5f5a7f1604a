"""Hosts that are network namespaces of this machine, joined by a bridge, with limited links."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

# The number of limited connections, and the port of the first.
_FLOWS = 64
_FIRST_PORT = 16384


def run(*command: str) -> str:
    """Returns the output of a command; CalledProcessError if it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _enter(space: int) -> None:
    """Moves this thread to a network namespace; Python has setns from 3.12 on."""
    if ctypes.CDLL(None, use_errno=True).setns(space, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


class Network:
    """Namespaces with one link each, limited in both directions."""

    def __init__(self, hosts: int, rate: str, control: str, flow_rate: str = "none") -> None:
        self._prefix = f"tb{os.getpid() % 10000}"
        self._hosts = hosts
        self._rate = rate
        self._control = control.encode()
        self._flow_rate = flow_rate
        self._connected = 0  # the number of connections so far

    def space(self, host: int) -> str:
        """Returns the name of a host's namespace."""
        return f"{self._prefix}n{host}"

    def address(self, host: int) -> str:
        """Returns the address of a host."""
        return f"10.214.8.{host + 1}"

    def _outside(self, host: int) -> str:
        return f"{self._prefix}v{host}"

    def up(self) -> None:
        """Makes the bridge, the namespaces and the links."""
        bridge = f"{self._prefix}b"
        limit = ["root", "tbf", "rate", self._rate, "burst", "256kb", "latency", "20ms"]
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "link", "set", bridge, "up")
        for host in range(self._hosts):
            space, outside = self.space(host), self._outside(host)
            inside = ["ip", "-n", space]
            run("ip", "netns", "add", space)
            run(
                "ip",
                "link",
                "add",
                outside,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                space,
            )
            run("ip", "link", "set", outside, "master", bridge, "up")
            run(*inside, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            run(*inside, "link", "set", "eth0", "up")
            if self._rate != "none":
                run("tc", "-n", space, "qdisc", "add", "dev", "eth0", *limit)
                run("tc", "qdisc", "add", "dev", outside, *limit)
            if self._flow_rate != "none":
                self._limit_flows(space)

    def _limit_flows(self, space: str) -> None:
        """Gives each connection its own limit, by the port at either end."""
        change = ["tc", "-n", space]
        device = ["dev", "eth0"]
        run(*change, "qdisc", "add", *device, "root", "handle", "1:", "htb", "r2q", "1000")
        for flow in range(_FLOWS):
            number = f"1:{flow + 1:x}"
            of_flow = ["classid", number, "htb", "rate", self._flow_rate, "burst", "64kb"]
            run(*change, "class", "add", *device, "parent", "1:", *of_flow)
            for side in ("sport", "dport"):
                match = ["u32", "match", "ip", side, str(_FIRST_PORT + flow), "0xffff"]
                run(
                    *change,
                    "filter",
                    "add",
                    *device,
                    "parent",
                    "1:",
                    "protocol",
                    "ip",
                    *match,
                    "flowid",
                    number,
                )

    def down(self) -> None:
        """Removes what up() made, even if up() failed halfway."""
        for host in range(self._hosts):
            for command in (
                ["link", "del", self._outside(host)],
                ["netns", "del", self.space(host)],
            ):
                with contextlib.suppress(subprocess.CalledProcessError):
                    run("ip", *command)
        with contextlib.suppress(subprocess.CalledProcessError):
            run("ip", "link", "del", f"{self._prefix}b")

    @contextlib.contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """Sockets that this thread opens in the context belong to the host."""
        with open("/proc/thread-self/ns/net", "rb") as before:
            with open(f"/run/netns/{self.space(host)}", "rb") as space:
                _enter(space.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def connect(self, one: int, other: int) -> tuple[socket.socket, socket.socket]:
        """Returns the ends of a connection of two hosts."""
        port = 0
        if self._flow_rate != "none":
            port = _FIRST_PORT + self._connected % _FLOWS
            self._connected += 1
        with self.inside(one):
            listener = socket.create_server((self.address(one), port))
        with listener:
            with self.inside(other):
                there = socket.socket()
            for end in (listener, there):  # an accepted socket has the listener's setting
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._control)
            there.connect(listener.getsockname())
            here, _ = listener.accept()
        return here, there

    def bytes_sent(self) -> list[int]:
        """Returns the bytes that each host has sent so far, with all headers."""
        sent = []
        for host in range(self._hosts):
            path = f"/sys/class/net/{self._outside(host)}/statistics/rx_bytes"
            with open(path, encoding="ascii") as counter:
                sent.append(int(counter.read()))
        return sent

    def goodput(self, size: int, connections: int = 1) -> float:
        """Returns the bytes per second that each host can send while it receives as many.

        Args:
            size: The bytes that each host sends to the next one.
            connections: The number of connections that share them.
        """
        pairs = [
            self.connect(host, (host + 1) % self._hosts)
            for host in range(self._hosts)
            for _ in range(connections)
        ]
        data = memoryview(bytearray(1 << 20))
        part = size // connections
        threads = [threading.Thread(target=_send, args=(here, data, part)) for here, _ in pairs]
        threads += [threading.Thread(target=_receive, args=(there, part)) for _, there in pairs]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - start
        for pair in pairs:
            for end in pair:
                end.close()
        return size / seconds


def _send(end: socket.socket, data: memoryview, size: int) -> None:
    for begin in range(0, size, len(data)):
        end.sendall(data[: min(len(data), size - begin)])


def _receive(end: socket.socket, size: int) -> None:
    into = bytearray(1 << 20)
    while size > 0:
        size -= end.recv_into(into, min(len(into), size))


@contextlib.contextmanager
def network(hosts: int, rate: str, control: str, flow_rate: str = "none") -> Iterator[Network]:
    """Makes a network for the time of the context.

    Args:
        hosts: The number of hosts.
        rate: The rate of each link, as tc writes it ("1gbit"); "none" for no limit.
        control: TCP's congestion control.
        flow_rate: The rate of each connection, as clouds limit it; "none" for no limit.
    """
    made = Network(hosts, rate, control, flow_rate)
    try:
        made.up()
        yield made
    finally:
        made.down()


def sockets(
    made: Network, host_of: Sequence[int]
) -> Iterator[tuple[int, int, socket.socket, socket.socket]]:
    """Connects all ranks of different hosts: gives both ranks of a pair, and their sockets."""
    for one, here in enumerate(host_of):
        for other, there in enumerate(host_of[:one]):
            if here != there:
                yield (one, other, *made.connect(here, there))
