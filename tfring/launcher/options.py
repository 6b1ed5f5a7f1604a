"""The options of ``tfring run``: those of horovodrun that apply to tfring."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from tfring.compat.shim import search_path
from tfring.config import DEFAULT_START_TIMEOUT, SettingError, read_settings
from tfring.launcher.environment import chosen_variables
from tfring.launcher.job import JobOptions
from tfring.launcher.placement import UsageError, find_slots
from tfring.ssh.options import SshOptions

_LATER = "is not there yet in this release"
_NO_MPI = "tfring run does not use MPI; with MPI start the job as `mpirun -np N python train.py`"
_NOT_HERE = "has no counterpart in tfring: leave it out"

# Options of horovodrun that have no effect here are errors. The reason for each:
_REFUSED = {
    **dict.fromkeys(("--mpi", "--jsrun", "--mpi-args", "--tcp", "--binding-args"), _NO_MPI),
    **dict.fromkeys(("--mpi-threads-disable", "--no-mpi-threads-disable"), _NO_MPI),
    "--cycle-time-ms": "tfring has no cycle time, tensors leave when they are ready: leave it out",
    "--config-file": "is not there: give the options on the command line",
    "--disable-cache": "tfring run caches nothing about hosts: leave it out",
    **dict.fromkeys(
        (
            "--hierarchical-allreduce",
            "--no-hierarchical-allreduce",
            "--hierarchical-allgather",
            "--no-hierarchical-allgather",
            "--torus-allreduce",
            "--no-torus-allreduce",
            "--num-nccl-streams",
            "--gloo-timeout-seconds",
        ),
        _NOT_HERE,
    ),
    **dict.fromkeys(
        (
            "--autotune",
            "--autotune-log-file",
            "--min-np",
            "--min-num-proc",
            "--max-np",
            "--max-num-proc",
            "--slots-per-host",
            "--elastic-timeout",
            "--reset-limit",
            "--blacklist-cooldown-range",
            "--host-discovery-script",
            "--thread-affinity",
        ),
        _LATER,
    ),
}


class _RefusedOption(argparse.Action):
    """Ends the program with the reason why an option is refused."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        del namespace, values
        parser.error(f"{option_string}: {_REFUSED[str(option_string)]}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``tfring run`` to a parser."""
    add = parser.add_argument
    add("-np", "--num-proc", type=int, metavar="N", help="number of ranks to start")
    add("-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts, each with its number of ranks")
    add("-hostfile", "--hostfile", metavar="FILE", help='file with lines "host slots=N"')
    add("-p", "--ssh-port", type=int, metavar="PORT", help="port of ssh on the other hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    add(
        *("-x", "--env"),
        dest="x",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="give the ranks this variable; can be repeated. Ranks on other hosts get without it "
        "only variables that training depends on: see docs/security.md",
    )
    add("--no-env", action="store_true", help="other hosts get no variables but those of -x")
    add(
        "--network-interface",
        "--network-interfaces",
        metavar="NAME[,NAME]",
        help="network interface to use between hosts (the first one that is up)",
    )
    add(
        "--start-timeout",
        type=float,
        metavar="SECONDS",
        help=f"how long init waits for all ranks (default {DEFAULT_START_TIMEOUT:g})",
    )
    _add_output(parser)
    add(
        "--horovod",
        action="store_true",
        help="`import horovod` imports tfring in the ranks, as with python -m tfring.compat",
    )
    add(
        "--gloo",
        action="store_true",
        help="no effect: MPI is never used",
    )
    add("-cb", "--check-build", action="store_true", help="the same as `tfring doctor`")
    _add_settings(parser)
    for name in _REFUSED:
        add(name, action=_RefusedOption, nargs="*", help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, help="the program and its arguments")


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--output-filename",
        metavar="FOLDER",
        help="also write each rank's output to FOLDER/rank.N/stdout and stderr",
    )
    add(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="print the time before every line",
    )
    add(
        "--no-merge-lines",
        action="store_true",
        help="print a line that several ranks write at the same time for each of them",
    )
    add(
        "--show-tensorflow-info",
        action="store_true",
        help="print what TensorFlow logs with level INFO for all ranks, not for rank 0 only",
    )
    add(
        "--compare",
        metavar="1,N",
        help="run the program with 1 rank and then with N, and say after which step of fit which "
        "weight differs first; see docs/recipes.md",
    )
    add(
        "--report",
        action="store_true",
        help="print where the time went when the job is over; see docs/stragglers.md",
    )
    add("--compare-steps", type=int, default=10, metavar="K", help="steps of each (default 10)")
    add(
        "--timeline",
        "--timeline-filename",
        metavar="FILE",
        help="write a timeline of the job for Perfetto: see docs/timeline.md",
    )
    add(
        "--timeline-mark-cycles",
        action="store_true",
        default=None,
        help="mark when plans came from rank 0",
    )
    add("--no-timeline-mark-cycles", dest="timeline_mark_cycles", action="store_false")
    add("--verbose", action="store_true", help="print which rank is started on which host")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--fusion-threshold-mb", type=float, metavar="MB", help="largest fused batch")
    add("--cache-capacity", type=int, metavar="N", help="entries in the response cache")
    add("--stall-check", dest="stall_check", action="store_true", default=None)
    add("--no-stall-check", dest="stall_check", action="store_false", help="no stall warnings")
    add("--stall-check-warning-time-seconds", type=float, metavar="S", help="default 60")
    add("--stall-check-shutdown-time-seconds", type=float, metavar="S", help="default 0: never")
    add(
        "--log-level",
        choices=["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"],
        type=str.upper,
        help="what the ranks log",
    )
    times = ("--log-with-timestamp", "--no-log-hide-timestamp")
    no_times = ("--log-without-timestamp", "--log-hide-timestamp")
    add(*times, dest="log_time", action="store_true", default=None, help="the default")
    add(*no_times, dest="log_time", action="store_false", help="log lines without time")
    add("--log-format", choices=["text", "json"], help="json: one object a line")


def environment_of(options: argparse.Namespace) -> dict[str, str]:
    """Returns the variables that the options set for the ranks."""
    values: dict[str, str] = {}
    if options.fusion_threshold_mb is not None:
        values["TFRING_FUSION_THRESHOLD"] = str(int(options.fusion_threshold_mb * (1 << 20)))
    if options.cache_capacity is not None:
        values["TFRING_CACHE_CAPACITY"] = str(options.cache_capacity)
    if options.stall_check_warning_time_seconds is not None:
        values["TFRING_STALL_CHECK_TIME_SECONDS"] = f"{options.stall_check_warning_time_seconds:g}"
    if options.stall_check is False:
        values["TFRING_STALL_CHECK_TIME_SECONDS"] = "0"
    if options.stall_check_shutdown_time_seconds is not None:
        seconds = options.stall_check_shutdown_time_seconds
        values["TFRING_STALL_SHUTDOWN_TIME_SECONDS"] = f"{seconds:g}"
    if options.log_level is not None:
        values["TFRING_LOG_LEVEL"] = options.log_level.lower()
    if options.log_time is not None:
        values["TFRING_LOG_HIDE_TIME"] = "0" if options.log_time else "1"
    if options.log_format is not None:
        values["TFRING_LOG_FORMAT"] = options.log_format
    if options.timeline is not None:
        values["TFRING_TIMELINE"] = os.path.abspath(options.timeline)
    if options.timeline_mark_cycles is not None:
        values["TFRING_TIMELINE_MARK_CYCLES"] = str(int(options.timeline_mark_cycles))
    if options.horovod:
        values["PYTHONPATH"] = search_path(os.environ)
    return values


def job_options(options: argparse.Namespace) -> JobOptions:
    """Returns the job that the parsed options describe.

    Raises:
        UsageError: The options contradict each other, or one is missing.
    """
    try:
        settings = read_settings(os.environ)
    except SettingError as error:
        raise UsageError(str(error)) from None
    argv = list(options.command)
    if argv[:1] == ["--"]:
        argv = argv[1:]
    if not argv:
        raise UsageError("say what to run: tfring run -np 2 python train.py")
    if argv[0].endswith(".py") and not os.access(argv[0], os.X_OK):
        argv = [sys.executable, *argv]  # a script that cannot be started by itself
    if options.start_timeout is not None and options.start_timeout <= 0:
        raise UsageError(f"--start-timeout {options.start_timeout:g}: it has to be above 0")
    try:
        slots = find_slots(options.num_proc, options.hosts, options.hostfile)
    except OSError as error:
        raise UsageError(f"the host file cannot be read: {error}") from None
    start_timeout = options.start_timeout or settings.start_timeout
    return JobOptions(
        slots=slots,
        argv=argv,
        environment={**environment_of(options), **chosen_variables(options.x, os.environ)},
        sent={} if options.no_env else None,
        ssh=SshOptions(options.ssh_port, options.ssh_identity_file, start_timeout),
        interface=options.network_interface or ",".join(settings.interfaces) or None,
        start_timeout=start_timeout,
        output_folder=Path(options.output_filename) if options.output_filename else None,
        verbose=options.verbose,
    )
