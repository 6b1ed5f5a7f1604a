"""Exceptions that come from the runtime, and texts of exceptions that go to other ranks.

Eager ops and sessions raise tf.errors by themselves. The calls that go to the runtime without
TensorFlow raise them through this module, so that a script needs one `except` for both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tfring.runtime import _native
from tfring.runtime.texts.errors import one_line

_MAX_TEXT = 300  # characters of a text for other ranks


def described(error: BaseException) -> str:
    """Returns an exception in one line, as the errors of other ranks show it: "ValueError: bad".

    Args:
        error: any exception, also one that cannot be turned into text.
    """
    text = type(error).__name__
    with contextlib.suppress(Exception):
        words = one_line(str(error), _MAX_TEXT - len(text))
        text = f"{text}: {words}" if words else text
    return text.encode("utf-8", "replace").decode()  # no surrogates


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
