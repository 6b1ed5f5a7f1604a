"""`tfring run --dry-run`: what would be started, and where."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

from tfring.launch.agents.protocol import agent_command
from tfring.launch.agents.shells import RemoteShell
from tfring.launch.elastic.options import NO_LIMIT, ElasticOptions, NodeOptions
from tfring.launch.hosts.placement import Slot, is_local
from tfring.launch.options.environment import job_variables, place_variables, shown_value
from tfring.launch.options.job_options import JobOptions
from tfring.observe.json_output import print_json
from tfring.runtime.texts.ranks import ranks_text


@dataclass(frozen=True)
class HostPlan:
    """What would be started on a host.

    Attributes:
        host: Its name.
        here: Whether it is this host. Its ranks have all variables of `tfring run`, too.
        start: The command that starts the host's ranks; "": this host needs none.
        slots: How many ranks it can have.
        variables: That all its ranks get; secrets are hidden.
        ranks: By rank: its own variables. {} in an elastic job, which gives the numbers later.
    """

    host: str
    here: bool
    start: str
    slots: int
    variables: dict[str, str]
    ranks: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Answer:
    """What `tfring run --dry-run` would start.

    Attributes:
        command: The program and its arguments.
        folder: Where the ranks are started.
        size: How many ranks the job begins with, also those that others start.
        min_ranks: The least number of ranks of an elastic job; None: the job is not elastic.
        max_ranks: The greatest number of an elastic job; None: as many as there are slots.
        script: The command that prints the hosts of an elastic job; "": none.
        bind_to: "none", "core" or "socket": what each rank is bound to a share of.
        hosts: Each host.
    """

    command: list[str]
    folder: str
    size: int
    min_ranks: int | None
    max_ranks: int | None
    script: str
    bind_to: str
    hosts: list[HostPlan]


def answer(options: JobOptions) -> Answer:
    """Returns what a job would start, and where. It starts nothing and asks no host."""
    elastic, by_host = options.elastic, _by_host(options)
    hosts = [_plan(options, host, len(slots), slots) for host, slots in by_host.items()]
    more = elastic.hosts if elastic is not None else ()
    hosts += [_plan(options, host, count, []) for host, count in more]
    limited = elastic is not None and elastic.max_np != NO_LIMIT
    return Answer(
        command=list(options.argv),
        folder=os.getcwd(),
        size=options.size if elastic is None else elastic.np,
        min_ranks=None if elastic is None else elastic.min_np,
        max_ranks=elastic.max_np if elastic is not None and limited else None,
        script="" if elastic is None else elastic.script or "",
        bind_to=options.bind_to,
        hosts=hosts,
    )


def _by_host(options: JobOptions) -> dict[str, list[Slot]]:
    by_host: dict[str, list[Slot]] = {}
    for slot in options.slots:
        by_host.setdefault(slot.host, []).append(slot)
    return by_host


def _plan(options: JobOptions, host: str, count: int, slots: list[Slot]) -> HostPlan:
    remote = not is_local(host)
    start = ""
    if remote:
        assert isinstance(options.shell, RemoteShell)
        start = shlex.join(options.shell.command(host, agent_command(0, guarded=True)))
    same = job_variables(options, os.environ, remote=remote)
    return HostPlan(
        host=host,
        here=not remote,
        start=start,
        slots=count,
        variables={name: shown_value(name, value) for name, value in sorted(same.items())},
        ranks={str(s.rank): dict(sorted(place_variables(options, s).items())) for s in slots},
    )


def show(options: JobOptions, *, as_json: bool = False) -> int:
    """Prints what a job would start, and where, as JSON on request; returns 0."""
    if as_json:
        print_json(answer(options))
        return 0
    by_host = _by_host(options)
    if options.elastic is None:
        print(f"{len(options.slots)} ranks on {len(by_host)} hosts, in {os.getcwd()}")
    else:
        _show_elastic(options.elastic, options.node)
    if (share := options.share) is not None:
        print(f"of {share.size} ranks in all; rank 0 at {share.address} port {share.port}")
    print(f"command: {shlex.join(options.argv)}")
    if options.bind_to != "none":
        print(f"each rank is bound to its share of the {options.bind_to}s of its host")
    for host, slots in by_host.items():
        _show_host(options, host, ranks_text([slot.rank for slot in slots]), slots)
    for host, count in options.elastic.hosts if options.elastic is not None else ():
        _show_host(options, host, f"{count} slots", [])
    if not all(is_local(host) for host in by_host):
        print("\nNo host was asked. tfring doctor --run, with this -H, tries names, ssh and ports.")
    return 0


def _show_elastic(elastic: ElasticOptions, node: NodeOptions | None) -> None:
    most = "as many as there are slots" if elastic.max_np == NO_LIMIT else str(elastic.max_np)
    print(f"begins with {elastic.np} ranks, at least {elastic.min_np}, at most {most}")
    print(f"workers that wait to join: {elastic.spares}; in {os.getcwd()}")
    if elastic.script is not None:
        print(f"hosts: those that this command prints each second: {elastic.script}")
    if node is not None:
        print(f"meets other nodes at {node.host} port {node.port}, and starts {node.slots} ranks")


def _show_host(options: JobOptions, host: str, has: str, slots: list[Slot]) -> None:
    plan = _plan(options, host, len(slots), slots)
    print(f"\n{host}: {has}")
    if plan.here:
        print("  this host; its ranks have all variables of tfring run, too")
    else:
        print(f"  started by: {plan.start}")
    for name, value in plan.variables.items():
        print(f"  {name}={shlex.quote(value)}")
    for rank, own in plan.ranks.items():
        print(f"  rank {rank}: {' '.join(f'{name}={value}' for name, value in own.items())}")
