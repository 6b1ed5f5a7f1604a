"""What runs the training of an estimator: Horovod's backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfring.spark.stage import active_context
from tfring.spark.static import run

__all__ = ["Backend", "SparkBackend"]


class Backend:
    """Runs a function on all ranks of a job. A subclass may do so elsewhere than Spark."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Calls a function on all ranks; returns what it returned, by rank.

        Args:
            fn: It calls `hvd.init` itself.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            env: Variables for all ranks.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method run")

    def num_processes(self) -> int:
        """Returns how many ranks there are."""
        raise NotImplementedError(f"{type(self).__name__} has no method num_processes")


class SparkBackend(Backend):
    """Runs functions by `tfring.spark.run`.

    Args:
        num_proc: The number of ranks; None: `spark.default.parallelism`.
        env: Variables for all ranks.
        **options: What else `tfring.spark.run` takes.
    """

    def __init__(
        self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self._num_proc = num_proc
        self._env = dict(env or {})
        self._options = options

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """See `Backend.run`."""
        variables = {**self._env, **(env or {})}
        number = self.num_processes()
        return run(fn, args, kwargs, num_proc=number, env=variables, **self._options)

    def num_processes(self) -> int:
        """See `Backend.num_processes`."""
        return self._num_proc or int(active_context().defaultParallelism)
