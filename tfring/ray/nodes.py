"""Which nodes the cluster has, and how many workers fit into each."""

from __future__ import annotations

import logging
from typing import NamedTuple

import ray

from tfring.ray.settings import Resources, resources

_log = logging.getLogger("tfring")

# The beginning of a node's id is enough to tell nodes of one address apart.
_ID_LENGTH = 8


class Node(NamedTuple):
    """A node that is alive.

    Attributes:
        name: As messages and the coordinator call it: its address and the beginning of its id.
        node_id: Its id in Ray.
        address: Its address.
        total: What it has of each kind of resource.
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
    """Says which nodes there are, as Horovod's class of this name does.

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
            use_gpu: Whether workers get GPUs.
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
        """Returns what finds nodes for workers that need this.

        Args:
            needed: What a worker needs.
        """
        return cls(needed.gpus > 0, needed.cpus, needed.gpus or None)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Returns how many workers fit into each node, by its name; empty ones are left out."""
        slots = {node.name: self._resources.slots(node.total) for node in living_nodes()}
        return {name: count for name, count in slots.items() if count > 0}


class Discovered:
    """The nodes that were found last. Nodes that stay keep their places: oldest first.

    Args:
        discovery: Has find_available_hosts_and_slots().
    """

    def __init__(self, discovery: RayHostDiscovery) -> None:
        self._discovery = discovery
        self._unknown: set[str] = set()  # names that were told already
        self.nodes: dict[str, Node] = {}
        self.slots: list[tuple[str, int]] = []

    def look(self) -> bool:
        """Looks which nodes there are; returns whether that has changed.

        Where nobody answers, as while the head node begins again, the nodes stay.
        """
        try:
            found = self._discovery.find_available_hosts_and_slots()
            living = living_nodes()
        except Exception as error:
            _log.warning("Ray does not say which nodes there are, they stay as they are: %s", error)
            return False
        by_name = {node.name: node for node in living}
        now = {}
        for name, count in found.items():
            node = by_name.get(name) or _only(name, living)
            if node is not None:
                now[node.name] = int(count)
            elif name not in self._unknown:
                self._unknown.add(name)
                _log.warning("the discovery named %s, which is no living node of Ray", name)
        slots = [(name, now[name]) for name, _ in self.slots if name in now]
        slots += [(name, count) for name, count in now.items() if (name not in dict(self.slots))]
        changed, self.slots, self.nodes = slots != self.slots, slots, by_name
        return changed


def _only(address: str, living: list[Node]) -> Node | None:
    """Returns the node with an address, if there is one alone."""
    found = [node for node in living if node.address == address]
    return found[0] if len(found) == 1 else None
