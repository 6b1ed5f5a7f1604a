"""The job that the options of ``tfring run`` ask for, here and now."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfring.job.bootstrap import mpi_data
from tfring.job.environments import IdentityError
from tfring.job.environments.kubernetes import Pod, find_pod
from tfring.job.security.errors import SecretError
from tfring.job.security.sources import given_secret
from tfring.launch.agents.host import (
    AGENT_TIMEOUT_SECONDS,
    ELASTIC_TIMEOUT_SECONDS,
    SSH_LATER_SECONDS,
)
from tfring.launch.agents.shells import RemoteShell, SrunOptions
from tfring.launch.hosts.allocations import SLURM, find_allocation
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import Slot, assign_slots
from tfring.launch.hosts.slurm_gpus import find_gpus
from tfring.launch.options.elastic import elastic_options
from tfring.launch.options.job_options import JobOptions, Share
from tfring.launch.options.run_options import RunOptions
from tfring.runtime.settings.environment import read_settings
from tfring.runtime.settings.setting import SettingError
from tfring.runtime.ssh import SshOptions

# Settings that the launcher itself gives to all ranks.
_OF_JOB = ("TFRING_START_TIMEOUT", "TFRING_INTERFACE")
_STOP_TIMEOUT = "TFRING_STOP_TIMEOUT"
# Options that say where the ranks are. Others may be the program's own, too, as --verbose.
_PLACES = ("-np", "--num-proc", "-H", "--hosts", "-hostfile", "--hostfile", "--min-np", "--max-np")


def job_options(options: RunOptions) -> JobOptions:
    """Returns the job that the options describe.

    UsageError: they contradict each other, one is missing, or the environment asks for what the job
    cannot do.
    """
    try:
        return _job_options(options)
    except (IdentityError, SecretError, SettingError) as error:
        raise UsageError(str(error)) from None


def _job_options(options: RunOptions) -> JobOptions:
    folder = _folder()
    elastic, node = elastic_options(options)
    settings = read_settings({**os.environ, **options.variables, **dict(options.x)})
    if elastic is not None:  # workers would end with it one by one, and others take their places
        mpi_data.refuse_if_wanted(settings.runtime)
    program = list(options.program)
    if program[0].endswith(".py") and not os.access(program[0], os.X_OK):
        program = [sys.executable, *program]  # a script that cannot be started by itself
    pod = None if elastic is not None or options.says_where else find_pod(os.environ)
    if pod is not None and options.max_restarts:
        raise UsageError(
            "--max-restarts: the ranks of other pods would not start again. Leave it out, "
            "Kubernetes starts pods again"
        )
    slots = _slots_of(pod) if pod is not None else []
    if pod is None and elastic is None:
        slots = assign_slots(options.num_proc, options.known_hosts)
    silence = options.agent_timeout
    if silence is None:
        silence = AGENT_TIMEOUT_SECONDS if elastic is None else ELASTIC_TIMEOUT_SECONDS
    own = {name: text for name, text in options.variables.items() if name not in _OF_JOB}
    job = JobOptions(
        slots=slots,
        argv=program,
        environment={_STOP_TIMEOUT: f"{options.stop_timeout:g}", **own, **dict(options.x)},
        sent={} if options.no_env else None,
        shell=_shell(options, silence),
        folder=folder,
        interface=",".join(settings.interface) or None,
        start_timeout=settings.start_timeout,
        stop_timeout=options.stop_timeout,
        agent_timeout=silence,
        bind_to=options.bind_to,
        output_folder=Path(options.output_filename) if options.output_filename else None,
        exit_report=Path(options.exit_report) if options.exit_report else None,
        events=Path(options.events) if options.events else None,
        verbose=options.verbose,
        max_restarts=0 if elastic is not None else options.max_restarts or 0,
        elastic=elastic,
        node=node,
        stopped_exit_code=settings.stopped_exit_code,
    )
    if node is not None:  # all launchers of the job have one secret, and one id
        return dataclasses.replace(job, secret=given_secret(os.environ) or "", job_id=node.job_id)
    if pod is not None and pod.pods > 1:
        return _shared(job, pod, given_secret(os.environ), settings.job_id)
    return job


def _slots_of(pod: Pod) -> list[Slot]:
    """Returns the ranks of a pod."""
    return [
        Slot(
            rank=pod.number * pod.slots + local,
            host=socket.gethostname(),
            local_rank=local,
            local_size=pod.slots,
            cross_rank=pod.number,
            cross_size=pod.pods,
        )
        for local in range(pod.slots)
    ]


def _shared(job: JobOptions, pod: Pod, secret: str | None, job_id: str | None) -> JobOptions:
    """Returns a job whose ranks in other pods know what those of this one do.

    All pods were given the secret; without one it raises UsageError. The id is what the user calls
    the job, if anything.
    """
    if secret is None:
        raise UsageError(
            f"{pod.source} has {pod.pods} pods, and this one (number {pod.number}) has no secret "
            "by which the others could know it: give all of them TFRING_SECRET from a Secret, as "
            "`tfring help kubernetes` shows"
        )
    share = Share(pod.size, pod.address, pod.port)
    return dataclasses.replace(job, share=share, secret=secret, job_id=job_id or pod.job_id)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the folder in which tfring run was started is gone ({error}): go to another one"
        ) from None


def _shell(options: RunOptions, silence: float) -> RemoteShell:
    """Returns what starts agents on other hosts."""
    kind = options.start_agents
    if kind == "auto":
        allocation = None if options.says_where else find_allocation(os.environ)
        by_slurm = allocation is not None and allocation.scheduler == SLURM
        kind = "srun" if by_slurm and shutil.which("srun") else "ssh"
    if kind == "srun":
        return SrunOptions(find_gpus(os.environ))
    ssh = SshOptions(options.ssh_port, options.ssh_identity_file)
    if silence:
        # An ssh whose launcher is gone, and with it the network, ends by itself then.
        ssh = dataclasses.replace(ssh, silence_seconds=silence + SSH_LATER_SECONDS)
    return ssh


def unused_hosts(options: RunOptions, environ: Mapping[str, str]) -> str:
    """Returns a hint where -np alone keeps a job on one of several hosts or pods; else ""."""
    if options.num_proc is None or options.hosts is not None:
        return ""
    pod, allocation = None, None
    with contextlib.suppress(IdentityError, UsageError):
        pod, allocation = find_pod(environ), find_allocation(environ)
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


def misplaced(words: Sequence[str], options: RunOptions) -> str:
    """Returns which option stands behind the program, and what to write; "" if none does.

    The words are all behind `tfring run`. If the options in front of the program say how many ranks
    there are, only those behind a script count: other programs may start ranks themselves. Those
    behind `--` never count.
    """
    command = options.command
    first = 0
    if options.says_where:
        first = next((i for i, word in enumerate(command) if word.endswith(".py")), len(command))
    before = words[: len(words) - len(command)]
    wanted = set(_PLACES).difference(before)  # what stands in front, too, is a program's own
    at = next((i for i in range(first, len(command)) if command[i] in wanted), None)
    if at is None or command[0] == "--":
        return ""
    moved = command[at : at + 2]
    right = [*before, *moved, *command[:at], *command[at + 2 :]]
    return (
        f"{shlex.join(moved)} stands behind the program and went to it. Write: tfring run "
        f"{shlex.join(right)}"
    )
