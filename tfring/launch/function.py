"""tfring.run: calls a Python function on N processes and returns what it returned, by rank.

This process serves a store with the function, in which ranks put their results. Both sides prove to
know a secret of this call before anything else is read, and every message carries a MAC, because
what follows is pickled.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import cloudpickle

from tfring.job.security.secret import fresh_secret, job_key
from tfring.job.store import Limits, ServerLimits
from tfring.job.store.tcp.server import StoreServer
from tfring.launch import cell_sources
from tfring.launch.agents.addresses import open_rendezvous
from tfring.launch.agents.host import AGENT_TIMEOUT_SECONDS, SSH_LATER_SECONDS
from tfring.launch.engines import is_consequence
from tfring.launch.hosts.names import refuse_unknown
from tfring.launch.hosts.placement import (
    Slot,
    address_of,
    assign_slots,
    is_local,
    parse_hosts,
    read_hostfile,
)
from tfring.launch.job import JobRunner
from tfring.launch.options.job_options import JobOptions
from tfring.launch.output.merger import OutputMerger
from tfring.launch.output.terminal import Terminal
from tfring.observe.explain.launched import RunRecords
from tfring.runtime.settings.environment import Settings
from tfring.runtime.ssh import SshOptions
from tfring.runtime.texts.errors import HEADER, read_error

__all__ = ["run"]

JOB_ID = "function"
# In the store: the function.
FUNCTION = "function"
_PIECE_BYTES = 8 << 20  # a value of a store has 16 MiB at most
_LIMITS = ServerLimits(Limits(total_bytes=1 << 40), clients=65536)
_BACKLOG = 4096


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
    env: Mapping[str, str] | None = None,
    no_env: bool = False,
    **other: Any,
) -> list[Any]:
    """Calls a function on several processes at once and waits for all of them.

    The processes start as with ``tfring run``, which prefixes their output. The function calls
    `init` itself.

    Args:
        func: Any callable that cloudpickle can pickle, including lambdas and local functions.
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
        verbose: Prints which host each rank is on, unless it is 0.
        executable: The Python that the ranks run (default: this one).
        env: Variables for all ranks, by name; as ``tfring run -x NAME=VALUE``.
        no_env: As ``tfring run --no-env``: ranks on other hosts get no variables but these.
        **other: Other parameters of Horovod's `run`. Those of elastic jobs and of MPI must be None.

    Returns:
        What the function returned, by rank.

    Raises:
        ValueError, TypeError: Parameters are wrong or contradict; or `func` cannot be pickled.
        NotImplementedError: A parameter asks for a feature that tfring does not have.
        RuntimeError: A rank failed; the cause is its exception, if that can be pickled.
        KeyboardInterrupt: Ctrl-C.
    """
    _check_other_parameters(other)
    slots = _slots(num_proc, np, hosts, hostfile)
    silence = AGENT_TIMEOUT_SECONDS + SSH_LATER_SECONDS
    ssh = SshOptions(ssh_port, ssh_identity_file, silence_seconds=silence)
    interface = other.get("network_interfaces") or network_interface
    job = dataclasses.replace(
        _job(slots, executable, env or {}, no_env, ssh, interface),
        start_timeout=start_timeout or Settings.start_timeout,
        output_folder=Path(output_filename) if output_filename else None,
        verbose=bool(verbose),
    )
    return _call(pickled_call(func, args, kwargs), job)


def pickled_call(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> bytes:
    """Returns a function with its arguments, as the processes of `function_task` get it.

    TypeError: something cannot be pickled.
    """
    call = (func, tuple(args), dict(kwargs or {}), cell_sources.collect())
    instead = "make what is named here inside the function"
    return cell_sources.dumps(call, "the function, or something that it uses,", instead)


def _job(
    slots: list[Slot],
    executable: str | None,
    env: Mapping[str, str],
    no_env: bool,
    ssh: SshOptions,
    interface: str | None,
) -> JobOptions:
    for name, value in env.items():
        if not (isinstance(name, str) and isinstance(value, str) and name.isidentifier()):
            raise ValueError(
                f"tfring.run(env={{{name!r}: {value!r}}}): give the name of a variable and its "
                "value, both as strings."
            )
    # The folders of the function's modules come first.
    folders = dict.fromkeys(os.path.abspath(folder) for folder in sys.path)
    path = [*folders, *filter(None, [env.get("PYTHONPATH")])]
    return JobOptions(
        slots=slots,
        argv=[executable or sys.executable, "-m", "tfring.launch.function_task"],
        environment={**env, "PYTHONPATH": os.pathsep.join(path)},
        sent={} if no_env else None,
        shell=ssh,
        interface=interface,
    )


def _call(function: bytes, options: JobOptions) -> list[Any]:
    """Runs the job, and beside it a server for the function and its results."""
    hosts = [slot.host for slot in options.slots]
    refuse_unknown(dict.fromkeys(hosts))
    other_host = next((address_of(host) for host in hosts if not is_local(host)), None)
    sock = open_rendezvous(options.interface, other_host)
    sock.listen(_BACKLOG)
    with FunctionServer(function, sock) as server:
        environment = {**options.environment, **server.environment}
        job = dataclasses.replace(options, environment=environment, tells=False)
        with Terminal() as terminal, RunRecords({**os.environ, **environment}) as records:
            runner = JobRunner(job, OutputMerger(terminal.stdout, terminal.stderr), records)
            code = runner.run()
        if runner.stopped_by == signal.SIGINT:
            raise KeyboardInterrupt
        return server.results(len(hosts), code, runner.reason)


_ELASTIC = (
    "min_num_proc",
    "max_num_proc",
    "min_np",
    "max_np",
    "slots",
    "reset_limit",
    "cooldown_range",
    "host_discovery_script",
)
_MPI = ("use_mpi", "mpi_args")
# The first two have no effect: tfring.run caches nothing about hosts and never uses MPI.
_ACCEPTED = ("disable_cache", "use_gloo", "network_interfaces")


def _slots(
    num_proc: int | None, np: int | None, hosts: str | None, hostfile: str | None
) -> list[Slot]:
    if num_proc is not None and np is not None and num_proc != np:
        raise ValueError(f"num_proc={num_proc} and np={np} are the same thing: give one of them")
    ranks = num_proc if num_proc is not None else np
    if ranks is not None and not isinstance(ranks, SupportsIndex):
        raise TypeError(f"num_proc and np are whole numbers of ranks, and not {ranks!r}")
    if ranks is None and not hosts and not hostfile:
        ranks = 1
    if hosts and hostfile:
        raise ValueError("hosts= and hostfile= exclude each other: give one")
    found = parse_hosts(hosts) if hosts else read_hostfile(hostfile) if hostfile else []
    return assign_slots(ranks, found)


def _check_other_parameters(other: Mapping[str, Any]) -> None:
    """Refuses parameters of Horovod's that ask for a feature which is missing here."""
    for name, value in other.items():
        if name not in (*_ELASTIC, *_MPI, *_ACCEPTED):
            raise TypeError(f"tfring.run has no parameter {name!r}")
        if name in _ELASTIC and value is not None:
            raise NotImplementedError(
                f"tfring.run({name}=...) is not there yet: start an elastic job on the command "
                "line, tfring run --min-np 2 python train.py; see `tfring help launcher`"
            )
        if name in _MPI and value:
            raise NotImplementedError(
                "tfring.run starts its processes without MPI; with MPI start the whole program as "
                "`mpirun -np N python train.py`"
            )


def in_pieces(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields keys and values for data of any size, in the order in which to set them.

    The last key is the name; its value is the number of the others.
    """
    begins = range(0, len(data), _PIECE_BYTES)
    for number, begin in enumerate(begins):
        yield f"{name}/{number}", data[begin : begin + _PIECE_BYTES]
    yield name, b"%d" % len(begins)


def from_pieces(name: str, get: Callable[[str], bytes]) -> bytes:
    """Returns data that has the keys of `in_pieces`; `get` returns the value of a key."""
    return b"".join([get(f"{name}/{number}") for number in range(int(get(name)))])


class FunctionServer:
    """Serves a store with the function, in which ranks put their results.

    In an elastic job workers with their ids take the place of ranks. The function is what
    `pickled_call` returns, the socket listens and belongs to the server now. Without a secret the
    server makes one. Ranks find it at `advertised`, if its own address is another one to them.
    """

    def __init__(
        self,
        function: bytes,
        sock: socket.socket,
        *,
        secret: str | None = None,
        advertised: str | None = None,
    ) -> None:
        self._secret = secret or fresh_secret()
        content = dict(in_pieces(FUNCTION, function))
        self._server = StoreServer(sock, job_key(self._secret, JOB_ID), _LIMITS, content=content)
        address, port = self._server.address
        self._address = (advertised or address, port)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which the ranks find this server."""
        return {
            "TFRING_X_FUNCTION_ADDR": self._address[0],
            "TFRING_X_FUNCTION_PORT": str(self._address[1]),
            "TFRING_X_FUNCTION_SECRET": self._secret,
        }

    def __enter__(self) -> FunctionServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.close()

    def results(self, ranks: int, code: int, why: str = "") -> list[Any]:
        """Ends the server and returns the results by rank; `why` says why the job failed, if known.

        RuntimeError: a rank failed, or ended without a result; its exception is the cause.
        """
        outcomes = self._outcomes()
        failed = {rank: _failure(data) for rank, (fine, data) in outcomes.items() if not fine}
        if failed:  # in order of arrival, what only follows from another rank's error last
            rank = min(failed, key=lambda one: is_consequence(failed[one][1]))
            text, error = failed[rank]
            same = sum(trace == text for trace, _ in failed.values())
            who = f"All {ranks} ranks" if same == ranks > 1 else f"Rank {rank}"
            raise _FunctionFailedError(_told(who, text)) from error
        missing = [rank for rank in range(ranks) if rank not in outcomes]
        if missing or code != 0:
            without = ", ".join(map(str, missing)) or "none"
            raise RuntimeError(
                f"the job ended with exit code {code}; ranks without a result: {without}. "
                + (why or "See their output")
            )
        return [cloudpickle.loads(outcomes[rank][1]) for rank in range(ranks)]

    def results_of(self, workers: Sequence[int], code: int, why: str) -> list[Any]:
        """Ends the server and returns the results of an elastic job.

        `workers` are the ids of the last generation, by rank; `why` says why the job has failed, if
        that is known.

        RuntimeError: the job failed; the exception of the last worker that failed is the cause.
        """
        outcomes = self._outcomes()
        missing = [rank for rank, one in enumerate(workers) if not outcomes.get(one, (False,))[0]]
        if code == 0 and not missing:
            return [cloudpickle.loads(outcomes[worker][1]) for worker in workers]
        if code == 0:
            why = f"ranks {missing} ended without a result after the training was over"
        text, cause = f"the elastic job failed: {why or f'exit code {code}'}", None
        failed = {worker: _failure(data) for worker, (fine, data) in outcomes.items() if not fine}
        for worker, (trace, error) in failed.items():
            if cause is None or not is_consequence(error):
                cause, last = error, f"\nthe error of worker {worker}:\n{trace}"
        raise RuntimeError(text + (last if failed else "")) from cause

    def _outcomes(self) -> dict[int, tuple[bool, bytes]]:
        """Returns whether the function returned, and its data, by rank or worker, as they came."""
        self._server.close()
        content = self._server.content()
        outcomes = {}
        for key in content:
            kind, _, who = key.partition("/")
            if kind in ("result", "error") and who.isdigit():
                outcomes[int(who)] = (kind == "result", from_pieces(key, content.__getitem__))
        return outcomes


class _FunctionFailedError(RuntimeError):
    """The function has failed on a rank. A notebook shows the text alone, as it has the frames."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


def _told(who: str, trace: str) -> str:
    """Returns which rank failed, how, and the traceback that it has sent."""
    error = read_error(trace if trace.startswith(HEADER) else f"{HEADER}\n{trace}")
    if error is None or os.environ.get("TFRING_TRACEBACK") == "full":
        return f"{who} failed:\n{trace}"
    frames = ["The traceback there:", *error.frames] if error.frames else []
    return "\n".join([error.sentence(who), *frames])


def _failure(data: bytes) -> tuple[str, BaseException | None]:
    """Returns the traceback of a rank, and its exception if that could be pickled."""
    text, pickled = cloudpickle.loads(data)
    try:
        error = cloudpickle.loads(pickled) if pickled else None
    except Exception:
        error = None  # a class whose constructor needs other arguments than those it pickles
    return str(text), error if isinstance(error, BaseException) else None
