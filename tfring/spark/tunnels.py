"""The program's side of Spark's tasks: connections to the agents that they start."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping

from tfring.integration import LOST_CODE, Channel, IntegrityError, Links, fresh_secret, uses_shim
from tfring.spark.meeting import MAX_BYTES, Meeting, Task

_CHUNK = 1 << 16
_SAY_SECONDS = 10.0  # the longest silence of a new connection


class TaskTunnel:
    """The connection to one task; see `Tunnel`. Its two threads end with it.

    Args:
        task: the task.
        channel: the connection.
        on_end: called at its end, in another thread.
    """

    def __init__(self, task: Task, channel: Channel, on_end: Callable[[TaskTunnel], None]) -> None:
        self.task = task
        self._channel = channel
        self._on_end = on_end
        self._ended = threading.Event()
        read, write = os.pipe()
        self._to_send, self.stdin = os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0)
        read, write = os.pipe()
        self.stdout, self._received = os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0)
        read, write = os.pipe()
        self.stderr = os.fdopen(read, "rb", 0)
        os.close(write)
        threading.Thread(target=self._receive, daemon=True).start()

    @property
    def returncode(self) -> int | None:
        """See `Tunnel`."""
        return LOST_CODE if self._ended.is_set() else None

    def begin(self, variables: Mapping[str, str]) -> None:
        """Makes the task start its agent.

        Args:
            variables: for the agent and its rank.

        Raises:
            OSError: the connection has ended.
        """
        self._channel.send(json.dumps({"env": dict(variables)}).encode())
        threading.Thread(target=self._send, daemon=True).start()

    def refuse(self, why: str) -> None:
        """Tells the task that there is no work for it.

        Args:
            why: for its log.
        """
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps({"refused": why}).encode())
        for pipe in (self.stdin, self.stdout, self.stderr, self._to_send):
            pipe.close()

    def poll(self) -> int | None:
        """See `Tunnel`."""
        return self.returncode

    def kill(self) -> None:
        """See `Tunnel`."""
        with contextlib.suppress(OSError):
            self._channel.sock.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout: float | None = None) -> int:
        """See `Tunnel`."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("the connection to a task of Spark", timeout or 0.0)
        return LOST_CODE

    def _send(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._to_send:
            while data := os.read(self._to_send.fileno(), _CHUNK):
                self._channel.send(data)
            self._channel.sock.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        with contextlib.suppress(OSError, IntegrityError), self._received:
            while True:
                data = memoryview(self._channel.receive(MAX_BYTES))
                while data:
                    data = data[self._received.write(data) :]
        self._ended.set()
        self._channel.sock.close()
        self._on_end(self)


class TaskTunnels:
    """Takes the connections of the tasks of one job; see `Tunnels`. Any thread may call any method.

    Attributes:
        on_change: called when a task has come or gone, in some thread.

    Args:
        address: the address of this host, for executors.
        bind_address: the address to listen at.
    """

    engine = "Spark"

    def __init__(self, address: str, bind_address: str) -> None:
        self.secret = fresh_secret()
        self.bind_address = bind_address
        self.on_change: Callable[[], None] = lambda: None
        self._changed = threading.Condition()  # guards the attributes below
        self._tunnels: dict[str, TaskTunnel] = {}  # open connections, by the task's name
        self._opened: set[str] = set()
        self._refusal = ""  # why no more tasks are taken
        self._links = Links(bind_address, self.secret, self._greet)
        self.meeting = Meeting(address, self._links.port, self.secret, uses_shim())

    def tasks(self) -> list[Task]:
        """Returns the connected tasks, in the order of their arrival."""
        with self._changed:
            return [tunnel.task for tunnel in self._tunnels.values()]

    def wait(self, seconds: float) -> None:
        """Waits until a task comes or goes, at most `seconds`."""
        with self._changed:
            self._changed.wait(seconds)

    def open(self, host: str) -> TaskTunnel:
        """See `Tunnels.open`."""
        with self._changed:
            tunnel = self._tunnels.get(host)
            if tunnel is None or host in self._opened:
                raise ConnectionError(f"Spark's {host} has ended")
            self._opened.add(host)
        tunnel.begin(self.variables(tunnel.task))
        return tunnel

    def variables(self, task: Task) -> dict[str, str]:
        """Returns variables for the rank of one task only. A subclass may add some."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(task.gpus)} if task.gpus else {}

    def refuse_more(self, why: str) -> None:
        """Refuses further tasks.

        Args:
            why: for their logs.
        """
        with self._changed:
            self._refusal = why

    def refuse(self, why: str) -> None:
        """Refuses further tasks, and ends those that are not in use.

        Args:
            why: for their logs.
        """
        with self._changed:
            self._refusal = why
            unused = [one for name, one in self._tunnels.items() if name not in self._opened]
        for tunnel in unused:
            tunnel.refuse(why)

    def close(self) -> None:
        """Ends all connections."""
        self.refuse("the job is over")
        with self._changed:
            left = list(self._tunnels.values())
        for tunnel in left:
            tunnel.kill()
        self._links.close()

    def _greet(self, channel: Channel) -> None:
        """Learns who has connected."""
        try:
            channel.sock.settimeout(_SAY_SECONDS)
            task = Task.of(json.loads(channel.receive(MAX_BYTES)))
            channel.sock.settimeout(None)
        except (OSError, IntegrityError, ValueError, KeyError, TypeError):  # it is not a task
            channel.sock.close()
            return
        tunnel = TaskTunnel(task, channel, self._ended)
        with self._changed:
            why = self._refusal
            if not why:
                self._tunnels[task.name] = tunnel
                self._changed.notify_all()
        if why:
            tunnel.refuse(why)
            return
        if tunnel.poll() is not None:  # it ended before it was listed, so nobody has removed it
            self._ended(tunnel)
        self.on_change()

    def _ended(self, tunnel: TaskTunnel) -> None:
        with self._changed:
            if self._tunnels.get(tunnel.task.name) is not tunnel:
                return
            del self._tunnels[tunnel.task.name]
            self._changed.notify_all()
        self.on_change()
