"""How many Python calls of tfring one eager collective makes, and which of them a user sees."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow as tf

import tfring as hvd

OURS = str(Path(hvd.__file__).parent)


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def own_calls(function: Callable[[], Any]) -> list[tuple[str, str]]:
    """File and function of each Python call into tfring, in order."""
    found = []

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            found.append((code.co_filename, code.co_name))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def test_an_eager_allreduce_makes_25_calls_in_8_files() -> None:
    tensor = tf.ones([3])
    hvd.allreduce(tensor)  # loads the code that all calls share
    calls = own_calls(lambda: hvd.allreduce(tensor))
    files = {file for file, _ in calls}
    assert len(calls) <= 25 and len(files) <= 8, calls


def test_the_traceback_of_a_failed_allreduce_has_three_frames_of_ours() -> None:
    tensor = tf.ones([3])
    hvd.allreduce(tensor)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        hvd.allreduce(tensor, prescale_factor=float("inf"), op=hvd.Adasum)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert len([frame for frame in frames if frame.filename.startswith(OURS)]) <= 3, frames
