"""The options of manifests, and what they ask for."""

from __future__ import annotations

import argparse
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfring.launch.hosts.errors import UsageError
from tfring.launch.kubernetes.shape import Shape, shape_of
from tfring.launch.options.environment import chosen_variables, is_secret
from tfring.launch.options.from_arguments import check_numbers, environment_of, printed_ranks
from tfring.settings.environment import read_settings
from tfring.settings.setting import Kind, SettingError
from tfring.settings.table import OPTIONS

KINDS = ("indexed", "trainer", "mpijob")
_GRACE_SECONDS = 120
# Between SIGKILL for ranks that do not end, and the end of the grace period.
_SPARE_SECONDS = 10
_RESTARTS = 3
_USER = 1000
_MOST = 2**31 - 1  # of numbers that Kubernetes keeps in 32 bits
# The records take 4 MiB a rank; NCCL puts its buffers between the GPUs of a pod there.
_SHARED_MEMORY, _SHARED_MEMORY_WITH_GPUS = "256Mi", "1Gi"
# Names of pods are longer, and have at most 63 letters. They begin with a letter, as of services.
_JOB_NAME, _LONGEST_JOB_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?"), 45
_LABEL, _LONGEST_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"), 63
# What others have made.
_OBJECT, _LONGEST_OBJECT = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*"), 253
_CPUS = re.compile(r"[0-9]+(\.[0-9]+)?m?")
_BYTES = re.compile(r"[0-9]+(\.[0-9]+)?([kMGTPE]|[KMGTPE]i)?")
# The manifest, or Kubernetes, says these; another value would contradict the rest.
_TAKEN = re.compile(
    r"TFRING_(PODS|POD_SLOTS|RENDEZVOUS_ADDR|RENDEZVOUS_PORT|STOPPED_EXIT_CODE)|"
    r"JOB_COMPLETION_INDEX|PET_(NNODES|NODE_RANK|NPROC_PER_NODE|MASTER_ADDR|MASTER_PORT)"
)
# What the MPI operator mounts: the hosts, and a key where the manifest asks for it.
MPI_FOLDER, SSH_FOLDER = "/etc/mpi", "/srv/tfring/.ssh"
_ONLY_HERE = (
    "image",
    "job_name",
    "namespace",
    "pod_cpus",
    "pod_memory",
    "pod_gpus",
    "shared_memory",
    "claim",
    "secret",
    "grace_period",
    "run_as",
)
# What a manifest can say of the other options; the rest would be lost, and is refused.
_UNDERSTOOD = (
    "num_proc",
    "hosts",
    "hostfile",
    "slots",
    "min_np",
    "max_np",
    "nnodes",
    "nproc_per_node",
    "max_restarts",
    "elastic_timeout",
    "config_file",
    "x",
    "horovod",
    "gloo",
    "timeline_mark_cycles",
    "no_timeline_mark_cycles",
    "bind_to",
    "verbose",
    "prefix_output_with_timestamp",
    "no_merge_lines",
    "print_ranks",
    "stall_check",
    "show_tensorflow_info",
    "command",
    "kubernetes",
    "help",
    # Paths and network interfaces of this machine mean nothing in a pod.
    *(
        option.attribute
        for setting, option in OPTIONS
        if setting.kind not in (Kind.PATH, Kind.NAMES)
    ),
)


@dataclass(frozen=True)
class Request:
    """The job that a manifest is for. Sizes are as Kubernetes writes them."""

    kind: str
    name: str
    namespace: str | None
    image: str
    shape: Shape
    command: tuple[str, ...]  # the program of the ranks
    flags: tuple[str, ...]  # for `tfring run` in the pods
    variables: Mapping[str, str]
    cpus: str | None  # of a pod
    memory: str | None
    gpus: int
    shared_memory: str
    claims: tuple[tuple[str, str], ...]  # of volumes, and where they are mounted
    secret: str  # the name of the Secret with the job's secret
    grace_seconds: int
    user: int
    restarts: int

    @property
    def stop_seconds(self) -> int:
        """How long ranks have to end after SIGTERM."""
        return self.grace_seconds - _SPARE_SECONDS


def add_kubernetes_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of manifests.

    Args:
        parser: That of ``tfring run``.
    """
    add = parser.add_argument_group(
        "Kubernetes", "with --kubernetes; see docs/kubernetes.md"
    ).add_argument
    add("--kubernetes", choices=KINDS, help="print a manifest for the job, and start nothing")
    add("--image", metavar="IMAGE", help="of the containers; it has the program and tfring")
    add("--job-name", metavar="NAME", help="of the job in the cluster (default train)")
    add("--namespace", metavar="NAME", help="where the job is made (default: where you apply it)")
    add("--pod-cpus", metavar="N", help="CPUs that each pod asks for, as 4 or 500m")
    add("--pod-memory", metavar="SIZE", help="memory of each pod, and its limit, as 16Gi")
    add("--pod-gpus", type=int, metavar="N", help="GPUs of each pod (nvidia.com/gpu)")
    add(
        "--shared-memory",
        metavar="SIZE",
        help=f"of /dev/shm (default {_SHARED_MEMORY}; with GPUs {_SHARED_MEMORY_WITH_GPUS})",
    )
    add(
        "--claim",
        action="append",
        metavar="NAME:PATH",
        help="mount this PersistentVolumeClaim in all pods, for checkpoints; can be repeated",
    )
    add("--secret", metavar="NAME", help="Secret that holds the job's (default NAME-secret)")
    add(
        "--grace-period",
        type=int,
        metavar="SECONDS",
        help=f"between SIGTERM and SIGKILL (default {_GRACE_SECONDS}); ranks have "
        f"{_SPARE_SECONDS} less to publish a checkpoint",
    )
    add("--run-as", type=int, metavar="UID", help=f"the user in the containers (default {_USER})")


def request_of(options: argparse.Namespace) -> Request | None:
    """Returns what a manifest is asked for; None: the job is to be started.

    Args:
        options: The parsed options.

    Raises:
        UsageError: They contradict each other, one is missing or has no meaning in a manifest.
    """
    if options.kubernetes is None:
        for name in _ONLY_HERE:
            if getattr(options, name) is not None:
                raise UsageError(f"{_flag(name)} needs --kubernetes {'|'.join(KINDS)}")
        return None
    _refuse_what_would_be_lost(options)
    if not options.image or options.image.split() != [options.image]:
        raise UsageError("--kubernetes needs --image, with the program and tfring in it")
    name = options.job_name or "train"
    _check_name("--job-name", name, _JOB_NAME, _LONGEST_JOB_NAME)
    grace = _GRACE_SECONDS if options.grace_period is None else options.grace_period
    user = _USER if options.run_as is None else options.run_as
    restarts = _RESTARTS if options.max_restarts is None else options.max_restarts
    gpus = options.pod_gpus or 0
    shape = shape_of(options)
    limits = (
        ("--grace-period", grace, _SPARE_SECONDS + 1, _MOST),
        ("--run-as", user, 1, _MOST),  # 0 is root
        ("--max-restarts", restarts, 0, _MOST // shape.pods),
        ("--pod-gpus", gpus, 0, _MOST),
    )
    for flag, number, low, high in limits:
        if not low <= number <= high:
            raise UsageError(f"{flag} {number}: it has to be a number from {low} to {high}")
    check_numbers(options)
    printed_ranks(options)
    if options.elastic_timeout is not None and not shape.elastic:
        raise UsageError("--elastic-timeout is for elastic jobs: give --min-np, or --nnodes 2:4")
    default = _SHARED_MEMORY_WITH_GPUS if gpus else _SHARED_MEMORY
    return Request(
        kind=options.kubernetes,
        name=name,
        namespace=_namespace(options.namespace),
        image=options.image,
        shape=shape,
        command=_program(options),
        flags=_flags(options),
        variables=_variables(options),
        cpus=_quantity("--pod-cpus", options.pod_cpus, _CPUS, "4 or 500m"),
        memory=_quantity("--pod-memory", options.pod_memory, _BYTES, "16Gi"),
        gpus=gpus,
        shared_memory=_quantity("--shared-memory", options.shared_memory, _BYTES, "1Gi") or default,
        claims=_claims(options.claim or ()),
        secret=_object("--secret", options.secret or f"{name}-secret"),
        grace_seconds=grace,
        user=user,
        restarts=restarts,
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refuse_what_would_be_lost(options: argparse.Namespace) -> None:
    # argparse has no public way to ask which options there are.
    actions: list[argparse.Action] = options.parser._actions
    for action in actions:
        if action.help == argparse.SUPPRESS or action.dest in (*_UNDERSTOOD, *_ONLY_HERE):
            continue
        defaults = [other.default for other in actions if other.dest == action.dest]
        if getattr(options, action.dest) not in defaults:
            raise UsageError(
                f"{action.option_strings[-1]} has no meaning in a manifest: leave it out, or write "
                "it into the container's command"
            )


def _program(options: argparse.Namespace) -> tuple[str, ...]:
    words = list(options.command)
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise UsageError("say what to run: tfring run --kubernetes indexed ... python train.py")
    return tuple(["python", *words] if words[0].endswith(".py") else words)


def _flags(options: argparse.Namespace) -> tuple[str, ...]:
    """Returns the options that `tfring run` gets in the pods, too."""
    words = ["--start-timeout", options.start_timeout] if options.start_timeout else []
    switches = ("horovod", "verbose", "prefix_output_with_timestamp", "no_merge_lines")
    for name in (*switches, "show_tensorflow_info"):
        words += [_flag(name)] if getattr(options, name) else []
    if options.bind_to != "none":
        words += ["--bind-to", options.bind_to]
    if options.print_ranks is not None:
        words += ["--print-ranks", options.print_ranks]
    if options.elastic_timeout is not None:
        words += ["--elastic-timeout", f"{options.elastic_timeout:g}"]
    return tuple(words)


def _variables(options: argparse.Namespace) -> dict[str, str]:
    values = environment_of(options)
    if options.horovod:
        del values["PYTHONPATH"]  # of this machine; `tfring run` in the pods sets theirs
    values |= chosen_variables(options.x, os.environ)
    try:
        read_settings(values)
    except SettingError as error:
        raise UsageError(str(error)) from None
    for name, value in values.items():
        if is_secret(name, value):
            raise UsageError(
                f"-x {name}: its value would stand in the manifest for all to read: put it into a "
                "Secret, and name that in the container's env"
            )
        if _TAKEN.fullmatch(name):
            raise UsageError(f"-x {name}: the manifest says it: leave it out")
    return values


def _check_name(flag: str, text: str, form: re.Pattern[str], longest: int) -> None:
    if len(text) > longest or not form.fullmatch(text):
        raise UsageError(
            f"{flag} {text}: it has to be a name of at most {longest} small letters, digits "
            "and -, as train-1"
        )


def _namespace(text: str | None) -> str | None:
    if text is not None:
        _check_name("--namespace", text, _LABEL, _LONGEST_LABEL)
    return text


def _object(flag: str, text: str) -> str:
    _check_name(flag, text, _OBJECT, _LONGEST_OBJECT)
    return text


def _quantity(flag: str, text: str | None, form: re.Pattern[str], example: str) -> str | None:
    if text is not None and not form.fullmatch(text):
        raise UsageError(f"{flag} {text}: it has to be an amount, as {example}")
    return text


def _claims(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    taken = {
        "/": "the image",
        "/dev/shm": "memory that the ranks share",
        MPI_FOLDER: "what the MPI operator mounts",
        SSH_FOLDER: "what the MPI operator mounts",
    }
    for text in texts:
        name, _, path = text.partition(":")
        if not path.startswith("/") or ":" in path:
            raise UsageError(f"--claim {text}: it has to be NAME:PATH, as checkpoints:/checkpoints")
        place = posixpath.normpath(path)
        if place in taken:
            raise UsageError(f"--claim {text}: at {place} is {taken[place]} already")
        taken[place] = f"--claim {text}"
        found.append((_object("--claim", name), path))
    return tuple(found)
