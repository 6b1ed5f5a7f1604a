"""The HTTP endpoint that Prometheus scrapes: open from init to shutdown."""

from __future__ import annotations

import contextlib
import hmac
import io
import ipaddress
import logging
import os
import random
import socket
import socketserver
import threading
import time
import urllib.parse
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from tfring.job.security.errors import SecretError
from tfring.job.security.sources import read_secret_file
from tfring.observe.metrics.collector import RankCollector
from tfring.runtime import _native
from tfring.runtime.settings.environment import Settings
from tfring.runtime.settings.setting import SettingError

# At most this many requests at a time. One more replaces a random one, so that silent clients keep
# nobody out.
_MAX_REQUESTS = 8
_REQUEST_SECONDS = 10.0  # from the connection to the end of the request's head
_MAX_HEAD = 1 << 16  # bytes
_END = b"\r\n\r\n"  # of a head
_PAUSE_SECONDS = 0.1  # where no descriptor is left for a connection, which stays in the queue

_servers: weakref.WeakSet[_Server] = weakref.WeakSet()
_log = logging.getLogger("tfring")


class Endpoint:
    """Answers requests for metrics, on its own threads, until it is closed.

    Args:
        address: An IP address of this host.
        port: 0: any that is free.
        token: The bearer token of requests (RFC 6750); None: none is needed.
        application: A WSGI application.

    Raises:
        OSError: The address is not one of this host, or the port is taken.
    """

    def __init__(self, address: str, port: int, token: str | None, application: Any) -> None:
        checked = _by_address(application) if token is None else _with_token(token, application)
        self._server = _Server(address, port, checked)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="tfring-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Its URL."""
        host, port = self._server.server_address[:2]
        name = str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/metrics"

    def close(self) -> None:
        """Closes the port. Does not wait for requests in progress."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join(_REQUEST_SECONDS)
        self._server.server_close()

    def _serve(self) -> None:
        # Unlike serve_forever, this does not wake up while nobody asks.
        while not self._closing:
            self._server.handle_request()


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        """Reads the head, which has to come whole and in time; the rest is not read."""
        super().setup()
        until, head = time.monotonic() + _REQUEST_SECONDS, b""
        while _END not in head and len(head) < _MAX_HEAD:
            self.connection.settimeout(max(0.001, until - time.monotonic()))
            piece = self.connection.recv(_MAX_HEAD)
            if not piece:
                break
            head += piece
        self.connection.settimeout(_REQUEST_SECONDS)  # for each part of the answer
        self.rfile = io.BufferedReader(io.BytesIO(head if _END in head else b""))

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a scrape is of no interest."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: str, port: int, application: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._lock = threading.Lock()
        self._requests: list[socket.socket] = []  # guarded by _lock
        super().__init__((address, port), _Handler)
        self.set_app(application)
        _servers.add(self)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks DNS for our name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._requests) == _MAX_REQUESTS:
                at = random.randrange(_MAX_REQUESTS)
                with contextlib.suppress(OSError):  # it has gone away
                    self._requests.pop(at).shutdown(socket.SHUT_RDWR)  # its thread ends
            self._requests.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._requests.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: the client has gone away, or WSGI has said what was wrong."""


def _with_token(token: str, application: Any) -> Any:
    wanted = f"Bearer {token}".encode()

    def checked(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        given = str(environ.get("HTTP_AUTHORIZATION", "")).encode("utf-8", "surrogateescape")
        if hmac.compare_digest(given, wanted):
            answer: Iterable[bytes] = application(environ, start)
            return answer
        start("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")])
        return [b""]

    return checked


def _by_address(application: Any) -> Any:
    """Refuses names: a web page could point its own name at this host, and read this."""

    def checked(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if _is_address(str(environ.get("HTTP_HOST", ""))):
            answer: Iterable[bytes] = application(environ, start)
            return answer
        start("421 Misdirected Request", [("Content-Length", "0")])
        return [b""]

    return checked


def _is_address(host: str) -> bool:
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname
        return name in (None, "localhost") or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _close_in_child() -> None:
    """Closes the port in a forked child, which would never answer."""
    for server in list(_servers):
        server.socket.close()


os.register_at_fork(after_in_child=_close_in_child)


class _State:
    """Of the present generation. Written by init and shutdown, which one lock guards."""

    endpoint: Endpoint | None = None


_state = _State()


def check(settings: Settings) -> None:
    """Raises SettingError if other hosts could reach the endpoint without a token."""
    if settings.metrics_port is None or settings.metrics_token_file is not None:
        return
    if not ipaddress.ip_address(settings.metrics_addr).is_loopback:
        raise SettingError(
            f'TFRING_METRICS_ADDR is "{settings.metrics_addr}", which other hosts can reach: set '
            "TFRING_METRICS_TOKEN_FILE to a file of mode 0600 with Prometheus' token, or unset the "
            "address, so that only this host can read the metrics"
        )


def begin(rank: int, local_rank: int, record: str | None, settings: Settings) -> None:
    """Opens the endpoint if the settings ask for one. A failure is a warning.

    Args:
        rank: Ours.
        local_rank: Among the ranks of this host.
        record: The file of our record, if there is one.
        settings: From the environment.
    """
    if settings.metrics_port is not None:
        _state.endpoint = _open_endpoint(rank, local_rank, record, settings)


def end() -> None:
    """Closes the endpoint, before the runtime ends."""
    endpoint, _state.endpoint = _state.endpoint, None
    if endpoint is not None:
        endpoint.close()


def _open_endpoint(
    rank: int, local_rank: int, record: str | None, settings: Settings
) -> Endpoint | None:
    port = settings.metrics_port or 0
    if port:
        port += local_rank
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

        token = None
        if settings.metrics_token_file is not None:
            token = read_secret_file(Path(settings.metrics_token_file))
        registry = CollectorRegistry()
        registry.register(RankCollector(rank, record))
        ProcessCollector(registry=registry)
        endpoint = Endpoint(settings.metrics_addr, port, token, make_wsgi_app(registry))
    except ImportError as error:
        _warn(rank, f"{error}: pip install 'tfring[metrics]'")
    except SecretError as error:
        _warn(rank, f"TFRING_METRICS_TOKEN_FILE: {error}")
    except (OSError, OverflowError) as error:
        where = f"{settings.metrics_addr} port {port}"
        _warn(rank, f"{where}: {error}. Set TFRING_METRICS_PORT to another port, or 0 for any")
    else:
        _log.info("rank %d: metrics at %s", rank, endpoint.url)
        _native.core.mark(f"metrics at {endpoint.url}")
        return endpoint
    return None


def _warn(rank: int, why: str) -> None:
    _log.warning("rank %d has no endpoint for metrics: %s", rank, why)
