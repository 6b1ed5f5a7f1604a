"""The program of each rank of tfring.run: receives the function, calls it, returns the result."""

from __future__ import annotations

import os
import sys
import time
import traceback

import cloudpickle

from tfring.job.handshake import connector
from tfring.job.handshake.auth import Hello, Role
from tfring.job.security.seal import Channel
from tfring.job.security.secret import job_key
from tfring.launch import cell_sources
from tfring.launch.function import JOB_ID, MAX_BYTES

_CONNECT_SECONDS = 30.0


def connect() -> Channel:
    """Connects to the process that called tfring.run and runs the handshake."""
    address, port = os.environ["TFRING_FUNCTION_ADDR"], int(os.environ["TFRING_FUNCTION_PORT"])
    # The function and its child processes have no use for it.
    key = job_key(os.environ.pop("TFRING_FUNCTION_SECRET"), JOB_ID)
    own = os.environ.get("TFRING_ELASTIC_WORKER") or os.environ["TFRING_RANK"]
    hello = Hello(Role.FUNCTION, int(own), 0)
    channel = connector.connect(address, port, key, hello, time.monotonic() + _CONNECT_SECONDS)
    channel.sock.settimeout(None)
    return channel


def main() -> int:
    """Runs the function; returns the exit code."""
    channel = connect()
    try:
        func, args, kwargs, sources = cloudpickle.loads(channel.receive(MAX_BYTES))
        cell_sources.install(sources)
        instead = "return plain values, arrays or strings"
        result = cell_sources.dumps(func(*args, **kwargs), "the result", instead)
    except Exception as error:
        text = _traceback(error)
        channel.send(b"error")
        channel.send(cloudpickle.dumps((text, _pickled(error))))
        print(text, file=sys.stderr, flush=True)
        # As the interpreter does with an uncaught exception: at exit the other ranks learn of it.
        sys.last_type, sys.last_value = type(error), error
        return 1
    channel.send(b"result")
    channel.send(result)
    return 0


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
