"""Stores for the tests."""

from __future__ import annotations

import pytest
from store_tools import Shared


@pytest.fixture
def shared():
    """A part of a TCPStore: it goes the same way as the whole, and adds its prefix."""
    made = Shared("prefix")
    yield made
    made.close()


@pytest.fixture
def tcp():
    """A TCPStore whose server runs in this process."""
    made = Shared("tcp")
    yield made
    made.close()
