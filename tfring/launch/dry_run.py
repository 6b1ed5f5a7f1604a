"""`tfring run --dry-run`: what would be started, and where."""

from __future__ import annotations

import os
import shlex

from tfring.launch.agents.protocol import agent_command
from tfring.launch.agents.shells import RemoteShell
from tfring.launch.hosts.placement import Slot, is_local
from tfring.launch.options.environment import rank_variables, shown_value
from tfring.launch.options.job_options import JobOptions
from tfring.texts.ranks import ranks_text


def show(options: JobOptions) -> int:
    """Prints what a job would start; nothing is started, and no host is asked anything.

    Args:
        options: The job.

    Returns:
        The exit code, 0.
    """
    by_host: dict[str, list[Slot]] = {}
    for slot in options.slots:
        by_host.setdefault(slot.host, []).append(slot)
    print(f"{len(options.slots)} ranks on {len(by_host)} hosts, in {os.getcwd()}")
    if (share := options.share) is not None:
        print(f"of {share.size} ranks in all; rank 0 at {share.address} port {share.port}")
    print(f"command: {shlex.join(options.argv)}")
    if options.bind_to != "none":
        print(f"each rank is bound to its share of the {options.bind_to}s of its host")
    for host, slots in by_host.items():
        remote = not is_local(host)
        print(f"\n{host}: {ranks_text([slot.rank for slot in slots])}")
        if remote:
            assert isinstance(options.shell, RemoteShell)
            command = options.shell.command(host, agent_command(0, guarded=True))
            print(f"  started by: {shlex.join(command)}")
        else:
            print("  this host; its ranks have all variables of tfring run, too")
        _show_variables(options, slots, remote)
    return 0


def _show_variables(options: JobOptions, slots: list[Slot], remote: bool) -> None:
    """Prints the variables of the ranks of a host: those of all first, then what differs."""
    of_rank = {
        slot.rank: rank_variables(options, slot, os.environ, remote=remote, records={})
        for slot in slots
    }
    first = of_rank[slots[0].rank]
    same = {
        name: value
        for name, value in first.items()
        if all(variables.get(name) == value for variables in of_rank.values())
    }
    for name, value in sorted(same.items()):
        print(f"  {name}={shlex.quote(shown_value(name, value))}")
    for rank, variables in of_rank.items():
        own = sorted(variables.items() - same.items())
        if own:
            words = [f"{name}={shlex.quote(shown_value(name, value))}" for name, value in own]
            print(f"  rank {rank}: {' '.join(words)}")
