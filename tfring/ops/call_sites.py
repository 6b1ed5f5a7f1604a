"""Finds the line of the user's program that makes a collective, for errors and stall reports.

An op of a graph carries its line as an attribute, from its trace. An eager op cannot: TensorFlow
keeps a kernel for each combination of attributes that it has seen, and a program has many lines.
Its line is stored for the thread. The kernel runs on that thread and finds it.
"""

from __future__ import annotations

import sys
from typing import Any

from tensorflow.python.util import tf_stack

from tfring.runtime import _native


def find() -> str:
    """Returns the line of the user's program that makes the current call; "" if none."""
    return _native.call_site() or find_rewritten()


def find_rewritten() -> str:
    """Returns the user's line in a function that autograph has rewritten."""
    frame = _native.user_frame()
    if frame is None or not _native.GENERATED.search(frame.f_code.co_filename):
        return ""
    # TensorFlow knows which lines are the user's, but not which file belongs to whom.
    foreign = set()
    above: Any = sys._getframe()
    while above is not None:
        if _native.in_library(above):
            foreign.add(above.f_code.co_filename)
        above = above.f_back
    for known in reversed(tf_stack.extract_stack()):
        if known.filename not in foreign and not _native.GENERATED.search(known.filename):
            return _native.site_text(known.filename, known.lineno)
    return ""
