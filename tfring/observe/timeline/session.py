"""Starts and stops the timeline of this process, and makes the file at its end.

While it is on, a thread of each rank copies its own record into a spool beside the file. At the end
the first rank of a host waits for the others' spools and makes the file.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfring.observe.recorder.own import own_path
from tfring.observe.recorder.reader import read_header
from tfring.observe.timeline.drain import Drain
from tfring.observe.timeline.merge import find_target, make_file, remove_spools_above
from tfring.observe.timeline.phases import PhaseSource
from tfring.observe.timeline.spool import IDENTITY, SpoolWriter, spool_path
from tfring.observe.timeline.trace import replaced_file

_log = logging.getLogger("tfring")

# In seconds. The record keeps some thousand entries, and no job fills it in this time.
_INTERVAL = 0.2


@dataclass(frozen=True)
class _Here:
    """This process's rank, and the largest size of its spool."""

    rank: int
    local_rank: int
    megabytes: int


class _Session:
    """A timeline that is on."""

    def __init__(self, path: Path, here: _Here, record: Path) -> None:
        """Begins to copy.

        Raises:
            OSError: The spool cannot be written, or the record not be read.
        """
        self.path, self.rank, self.first_of_host = path, here.rank, here.local_rank == 0
        header = read_header(record)
        self.facts: dict[str, Any] = {name: header[name] for name in IDENTITY}
        self.facts |= {"record": str(record), "rank": self.rank}
        self.facts["began"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        replaced_file(path)  # by rank 0; the others would leave spools that nobody removes
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.first_of_host:
            replaced_file(find_target(path, self.rank)).unlink(missing_ok=True)
        if self.rank == 0:
            remove_spools_above(path, header["size"])
        limit = here.megabytes << 20
        self._writer = SpoolWriter(spool_path(path, self.rank), limit, self.facts)
        self.phases = PhaseSource()
        self._drain = Drain(record, self._writer, self.phases)
        self._drain.take()  # from here on what is there can be read after a crash
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfring-timeline", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends copying; the spool has everything then."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._end.wait(_INTERVAL):
                self._drain.take()
            self._drain.take_all()
            self._writer.close(done=True)
        except OSError as error:
            self._writer.give_up()
            path = self._writer.path
            _log.warning("the timeline of rank %d, %s, ends early: %s", self.rank, path, error)


class _State:
    """The timeline of this process. Written under _lock."""

    here: _Here | None = None  # between init and shutdown
    session: _Session | None = None
    ended: tuple[_Session, ...] = ()  # their files are not complete yet


_lock = threading.Lock()
_files = threading.Lock()  # held while the files of ended ones are made; taken before _lock
_state = _State()


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begins to record a timeline of this rank; see `tfring help timeline`.

    Each rank whose calls you want in the file calls it, with the same name. The file lacks calls
    that ended before.

    Args:
        file_path: The file for Perfetto, which is there after `stop_timeline` or `shutdown`;
            compressed if its name ends in .gz. On hosts without rank 0 the host's name is added to
            it.
        mark_cycles: Horovod's; it has no effect, because there are no cycles.

    Raises:
        ValueError: `init` was not called, or a timeline is on.
        RuntimeError: This rank keeps no record (TFRING_RECORD=0).
        OSError: The folder cannot be written.
    """
    del mark_cycles
    path = Path(os.path.abspath(os.fspath(file_path)))
    with _lock:
        waits = any(one.path == path for one in _state.ended)
    if waits:
        make_files()  # of the one before, by the same name
    with _lock:
        if _state.here is None:
            raise ValueError("call init() before start_timeline()")
        if _state.session is not None:
            raise ValueError(
                f"a timeline to {_state.session.path} is on already: call stop_timeline() first"
            )
        record = own_path()
        if record is None:
            raise RuntimeError(
                "a timeline needs the rank's record in a file: unset TFRING_RECORD, or set "
                "TFRING_RECORD_DIR to a folder that you can write"
            )
        _state.session = _Session(path, _state.here, record)


def stop_timeline() -> None:
    """Ends the timeline, if one is on. The first rank of a host then makes the file.

    That may take seconds.

    Raises:
        OSError: The file cannot be written.
    """
    _end_session()
    for error in _make_files():
        raise error


def attach(rank: int, local_rank: int, megabytes: int, timeline: str | None) -> None:
    """Notes that this process became a rank; starts the timeline that the environment asks for.

    Args:
        rank: Its rank.
        local_rank: Its number on its host.
        megabytes: The largest size of its spool.
        timeline: TFRING_TIMELINE; None: the program may call `start_timeline`.
    """
    with _lock:
        _state.here = _Here(rank, local_rank, megabytes)
    if timeline is None:
        return
    try:
        start_timeline(timeline)
    except (OSError, RuntimeError) as error:
        _log.warning("rank %d has no timeline: %s", rank, error)


def phases() -> PhaseSource | None:
    """Returns where `fit` notes what it does, while a timeline is on; else None."""
    session = _state.session
    return None if session is None else session.phases


def detach() -> None:
    """Ends the timeline if one is on, without its file: this process is no rank any more."""
    with _lock:
        _state.here = None
    _end_session()


def make_files() -> None:
    """Makes the files of timelines that have ended, which may take seconds. Never raises."""
    for error in _make_files():
        _log.warning("the timeline could not be written: %s", error)


def _end_session() -> None:
    with _lock:
        session, _state.session = _state.session, None
        if session is None:
            return
        _state.ended += (session,)
    session.end()


def _make_files() -> list[Exception]:
    """Makes the files of timelines that have ended; returns the errors."""
    errors: list[Exception] = []
    with _files:
        for session in _state.ended:
            try:
                if session.first_of_host:
                    make_file(session.path, session.rank, session.facts)
            except (OSError, ValueError) as error:
                errors.append(error)
            finally:
                with _lock:
                    _state.ended = tuple(one for one in _state.ended if one is not session)
    return errors
