"""Turns errors of the runtime into the tf.errors class of the same name.

Eager ops and sessions raise tf.errors by themselves; this is for the calls that go to the runtime
without TensorFlow, so that a script needs one `except` for both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tfring import _native


def to_tf_error(error: Any) -> Exception:
    """Returns the tf.errors exception for a CoreError. Imports TensorFlow.

    The runtime's codes are numbered like TensorFlow's; a number that TensorFlow does not know
    becomes tf.errors.UnknownError.
    """
    import tensorflow as tf

    cls: type[Exception]
    try:
        cls = tf.compat.v1.errors.exception_type_from_error_code(error.code)
    except KeyError:
        cls = tf.errors.UnknownError
    return cls(None, None, error.message)


@contextlib.contextmanager
def tf_errors() -> Iterator[None]:
    """Within this context a CoreError leaves as the tf.errors exception of the same code."""
    try:
        yield
    except _native.core.CoreError as error:
        raise to_tf_error(error) from error
