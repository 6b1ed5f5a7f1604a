"""The options of ``tfring run``: horovodrun's and torchrun's that apply to tfring, and ours."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfring.launch.agents.host import AGENT_TIMEOUT_SECONDS, ELASTIC_TIMEOUT_SECONDS
from tfring.launch.elastic.options import ELASTIC_SECONDS
from tfring.launch.hosts.allocations import find_allocation
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import MOST_RANKS, Hosts, parse_hosts, read_hostfile
from tfring.launch.options.environment import chosen_variable
from tfring.launch.options.job_options import BINDINGS, SHELLS, STOP_SECONDS
from tfring.launch.options.option import count, number, option, seconds, spelled, switch
from tfring.runtime.horovod_path import search_path
from tfring.runtime.settings.table import SETTINGS
from tfring.runtime.texts.ranks import parse_ranks

DEFAULT_PORT = 29400  # where nodes meet, as of torchrun
_LEAST_AGENT_TIMEOUT = 2.0


def _nodes(text: str) -> tuple[int, int]:
    """Reads ``N`` or ``MIN:MAX``; ValueError for another text."""
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text)
    least = int(match[1]) if match else 0
    most = int(match[2] or least) if match else 0
    if not 1 <= least <= most:
        raise ValueError(f"{text} is neither a number nor MIN:MAX, such as 1:4.")
    return least, most


def endpoint(text: str) -> tuple[str, int]:
    """Reads ``HOST`` or ``HOST:PORT``, where nodes meet; ValueError for another text."""
    match = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?", text)
    port = int(match[2] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 1 << 16:
        raise ValueError(
            f"{text} is not HOST:PORT. Give the name of one node, the same on all nodes, such as "
            "node1:29400."
        )
    return match[1].strip("[]"), port


def _ranks(text: str) -> frozenset[int]:
    return frozenset(parse_ranks(text))


def _silence(text: str) -> float:
    found = number(float)(text)
    if 0 < found < _LEAST_AGENT_TIMEOUT:
        raise ValueError(
            f"{text} is neither 0 nor at least {_LEAST_AGENT_TIMEOUT:g}. Signs of life come once a "
            "second."
        )
    return found


def _count_of_ranks(*names: str, low: int = 1, **rest: Any) -> Any:
    return count(*names, low=low, high=MOST_RANKS, **rest)


@dataclass(frozen=True)
class RunOptions:
    """What the command line and a file of options ask of ``tfring run``. Times are in seconds."""

    num_proc: int | None = _count_of_ranks("-np", "--num-proc", help="number of ranks to start")
    hosts: tuple[tuple[str, int], ...] | None = option(
        "-H",
        "--hosts",
        type=parse_hosts,
        metavar="HOST:SLOTS,...",
        help="hosts, each with its number of ranks: node1:4,me@node2:4,[fd00::1]:2,n[01-04]:8. "
        "Default, without -np and --hostfile: the hosts of the surrounding Slurm, PBS, LSF or SGE "
        "job",
        other=spelled(
            "-hostfile",
            "--hostfile",
            type=read_hostfile,
            metavar="FILE",
            help='file with lines "host slots=N"',
        ),
    )
    x: tuple[tuple[str, str], ...] = option(
        "-x",
        "--env",
        action="append",
        default=(),
        type=chosen_variable,
        metavar="NAME[=VALUE]",
        help="give the ranks this variable; can be repeated. Without it, ranks on other hosts get "
        "only the variables that training needs: tfring help security",
    )
    report: bool = switch(
        "--report", help="print where the time went when the job is over: tfring help stragglers"
    )
    dry_run: bool = switch("--dry-run", help="only show what would be started, and where")
    json: bool = switch("--json", help="with --dry-run: print one JSON object (tfring help json)")
    command: tuple[str, ...] = option(
        nargs=argparse.REMAINDER,
        default=(),
        metavar="PROGRAM ...",
        help="the program and its arguments; -- may stand before it",
    )

    config_file: str | None = option(
        "--config-file",
        group=("Hosts and ranks",),
        metavar="FILE",
        help="YAML file of options, as horovodrun's; options of the command line come first",
    )
    ssh_port: int | None = count(
        "-p", "--ssh-port", low=1, metavar="PORT", help="port of ssh on the other hosts"
    )
    ssh_identity_file: str | None = option(
        "-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh"
    )
    start_agents: str = option(
        "--start-agents",
        choices=SHELLS,
        default="auto",
        help="how to start ranks on other hosts; auto: srun if Slurm has given the hosts, else ssh",
    )
    no_env: bool = switch("--no-env", help="give other hosts only the variables of -x")
    max_restarts: int | None = count(
        "--max-restarts",
        "--max_restarts",
        help="restart all ranks at most this many times after a failure (default 0, of a "
        "manifest 3). With --nnodes and elastic.run: the number of failures to recover from",
    )
    stop_timeout: float = seconds(
        "--stop-timeout",
        default=STOP_SECONDS,
        help="time for the ranks to end after a signal to tfring run, before SIGKILL",
    )
    agent_timeout: float | None = option(
        "--agent-timeout",
        type=_silence,
        metavar="SECONDS",
        help="after this many seconds of silence tfring run regards a host as lost, and the host's "
        f"agent regards tfring run as lost (default {AGENT_TIMEOUT_SECONDS:g}, in elastic jobs "
        f"{ELASTIC_TIMEOUT_SECONDS:g}; 0: never)",
    )
    bind_to: str = option(
        "--bind-to",
        choices=BINDINGS,
        default="none",
        help="bind each rank to its share of the cores or sockets of its host; --verbose shows it",
    )
    horovod: bool = switch(
        "--horovod",
        help="`import horovod` imports tfring in the ranks, as with python -m tfring.horovod",
    )
    check_build: bool = switch("-cb", "--check-build", help="the same as `tfring doctor`")
    stall_check: bool | None = option(
        "--stall-check",
        action=argparse.BooleanOptionalAction,
        help="whether to warn about stalls (default: yes, after "
        f"{SETTINGS['STALL_CHECK_TIME_SECONDS'].shown_default} s)",
    )

    output_filename: str | None = option(
        "--output-filename",
        group=("Output and reports",),
        metavar="FOLDER",
        help="also write each rank's output to FOLDER/rank.N/stdout and stderr",
    )
    print_ranks: frozenset[int] | None = option(
        "--print-ranks", type=_ranks, metavar="0,3-5", help="print the output of these ranks only"
    )
    prefix_output_with_timestamp: bool = switch(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        help="print the time before every line",
    )
    no_merge_lines: bool = switch(
        "--no-merge-lines",
        help="print every line with its rank, also if several ranks write the same line: for "
        "scripts that read the output",
    )
    show_tensorflow_info: bool = switch(
        "--show-tensorflow-info",
        help="print what TensorFlow logs with level INFO, and when it starts",
    )
    verbose: bool = switch("--verbose", help="print where each rank runs, and on which cores")
    exit_report: str | None = option(
        "--exit-report", metavar="FILE", help="write how the job ended, as JSON"
    )
    events: str | None = option(
        "--events", metavar="FILE", help="write what happens to the job, as lines of JSON"
    )

    min_np: int | None = _count_of_ranks(
        "--min-np",
        "--min-num-proc",
        group=("Elastic jobs", "with --min-np, --max-np, --host-discovery-script or --spares"),
        help="least number of ranks; with fewer the job waits",
    )
    max_np: int | None = _count_of_ranks(
        "--max-np", "--max-num-proc", help="greatest number of ranks"
    )
    host_discovery_script: str | None = option(
        "--host-discovery-script",
        metavar="COMMAND",
        help="command that prints the hosts, one host:slots a line",
    )
    slots: int | None = _count_of_ranks(
        "--slots", "--slots-per-host", help="slots of a host that the script prints without slots"
    )
    spares: int | None = _count_of_ranks(
        "--spares", low=0, help="number of waiting workers beyond --max-np, ready to join"
    )
    elastic_timeout: float | None = seconds(
        "--elastic-timeout",
        above=True,
        help=f"time to wait for --min-np ranks (default {ELASTIC_SECONDS:g})",
    )
    reset_limit: int | None = count("--reset-limit", help="how many times the ranks may change")
    blacklist_cooldown_range: tuple[float, float] | None = seconds(
        "--blacklist-cooldown-range",
        above=True,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="after a failure a host is not used for MIN to MAX seconds, longer each time",
    )
    blacklist_hosts: bool = switch(
        "--blacklist-hosts", help="after a failure a host is not used again, as in Horovod"
    )

    nnodes: tuple[int, int] | None = option(
        "--nnodes",
        group=("Elastic jobs, started once per node", "as torchrun's; with --nnodes"),
        type=_nodes,
        metavar="N or MIN:MAX",
        help="how many nodes the job has",
    )
    nproc_per_node: int | None = _count_of_ranks(
        "--nproc-per-node", "--nproc_per_node", help="ranks on each node (default 1)"
    )
    rdzv_endpoint: tuple[str, int] | None = option(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        type=endpoint,
        metavar="HOST[:PORT]",
        help=f"address of one node, where all nodes meet (default port {DEFAULT_PORT})",
    )
    coordinator: tuple[str, int] | None = option(
        "--coordinator",
        type=endpoint,
        metavar="HOST[:PORT]",
        help="address of a running `tfring coordinator`; use it instead of --rdzv-endpoint. The "
        "coordinator may be restarted during the job",
    )
    rdzv_id: str | None = option(
        "--rdzv-id",
        "--rdzv_id",
        metavar="ID",
        help="the job's name, the same on all nodes (default: its command and its folder)",
    )
    # The settings that options give: texts by the names of variables.
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def says_where(self) -> bool:
        """Whether the ranks are where options say, and not where a scheduler or a pod does."""
        return self.num_proc is not None or self.hosts is not None

    @property
    def known_hosts(self) -> Hosts:
        """The hosts of -H or a host file, without -np those of the scheduler's job; or none."""
        allocation = None if self.says_where else find_allocation(os.environ)
        return self.hosts or (() if allocation is None else tuple(allocation.hosts))

    @property
    def program(self) -> tuple[str, ...]:
        """The program and its arguments; UsageError if there is none."""
        words = self.command[1:] if self.command[:1] == ("--",) else self.command
        if not words:
            raise UsageError("There is no program to run. Write: tfring run -np 2 python train.py")
        return words

    @property
    def variables(self) -> dict[str, str]:
        """The variables that options set, without those of -x."""
        values = dict(self.settings)
        if self.stall_check is False:
            values["TFRING_STALL_CHECK_TIME_SECONDS"] = "0"
        if self.horovod:
            values["PYTHONPATH"] = search_path(os.environ)
        return values
