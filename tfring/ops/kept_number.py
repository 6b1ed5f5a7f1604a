"""A number that graphs keep from step to step, and that any graph may look up."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from tfring.ops import xla


class KeptNumber:
    """A float32 scalar of this process, with a key.

    The graph looks it up in a table. A graph would capture a tf.Variable, and a function that
    captures a variable that no object tracks cannot be saved. XLA has no tables: compiled functions
    have a variable with a value of its own.
    """

    def __init__(self, key: str, default: float, *, of_gradients: bool = False) -> None:
        """Makes a number.

        Args:
            key: its name in the table.
            default: the value before one is set.
            of_gradients: it is computed from gradients. If TensorFlow uses a GPU, it is a variable
                there: with a table, the host would wait for the number.
        """
        self._key = key
        self._default = self._first = default
        self._of_gradients = of_gradients
        self._lock = threading.Lock()  # guards the variable's making
        self._variable: Any = None

    def get(self) -> Any:
        """Returns the value when this runs."""
        if self._in_variable():
            return self.variable().read_value()
        with tf.device("CPU:0"):
            return tf.raw_ops.LookupTableFindV2(
                table_handle=_table(), keys=self._key, default_value=self._default
            )

    def set(self, value: Any) -> Any:
        """Sets it; the returned op is ordered, like any other, by its inputs."""
        value = tf.cast(value, tf.float32)
        if self._in_variable():
            return self.variable().assign(value)
        with tf.device("CPU:0"):
            return tf.raw_ops.LookupTableInsertV2(
                table_handle=_table(), keys=self._key, values=value
            )

    def _in_variable(self) -> bool:
        return xla.compiling() or (
            self._of_gradients and bool(tf.config.get_visible_devices("GPU"))
        )

    def variable(self) -> Any:
        """Returns the variable of compiled functions, and of all that use a GPU."""
        with self._lock:
            if self._variable is None:
                self._variable = new_variable(self._first)
            return self._variable

    def now(self) -> float:
        """Returns the current value, outside of graphs."""
        with tf.init_scope():
            return float(self.get() if self._variable is None else self._variable.read_value())

    def forget(self) -> None:
        """Resets it to the default, everywhere."""
        self.begin_with(self._default)

    def begin_with(self, value: float) -> None:
        """Sets it everywhere, also in variables that are made later."""
        with tf.init_scope():
            self.set(value)
        with self._lock, tf.init_scope():
            self._first = value
            if self._variable is not None:
                self._variable.assign(value)


def _table() -> Any:
    return tf.raw_ops.MutableHashTableV2(
        key_dtype=tf.string, value_dtype=tf.float32, shared_name="tfring.kept_numbers"
    )


def new_variable(value: Any) -> Any:
    """Returns a new variable on this call's device: a GPU, if there is one and none is named.

    Makes it in its own thread: a tf.function that makes a variable is traced again, even with
    tf.init_scope.
    """
    device = eager_context.context().device_name or None

    def make() -> Any:
        with tf.device(device):
            return tf.Variable(value, trainable=False, name="weights_of_ranks")

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()
