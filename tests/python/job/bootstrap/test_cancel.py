"""Forming a generation ends at once when it is cancelled, whatever it waits for."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from bootstrap_jobs import LIMIT, identity_in_store

from tfring.job.bootstrap.cancel import Cancel
from tfring.job.bootstrap.connect import connect_job
from tfring.job.bootstrap.mesh import connect_all
from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.listener import Listener, bind
from tfring.job.store import TCPStore
from tfring.runtime.settings.environment import Settings

KEY = b"k" * 32


def test_actions_run_once_while_they_are_registered():
    cancel, called = Cancel(), []
    with cancel.runs(lambda: called.append("over")):
        pass
    with cancel.runs(lambda: called.append("first")):
        assert not cancel.is_set()
        cancel.set()
        with cancel.runs(lambda: called.append("second")):
            assert called == ["first", "second"]
    assert cancel.is_set() and called == ["first", "second"]
    cancel.set()
    assert called == ["first", "second"]


def test_connections_are_cut():
    mine, theirs = socket.socketpair()
    cancel = Cancel()
    with mine, theirs, cancel.cuts([mine.fileno()]):
        reader = threading.Thread(target=lambda: mine.recv(1))
        reader.start()
        cancel.set()
        reader.join(LIMIT)
        assert not reader.is_alive()
        assert theirs.recv(1) == b""


def cancelled(work, cancel):
    """Runs work() in a thread, cancels it when it waits, and returns its error."""
    errors = []

    def one():
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=one)
    thread.start()
    time.sleep(0.2)  # it probably waits by now; it has to end in any case
    cancel.set()
    thread.join(LIMIT)
    assert not thread.is_alive()
    return errors[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_waiting_for_the_others_in_a_store(rank):
    with TCPStore("localhost", 0, is_master=True) as server:
        cancel, own = Cancel(), TCPStore("localhost", server.port)
        with cancel.runs(own.close):
            error = cancelled(
                lambda: connect_job(
                    identity_in_store(rank, 2),
                    Settings(start_timeout=LIMIT),
                    {},
                    store=own,
                    cancel=cancel,
                ),
                cancel,
            )
        assert isinstance(error, BootstrapError)


@pytest.mark.parametrize("rank", [0, 1])
def test_connecting_with_ranks_that_say_nothing(rank):
    """Rank 0 waits for a connection; rank 1 for the answer of a process that is stopped."""
    silent = socket.create_server(("127.0.0.1", 0))
    cancel = Cancel()
    listener = Listener(bind("127.0.0.1", 0, 4), KEY, rank)
    endpoints = [("127.0.0.1", silent.getsockname()[1]), ("127.0.0.1", listener.address[1])]
    with silent, contextlib.closing(listener):
        error = cancelled(
            lambda: connect_all(
                rank=rank,
                endpoints=endpoints,
                hosts=["a", "b"],
                host_ids=["a", "b"],
                listener=listener,
                key=KEY,
                mesh_limit=64,
                deadline=time.monotonic() + 10 * LIMIT,
                cancel=cancel,
            ),
            cancel,
        )
    assert "ended this generation" in str(error)
