"""The job that the options of ``tfring run`` describe."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from tfring.compat.shim import search_path
from tfring.job.bootstrap import mpi_data
from tfring.job.environments import IdentityError
from tfring.job.environments.kubernetes import find_pod
from tfring.launch.agents.host import (
    AGENT_TIMEOUT_SECONDS,
    ELASTIC_TIMEOUT_SECONDS,
    SSH_LATER_SECONDS,
)
from tfring.launch.agents.shells import RemoteShell, SrunOptions
from tfring.launch.hosts.allocations import SLURM, find_allocation
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import Slot, find_slots
from tfring.launch.hosts.slurm_gpus import find_gpus
from tfring.launch.options.environment import chosen_variables
from tfring.launch.options.job_options import JobOptions
from tfring.launch.options.pods import pod_around, shared, slots_of
from tfring.settings.environment import DYNAMIC, read_settings
from tfring.settings.setting import Kind, SettingError
from tfring.settings.table import OPTIONS
from tfring.ssh.options import SshOptions
from tfring.texts.ranks import parse_ranks

_LEAST_AGENT_TIMEOUT = 2.0
# Settings that the launcher itself gives to all ranks.
_OF_JOB = ("TFRING_START_TIMEOUT", "TFRING_INTERFACE")


def environment_of(options: argparse.Namespace) -> dict[str, str]:
    """Returns the variables that the options set for the ranks, except those of JobOptions."""
    given = _settings_of(options)
    values = {name: text for name, text in given.items() if name not in _OF_JOB}
    if options.horovod:
        values["PYTHONPATH"] = search_path(os.environ)
    return values


def _settings_of(options: argparse.Namespace) -> dict[str, str]:
    """Returns the settings that options give, as variables."""
    values: dict[str, str] = {}
    for setting, option in OPTIONS:
        text = getattr(options, option.attribute)
        if text is not None:
            is_path = setting.kind is Kind.PATH and text.upper() != DYNAMIC
            values[setting.variable] = os.path.abspath(text) if is_path else text
    if options.stall_check is False:
        values["TFRING_STALL_CHECK_TIME_SECONDS"] = "0"
    return values


def job_options(options: argparse.Namespace, *, elastic: bool = False) -> JobOptions:
    """Returns the job that the parsed options describe.

    Args:
        options: The parsed options.
        elastic: Whether its ranks come and go: it then has no slots.

    Raises:
        UsageError: The options contradict each other, one is missing, or the environment asks for
            what the job cannot do.
    """
    try:
        chosen = chosen_variables(options.x, os.environ)
        settings = read_settings({**os.environ, **_settings_of(options), **chosen})
        if elastic:  # workers would end with it one after another, and others take their places
            mpi_data.refuse_if_wanted(settings.runtime)
    except SettingError as error:
        raise UsageError(str(error)) from None
    argv = list(options.command)
    if argv[:1] == ["--"]:
        argv = argv[1:]
    if not argv:
        raise UsageError("say what to run: tfring run -np 2 python train.py")
    if argv[0].endswith(".py") and not os.access(argv[0], os.X_OK):
        argv = [sys.executable, *argv]  # a script that cannot be started by itself
    check_numbers(options)
    pod = None if elastic else pod_around(options, os.environ)
    if pod is not None and options.max_restarts:
        raise UsageError(
            "--max-restarts: the ranks of other pods would not start again. Leave it out, "
            "Kubernetes starts pods again"
        )
    silence = options.agent_timeout
    if silence is None:
        silence = ELASTIC_TIMEOUT_SECONDS if elastic else AGENT_TIMEOUT_SECONDS
    job = JobOptions(
        slots=[] if elastic else slots_of(pod) if pod else _slots(options),
        argv=argv,
        environment={**environment_of(options), **chosen},
        sent={} if options.no_env else None,
        shell=_shell(options, settings.start_timeout, silence),
        interface=",".join(settings.interface) or None,
        start_timeout=settings.start_timeout,
        stop_timeout=options.stop_timeout,
        agent_timeout=silence,
        bind_to=options.bind_to,
        output_folder=Path(options.output_filename) if options.output_filename else None,
        output_max_mb=options.output_max_mb or 0.0,
        output_keep=options.output_keep,
        exit_report=Path(options.exit_report) if options.exit_report else None,
        events=Path(options.events) if options.events else None,
        verbose=options.verbose,
        max_restarts=0 if elastic else options.max_restarts or 0,
        stopped_exit_code=settings.stopped_exit_code,
    )
    return job if pod is None else shared(job, pod, settings.job_id)


def _slots(options: argparse.Namespace) -> list[Slot]:
    try:
        return find_slots(options.num_proc, options.hosts, options.hostfile, os.environ)
    except OSError as error:
        raise UsageError(f"the host file cannot be read: {error}") from None


def _shell(options: argparse.Namespace, start_timeout: float, silence: float) -> RemoteShell:
    """Returns what starts agents on other hosts."""
    kind = options.start_agents
    if kind == "auto":
        named = options.num_proc is not None or options.hosts is not None or options.hostfile
        allocation = None if named else find_allocation(os.environ)
        by_slurm = allocation is not None and allocation.scheduler == SLURM
        kind = "srun" if by_slurm and shutil.which("srun") else "ssh"
    if kind == "srun":
        return SrunOptions(find_gpus(os.environ))
    ssh = SshOptions(options.ssh_port, options.ssh_identity_file)
    if silence:
        # An ssh whose launcher is gone, and with it the network, ends by itself then.
        ssh = dataclasses.replace(ssh, silence_seconds=silence + SSH_LATER_SECONDS)
    return ssh


def check_numbers(options: argparse.Namespace) -> None:
    """Refuses numbers that mean nothing.

    Args:
        options: The parsed options.

    Raises:
        UsageError: The message names the option.
    """
    if options.agent_timeout is not None and 0 < options.agent_timeout < _LEAST_AGENT_TIMEOUT:
        raise UsageError(
            f"--agent-timeout {options.agent_timeout:g}: it has to be 0 or at least "
            f"{_LEAST_AGENT_TIMEOUT:g}, as signs of life come once a second"
        )
    above_zero = ("output_max_mb",)
    not_below = ("stop_timeout", "agent_timeout", "output_keep", "max_restarts")
    for name in (*above_zero, *not_below):
        value = getattr(options, name)
        if value is None or 0 < value < math.inf or (name in not_below and value >= 0):
            continue
        limit = "a number above 0" if name in above_zero else "0 or more"
        raise UsageError(f"--{name.replace('_', '-')} {value:g}: it has to be {limit}")


def printed_ranks(options: argparse.Namespace) -> set[int] | None:
    """Returns the ranks whose output is printed; None: those of all.

    Raises:
        UsageError: --print-ranks has another form.
    """
    if options.print_ranks is None:
        return None
    try:
        return parse_ranks(options.print_ranks)
    except ValueError as error:
        raise UsageError(f"--print-ranks {options.print_ranks}: {error}") from None


def unused_hosts(options: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Returns a hint where -np alone keeps a job on one of several hosts or pods; else "".

    Args:
        options: The parsed options.
        environ: The environment of this process.
    """
    if options.num_proc is None or options.hosts is not None or options.hostfile:
        return ""
    try:
        pod = find_pod(environ)
        allocation = find_allocation(environ)
    except (IdentityError, UsageError):
        return ""
    if pod is not None and pod.pods > 1:
        return (
            f"tfring run: -np {options.num_proc} starts a job of this pod alone. Without -np its "
            f"ranks would be {pod.slots} of the {pod.size} in {pod.pods} pods"
        )
    if allocation is None or len(allocation.hosts) < 2:
        return ""
    return (
        f"tfring run: -np {options.num_proc} starts all ranks on this host. Without -np they would "
        f"be on the {len(allocation.hosts)} hosts of this {allocation.scheduler} job, "
        f"{allocation.slots} in all"
    )
