"""keras.distribution as a program sets it up, and undone after each test."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest

import tfring.keras as hvd


@pytest.fixture
def enabled() -> Iterator[None]:
    """enable() and initialize(), and no distribution yet; the seeds of tests are their own."""
    hvd.distribution.enable()
    keras.utils.set_random_seed(7)
    keras.distribution.initialize()
    yield
    hvd.distribution.disable()


@pytest.fixture
def data_parallel(enabled: None) -> None:
    """The three lines of a program."""
    keras.distribution.set_distribution(keras.distribution.DataParallel())
