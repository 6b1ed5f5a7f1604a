"""The options of ``tfring manifest``, and what they ask for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfring.launch.hosts.errors import UsageError
from tfring.launch.options.config_file import with_file
from tfring.launch.options.environment import is_secret
from tfring.launch.options.option import (
    add_options,
    count,
    option,
    read_options,
    words_of,
)
from tfring.launch.options.run_options import RunOptions
from tfring.launch.options.settings import add_settings
from tfring.runtime.settings.environment import read_settings
from tfring.runtime.settings.setting import Kind, SettingError
from tfring.runtime.texts.ranks import rank_ranges

KINDS = ("indexed", "trainer", "mpijob")
_GRACE_SECONDS = 120
# Between SIGKILL for ranks that do not end, and the end of the grace period.
_SPARE_SECONDS = 10
_RESTARTS = 3
_USER = 1000
# The records take 4 MiB a rank; NCCL puts its buffers between the GPUs of a pod there.
_SHARED_MEMORY, _SHARED_MEMORY_WITH_GPUS = "256Mi", "1Gi"
# The manifest, or Kubernetes, says these; another value would contradict the rest.
_TAKEN = re.compile(
    r"TFRING_(PODS|POD_SLOTS|RENDEZVOUS_ADDR|RENDEZVOUS_PORT|STOPPED_EXIT_CODE)|"
    r"JOB_COMPLETION_INDEX|PET_(NNODES|NODE_RANK|NPROC_PER_NODE|MASTER_ADDR|MASTER_PORT)"
)
# What the MPI operator mounts: the hosts, and a key where the manifest asks for it.
MPI_FOLDER, SSH_FOLDER = "/etc/mpi", "/srv/tfring/.ssh"
# Those that `tfring run` gets in the pods, too.
_PASSED_ON = (
    "horovod",
    "verbose",
    "prefix_output_with_timestamp",
    "no_merge_lines",
    "show_tensorflow_info",
    "bind_to",
    "elastic_timeout",
)
_OF_RUN = (
    *_PASSED_ON,
    "print_ranks",
    "nnodes",
    "nproc_per_node",
    "max_restarts",
    "config_file",
    "x",
    "stall_check",
    "command",
)


@dataclass(frozen=True)
class Shape:
    """Pods that are alike."""

    pods: int  # how many there are
    least: int  # how many suffice to go on; if that is fewer than `pods`, the job is elastic
    slots: int  # ranks of each

    @property
    def elastic(self) -> bool:
        """Whether pods may be missing."""
        return self.least < self.pods


_ONE_POD = Shape(1, 1, 1)


def _claim(text: str) -> tuple[str, str]:
    name, _, path = text.partition(":")
    if not name or not path.startswith("/") or ":" in path:
        raise ValueError(f"{text} is not NAME:PATH, such as checkpoints:/checkpoints.")
    return name, path


@dataclass(frozen=True)
class Request:
    """The job that a manifest is for. Kubernetes checks names and sizes.

    Its shape, and what is run, come from options that `tfring run` has, too.
    """

    image: str = option(
        "--image",
        default="",
        metavar="IMAGE",
        help="of the containers; it has the program and tfring",
    )
    kind: str = option(
        "--kind",
        choices=KINDS,
        default="indexed",
        help="an indexed Job, a TrainJob of the Kubeflow Trainer, or an MPIJob",
    )
    name: str = option(
        "--job-name",
        default="train",
        metavar="NAME",
        help="of the job in the cluster",
    )
    namespace: str | None = option(
        "--namespace", metavar="NAME", help="where the job is made (default: where you apply it)"
    )
    cpus: str | None = option(
        "--pod-cpus", metavar="N", help="CPUs that each pod asks for, as 4 or 500m"
    )
    memory: str | None = option(
        "--pod-memory", metavar="SIZE", help="memory of each pod, and its limit, as 16Gi"
    )
    gpus: int = count("--pod-gpus", default=0, help="GPUs of each pod (nvidia.com/gpu)")
    shared_memory: str | None = option(
        "--shared-memory",
        metavar="SIZE",
        help=f"of /dev/shm (default {_SHARED_MEMORY}; with GPUs {_SHARED_MEMORY_WITH_GPUS})",
    )
    claims: tuple[tuple[str, str], ...] = option(
        "--claim",
        action="append",
        type=_claim,
        default=(),
        metavar="NAME:PATH",
        help="mount this PersistentVolumeClaim in all pods, for checkpoints; can be repeated",
    )
    secret: str | None = option(
        "--secret", metavar="NAME", help="Secret that holds the job's (default NAME-secret)"
    )
    grace_seconds: int = count(
        "--grace-period",
        low=_SPARE_SECONDS + 1,
        default=_GRACE_SECONDS,
        metavar="SECONDS",
        help=f"between SIGTERM and SIGKILL; ranks have {_SPARE_SECONDS} less for a checkpoint",
    )
    user: int = count(
        "--run-as",
        low=1,  # 0 is root
        default=_USER,
        metavar="UID",
        help="the user in the containers",
    )
    shape: Shape = _ONE_POD
    command: tuple[str, ...] = ()  # the program of the ranks
    flags: tuple[str, ...] = ()  # for `tfring run` in the pods
    variables: Mapping[str, str] = field(default_factory=dict)
    restarts: int = _RESTARTS

    @property
    def secret_name(self) -> str:
        """The name of the Secret with the job's secret."""
        return self.secret or f"{self.name}-secret"

    @property
    def shared_size(self) -> str:
        """The size of /dev/shm."""
        default = _SHARED_MEMORY_WITH_GPUS if self.gpus else _SHARED_MEMORY
        return self.shared_memory or default

    @property
    def stop_seconds(self) -> int:
        """How long ranks have to end after SIGTERM."""
        return self.grace_seconds - _SPARE_SECONDS


def add_manifest_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of manifests to a parser.

    A manifest would lose the other options of `tfring run`. Paths and network interfaces of this
    machine mean nothing in a pod.
    """
    add_options(parser, Request)
    add_options(parser, RunOptions, only=_OF_RUN)
    add_settings(parser, without=(Kind.PATH, Kind.NAMES))


def request_of(parsed: argparse.Namespace) -> Request:
    """Returns what a manifest is asked for; UsageError if options contradict each other."""
    parsed = with_file(parsed)
    asked = read_options(RunOptions, parsed)
    if not parsed.image:
        raise UsageError("--image is missing. Name an image that has the program and tfring.")
    if asked.nnodes is None:
        raise UsageError(
            "--nnodes, the number of pods, is missing.\nGive --nnodes 4 --nproc-per-node 2, or "
            "--nnodes 2:4 for an elastic job."
        )
    least, most = asked.nnodes
    if asked.elastic_timeout is not None and least == most:
        raise UsageError("--elastic-timeout is for elastic jobs, such as --nnodes 2:4.")
    program = asked.program
    flags = words_of(asked, *_PASSED_ON)
    if asked.print_ranks is not None:
        flags += ["--print-ranks", rank_ranges(asked.print_ranks)]
    return read_options(
        Request,
        parsed,
        shape=Shape(most, least, asked.nproc_per_node or 1),
        command=("python", *program) if program[0].endswith(".py") else program,
        flags=tuple(flags),
        variables=_variables(asked),
        restarts=_RESTARTS if asked.max_restarts is None else asked.max_restarts,
    )


def _variables(asked: RunOptions) -> dict[str, str]:
    values = {**asked.variables, **dict(asked.x)}
    if asked.horovod and "PYTHONPATH" not in dict(asked.x):
        del values["PYTHONPATH"]  # of this machine; `tfring run` in the pods sets theirs
    try:
        read_settings(values)
    except SettingError as error:
        raise UsageError(str(error)) from None
    for name, value in values.items():
        if is_secret(name, value):
            raise UsageError(
                f"-x {name} looks like a secret, and everybody can read a manifest.\nPut it into a "
                "Secret, and name that in the container's env."
            )
        if _TAKEN.fullmatch(name):
            raise UsageError(f"-x {name}: the manifest sets this variable itself. Leave it out.")
    return values
