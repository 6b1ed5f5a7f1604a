"""Runs an elastic job: starts and ends actors on Ray's nodes, as its coordinator orders."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tfring.integration import (
    NOT_STARTED,
    ElasticOptions,
    EndJob,
    Generation,
    KillWorker,
    Note,
    Restart,
    Service,
    StartWorker,
    described,
    fresh_secret,
    is_consequence,
    uses_shim,
)
from tfring.ray.forming import fresh_job
from tfring.ray.nodes import Discovered
from tfring.ray.outcomes import cause_of, text_of
from tfring.ray.settings import Resources, Settings
from tfring.ray.worker import Ended, Worker
from tfring.store import TCPStore

_log = logging.getLogger("tfring")

_LOOK_SECONDS = 1.0
# Time for waiting workers to end, after the training is over or has failed.
_WAITING_SECONDS, _FAILED_SECONDS = 2.0, 5.0
_KILLED, _FAILED = 137, 1
# The worker's process or its node is gone: the user's function has not failed.
_GONE = (RayActorError, ActorUnschedulableError)


@dataclass
class _Started:
    """A worker that has started and not ended."""

    start: StartWorker
    actor: Any
    kill_at: float | None = None
    killed: bool = False  # by us: so the loss of its process explains nothing

    def kill(self) -> None:
        """Ends its process."""
        self.killed = True
        with contextlib.suppress(RayError):
            ray.kill(self.actor)


class _End(NamedTuple):
    """The end of a worker's function or process."""

    worker: int
    outcome: Any  # a finished concurrent.futures.Future


class ElasticJob:
    """One elastic job. The coordinator, in its own thread, decides who is in it.

    Args:
        settings: times.
        resources: those of each worker.
        elastic: the numbers of workers.
        discovered: the nodes to use.
        variables: the user's, for all workers.
        callbacks: called with what `ray_logger.log` sends, in the thread that runs the job.
    """

    def __init__(
        self,
        settings: Settings,
        resources: Resources,
        elastic: ElasticOptions,
        discovered: Discovered,
        variables: Mapping[str, str],
        callbacks: Sequence[Callable[[Any], object]] = (),
    ) -> None:
        self._settings = settings
        self._resources = resources
        self._elastic = elastic
        self._discovered = discovered
        self._secret = fresh_secret()
        self._variables = fresh_job(settings.timeout_s, settings.nics, variables, self._secret)
        # Orders from the coordinator's thread; ends of workers from a thread of Ray.
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # All below belongs to the thread that runs the job.
        self._callbacks = tuple(callbacks)
        self._sent: Any = None  # the queue for the callbacks, if there are any
        self._workers: dict[int, _Started] = {}
        self._results: dict[int, Any] = {}
        self._generation = Generation(0, ())
        self._last_failure: tuple[str, Exception] | None = None
        self._end: EndJob | None = None

    def put(self, order: object) -> None:
        """Takes an order of the coordinator, in any thread."""
        self._inbox.put(order)

    def run(self, function: Callable[[], Any]) -> list[Any]:
        """Runs the job to its end; returns the results of the ranks of its last generation.

        Args:
            function: each worker calls it.

        Raises:
            RuntimeError: the job failed; the exception of the last worker that failed is the cause.
        """
        address = ray.util.get_node_ip_address()
        with contextlib.ExitStack() as at_end:
            store = TCPStore(address, 0, is_master=True, secret=self._secret)
            at_end.callback(store.close)
            host = f"[{address}]" if ":" in address else address
            service = Service(store, self._elastic, self._settings.timeout_s, self.put)
            at_end.callback(service.close)
            at_end.callback(self._kill_all)
            if self._callbacks:
                self._sent = queue_on_this_node()
                at_end.callback(self._sent.shutdown, force=True)
            run = _Run(service, ray.put(function), f"{host}:{store.port}")
            while self._end is None or self._workers:
                self._step(run)
            self._call_back()
        return self._finish()

    def _step(self, run: _Run) -> None:
        """Waits for an order, for the end of a worker, or until it is time to check the nodes."""
        now = time.monotonic()
        if now >= run.look_at and self._end is None:
            run.look_at = now + _LOOK_SECONDS
            self._look(run.service)
            self._call_back()
        for started in self._workers.values():
            if started.kill_at is not None and now >= started.kill_at:
                started.kill_at = None
                started.kill()
        with contextlib.suppress(queue.Empty):
            item = self._inbox.get(timeout=_LOOK_SECONDS / 2)
            if isinstance(item, _End):
                self._ended(item, run.service)
            else:
                self._carry_out(item, run)

    def _look(self, service: Service) -> None:
        """Checks the nodes, and tells the coordinator if they have changed."""
        if self._discovered.look():
            _log.info("the nodes are now %s", self._discovered.slots)
            service.set_hosts(self._discovered.slots)

    def _call_back(self) -> None:
        """Calls the callbacks with everything that the workers have sent."""
        if self._sent is not None:
            for sent in self._sent.get_nowait_batch(self._sent.qsize()):
                for callback in self._callbacks:
                    callback(sent)

    def _carry_out(self, order: Any, run: _Run) -> None:
        """Carries out an order of the coordinator."""
        if isinstance(order, StartWorker):
            if self._end is None:
                self._start(order, run)
            else:  # otherwise the coordinator would count on it
                run.service.ended(order.worker, NOT_STARTED, "")
        elif isinstance(order, KillWorker):
            if order.worker in self._workers:
                self._workers[order.worker].kill()
        elif isinstance(order, Restart):
            _log.info("%s", order.text())
        elif isinstance(order, Note):
            _log.info("%s", order.text)
        elif isinstance(order, Generation):
            self._generation = order
            _log.info("generation %d: %s", order.number, order.text())
        elif isinstance(order, EndJob):
            self._end = order
            self._limit_ends(order)

    def _start(self, order: StartWorker, run: _Run) -> None:
        node = self._discovered.nodes.get(order.host)
        if node is None:
            _log.warning("worker %d was not started: node %s is gone", order.worker, order.host)
            run.service.ended(order.worker, _KILLED, "")
            return
        options = {
            **self._resources.options(),
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        }
        actor = ray.remote(Worker).options(**options).remote(f"worker {order.worker}")
        variables = {**order.variables(), "TFRING_X_ELASTIC_STORE": run.store}
        actor.prepare.remote({**variables, **self._variables}, uses_shim())
        if self._sent is not None:
            actor.use_queue.remote(self._sent)
        gpus = int(node.total.get("GPU", 0)) if self._resources.gpus else 0
        ref = actor.run_elastic.remote(run.function, gpus, order.slot)
        self._workers[order.worker] = _Started(order, actor)
        ref.future().add_done_callback(lambda done: self._inbox.put(_End(order.worker, done)))

    def _limit_ends(self, end: EndJob) -> None:
        """Ends workers that should have ended by themselves after the job was over."""
        now = time.monotonic()
        members = {member.worker for member in self._generation.members}
        for worker, started in self._workers.items():
            if end.code != 0:
                started.kill_at = now + _FAILED_SECONDS
            elif worker not in members:
                started.kill_at = now + _WAITING_SECONDS

    def _ended(self, end: _End, service: Service) -> None:
        """Notes the end of a worker, and tells the coordinator."""
        started = self._workers.pop(end.worker)
        error = end.outcome.exception()
        if error is None:
            ended: Ended = end.outcome.result()
            if not ended.left:
                self._results[end.worker] = ended.result
            code, cause = ended.code, ""
        else:
            gone = isinstance(error, _GONE) or not isinstance(error, RayError)
            code, cause = (_KILLED, "") if gone else (_FAILED, described(cause_of(error)))
            if self._may_be_why(error, gone and started.killed):
                self._last_failure = (self._name(started.start), error)
            if self._end is None:
                _log.warning("%s failed: %s", self._name(started.start), cause or error)
                if gone:
                    self._look(service)  # so that no other worker starts on a node that is gone
        service.ended(end.worker, code, cause)
        started.kill()

    def _may_be_why(self, error: Exception, killed: bool) -> bool:
        """Returns whether an error explains a failure of the job better than earlier errors."""
        if killed:
            return False
        follows = is_consequence(cause_of(error))
        if self._end is not None and self._end.code != 0:
            # All workers end now. A failure may be reported after its consequences.
            last = self._last_failure
            return not follows and last is not None and is_consequence(cause_of(last[1]))
        return self._last_failure is None or not follows

    def _name(self, start: StartWorker) -> str:
        """Returns ``worker 3 (rank 1, node 10.0.0.1/abcd, slot 0)``."""
        ranks = [r for r, one in enumerate(self._generation.members) if one.worker == start.worker]
        rank = f"rank {ranks[0]}, " if ranks else ""
        return f"worker {start.worker} ({rank}node {start.host}, slot {start.slot})"

    def _finish(self) -> list[Any]:
        """Returns the results, by rank.

        Raises:
            RuntimeError: the job failed.
        """
        assert self._end is not None
        members = self._generation.members
        missing = [r for r, one in enumerate(members) if one.worker not in self._results]
        if self._end.code == 0 and not missing:
            return [self._results[member.worker] for member in members]
        why = self._end.reason
        if self._end.code == 0:
            why = f"ranks {missing} ended without a result after the training was over"
        text, cause = f"the elastic job failed: {why}", None
        if self._last_failure is not None:
            name, error = self._last_failure
            text, cause = f"{text}\nthe error of {name}:\n{text_of(error)}", cause_of(error)
        raise RuntimeError(text) from cause

    def _kill_all(self) -> None:
        for started in self._workers.values():
            started.kill()


def queue_on_this_node() -> Any:
    """Returns a queue for the callbacks on the node of this program.

    Ray puts an actor without CPUs on any node, but the job should survive the loss of other nodes.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})


@dataclass
class _Run:
    """The state of a job while it runs."""

    service: Service
    function: Any  # in the object store
    store: str  # its address, as host:port
    look_at: float = 0.0  # when to check the nodes (time.monotonic)
