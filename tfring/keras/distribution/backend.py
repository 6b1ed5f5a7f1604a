"""What keras.distribution asks its backend, answered for a job of tfring.

Keras' own module for TensorFlow (keras/src/backend/tensorflow/distribution_lib.py) has some of
these functions and lacks others; the names are those of Keras' module for JAX.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.utils import rng_utils

from tfring import world
from tfring.collectives import objects
from tfring.keras import seeds
from tfring.runtime import topology

ONLY_DATA_PARALLEL = (
    "tfring trains with keras.distribution.DataParallel only, where every rank has the whole "
    "model: ModelParallel and layouts that cut a tensor need a backend that can"
)
# What Keras asks its backend for.
ASKED = (
    "list_devices",
    "get_device_count",
    "initialize",
    "num_processes",
    "process_id",
    "distribute_tensor",
)
_LARGEST = 10**9  # of the seeds that are drawn


def list_devices(device_type: str | None = None) -> list[str]:
    """Returns one device per rank: "cpu:0", "cpu:1", or "gpu:0" and so on where ranks have GPUs.

    Args:
        device_type: "cpu", "gpu" or "tpu"; None is the kind that computes here. The ranks are taken
            to be alike.
    """
    kind = device_type.lower() if device_type else _kind_here()
    if not tf.config.list_logical_devices(kind.upper()):
        return []
    return [f"{kind}:{rank}" for rank in range(num_processes())]


def get_device_count(device_type: str | None = None) -> int:
    """Returns the number of devices that list_devices names."""
    return len(list_devices(device_type))


def num_processes() -> int:
    """Returns the number of ranks; 1 before `initialize`."""
    return topology.size() if topology.is_initialized() else 1


def process_id() -> int:
    """Returns this process's rank; 0 before `initialize`."""
    return topology.rank() if topology.is_initialized() else 0


def initialize(
    job_addresses: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Joins this process to its job as tfring.init does, and gives all ranks one seed.

    All ranks call it, as often as each other. A second call joins nothing.

    Args:
        job_addresses: "host:port" of rank 0, first in a list with commas. Needed, with the other
            two, where no launcher says which rank this is.
        num_processes: the number of ranks.
        process_id: this rank.

    Raises:
        ValueError: only some of the three are given, or the job is another one.
        RuntimeError: as for tfring.init.
    """
    if not topology.is_initialized():
        if job_addresses:
            _init_at(job_addresses, num_processes, process_id)
        else:
            world.init()
    for what, given, real in (
        ("num_processes", num_processes, topology.size()),
        ("process_id", process_id, topology.rank()),
    ):
        if given is not None and given != real:
            raise ValueError(
                f"rank {topology.rank()}: keras.distribution.initialize({what}={given}), and the "
                f"job that this process is in says {real}: leave the arguments and "
                "KERAS_DISTRIBUTION_... away where a launcher starts the ranks"
            )
    _give_all_one_seed()


def distribute_tensor(tensor: Any, layout: Any) -> Any:
    """Returns `tensor`, if its layout gives all of it to every rank.

    Raises:
        NotImplementedError: the layout cuts the tensor.
    """
    if any(axis is not None for axis in getattr(layout, "axes", ())):
        raise NotImplementedError(
            f"keras.distribution.distribute_tensor: the layout {layout} cuts the tensor: "
            f"{ONLY_DATA_PARALLEL}"
        )
    return tensor


def _kind_here() -> str:
    return "gpu" if tf.config.list_logical_devices("GPU") else "cpu"


def _init_at(addresses: str, size: int | None, rank: int | None) -> None:
    if size is None or rank is None:
        raise ValueError(
            f"keras.distribution.initialize(job_addresses={addresses!r}, num_processes={size}, "
            f"process_id={rank}): give all three, or none where a launcher (tfring run, mpirun) "
            "starts the ranks"
        )
    listed = addresses.split(",")
    if len(listed) not in (1, size):
        raise ValueError(
            f"keras.distribution.initialize: {len(listed)} addresses in {addresses!r} for "
            f"num_processes={size}: give that of rank 0, or one for each"
        )
    world.init(init_method=f"tcp://{listed[0].strip()}", rank=rank, size=size)


def _give_all_one_seed() -> None:
    """Gives all ranks a seed of rank 0, unless the program has set one; a collective.

    Then ranks make the same weights, and shuffle a dataset alike, before each takes its part.
    """
    ask = getattr(rng_utils, "get_random_seed", lambda: None)  # from Keras 3.10
    mine = {"own": ask(), "drawn": random.randint(1, _LARGEST)}
    everywhere = objects.allgather_json(mine, name="tfring.keras.distribution.seed")
    if all(each["own"] is None for each in everywhere):
        seeds.set_seed(everywhere[0]["drawn"])


def refused(original: Callable[..., None]) -> Callable[..., None]:
    """Returns what stands in for the constructor of keras.distribution.ModelParallel."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"keras.distribution.{type(self).__name__}: {ONLY_DATA_PARALLEL}")

    return __init__


def data_parallel() -> Any:
    """Returns the distribution that is set in this thread, checked; None if none is.

    Raises:
        NotImplementedError: it is no DataParallel.
        RuntimeError: tfring is not initialized, or the distribution was made for another job.
    """
    chosen = keras.distribution.distribution()
    if chosen is None:
        return None
    if not isinstance(chosen, keras.distribution.DataParallel):
        raise NotImplementedError(f"{type(chosen).__name__} is set: {ONLY_DATA_PARALLEL}")
    if not topology.is_initialized():
        raise RuntimeError(
            "keras.distribution is set to DataParallel, and this process is in no job: call "
            "keras.distribution.initialize() before DataParallel() is made"
        )
    found = (*_made_for(chosen), int(chosen.device_mesh.devices.size))
    size, rank = topology.size(), topology.rank()
    if found != (size, rank, size):
        raise RuntimeError(
            f"rank {rank} of {size}: the DataParallel that is set was made for process {found[1]} "
            f"of {found[0]} with {found[2]} devices: make it after "
            "keras.distribution.initialize(), with one device per rank, as DataParallel() does"
        )
    return chosen


def _made_for(distribution: Any) -> tuple[int, int]:
    """Returns for how many processes a distribution was made, and for which of their parts."""
    if hasattr(distribution, "num_processes"):
        return distribution.num_processes, distribution.data_shard_id
    return distribution._num_process, distribution._process_id  # Keras before 3.15
