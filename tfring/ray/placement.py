"""Places for the workers of a job, in Ray's placement groups."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tfring.ray.settings import Resources


class Shape(NamedTuple):
    """The number of workers, and where they are.

    Attributes:
        bundles: the number of bundles: of hosts, or of workers.
        workers: in each bundle.
        strategy: Ray's: "STRICT_SPREAD" puts each bundle on another host.
    """

    bundles: int
    workers: int
    strategy: str


def shape_of(
    num_workers: int | None,
    num_hosts: int | None,
    num_workers_per_host: int | None,
    strategy: str | None,
) -> Shape:
    """Returns the shape of a job from the parameters of Horovod.

    Args:
        num_workers: the number of workers, on any hosts.
        num_hosts: the number of hosts, if each has the same number of workers.
        num_workers_per_host: that number.
        strategy: Ray's placement strategy, for `num_workers`; None: "PACK".

    Raises:
        ValueError: the parameters contradict each other.
    """
    for name, value in (
        ("num_workers", num_workers),
        ("num_hosts", num_hosts),
        ("num_workers_per_host", num_workers_per_host),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: it must be 1 or more")
    if num_workers is not None and num_hosts is not None:
        raise ValueError(
            f"num_workers={num_workers} and num_hosts={num_hosts}: give num_workers alone, or "
            "num_hosts and num_workers_per_host"
        )
    if num_workers is not None:
        return Shape(num_workers, 1, strategy or "PACK")
    if num_hosts is None:
        raise ValueError(
            "the number of workers is missing. Give num_workers, or num_hosts and "
            "num_workers_per_host; for an elastic job min_workers"
        )
    if strategy not in (None, "STRICT_SPREAD"):
        raise ValueError(
            f"placement_group_strategy={strategy!r} is for num_workers only. With num_hosts each "
            "bundle is on another host (STRICT_SPREAD)"
        )
    return Shape(num_hosts, num_workers_per_host or 1, "STRICT_SPREAD")


class Placement:
    """Places for workers: a new placement group, or the current one.

    A new group ends with this object at the latest, as actors end with their handles.

    Args:
        shape: the number of workers, and where they are.
        resources: of each worker.
        seconds: how long to wait for places.
        use_current: use the placement group of the current actor or task.

    Raises:
        TimeoutError: there were no places in time; nothing is left behind.
    """

    def __init__(
        self, shape: Shape, resources: Resources, seconds: float, *, use_current: bool
    ) -> None:
        self._shape = shape
        self._seconds = seconds
        current = get_current_placement_group() if use_current else None
        self._own = current is None
        self.group: PlacementGroup | None = current
        if current is None:
            bundles = [resources.of(shape.workers) or {"CPU": 0.001}] * shape.bundles
            self.group = placement_group(bundles, strategy=shape.strategy)
            self._remove_own = weakref.finalize(self, _remove, self.group)
            self._remove_own.atexit = False  # Ray removes it when the program ends
            self._wait(bundles)

    def strategies(self) -> list[PlacementGroupSchedulingStrategy]:
        """Returns the place of each worker, with workers of one node side by side."""
        assert self.group is not None
        if not self._own:  # its bundles may hold other work: any bundle will do
            places = [-1] * self._shape.bundles
        else:
            nodes: dict[int, str] = placement_group_table(self.group)["bundles_to_node_id"]
            order = list(dict.fromkeys(nodes[index] for index in sorted(nodes)))
            places = sorted(nodes, key=lambda index: order.index(nodes[index]))
        return [
            PlacementGroupSchedulingStrategy(
                self.group,
                placement_group_bundle_index=index,
                placement_group_capture_child_tasks=False,
            )
            for index in places
            for _ in range(self._shape.workers)
        ]

    def wait_for(self, refs: Sequence[Any]) -> None:
        """Waits until the workers have found places in a group that is not our own.

        Args:
            refs: results of a first call of each worker.

        Raises:
            TimeoutError: some workers had no place in time.
        """
        if self._own:
            return
        _, waiting = ray.wait(list(refs), num_returns=len(refs), timeout=self._seconds)
        if waiting:
            assert self.group is not None
            raise TimeoutError(
                f"the current placement group of this program, {self.group.bundle_specs}, had no "
                f"place for {len(waiting)} of {len(refs)} workers within {self._seconds:g} s. "
                "Make it larger, ask for fewer workers or less for each, or use a new group with "
                "RayExecutor(use_current_placement_group=False)"
            )

    def remove(self) -> None:
        """Frees the places, which ends what is in them. May be called twice."""
        self.group = None
        if self._own:
            self._remove_own()  # does nothing the second time

    def _wait(self, bundles: list[dict[str, float]]) -> None:
        ready: Any = None
        try:
            assert self.group is not None
            ready, _ = ray.wait([self.group.ready()], timeout=self._seconds)
        finally:
            if not ready:
                self.remove()
        if not ready:
            raise TimeoutError(
                f"Ray had no place for {self._shape.bundles * self._shape.workers} workers within "
                f"{self._seconds:g} s. The job needs {self._shape.bundles} bundles of "
                f"{bundles[0]} ({self._shape.strategy}); the cluster has {_free()} free. Ask for "
                "fewer, add nodes, or wait longer with "
                "create_settings(placement_group_timeout_s=...)"
            )


def _remove(group: PlacementGroup) -> None:
    if ray.is_initialized():
        remove_placement_group(group)


def _free() -> dict[str, float]:
    available = ray.available_resources()
    return {name: available.get(name, 0.0) for name in ("CPU", "GPU")}
