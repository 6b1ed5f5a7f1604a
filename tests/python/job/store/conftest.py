"""A store of each kind, for the tests that all kinds must pass."""

from __future__ import annotations

import pytest
from store_tools import Shared

KINDS = ("tcp", "prefix")


@pytest.fixture(params=KINDS)
def shared(request, tmp_path):
    """A store of each kind."""
    made = Shared(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def tcp(tmp_path):
    """A TCPStore whose server runs in this process."""
    made = Shared("tcp", tmp_path)
    yield made
    made.close()
