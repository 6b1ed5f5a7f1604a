"""Which line of the user's program a collective comes from: for error messages and stall reports.

An op of a graph carries its line as an attribute, from when it was traced. An eager op has none,
because TensorFlow keeps a kernel for each combination of attributes that it has seen, and a program
has many lines: its line is left with the thread, where the kernel, which runs on the same thread,
finds it.
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf
from tensorflow.python.util import tf_stack

from tfring.ops import names
from tfring.runtime import _native


def attributes(name: str) -> dict[str, Any]:
    """Returns the attributes by which the op that is built next says where it is called.

    Args:
        name: of the collective.
    """
    if tf.executing_eagerly():
        # tf.map_fn and its like have autograph compile what they call in eager mode, too.
        _native.core.set_call_site(_native.call_site() or _rewritten(), names.is_default(name))
        return {}
    return {"call_site": _native.call_site() or _rewritten(), "in_graph": True}


def _rewritten() -> str:
    """The user's line that runs in a function which autograph has compiled anew; "" if none."""
    frame = _native.user_frame()
    if frame is None or not _native.GENERATED.search(frame.f_code.co_filename):
        return ""
    # TensorFlow knows which lines of the user these are, but not which file belongs to whom.
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
