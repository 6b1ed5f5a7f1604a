"""One Ray cluster on this host, for all tests of tfring.ray."""

import os

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would be sent over the network

try:
    import ray_state
except ImportError as error:
    _MISSING = f"Ray is not installed here (pip install ray): {error}"
else:
    _MISSING = ""


def pytest_ignore_collect(collection_path):
    """Without Ray, only test_installed.py runs, and says what is missing."""
    if _MISSING and collection_path.name.startswith("test_"):
        return collection_path.name != "test_installed.py"
    return None


@pytest.fixture(scope="session")
def cluster_and_nodes():
    """A head without CPUs, which gets no workers, and two nodes with two CPUs each."""
    made, nodes = ray_state.start_cluster(head_cpus=0, nodes=2)
    yield made, nodes
    ray_state.stop_cluster(made)


@pytest.fixture
def cluster(cluster_and_nodes):
    """The cluster; this process is connected to its head."""
    return cluster_and_nodes[0]


@pytest.fixture
def nodes(cluster_and_nodes):
    """The nodes that have workers. A test that kills one adds another one."""
    return cluster_and_nodes[1]


@pytest.fixture
def nothing_left(cluster):
    """Fails the test if it leaves an actor, a placement group or a used CPU behind."""
    yield
    ray_state.wait_until_nothing_is_left()
