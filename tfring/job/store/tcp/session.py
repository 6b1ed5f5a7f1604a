"""What a server knows about its clients, also while they have no connection."""

from __future__ import annotations

from tfring.job.store.tcp.messages import Answer, Request

# Of the answers that are remembered for one client.
_MOST_ANSWERS = 1024
_MOST_BYTES = 64 << 20


class Session:
    """One client, from its first connection until it says goodbye or its lease has passed."""

    def __init__(self, name: bytes, lease: float) -> None:
        self.name = name
        self.lease = lease
        self.ends_at: float | None = None  # by time.monotonic(); None while it is connected
        self._answers: dict[int, Answer] = {}

    def remembered(self, request: Request) -> Answer | None:
        """Returns the answer to a request that came before; forgets those that nobody needs."""
        for number in [number for number in self._answers if number < request.oldest]:
            del self._answers[number]
        return self._answers.get(request.number)

    def remember(self, answer: Answer) -> None:
        """Keeps the answer to a request that changes something, should it come again.

        ValueError: there are more than a client can wait for.
        """
        self._answers[answer.number] = answer
        size = sum(len(field) for kept in self._answers.values() for field in kept.fields)
        if len(self._answers) > _MOST_ANSWERS or size > _MOST_BYTES:
            raise ValueError("it waits for too many answers")


class Sessions:
    """All sessions of a server."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_name: dict[bytes, Session] = {}
        self._gone: dict[bytes, Session] = {}  # without a connection
        self.begun = 0  # sessions that there have ever been

    def open(self, name: bytes, lease: float) -> Session | None:
        """Begins a session for a new connection, or resumes one. None: there are too many."""
        session = self._by_name.get(name)
        if session is None:
            if len(self._by_name) >= self._most:
                return None
            session = self._by_name[name] = Session(name, lease)
            self.begun += 1
        self._gone.pop(name, None)
        session.ends_at = None
        return session

    def disconnect(self, session: Session, now: float) -> None:
        """The connection of a session has ended; its lease begins."""
        if self._by_name.get(session.name) is not session:
            return  # it said goodbye
        session.ends_at = now + session.lease
        self._gone[session.name] = session

    def knows(self, name: bytes) -> bool:
        """Whether a session lasts."""
        return name in self._by_name

    def forget(self, session: Session) -> None:
        """Ends a session."""
        self._by_name.pop(session.name, None)
        self._gone.pop(session.name, None)

    def ended(self, now: float) -> list[Session]:
        """Returns the sessions whose lease has passed."""
        return [s for s in self._gone.values() if s.ends_at is not None and s.ends_at <= now]

    def next_end(self) -> float | None:
        """Returns when the next lease passes, if any runs."""
        return min((s.ends_at for s in self._gone.values() if s.ends_at is not None), default=None)
