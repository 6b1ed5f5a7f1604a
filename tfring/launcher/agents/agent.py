"""Runs one rank: starts it, passes signals on to it, and kills all processes that it leaves behind.

The agent of a host runs one of these per rank. It reads one line of JSON (what to run) from
standard input and then ``signal N`` lines. End of file, or the death of the agent of the host,
means that the launcher, or the connection to it, is gone: the agent then ends the rank and all
processes that the rank started. The rank inherits the output streams. The agent ends with the exit
code or the signal of its rank, and says more on a pipe of its own: see protocol.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from tfring.bootstrap import hosts
from tfring.launcher.agents import protocol
from tfring.launcher.agents.binding import bind
from tfring.launcher.agents.descendants import kill_descendants
from tfring.launcher.agents.out_of_memory import OutOfMemoryWatch

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 1.0
_TRIES = 10  # to get a free port

_libc = ctypes.CDLL(None, use_errno=True)


def interface_address(names: list[str]) -> str:
    """Returns the first address of the first interface that has one, IPv4 before IPv6.

    Args:
        names: Names of network interfaces, best first.

    Raises:
        OSError: None of them is up here and has one.
    """
    here = hosts.interface_addresses()
    for name in names:
        for one in here:
            if one.interface == name.strip():
                return one.address
    there = ", ".join(dict.fromkeys(one.interface for one in here))
    raise OSError(
        f"none of the network interfaces {','.join(names)} is up on this host and has an address; "
        f"those that do: {there}"
    )


def own_address(interface: str | None, towards: str | None) -> str:
    """Returns the address of this host at which other hosts reach it.

    Args:
        interface: The network interface to use, or several (eth0,eth1); or None.
        towards: One of the other hosts, or None if there are none.

    Raises:
        OSError: There is no such interface, or no such host.
    """
    if interface:
        return interface_address(interface.split(","))
    if not towards:
        return "127.0.0.1"
    family, _, _, _, where = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])


def open_rendezvous(interface: str | None, towards: str | None) -> socket.socket:
    """Returns a socket that is bound to the address at which other ranks can reach this host.

    It does not listen yet: nobody would accept what comes before rank 0 calls init.

    Args:
        interface: The network interface to use, or several (eth0,eth1); or None.
        towards: Another host of the job, or None if all ranks are on this one.

    Raises:
        OSError: There is no such interface, no such host, or no free port.
    """
    address = own_address(interface, towards)
    if address.lower().startswith("fe80:"):
        raise OSError(
            f"{address} is link-local, and other hosts cannot tell on which link: name an "
            "interface with another address (--network-interface)"
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for _ in range(_TRIES):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            # By its number: the kernel then keeps the port also when the listening is over.
            bound.bind((address, port))
            return bound
        except OSError:  # another program was faster
            bound.close()
    raise OSError(f"no port of {address} stayed free long enough to be bound")


class Agent:
    """Starts one rank and passes signals on to it. One per process, used by its only thread.

    Args:
        parent: The process of the agent of the host.
    """

    def __init__(self, parent: int) -> None:
        self._input = b""
        self._child: subprocess.Popen[bytes] | None = None
        self._wake = protocol.set_up_signals(parent)
        self._status = -1  # the pipe for what is known of the rank
        self._killed = False  # by this agent
        self._memory: OutOfMemoryWatch | None = None

    def run(self) -> int:
        """Runs the rank; returns its exit code, negative for a signal."""
        line = self._first_line()
        if line is None:
            return 1
        job = json.loads(line)
        self._status = job["status_fd"]
        os.set_inheritable(self._status, False)
        try:
            passed = self._open_rendezvous(job)
        except OSError as error:
            where = job["listen"]["interface"] or job["listen"]["towards"]
            return self._end(1, f"no address towards {where}: {error}")
        try:
            self._start(job, passed)
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            return self._end(code, f"cannot start {job['argv'][0]}: {error}")
        code = self._watch()
        kill_descendants()
        return self._end(code)

    def _end(self, code: int, why: str = "") -> int:
        """Says how the rank ended, and why it did not start."""
        if why:
            print(f"tfring run: {why}", file=sys.stderr, flush=True)
        memory = ""
        if code == -signal.SIGKILL and not self._killed and self._memory is not None:
            memory = self._memory.verdict()
        self._say(code=code, oom=memory)
        return code

    def _say(self, **facts: object) -> None:
        with contextlib.suppress(OSError):
            os.write(self._status, json.dumps(facts).encode() + b"\n")

    def _first_line(self) -> bytes | None:
        while b"\n" not in self._input:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                return None
            self._input += chunk
        line, _, self._input = self._input.partition(b"\n")
        return line

    def _open_rendezvous(self, job: dict[str, Any]) -> list[socket.socket]:
        """On rank 0, opens the rendezvous socket and writes its address to the launcher."""
        if job.get("listen") is None:
            return []
        listener = open_rendezvous(job["listen"]["interface"], job["listen"]["towards"])
        address, port = listener.getsockname()[:2]
        # The launcher reads this line; the rank's own output follows.
        os.write(1, f"tfring-rendezvous {address} {port}\n".encode())
        job["env"]["TFRING_RENDEZVOUS_ADDR"] = address
        job["env"]["TFRING_RENDEZVOUS_PORT"] = str(port)
        job["env"]["TFRING_RENDEZVOUS_FD"] = str(listener.fileno())
        return [listener]

    def _start(self, job: dict[str, Any], passed: list[socket.socket]) -> None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        agent = os.getpid()
        cores = bind(job)

        def before_exec() -> None:
            # If the agent is killed, the kernel kills the rank.
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != agent:
                os._exit(1)

        self._child = subprocess.Popen(
            job["argv"],
            env={**os.environ, **job["env"]},
            cwd=job["cwd"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=before_exec,
            pass_fds=[sock.fileno() for sock in passed],
        )
        self._memory = OutOfMemoryWatch(self._child.pid)
        self._say(pid=self._child.pid, cores=cores)
        for sock in passed:
            sock.close()

    def _watch(self) -> int:
        """Passes signals on until the rank ends, or ends it at end of file. Returns its code."""
        assert self._child is not None
        kill_at: float | None = None
        connected = True
        while True:
            code = self._child.poll()
            if code is not None:
                return code
            if kill_at is not None and time.monotonic() >= kill_at:
                self._signal(signal.SIGKILL)
                kill_at = None
            sources = [self._wake, 0] if connected else [self._wake]
            timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic())
            ready, _, _ = select.select(sources, [], [], timeout)
            left = self._wake in ready and protocol.PARENT_DIED in os.read(self._wake, 4096)
            if connected and (left or (0 in ready and not self._read_commands())):
                connected = False
                self._signal(signal.SIGCONT)  # a rank that stands still cannot end
                self._signal(signal.SIGTERM)
                kill_at = time.monotonic() + _GRACE_SECONDS

    def _read_commands(self) -> bool:
        """Reads and executes commands of the launcher; returns False at end of file."""
        chunk = os.read(0, 4096)
        self._input += chunk
        while b"\n" in self._input:
            line, _, self._input = self._input.partition(b"\n")
            word, _, number = line.partition(b" ")
            if word == b"signal" and number.isdigit():
                self._signal(int(number))
        return bool(chunk)

    def _signal(self, number: int) -> None:
        assert self._child is not None
        self._killed = self._killed or number == signal.SIGKILL
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, number)


def main(parent: int) -> None:
    """Runs the rank that standard input describes, and ends with its exit code or signal.

    Args:
        parent: The process of the agent of the host.
    """
    code = Agent(parent).run()
    if code >= 0:
        sys.exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has written a core already
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    sys.exit(128 - code)
