"""Says why the tests of this folder do not run, where Ray is missing."""

import importlib.util

import pytest


def test_ray_is_installed():
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'tfring[ray]'")
    import ray
    from packaging.version import Version

    assert Version("2.60") <= Version(ray.__version__) < Version("3")
