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


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _enter(space: int) -> None:
    """Moves this thread to a network namespace; Python has setns from 3.12 on."""
    if ctypes.CDLL(None, use_errno=True).setns(space, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


class Network:
    """Namespaces with one link each, of which both directions are limited."""

    def __init__(self, hosts: int, rate: str, control: str) -> None:
        self._prefix = f"tb{os.getpid() % 10000}"
        self._hosts = hosts
        self._rate = rate
        self._control = control.encode()

    def _space(self, host: int) -> str:
        return f"{self._prefix}n{host}"

    def _outside(self, host: int) -> str:
        return f"{self._prefix}v{host}"

    def up(self) -> None:
        """Makes the bridge, the namespaces and the links."""
        bridge = f"{self._prefix}b"
        limit = ["root", "tbf", "rate", self._rate, "burst", "256kb", "latency", "20ms"]
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        for host in range(self._hosts):
            space, outside = self._space(host), self._outside(host)
            inside = ["ip", "-n", space]
            _run("ip", "netns", "add", space)
            _run(
                *("ip", "link", "add", outside, "type", "veth"),
                *("peer", "name", "eth0", "netns", space),
            )
            _run("ip", "link", "set", outside, "master", bridge, "up")
            _run(*inside, "addr", "add", f"10.214.8.{host + 1}/24", "dev", "eth0")
            _run(*inside, "link", "set", "eth0", "up")
            if self._rate != "none":
                _run("tc", "-n", space, "qdisc", "add", "dev", "eth0", *limit)
                _run("tc", "qdisc", "add", "dev", outside, *limit)

    def down(self) -> None:
        """Removes what up() made, also if it did not get to its end."""
        for host in range(self._hosts):
            for command in (
                ["link", "del", self._outside(host)],
                ["netns", "del", self._space(host)],
            ):
                with contextlib.suppress(subprocess.CalledProcessError):
                    _run("ip", *command)
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("ip", "link", "del", f"{self._prefix}b")

    @contextlib.contextmanager
    def _inside(self, host: int) -> Iterator[None]:
        """What this thread opens in the context belongs to the host."""
        with open("/proc/thread-self/ns/net", "rb") as before:
            with open(f"/run/netns/{self._space(host)}", "rb") as space:
                _enter(space.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def connect(self, one: int, other: int) -> tuple[socket.socket, socket.socket]:
        """Returns the ends of a connection of two hosts."""
        with self._inside(one):
            listener = socket.create_server((f"10.214.8.{one + 1}", 0))
        with listener:
            with self._inside(other):
                there = socket.socket()
            for end in (listener, there):  # what is accepted has the listener's
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._control)
            there.connect(listener.getsockname())
            here, _ = listener.accept()
        return here, there

    def bytes_sent(self) -> list[int]:
        """Returns what each host has sent so far, with all headers."""
        sent = []
        for host in range(self._hosts):
            path = f"/sys/class/net/{self._outside(host)}/statistics/rx_bytes"
            with open(path, encoding="ascii") as counter:
                sent.append(int(counter.read()))
        return sent

    def goodput(self, size: int) -> float:
        """Returns how many bytes a second every host can send while it receives as many.

        Args:
            size: How much each host sends to the next one, with one connection.
        """
        pairs = [self.connect(host, (host + 1) % self._hosts) for host in range(self._hosts)]
        data = memoryview(bytearray(1 << 20))
        threads = [threading.Thread(target=_send, args=(here, data, size)) for here, _ in pairs]
        threads += [threading.Thread(target=_receive, args=(there, size)) for _, there in pairs]
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
def network(hosts: int, rate: str, control: str) -> Iterator[Network]:
    """Makes a network for the time of the context.

    Args:
        hosts: How many.
        rate: Of each link, as tc writes it ("1gbit"); "none" for no limit.
        control: TCP's congestion control.
    """
    made = Network(hosts, rate, control)
    try:
        made.up()
        yield made
    finally:
        made.down()


def sockets(
    made: Network, host_of: Sequence[int]
) -> Iterator[tuple[int, int, socket.socket, socket.socket]]:
    """Connects all ranks of different hosts: gives both ranks of a pair, and their ends."""
    for one, here in enumerate(host_of):
        for other, there in enumerate(host_of[:one]):
            if here != there:
                yield (one, other, *made.connect(here, there))
