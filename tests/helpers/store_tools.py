"""Stores of each kind for tests, and ways to break them: killed processes, cut connections."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

from attacks import Relay

from tfring.job.store import PrefixStore, TCPStore

ROOT = Path(__file__).resolve().parents[2]
SECRET = "5e" * 32
LIMIT = 120.0  # seconds; far more than needed


class Shared:
    """One store of a kind, and separate clients, as different threads or processes have them."""

    def __init__(self, kind):
        self.kind = kind
        self._stack = contextlib.ExitStack()
        self.server = self._stack.enter_context(
            TCPStore("localhost", 0, is_master=True, timeout=LIMIT, secret=SECRET)
        )
        self._where = ("localhost", self.server.port)
        self.code = (
            f"TCPStore{self._where} ".strip()[:-1] + f", timeout={LIMIT}, secret={SECRET!r})"
        )

    def client(self, **more):
        """Makes one more client of the same store; it is closed with the store."""
        made = TCPStore(*self._where, timeout=LIMIT, secret=SECRET, **more)
        self._stack.callback(made.close)
        return PrefixStore("part", made) if self.kind == "prefix" else made

    def close(self):
        self._stack.close()


def program(text):
    """Starts a Python program in its own process; its output can be read by lines."""
    head = "import sys, time, threading\nfrom tfring.job.store import *\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(text)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def programs(*texts):
    """Starts programs, and kills those that still run after the block."""
    started = []
    try:
        for text in texts:
            started.append(program(text))
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def in_threads(work, count, limit=LIMIT):
    """Runs work(number) in threads; returns results and errors by number. `limit`: seconds."""
    results, errors = {}, {}

    def one(number):
        try:
            results[number] = work(number)
        except Exception as error:
            errors[number] = error

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
        assert not thread.is_alive(), "a thread hangs"
    return results, errors


class Wire(Relay):
    """A relay whose connections can be cut, and which can lose the server's answers."""

    def __init__(self, port):
        super().__init__(("127.0.0.1", port), lambda number, data: data)
        self.lost = threading.Event()  # set when an answer was lost
        self._loses = False
        self._door_is_closed = False

    def lose_answers(self):
        """Drops all that the server sends, until cut()."""
        self._loses = True

    def cut(self):
        """Ends all connections; accepts new ones."""
        was, self._open = self._open, []
        for sock in was:
            with contextlib.suppress(OSError):
                sock.shutdown(2)
        self._loses = False

    def close_door(self):
        """Ends all connections, and new ones at once, until open_door()."""
        self._door_is_closed = True
        self.cut()

    def open_door(self):
        """Lets new connections through again."""
        self._door_is_closed = False

    def lead_to(self, port):
        """Sends new connections to another server."""
        self._target = ("127.0.0.1", port)

    def _pump(self, source, sink, forward):
        with contextlib.suppress(OSError):
            while not self._door_is_closed and (data := source.recv(1 << 16)):
                if not forward and self._loses:
                    self.lost.set()
                    continue
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(2)
