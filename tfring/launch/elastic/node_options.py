"""The options of elastic jobs that are started once per node, as torchrun's are."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from dataclasses import dataclass

from tfring.launch.elastic.options import ELASTIC_SECONDS, ElasticOptions
from tfring.launch.hosts.errors import UsageError

DEFAULT_PORT = 29400


@dataclass(frozen=True)
class NodeOptions:
    """Where the nodes of a job meet, and what this one gives."""

    host: str
    port: int
    job: str  # nodes of another job that meet at the same place are refused
    slots: int  # of this node


def add_node_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of jobs that are started once per node.

    Args:
        parser: That of ``tfring run``.
    """
    add = parser.add_argument_group(
        "elastic jobs, started once per node", "as torchrun's; with --nnodes"
    ).add_argument
    add("--nnodes", metavar="N or MIN:MAX", help="how many nodes the job has")
    add(
        "--nproc-per-node",
        "--nproc_per_node",
        type=int,
        metavar="N",
        help="ranks on each node (default 1)",
    )
    add(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        metavar="HOST[:PORT]",
        help=f"where the nodes meet: one of them serves there (default port {DEFAULT_PORT})",
    )
    add(
        "--rdzv-id",
        "--rdzv_id",
        metavar="ID",
        help="the job's name, the same on all nodes (default: its command and its folder)",
    )


_ONLY_NODES = ("nproc_per_node", "rdzv_endpoint", "rdzv_id")
_NOT_NODES = (
    "num_proc",
    "hosts",
    "hostfile",
    "min_np",
    "max_np",
    "host_discovery_script",
    "spares",
    "slots",
    "reset_limit",
    "blacklist_cooldown_range",
    "blacklist_hosts",
    "compare",
)


def node_options(options: argparse.Namespace) -> tuple[NodeOptions, ElasticOptions] | None:
    """Returns what the parsed options say of a job with one launcher per node; None: it has one.

    Args:
        options: The parsed options.

    Raises:
        UsageError: They contradict each other, or one is missing.
    """
    if options.nnodes is None:
        for name in _ONLY_NODES:
            if getattr(options, name) is not None:
                raise UsageError(f"{_flag(name)} needs --nnodes, as --nnodes 1:4")
        return None
    for name in _NOT_NODES:
        if getattr(options, name) is not None:
            raise UsageError(
                f"with --nnodes each node is started by itself, with --nproc-per-node ranks: leave "
                f"out {_flag(name)}"
            )
    per_node = 1 if options.nproc_per_node is None else options.nproc_per_node
    restarts = 0 if options.max_restarts is None else options.max_restarts
    if per_node < 1:
        raise UsageError("--nproc-per-node has to be 1 or more")
    least, most = _nodes(options.nnodes)
    host, port = _endpoint(options.rdzv_endpoint)
    elastic = ElasticOptions(
        np=least * per_node,
        min_np=least * per_node,
        max_np=most * per_node,
        timeout=ELASTIC_SECONDS if options.elastic_timeout is None else options.elastic_timeout,
        reset_limit=restarts,
        only_failures_count=True,
    )
    # Two jobs that meet at one place by mistake are two programs, or run in two folders.
    job = options.rdzv_id or f"{shlex.join(options.command)} in {os.getcwd()}"
    return NodeOptions(host, port, job, per_node), elastic


def _flag(name: str) -> str:
    names = {"num_proc": "-np", "hosts": "-H"}
    return names.get(name, "--" + name.replace("_", "-"))


def _nodes(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    least = int(match[1]) if match else 0
    most = int(match[2] or least) if match else 0
    if not 1 <= least <= most:
        raise UsageError(f"--nnodes {text}: it has to be a number, or MIN:MAX as 1:4")
    return least, most


def _endpoint(text: str | None) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?", text or "")
    port = int(match[2] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 1 << 16:
        raise UsageError(
            f"--rdzv-endpoint {text or 'is missing'}: say where the nodes meet, as node1:29400 "
            "with the name of one of them, the same on all"
        )
    return match[1].strip("[]"), port
