"""What the executors are asked for: times, and the resources of each worker."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

TIMEOUT_SECONDS = 300.0
PLACEMENT_SECONDS = 100.0
ELASTIC_SECONDS = 600.0


@dataclass
class Settings:
    """Times of a job, and Horovod's names for them.

    Attributes:
        timeout_s: seconds that ranks wait for each other in `init`.
        placement_group_timeout_s: seconds that `start` waits for places in the cluster.
        elastic_timeout: elastic jobs only: the most seconds with too few workers.
        min_num_proc: elastic jobs only: with fewer workers training waits.
        max_num_proc: elastic jobs only: the most workers; None: as many as fit.
        reset_limit: elastic jobs only: the most changes of the workers; None: no limit.
        cooldown_range: elastic jobs only: seconds that a node is not used after a failure.
        nics: network interfaces to use between hosts, as "eth0,eth1"; None: tfring chooses.
        discovery: elastic jobs only: lists the nodes; None: Ray.
    """

    timeout_s: float = TIMEOUT_SECONDS
    placement_group_timeout_s: float = PLACEMENT_SECONDS
    elastic_timeout: float = ELASTIC_SECONDS
    min_num_proc: int = 1
    max_num_proc: int | None = None
    reset_limit: int | None = None
    cooldown_range: tuple[float, float] | None = None
    nics: str | None = None
    discovery: Any = None


@dataclass(frozen=True)
class Resources:
    """The resources that Ray reserves for each worker.

    Attributes:
        cpus: CPUs, may be a fraction.
        gpus: GPUs; 0: none.
    """

    cpus: float = 1
    gpus: int = 0

    def of(self, workers: int) -> dict[str, float]:
        """Returns the needs of several workers, as a bundle of a placement group."""
        bundle = {"CPU": self.cpus * workers, "GPU": float(self.gpus * workers)}
        return {name: amount for name, amount in bundle.items() if amount > 0}

    def slots(self, total: dict[str, float]) -> int:
        """Returns how many workers fit into a node.

        Args:
            total: the node's resources, by kind.
        """
        wanted = self.of(1)
        if not wanted:
            return 1
        return min(math.floor(total.get(name, 0.0) / amount) for name, amount in wanted.items())

    def options(self) -> dict[str, float]:
        """Returns the options of an actor with these resources."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}


def refuse(why: str, **given: Any) -> None:
    """Refuses parameters that would have no effect.

    Args:
        why: what they are for, and what to do.
        **given: their values; None: not given.

    Raises:
        ValueError: one was given.
    """
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}={value!r} {why}")


def resources(cpus: float, use_gpu: bool, gpus: int | None) -> Resources:
    """Returns the resources of a worker, from the parameters of Horovod.

    Args:
        cpus: CPUs of a worker.
        use_gpu: whether workers get GPUs.
        gpus: GPUs of a worker; None: 1 if `use_gpu`.

    Raises:
        ValueError: the parameters contradict each other.
    """
    if gpus and not use_gpu:
        raise ValueError(f"gpus_per_worker={gpus} and use_gpu=False: give use_gpu=True, too")
    if use_gpu and gpus is not None and gpus < 1:
        raise ValueError(f"gpus_per_worker={gpus}: it must be 1 or more with use_gpu=True")
    if cpus < 0:
        raise ValueError(f"cpus_per_worker={cpus:g}: it must be 0 or more")
    return Resources(cpus, (gpus or 1) if use_gpu else 0)
