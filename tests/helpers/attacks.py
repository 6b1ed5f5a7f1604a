"""Attacks from the network: occupied ports, floods, and bytes changed in transit."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable

from tfring.job.handshake.listener import bind


class Squatter:
    """Listens on a port before the job does; treats all connections alike. Ends with the block."""

    def __init__(self, port: int = 0, says: bytes = b"", closes: bool = False) -> None:
        self._sock = bind("127.0.0.1", port, 64)
        self.port = self._sock.getsockname()[1]
        self._says, self._closes = says, closes
        self._open: list[socket.socket] = []
        self.visitors = 0
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Squatter:
        self._thread.start()
        return self

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._sock.accept()
                self.visitors += 1
                with contextlib.suppress(OSError):
                    sock.sendall(self._says)
                if self._closes:
                    sock.close()
                self._open.append(sock)

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        for sock in self._open:
            sock.close()


class Relay:
    """Relays the bytes between two ends; `change` gets those of the connecting end, in pieces."""

    def __init__(self, target: tuple[str, int], change: Callable[[int, bytes], bytes]) -> None:
        self._target, self._change = target, change
        self._sock = bind("127.0.0.1", 0, 16)
        self.address = self._sock.getsockname()[:2]
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._sock.accept()
                try:
                    server = socket.create_connection(self._target, timeout=10)
                except OSError:  # no listener yet
                    client.close()
                    continue
                server.settimeout(None)
                self._open += [client, server]
                for source, sink, forward in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._pump, args=(source, sink, forward), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, forward: bool) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(self._change(number, data) if forward else data)
                number += 1
            sink.shutdown(socket.SHUT_WR)

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        for sock in (self._sock, *self._open):
            sock.close()


def listening_ports(first: int = 1, last: int = 65535) -> set[int]:
    """The listening ports of this network namespace, as a port scan would find them."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{name}", encoding="ascii") as file:
            for line in file.read().splitlines()[1:]:
                words = line.split()
                port = int(words[1].rpartition(":")[2], 16)
                if words[3] == "0A" and first <= port <= last:
                    found.add(port)
    return found


class Flood:
    """Opens many connections to every port that opens while it runs, and holds some of them.

    Some send nothing, some garbage, some a byte now and then, some a valid first message and
    no proof. Ends with the block.
    """

    def __init__(self, connections: int, first_messages: list[bytes], held: int = 4000) -> None:
        self._left = connections
        self._burst = max(32, connections // 50)
        self._held = held
        self._messages = first_messages
        self._spared = listening_ports()
        self._stop = threading.Event()
        self._open: list[socket.socket] = []
        self.opened = 0
        self.targets: set[int] = set()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def _work(self) -> None:
        dice = random.Random(1)
        while not self._stop.is_set():
            targets = listening_ports() - self._spared
            self.targets |= targets
            for port in targets:
                for _ in range(min(self._burst, self._left)):
                    self._one(port, dice)
            for sock in dice.sample(self._open, min(16, len(self._open))):
                with contextlib.suppress(OSError):
                    sock.send(b"T")
            if not targets or self._left <= 0:
                time.sleep(0.01)

    def _one(self, port: int, dice: random.Random) -> None:
        sock = socket.socket()
        try:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(("127.0.0.1", port))
            kind = dice.randrange(4)
            if kind == 1:
                sock.send(dice.randbytes(200))
            elif kind == 2:
                sock.send(dice.choice(self._messages))
            elif kind == 3:
                sock.close()
        except OSError:
            sock.close()
        self._left -= 1
        self.opened += 1
        if sock.fileno() >= 0:
            self._open.append(sock)
        if len(self._open) > self._held:
            self._open.pop(0).close()

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(10)
        for sock in self._open:
            sock.close()
