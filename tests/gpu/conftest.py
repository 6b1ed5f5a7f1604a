"""Fixtures of the tests that run TensorFlow's GPU wheel on the fake CUDA driver."""

from __future__ import annotations

import gpu_fake
import pytest


@pytest.fixture(autouse=True, scope="session")
def gpu_wheel() -> None:
    """Skips the tests if the wheel is missing."""
    try:
        gpu_fake.check()
    except gpu_fake.UnavailableError as error:
        pytest.skip(str(error))
