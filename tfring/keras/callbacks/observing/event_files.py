"""EventFiles: numbers of ranks for TensorBoard."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

_log = logging.getLogger("tfring")

# Each has a file that stays open.
MOST_RANKS = 64


class EventFiles:
    """Writes each rank's numbers into a folder of its own, so TensorBoard draws them together.

    A full disk does not end training: the first failure is a warning, and ends the writing.
    """

    def __init__(self, log_dir: Any) -> None:
        self._folder = os.fspath(log_dir)
        self._writers: dict[int, Any] | None = {}  # by rank; None: writing has failed or ended

    def write(self, rank: int, values: Mapping[str, float], step: int) -> None:
        """Writes the values of one rank, by name, without those that are NaN."""
        if self._writers is None:
            return
        with self._without_harm():
            if rank not in self._writers:
                folder = os.path.join(self._folder, f"rank-{rank}")
                self._writers[rank] = tf.summary.create_file_writer(folder)
            with self._writers[rank].as_default():
                for name, value in values.items():
                    if not math.isnan(value):
                        _write_scalar(name, value, step)
            self._writers[rank].flush()

    def close(self) -> None:
        """Closes the files; nothing is written any more."""
        with self._without_harm():
            for writer in (self._writers or {}).values():
                writer.close()
        self._writers = None

    @contextlib.contextmanager
    def _without_harm(self) -> Iterator[None]:
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            self._writers = None
            _log.warning("tfring writes no event files any more: %s", error)


def event_files_of(callbacks: Any) -> EventFiles | None:
    """Returns where to write, if a TensorBoard callback of either Keras is among the callbacks."""
    listed = getattr(callbacks, "callbacks", callbacks)
    for one in listed if isinstance(listed, Iterable) else [listed]:
        named = any(kind.__name__ == "TensorBoard" for kind in type(one).__mro__)
        if named and (log_dir := getattr(one, "log_dir", None)):  # one of the program's may lack it
            return EventFiles(log_dir)
    return None


def _write_scalar(name: str, value: float, step: int) -> None:
    """Writes a number with the default writer, without what tf.summary.scalar needs."""
    metadata = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR")
    metadata.plugin_data.plugin_name = "scalars"
    tf.summary.write(name, np.float32(value), step, metadata)
