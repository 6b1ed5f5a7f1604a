"""Says why the tests of this folder do not run, where PySpark or Java is missing."""

import importlib.util

import pytest


def test_spark_is_installed():
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("PySpark is not installed: pip install 'tfring[spark]'")
    import spark_cluster

    if missing := spark_cluster.missing():
        pytest.skip(missing)
    import pyspark
    from packaging.version import Version

    assert Version("3.5") <= Version(pyspark.__version__) < Version("5")
