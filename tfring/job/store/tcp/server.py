"""The server of a TCPStore: one thread, which never waits for a client."""

from __future__ import annotations

import logging
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from tfring.job.handshake.auth import Role
from tfring.job.handshake.service import ServiceListener
from tfring.job.security.errors import IntegrityError
from tfring.job.security.mac import Channel
from tfring.job.store.errors import StoreError, StoreLimitError
from tfring.job.store.table import Change, Limits, Table
from tfring.job.store.tcp.messages import CHANGING, Answer, Kind, Op, Request, number
from tfring.job.store.tcp.peer import Peer, PeerWatch, Session, Waiting

_log = logging.getLogger("tfring")

_OPEN_SECONDS = 10.0
# The least time between two warnings about clients that were dropped.
_LOG_SECONDS = 5.0
_LONGEST_LEASE = 3600.0
_LONGEST_WAIT = 3600.0
# Of one client: what it waits for and what it watches.
_MOST_OF_ONE = 1024
_MOST_KEYS_OF_ONE = 1 << 16


class ServerLimits(NamedTuple):
    """How much a server takes."""

    table: Limits = Limits()  # keys and values
    clients: int = 4096  # connections at a time, and sessions


class StoreServer:
    """Serves a store on a listening socket, in a thread of its own, until close()."""

    def __init__(
        self,
        sock: socket.socket,
        key: bytes,
        limits: ServerLimits | None = None,
        *,
        role: Role = Role.STORE,
        credential: bytes | None = None,
        content: Mapping[str, bytes] | None = None,
    ) -> None:
        """Starts the server on a socket that listens already, and belongs to it now.

        Clients connect for `role`. Any process that asks for the credential gets it: see
        job/security/munge.py. `content` is there from the beginning.
        """
        self._limits = limits or ServerLimits()
        self._role = role
        name = "the store" if role is Role.STORE else "rank 0"
        self._listener = ServiceListener(sock, key, 0, name=name, credential=credential)
        self.address = self._listener.address
        # All below belongs to the thread; close() tells it by _wake.
        self._table = Table(self._changed, self._limits.table)
        self._sessions: dict[bytes, Session] = {}  # by name
        self._begun = 0  # sessions that there have ever been
        self._instance = secrets.token_bytes(16)
        self._peers: set[Peer] = set()
        self._connected: dict[Session, Peer] = {}
        self._unopened: set[Peer] = set()  # that have no session yet
        self._waiting: dict[str, set[Waiting]] = {}
        self._watching: set[Peer] = set()
        self._touched: set[Peer] = set()
        self._welcomes: list[tuple[Peer, int, Answer]] = []
        self._selector = selectors.EpollSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._listener.fileno(), selectors.EVENT_READ, None)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        for name, value in (content or {}).items():
            self._table.set(name, value)
        self._dropped = 0
        self._log_again_at = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tfring store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server: all clients lose it."""
        if self._closing:
            return
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def content(self) -> dict[str, bytes]:
        """Returns what the store had when it was closed, in the order of changes."""
        state = self._table.matching("")
        return {change.key: change.value for change in state if change.value is not None}

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except Exception:  # clients see it as a server that is gone
            _log.exception("the server of the store ended")
        finally:
            for peer in self._peers:
                peer.sock.close()
            self._selector.close()
            self._listener.close()

    def _turn(self) -> None:
        events = self._selector.select(self._seconds_to_wait())
        for key, mask in events:
            if key.data is not None:
                self._serve(key.data, mask)
        now = time.monotonic()
        due = self._listener.next_deadline()
        if (due is not None and due <= now) or any(key.data is None for key, _ in events):
            self._listener.admit(
                self._role, lambda: len(self._peers) < self._limits.clients, self._admitted
            )
        for peer in [p for p in self._unopened if p.deadline <= now]:
            self._drop(peer, "it opened no session")
        for session in [s for s in self._gone() if s.ends_at is not None and s.ends_at <= now]:
            self._end(session)
        while self._touched:
            self._flush(self._touched.pop())

    def _seconds_to_wait(self) -> float:
        limits = [self._listener.next_deadline(), *(session.ends_at for session in self._gone())]
        limits += [peer.deadline for peer in self._unopened]
        next_one = min((limit for limit in limits if limit is not None), default=None)
        if next_one is None:
            return _LONGEST_WAIT
        return min(max(0.0, next_one - time.monotonic()), _LONGEST_WAIT)

    def _admitted(self, channel: Channel) -> None:
        peer = Peer(channel, self._limits.table, time.monotonic() + _OPEN_SECONDS)
        self._peers.add(peer)
        self._unopened.add(peer)
        self._selector.register(peer.sock, selectors.EVENT_READ, peer)

    def _serve(self, peer: Peer, events: int) -> None:
        if peer not in self._peers:
            return  # dropped while earlier events of the same select() were handled
        try:
            if events & selectors.EVENT_READ:
                peer.read()
        except OSError:
            self._drop(peer, "")
            return
        self._touched.add(peer)

    def _flush(self, peer: Peer) -> None:
        """Handles what the peer has sent and sends what it takes, until either has to wait."""
        try:
            while peer in self._peers:
                for request in peer.requests():
                    self._handle(peer, request)
                    if peer not in self._peers:
                        return
                peer.write()
                if peer.wants_write or peer.wants_read:
                    break
        except (IntegrityError, ValueError, IndexError) as error:
            self._drop(peer, str(error))
            return
        except OSError:
            self._drop(peer, "")
            return
        if peer in self._peers:
            read = selectors.EVENT_READ if peer.wants_read else 0
            write = selectors.EVENT_WRITE if peer.wants_write else 0
            if read | write != peer.events:
                peer.events = read | write
                self._selector.modify(peer.sock, peer.events, peer)

    def _drop(self, peer: Peer, reason: str) -> None:
        if peer not in self._peers:
            return
        if reason:
            self._dropped += 1
            if time.monotonic() >= self._log_again_at:
                self._log_again_at = time.monotonic() + _LOG_SECONDS
                _log.warning("the store dropped %d client(s): %s", self._dropped, reason)
                self._dropped = 0
        self._peers.discard(peer)
        self._unopened.discard(peer)
        self._watching.discard(peer)
        self._touched.discard(peer)
        self._selector.unregister(peer.sock)
        peer.sock.close()
        for waiting in peer.waiting.values():
            self._forget_waiting(waiting)
        if peer.session is not None and self._connected.get(peer.session) is peer:
            del self._connected[peer.session]
            peer.session.ends_at = time.monotonic() + peer.session.lease

    def _gone(self) -> list[Session]:
        """The sessions that have no connection now."""
        if len(self._connected) == len(self._sessions):
            return []
        return [each for each in self._sessions.values() if each.ends_at is not None]

    def _end(self, session: Session) -> None:
        self._sessions.pop(session.name, None)
        self._connected.pop(session, None)
        self._table.delete_owned(session)

    # Requests. A ValueError of a malformed one drops the client.

    def _handle(self, peer: Peer, request: Request) -> None:
        if request.op is Op.OPEN:
            self._open(peer, request)
            return
        session = peer.session
        if session is None:
            raise ValueError("a request before a session was opened")
        answer = session.remembered(request)
        if answer is None:
            try:
                answer = self._answer(peer, session, request)
            except StoreError as error:
                fields = (type(error).__name__.encode(), str(error).encode())
                answer = Answer(Kind.ERROR, request.number, fields)
            if answer is not None and request.op in CHANGING:
                session.remember(answer)
        if answer is not None:
            peer.answer(answer)

    def _open(self, peer: Peer, request: Request) -> None:
        name, lease_ms, clients = request.fields
        if peer.session is not None or len(name) != 16:
            raise ValueError("a session was opened twice, or has no name")
        lease = min(number(lease_ms) / 1000, _LONGEST_LEASE)
        session = self._sessions.get(name)
        resumed = session is not None
        if session is None:
            if len(self._sessions) >= self._limits.clients:
                raise ValueError("there are too many clients")
            session = self._sessions[name] = Session(name, lease)
            self._begun += 1
        session.ends_at = None
        former = self._connected.get(session)
        peer.session = session
        self._connected[session] = peer
        if former is not None:  # what it sent and was not handled comes again over this one
            self._drop(former, "")
        self._unopened.discard(peer)
        fields = (self._instance, b"1" if resumed else b"")
        self._welcomes.append((peer, number(clients), Answer(Kind.DONE, request.number, fields)))
        for other, wanted, answer in list(self._welcomes):
            if self._begun >= wanted or other not in self._peers:
                self._welcomes.remove((other, wanted, answer))
                other.answer(answer)
                self._touched.add(other)

    def _answer(self, peer: Peer, session: Session, request: Request) -> Answer | None:
        """Does what a request asks for; returns the answer, None if it comes later or never."""
        fields = request.fields
        if request.op in (Op.GET, Op.WAIT):
            self._wait_for_keys(peer, request)
            return None
        if request.op is Op.CANCEL:
            waiting = peer.waiting.pop(number(fields[0]), None)
            if waiting is not None:
                self._forget_waiting(waiting)
            return None
        if request.op is Op.WATCH:
            self._watch(peer, request)
        elif request.op is Op.UNWATCH:
            peer.watches.pop(number(fields[0]), None)
        elif request.op is Op.GOODBYE:
            self._end(session)
        return Answer(Kind.DONE, request.number, self._result(session, request.op, fields))

    def _result(self, session: Session, op: Op, fields: tuple[bytes, ...]) -> tuple[bytes, ...]:
        table = self._table
        if op is Op.SET:
            key, value, ephemeral = fields
            table.set(key.decode(), value, session if ephemeral else None)
        elif op is Op.CHECK:
            return (_truth(table.check([field.decode() for field in fields])),)
        elif op is Op.ADD:
            key, amount = fields
            return (b"%d" % table.add(key.decode(), number(amount)),)
        elif op is Op.APPEND:
            table.append(fields[0].decode(), fields[1])
        elif op is Op.COMPARE_SET:
            key, expected, desired = fields
            return (table.compare_set(key.decode(), expected, desired),)
        elif op is Op.DELETE:
            return (_truth(table.delete(fields[0].decode())),)
        elif op is Op.NUM_KEYS:
            return (b"%d" % table.count(fields[0].decode()),)
        return ()

    def _watch(self, peer: Peer, request: Request) -> None:
        prefix = request.fields[0].decode()
        if len(peer.watches) >= _MOST_OF_ONE:
            raise StoreLimitError(f"a client of the store has {_MOST_OF_ONE} watches: close some")
        state = self._table.matching(prefix)
        peer.watches[request.number] = PeerWatch(prefix, state, self._table.revision)
        self._watching.add(peer)

    # Waiting for keys, and what changes tell others.

    def _wait_for_keys(self, peer: Peer, request: Request) -> None:
        keys = [field.decode() for field in request.fields]
        waited_for = sum(len(waiting.keys) for waiting in peer.waiting.values())
        if len(peer.waiting) >= _MOST_OF_ONE or waited_for + len(keys) > _MOST_KEYS_OF_ONE:
            raise StoreLimitError(f"a client of the store waits for {waited_for} keys already")
        if request.op is Op.GET and len(keys) != 1:
            raise ValueError("a GET is of one key")
        if request.number in peer.waiting:
            raise ValueError("a request has the number of another that waits")
        self._go_on(Waiting(peer, request, keys))

    def _go_on(self, waiting: Waiting) -> None:
        """Answers a request whose keys all exist now, else waits for those that do not."""
        peer, request = waiting.peer, waiting.request
        waiting.missing = {key for key in waiting.keys if not self._table.check([key])}
        if waiting.missing:
            peer.waiting[request.number] = waiting
            for key in waiting.missing:
                self._waiting.setdefault(key, set()).add(waiting)
            return
        peer.waiting.pop(request.number, None)
        value = self._table.find(waiting.keys[0]) if request.op is Op.GET else None
        fields = () if value is None else (value,)
        peer.answer(Answer(Kind.DONE, request.number, fields))
        self._touched.add(peer)

    def _forget_waiting(self, waiting: Waiting) -> None:
        for key in waiting.missing:
            others = self._waiting.get(key, set())
            others.discard(waiting)
            if not others:
                self._waiting.pop(key, None)

    def _changed(self, change: Change) -> None:
        if change.value is not None:
            for waiting in list(self._waiting.pop(change.key, ())):
                waiting.missing.discard(change.key)
                if not waiting.missing:
                    self._go_on(waiting)
        for peer in self._watching:
            for watch in peer.watches.values():
                if watch.matches(change.key):
                    watch.put(change)
                    self._touched.add(peer)


def _truth(value: bool) -> bytes:
    return b"1" if value else b""
