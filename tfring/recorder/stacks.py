"""What every thread of a rank does at this moment, also while the rank hangs.

A rank registers a handler of SIGUSR1 at init: `faulthandler` writes the Python stacks of all
threads to a file beside the rank's record. The handler is C code that needs neither the
interpreter's lock nor memory, so it runs while another thread holds that lock, in a deadlock and
inside a collective. Another process of the same user sends the signal and reads what was appended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tfring.recorder.reader import Record, process_state

_SIGNAL = signal.SIGUSR1
_BIT = 1 << (_SIGNAL - 1)
# Stacks that were taken before are thrown away when the file is longer.
_MOST_BYTES = 1 << 20
_PAUSE = 0.01  # seconds between two looks at a rank that has been asked


class _State:
    """Written by init and shutdown, which take turns."""

    file: IO[bytes] | None = None  # which the handler writes to; None: there is no handler of ours


def stacks_file(record: Path | str) -> Path:
    """Returns where a rank's stacks go.

    Args:
        record: The file of its record.
    """
    return Path(record).with_suffix(".stacks")


def watch(record: str | None, wanted: bool) -> None:
    """Has this process write its stacks whenever SIGUSR1 comes.

    Does nothing if the program handles or ignores that signal already, or if there is no folder.
    The handler stays after shutdown: without one a signal that comes late would end the process.

    Args:
        record: The file of this rank's record; None: there is none.
        wanted: Whether the user wants this.
    """
    if record is None or not wanted:
        return
    if _State.file is None and (_mask("self", "SigCgt") | _mask("self", "SigIgn")) & _BIT:
        return
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        file = os.fdopen(os.open(stacks_file(record), flags, 0o600), "ab", buffering=0)
        faulthandler.register(_SIGNAL, file=file, all_threads=True, chain=False)
        _State.file = file


def unwatch(record: str | None) -> None:
    """Removes the file if nobody needs it: it is empty, or the record has been removed.

    Args:
        record: The file of this rank's record, which may be gone; None: there was none.
    """
    if record is None:
        return
    file = stacks_file(record)
    with contextlib.suppress(OSError):
        if file.stat().st_size == 0 or not Path(record).exists():
            file.unlink()


@dataclass
class _Asked:
    """A rank that has been sent the signal."""

    pid: int
    file: IO[bytes]
    size: int  # of the file, before
    open_threads: list[str]  # those that let the signal through, before


def take_stacks(records: Mapping[int, Record], timeout: float = 2.0) -> dict[int, str]:
    """Returns what the threads of every rank of a job do.

    Args:
        records: The records of the ranks, by rank.
        timeout: Seconds to wait for the ranks of this host, together.

    Returns:
        For each rank its Python stacks as faulthandler writes them; for a rank that cannot be
        asked a sentence that begins with "no stacks: " and says why.
    """
    asked: dict[int, _Asked] = {}
    found: dict[int, str] = {}
    with contextlib.ExitStack() as files:
        for rank, record in records.items():
            try:
                asked[rank] = _ask(record, files)
            except (OSError, _CannotAskError) as error:
                found[rank] = f"no stacks: {error}"
        deadline = time.monotonic() + timeout
        while len(found) < len(records):
            late = time.monotonic() >= deadline
            for rank in asked.keys() - found.keys():
                text = _answer(asked[rank])
                if text is not None:
                    found[rank] = text
                elif late:
                    found[rank] = (
                        f"no stacks: it has not answered within {timeout:g} s. "
                        + describe_process(asked[rank].pid)
                    )
            time.sleep(_PAUSE)
    return dict(sorted(found.items()))


def describe_process(pid: int) -> str:
    """Returns what the kernel says of a process: its state, and where in the kernel it waits.

    Args:
        pid: Of a process of this host.
    """
    status = _status(pid)
    if not status:
        return f"Process {pid} has ended."
    parts = [f"Process {pid} is in state {status['State']}, with {status['Threads']} threads"]
    if status.get("TracerPid", "0") != "0":
        parts.append(f"under process {status['TracerPid']} as its debugger")
    with contextlib.suppress(OSError):
        place = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii")
        if place not in ("", "0"):
            parts.append(f"waiting in the kernel's {place}")
    return ", ".join(parts) + "."


class _CannotAskError(Exception):
    """A rank must not be sent the signal; the message says why."""


def _ask(record: Record, files: contextlib.ExitStack) -> _Asked:
    """Sends the signal. Without its handler it would end the process, so all is checked first.

    Raises:
        _CannotAskError: The rank cannot answer.
        OSError: A file or the process is not there, or belongs to somebody else.
    """
    pid = record.pid
    state = process_state(record.header)
    if state is None:
        raise _CannotAskError(
            f"it runs on host {record.host} or in another container: ask for them there"
        )
    if state == "gone":
        raise _CannotAskError(f"its process {pid} has ended")
    if state == "stopped":
        raise _CannotAskError(
            f"it has been stopped by a signal or a debugger and does nothing; kill -CONT {pid} "
            f"lets it go on. {describe_process(pid)}"
        )
    process = os.pidfd_open(pid)  # from here on no other process can take its number
    files.callback(os.close, process)
    path = stacks_file(record.path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise _CannotAskError(
            "its program handles SIGUSR1 itself, TFRING_STACKS is 0, or it is just starting"
        ) from None
    file = files.enter_context(os.fdopen(descriptor, "rb+", buffering=0))
    # A file that somebody else has put there must not choose whom root sends a signal.
    if os.fstat(descriptor).st_uid != Path(f"/proc/{pid}").stat().st_uid:
        raise _CannotAskError(f"{path} and process {pid} belong to different users")
    if process_state(record.header) != "running" or not _mask(str(pid), "SigCgt") & _BIT:
        raise _CannotAskError(f"process {pid} has ended or has no handler of SIGUSR1")
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # another `tfring stacks` may be at work
    if os.fstat(descriptor).st_size > _MOST_BYTES:
        os.ftruncate(descriptor, 0)
    asked = _Asked(pid, file, os.fstat(descriptor).st_size, _open_threads(pid))
    signal.pidfd_send_signal(process, _SIGNAL)
    return asked


def _answer(asked: _Asked) -> str | None:
    """Returns what a rank has written; None if it has not, or is still writing.

    A thread that runs the handler has the signal blocked until the handler is through.
    """
    size = os.fstat(asked.file.fileno()).st_size
    if size <= asked.size or any(
        _mask(thread, "SigBlk") & _BIT and Path(f"/proc/{thread}").exists()
        for thread in asked.open_threads
    ):
        return None
    return os.pread(asked.file.fileno(), size - asked.size, asked.size).decode("utf-8", "replace")


def _open_threads(pid: int) -> list[str]:
    threads = [f"{pid}/task/{name}" for name in os.listdir(f"/proc/{pid}/task")]
    return [thread for thread in threads if not _mask(thread, "SigBlk") & _BIT]


def _mask(process: str, name: str) -> int:
    """Returns a set of signals out of /proc, as bits; 0 if the process is gone."""
    return int(_status(process).get(name, "0"), 16)


def _status(process: int | str) -> dict[str, str]:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
        return {
            key: value.strip()
            for key, _, value in (line.partition(":") for line in text.splitlines())
        }
    return {}
