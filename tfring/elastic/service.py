"""The coordinator of an elastic job, in the process that serves the job's store."""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tfring.elastic import keys
from tfring.elastic.records import Record, record_of
from tfring.job.store import PrefixStore, Store, StoreError, Watch
from tfring.runtime import _native

_log = logging.getLogger("tfring")

# How long the store may take for one request. What was lost is said again when the worker's next
# report shows that.
_STORE_SECONDS = 1.0
_CLOSE_SECONDS = 10.0
_FAILED = 1


class _Living(NamedTuple):
    """See `CoordinatorService.living`."""

    host: str
    workers: dict[int, int]
    last_worker: int
    generation: int


class CoordinatorService:
    """Decides who is in which generation of an elastic job, from what workers and hosts report.

    It runs the state machine of ops/runtime/membership/coordinator.h in one thread, which sleeps
    until a report comes or a limit is due. All methods may be called from any thread. Workers that
    other launchers have started simply report.

    All clients of the store know the same secret, so the coordinator cannot check which worker
    sent a report. It refuses a report that it cannot read, and names it in a note.
    """

    def __init__(
        self,
        store: Store,
        options: Any,
        *,
        on_start: Callable[[int, str, int], None],
        on_kill: Callable[[int], None],
        on_note: Callable[[str], None],
        on_end: Callable[[int, str], None],
    ) -> None:
        """Starts the thread. No worker is started before set_hosts().

        The store stays the caller's, and is closed after the service. In its thread the service
        calls, and they return soon:

            on_start: Starts a worker: its id, host and slot. What it raises is the worker's end.
            on_kill: Ends what is left of a worker's process.
            on_note: Takes a line for the log.
            on_end: The job is over: its exit code, and why. Called once; the service goes on to
                tell workers, until close().
        """
        self._core = _native.core.membership
        self._machine = self._core.Coordinator(options)
        self._store = PrefixStore(keys.PREFIX, store)
        self._on_start, self._on_kill = on_start, on_kill
        self._on_note, self._on_end = on_note, on_end
        # ProcessEnds, lists of hosts, _Living; None: the watch has something, or it is to end.
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closing = False
        # All below belongs to the thread; others only look at some of it, under the GIL.
        self.recovers = False  # whether a worker has come to elastic.run
        self._watch: Watch | None = None
        self._watch_again_at = 0.0
        self._deaf = False  # the last attempt to watch has failed
        self._started: set[int] = set()  # by us
        self._over: set[int] = set()  # whose processes have ended
        self._refused: set[str] = set()  # keys whose last report could not be read
        # How each worker stood by its last report, and the reports that say nothing new: those wait
        # until the machine is looked after anyway.
        self._stands: dict[int, tuple[Any, ...]] = {}
        self._signs_of_life: dict[int, Any] = {}
        self._hosts: list[tuple[str, int]] = []
        self._to_delete: list[str] = []
        self._ended = False  # on_end was called
        self._thread = threading.Thread(target=self._run, name="tfring coordinator", daemon=True)
        self._thread.start()

    def set_hosts(self, hosts: Sequence[tuple[str, int]]) -> None:
        """Says which hosts there are now, with their slots; the first ones are used first.

        Workers on all others leave when others have their state.
        """
        self._inbox.put([(host, slots) for host, slots in hosts])

    def living(
        self, host: str, workers: Mapping[int, int], last_worker: int, generation: int
    ) -> None:
        """Takes what a host's launcher knows from before this coordinator.

        These are its living workers, each with its slot, and the highest worker id and the last
        generation that it has heard of; 0 if there is none.
        """
        self._inbox.put(_Living(host, dict(workers), last_worker, generation))

    def process_ended(self, worker: int, exit_code: int, cause: str = "") -> None:
        """Says that a worker's process is over.

        The exit code is 128 + signal if a signal has ended it; negative if it was not started,
        because its launcher ends. The cause is the exception that ended it; "" if none is known.
        """
        self._inbox.put(self._core.ProcessEnd(worker, exit_code, cause))

    @property
    def record(self) -> Record:
        """The generation that was proposed last; number 0 before the first."""
        return record_of(self._machine.record)

    @property
    def phase(self) -> str:
        """How the job stands: "gathering" until there are enough, "forming", "running", "over"."""
        return str(self._machine.phase.name)

    @property
    def waiting(self) -> list[int]:
        """The ids of the workers that wait to be taken in."""
        inside = {member.worker for member in self.record.members}
        waits = self._core.WorkerState.waiting
        stands = self._stands.copy().items()
        return sorted(one for one, (state, *_) in stands if state == waits and one not in inside)

    def end(self) -> None:
        """Begins to end the service, and does not wait for its thread."""
        self._closing = True
        self._inbox.put(None)

    def close(self) -> None:
        """Ends the service; workers that do not train leave when nobody answers."""
        self.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    # All below runs in the thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except Exception as error:
            _log.exception("the coordinator of the job failed")
            self._end(_FAILED, f"the job's coordinator failed: {error}")
        if self._watch is not None:
            self._watch.close()

    def _turn(self) -> None:
        """Waits until there is something to do, and does it."""
        self._watch_reports()
        events = self._core.CoordinatorEvents()
        is_news = self._take_inbox(events)
        is_news |= self._take_reports(events)
        is_over = self._machine.phase == self._core.Phase.over
        if not is_news and not is_over and time.monotonic_ns() < self._machine.next_deadline():
            return
        events.reports = [*self._signs_of_life.values(), *events.reports]
        self._signs_of_life.clear()
        events.random = secrets.randbits(64)
        self._apply(self._machine.step(time.monotonic_ns(), events))
        self._delete_keys()

    def _take_inbox(self, events: Any) -> bool:
        """Waits for what others say, or until it is time; returns whether that is news."""
        deadline = self._machine.next_deadline()
        times = [] if deadline == self._core.NEVER else [deadline / 1e9]
        times += [] if self._watch is not None else [self._watch_again_at]
        limit = max(0.0, min(times) - time.monotonic()) if times else None
        ends: list[Any] = []
        living: list[Any] = []
        try:
            item = self._inbox.get(timeout=limit)
            while True:
                if isinstance(item, list):
                    self._hosts = item
                    events.hosts = [self._core.HostSlots(*host) for host in item]
                elif isinstance(item, _Living):
                    living += self._take_living(item, events)
                elif item is not None:
                    ends.append(item)
                    self._over_with(item.worker)
                item = self._inbox.get_nowait()
        except queue.Empty:
            events.ends, events.living = ends, living
        return bool(ends or living or events.last_worker) or events.hosts is not None

    def _take_living(self, said: _Living, events: Any) -> list[Any]:
        self._started.update(said.workers)
        events.last_worker = max(events.last_worker, said.last_worker)
        events.last_generation = max(events.last_generation, said.generation)
        living = self._core.LivingProcess
        return [living(worker, said.host, slot) for worker, slot in said.workers.items()]

    def _watch_reports(self) -> None:
        if self._watch is not None or time.monotonic() < self._watch_again_at:
            return
        self._watch_again_at = time.monotonic() + _STORE_SECONDS
        try:
            self._watch = self._store.watch(keys.REPORTS, timeout=_STORE_SECONDS)
        except StoreError as error:
            if not self._deaf:
                _log.warning("the coordinator cannot hear the workers: %s", error)
            self._deaf = True
            return
        self._deaf = False
        self._watch.on_ready(lambda: self._inbox.put(None))

    def _take_reports(self, events: Any) -> bool:
        """Adds the reports that say something new; returns whether there are any."""
        reports = []
        cut_off: set[int] = set()
        try:
            while self._watch is not None and (change := self._watch.take()) is not None:
                report = self._report(change.key, change.value, events, cut_off)
                if report is not None:
                    reports.append(report)
        except StoreError as error:  # another watch says again what this one would have said
            _log.debug("the coordinator does not hear the workers: %s", error)
            self._watch = None
        events.reports, events.cut_off = reports, list(cut_off)
        return bool(reports or cut_off or events.ends)

    def _report(self, key: str, message: bytes | None, events: Any, cut_off: set[int]) -> Any:
        """Returns the report in a key; None if there is none, or nothing new."""
        if key == keys.RUNS:
            self.recovers = True
            return None
        worker = keys.reporter(key)
        try:
            if worker is None:
                raise ValueError("its key names no worker")
            if not message:
                self._gone(worker, message is not None, events, cut_off)
                return None
            report = self._core.decode_report(message)
            if report.worker != worker:
                raise ValueError(f"it is from worker {report.worker}")
        except (ValueError, _native.core.CoreError) as error:
            if key not in self._refused:
                self._refused.add(key)
                self._guarded(
                    self._on_note,
                    f'the report in the key "{key}" of the job\'s store was refused: {error}. Does '
                    "that process run the same version of tfring?",
                )
            return None
        self._refused.discard(key)
        cut_off.discard(report.worker)
        # Also if the key of RUNS was lost with another coordinator and its store.
        self.recovers |= report.state == self._core.WorkerState.running
        stands = _standing(report)
        if self._stands.get(worker) == stands:
            self._signs_of_life[worker] = report
            return None
        self._stands[worker] = stands
        self._signs_of_life.pop(worker, None)
        return report

    def _gone(self, worker: int, closed: bool, events: Any, cut_off: set[int]) -> None:
        """Handles the end of a worker's link, or of its connection."""
        if worker in self._over:
            return
        self._stands.pop(worker, None)
        if closed and worker not in self._started:
            # If we have ordered its start, its launcher tells more of its end.
            events.ends = [*events.ends, self._core.ProcessEnd(worker, 0)]
            self._over_with(worker)
        else:
            self._to_delete += [keys.answer_key(worker), keys.order_key(worker)]
            if not closed:
                cut_off.add(worker)

    def _over_with(self, worker: int) -> None:
        self._over.add(worker)
        self._stands.pop(worker, None)
        of_worker = (keys.report_key(worker), keys.answer_key(worker), keys.order_key(worker))
        self._to_delete += of_worker

    def _delete_keys(self) -> None:
        """Deletes keys that have no reader any more, after the answers that workers wait for."""
        names, self._to_delete = self._to_delete, []
        try:
            for name in names:
                self._store.delete_key(name, timeout=_STORE_SECONDS)
        except StoreError as error:
            _log.debug("the coordinator left keys in the store: %s", error)

    def _apply(self, effects: Any) -> None:
        self._send(effects.commands)
        for worker in effects.kills:
            self._guarded(self._on_kill, worker)
        for start in effects.starts:
            self._start(start)
        for note in effects.notes:
            self._guarded(self._on_note, note)
        if effects.end is not None:
            self._end(effects.end.code, effects.end.reason)

    def _end(self, code: int, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._guarded(self._on_end, code, reason)

    def _start(self, start: Any) -> None:
        self._started.add(start.worker)
        try:
            self._on_start(start.worker, start.host, start.slot)
        except Exception as error:
            _log.exception("worker %d could not be started on host %s", start.worker, start.host)
            self.process_ended(start.worker, _FAILED, f"it could not be started: {error}")

    def _send(self, commands: Sequence[tuple[int, Any]]) -> None:
        newest: dict[str, bytes] = {}
        for worker, command in commands:
            if worker in self._over:
                continue
            answer = command.kind == self._core.CommandKind.answer
            key = keys.answer_key(worker) if answer else keys.order_key(worker)
            newest[key] = self._core.encode_command(command)
        if not newest:
            return
        # Orders first: workers wait for them.
        names = sorted(newest, key=lambda key: key.endswith("answer"))
        try:
            self._store.multi_set(names, [newest[key] for key in names], timeout=_STORE_SECONDS)
        except StoreError as error:
            _log.warning("commands of the coordinator were lost: %s", error)

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception:
            _log.exception("what the coordinator wanted done failed")


def _standing(report: Any) -> tuple[Any, ...]:
    """Returns the part of a report that others may wait for; the rest grows during training."""
    return (
        report.state,
        report.generation,
        report.boundary,
        report.done,
        report.leaving,
        report.announced,
        report.suspect,
        report.host,
        report.slot,
    )
