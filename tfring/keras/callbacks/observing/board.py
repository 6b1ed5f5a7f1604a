"""Where the time of each rank's steps goes, for TensorBoard, if `fit` has its callback."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_log = logging.getLogger("tfring")

# Each has a file that stays open.
_MOST_RANKS = 64


class Board:
    """Writes for all ranks, each into a folder of its own, so that TensorBoard draws them together.

    For rank 0, whose TensorBoard callback says where.
    """

    def __init__(self, log_dir: Any) -> None:
        """Writes nothing yet.

        Args:
            log_dir: Of the TensorBoard callback.
        """
        self._folder = os.fspath(log_dir)
        self._writers: dict[int, Any] | None = {}  # by rank; None: writing has failed

    def write(self, epoch: int, times: Sequence[Mapping[str, float]]) -> None:
        """Writes what an epoch has taken. A full disk is a warning, and ends the writing.

        Args:
            epoch: Counted from 0.
            times: By rank: seconds per step, by name.
        """
        if self._writers is None:
            return
        try:
            for rank, own in enumerate(times[:_MOST_RANKS]):
                if rank not in self._writers:
                    folder = os.path.join(self._folder, f"rank-{rank}")
                    self._writers[rank] = tf.summary.create_file_writer(folder)
                with self._writers[rank].as_default():
                    for name, seconds in own.items():
                        write_scalar(f"tfring/{name}_seconds", seconds, epoch)
                self._writers[rank].flush()
        except (OSError, tf.errors.OpError) as error:
            self._writers = None
            _log.warning("TensorBoard gets no times of the ranks any more: %s", error)

    def close(self) -> None:
        """Closes the files; nothing is written any more."""
        for writer in (self._writers or {}).values():
            writer.close()
        self._writers = None


def board_of(callbacks: Any) -> Board | None:
    """Returns where to write, if there is a TensorBoard callback of either Keras.

    Args:
        callbacks: What `fit` was given.
    """
    listed = getattr(callbacks, "callbacks", callbacks)
    for one in listed if isinstance(listed, Iterable) else [listed]:
        named = any(kind.__name__ == "TensorBoard" for kind in type(one).__mro__)
        if named and (log_dir := getattr(one, "log_dir", None)):  # one of the program's may lack it
            return Board(log_dir)
    return None


def write_scalar(name: str, value: float, step: int) -> None:
    """Writes a number with the default writer, without what tf.summary.scalar needs."""
    metadata = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR")
    metadata.plugin_data.plugin_name = "scalars"
    tf.summary.write(name, np.float32(value), step, metadata)
