"""The cluster's nodes, and how many workers fit into each."""

from __future__ import annotations

import logging
from typing import NamedTuple

import ray

from tfring.ray.settings import Resources, resources

_log = logging.getLogger("tfring")

# The beginning of a node's id distinguishes nodes of one address.
_ID_LENGTH = 8


class Node(NamedTuple):
    """A living node.

    Attributes:
        name: for messages and the coordinator: its address and the beginning of its id.
        node_id: its id in Ray.
        address: its address.
        total: its resources, by kind.
    """

    name: str
    node_id: str
    address: str
    total: dict[str, float]


def living_nodes() -> list[Node]:
    """Returns the nodes that are alive."""
    found = []
    for one in ray.nodes():
        if one["Alive"]:
            node_id, address = one["NodeID"], one["NodeManagerAddress"]
            name = f"{address}/{node_id[:_ID_LENGTH]}"
            found.append(Node(name, node_id, address, one["Resources"]))
    return found


class RayHostDiscovery:
    """Lists the cluster's nodes, like Horovod's class of this name.

    A subclass may leave some out: give it as `settings.discovery`, with `override_discovery=False`.
    """

    def __init__(
        self,
        use_gpu: bool = False,
        cpus_per_worker: float = 1,
        gpus_per_worker: int | None = None,
        *,
        cpus_per_slot: float | None = None,
        gpus_per_slot: int | None = None,
    ) -> None:
        """Keeps what a worker needs.

        Args:
            use_gpu: whether workers get GPUs.
            cpus_per_worker: CPUs of a worker.
            gpus_per_worker: GPUs of a worker, with `use_gpu`.
            cpus_per_slot: Horovod's older name for `cpus_per_worker`.
            gpus_per_slot: Horovod's older name for `gpus_per_worker`.
        """
        gpus = gpus_per_worker if gpus_per_slot is None else gpus_per_slot
        cpus = cpus_per_worker if cpus_per_slot is None else cpus_per_slot
        self._resources = resources(cpus, use_gpu, gpus if use_gpu else None)

    @classmethod
    def of(cls, needed: Resources) -> RayHostDiscovery:
        """Returns a discovery of nodes for workers with these needs."""
        return cls(needed.gpus > 0, needed.cpus, needed.gpus or None)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Returns how many workers fit into each node, by its name, without full nodes."""
        slots = {node.name: self._resources.slots(node.total) for node in living_nodes()}
        return {name: count for name, count in slots.items() if count > 0}


class Discovered:
    """The nodes that were found last. Nodes that stay keep their positions, oldest first.

    Args:
        discovery: has find_available_hosts_and_slots().
    """

    def __init__(self, discovery: RayHostDiscovery) -> None:
        self._discovery = discovery
        self._unknown: set[str] = set()  # names that were already reported
        self.nodes: dict[str, Node] = {}
        self.slots: list[tuple[str, int]] = []

    def look(self) -> bool:
        """Looks up the nodes; returns whether they have changed.

        Without an answer, for example while the head node restarts, the nodes stay.
        """
        try:
            found = self._discovery.find_available_hosts_and_slots()
            living = living_nodes()
        except Exception as error:
            _log.warning("Ray did not list its nodes, so tfring keeps the last list: %s", error)
            return False
        by_name = {node.name: node for node in living}
        now = {}
        for name, count in found.items():
            node = by_name.get(name) or _only(name, living)
            if node is not None:
                now[node.name] = int(count)
            elif name not in self._unknown:
                self._unknown.add(name)
                _log.warning("the discovery named %s, which is not a living node of Ray", name)
        slots = [(name, now[name]) for name, _ in self.slots if name in now]
        slots += [(name, count) for name, count in now.items() if (name not in dict(self.slots))]
        changed, self.slots, self.nodes = slots != self.slots, slots, by_name
        return changed


def _only(address: str, living: list[Node]) -> Node | None:
    """Returns the node with an address, if there is exactly one."""
    found = [node for node in living if node.address == address]
    return found[0] if len(found) == 1 else None
