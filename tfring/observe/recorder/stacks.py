"""Tells other processes what the threads of this rank do, and asks other ranks.

A thread of each rank waits at a socket beside the record and sends the Python stacks of all
threads. It needs the interpreter's lock, so it cannot answer while a C library keeps the lock.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import Record

MAIN = "MainThread"
OWN = "tfring-"  # how the names of threads begin that only wait for something
NO_STACKS = "no stacks: "
KEEPS_LOCK = "native code holds Python's interpreter lock (GIL)"
_SEND_SECONDS = 5.0  # for an asker that does not read
_CHUNK = 1 << 16


class _State:
    """Written by init and shutdown, which take turns."""

    server: socket.socket | None = None
    thread: threading.Thread | None = None  # which answers there


class _CannotAskError(Exception):
    """A rank cannot be asked; the message says why."""


@contextlib.contextmanager
def socket_address(record: Path | str) -> Iterator[str]:
    """Gives the address of the socket of the rank with this record.

    An address has at most 107 bytes; through a descriptor of the folder any path fits.
    """
    folder = os.open(Path(record).parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{Path(record).with_suffix('.socket').name}"
    finally:
        os.close(folder)


def watch(record: str | None, wanted: bool) -> None:
    """Starts to answer requests for stacks, if `wanted` and the rank has a record.

    On SIGUSR1 the main thread's stack goes to stderr, also after shutdown, because a late signal
    would otherwise end the process. A handler of the program stays in place.
    """
    if not wanted:
        return
    if record is not None:
        with contextlib.suppress(OSError):
            _serve_at(record)
    handled = (int(status("self").get(name, "0"), 16) for name in ("SigCgt", "SigIgn"))
    if not any(signals >> (signal.SIGUSR1 - 1) & 1 for signals in handled):
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # there is no stderr
            faulthandler.register(signal.SIGUSR1, all_threads=False)


def unwatch(record: str | None) -> None:
    """Stops to answer."""
    if record is None or _State.server is None:
        return
    with contextlib.suppress(OSError):
        _State.server.shutdown(socket.SHUT_RDWR)  # the thread's accept ends
    if _State.thread is not None:
        _State.thread.join()
    _State.server = _State.thread = None
    with contextlib.suppress(OSError):
        Path(record).with_suffix(".socket").unlink(missing_ok=True)


def take_stacks(records: Mapping[int, Record], timeout: float = 2.0) -> dict[int, str]:
    """Returns the Python stacks of the threads of each rank, the main thread first.

    For a rank that cannot be asked it returns a sentence that begins with "no stacks: ".

    Args:
        records: By rank.
        timeout: Seconds to wait in all.
    """
    end = time.monotonic() + timeout
    found = dict.fromkeys(sorted(records), f"{NO_STACKS}it could not be asked")

    def ask(rank: int) -> None:
        try:
            _check_runs(records[rank])
            found[rank] = _ask(records[rank], end)
        except (OSError, _CannotAskError) as error:
            found[rank] = f"{NO_STACKS}{error}"

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


def waits_in_kernel(pid: int) -> str:
    """Returns where in the kernel the main thread of a process waits; "": it runs, or secret."""
    with contextlib.suppress(OSError):
        place = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii")
        return "" if place == "0" else place
    return ""


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
            f"it is stopped by a signal or a debugger; kill -CONT {pid} lets it go on"
        )


def _ask(record: Record, end: float) -> str:
    parts = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
        rank.settimeout(max(0.001, end - time.monotonic()))
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
            if parts:
                return b"".join(parts).decode("utf-8", "replace")
    raise _CannotAskError(
        f"{KEEPS_LOCK}, or this host is very busy. `py-spy dump --pid {record.pid}` needs no lock"
    )


def _serve_at(record: str) -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket_address(record) as address:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)  # of a generation before
        server.bind(address)
        os.chmod(address, 0o600)
    server.listen()
    _State.server = server
    name = f"{OWN}stacks"
    _State.thread = threading.Thread(target=_serve, args=(server,), name=name, daemon=True)
    _State.thread.start()


def _serve(server: socket.socket) -> None:
    with server:
        while True:
            try:
                asker, _ = server.accept()
            except OSError:
                return  # shut down
            with asker, contextlib.suppress(OSError):
                asker.settimeout(_SEND_SECONDS)
                if _user_of(asker) in (os.getuid(), 0):
                    asker.sendall(_own_stacks().encode("utf-8", "replace"))


def _user_of(asker: socket.socket) -> int:
    """Returns the user at the other end, as the kernel knows it."""
    credentials = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _own_stacks() -> str:
    """Returns the stacks of all threads but tfring's own, in the format of faulthandler."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {
        ident: frame
        for ident, frame in sys._current_frames().items()
        if not names.get(ident, "").startswith(OWN)
    }
    main = threading.main_thread().ident
    blocks: list[str] = []
    for ident in sorted(frames, key=lambda ident: (ident != main, names.get(ident, ""))):
        lines = [format_head(MAIN if ident == main else names.get(ident, "of C++"))]
        frame = frames[ident]
        while frame is not None:
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
            frame = frame.f_back  # type: ignore[assignment]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def format_head(name: str) -> str:
    """Returns the line above the stack of a thread."""
    return f"Thread [{name}] (most recent call first):"


def status(process: int | str) -> dict[str, str]:
    """Returns /proc/PID/status by name; {} if the process is gone."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
        lines = (line.partition(":") for line in text.splitlines())
        return {key: value.strip() for key, _, value in lines}
    return {}
