"""The actor of a rank: it holds the user's object and calls functions."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tfring.integration import Where, described, end_of_program, leave, with_own_first
from tfring.ray import ray_logger
from tfring.ray.data import Shards, use_shards
from tfring.ray.forming import here, listen, prepare

_log = logging.getLogger("tfring")


class Ended(NamedTuple):
    """The end of an elastic worker's function without an exception.

    Attributes:
        left: whether the worker left the job, by order of the coordinator or by sys.exit.
        code: the exit code.
        result: the function's result, if it returned.
    """

    left: bool
    code: int
    result: Any


class Worker:
    """A rank, or a worker of an elastic job. Ray calls its methods one after the other.

    Args:
        name: for messages; Ray shows it in tracebacks and before the output.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._executable: Any = None
        self._failure: BaseException | None = None  # of the last call; None: it succeeded

    def __repr__(self) -> str:
        return self._name

    def where(self) -> Where:
        """See `here`."""
        return here()

    def listen(self, interface: str | None, towards: str | None) -> dict[str, str]:
        """See `listen`."""
        return listen(interface, towards)

    def prepare(self, variables: Mapping[str, str], horovod: bool) -> None:
        """See `prepare`."""
        prepare(variables, horovod)

    def use_queue(self, queue: Any) -> None:
        """See `ray_logger.use_queue`."""
        ray_logger.use_queue(queue)

    def start_executable(
        self, cls: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Makes the user's object, which later functions get."""
        with self._called():
            self._executable = cls(*args, **kwargs)

    def execute(self, function: Callable[[Any], Any]) -> Any:
        """Calls a function with the user's object, or None."""
        with self._called():
            return function(self._executable)

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        shards: Shards,
    ) -> Any:
        """Calls a function with arguments, and parts of datasets for `dataset_shard`."""
        with self._called():
            use_shards(shards)
            try:
                return function(*args, **kwargs)
            finally:
                use_shards({})

    def settle(self) -> None:
        """If the last call failed, leaves the job, so that the others' calls end with an error.

        Not in the call itself, so that the first error reaches the caller first.
        """
        if self._failure is not None:
            error, self._failure = self._failure, None
            self.leave(described(error))

    def leave(self, error: str = "") -> None:
        """Leaves the job; the next `init` begins a new one.

        Args:
            error: the reason, for the errors of the other ranks; "" for a normal end.
        """
        try:
            leave(error)
        except Exception:
            _log.exception("%s could not leave its job", self._name)

    def run_elastic(self, function: Callable[[], Any], gpus: int, slot: int) -> Ended:
        """Calls the function of an elastic job; the process is over afterwards.

        Args:
            function: it calls `init`, and `elastic.run` inside. Without a call of `init` it counts
                as failed.
            gpus: how many GPUs the node has, if workers get any.
            slot: the slot on the node.
        """
        if gpus:
            own = here().gpus
            os.environ["CUDA_VISIBLE_DEVICES"] = with_own_first(gpus, own, slot)
        try:
            ended = Ended(False, 0, function())
            if "TFRING_X_ELASTIC_WORKER" in os.environ:  # init removes it
                raise RuntimeError(f"the function of {self._name} has not called hvd.init()")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            ended = Ended(True, code, None)
        except BaseException as error:
            end_of_program(error)
            raise
        end_of_program()
        return ended

    @contextlib.contextmanager
    def _called(self) -> Iterator[None]:
        self._failure = None
        try:
            yield
        except SystemExit as end:  # Ray would end this process
            self._failure = RuntimeError(f"the function called sys.exit({end.code!r})")
            raise self._failure from end
        except Exception as error:
            self._failure = error
            raise
