"""The options of ``tfring run``: those of horovodrun that apply to tfring."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from tfring.config import DEFAULT_START_TIMEOUT
from tfring.launcher.agents.host import AGENT_TIMEOUT_SECONDS
from tfring.launcher.elastic.node_options import add_node_options
from tfring.launcher.elastic.options import add_elastic_options
from tfring.launcher.kubernetes.options import add_kubernetes_options
from tfring.launcher.options.job_options import BINDINGS, SHELLS, STOP_SECONDS
from tfring.launcher.output.files import KEPT_FILES

_NO_MODEL = "the autotuner tries a fixed list of values: leave it out"
_NO_MPI = "tfring run does not use MPI; with MPI start the job as `mpirun -np N python train.py`"
_NOT_HERE = "has no counterpart in tfring: leave it out"

# Options of horovodrun that have no effect here are errors. The reason for each:
_REFUSED = {
    **dict.fromkeys(("--mpi", "--jsrun", "--mpi-args", "--tcp", "--binding-args"), _NO_MPI),
    **dict.fromkeys(("--mpi-threads-disable", "--no-mpi-threads-disable"), _NO_MPI),
    "--cycle-time-ms": "tfring has no cycle time, tensors leave when they are ready: leave it out",
    "--disable-cache": "tfring run caches nothing about hosts: leave it out",
    **dict.fromkeys(
        (
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
            "--autotune-bayes-opt-max-samples",
            "--autotune-gaussian-process-noise",
        ),
        _NO_MODEL,
    ),
    "--thread-affinity": "is not there yet in this release",
}


# Options of horovodrun that are accepted and have no effect, and why.
_NO_OPS = {
    "--gloo": "MPI is never used",
    "--timeline-mark-cycles": "there are no cycles",
    "--no-timeline-mark-cycles": "there are no cycles",
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
    add(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts, each with its number of ranks: node1:4,me@node2:4,[fd00::1]:2,n[01-04]:8. "
        "Without -np, -H and --hostfile the hosts of the Slurm, PBS, LSF or SGE job around",
    )
    add("-hostfile", "--hostfile", metavar="FILE", help='file with lines "host slots=N"')
    add("--config-file", metavar="FILE", help="YAML with options, as horovodrun's; those here win")
    add("--dry-run", action="store_true", help="only show what would be started, and where")
    _add_other_hosts(parser)
    add(
        "-x",
        "--env",
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
    _add_running(parser)
    add_kubernetes_options(parser)
    _add_output(parser)
    add(
        "--horovod",
        action="store_true",
        help="`import horovod` imports tfring in the ranks, as with python -m tfring.compat",
    )
    add("-cb", "--check-build", action="store_true", help="the same as `tfring doctor`")
    _add_settings(parser)
    for name, why in _NO_OPS.items():
        add(name, action="store_true", help=f"no effect: {why}")
    for name in _REFUSED:
        add(name, action=_RefusedOption, nargs="*", help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, help="the program and its arguments")


def _add_other_hosts(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-p", "--ssh-port", type=int, metavar="PORT", help="port of ssh on the other hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    add(
        "--start-agents",
        choices=SHELLS,
        default="auto",
        help="what reaches other hosts; auto: srun where Slurm has given the hosts, else ssh",
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    add_elastic_options(parser)
    add_node_options(parser)
    add = parser.add_argument
    add(
        "--stop-timeout",
        type=float,
        default=STOP_SECONDS,
        metavar="SECONDS",
        help="how long ranks have to end after a signal to tfring run, before SIGKILL (default "
        f"{STOP_SECONDS:g})",
    )
    add(
        "--agent-timeout",
        type=float,
        default=AGENT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="after so long without a sign of life another host counts as gone, and for its ranks "
        f"tfring run does (default {AGENT_TIMEOUT_SECONDS:g}; 0: never)",
    )
    add(
        "--bind-to",
        choices=BINDINGS,
        default="none",
        help="bind each rank to its share of the cores or sockets of its host; --verbose shows it",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--output-filename",
        metavar="FOLDER",
        help="also write each rank's output to FOLDER/rank.N/stdout and stderr",
    )
    add(
        "--output-max-mb",
        type=float,
        metavar="MB",
        help="put such a file aside when it has so many megabytes: stdout.1 is the newest",
    )
    add(
        "--output-keep",
        type=int,
        default=KEPT_FILES,
        metavar="K",
        help=f"how many files are put aside before the oldest is removed (default {KEPT_FILES})",
    )
    _add_printing(parser)
    _add_reports(parser)
    add("--verbose", action="store_true", help="print where each rank runs, and on which cores")


def _add_printing(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--print-ranks", metavar="0,3-5", help="print the output of these ranks only")
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


def _add_reports(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
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
    add("--exit-report", metavar="FILE", help="write how the job ended, as JSON")
    add("--events", metavar="FILE", help="write what happens to the job, as lines of JSON")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--fusion-threshold-mb", type=float, metavar="MB", help="largest fused batch")
    add("--cache-capacity", type=int, metavar="N", help="entries in the response cache")
    add(
        "--hierarchical-allreduce",
        action="store_true",
        default=None,
        help="allreduces over several hosts reduce within each host first (default: where that is "
        "expected to be faster)",
    )
    add("--no-hierarchical-allreduce", dest="hierarchical_allreduce", action="store_false")
    add("--autotune", action="store_true", default=None, help="try settings in the first steps")
    add("--no-autotune", dest="autotune", action="store_false", help="the default")
    add("--autotune-log-file", metavar="FILE", help="what rank 0 has tried, as CSV")
    add("--autotune-warmup-samples", type=int, metavar="N", help="default 3")
    add("--autotune-steps-per-sample", type=int, metavar="N", help="default 10")
    add("--stall-check", dest="stall_check", action="store_true", default=None)
    add("--no-stall-check", dest="stall_check", action="store_false", help="no stall warnings")
    add("--stall-check-warning-time-seconds", type=float, metavar="S", help="default 10")
    add(
        "--stall-check-shutdown-time-seconds", type=float, metavar="S", help="default 600; 0: never"
    )
    add(
        "--log-level",
        choices=["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"],
        type=str.upper,
        help="what the ranks log",
    )
    add(
        "--log-with-timestamp",
        "--no-log-hide-timestamp",
        dest="log_time",
        action="store_true",
        default=None,
        help="the default",
    )
    add(
        "--log-without-timestamp",
        "--log-hide-timestamp",
        dest="log_time",
        action="store_false",
        help="log lines without time",
    )
    add("--log-format", choices=["text", "json"], help="json: one object a line")
