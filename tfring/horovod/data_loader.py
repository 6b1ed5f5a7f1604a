"""BaseDataLoader and AsyncDataLoaderMixin: Horovod's `horovod.data`, to load on another thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]

_log = logging.getLogger("tfring")


class BaseDataLoader:
    """What loads batches: a subclass says which (`_iterate`), and how many (`__len__`)."""

    def __len__(self) -> int:
        """How many batches there are."""
        raise NotImplementedError(f"{type(self).__name__} has no __len__")

    def _iterate(self) -> Iterable[Any]:
        """Yields the batches of one pass over the data; to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} has no _iterate")

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches, each as `_process_batch` returns it."""
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Returns the batch as it is to be used; may be overridden. Runs where batches are used."""
        return batch


class AsyncDataLoaderMixin:
    """Lets a BaseDataLoader load on another thread, ahead of use.

    It comes first among the base classes: `class Loader(AsyncDataLoaderMixin, MyDataLoader)`.
    Each iteration has a thread of its own, which begins with it and ends with it, also where a loop
    is left early; an error of `_iterate` is raised where the batches are used, after those before
    it. (Horovod's keeps one thread, which goes on with the next pass before that is asked for.)
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
            async_loader_queue_size: how many batches wait at most; with 0 there is no thread.
            debug_data_loader: whether the beginning and the end of each pass are logged.
            args: for the next base class.
            kwargs: for the next base class.
        """
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._queues: list[_Queue] = []  # of iterations that are under way
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches, each as `_process_batch` returns it."""
        loader: Any = self
        if self.async_loader_queue_size <= 0:
            for batch in loader._iterate():
                yield loader._process_batch(batch)
            return
        queue = _Queue(self.async_loader_queue_size)
        self._queues.append(queue)
        thread = threading.Thread(target=_load, args=(loader._iterate, queue), daemon=True)
        self._say("begins to load, up to %d batches ahead", self.async_loader_queue_size)
        thread.start()
        try:
            for batch in queue:
                yield loader._process_batch(batch)
        finally:
            queue.close()
            self._queues.remove(queue)
            self._say("has ended a pass")

    def _close_async_loader(self) -> None:
        """Ends the iterations that are under way: their loops end after the batch in use."""
        for queue in self._queues:
            queue.close()

    def _say(self, text: str, *values: Any) -> None:
        if self.debug_data_loader:
            _log.warning(f"{type(self).__name__} {text}", *values)


class _Queue:
    """Batches on their way from the thread that loads to the one that uses them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()  # its lock guards what follows
        self._batches: deque[Any] = deque()
        self._ended = False  # nothing follows
        self._error: BaseException | None = None  # that follows the batches

    def put(self, batch: Any) -> bool:
        """Waits for a place and adds a batch; returns whether anybody wants more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._batches) < self._limit)
            if not self._ended:
                self._batches.append(batch)
                self._changed.notify_all()
            return not self._ended

    def end(self, error: BaseException | None) -> None:
        """Says that nothing follows, but perhaps an error."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """Says that nobody wants more."""
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
    """Fills the queue until the batches end or nobody wants more; on a thread of its own."""
    try:
        for batch in iterate():
            if not queue.put(batch):
                return
    except BaseException as error:
        queue.end(error)
    else:
        queue.end(None)
