"""`tfring run --dry-run` of an elastic job: where its workers would come from."""

from __future__ import annotations

import os
import shlex

from tfring.launch.agents.protocol import agent_command
from tfring.launch.agents.shells import RemoteShell
from tfring.launch.elastic.options import NO_LIMIT
from tfring.launch.elastic.plan import ElasticPlan
from tfring.launch.hosts.placement import is_local
from tfring.launch.options.environment import job_variables, shown_value
from tfring.launch.options.job_options import JobOptions


def show_elastic(options: JobOptions, plan: ElasticPlan) -> int:
    """Prints what an elastic job would start; nothing is started, and no host is asked anything.

    Args:
        options: What to run.
        plan: With how many workers, and where.

    Returns:
        The exit code, 0.
    """
    elastic, node = plan.elastic, plan.node
    most = "as many as there are slots" if elastic.max_np == NO_LIMIT else str(elastic.max_np)
    print(f"begins with {elastic.np} ranks, at least {elastic.min_np}, at most {most}")
    print(f"workers that wait to join: {elastic.spares}; in {os.getcwd()}")
    print(f"command: {shlex.join(options.argv)}")
    if elastic.script is not None:
        print(f"hosts: those that this command prints each second: {elastic.script}")
    if node is not None:
        print(f"meets other nodes at {node.host} port {node.port}, and starts {node.slots} ranks")
    for host, slots in elastic.hosts:
        print(f"\n{host}: {slots} slots")
        if is_local(host):
            print("  this host; its workers have all variables of tfring run, too")
        else:
            assert isinstance(options.shell, RemoteShell)
            command = options.shell.command(host, agent_command(0, guarded=True))
            print(f"  started by: {shlex.join(command)}")
        variables = job_variables(options, os.environ, remote=not is_local(host), records={})
        for name, value in sorted(variables.items()):
            print(f"  {name}={shlex.quote(shown_value(name, value))}")
    return 0
