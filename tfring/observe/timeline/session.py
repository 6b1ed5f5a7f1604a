"""Starts and stops the timeline of this process, and makes the file at its end.

While it is on, a thread of each rank copies its own record into a spool beside the file. At the end
the first rank of a host waits for the others' spools and makes the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from tfring.observe.recorder.own import own_path
from tfring.observe.recorder.reader import read_header
from tfring.observe.timeline.merge import find_target, make_file, remove_spools_above
from tfring.observe.timeline.phases import PhaseSource
from tfring.observe.timeline.spool import SpoolWriter, spool_path
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
    """A timeline that is on.

    Raises:
        OSError: The spool cannot be written, or the record not be read.
    """

    def __init__(self, path: Path, here: _Here, record: Path) -> None:
        self.path = path
        self.phases = PhaseSource()
        self._header, self._first_of_host = read_header(record), here.local_rank == 0
        self._spool = spool_path(path, here.rank)
        replaced_file(path)  # by rank 0; the others would leave spools that nobody removes
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._first_of_host:
            replaced_file(find_target(path, here.rank)).unlink(missing_ok=True)
        if here.rank == 0:
            remove_spools_above(path, self._header["size"])
        self._writer = SpoolWriter(record, self._spool, here.megabytes, self.phases)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfring-timeline", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends copying; the spool has everything then."""
        self._end.set()
        self._thread.join()

    def make_file(self) -> None:
        """Makes the file, if this is the first rank of its host; that may take seconds."""
        if self._first_of_host:
            make_file(self.path, self._header)

    def _run(self) -> None:
        try:
            while not self._end.wait(_INTERVAL):
                self._writer.take()
            self._writer.take()
        except OSError as error:
            _log.warning("the timeline of this rank, %s, ends early: %s", self._spool, error)
        with contextlib.suppress(OSError):
            self._writer.close()


class _State:
    """The timeline of this process. Written under _lock."""

    here: _Here | None = None  # between init and shutdown
    session: _Session | None = None
    ended: tuple[_Session, ...] = ()  # by shutdown; their files are not complete yet


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
    if any(one.path == path for one in _state.ended):
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
    session = _end_session()
    if session is not None:
        session.make_file()


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


def detach(*, write: bool) -> None:
    """Ends the timeline if one is on: this process is no rank any more.

    With `write`, `make_files` makes its file.
    """
    with _lock:
        _state.here = None
    session = _end_session()
    if session is not None and write:
        with _lock:
            _state.ended += (session,)


def make_files() -> None:
    """Makes the files of timelines that `detach` has ended, which may take seconds."""
    with _files:
        for session in _state.ended:
            try:
                session.make_file()
            except (OSError, ValueError) as error:
                _log.warning("the timeline could not be written: %s", error)
            finally:
                with _lock:
                    _state.ended = tuple(one for one in _state.ended if one is not session)


def _end_session() -> _Session | None:
    with _lock:
        session, _state.session = _state.session, None
    if session is not None:
        session.end()
    return session
