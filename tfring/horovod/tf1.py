"""Functions of Horovod for TF1 scripts, which `tfring` does not have."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import tfring
from tfring.integration import LocalGradientAggregationHelper as LocalGradientAggregationHelper
from tfring.integration import (
    handle_average_backwards_compatibility as handle_average_backwards_compatibility,
)


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns an operation that gives every rank the root's values of all global variables.

    Args:
        root_rank: the sender.

    Returns:
        An operation of the current graph; run it in a session after the initialisation.

    Raises:
        RuntimeError: eager execution is on, so there is no list of global variables. Use
            broadcast_variables with the model's and the optimizer's variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables works on TF1 graphs: eager execution has no list of "
            "global variables. Use tfring.broadcast_variables(model.weights, root_rank=0) and "
            "the same for optimizer.variables, or BroadcastGlobalVariablesCallback"
        )
    return tfring.broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Broadcasts all global variables once, when a MonitoredSession makes its session.

    Used by the thread that owns the session; may serve several sessions, one after another.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Prepares the hook.

        Args:
            root_rank: the sender.
            device: TensorFlow device for the operations, "" for TensorFlow's choice.
        """
        super().__init__()
        self._root_rank = root_rank
        self._device = device
        self._operation: Any = None

    def begin(self) -> None:
        """Adds the broadcast to the graph; a hook that is used again may get another graph."""
        graph = tf.compat.v1.get_default_graph()
        if self._operation is None or self._operation.graph is not graph:
            with tf.device(self._device):
                self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the broadcast: the variables have been initialised or restored by now."""
        del coord
        session.run(self._operation)
