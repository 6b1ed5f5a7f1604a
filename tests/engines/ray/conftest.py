"""A Ray cluster of two nodes on this host, for the tests of tfring.ray."""

import os

import pytest

# Beside Ray's own: workers have to find tfring, and Ray tells nobody about its use.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Warnings of Ray about versions to come would hide ours.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

try:
    import ray
    from ray.cluster_utils import Cluster
except ImportError as error:
    _MISSING = f"Ray is not installed here (pip install ray): {error}"
else:
    _MISSING = ""


def pytest_ignore_collect(collection_path):
    """Where Ray is missing, test_installed.py alone says so."""
    if _MISSING and collection_path.name.startswith("test_"):
        return collection_path.name != "test_installed.py"
    return None


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with two CPUs each; this process is connected to them."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=2)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def nothing_left(cluster):
    """Fails the test if it leaves an actor, a placement group or a used CPU behind."""
    yield
    from ray_state import wait_until_nothing_is_left

    wait_until_nothing_is_left()
