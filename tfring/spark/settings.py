"""What the functions `run` and `run_elastic` are asked for, as options of the launcher."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from tfring.job.handshake.listener import bind
from tfring.launch.engines import interfaces
from tfring.launch.function import FunctionServer
from tfring.launch.hosts.placement import Slot
from tfring.launch.options.environment import sent_variables
from tfring.launch.options.job_options import JobOptions
from tfring.launch.output.merger import OutputMerger
from tfring.launch.output.terminal import Terminal
from tfring.runtime.settings.environment import Settings
from tfring.spark.meeting import PYTHON
from tfring.spark.tunnels import TaskTunnels

# Executors have a file system and Python of their own.
_NOT_SENT = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_", "PYTHON", "TFRING_RECORD_DIR")
_MODULE = "tfring.launch.function_task"
# Between hosts; Spark's own limit for an executor is 120 s.
_SILENCE_SECONDS = 30.0
_BACKLOG = 1024


@dataclass(frozen=True)
class Wishes:
    """What the user asks for besides the function and the number of ranks.

    Attributes:
        start_timeout: Seconds for Spark to start tasks, and for ranks to find each other.
        env: Variables for all ranks.
        stdout: Where the output of ranks goes; None: that of this process.
        stderr: The same for their error output.
        verbose: 0: output is not shown; 2: says on which host each rank is.
        nics: Network interfaces to use between hosts; None: what fits.
        timestamps: Whether lines of output begin with the time.
        executable: The Python of the ranks; None: that of their tasks.
    """

    start_timeout: float | None
    env: Mapping[str, str] | None
    stdout: TextIO | None
    stderr: TextIO | None
    verbose: int
    nics: str | Sequence[str] | None
    timestamps: bool
    executable: str | None = None

    def __post_init__(self) -> None:
        for name, value in (self.env or {}).items():
            if not name or value is None or "=" in name or "\0" in f"{name}{value}":
                raise ValueError(
                    f"env={{{name!r}: {value!r}}}: it has to be the name of a variable, without "
                    '"=", and its value, a string'
                )

    @property
    def start_seconds(self) -> float:
        """`start_timeout`, or what is waited without it."""
        if self.start_timeout is not None:
            return float(self.start_timeout)
        return float(os.environ.get("HOROVOD_SPARK_START_TIMEOUT", Settings.start_timeout))

    def options(
        self, slots: list[Slot], tunnels: TaskTunnels, server: FunctionServer
    ) -> JobOptions:
        """Returns the options of a job in tasks of Spark.

        Args:
            slots: Its ranks; none if it is elastic.
            tunnels: The tasks.
            server: Has the function.
        """
        run = ["sh", "-c", f'exec "${PYTHON}" -m {_MODULE}']
        here = sent_variables(os.environ).items()
        # Tasks have the secret by another way, see `Tunnels`.
        found = {n: v for n, v in server.environment.items() if n != "TFRING_X_FUNCTION_SECRET"}
        return JobOptions(
            slots=slots,
            argv=run if self.executable is None else [self.executable, "-m", _MODULE],
            environment={**{n: str(v) for n, v in (self.env or {}).items()}, **found},
            shell=tunnels,
            folder=".",
            interface=interfaces(self.nics),
            start_timeout=self.start_seconds,
            agent_timeout=_SILENCE_SECONDS,
            sent={name: text for name, text in here if not name.startswith(_NOT_SENT)},
            verbose=self.verbose > 1,
            secret=tunnels.secret,
        )

    @contextlib.contextmanager
    def output(self) -> Iterator[OutputMerger]:
        """Shows the output of ranks while the context is there."""
        with Terminal(self.stdout, self.stderr) as terminal:
            yield OutputMerger(
                terminal.stdout,
                terminal.stderr,
                timestamps=self.timestamps,
                ranks=None if self.verbose else (),
            )


def function_server(call: bytes, tunnels: TaskTunnels) -> FunctionServer:
    """Returns what gives ranks the function, at the address where tasks find this process.

    Args:
        call: The function with its arguments.
        tunnels: The tasks.
    """
    return FunctionServer(
        call,
        bind(tunnels.bind_address, 0, _BACKLOG),
        secret=tunnels.secret,
        advertised=tunnels.meeting.address,
    )
