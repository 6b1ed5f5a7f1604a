"""The HTTP endpoint that Prometheus scrapes."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import socket
import socketserver
import threading
import urllib.parse
import weakref
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

_SILENT_SECONDS = 10  # a client that says nothing for this long is left

_servers: weakref.WeakSet[_Server] = weakref.WeakSet()


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
        self._thread.join(_SILENT_SECONDS)
        self._server.server_close()

    def _serve(self) -> None:
        # Unlike serve_forever, this does not wake up while nobody asks.
        while not self._closing:
            self._server.handle_request()


class _Handler(WSGIRequestHandler):
    timeout = _SILENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a scrape is of no interest."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: str, port: int, application: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), _Handler)
        self.set_app(application)
        _servers.add(self)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks DNS for our name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

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
