"""BaseDataLoader and AsyncDataLoaderMixin, Horovod's `horovod.data`: load on another thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]

_log = logging.getLogger("tfring")


class BaseDataLoader:
    """Loads batches: a subclass defines which (`_iterate`), and how many (`__len__`)."""

    def __len__(self) -> int:
        """The number of batches."""
        raise NotImplementedError(f"{type(self).__name__} has no __len__")

    def _iterate(self) -> Iterable[Any]:
        """Yields the batches of one pass over the data; a subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} has no _iterate")

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches, each as returned by `_process_batch`."""
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Returns the batch for use; may be overridden. Runs on the thread that uses batches."""
        return batch


class AsyncDataLoaderMixin:
    """Lets a BaseDataLoader load on another thread, ahead of use.

    It comes first among the base classes: `class Loader(AsyncDataLoaderMixin, MyDataLoader)`. Each
    iteration has its own thread, which ends with it, even if the loop ends early. An error of
    `_iterate` is raised in the loop, after the batches before it. (Horovod keeps one thread, which
    starts the next pass early.)
    """

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Sets how far it loads ahead.

        Args:
            async_loader_queue_size: the most batches that wait; 0 means no thread.
            debug_data_loader: log the beginning and the end of each pass.
            args: for the next base class.
            kwargs: for the next base class.
        """
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._queues: list[_Queue] = []  # of running iterations
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches, each as returned by `_process_batch`."""
        loader: Any = self
        if self.async_loader_queue_size <= 0:
            for batch in loader._iterate():
                yield loader._process_batch(batch)
            return
        queue = _Queue(self.async_loader_queue_size)
        self._queues.append(queue)
        thread = threading.Thread(target=_load, args=(loader._iterate, queue), daemon=True)
        self._say("begins to load, at most %d batches ahead", self.async_loader_queue_size)
        thread.start()
        try:
            for batch in queue:
                yield loader._process_batch(batch)
        finally:
            queue.close()
            self._queues.remove(queue)
            self._say("has ended a pass")

    def _close_async_loader(self) -> None:
        """Ends running iterations: their loops end after the current batch."""
        for queue in self._queues:
            queue.close()

    def _say(self, text: str, *values: Any) -> None:
        if self.debug_data_loader:
            _log.warning(f"{type(self).__name__} {text}", *values)


class _Queue:
    """Batches between the loading thread and the using thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()  # its lock guards the attributes below
        self._batches: deque[Any] = deque()
        self._ended = False  # nothing follows
        self._error: BaseException | None = None  # raised after the batches

    def put(self, batch: Any) -> bool:
        """Waits for a place and adds a batch; returns whether more are wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._batches) < self._limit)
            if not self._ended:
                self._batches.append(batch)
                self._changed.notify_all()
            return not self._ended

    def end(self, error: BaseException | None) -> None:
        """Notes that nothing follows, except perhaps an error."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """Notes that no more batches are wanted."""
        with self._changed:
            self._batches.clear()
            self._ended, self._error = True, None
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._batches)
                if not self._batches:
                    if self._error is not None:
                        raise self._error
                    return
                batch = self._batches.popleft()
                self._changed.notify_all()
            yield batch


def _load(iterate: Callable[[], Iterable[Any]], queue: _Queue) -> None:
    """Fills the queue until the batches end or no more are wanted; on its own thread."""
    try:
        for batch in iterate():
            if not queue.put(batch):
                return
    except BaseException as error:
        queue.end(error)
    else:
        queue.end(None)
