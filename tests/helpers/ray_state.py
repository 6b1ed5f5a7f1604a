"""What is alive in the Ray cluster that this process is connected to."""

import time

import ray
from ray.util import placement_group_table

_SECONDS = 60


def alive_actors():
    """The actors that have not ended, each as Ray describes it."""
    actors = ray._private.state.actors()
    return [actor for actor in actors.values() if actor["State"] != "DEAD"]


def groups():
    """The placement groups that have not been removed."""
    return [one for one in placement_group_table().values() if one["state"] != "REMOVED"]


def free_cpus():
    """The CPUs that nobody uses."""
    return ray.available_resources().get("CPU", 0)


def wait_until_nothing_is_left():
    """Fails if an actor, a placement group or a used CPU stays."""
    until = time.monotonic() + _SECONDS
    while left := _left():
        assert time.monotonic() < until, f"after {_SECONDS} s there are still {left}"
        time.sleep(0.1)


def _left():
    used = ray.cluster_resources().get("CPU", 0) - free_cpus()
    return [*alive_actors(), *groups(), *([f"{used:g} CPUs in use"] if used else [])]
