"""tfring.run: calls a Python function on N processes and returns what it returned, by rank.

The function and its results travel over a connection of their own between every rank and this
process. Both sides prove to know a secret of this call before anything is read, because what
follows is pickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import cloudpickle

from tfring.bootstrap.auth import HELLO_SIZE, PROOF_SIZE, ListenerHandshake, receive_exactly
from tfring.bootstrap.errors import BootstrapError
from tfring.bootstrap.secret import fresh_secret, job_key
from tfring.config import DEFAULT_START_TIMEOUT
from tfring.launcher.agent import open_rendezvous
from tfring.launcher.job import Job, JobOptions
from tfring.launcher.output import Merger
from tfring.launcher.placement import UsageError, parse_hostfile, parse_hosts, place
from tfring.launcher.process import SshOptions

JOB_ID = "function"
_HANDSHAKE_SECONDS = 10.0


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    np: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    network_interface: str | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    executable: str | None = None,
    **other: Any,
) -> list[Any]:
    """Calls a function on several processes at once and waits for all of them.

    The processes are started as by ``tfring run``; the function calls `init` itself. What they
    print appears here behind their rank. Only from the main thread, because of the signals.

    Args:
        func: Any callable that cloudpickle can take, lambdas and local functions included.
        args: Its positional arguments, the same on every rank.
        kwargs: Its keyword arguments.
        num_proc: Number of processes (default 1).
        np: Horovod's older name for num_proc.
        hosts: As ``tfring run -H``: "node1:4,node2:4"; this host by default.
        hostfile: As ``tfring run --hostfile``.
        start_timeout: Seconds that the ranks wait for each other when they start.
        ssh_port: Port of ssh on the other hosts.
        ssh_identity_file: Private key for ssh.
        network_interface: Network interface to use between hosts, or several: "eth0,eth1".
        output_filename: Folder for a copy of each rank's output.
        verbose: Says what is started where, if it is not 0.
        executable: The Python that the ranks run (default: this one).
        **other: Horovod's other parameters: those of elastic jobs and of MPI must be None.

    Returns:
        What the function returned, by rank.

    Raises:
        ValueError: The parameters contradict each other.
        NotImplementedError: A parameter asks for what is not there.
        RuntimeError: A rank failed; the cause is its exception, if that can be pickled.
    """
    network_interface = other.pop("network_interfaces", None) or network_interface
    _refuse(other)
    if num_proc is not None and np is not None and num_proc != np:
        raise ValueError(f"num_proc={num_proc} and np={np} are the same thing: give one of them")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("tfring.run handles signals: call it from the main thread")
    function = cloudpickle.dumps((func, tuple(args), dict(kwargs or {})))
    where = _slots(num_proc if num_proc is not None else np, hosts, hostfile)
    options = JobOptions(
        slots=where,
        argv=[executable or sys.executable, "-m", "tfring.launcher.function_task"],
        environment={"PYTHONPATH": os.pathsep.join(_import_path())},
        ssh=SshOptions(ssh_port, ssh_identity_file),
        interface=network_interface,
        start_timeout=start_timeout or DEFAULT_START_TIMEOUT,
        output_folder=Path(output_filename) if output_filename else None,
        verbose=bool(verbose),
    )
    return _call(function, options)


def _call(function: bytes, options: JobOptions) -> list[Any]:
    """Runs the job with a server beside it."""
    hosts = [slot.host for slot in options.slots]
    elsewhere = next((host for host in hosts if host != hosts[0]), None)
    with _Server(function, len(hosts), options.interface, elsewhere) as server:
        environment = {**options.environment, **server.environment}
        job = dataclasses.replace(options, environment=environment)
        code = Job(job, Merger(_bytes_of(sys.stdout), _bytes_of(sys.stderr))).run()
        return server.results(code)


_ELASTIC = (
    *("min_num_proc", "max_num_proc", "min_np", "max_np", "slots", "reset_limit"),
    *("cooldown_range", "host_discovery_script"),
)
_MPI = ("use_mpi", "mpi_args")
# Nothing is cached, and the processes are never started by MPI.
_IGNORED = ("disable_cache", "use_gloo")


def _refuse(other: Mapping[str, Any]) -> None:
    """Names the parameter that cannot be obeyed."""
    for name, value in other.items():
        if name not in (*_ELASTIC, *_MPI, *_IGNORED):
            raise TypeError(f"tfring.run has no parameter {name!r}")
        if name in _ELASTIC and value is not None:
            raise NotImplementedError(
                f"tfring.run({name}=...): elastic jobs are not there yet in this version of tfring"
            )
        if name in _MPI and value:
            raise NotImplementedError(
                "tfring.run starts its processes without MPI; with MPI start the whole program as "
                "`mpirun -np N python train.py`"
            )


def _slots(ranks: int | None, hosts: str | None, hostfile: str | None) -> list[Any]:
    if hosts and hostfile:
        raise UsageError("hosts and hostfile exclude each other")
    if ranks is not None and ranks < 1:
        raise UsageError(f"num_proc={ranks}: at least one process is needed")
    found = parse_hosts(hosts) if hosts else []
    if hostfile:
        found = parse_hostfile(Path(hostfile).read_text(encoding="utf-8"))
    return place(ranks if ranks is not None or found else 1, found)


def _import_path() -> list[str]:
    """What the function's modules were imported from, so that the ranks find them as well."""
    return list(dict.fromkeys(os.path.abspath(folder) for folder in sys.path))


class _TextAsBytes:
    """The binary side of a text stream that has none, as in a notebook."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        self._stream.write(data.decode(errors="replace"))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()


def _bytes_of(stream: TextIO) -> BinaryIO:
    stream.flush()
    return cast(BinaryIO, getattr(stream, "buffer", None) or _TextAsBytes(stream))


class _Server:
    """Hands the function to the ranks and takes their results.

    One thread accepts, one thread per connection waits for its rank; the owner reads the outcome
    after the job has ended. Lives as long as the call of `run`.
    """

    def __init__(
        self, function: bytes, ranks: int, interface: str | None, towards: str | None
    ) -> None:
        self._function = function
        self._ranks = ranks
        self._secret = fresh_secret()
        self._listener = open_rendezvous(interface, towards)
        self._lock = threading.Lock()  # guards _outcomes, _connections and _threads
        self._outcomes: dict[int, tuple[bool, bytes]] = {}
        self._connections: list[Connection] = []
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def environment(self) -> dict[str, str]:
        """What the ranks need to find us."""
        host, port = self._listener.getsockname()[:2]
        return {
            "TFRING_FUNCTION_ADDR": host,
            "TFRING_FUNCTION_PORT": str(port),
            "TFRING_FUNCTION_SECRET": self._secret,
        }

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                connection.close()

    def results(self, code: int) -> list[Any]:
        """Returns the results by rank; `code` is how the job ended.

        Raises:
            RuntimeError: A rank failed, or ended without a result.
        """
        for thread in self._waiting():
            thread.join(_HANDSHAKE_SECONDS)
        with self._lock:
            outcomes = dict(self._outcomes)
        for rank, (fine, data) in outcomes.items():  # in order of arrival: the cause first
            if not fine:
                text, error = _failure(data)
                raise RuntimeError(f"the function failed on rank {rank}:\n{text}") from error
        missing = [rank for rank in range(self._ranks) if rank not in outcomes]
        if missing or code != 0:
            ranks = ", ".join(map(str, missing)) or "none"
            raise RuntimeError(
                f"the job ended with exit code {code}; ranks without a result: {ranks}. Their "
                "output says why"
            )
        return [cloudpickle.loads(outcomes[rank][1]) for rank in range(self._ranks)]

    def _waiting(self) -> list[threading.Thread]:
        with self._lock:
            return list(self._threads)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed: the call is over
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        """One rank, from its proof to its result. Whoever cannot prove anything is hung up on."""
        try:
            sock.settimeout(_HANDSHAKE_SECONDS)
            handshake = ListenerHandshake(job_key(self._secret, JOB_ID), 0)
            sock.sendall(handshake.challenge(receive_exactly(sock, HELLO_SIZE)))
            rank = handshake.finish(receive_exactly(sock, PROOF_SIZE)).connector
            sock.settimeout(None)
        except (BootstrapError, OSError):
            sock.close()
            return
        connection = Connection(sock.detach())
        with self._lock:
            self._connections.append(connection)
        with contextlib.suppress(EOFError, OSError):
            connection.send_bytes(self._function)
            fine = connection.recv_bytes() == b"result"
            data = connection.recv_bytes()
            with self._lock:
                self._outcomes[rank] = (fine, data)


def _failure(data: bytes) -> tuple[str, BaseException | None]:
    """The traceback of a rank, and its exception where that could be sent."""
    text, pickled = cloudpickle.loads(data)
    try:
        error = cloudpickle.loads(pickled) if pickled else None
    except Exception:
        error = None  # a class that cannot be built again from its arguments
    return str(text), error if isinstance(error, BaseException) else None
