"""The HTTP endpoint that Prometheus scrapes."""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import socketserver
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

# So many requests are answered at a time; further connections are closed.
_MAX_REQUESTS = 8
_REQUEST_SECONDS = 10.0

_servers: weakref.WeakSet[_Server] = weakref.WeakSet()


class Endpoint:
    """Answers requests for metrics, on threads of its own, until it is closed."""

    def __init__(self, address: str, port: int, token: str | None, application: Any) -> None:
        """Opens the port and starts to answer.

        Args:
            address: An IP address of this host.
            port: 0: any that is free.
            token: What requests have to carry as a bearer token (RFC 6750); None: nothing.
            application: A WSGI application.

        Raises:
            OSError: The address is not one of this host, or the port is taken.
        """
        if token is not None:
            application = _with_token(token, application)
        self._server = _Server(address, port, application)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="tfring-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self._server.server_address[:2]
        name = str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/metrics"

    def close(self) -> None:
        """Closes the port. Requests that are being answered are not waited for."""
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
    timeout = _REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a scrape is nothing that a user wants to read of."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: str, port: int, application: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._free = threading.Semaphore(_MAX_REQUESTS)
        super().__init__((address, port), _Handler)
        self.set_app(application)
        _servers.add(self)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks DNS for our name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

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


def _close_in_child() -> None:
    """A forked child would keep the port open and never answer."""
    for server in list(_servers):
        server.socket.close()


os.register_at_fork(after_in_child=_close_in_child)
