"""Asks the ranks of this host what their threads do: see tfring/observe/recorder/stacks.py."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import Record
from tfring.observe.recorder.stacks import (
    BIT,
    MAIN,
    SIGNAL,
    format_head,
    mask,
    socket_address,
    stacks_file,
    status,
)

NO_STACKS = "no stacks: "
KEEPS_LOCK = "native code holds Python's interpreter lock (GIL)"
# The handler's file is emptied when it is longer.
_MOST_BYTES = 1 << 20
_PAUSE = 0.0005  # seconds between two looks at a thread that has been sent the signal
# A running thread may take some milliseconds from the signal to its handler; after this many looks
# without an answer it has none.
_LOOKS = 100
_CHUNK = 1 << 16


class _CannotAskError(Exception):
    """A rank cannot be asked; the message says why."""


def take_stacks(
    records: Mapping[int, Record], timeout: float = 2.0, *, by_signal: bool = True
) -> dict[int, str]:
    """Returns the Python stacks of the threads of each rank, the main thread first.

    For a rank that cannot be asked it returns a sentence that begins with "no stacks: ".

    Args:
        records: By rank.
        timeout: Seconds to wait in all: half for the ranks' own threads, the rest for signals.
        by_signal: Whether to use signals, which has a small risk: see stacks.py.
    """
    end = time.monotonic() + timeout
    found = dict.fromkeys(sorted(records), f"{NO_STACKS}it could not be asked")

    def ask(rank: int) -> None:
        found[rank] = _of_rank(records[rank], end, by_signal)

    # No pool of concurrent.futures: a job is also explained when the interpreter ends, and that
    # takes no work then.
    threads = [threading.Thread(target=ask, args=(rank,), daemon=True) for rank in found]
    for thread, rank in zip(threads, found, strict=True):
        try:
            thread.start()
        except RuntimeError:  # from Python 3.12 on not even a thread is started then
            ask(rank)
    for thread in threads:
        if thread.ident is not None:
            thread.join()
    return found


def describe_process(pid: int) -> str:
    """Returns a sentence with the kernel's state of a process of this host."""
    found = status(pid)
    if not found:
        return f"Process {pid} has ended."
    parts = [f"Process {pid} is in state {found['State']}, with {found['Threads']} threads"]
    if found.get("TracerPid", "0") != "0":
        parts.append(f"under process {found['TracerPid']} as its debugger")
    if place := waits_in_kernel(pid):
        parts.append(f"waiting in the kernel's {place}")
    return ", ".join(parts) + "."


def waits_in_kernel(pid: int) -> str:
    """Returns where in the kernel the main thread of a process waits; "": it runs, or secret."""
    with contextlib.suppress(OSError):
        place = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii")
        return "" if place == "0" else place
    return ""


def _of_rank(record: Record, end: float, by_signal: bool) -> str:
    try:
        _check_runs(record)
        left = max(0.001, end - time.monotonic())
        found = _from_thread(record, left / 2 if by_signal else left)
        if not found and not by_signal:
            raise _CannotAskError(f"{KEEPS_LOCK}, or this host is very busy")
        return found or _from_handler(record, end)
    except (OSError, _CannotAskError) as error:
        return f"{NO_STACKS}{error}"


def _check_runs(record: Record) -> None:
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
            f"it is stopped by a signal or a debugger; kill -CONT {pid} lets it go on. "
            f"{describe_process(pid)}"
        )


def _from_thread(record: Record, timeout: float) -> str:
    """Returns the answer of the rank's own thread; "" if it does not answer in time."""
    end = time.monotonic() + timeout
    parts = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
        rank.settimeout(timeout)
        with socket_address(record.path) as address:
            try:
                rank.connect(address)
            except (FileNotFoundError, ConnectionRefusedError):
                raise _CannotAskError(
                    "TFRING_STACKS is 0 there, or the rank is starting or ending"
                ) from None
        with contextlib.suppress(TimeoutError):
            while data := rank.recv(_CHUNK):
                parts.append(data)
                rank.settimeout(max(0.001, end - time.monotonic()))
            return b"".join(parts).decode("utf-8", "replace")
    return ""


def _from_handler(record: Record, end: float) -> str:
    """Returns what the handler of SIGUSR1 writes on each thread.

    Without a handler the signal would end the process, so everything is checked first.
    """
    pid = record.pid
    path = stacks_file(record.path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise _CannotAskError(
            f"{KEEPS_LOCK}, and its program handles SIGUSR1 itself. {describe_process(pid)}"
        ) from None
    with os.fdopen(descriptor, "rb+", buffering=0):
        # If root runs this, a file of another user must not choose the process to signal.
        if os.fstat(descriptor).st_uid != Path(f"/proc/{pid}").stat().st_uid:
            raise _CannotAskError(f"{path} and process {pid} belong to different users")
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # another `tfring stacks` may be at work
        if os.fstat(descriptor).st_size > _MOST_BYTES:
            os.ftruncate(descriptor, 0)
        if process_state(record.header) != "running" or not mask(str(pid), "SigCgt") & BIT:
            raise _CannotAskError(f"process {pid} has ended or has no handler of SIGUSR1")
        blocks = []
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        # The main thread, which has the number of the process, comes first.
        for thread in sorted(threads, key=lambda number: (number != pid, number)):
            text = _from_one(pid, thread, descriptor, end)
            if text:
                name = MAIN if thread == pid else status(f"{pid}/task/{thread}").get("Name", "")
                blocks.append(re.sub(r"\A.*\(most recent call first\):", format_head(name), text))
    if not blocks:
        raise _CannotAskError(f"{KEEPS_LOCK}, and no thread answers. {describe_process(pid)}")
    return "\n".join(blocks)


def _from_one(pid: int, thread: int, descriptor: int, end: float) -> str:
    """Returns what one thread writes; "" for a thread without Python.

    A thread that runs the handler blocks the signal; until it takes the signal, that is pending. A
    sleeping thread shows neither.
    """
    task = f"{pid}/task/{thread}"
    if mask(task, "SigBlk") & BIT or time.monotonic() > end:
        return ""
    before = os.fstat(descriptor).st_size
    _send(pid, thread)
    looks = 0
    while looks < _LOOKS and time.monotonic() < end:
        now = status(task)
        if not now:
            break
        if (int(now["SigPnd"], 16) | int(now["SigBlk"], 16)) & BIT:
            looks = 0
        elif os.fstat(descriptor).st_size > before or now["State"].startswith("S"):
            break
        else:
            looks += 1
        time.sleep(_PAUSE)
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size - before, before).decode("utf-8", "replace")


def _send(pid: int, thread: int) -> None:
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # glibc 2.30 has it
    if tgkill is not None:
        tgkill(pid, thread, int(SIGNAL))
    elif thread == pid:
        os.kill(pid, signal.Signals(SIGNAL))  # the kernel prefers the main thread
