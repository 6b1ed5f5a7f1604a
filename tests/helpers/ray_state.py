"""Ray clusters of several nodes on this host, and what is alive in the connected one."""

import time

import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

_SECONDS = 60
# On a busy machine Ray would take nodes for dead. It still notices a killed node at once.
_PATIENCE = {"health_check_timeout_ms": 60_000, "health_check_initial_delay_ms": 60_000}


def start_cluster(*, head_cpus, nodes, cpus=2):
    """Starts a cluster and connects to it; returns it and its nodes without the head."""
    head = {"num_cpus": head_cpus, "include_dashboard": False, "_system_config": _PATIENCE}
    made = _patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    added = [add_node(made, cpus) for _ in range(nodes)]
    ray.init(address=made.address, log_to_driver=False)
    return made, added


def add_node(cluster, cpus=2):
    """Adds a node."""
    return _patiently(lambda: cluster.add_node(num_cpus=cpus))


def _patiently(start):
    """Starts a node. Tries again, because Ray gives up after 30 s, too soon on a busy machine."""
    for _ in range(4):
        try:
            return start()
        except Exception as error:
            failure = error
    raise failure


def stop_cluster(cluster):
    """Disconnects, and ends all processes of the cluster."""
    ray.shutdown()
    cluster.shutdown()


def alive_actors():
    """The living actors, as Ray describes them.

    Leaves out detached ones: Ray Data has two for the life of the cluster; tfring makes none.
    """
    actors = ray._private.state.actors().values()
    return [one for one in actors if one["State"] != "DEAD" and not one["IsDetached"]]


def groups():
    """The placement groups that have not been removed."""
    return [one for one in placement_group_table().values() if one["state"] != "REMOVED"]


def free_cpus():
    """The number of free CPUs."""
    return ray.available_resources().get("CPU", 0)


def wait_until_nothing_is_left():
    """Fails if an actor, a placement group or a used CPU is left."""
    until = time.monotonic() + _SECONDS
    while left := _left():
        assert time.monotonic() < until, f"after {_SECONDS} s there are still {left}"
        time.sleep(0.1)


def _left():
    used = ray.cluster_resources().get("CPU", 0) - free_cpus()
    return [*alive_actors(), *groups(), *([f"{used:g} CPUs in use"] if used else [])]
