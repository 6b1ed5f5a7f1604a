"""The options of ``tfring run``: those of horovodrun that apply to tfring."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any, NoReturn

from tfring.launch.agents.host import AGENT_TIMEOUT_SECONDS, ELASTIC_TIMEOUT_SECONDS
from tfring.launch.elastic.node_options import add_node_options
from tfring.launch.elastic.options import add_elastic_options
from tfring.launch.kubernetes.options import add_kubernetes_options
from tfring.launch.options.job_options import BINDINGS, SHELLS, STOP_SECONDS
from tfring.launch.output.files import KEPT_FILES
from tfring.settings.setting import Kind, Option, Setting
from tfring.settings.table import OPTIONS

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
        "--max-restarts",
        "--max_restarts",
        type=int,
        metavar="N",
        help="so often all ranks start again after one has failed (default 0); with --nnodes and "
        "elastic.run so many failures are mended",
    )
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
        metavar="SECONDS",
        help="after this many seconds of silence tfring run takes a host for lost, and the host's "
        f"agent takes tfring run for lost (default {AGENT_TIMEOUT_SECONDS:g}, in elastic jobs "
        f"{ELASTIC_TIMEOUT_SECONDS:g}; 0: never)",
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
    add("--exit-report", metavar="FILE", help="write how the job ended, as JSON")
    add("--events", metavar="FILE", help="write what happens to the job, as lines of JSON")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("Settings", "see docs/configuration.md").add_argument
    for setting, option in OPTIONS:
        text = option.help or setting.plain_meaning
        if setting.kind is Kind.CHOICE and not option.off:
            text += f" {setting.allowed.capitalize()}."
        if option.off:
            switch = functools.partial(add, dest=option.attribute, action="store_const")
            on, off = (" The default." if setting.default is on else "" for on in (True, False))
            switch(*option.names, const="1", help=f"{text}{on}")
            switch(*option.off, const="0", help=f"The opposite of {option.names[0]}.{off}")
            continue
        add(
            *option.names,
            dest=option.attribute,
            type=_text_of(setting, option),
            metavar=option.metavar,
            help=f"{text} {_default_of(setting, option)}".rstrip(),
        )
    add(
        "--stall-check",
        dest="stall_check",
        action="store_true",
        default=None,
        help="Stalls are warned about. The default.",
    )
    add("--no-stall-check", dest="stall_check", action="store_false", help="No stall warnings.")


def _default_of(setting: Setting, option: Option) -> str:
    shown = setting.shown_default
    if option.scale != 1:
        shown = f"{int(shown) / option.scale:g}"
    return f"Default {shown}." if shown else ""


def _text_of(setting: Setting, option: Option) -> Callable[[str], str]:
    """Returns what turns the words of a command line into the text of a setting."""
    allowed = setting.allowed
    if option.scale != 1:
        low, high = setting.low / option.scale, setting.high / option.scale
        allowed = f"a number from {low:g} to {high:.0f}"

    def convert(words: str) -> str:
        try:
            text = str(int(float(words) * option.scale)) if option.scale != 1 else words
            if text:
                return setting.text_of(setting.parse(text))
        except (ValueError, OverflowError):
            pass
        raise argparse.ArgumentTypeError(f'"{words}" has to be {allowed}')

    return convert
