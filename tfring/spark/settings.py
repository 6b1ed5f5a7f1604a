"""Turns the arguments of `run` and `run_elastic` into options of the launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfring.integration import (
    FunctionServer,
    JobOptions,
    Output,
    Slot,
    bind,
    interfaces,
    sent_variables,
)
from tfring.spark.meeting import PYTHON
from tfring.spark.tunnels import TaskTunnels

# Executors have their own file system and Python.
_NOT_SENT = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_", "PYTHON", "TFRING_RECORD_DIR")
_MODULE = "tfring.launch.function_task"
# Between hosts; Spark's own limit for an executor is 120 s.
_SILENCE_SECONDS = 30.0
_BACKLOG = 1024


@dataclass(frozen=True)
class Wishes:
    """The user's options, besides the function and the number of ranks.

    Attributes:
        start_timeout: seconds for Spark to start tasks, and for ranks to find each other.
        env: variables for all ranks.
        output: the destination of the ranks' output.
        verbose: whether to print the host of each rank.
        nics: network interfaces to use between hosts; None: tfring chooses.
        executable: the Python of the ranks; None: that of their tasks.
    """

    start_timeout: float | None
    env: Mapping[str, str] | None
    output: Output
    verbose: bool
    nics: str | Sequence[str] | None
    executable: str | None = None

    def __post_init__(self) -> None:
        for name, value in (self.env or {}).items():
            if not name or value is None or "=" in name or "\0" in f"{name}{value}":
                raise ValueError(
                    f'env={{{name!r}: {value!r}}}: give a variable\'s name, without "=", and its '
                    "value, both as strings"
                )

    @property
    def start_seconds(self) -> float:
        """`start_timeout`, or its default."""
        if self.start_timeout is not None:
            return float(self.start_timeout)
        return float(os.environ.get("HOROVOD_SPARK_START_TIMEOUT", JobOptions.start_timeout))

    def options(
        self, slots: list[Slot], tunnels: TaskTunnels, server: FunctionServer
    ) -> JobOptions:
        """Returns the options of a job in tasks of Spark.

        Args:
            slots: its ranks; none if it is elastic.
            tunnels: the tasks.
            server: serves the function.
        """
        run = ["sh", "-c", f'exec "${PYTHON}" -m {_MODULE}']
        here = sent_variables(os.environ).items()
        # `Tunnels` gives tasks the secret.
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
            verbose=self.verbose,
            secret=tunnels.secret,
        )


def function_server(call: bytes, tunnels: TaskTunnels) -> FunctionServer:
    """Returns the server of the function for ranks, at the address where tasks find this process.

    Args:
        call: the function with its arguments.
        tunnels: the tasks.
    """
    return FunctionServer(
        call,
        bind(tunnels.bind_address, 0, _BACKLOG),
        secret=tunnels.secret,
        advertised=tunnels.meeting.address,
    )
