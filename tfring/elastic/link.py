"""A worker's end of the connection to the coordinator of its elastic job."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from tfring.elastic import keys
from tfring.elastic.errors import Dismissed, GenerationEnded
from tfring.elastic.records import Position, Record, record_of
from tfring.job.store import PrefixStore, Store, StoreError, Watch
from tfring.runtime import _native

_log = logging.getLogger("tfring")

# How long the store may take for one request. The next beat says again what was lost.
_STORE_SECONDS = 1.0
_CLOSE_SECONDS = 10.0
# A coordinator is away if it has answered none of this many reports in this time.
_SILENT_SECONDS, _SILENT_REPORTS = 10.0, 5


class WorkerLink:
    """Tells the coordinator how this worker stands, and hears from it who is in which generation.

    It runs the state machine of ops/runtime/membership/worker.h in one thread, which sleeps until
    the program or the coordinator says something, or it is time for a sign of life. All methods may
    be called from any thread. A store that is away for a while changes nothing.

    Messages lie in a store, whose clients all know the same secret: what one of them writes in the
    name of another worker cannot be told apart.
    """

    def __init__(
        self,
        store: Store,
        worker: int,
        host: str,
        slot: int,
        *,
        on_abandon: Callable[[int], None],
        options: Any = None,
    ) -> None:
        """Starts the thread; the coordinator hears nothing before ready().

        The store stays the caller's, and is closed after the link. `on_abandon` is called in the
        link's thread with the number of a generation that has ended: it makes every call of that
        generation end, and returns soon. `options` are a `core.membership.WorkerOptions` with other
        times.
        """
        if worker <= 0 or slot < 0:
            raise ValueError(f"worker {worker} in slot {slot}: ids begin with 1, slots with 0")
        self._core = _native.core.membership
        options = options or self._core.WorkerOptions()
        options.worker, options.host, options.slot = worker, host, slot
        self._machine = self._core.Worker(options)
        self._store = PrefixStore(keys.PREFIX, store)
        self._worker = worker
        self._on_abandon = on_abandon
        # Only the link's thread uses these.
        self._watches: list[Watch] = []  # of orders, which wake it, and of answers, which can wait
        self._watch_again_at = 0.0
        self._watched = False  # whether watches were ever set up
        # Whether they were set up again, perhaps with another coordinator, and the machine has not
        # been told.
        self._attached = False
        self._told_of_recovery = False  # whether keys.RUNS was set since they were set up
        self._heard_at = time.monotonic()
        self._unanswered = 0  # reports since then
        self._answered = 0  # the sequence number of the last answer
        # Only the link's thread writes these; all threads read them.
        self._silent = False
        self._trains = 0
        # All threads use these. Events for the machine; None wakes the link's thread.
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closing = False
        # Guards all below, and the order of what is put into the inbox.
        self._condition = threading.Condition()
        # The program writes these, and the link's thread reads them.
        self._recovers = False
        self._newest: Any = None  # an event with the newest commit and step, not put in yet
        self._stopped = (Position(), False)  # where the program has stopped last, and if done
        # The link's thread writes these, and the program reads them; it takes the record.
        self._record: Record | None = None  # to be connected, and not taken yet
        self._ready_to_go = 0  # the last generation whose members were all connected
        self._ended = 0  # see `ended`
        self._change_pending = False
        self._dismissed: Dismissed | None = None
        self._thread = threading.Thread(target=self._run, name="tfring membership", daemon=True)
        self._thread.start()

    # What the program says.

    def ready(self) -> None:
        """The program has built its model: the coordinator may hear of this worker."""
        self._put(ready=True)

    def recovers(self) -> None:
        """The program has come to elastic.run: no coordinator has all workers start again."""
        with self._condition:
            self._recovers = True
            self._inbox.put(None)

    def connected(self, generation: int) -> None:
        """This worker is connected with all members of a generation."""
        self._put(connected=generation)

    def synced(self, generation: int, position: Position) -> None:
        """This worker has the state of the root, and trains from now on."""
        self._put(synced=self._core.WorkerEvents.Synced(generation, self._position(position)))

    def committed(self, position: Position) -> None:
        """This worker has committed; the coordinator hears of it with the next beat."""
        made = self._position(position)
        with self._condition:
            self._newest = self._newest or self._core.WorkerEvents()
            self._newest.committed = made

    def step(self, number: int) -> None:
        """This worker has done a step; the coordinator hears of it with the next beat.

        The number counts all steps done so far, those after the last commit too.
        """
        with self._condition:
            self._newest = self._newest or self._core.WorkerEvents()
            self._newest.step = number

    def failed(self, generation: int, suspect_worker: int = 0) -> None:
        """A collective has failed, or connecting, or taking the state: the generation is over.

        The suspect is the worker that seems to be to blame; 0: none. This one: it goes back by its
        own wish, and others that lose it do not take it for out of reach.
        """
        self._put(failed=self._core.WorkerEvents.Failure(generation, suspect_worker))

    def stopped(
        self, generation: int, position: Position, *, boundary: bool = False, done: bool = False
    ) -> None:
        """No step of this generation is applied here any more. Follows `failed` or `on_abandon`.

        The position is that of the state that a restore gives. At a `boundary` all members have
        stopped at this commit because a change was pending. When it is `done`, the training is
        over.
        """
        stopped = self._core.WorkerEvents.Stopped
        event = stopped(generation, self._position(position), boundary, done)
        with self._condition:
            self._stopped = (position, done)
            self._put(stopped=event)

    def leave(self) -> None:
        """This worker wants to leave after the next commit. Handlers of signals may call it."""
        self._put(leave=True)

    # What the program asks.

    def next_record(self) -> Record:
        """Waits for a generation to connect with, and returns it; or raises Dismissed."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._record is not None or self._dismissed is not None
            )
            if self._dismissed is not None:
                raise self._dismissed
            record, self._record = self._record, None
            assert record is not None
            return record

    def wait_go(self, generation: int) -> None:
        """Waits until all members of a generation are connected.

        GenerationEnded: it has ended. Dismissed: this worker has to leave.
        """
        with self._condition:
            self._condition.wait_for(
                lambda: (
                    self._dismissed is not None
                    or self._ended >= generation
                    or self._ready_to_go >= generation
                )
            )
            if self._dismissed is not None:
                raise self._dismissed
            if self._ended >= generation:
                raise GenerationEnded(generation)

    @property
    def change_pending(self) -> bool:
        """Whether members shall stop at the next commit; only rank 0 hears of it."""
        return self._change_pending

    @property
    def dismissed(self) -> Dismissed | None:
        """Why this worker has to leave; None if it has not."""
        return self._dismissed

    @property
    def ended(self) -> int:
        """The last generation that has ended, by the coordinator's or this worker's word."""
        return self._ended

    @property
    def generation(self) -> int:
        """The generation that trains now, as the coordinator's last answer says; 0: none."""
        return self._trains

    @property
    def silent(self) -> bool:
        """Whether the coordinator has answered nothing for 10 s."""
        return self._silent

    def may_publish(self) -> bool:
        """Whether the results of this generation may be published.

        No newer generation exists then, nor will one while the coordinator's last answer holds.
        """
        return bool(self._machine.may_publish(time.monotonic_ns()))

    def close(self) -> None:
        """Ends the link. What waits, and will wait, gets `Dismissed`."""
        self._closing = True
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def _put(self, **fields: Any) -> None:
        events = self._core.WorkerEvents()
        for name, value in fields.items():
            setattr(events, name, value)
        with self._condition:
            self._put_newest()
            self._inbox.put(events)

    def _put_newest(self) -> None:
        if self._newest is not None:
            self._inbox.put(self._newest)
            self._newest = None

    def _position(self, position: Position) -> Any:
        return self._core.Position(position.commit, position.step)

    # All below runs in the link's thread, which alone writes to the store.

    def _run(self) -> None:
        try:
            while not self._closing and self._dismissed is None:
                self._turn()
        except Exception as error:
            _log.exception("the membership of worker %d failed", self._worker)
            self._dismiss(self._core.EXIT_TRY_AGAIN, f"its membership failed: {error}")
        self._say_goodbye()
        self._dismiss(self._core.EXIT_TRY_AGAIN, "its link to the coordinator was closed")

    def _turn(self) -> None:
        """Waits until there is something to do, and does it."""
        self._watch_commands()
        self._tell_of_recovery()
        events = self._wait()
        events[0].commands = self._take_commands()
        events[0].attached, self._attached = self._attached, False
        report = None
        for event in events:
            effects = self._machine.step(time.monotonic_ns(), event)
            report = effects.reports[-1] if effects.reports else report
            self._apply(effects)
            if effects.exit is not None:
                return
        if report is not None:
            self._send(report)

    def _wait(self) -> list[Any]:
        """Waits until there are events, or it is time; returns those for the machine, in order."""
        deadline = self._machine.next_deadline()
        limit = None if deadline == self._core.NEVER else deadline / 1e9 - time.monotonic()
        if not self._watches:
            again = self._watch_again_at - time.monotonic()
            limit = again if limit is None else min(limit, again)
        found: list[Any] = [self._core.WorkerEvents()]
        with contextlib.suppress(queue.Empty):
            found.append(self._inbox.get(timeout=None if limit is None else max(0.0, limit)))
        with self._condition:
            self._put_newest()
            while not self._inbox.empty():
                found.append(self._inbox.get())
        return [event for event in found if event is not None]

    def _watch_commands(self) -> None:
        if self._watches or time.monotonic() < self._watch_again_at:
            return
        self._watch_again_at = time.monotonic() + _STORE_SECONDS
        try:
            for key in (keys.order_key(self._worker), keys.answer_key(self._worker)):
                self._watches.append(self._store.watch(key, timeout=_STORE_SECONDS))
        except StoreError as error:
            _log.debug("worker %d cannot hear the coordinator: %s", self._worker, error)
            self._end_watches()
            return
        self._attached, self._watched = self._watched, True
        self._told_of_recovery = False
        self._watches[0].on_ready(lambda: self._inbox.put(None))

    def _tell_of_recovery(self) -> None:
        with self._condition:
            tells = self._recovers and not self._told_of_recovery
        if not tells:
            return
        with contextlib.suppress(StoreError):  # else with the next beat
            self._store.set(keys.RUNS, b"", timeout=_STORE_SECONDS)
            self._told_of_recovery = True

    def _take_commands(self) -> list[Any]:
        messages, commands = [], []
        try:
            for watch in self._watches:
                while (change := watch.take()) is not None:
                    messages.append(change.value)
        except StoreError as error:  # other watches say again what these would have said
            _log.debug("worker %d does not hear the coordinator: %s", self._worker, error)
            self._end_watches()
        for message in messages:
            if message is None:
                continue
            try:
                commands.append(self._core.decode_command(message))
            except _native.core.CoreError as error:
                _log.warning("a command for worker %d was refused: %s", self._worker, error)
        for command in commands:
            if command.kind == self._core.CommandKind.answer and command.sequence > self._answered:
                self._answered, self._trains = command.sequence, command.generation
                self._heard_at, self._unanswered = time.monotonic(), 0
        long = time.monotonic() - self._heard_at > _SILENT_SECONDS
        self._silent = long and self._unanswered >= _SILENT_REPORTS
        return commands

    def _end_watches(self) -> None:
        for watch in self._watches:
            watch.close()
        self._watches = []

    def _apply(self, effects: Any) -> None:
        with self._condition:
            if effects.abandon is not None:
                self._end(effects.abandon)
            if effects.connect is not None:
                self._record = record_of(effects.connect)
                self._change_pending = False
            if effects.sync is not None:
                self._ready_to_go = effects.sync.generation
            if effects.announce_change:
                self._change_pending = True
            self._condition.notify_all()
        if effects.abandon is not None:
            try:
                self._on_abandon(effects.abandon)
            except Exception:
                _log.exception("generation %d could not be abandoned", effects.abandon)
        if effects.exit is not None:
            self._dismiss(effects.exit.code, effects.exit.reason)

    def _end(self, generation: int) -> None:
        self._ended = generation
        self._change_pending = False
        if self._record is not None and self._record.generation == generation:
            # The program has not heard of it, and is still where it was.
            self._record = None
            position, done = self._stopped
            stopped = self._core.WorkerEvents.Stopped
            self._put(stopped=stopped(generation, self._position(position), False, done))

    def _send(self, report: Any) -> None:
        message = self._core.encode_report(report)
        self._unanswered += 1
        try:
            self._store.set(
                keys.report_key(self._worker), message, ephemeral=True, timeout=_STORE_SECONDS
            )
        except StoreError as error:
            _log.debug("the coordinator does not hear worker %d: %s", self._worker, error)

    def _dismiss(self, code: int, reason: str) -> None:
        with self._condition:
            if self._dismissed is None:
                self._dismissed = Dismissed(code, reason)
            self._condition.notify_all()

    def _say_goodbye(self) -> None:
        """Takes this worker's keys out of the store, or tells the coordinator that it goes."""
        report = keys.report_key(self._worker)
        try:
            self._end_watches()
            if self._dismissed is None:
                self._store.set(report, keys.CLOSED, ephemeral=True, timeout=_STORE_SECONDS)
                return
            for key in (report, keys.answer_key(self._worker), keys.order_key(self._worker)):
                self._store.delete_key(key, timeout=_STORE_SECONDS)
        except StoreError as error:
            _log.debug("worker %d left keys in the store: %s", self._worker, error)
