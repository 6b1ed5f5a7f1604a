"""What the program does with tasks that connect; the tasks are played, without Spark."""

import getpass
import json
import os
import queue
import re
import selectors
import socket
import subprocess
import threading
import time

import pytest

from tfring.integration import fresh_secret, link_to
from tfring.launch.agents.connections import Connections
from tfring.spark import task as tasks_of_spark
from tfring.spark import tunnels as tunnels_of_program
from tfring.spark.meeting import MAX_BYTES, Meeting, Task
from tfring.spark.tunnels import TaskTunnel, TaskTunnels


@pytest.fixture
def tunnels():
    made = TaskTunnels("127.0.0.1", "127.0.0.1")
    yield made
    made.close()


def _task(tunnels, attempt=1, *, secret=None, seconds=60):
    meeting = tunnels.meeting
    where = (meeting.address, meeting.port)
    channel = link_to(*where, secret or meeting.secret, attempt, seconds)
    channel.sock.settimeout(60)
    return channel


def _say(channel, attempt=1):
    task = Task(0, attempt, "127.0.0.1", ("3",))
    channel.send(json.dumps(task.message()).encode())
    return task


def _until(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    "said", [b"no json", b"[]", b"{}", b'{"gpus": 1}', b'{"gpus": [], "x": 1}']
)
def test_who_does_not_say_what_it_is_is_dropped(tunnels, said):
    channel = _task(tunnels)
    channel.send(said)
    assert channel.sock.recv(1) == b""
    assert tunnels.tasks() == []


def test_bytes_go_both_ways(tunnels):
    channel = _task(tunnels)
    task = _say(channel)
    _until(lambda: tunnels.tasks() == [task])
    tunnel = tunnels.open(task.name)
    assert json.loads(channel.receive(MAX_BYTES)) == {"env": {"CUDA_VISIBLE_DEVICES": "3"}}
    os.write(tunnel.stdin.fileno(), b"start")
    assert channel.receive(MAX_BYTES) == b"start"
    channel.send(b"x" * 200_000)
    received = b""
    while len(received) < 200_000:
        received += os.read(tunnel.stdout.fileno(), 1 << 16)
    assert received == b"x" * 200_000 and tunnel.poll() is None
    with pytest.raises(ConnectionError, match="has ended"):
        tunnels.open(task.name)  # by somebody else
    with pytest.raises(subprocess.TimeoutExpired):
        tunnel.wait(0.01)
    channel.sock.close()
    assert tunnel.wait(30) == tunnel.returncode == 255
    assert os.read(tunnel.stdout.fileno(), 1) == b""
    _until(lambda: tunnels.tasks() == [])


def test_the_end_of_the_launchers_side_reaches_the_task(tunnels):
    channel = _task(tunnels)
    task = _say(channel)
    _until(lambda: tunnels.tasks())
    tunnel = tunnels.open(task.name)
    channel.receive(MAX_BYTES)
    os.write(tunnel.stdin.fileno(), b"bye")
    tunnel.stdin.close()
    assert channel.receive(MAX_BYTES) == b"bye"
    with pytest.raises(ConnectionError):
        channel.receive(MAX_BYTES)


def test_who_does_not_know_the_secret_is_no_task(tunnels):
    with pytest.raises(ConnectionError):
        _task(tunnels, secret=fresh_secret(), seconds=1)
    with socket.create_connection((tunnels.meeting.address, tunnels.meeting.port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    assert tunnels.tasks() == []


def test_a_task_is_no_host_of_the_launcher(tunnels, monkeypatch):
    """Nobody asks which user this is: a container may have none."""

    def fail():
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", fail)
    channel = _task(tunnels)  # as long as this is there
    task = _say(channel)
    _until(lambda: tunnels.tasks())
    with selectors.DefaultSelector() as selector:
        connections = Connections(selector, tunnels, 0, lambda *_: None, lambda _: None, grace=1)
        assert not connections.host(task.name).local
        connections.close()


def test_a_task_that_is_not_wanted_is_told(tunnels):
    early = _task(tunnels, 1)
    _say(early, 1)
    _until(lambda: tunnels.tasks())
    tunnels.refuse("the job is over")
    late = _task(tunnels, 2)
    _say(late, 2)
    for channel in (early, late):
        assert json.loads(channel.receive(MAX_BYTES)) == {"refused": "the job is over"}
        channel.sock.close()
    _until(lambda: tunnels.tasks() == [])


def test_a_task_that_is_gone_before_it_is_known(tunnels, monkeypatch):
    class Gone(TaskTunnel):
        """Its end has been told when it is made."""

        def __init__(self, task, channel, on_end):
            told = threading.Event()
            super().__init__(task, channel, lambda tunnel: (on_end(tunnel), told.set()))
            assert told.wait(30)

    monkeypatch.setattr(tunnels_of_program, "TaskTunnel", Gone)
    changes = queue.SimpleQueue()
    tunnels.on_change = lambda: changes.put(tunnels.tasks())
    channel = _task(tunnels)
    _say(channel)
    channel.sock.close()
    assert changes.get(timeout=30) == []


def test_a_task_that_cannot_reach_the_program(monkeypatch):
    """It fails, so that Spark says why; in an elastic job the others go on."""

    class Context:
        @staticmethod
        def get():
            return Context()

        def taskAttemptId(self):
            return 17

    monkeypatch.setattr(tasks_of_spark, "TaskContext", Context)
    monkeypatch.setattr(tasks_of_spark, "_CONNECT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        meeting = Meeting("127.0.0.1", server.getsockname()[1], fresh_secret(), False)
    wanted = f"task 17 cannot reach the program at 127.0.0.1:{meeting.port}: .*spark.driver.host"
    with pytest.raises(RuntimeError, match=wanted):
        tasks_of_spark.serve(meeting, True, 0, [])
    (why,) = tasks_of_spark.serve(meeting, False, 0, [])
    assert re.match(wanted, why)
