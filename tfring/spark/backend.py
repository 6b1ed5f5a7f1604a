"""Backends of estimators, as in Horovod: they run the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfring.spark.stage import active_context
from tfring.spark.static import run

__all__ = ["Backend", "SparkBackend"]


class Backend:
    """Runs a function on all ranks of a job. A subclass may run it elsewhere than on Spark."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Calls a function on all ranks; returns its results, by rank.

        Args:
            fn: it calls `hvd.init` itself.
            args: its positional arguments.
            kwargs: its keyword arguments.
            env: variables for all ranks.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method run")

    def num_processes(self) -> int:
        """Returns the number of ranks."""
        raise NotImplementedError(f"{type(self).__name__} has no method num_processes")


class SparkBackend(Backend):
    """Runs functions by `tfring.spark.run`.

    Args:
        num_proc: the number of ranks; None: `spark.default.parallelism`.
        env: variables for all ranks.
        **options: further arguments of `tfring.spark.run`.
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
