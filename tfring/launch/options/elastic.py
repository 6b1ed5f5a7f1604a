"""What the options of ``tfring run`` say of an elastic job."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from tfring.job.bootstrap.hosts import host_name
from tfring.launch.elastic.options import ELASTIC_SECONDS, NO_LIMIT, ElasticOptions, NodeOptions
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import Hosts, assign_slots
from tfring.launch.options.option import given
from tfring.launch.options.run_options import RunOptions

_MAKES_ELASTIC = ("min_np", "max_np", "host_discovery_script", "spares")
_HOW_IT_CHANGES = ("slots", "reset_limit", "blacklist_cooldown_range", "blacklist_hosts")
_ONLY_NODES = ("nproc_per_node", "rdzv_endpoint", "coordinator", "rdzv_id")
_NEEDS_NODES = "{} needs --nnodes, such as --nnodes 1:4."
# Which options each kind of job does not take, and what to do; {} is the option.
_NOT_TAKEN: dict[str, dict[tuple[str, ...], str]] = {
    "nodes": {
        ("num_proc", "hosts", *_MAKES_ELASTIC, *_HOW_IT_CHANGES): (
            "{} does not go with --nnodes: each node is started by itself, with --nproc-per-node "
            "ranks.\nLeave it out."
        ),
    },
    "elastic": {
        _ONLY_NODES: _NEEDS_NODES,
        ("max_restarts",): "{} does not go with an elastic job. Give --reset-limit instead.",
    },
    "static": {
        _ONLY_NODES: _NEEDS_NODES,
        (*_HOW_IT_CHANGES, "elastic_timeout"): (
            "{} is for elastic jobs.\nLeave it out, or add --min-np, --max-np or "
            "--host-discovery-script."
        ),
    },
}


def elastic_options(options: RunOptions) -> tuple[ElasticOptions | None, NodeOptions | None]:
    """Returns what the options say of an elastic job, and of its nodes if these start one by one.

    None for an elastic job if there is none, and None for nodes if one launcher has all.
    UsageError: options contradict each other, or one is missing.
    """
    kind = "elastic" if given(options, *_MAKES_ELASTIC) else "static"
    if options.nnodes is not None:
        kind = "nodes"
    for names, text in _NOT_TAKEN[kind].items():
        for flag in given(options, *names):
            raise UsageError(text.format(flag))
    if options.nnodes is not None:
        return _nodes(options, *options.nnodes)
    return (_elastic(options) if kind == "elastic" else None), None


def _nodes(options: RunOptions, least: int, most: int) -> tuple[ElasticOptions, NodeOptions]:
    apart = options.coordinator is not None
    if apart and options.rdzv_endpoint is not None:
        raise UsageError(
            "--rdzv-endpoint and --coordinator both say where the nodes meet. Give one of them."
        )
    where = options.coordinator or options.rdzv_endpoint
    if where is None:
        raise UsageError(
            "--rdzv-endpoint is missing. Give the name of one node, the same on all nodes, such as "
            "--rdzv-endpoint node1:29400."
        )
    per_node = options.nproc_per_node or 1
    elastic = ElasticOptions(
        np=least * per_node,
        min_np=least * per_node,
        max_np=most * per_node,
        timeout=options.elastic_timeout or ELASTIC_SECONDS,
        reset_limit=options.max_restarts or 0,
        only_failures_count=True,
    )
    # Two jobs that meet at one place by mistake are two programs, or run in two folders.
    job = options.rdzv_id or f"{shlex.join(options.command)} in {os.getcwd()}"
    return elastic, NodeOptions(*where, job, per_node, apart)


def _elastic(options: RunOptions) -> ElasticOptions:
    cooldown = options.blacklist_cooldown_range
    if cooldown is not None and cooldown[0] > cooldown[1]:
        raise UsageError(
            f"--blacklist-cooldown-range {cooldown[0]:g} {cooldown[1]:g}: the first number is the "
            "larger one.\nGive the shortest and the longest time in seconds, such as 10 100."
        )
    if cooldown is not None and options.blacklist_hosts:
        raise UsageError(
            "With --blacklist-hosts no host comes back after a failure; with "
            "--blacklist-cooldown-range each does.\nLeave one of them out."
        )
    script = options.host_discovery_script
    hosts = () if script else _fixed_hosts(options)
    np, min_np, max_np = _counts(options, sum(slots for _, slots in hosts) if hosts else None)
    return ElasticOptions(
        np=np,
        min_np=min_np,
        max_np=max_np,
        spares=options.spares or 0,
        hosts=hosts or (() if script else ((host_name(), _own_slots(options, max_np)),)),
        script=_script(options, script) if script else None,
        slots=options.slots,
        timeout=options.elastic_timeout or ELASTIC_SECONDS,
        reset_limit=-1 if options.reset_limit is None else options.reset_limit,
        cooldown=cooldown,
        blacklist=options.blacklist_hosts,
    )


def _counts(options: RunOptions, total: int | None) -> tuple[int, int, int]:
    """Returns np, min_np and max_np; `total` are the slots of all hosts, if these are known."""
    np = options.num_proc
    if np is None and total is not None:  # all that the hosts have
        all_but_spares = max(1, total - (options.spares or 0))
        np = max(min(all_but_spares, options.max_np or NO_LIMIT), options.min_np or 1)
    np = np or options.min_np or options.max_np
    if np is None:
        raise UsageError("The number of ranks is missing. Give -np 4 and --min-np 2.")
    min_np = options.min_np or np
    max_np = options.max_np or (np if options.spares else NO_LIMIT)
    if not min_np <= np <= max_np:
        most = "" if max_np == NO_LIMIT else f" and --max-np {max_np}"
        raise UsageError(
            f"-np {np} is not between --min-np {min_np}{most}. The job begins with -np ranks."
        )
    if total is not None and np > total:
        flag = "--min-np" if options.num_proc is None else "-np"
        raise UsageError(
            f"{flag} {np} needs more slots than the {total} of all hosts.\nName more hosts, or "
            "begin with fewer ranks."
        )
    return np, min_np, max_np


def _own_slots(options: RunOptions, max_np: int) -> int:
    """The slots of this host, where no hosts are named."""
    if options.slots is not None:
        return options.slots
    most = max_np if max_np != NO_LIMIT else options.num_proc or options.min_np or 1
    return most + (options.spares or 0)


def _fixed_hosts(options: RunOptions) -> Hosts:
    """The hosts of -H, of a host file, or of the scheduler's job; empty: this one."""
    found = options.known_hosts
    if found and options.slots is not None:
        raise UsageError(
            "--slots is for hosts that a --host-discovery-script names.\nGive the slots of other "
            "hosts with their names: -H node1:4"
        )
    if found:
        assign_slots(None, found)  # refuses a host that is named twice
    return found


def _script(options: RunOptions, script: str) -> str:
    """The command of the discovery script; a file is run also if the path does not name it."""
    if options.hosts is not None:
        raise UsageError(
            "--host-discovery-script and -H or a host file both name the hosts. Give one of them."
        )
    path = Path(script)
    if not path.is_file():
        return script
    if not os.access(path, os.X_OK):
        raise UsageError(
            f"--host-discovery-script {script} is not executable.\nRun chmod +x {script}"
        )
    return shlex.quote(str(path.absolute()))
