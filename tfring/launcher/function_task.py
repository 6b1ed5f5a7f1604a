"""The program of each rank of tfring.run: receives the function, calls it, returns the result."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from multiprocessing.connection import Connection

import cloudpickle

from tfring.bootstrap.auth import Hello, Role, prove_to_listener
from tfring.bootstrap.secret import job_key
from tfring.launcher.function import JOB_ID

_CONNECT_SECONDS = 30.0


def connect() -> Connection:
    """Connects to the process that called tfring.run and runs the handshake."""
    address = (os.environ["TFRING_FUNCTION_ADDR"], int(os.environ["TFRING_FUNCTION_PORT"]))
    sock = socket.create_connection(address, timeout=_CONNECT_SECONDS)
    key = job_key(os.environ["TFRING_FUNCTION_SECRET"], JOB_ID)
    prove_to_listener(sock, key, Hello(Role.FUNCTION, int(os.environ["TFRING_RANK"]), 0))
    sock.settimeout(None)
    return Connection(sock.detach())


def main() -> int:
    """Runs the function; returns the exit code."""
    connection = connect()
    try:
        func, args, kwargs = cloudpickle.loads(connection.recv_bytes())
        result = cloudpickle.dumps(func(*args, **kwargs))
    except Exception as error:
        text = traceback.format_exc()
        connection.send_bytes(b"error")
        connection.send_bytes(cloudpickle.dumps((text, _pickled(error))))
        print(text, file=sys.stderr, flush=True)
        return 1
    connection.send_bytes(b"result")
    connection.send_bytes(result)
    return 0


def _pickled(error: BaseException) -> bytes:
    """Returns the pickled exception; empty if it cannot be pickled."""
    try:
        data: bytes = cloudpickle.dumps(error)
    except Exception:
        return b""
    return data


if __name__ == "__main__":
    sys.exit(main())
