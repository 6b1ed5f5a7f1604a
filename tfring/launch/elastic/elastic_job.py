"""Runs an elastic job: starts and ends workers as its coordinator wants, prints their output."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tfring.launch.agents.rank import RankProcess
from tfring.launch.elastic.discovery import hosts_text
from tfring.launch.elastic.options import ElasticOptions
from tfring.launch.elastic.orders import (
    NOT_STARTED,
    EndJob,
    Generation,
    Head,
    HostsFound,
    KillWorker,
    Note,
    Orders,
    Restart,
    StartWorker,
)
from tfring.launch.escalation import Escalation
from tfring.launch.exit_codes import DISMISSED
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import Slot
from tfring.launch.options.environment import host_variables, job_variables
from tfring.launch.options.job_options import JobOptions
from tfring.launch.output.merger import OutputMerger
from tfring.launch.reports.text import MOST_CAUSE, error_of, unshown
from tfring.launch.signals import signal_name
from tfring.launch.supervisor import Supervisor
from tfring.observe.explain.causes import Cause
from tfring.observe.explain.launched import RunRecords

# Seconds for workers to end by themselves after the job has failed.
_FAILED_SECONDS = 5.0
# Seconds for workers that still wait for a generation when the training is over.
_WAITING_SECONDS = 2.0
# The launcher keeps the error output of the last workers that have failed.
_KEPT_FAILURES = 16

MakeHead = Callable[[Orders], Head]


@dataclass
class Worker:
    """A worker that was started. `process` names it by its id, where others have a rank."""

    start: StartWorker
    process: RankProcess
    rank: int = -1  # in the last generation that it was in; -1: in none
    generation: int = 0
    told: bool = False  # to leave, as the job was over, before it ended
    unwanted: bool = False  # the coordinator has had it ended
    escalation: Escalation = field(default_factory=Escalation)

    def name(self) -> str:
        """Returns ``worker 3 (rank 1, host node1, slot 0)``."""
        rank = f"rank {self.rank}, " if self.rank >= 0 else ""
        return f"worker {self.start.worker} ({rank}host {self.start.host}, slot {self.start.slot})"

    def cause(self) -> str:
        """Returns what ended its process, if that was a failure of the program; "" if unknown.

        That is the exception; or, if it has not joined yet, its last line, as of `sys.exit`; or
        that there is none, so that a program that always fails without a word is known. What ssh
        says of a lost host is no failure of the program.
        """
        code = self.process.code
        if not code or code < 0 or code == DISMISSED or self.process.lost():
            return ""
        if (error := error_of(self.process)) is not None:
            return error.line()[:MOST_CAUSE]
        if self.rank >= 0:
            return ""
        text = self.process.tail.decode(errors="replace")
        lines = (line[:MOST_CAUSE] for line in reversed(text.splitlines()) if line.strip())
        return next(lines, "" if self.process.ended_by_launcher else "no error output")


class ElasticJobRunner(Supervisor):
    """An elastic job: a worker that fails ends nothing, the coordinator hears of it.

    The coordinator has a thread of its own and says what starts and ends. `make_head` makes the
    source of its orders. The slots of the options are not used.
    """

    noun = "workers"

    def __init__(
        self,
        options: JobOptions,
        make_head: MakeHead,
        elastic: ElasticOptions,
        merger: OutputMerger,
        records: RunRecords,
    ) -> None:
        super().__init__(options, merger, records)
        self._make_head = make_head
        self._orders = Orders()
        self._made_head: Head | None = None
        self._slots = dict(elastic.hosts)
        self._workers: dict[int, Worker] = {}  # that have not ended
        self._over: list[RankProcess] = []  # of all that have
        self._last: dict[tuple[str, int], int] = {}  # the last worker in each slot of each host
        self._failures: list[Worker] = []  # the last that have failed, in the order of their ends
        self._generation = Generation(0, ())
        self._end: EndJob | None = None
        self._late_code = 0  # of a member that failed after the end of the training

    @property
    def _head(self) -> Head:
        assert self._made_head is not None
        return self._made_head

    def _prepare(self) -> None:
        self._selector.register(self._orders.fd, selectors.EVENT_READ, self._orders)
        self._made_head = self._make_head(self._orders)  # may wait

    def _close(self) -> None:
        if self._made_head is not None:
            self._made_head.close()
        self._orders.close()

    def _run(self) -> None:
        stopped = False
        while self._workers or (self._end is None and self._stopping is None):
            self._wait([])
            if self._stopping is not None and not stopped:
                stopped = True
                self._failures.clear()  # how those before the signal ended says nothing of it
                self._head.stop()
            for order in self._orders.take_all():
                self._carry_out(order)
            now, over = time.monotonic(), self._end is not None or self._stopping is not None
            for worker in self._workers.values():
                worker.escalation.work(now, [worker.process], spares_agents=not over)
            self._reap()

    def _processes_of_job(self) -> list[RankProcess]:
        return [*self._over, *self._running.values()]

    def _escalations(self) -> list[Escalation]:
        return [worker.escalation for worker in self._workers.values()]

    # What the coordinator wants.

    def _carry_out(self, order: object) -> None:
        if isinstance(order, StartWorker):
            if self._stopping is None and self._end is None:
                self._start(order)
            else:  # or the coordinator would count on it
                self._head.ended(order.worker, NOT_STARTED, "")
        elif isinstance(order, KillWorker):
            worker = self._workers.get(order.worker)
            if worker is not None and self._stopping is None:
                worker.unwanted = True
                worker.escalation.terminate(time.monotonic())
        elif isinstance(order, Restart):
            self._note(order.text())
            self._files.restarted(order.number, order.reason)
        elif isinstance(order, Note):
            if self._stopping is None:
                self._note(order.text)
        elif isinstance(order, HostsFound):
            if self._stopping is not None or self._end is not None:
                return
            self._note(f"the hosts are now {hosts_text(order.hosts)}")
            self._files.event("hosts", hosts=order.hosts)
            self._slots = dict(order.hosts)
        elif isinstance(order, Generation):
            self._begin_generation(order)
        elif isinstance(order, EndJob):
            self._end_job(order)

    def _start(self, order: StartWorker) -> None:
        try:
            host = self._connections.host(self._head.connection(order.host))
            variables = {
                **job_variables(self._options, os.environ, remote=not host.local),
                **host_variables(self._options, order.host),
                **order.variables(),
                **self._head.variables(order),
            }
        except UsageError as error:
            self._note(f"worker {order.worker} could not be started: {error}")
            self._head.ended(order.worker, 1, f"it could not be started: {error}")
            return
        self._files.add_worker(order.worker)
        size = max(order.slot + 1, self._slots.get(order.host, 0))
        slot = Slot(order.worker, order.host, order.slot, size, 0, 1)
        process = self._start_process(host, slot, -1, variables)
        process.replaces = self._last.get((order.host, order.slot))
        self._last[order.host, order.slot] = order.worker
        worker = self._workers[order.worker] = Worker(order, process)
        self._show_rank(worker)
        self._files.event(
            "worker_started",
            worker=order.worker,
            host=order.host,
            slot=order.slot,
            replaces=process.replaces,
        )
        if self._options.verbose:
            self._note(f"worker {order.worker} starts on host {order.host}, slot {order.slot}")

    def _show_rank(self, worker: Worker) -> None:
        label = "" if worker.rank >= 0 else f"worker {worker.start.worker}"
        for stream in self._streams[worker.start.worker].values():
            self._merger.assign(stream, worker.rank, label)

    def _begin_generation(self, generation: Generation) -> None:
        self._generation = generation
        for rank, member in enumerate(generation.members):
            if (worker := self._workers.get(member.worker)) is not None:
                worker.rank, worker.generation = rank, generation.number
                self._show_rank(worker)
        self._note(f"generation {generation.number}: {generation.text()}")
        members = [member._asdict() for member in generation.members]
        self._files.event("generation", generation=generation.number, members=members)

    def _end_job(self, end: EndJob) -> None:
        if self._end is not None or (self._stopping and end.code):
            return  # the job has a reason to end
        self._end = end
        now = time.monotonic()
        for worker in self._workers.values():
            if not worker.process.connection.greeted:
                worker.escalation.give_up(now)
            elif not self._is_member(worker):
                worker.escalation.terminate(now + _WAITING_SECONDS)
            elif end.ask:
                worker.escalation.terminate(now, self._options.stop_timeout)
            elif end.code == self._options.stopped_exit_code != 0:  # they have agreed to stop
                worker.escalation.terminate(now + self._options.stop_timeout)
            elif end.code != 0:
                worker.escalation.terminate(now + _FAILED_SECONDS)

    def _is_member(self, worker: Worker) -> bool:
        return any(one.worker == worker.start.worker for one in self._generation.members)

    # What ends.

    def _ended(self, process: RankProcess) -> None:
        worker = self._workers.pop(process.rank)
        worker.told = self._end is not None
        failed = process.failed() and process.code != DISMISSED  # of these the coordinator tells
        cause = worker.cause()
        self._head.ended(worker.start.worker, process.exit_code(), cause)
        self._files.event(
            "worker_failed" if failed else "worker_ended",
            worker=worker.start.worker,
            rank=worker.rank if worker.rank >= 0 else None,
            host=worker.start.host,
            exit_code=process.exit_code(),
            reason=process.describe_end(),
            cause=cause or None,
            ended_by_launcher=process.ended_by_launcher,
        )
        self._over.append(process)
        if not failed:
            process.tail.clear()
            return
        self._failures.append(worker)
        while len(self._failures) > _KEPT_FAILURES:
            self._failures.pop(0).process.tail.clear()
        if process.ended_by_launcher or self._stopping is not None:
            return
        if self._end is None:
            self._note(
                f"{worker.name()} ended with {process.describe_end()}"
                + (f": {cause}" if cause else "")
            )
            self._note_traceback(process)
            process.held.release()
        elif self._end.code == 0 and self._is_member(worker):
            self._late_code = self._late_code or process.exit_code()

    def _explain(self) -> tuple[int, str]:
        """Prints how the job failed, if it did; returns the exit code and why."""
        if self._stopping is not None:
            self._note_errors({one.name(): one.process for one in self._failures})
            why = f"stopped by {signal_name(self._stopping)}, passed on to all workers"
            self._note(why)
            # Workers do not count that only waited, that were let go, or that had to end anyway.
            failed = [one for one in self._failures if one.rank >= 0 or not self._generation.number]
            failed = [one for one in failed if not one.unwanted]
            codes = [code for one in failed if (code := one.process.exit_code()) != DISMISSED]
            codes.append(self._options.stopped_exit_code)
            # Ranks that have ended well after a signal need not be done, as in a static job.
            code = codes[0] if self._end is None or self._end.code == 0 else self._end.code
            return code, why
        assert self._end is not None
        if self._end.code == 0 and not self._late_code:
            return 0, ""
        why = self._end.reason
        if self._end.code == 0:
            why = f"{why}, and then a worker failed"
        if self._end.code == self._options.stopped_exit_code != 0:
            why = f"the ranks have stopped before the end of the training: {why}"
            self._note(why)
            return self._end.code, why
        self._note(f"the job failed: {why}")
        failed = [one for one in self._failures if not one.process.ended_by_launcher]
        # Those that were told that the job has failed fail because of that.
        shown = [one for one in failed if not one.told or self._end.code == 0]
        if shown:
            worker = next((one for one in reversed(shown) if one.cause()), shown[-1])
            if unshown(worker.process):
                self._note(f"the traceback of {worker.name()}: {worker.cause()}")
                self._note_traceback(worker.process)
        found = self._records.explanation()
        self._records.tell(why if found is None else found.text)
        if found is not None:
            # The reason has the exception of a worker.
            said = "" if found.cause is Cause.EXCEPTION else f"{found.text} "
            self._note(f"{said}More: tfring explain {self._records.name}")
        return self._end.code or self._late_code, why
