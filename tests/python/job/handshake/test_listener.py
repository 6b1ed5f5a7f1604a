"""How a listener treats strangers: it logs little, and drops at random."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time

import pytest
from bootstrap_jobs import SECRET

from tfring.job.handshake import handshakes as module
from tfring.job.handshake.auth import Role
from tfring.job.handshake.listener import Listener, bind
from tfring.job.security.secret import job_key

STRANGERS = 20


@contextlib.contextmanager
def waiting():
    """A listener that waits for rank 1, which never comes."""
    listener = Listener(bind("127.0.0.1", 0, 64), job_key(SECRET, ""), 0)
    expected = {(Role.RENDEZVOUS, 1)}
    thread = threading.Thread(target=listener.accept, args=(expected, time.monotonic() + 60))
    thread.start()
    try:
        yield listener
    finally:
        listener.interrupt()
        thread.join(60)
        listener.close()


def connection(listener):
    made = socket.create_connection(listener.address)
    made.settimeout(30)
    return made


def wait_until_closed(stranger):
    """Waits until the listener has dropped a connection."""
    with contextlib.suppress(ConnectionError):
        while stranger.recv(1024):
            pass


def test_strangers_are_counted_and_not_listed(monkeypatch, caplog):
    """One line about the first; a second one at the end with the number of the others."""
    monkeypatch.setattr(module, "_LOG_SECONDS", 1e9)
    with caplog.at_level(logging.WARNING, "tfring"), waiting() as listener:
        for _ in range(STRANGERS):
            with connection(listener) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n" * 20)
                wait_until_closed(stranger)
    counts = [re.search(r"dropped (\d+) connection", line.getMessage()) for line in caplog.records]
    assert [int(found[1]) for found in counts if found] == [1, STRANGERS - 1]


def test_who_is_dropped_is_chosen_at_random(monkeypatch):
    """Among unfinished handshakes, old and new, when there are too many."""
    monkeypatch.setattr(module, "_MAX_HANDSHAKES", 4)
    chosen = []

    def choose(pending):
        chosen.append(len(pending))
        return pending[len(chosen) % len(pending)]

    monkeypatch.setattr(module.random, "choice", choose)
    with waiting() as listener:
        strangers = [connection(listener) for _ in range(4)]
        for number in range(1, 7):
            strangers.append(connection(listener))
            with strangers.pop(number % 4) as dropped:
                wait_until_closed(dropped)
        for stranger in strangers:  # and no other
            stranger.setblocking(False)
            with stranger, pytest.raises(BlockingIOError):
                stranger.recv(1)
    assert chosen == [4] * 6
