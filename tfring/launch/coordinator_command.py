"""``tfring coordinator``: the coordinator of an elastic job, in a process of its own."""

from __future__ import annotations

import argparse
import json
import select
import sys

from tfring.job.store import StoreTimeoutError, TCPStore
from tfring.launch.elastic.node_coordinator import REBUILD_SECONDS, NodeCoordinator
from tfring.launch.elastic.options import ElasticOptions
from tfring.launch.elastic.orders import EndJob, Note, Orders
from tfring.launch.options.option import told
from tfring.launch.options.run_options import DEFAULT_PORT, endpoint

_WAIT_SECONDS = 60.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Runs the coordinator of the job whose nodes are started with `tfring run --nnodes ... "
        "--coordinator HOST:PORT`, and ends with its exit code. When it is killed, ranks go on "
        "training. Started again at the same place it hears from nodes and ranks how the job "
        "stands, and goes on. More: tfring help launcher."
    )
    parser.epilog = "tfring coordinator node1:29400"
    parser.add_argument(
        "endpoint",
        type=told(endpoint),
        metavar="HOST[:PORT]",
        help=f"this host, as all nodes know it, and the port (default {DEFAULT_PORT})",
    )


def run(options: argparse.Namespace) -> int:
    """Coordinates one job; returns its exit code.

    Raises:
        OSError: The store cannot be served there.
    """
    host, port = options.endpoint
    store = TCPStore(host, port, is_master=True)
    try:
        _say(f"waits for nodes at {host} port {port}")
        return _coordinate(store, _job(store))
    finally:
        store.close()


def _job(store: TCPStore) -> dict[str, object]:
    """Returns what the first node says of the job."""
    while True:
        try:
            return dict(json.loads(store.get("job", _WAIT_SECONDS)))
        except StoreTimeoutError:
            pass


def _coordinate(store: TCPStore, job: dict[str, object]) -> int:
    orders = Orders()
    elastic = ElasticOptions(**job["elastic"])  # type: ignore[arg-type]
    start_timeout = float(str(job["start_timeout"]))
    coordinator = NodeCoordinator(store, elastic, start_timeout, orders, REBUILD_SECONDS)
    try:
        while True:
            select.select([orders.fd], [], [])
            for order in orders.take_all():
                if isinstance(order, Note):
                    _say(order.text)
                elif isinstance(order, EndJob):
                    _say(f"the job ends with {order.code}: {order.reason}")
                    return order.code
    finally:
        coordinator.close()
        orders.close()


def _say(text: str) -> None:
    print(f"tfring coordinator: {text}", file=sys.stderr, flush=True)
