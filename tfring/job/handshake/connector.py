"""Connects to a process that listens, or will."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from tfring.job.handshake import auth
from tfring.job.handshake.errors import AuthError, NotAdmittedError, UnreachableError
from tfring.job.handshake.listener import resolve
from tfring.job.security.mac import Channel

# Many short attempts, so that one lost SYN does not use up all the time.
_CONNECT_SECONDS = 5.0
# For the handshake: the process may hold Python's lock for long while it starts.
_ANSWER_SECONDS = 20.0
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25


def connect(
    address: str,
    port: int,
    key: bytes,
    hello: auth.Hello,
    deadline: float,
    given_up: Callable[[], bool] | None = None,
) -> Channel:
    """Connects to a rank and runs the handshake; tries again until the deadline.

    Another program that listens there is no reason to give up: the rank may still come. If
    `given_up` says so between two attempts, they end as at the deadline (time.monotonic()). The
    socket blocks, with the remaining time as its timeout.

    Raises:
        AuthError: Until the deadline only processes listened that do not know the secret.
        NotAdmittedError: The rank does not wait for us.
        UnreachableError: The rank could not be reached; the message has the last reason.
    """
    pause = _FIRST_PAUSE
    reason: Exception = TimeoutError("the time was up before the first attempt")
    wrong: AuthError | NotAdmittedError | None = None  # says more than the reason
    while time.monotonic() < deadline and not (given_up is not None and given_up()):
        try:
            return connect_once(address, port, key, hello, deadline)
        except NotAdmittedError as error:
            if not error.later:
                raise
            wrong = error
        except AuthError as error:
            wrong = error
        except OSError as error:  # the name may not resolve yet, too
            reason = error
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    if wrong is not None:
        raise wrong
    raise UnreachableError(
        f"{hello.connector_name()} could not reach {hello.listener_name()} at {address} port "
        f"{port} in time ({reason}): check that this host can reach that address (firewall, or the "
        "wrong network: TFRING_INTERFACE chooses one)",
        rank=hello.listener,
    )


def connect_once(
    address: str, port: int, key: bytes, hello: auth.Hello, deadline: float
) -> Channel:
    """Connects and runs the handshake, once for each address that a name has; see `connect`.

    OSError: no process that knows the protocol answered there.
    """
    failure: OSError = OSError(f"{address} has no address")
    for _, _, _, _, where in resolve(address, port, _left(deadline)):
        try:
            return _handshake((str(where[0]), port), key, hello, deadline)
        except OSError as error:
            failure = error
    raise failure


def _handshake(where: tuple[str, int], key: bytes, hello: auth.Hello, deadline: float) -> Channel:
    sock = open_connection(where, deadline)
    try:
        sock.settimeout(min(_ANSWER_SECONDS, _left(deadline)))
        keys = auth.prove_to_listener(sock, key, hello)
        sock.settimeout(_left(deadline))
        return Channel(sock, keys)
    except BaseException:
        sock.close()
        raise


def open_connection(where: tuple[str, int], deadline: float) -> socket.socket:
    """Returns a connected socket, before any handshake; OSError if nobody listens there."""
    sock = socket.create_connection(where, timeout=min(_CONNECT_SECONDS, _left(deadline)))
    # Linux can connect a socket to itself where no process listens on a port from the range of
    # outgoing connections.
    if sock.getsockname() == sock.getpeername():
        sock.close()
        raise ConnectionRefusedError("no process listens there yet")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def ask(where: tuple[str, int], hello: auth.Hello, most: int, seconds: float) -> bytes:
    """Returns what the process that listens there gives to everybody, of `most` bytes or more.

    OSError: nobody listens there, or nothing came.
    """
    with open_connection(where, time.monotonic() + seconds) as sock:
        sock.settimeout(seconds)
        sock.sendall(auth.first_message(hello))
        data = b""
        while len(data) <= most and (chunk := sock.recv(most)):
            data += chunk
    if not data:  # the process may have given up meanwhile
        raise ConnectionResetError("the connection was closed without an answer")
    return data


def _left(deadline: float) -> float:
    return max(0.01, deadline - time.monotonic())
