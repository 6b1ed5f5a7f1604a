"""This process as a worker of an elastic job: its link to the coordinator, and how it joins.

The coordinator says who is in a generation; the bootstrap then connects these processes as it does
those of any job. Whatever fails meanwhile has one way on: the generation is over, say so, and take
the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from tfring.elastic import keys
from tfring.elastic.errors import Dismissed, GenerationEnded
from tfring.elastic.link import WorkerLink
from tfring.elastic.records import Position, Record
from tfring.job.bootstrap.cancel import Cancel
from tfring.job.environments import Identity, Rendezvous
from tfring.job.environments.elastic import ElasticWorker
from tfring.job.handshake.errors import BootstrapError, UnreachableError
from tfring.job.security.errors import SecretError
from tfring.job.store import (
    PrefixStore,
    Store,
    StoreConnectionError,
    StoreError,
    StoreTimeoutError,
    TCPStore,
    Timeout,
)
from tfring.job.store.tcp_store import DEFAULT_LEASE
from tfring.runtime import _native
from tfring.runtime.settings.environment import Settings

_log = logging.getLogger("tfring")

# What makes a generation that was being formed fail, and may be gone in the next one.
_MAY_PASS = (BootstrapError, StoreError, OSError)
# How long connecting may take: less than the coordinator waits for it, so that it hears who could
# not reach whom.
CONNECT_SECONDS = 10.0
# A worker gives up after this many generations in a row that it could not form, though the
# coordinator had ended none: such a fault does not pass. A host has another version, say.
_MOST_FAILURES = 3
_ANSWER_SECONDS = 1.0
# So long a generation may have to wait before it may publish: members of the one before may still
# be allowed to, for a lease of the coordinator's.
_PUBLISH_SECONDS = 6.0
# The coordinator hears that a worker's connection has ended when it has not come again for so long.
_CUT_OFF_SECONDS = 0.2
_LOOK_SECONDS = 0.02
_WAIT_SECONDS = 60.0
# How often ranks give signs of life, and how long one may give none. The control threads of their
# runtimes do it, whatever Python does.
_HEARTBEATS = {"HEARTBEAT_SECONDS": "1", "HEARTBEAT_TIMEOUT_SECONDS": "5"}

Begin = Callable[[Identity, Store, Cancel], None]


def with_heartbeats(settings: Settings) -> Settings:
    """Makes ranks notice sooner than in other jobs that one of them stands still.

    What the environment sets stays as it is. A longer interval than ours makes the limit longer,
    too.
    """
    ours = dict(_HEARTBEATS)
    if given := settings.runtime.get("HEARTBEAT_SECONDS"):
        ours["HEARTBEAT_TIMEOUT_SECONDS"] = str(5 * max(1.0, float(given)))
    return dataclasses.replace(settings, runtime={**ours, **settings.runtime})


class ElasticProcess:
    """A worker of an elastic job, from the first init to the end of the process.

    The program's thread joins and stops; the link's thread ends what the coordinator wants ended.
    """

    def __init__(self, worker: ElasticWorker, begin: Begin, abandon: Callable[..., None]) -> None:
        """Connects to the store of the job. The coordinator hears nothing of it yet.

        `begin` connects with the ranks of a generation and starts the runtime. `abandon` ends the
        runtime's present generation at once, from any thread; its argument says why. With
        `wait=False` it does not wait for an init that is under way. StoreError: the store cannot be
        reached.
        """
        self.worker = worker
        self.position = Position()  # of what a restore gives; `stopped` says it
        self.record: Record | None = None  # the last generation that this process was in
        self.runs = False  # whether the program is in elastic.run
        self.reset_ended = 0  # the last generation that has been through its reset callbacks
        self.over = False  # whether elastic.run has come to its end, with which the job has
        self._pid = os.getpid()
        self._begin, self.abandon = begin, abandon
        self._lock = threading.Lock()  # guards the next
        self._cancel = Cancel()  # of the generation that is formed
        self._left = 0  # the last generation that the program has left by a shutdown
        self._ready = False
        self._failures = 0  # in a row; of the program's thread
        # What the records of the bootstrap go through; of the program's thread.
        self._records: TCPStore | None = None
        self._store = self._connect(lease=_CUT_OFF_SECONDS)
        self.link = WorkerLink(
            self._store,
            worker.worker,
            worker.host,
            worker.slot,
            on_abandon=self._on_abandon,
            options=_link_options(worker.patience),
        )

    @property
    def is_here(self) -> bool:
        """Whether this is the process itself, and no child that was forked from it."""
        return self._pid == os.getpid()

    @property
    def generation(self) -> int:
        """The number of the last generation that this process was in; 0 before the first."""
        return 0 if self.record is None else self.record.generation

    @property
    def in_generation(self) -> bool:
        """Whether this process is in a generation that has not ended."""
        return self.link.ended < self.generation and self.link.dismissed is None

    @property
    def left(self) -> bool:
        """Whether the program itself has left the last generation, by a shutdown."""
        return 0 < self.generation == self._left

    def may_publish(self, generation: int) -> bool:
        """Whether what was saved in a generation may appear: it is the present one, and we in it.

        Waits for the coordinator's answer, which a generation lacks at first; not if that is away.
        """
        until = time.monotonic() + _PUBLISH_SECONDS
        while generation == self.generation and self.in_generation:
            if self.link.may_publish():
                return True
            if self.link.silent or time.monotonic() >= until:
                break
            time.sleep(_LOOK_SECONDS)
        return False

    def left_by_program(self) -> None:
        """The program has shut the runtime down. The coordinator hears nothing of it yet."""
        self._left = self.generation

    def wait_for_recovery(self) -> None:
        """Waits until a worker has come to elastic.run: others have no use for one that comes late.

        StoreError: the store is gone, and the job with it.
        """
        while True:
            try:
                PrefixStore(keys.PREFIX, self._store).wait([keys.RUNS], _WAIT_SECONDS)
                return
            except StoreTimeoutError:
                pass
            except StoreConnectionError:
                if not self.worker.patience:  # else the launcher says when that is too long
                    raise
                time.sleep(_ANSWER_SECONDS)

    def ready(self) -> None:
        """Lets the coordinator know that this process can be taken into a generation."""
        if not self._ready:
            self._ready = True
            self.link.ready()

    def join(
        self,
        waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> Record:
        """Waits for the next generation, leaves the present one, and begins that.

        While it waits it does what `waiting` says; that is over before this process connects.
        Returns the generation, whose members are all connected. Dismissed: this process has to
        leave the job.
        """
        while True:
            with waiting():
                self.ready()
                record = self.link.next_record()
            self.abandon(f"generation {record.generation} of the job follows")
            if self._form(record):
                self.record, self._failures = record, 0
                return record

    def failed(self, suspect_worker: int = 0) -> None:
        """Says that the present generation is over. For the suspect see `WorkerLink.failed`."""
        self.link.failed(self.generation, suspect_worker)

    def stopped(self, *, boundary: bool = False, done: bool = False) -> None:
        """Says that no step of this generation is applied any more: see `WorkerLink.stopped`."""
        self.link.stopped(self.generation, self.position, boundary=boundary, done=done)

    def leave_if_dismissed(self) -> None:
        """Raises SystemExit if this process has to leave the job."""
        if self.link.dismissed is not None:
            self.leave(self.link.dismissed)

    def leave(self, dismissed: Dismissed) -> NoReturn:
        """Ends the process by SystemExit with the code that the coordinator has told.

        A SIGTERM that comes from now on asks for what happens already. Python gives a signal its
        default action back while the process ends, and the exit code would be that of a kill.
        """
        if dismissed.code != 0:
            _log.warning("worker %d leaves the job: %s", self.worker.worker, dismissed.reason)
        handled = callable(signal.getsignal(signal.SIGTERM))
        if handled and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(dismissed.code)

    def finish(self) -> None:
        """At the end of a process without an error: ends the link.

        After an error the link is left as it is: signs of life go on until the process is over.
        """
        self.link.close()
        self._close_records()
        self._store.close()

    def _form(self, record: Record) -> bool:
        """Connects with the members of a generation; returns whether that has begun."""
        cancel, suspect = self._cancel_of(record.generation), 0
        try:
            name = f"generation/{record.generation}-{record.nonce:016x}"
            records = self._store_of_records()
            store = _RecordsStore(name, records)
            # The link's thread, which gives signs of life, waits for no goodbye of a server.
            with cancel.runs(records.cut):
                self._begin(self._identity(record), store, cancel)
            self.link.connected(record.generation)
            self.link.wait_go(record.generation)
            threading.Thread(target=store.delete_all, daemon=True).start()
            return True
        except GenerationEnded:
            pass
        except _MAY_PASS as error:
            if isinstance(error, UnreachableError) and error.rank < len(record.members):
                suspect = record.members[error.rank].worker
            if not cancel.is_set():
                self._count_failure(record, error)
        except BaseException:
            self._give_up(record)
            raise
        self._give_up(record, suspect)
        return False

    def _give_up(self, record: Record, suspect_worker: int = 0) -> None:
        self.abandon(f"generation {record.generation} could not be formed")
        self.link.failed(record.generation, suspect_worker)
        self.link.stopped(record.generation, self.position)
        if self._cancel.is_set():
            self._close_records()  # it was cut, most likely

    def _count_failure(self, record: Record, error: Exception) -> None:
        self._failures += not isinstance(error, StoreConnectionError)
        _log.warning(
            "worker %d could not connect with the other %d of generation %d: %s",
            self.worker.worker,
            len(record.members) - 1,
            record.generation,
            error,
        )
        if isinstance(error, SecretError) or self._failures >= _MOST_FAILURES:
            self._give_up(record)
            raise error

    def _identity(self, record: Record) -> Identity:
        size = len(record.members)
        return Identity(
            source=f"generation {record.generation} of the elastic job",
            rank=record.rank_of(self.worker.worker),
            size=size,
            rendezvous=Rendezvous.STORE if size > 1 else Rendezvous.NONE,
        )

    def _cancel_of(self, generation: int) -> Cancel:
        with self._lock:
            self._cancel = Cancel()
        if self.link.ended >= generation:  # before this thread has come here
            self._cancel.set()
        return self._cancel

    def _on_abandon(self, generation: int) -> None:
        """In the link's thread: the coordinator has ended a generation, or we have."""
        with self._lock:
            cancel = self._cancel
        cancel.set()
        self.abandon(f"generation {generation} of the job is over", wait=False)

    def _store_of_records(self) -> TCPStore:
        """A connection of its own for the records of the bootstrap, which cancelling closes."""
        if self._records is None:
            self._records = self._connect()
        return self._records

    def _close_records(self) -> None:
        records, self._records = self._records, None
        if records is not None:
            records.close()

    def _connect(self, lease: float = DEFAULT_LEASE) -> TCPStore:
        where = self.worker.store_host, self.worker.store_port
        return TCPStore(*where, lease=lease, may_restart=True)


def _link_options(patience: float) -> Any:
    options = _native.core.membership.WorkerOptions()
    if patience:
        options.patience = int(patience * 1e9)
    return options


_started: ElasticProcess | None = None


def start(worker: ElasticWorker, begin: Begin, abandon: Callable[..., None]) -> ElasticProcess:
    """Makes this process a worker of an elastic job, once; see `ElasticProcess`."""
    global _started
    _started = _started or ElasticProcess(worker, begin, abandon)
    return _started


def started() -> ElasticProcess | None:
    """Returns this process as a worker of an elastic job; None before init and in other jobs."""
    return _started if _started is not None and _started.is_here else None


def present() -> ElasticProcess | None:
    """Returns what `started` does; None also when `tfring.elastic.run` has come to its end."""
    process = started()
    return None if process is None or process.over else process


class _RecordsStore(PrefixStore):
    """The store of a generation's records. What nobody needs any more is deleted at the end.

    Rank 0 deletes a few keys of each rank, one after the other, and all ranks wait for rank 0.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__(prefix, store)
        self._old: list[str] = []

    def delete_key(self, key: str, timeout: Timeout | None = None) -> bool:
        self._old.append(key)
        return True

    def delete_all(self) -> None:
        """Deletes them, when the generation has begun."""
        with contextlib.suppress(StoreError):
            for key in self._old:
                super().delete_key(key)
