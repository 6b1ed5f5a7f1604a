"""Runs an elastic job: starts and ends workers as its coordinator wants, prints their output."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable

from tfring.explain.launched import RunRecords
from tfring.handshake.descriptors import raise_descriptor_limit
from tfring.launcher.agents.connections import Connections
from tfring.launcher.agents.host import Host, RankAgent
from tfring.launcher.agents.rank import RankProcess
from tfring.launcher.elastic.options import ElasticOptions
from tfring.launcher.elastic.orders import (
    NOT_STARTED,
    EndJob,
    Generation,
    Head,
    KillWorker,
    Note,
    Orders,
    StartWorker,
)
from tfring.launcher.elastic.script import NUMBER, DiscoveryScript, hosts_text
from tfring.launcher.elastic.worker import AT_ONCE, Worker, given_up_after, worker_variables
from tfring.launcher.exit_codes import DISMISSED
from tfring.launcher.hosts.errors import UsageError
from tfring.launcher.hosts.placement import Slot
from tfring.launcher.options.job_options import JobOptions
from tfring.launcher.output.merger import OutputMerger
from tfring.launcher.reports.job_files import JobFiles
from tfring.launcher.reports.text import end_of_output
from tfring.launcher.signals import ENDING, PASSED_ON, SignalWatch, second_signal_text, signal_name

# Workers that were told that the job has failed get so long to end by themselves.
_FAILED_SECONDS = 5.0
# So long workers get that wait for a generation when the training is over.
_WAITING_SECONDS = 2.0
# Of so many workers that have failed the error output is kept.
_KEPT_FAILURES = 16

MakeHead = Callable[[Orders], Head]


class ElasticJobRunner:
    """Runs one elastic job from its start to its end.

    One thread waits for output, signals, the end of workers and orders of the coordinator, which
    has a thread of its own. A worker that fails ends nothing: the coordinator hears of it. Used by
    one thread, as JobRunner.

    Args:
        options: What to run; its slots are not used.
        make_head: Makes where the orders come from.
        elastic: With how many workers, and where.
        merger: Gets the output of the workers.
        records: Where the workers of this host keep their records.
    """

    def __init__(
        self,
        options: JobOptions,
        make_head: MakeHead,
        elastic: ElasticOptions,
        merger: OutputMerger,
        records: RunRecords,
    ) -> None:
        self._options = options
        self._make_head = make_head
        self._merger = merger
        self._records = records
        self._files = JobFiles(options)
        self._selector = selectors.DefaultSelector()
        self._signals = SignalWatch()
        self._connections = Connections(
            self._selector,
            options.shell,
            options.agent_timeout,
            self._on_output,
            self._on_silent,
            grace=options.stop_timeout,
        )
        self._script = None
        if elastic.script is not None:
            self._script = DiscoveryScript(self._connections, elastic.script, elastic.slots)
        self._slots = dict(elastic.hosts)
        self._workers: dict[int, Worker] = {}  # that have not ended
        self._over: list[RankProcess] = []  # of all that have
        self._failures: list[Worker] = []  # the last that have failed, in the order of their ends
        self._generation = Generation(0, ())
        self._end: EndJob | None = None
        self._late_code = 0  # of a member that failed after the end of the training
        self._stopping: int | None = None  # the signal that the launcher got

    @property
    def stopped_by(self) -> int | None:
        """The signal to this process that ended the job; None if there was none."""
        return self._stopping

    def run(self) -> int:
        """Runs the job; returns the exit code for the shell.

        Raises:
            UsageError: The job cannot be started as the options say.
        """
        raise_descriptor_limit()
        why, code = "tfring run itself failed; its own error says why", 1
        orders = Orders()
        head = None
        try:
            self._files.open()
            with self._selector:
                self._selector.register(orders.fd, selectors.EVENT_READ, "orders")
                head = self._make_head(orders)  # may wait; a signal ends this process meanwhile
                with self._signals:
                    self._selector.register(self._signals.fd, selectors.EVENT_READ, "signals")
                    try:
                        self._run(head, orders)
                        code, why = self._explain()
                    finally:
                        self._connections.close()
        except UsageError as error:
            code, why = 2, str(error)
            raise
        except KeyboardInterrupt:
            code, why = 130, "stopped by SIGINT before anything was started"
            raise
        except BrokenPipeError:
            code, why = 141, "nobody reads the output of tfring run any more"
            raise
        finally:
            if head is not None:
                head.close()
            orders.close()
            processes = [*self._over, *(worker.process for worker in self._workers.values())]
            self._files.end(processes, code, self.stopped_by, why)
            for trouble in self._files.close():
                self._merger.note(trouble)
        self._records.succeeded = code == 0
        return code

    def _run(self, head: Head, orders: Orders) -> None:
        self._files.begin(
            self._connections.host("localhost") if self._options.exit_report else None
        )
        stopped = False
        while self._workers or (self._end is None and self._stopping is None):
            self._discover(head)
            self._wait(orders)
            if self._stopping is not None and not stopped:
                stopped = True
                head.stop()
            for order in orders.take_all():
                self._carry_out(order, head)
            self._connections.tick()
            self._reap(head)

    # What happens.

    def _wait(self, orders: Orders) -> None:
        """Waits for output, signals, orders or a deadline, and handles the first two."""
        now = time.monotonic()
        due = [worker.escalation[0][0] for worker in self._workers.values() if worker.escalation]
        due += [self._script.start_at] if self._script and self._script.start_at > now else []
        ticks = self._merger.tick(now)
        limits = [moment - now for moment in (*due, *(() if ticks is None else (ticks,)))]
        wanted = self._connections.prepare()
        limits += [] if wanted is None else [wanted]
        for key, _ in self._selector.select(max(0.0, min(limits)) if limits else None):
            if key.data == "signals":
                for number in self._signals.read():
                    self._handle_signal(number)
            elif key.data != "orders":
                self._connections.handle(key)

    def _on_output(self, host: Host, number: int, name: str, data: bytes) -> None:
        worker = self._workers.get(number)
        if number == NUMBER and name == "stdout" and self._script is not None:
            self._script.feed(data)
        elif worker is None:  # ssh, or the agent itself
            self._merger.note(f"tfring run: host {host.name}: {data.decode(errors='replace')}")
        else:
            now = time.monotonic()
            worker.process.record_output(name, data, now)
            self._merger.feed(worker.streams[name], data, now)

    def _on_silent(self, host: Host) -> None:
        self._note(
            f"host {host.name} gave no sign of life for {host.lease:g} s and is taken for lost; if "
            "it still runs, its agent ends its workers by itself"
        )
        self._files.event("host_silent", host=host.name, seconds=host.lease)

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._suspend()
        if number in (*ENDING, *PASSED_ON):
            self._signal_all(number)
            self._files.event("signal", signal=signal_name(number))
        if number not in ENDING:
            return
        second, self._stopping = self._stopping is not None, number
        now, wait = time.monotonic(), self._options.stop_timeout
        if not second:
            self._note(
                f"{signal_name(number)} was passed on to all workers, which have {wait:g} s to "
                f"end; {second_signal_text(number)}"
            )
        kill_at = now if second else now + wait
        for worker in self._workers.values():
            worker.escalation = [(kill_at, signal.SIGKILL), *given_up_after(kill_at)]

    def _signal_all(self, number: int) -> None:
        for worker in self._workers.values():
            worker.process.signal(number)

    def _suspend(self) -> None:
        """Stops the workers and this process, as the terminal asked (Ctrl-Z), until it goes on."""
        self._signal_all(signal.SIGSTOP)
        self._connections.hold()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._signal_all(signal.SIGCONT)

    # What the coordinator wants.

    def _carry_out(self, order: object, head: Head) -> None:
        if isinstance(order, StartWorker):
            if self._stopping is None and self._end is None:
                self._start(order, head)
            else:  # or the coordinator would count on it
                head.ended(order.worker, NOT_STARTED, "")
        elif isinstance(order, KillWorker):
            worker = self._workers.get(order.worker)
            if worker is not None and self._stopping is None:
                worker.end_at(time.monotonic())
        elif isinstance(order, Note):
            if self._stopping is None:
                self._note(order.text)
        elif isinstance(order, Generation):
            self._begin_generation(order)
        elif isinstance(order, EndJob):
            self._end_job(order)

    def _start(self, order: StartWorker, head: Head) -> None:
        try:
            host = self._connections.host(head.connection(order.host))
            variables = {
                **worker_variables(
                    self._options,
                    order,
                    os.environ,
                    remote=not host.local,
                    records=self._records.variables,
                ),
                **head.variables(order),
            }
        except UsageError as error:
            self._note(f"worker {order.worker} could not be started: {error}")
            head.ended(order.worker, 1, f"it could not be started: {error}")
            return
        job = {
            "argv": self._options.argv,
            "env": variables,
            "cwd": self._options.folder or os.getcwd(),
            "bind_to": self._options.bind_to,
            "local_rank": order.slot,
            "local_size": max(order.slot + 1, self._slots.get(order.host, 0)),
        }
        self._files.add_worker(order.worker)
        slot = Slot(order.worker, order.host, order.slot, 1, 0, 1)
        agent = RankAgent(host, order.worker)
        process = RankProcess(slot, agent, copy=self._files.copier(order.worker))
        streams = {name: self._merger.add(-1, name) for name in ("stdout", "stderr")}
        worker = self._workers[order.worker] = Worker(order, process, streams)
        self._show_rank(worker)
        host.start(order.worker, json.dumps(job).encode())
        host.flush()
        self._files.event("worker_started", worker=order.worker, host=order.host, slot=order.slot)
        if self._options.verbose:
            self._note(f"worker {order.worker} starts on host {order.host}, slot {order.slot}")

    def _show_rank(self, worker: Worker) -> None:
        label = "" if worker.rank >= 0 else f"worker {worker.start.worker}"
        for stream in worker.streams.values():
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
            if not worker.process.agent.host.greeted:
                worker.escalation = [(now, AT_ONCE)]  # nothing of it has been started
            elif not self._is_member(worker):
                worker.end_at(now + _WAITING_SECONDS)
            elif end.code != 0:
                worker.end_at(now + _FAILED_SECONDS)

    def _is_member(self, worker: Worker) -> bool:
        return any(one.worker == worker.start.worker for one in self._generation.members)

    # What ends.

    def _reap(self, head: Head) -> None:
        now, over = time.monotonic(), self._end is not None or self._stopping is not None
        for worker in list(self._workers.values()):
            worker.escalate(now, over=over)
            code = worker.process.agent.poll()
            if code is None:
                continue
            worker.process.code, worker.process.ended_at = code, now
            del self._workers[worker.start.worker]
            self._ended(worker, head)

    def _ended(self, worker: Worker, head: Head) -> None:
        for stream in worker.streams.values():
            self._merger.finish(stream)
        process = worker.process
        worker.told = self._end is not None
        failed = process.failed() and process.code != DISMISSED  # of these the coordinator tells
        cause = worker.cause()
        head.ended(worker.start.worker, process.exit_code(), cause)
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
        elif self._end.code == 0 and self._is_member(worker):
            self._late_code = self._late_code or process.exit_code()

    def _explain(self) -> tuple[int, str]:
        """Prints how the job failed, if it did; returns the exit code and why."""
        if self._stopping is not None:
            why = f"stopped by {signal_name(self._stopping)}, passed on to all workers"
            self._note(why)
            # One that only waited need not know what to do about the signal.
            failed = [one for one in self._failures if one.rank >= 0 or not self._generation.number]
            codes = [*(w.process.exit_code() for w in failed), self._options.stopped_exit_code]
            return (codes[0] if self._end is None else self._end.code), why
        assert self._end is not None
        if self._end.code == 0 and not self._late_code:
            return 0, ""
        why = self._end.reason
        if self._end.code == 0:
            why = "a worker failed after the training was over"
        self._note(f"the job failed: {why}")
        failed = [one for one in self._failures if not one.process.ended_by_launcher]
        # Those that were told that the job has failed fail because of that.
        shown = [one for one in failed if not one.told or self._end.code == 0]
        if shown:
            worker = next((one for one in reversed(shown) if one.cause()), shown[-1])
            self._note(f"the end of the error output of {worker.name()}:")
            for line in end_of_output(worker.process):
                self._merger.note(f"    {line}")
        if found := self._records.explanation():
            self._note(found)
        return self._end.code or self._late_code, why

    def _note(self, text: str) -> None:
        self._merger.note(f"tfring run: {text}")

    # Which hosts there are.

    def _discover(self, head: Head) -> None:
        if self._script is None or self._stopping is not None or self._end is not None:
            return
        changed, notes = self._script.step(time.monotonic())
        for note in notes:
            self._note(note)
        if changed:
            self._note(f"the hosts are now {hosts_text(self._script.hosts)}")
            self._files.event("hosts", hosts=self._script.hosts)
            self._slots = dict(self._script.hosts)
            head.hosts_found(self._script.hosts)
