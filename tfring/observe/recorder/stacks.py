"""Tells other processes what the threads of this rank do, even while the rank hangs.

A rank answers in two ways. A thread waits at a socket beside the record and sends the Python stacks
of all threads. It needs the interpreter's lock, so it cannot answer while a C library keeps the
lock. For that, `faulthandler` has a handler of SIGUSR1: it writes the stack of the thread that it
runs on to a file, and the asker signals one thread after another. The handler is the second choice:
it reads frames that a running thread may free. For the same reason it never reads other threads'
stacks.
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
from collections.abc import Iterator
from pathlib import Path
from typing import IO

SIGNAL = signal.SIGUSR1
BIT = 1 << (SIGNAL - 1)
MAIN = "MainThread"
OWN = "tfring-"  # how the names of threads begin that only wait for something
_SEND_SECONDS = 5.0  # for an asker that does not read


class _State:
    """Written by init and shutdown, which take turns."""

    file: IO[bytes] | None = None  # which the handler writes to; None: there is no handler of ours
    server: socket.socket | None = None
    thread: threading.Thread | None = None  # which answers there


def stacks_file(record: Path | str) -> Path:
    """Returns the file that the handler of SIGUSR1 writes to, for a rank with this record."""
    return Path(record).with_suffix(".stacks")


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

    A SIGUSR1 handler of the program stays in place. Our handler stays after shutdown, because a
    late signal would otherwise end the process.
    """
    if record is None or not wanted:
        return
    with contextlib.suppress(OSError):
        _serve_at(record)
        if _State.file is None and (mask("self", "SigCgt") | mask("self", "SigIgn")) & BIT:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        file = os.fdopen(os.open(stacks_file(record), flags, 0o600), "ab", buffering=0)
        faulthandler.register(SIGNAL, file=file, all_threads=False, chain=False)
        _State.file = file


def unwatch(record: str | None) -> None:
    """Stops to answer, and removes the handler's file unless the file and the record are kept."""
    if record is None:
        return
    if _State.server is not None:
        with contextlib.suppress(OSError):
            _State.server.shutdown(socket.SHUT_RDWR)  # the thread's accept ends
        if _State.thread is not None:
            _State.thread.join()
        _State.server = _State.thread = None
    file = stacks_file(record)
    with contextlib.suppress(OSError):
        Path(record).with_suffix(".socket").unlink(missing_ok=True)
        if file.stat().st_size == 0 or not Path(record).exists():
            file.unlink()


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


def mask(process: str, name: str) -> int:
    """Returns a set of signals from /proc as bits; 0 if the process is gone.

    Args:
        process: "self", a process id, or "PID/task/TID".
        name: "SigCgt", "SigIgn", "SigBlk" or "SigPnd".
    """
    return int(status(process).get(name, "0"), 16)


def status(process: int | str) -> dict[str, str]:
    """Returns /proc/PID/status by name; {} if the process is gone."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
        lines = (line.partition(":") for line in text.splitlines())
        return {key: value.strip() for key, _, value in lines}
    return {}
