"""A Spark cluster of two workers on this host, for the tests of tfring.spark."""

import pytest

try:
    import spark_cluster

    _MISSING = spark_cluster.missing()
except ImportError as error:
    _MISSING = f"PySpark is not installed here (pip install 'tfring[spark]'): {error}"


def pytest_ignore_collect(collection_path):
    """Without PySpark or Java, only test_installed.py runs, and says what is missing."""
    if _MISSING and collection_path.name.startswith("test_"):
        return collection_path.name != "test_installed.py"
    return None


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A session whose executors are two processes with one core each."""
    session = spark_cluster.start_cluster(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def nothing_left(spark):
    """Fails the test if it leaves a process of a job, or a task of Spark, behind."""
    yield
    spark_cluster.wait_until_nothing_is_left(spark.sparkContext)
