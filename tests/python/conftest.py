"""For the tests of one process, which share it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_job_is_left() -> Iterator[None]:
    """Fails a test that leaves the runtime initialised: other tests say what holds before init."""
    yield
    topology = sys.modules.get("tfring.topology")
    if topology is not None and topology.is_initialized():
        sys.modules["tfring.world"].shutdown()
        pytest.fail("the test has called init and not shutdown")
