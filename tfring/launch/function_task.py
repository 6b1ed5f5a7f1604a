"""The program of each rank of tfring.run: receives the function, calls it, returns the result."""

from __future__ import annotations

import os
import sys
import traceback

import cloudpickle

from tfring.job.security.secret import job_key
from tfring.job.store import TCPStore
from tfring.job.store.tcp.connection import Server
from tfring.launch import cell_sources
from tfring.launch.function import FUNCTION, JOB_ID, from_pieces, in_pieces

_CONNECT_SECONDS = 30.0
_LOST_SECONDS = 30.0
# For 8 MiB of the function or of a result, while all other ranks have or send theirs.
_PIECE_SECONDS = 600.0


def main() -> int:
    """Runs the function; returns the exit code."""
    address, port = os.environ["TFRING_X_FUNCTION_ADDR"], int(os.environ["TFRING_X_FUNCTION_PORT"])
    # The function and its child processes have no use for it.
    key = job_key(os.environ.pop("TFRING_X_FUNCTION_SECRET"), JOB_ID)
    who = os.environ.get("TFRING_X_ELASTIC_WORKER") or os.environ["TFRING_X_RANK"]
    place = Server(address, port, key, _LOST_SECONDS, _LOST_SECONDS)
    with TCPStore.of_job(place, _CONNECT_SECONDS) as store:
        call = from_pieces(FUNCTION, lambda name: store.get(name, _PIECE_SECONDS))
    try:
        func, args, kwargs, sources = cloudpickle.loads(call)
        cell_sources.install(sources)
        instead = "return plain values, arrays or strings"
        result = cell_sources.dumps(func(*args, **kwargs), "the result", instead)
    except Exception as error:
        text = _traceback(error)
        _send(place, f"error/{who}", cloudpickle.dumps((text, _pickled(error))))
        print(text, file=sys.stderr, flush=True)
        # As the interpreter does with an uncaught exception: at exit the other ranks learn of it.
        sys.last_type, sys.last_value = type(error), error
        return 1
    _send(place, f"result/{who}", result)
    return 0


def _send(place: Server, name: str, data: bytes) -> None:
    """Sends what the function returned or raised to the process that called tfring.run."""
    with TCPStore.of_job(place, _CONNECT_SECONDS) as store:
        for key, value in in_pieces(name, data):
            store.set(key, value, timeout=_PIECE_SECONDS)


def _traceback(error: BaseException) -> str:
    """Returns the traceback as the user's code sees it, without the frame of main."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, inner))


def _pickled(error: BaseException) -> bytes:
    """Returns the pickled exception; empty if it cannot be pickled."""
    try:
        data: bytes = cloudpickle.dumps(error)
    except Exception:
        return b""
    return data


if __name__ == "__main__":
    sys.exit(main())
