"""A generation that cannot begin leaves no descriptor open."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

pytest.importorskip("tfring.runtime._native")

from own_store import OwnStore

from tfring import world
from tfring.job.bootstrap.cancel import Cancel
from tfring.job.bootstrap.connect import JoinedJob
from tfring.job.environments import Identity, Rendezvous

TOO_MANY = OSError(errno.EMFILE, "Too many open files")


def connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = socket.create_connection(server.getsockname())
        return made, server.accept()[0]


def membership() -> tuple[JoinedJob, socket.socket, socket.socket]:
    """Rank 1 of 2, and rank 0's ends of its connections."""
    (control, control_0), (data, data_0) = connection(), connection()
    made = JoinedJob(
        rank=1,
        size=2,
        local_rank=1,
        local_size=2,
        cross_rank=0,
        cross_size=1,
        homogeneous=True,
        hosts=["a", "a"],
        control_fds={0: control.detach()},
        data_fds={0: data.detach()},
        local_pids={},
        runtime={},
        by_mpi=False,
        job="1",
    )
    return made, control_0, data_0


def fails(*arguments: Any, **more: Any) -> Any:
    raise TOO_MANY


def fails_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []

    def dup(descriptor: int) -> int:
        if copies:
            raise TOO_MANY
        copies.append(real(descriptor))
        return copies[0]

    real = os.dup
    monkeypatch.setattr(os, "dup", dup)


@pytest.mark.parametrize("what", ["a copy", "the record"])
def test_none_is_left_when_there_are_too_many(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, *others = membership()
    monkeypatch.setattr(world, "connect_job", lambda *given, **more: made)
    if what == "a copy":
        fails_the_second_time(monkeypatch)
    else:
        monkeypatch.setattr(world, "record_options", fails)
    identity = Identity("a test", 1, 2, Rendezvous.STORE)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Too many"):
        world._begin_generation(identity, OwnStore(), Cancel())
    assert len(os.listdir("/proc/self/fd")) == before - 2
    for other in others:  # rank 0 learns of it
        assert other.recv(1) == b""
        other.close()
