"""`tfring run --dry-run`: what would be started, and where."""

from __future__ import annotations

import os
import shlex

from tfring.launch.agents.protocol import agent_command
from tfring.launch.agents.shells import RemoteShell
from tfring.launch.elastic.options import NO_LIMIT, ElasticOptions, NodeOptions
from tfring.launch.hosts.placement import Slot, is_local
from tfring.launch.options.environment import job_variables, place_variables, shown_value
from tfring.launch.options.job_options import JobOptions
from tfring.runtime.texts.ranks import ranks_text


def show(options: JobOptions) -> int:
    """Prints what a job would start, and where; returns 0. It starts nothing and asks no host."""
    by_host: dict[str, list[Slot]] = {}
    for slot in options.slots:
        by_host.setdefault(slot.host, []).append(slot)
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
    remote = not is_local(host)
    print(f"\n{host}: {has}")
    if remote:
        assert isinstance(options.shell, RemoteShell)
        command = options.shell.command(host, agent_command(0, guarded=True))
        print(f"  started by: {shlex.join(command)}")
    else:
        print("  this host; its ranks have all variables of tfring run, too")
    same = job_variables(options, os.environ, remote=remote)
    for name, value in sorted(same.items()):
        print(f"  {name}={shlex.quote(shown_value(name, value))}")
    for slot in slots:
        own = sorted(place_variables(options, slot).items())
        print(f"  rank {slot.rank}: {' '.join(f'{name}={value}' for name, value in own)}")
