"""step: a block of code that fails on all ranks if it fails on one, for eager mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfring.runtime import _native
from tfring.runtime.exceptions import described
from tfring.runtime.process_sets import checked_id


@contextlib.contextmanager
def step(process_set: Any = None) -> Iterator[None]:
    """Makes the block fail on all ranks if it fails on one.

    If an exception leaves the block on some ranks, waiting and later collectives raise
    tf.errors.AbortedError on the others. It names the rank and the exception, so the block fails
    there, too. After the exception was caught, the ranks go on together. Executions of a
    tf.function and Keras' fit do this by themselves. ::

        for images, labels in batches:
            with hvd.step():
                with tf.GradientTape() as tape:
                    loss = loss_of(images, labels)
                ...

    Args:
        process_set: The ranks that go through the block together; None means all.

    Raises:
        ValueError: The process set is not registered.
    """
    run = _native.core.begin_run(checked_id(process_set))
    try:
        yield
    except (StopIteration, tf.errors.OutOfRangeError):  # the end of the data
        _native.core.end_run(run)
        raise
    except BaseException as error:
        _native.core.fail_run(run, described(error))
        raise
    else:
        _native.core.end_run(run)
