"""A job whose workers stay: actors in a placement group, with a rank each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import ActorHandleNotFoundError, RayError

from tfring.integration import Where, described, uses_shim
from tfring.ray.forming import fresh_job, other_node, ranks_of_job
from tfring.ray.outcomes import RanksFailed, cause_of, gather
from tfring.ray.placement import Placement, Shape
from tfring.ray.settings import Resources, Settings
from tfring.ray.worker import Worker

# Time for the other ranks to end after one has failed.
_GRACE_SECONDS = 30.0
# Time for ranks whose calls have ended to settle, and then to leave the job.
_REST_SECONDS, _LEAVE_SECONDS = 2.0, 10.0


class StaticJob:
    """The workers of a job. Used by one thread.

    Args:
        settings: times.
        resources: of each worker.
        placement: their places; this object frees them.
        shape: the number of workers.
        variables: the user's, for all workers.
    """

    def __init__(
        self,
        settings: Settings,
        resources: Resources,
        placement: Placement,
        shape: Shape,
        variables: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._placement = placement
        self._lost: list[int] = []  # ranks whose processes ended
        self._settled: list[Any] = []  # ready when the last calls of ranks have ended
        size = shape.bundles * shape.workers
        actor = ray.remote(Worker)
        self.workers: list[Any] = []
        self.nodes: list[str] = []  # the node id of each rank
        try:
            for rank, strategy in enumerate(placement.strategies()):
                options = {**resources.options(), "scheduling_strategy": strategy}
                name = f"rank {rank} of {size}"
                self.workers.append(actor.options(**options).remote(name))
            self._form(variables)
        except BaseException:
            self.shutdown()
            raise

    def start_executable(
        self, cls: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Makes the user's object on every rank.

        Raises:
            RuntimeError: a rank failed.
        """
        self.results(self.start_all("start_executable", cls, args, kwargs))

    def start_all(
        self, method: str, function: Any, *args: Any, own: Sequence[Any] | None = None
    ) -> list[Any]:
        """Calls a method of every worker; returns references to the results, by rank.

        Args:
            method: its name.
            function: its first argument, stored once for all.
            *args: its other arguments.
            own: the last argument of each rank; None: there is none.
        """
        self._check()
        stored = ray.put(function)
        refs = [
            getattr(worker, method).remote(stored, *args, *(() if own is None else (own[rank],)))
            for rank, worker in enumerate(self.workers)
        ]
        self._settled = [worker.settle.remote() for worker in self.workers]
        return refs

    def results(self, refs: Sequence[Any]) -> list[Any]:
        """Waits for results by rank.

        Raises:
            RuntimeError: a rank failed; its exception is the cause.
        """
        try:
            return gather(refs, _GRACE_SECONDS, self._leave_after)
        except RanksFailed as failed:
            self._recover(failed)
            text, cause = failed.error()
            raise RuntimeError(text) from cause

    def result_of_first(self, function: Callable[[Any], Any]) -> Any:
        """Calls a function on rank 0 and waits for its result.

        Raises:
            RuntimeError: it failed; its exception is the cause.
        """
        self._check()
        ref = self.workers[0].execute.remote(function)
        self._settled = [self.workers[0].settle.remote()]
        return self.results([ref])[0]

    def shutdown(self) -> None:
        """Ends the workers and frees their places. May be called twice."""
        workers, self.workers = self.workers, []
        # ray.shutdown has ended them already, and ray.kill would start a cluster.
        if not ray.is_initialized():
            return
        self._say_goodbye(workers)
        for worker in workers:
            with contextlib.suppress(
                ActorHandleNotFoundError
            ):  # Ray was shut down and started again
                ray.kill(worker)
        self._placement.remove()

    def _say_goodbye(self, workers: Sequence[Any]) -> None:
        """Lets idle ranks leave the job; otherwise they would count as failed."""
        if not self._settled or self._lost:
            return
        with contextlib.suppress(RayError):  # Ray was shut down and started again
            _, busy = ray.wait(self._settled, num_returns=len(self._settled), timeout=_REST_SECONDS)
            if not busy:
                leaving = [worker.leave.remote() for worker in workers]
                ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_SECONDS)

    def _form(self, variables: Mapping[str, str]) -> None:
        """Tells each worker who it is."""
        asked = [worker.where.remote() for worker in self.workers]
        self._placement.wait_for(asked)
        places: list[Where] = ray.get(asked)
        interface = self._settings.nics
        meeting = ray.get(self.workers[0].listen.remote(interface, other_node(places)))
        job = fresh_job(self._settings.timeout_s, interface, variables)
        ranks = ranks_of_job(places, meeting, job)
        told = [
            worker.prepare.remote(own, uses_shim())
            for worker, own in zip(self.workers, ranks, strict=True)
        ]
        ray.get(told)
        self.nodes = [place.node for place in places]

    def _check(self) -> None:
        if not self.workers:
            raise RuntimeError("there are no workers. Call start() first")
        if self._lost:
            ranks = ", ".join(map(str, self._lost))
            raise RuntimeError(
                f"the processes of ranks {ranks} have ended after an earlier error. Call "
                "shutdown() and start() again"
            )

    def _leave_after(self, rank: int, error: Exception) -> None:
        """Lets a failed rank leave the job, so that the others' calls end with an error.

        `Worker.settle` does this sooner, but only for errors that the worker itself has seen. It
        does not see arguments that cannot be unpickled there, or a result that cannot be pickled.
        """
        self.workers[rank].leave.remote(described(cause_of(error)))

    def _recover(self, failed: RanksFailed) -> None:
        """After an error all ranks leave the job, so `init` can begin a new one."""
        asked = {
            worker.leave.remote(): rank
            for rank, worker in enumerate(self.workers)
            if rank not in failed.stuck
        }
        answers, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_GRACE_SECONDS)
        left = set()
        for answer in answers:
            with contextlib.suppress(RayError):
                ray.get(answer)
                left.add(asked[answer])
        for rank, worker in enumerate(self.workers):
            if rank not in left:
                ray.kill(worker)
                self._lost.append(rank)
