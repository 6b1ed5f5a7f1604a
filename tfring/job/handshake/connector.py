"""Connecting to a rank that listens, perhaps later, perhaps on another port than the first."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

from tfring.job.handshake import auth
from tfring.job.handshake.errors import AuthError, NotAdmittedError, UnreachableError
from tfring.job.handshake.listener import resolve
from tfring.job.security.seal import Channel

# Many short attempts, so that one lost SYN does not use up all the time. Where there are several
# ports to try, a firewall may drop what goes to some of them.
_CONNECT_SECONDS = 5.0
_CONNECT_SECONDS_OF_SEVERAL = 1.0
# For the handshake: rank 0's socket may be open before rank 0 runs. Where there are several ports
# to try, a process that says nothing on one of them must not keep us from the others.
_ANSWER_SECONDS = 20.0
_ANSWER_SECONDS_OF_SEVERAL = 3.0
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25


def connect(
    address: str,
    ports: int | Sequence[int],
    key: bytes,
    hello: auth.Hello,
    deadline: float,
    given_up: Callable[[], bool] | None = None,
) -> Channel:
    """Connects to a rank and runs the handshake; tries again until the deadline.

    Whatever else listens there is no reason to give up: the rank may still come, there or at
    another port.

    Args:
        address: Where the rank listens.
        ports: The port at that address, or those to try.
        key: The job's key.
        hello: Our rank, the rank that we connect to, and what for.
        deadline: ``time.monotonic()`` at which to give up.
        given_up: Asked between attempts; True ends them like the deadline.

    Returns:
        The connection, its socket blocking with the remaining time as its timeout.

    Raises:
        AuthError: Until the deadline only processes listened that do not know the secret.
        NotAdmittedError: The rank does not wait for us.
        UnreachableError: The rank could not be reached; the message has the last reason.
    """
    ports = [ports] if isinstance(ports, int) else list(ports)
    pause = _FIRST_PAUSE
    reason: Exception = TimeoutError("the time was up before the first attempt")
    wrong: AuthError | NotAdmittedError | None = None  # says more than the reason
    while time.monotonic() < deadline and not (given_up is not None and given_up()):
        for port in in_turn(ports):
            try:
                return _connect_once(address, port, key, hello, deadline, len(ports) > 1)
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
    where = f"port {ports[0]}" + (f" or {len(ports) - 1} others" if len(ports) > 1 else "")
    raise UnreachableError(
        f"{hello.connector_name()} could not reach {hello.listener_name()} at {address} {where} in "
        f"time ({reason})",
        rank=hello.listener,
    )


def in_turn(ports: Sequence[int]) -> list[int]:
    """Returns the order in which to try ports: the first, likely one before each of the others.

    Args:
        ports: All ports, likely ones first.
    """
    return [ports[0], *(port for other in ports[1:] for port in (other, ports[0]))]


def _connect_once(
    address: str, port: int, key: bytes, hello: auth.Hello, deadline: float, several: bool
) -> Channel:
    failure: OSError = OSError(f"{address} has no address")
    for _, _, _, _, where in resolve(address, port, _left(deadline)):
        try:
            return _handshake((str(where[0]), port), key, hello, deadline, several)
        except OSError as error:
            failure = error
    raise failure


def _handshake(
    where: tuple[str, int], key: bytes, hello: auth.Hello, deadline: float, several: bool
) -> Channel:
    patience = _CONNECT_SECONDS_OF_SEVERAL if several else _CONNECT_SECONDS
    sock = open_connection(where, min(deadline, time.monotonic() + patience))
    try:
        limit = _ANSWER_SECONDS_OF_SEVERAL if several else _ANSWER_SECONDS
        sock.settimeout(min(limit, _left(deadline)))
        keys = auth.prove_to_listener(sock, key, hello)
        sock.settimeout(_left(deadline))
        return Channel(sock, keys)
    except BaseException:
        sock.close()
        raise


def open_connection(where: tuple[str, int], deadline: float) -> socket.socket:
    """Returns a connected socket, before any handshake.

    Args:
        where: Address and port.
        deadline: ``time.monotonic()`` at which to give up.

    Raises:
        OSError: Nobody listens there.
    """
    sock = socket.create_connection(where, timeout=min(_CONNECT_SECONDS, _left(deadline)))
    # Linux can connect a socket to itself where no process listens on a port from the range of
    # outgoing connections.
    if sock.getsockname() == sock.getpeername():
        sock.close()
        raise ConnectionRefusedError("no process listens there yet")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _left(deadline: float) -> float:
    return max(0.01, deadline - time.monotonic())
