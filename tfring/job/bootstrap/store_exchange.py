"""The exchange through a store, which all ranks of a job can use.

A store may still hold keys of an earlier job that was killed. So every rank comes with a token of
its own, and rank 0 answers each token with the name of this generation. A rank that uses the name
has read the answer to its own token. All further keys begin with that name. Rank 0 deletes them in
the end.

Rank 0 watches the store. If the store ends with the job, each rank also keeps a key there that goes
with its connection, and rank 0 notices which rank is lost.
"""

from __future__ import annotations

import contextlib
import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from tfring.job.bootstrap.exchange import decode, encode
from tfring.job.bootstrap.patience import Patience
from tfring.job.handshake.errors import BootstrapError
from tfring.job.store import (
    Change,
    Store,
    StoreConnectionError,
    StoreError,
    StoreTimeoutError,
)
from tfring.runtime.texts.ranks import ranks_text

# One rank's record has about 1 KiB.
MAX_RECORD_BYTES = 64 << 10
_PREFIX = "tfring/init/"
# Added to the time limit, so that rank 0 can still tell the others which rank is missing.
_REPORT_SECONDS = 5.0
# How long rank 0 waits until all have read the last answer, before it deletes the keys.
_LEAVE_SECONDS = 5.0
# A rank may seem to be there twice for this long: another process has taken a lost one's place.
_TWICE_SECONDS = 3.0
_PAUSE_SECONDS = 0.1


class TooEarlyError(BootstrapError):
    """Rank 0 starts another job first, without us, or has begun it meanwhile."""


class StoreExchange:
    """Exchanges values between the ranks of a job: rank 0 gathers them and hands them out."""

    def __init__(
        self,
        store: Store,
        rank: int,
        members: Sequence[int],
        patience: Patience,
        *,
        owned: contextlib.ExitStack | None = None,
        hint: str = "check that they use the same store",
    ) -> None:
        """Meets the other ranks, of which rank 0 is one.

        allgather returns values in the order of `members`. close() closes what is `owned`: the
        store then ends with the job. `hint` says what to do for ranks that do not come.

        Raises:
            TooEarlyError: Rank 0 waits for others.
            BootstrapError: A rank did not come, or two say that they are the same; or the store
                failed.
        """
        self._owned = owned
        self._store = store
        self._rank, self._members = rank, list(members)
        self._others = frozenset(members) - {0}
        self._patience = patience
        self._deadline = patience.deadline
        self._hint = hint
        self._round = 0
        self._name = ""
        # Of rank 0: values by round and rank, ranks that joined, ranks that went, keys to delete.
        self._values: dict[int, dict[int, bytes]] = {}
        self._joined: set[int] = set()
        self._gone: set[int] = set()
        self._made: list[str] = []
        try:
            with self._store_errors():
                if rank == 0:
                    self._changes = self._store.watch(_PREFIX, timeout=self._left())
                    self._gather_ranks()
                else:
                    self._join()
        except BootstrapError:
            self.close()
            raise
        except BaseException:
            self._release()
            raise
        self._deadline += _REPORT_SECONDS

    def allgather(self, value: Any) -> list[Any]:
        """See `Exchange.allgather`."""
        data = encode(value)
        if len(data) > MAX_RECORD_BYTES:
            raise BootstrapError(f"rank {self._rank} has a record of {len(data)} bytes")
        number, self._round = self._round, self._round + 1
        with self._store_errors():
            if self._rank == 0:
                return self._hand_out(number, value)
            self._store.set(self._key(number, self._rank), data)
            patience = self._left() + _REPORT_SECONDS  # when its time is up rank 0 says who is lost
            limit = MAX_RECORD_BYTES * (len(self._members) + 1)
            answer = _unpacked(self._store.get(self._key(number, "all"), patience), limit)
            if not isinstance(answer, dict) or "error" in answer:
                text = answer.get("error") if isinstance(answer, dict) else "a malformed answer"
                raise BootstrapError(str(text))
            values = answer.get("values")
            if not isinstance(values, list) or len(values) != len(self._members):
                raise BootstrapError("rank 0 sent a malformed list of records")
            return values

    def close(self) -> None:
        """Leaves; rank 0 removes the keys when the others have read them. Never fails."""
        with contextlib.suppress(StoreError):
            if not self._name:
                pass  # nobody has seen us
            elif self._rank != 0:
                self._store.set(self._key("left", self._rank), b"", timeout=_LEAVE_SECONDS)
            else:
                self._changes.close()
                left = [self._key("left", other) for other in sorted(self._joined)]
                with contextlib.suppress(StoreTimeoutError):
                    self._store.wait(left, _LEAVE_SECONDS)
                if self._owned is None:
                    joined = [self._key("joined", other) for other in self._joined]
                    for key in (*left, *joined, *self._made):
                        self._store.delete_key(key, _LEAVE_SECONDS)
        self._release()

    def _release(self) -> None:
        if self._owned is not None:
            self._owned.close()

    # Rank 0.

    def _gather_ranks(self) -> None:
        """Answers each rank that comes, until all have read an answer."""
        self._name = secrets.token_hex(8)
        while len(self._joined) < len(self._others):
            self._patience.tell(self._missing)
            if self._patience.is_over:
                self._refuse()
            with contextlib.suppress(StoreTimeoutError):
                self._handle(self._changes.next(self._patience.until_next_word))

    def _handle(self, change: Change) -> None:
        kind, _, last = change.key.removeprefix(_PREFIX).rpartition("/")
        name, _, what = kind.partition("/")
        if kind == "arrived":
            if change.value is not None:
                self._answer(last, change.value)
        elif name != self._name or not last.isdigit() or int(last) not in self._others:
            return
        elif what == "joined" and change.value is None:
            self._joined.discard(int(last))
            self._gone.add(int(last))
            for values in self._values.values():  # another process may take its place
                values.pop(int(last), None)
        elif what == "joined":
            self._joined.add(int(last))
            self._gone.discard(int(last))
        elif what.isdigit() and change.value is not None:
            self._values.setdefault(int(what), {})[int(last)] = change.value

    def _answer(self, token: str, data: bytes) -> None:
        try:
            arrival = decode(data)
            rank, size = int(arrival["rank"]), int(arrival["size"])
            members = [int(member) for member in arrival["members"] or range(size)]
        except (BootstrapError, KeyError, TypeError, ValueError, OverflowError):
            return  # of another version of tfring, perhaps
        answer: dict[str, Any] = {"name": self._name}
        if members != self._members:
            answer = self._refusal(rank, members)
        self._store.set(f"{_PREFIX}answer/{token}", encode(answer), timeout=self._left())
        self._made += [f"{_PREFIX}arrived/{token}", f"{_PREFIX}answer/{token}"]

    def _refusal(self, rank: int, members: list[int]) -> dict[str, Any]:
        if _is_whole(members) and _is_whole(self._members):
            text = (
                f"rank {rank} was told that the job has {len(members)} ranks, and rank 0 that it "
                f"has {len(self._members)}: init(size=...) has to be the same on all of them"
            )
        elif rank in self._others:
            text = (
                f"rank 0 starts a job of the ranks {self._members}, and rank {rank} one of "
                f"{members}: init(comm=[...]) has to be the same on all of them"
            )
        else:
            return {"later": True}
        return {"error": text}

    def _missing(self) -> str:
        missing = sorted(set(self._others) - self._joined)
        return f"{ranks_text(missing)} of {len(self._members)}"

    def _refuse(self) -> None:
        gone = f" ({ranks_text(sorted(self._gone))} came and went)" if self._gone else ""
        self._fail(
            0,
            f"rank 0 waited {self._patience.seconds:g} s, and {self._missing()} did not come"
            f"{gone}. Look at their output for an earlier error. If they only need longer, raise "
            f"TFRING_START_TIMEOUT; {self._hint}",
        )

    def _fail(self, number: int, reason: str) -> NoReturn:
        self._store.set(self._key(number, "all"), _packed({"error": reason}), timeout=5.0)
        self._made.append(self._key(number, "all"))
        raise BootstrapError(reason)

    def _hand_out(self, number: int, value: Any) -> list[Any]:
        come = self._values.setdefault(number, {})
        while len(come) < len(self._others):
            lost = set(self._others) - set(come)
            if time.monotonic() < self._deadline:
                lost &= self._gone
            if lost:
                who = ranks_text(sorted(lost))
                self._fail(number, f"the job could not start: rank 0 lost {who} while it started")
            with contextlib.suppress(StoreTimeoutError):
                self._handle(self._changes.next(self._left()))
        values: dict[int, Any] = {0: value}
        for rank, data in self._values.pop(number).items():
            try:
                if len(data) > MAX_RECORD_BYTES:
                    raise BootstrapError(f"a record of {len(data)} bytes")
                values[rank] = decode(data)
            except BootstrapError as error:
                self._fail(number, f"the job could not start: rank {rank}: {error}")
        ordered = [values[rank] for rank in self._members]
        self._store.set(
            self._key(number, "all"), _packed({"values": ordered}), timeout=self._left()
        )
        self._made += [self._key(number, who) for who in ("all", *map(str, self._others))]
        return ordered

    # The other ranks.

    def _join(self) -> None:
        """Comes with a token, and takes part in the generation of its answer."""
        token = secrets.token_hex(8)
        size = len(self._members)
        members = None if _is_whole(self._members) else self._members
        arrival = {"rank": self._rank, "size": size, "members": members}
        try:
            self._store.set(f"{_PREFIX}arrived/{token}", encode(arrival), timeout=self._left())
            answer = decode(self._answer_to(token))
        except StoreConnectionError as error:
            if self._owned is None:
                raise
            raise TooEarlyError(f"rank 0 ended before it took rank {self._rank}: {error}") from None
        if not isinstance(answer, dict):
            answer = {}
        if answer.get("later"):
            raise TooEarlyError(
                f"rank {self._rank} is not in the list of rank 0's init(comm=[...]), so rank 0 did "
                f"not wait for it and start-up timed out. Rank {self._rank} has the list "
                f"{self._members}. Call init(comm=[...]) with one list, only on the ranks in it"
            )
        if "error" in answer:
            raise BootstrapError(str(answer["error"]))
        if "name" not in answer:
            raise BootstrapError(f"rank 0 sent rank {self._rank} a malformed answer")
        self._name = str(answer["name"])
        key, until = self._key("joined", self._rank), time.monotonic() + _TWICE_SECONDS
        while self._store.compare_set(key, "", token, self._left()) != token.encode():
            if self._owned is None or time.monotonic() >= until:
                raise BootstrapError(
                    f"two processes say that they are rank {self._rank} of this job: check what "
                    "sets the rank, and that no process of an earlier run still runs"
                )
            time.sleep(_PAUSE_SECONDS)
        if self._owned is not None:
            self._store.set(key, token, ephemeral=True, timeout=self._left())

    def _answer_to(self, token: str) -> bytes:
        while not self._patience.is_over:
            try:
                return self._store.get(f"{_PREFIX}answer/{token}", self._patience.until_next_word)
            except StoreTimeoutError:
                if self._rank == 1:  # one of those that wait is enough
                    self._patience.tell(lambda: "rank 0, which has not come to the store")
        raise BootstrapError(
            f"rank {self._rank} waited {self._patience.seconds:g} s in the store for rank 0, which "
            "did not come: look at its output, and check that it uses the same store"
        )

    # All ranks.

    def _key(self, what: int | str, who: int | str) -> str:
        return f"{_PREFIX}{self._name}/{what}/{who}"

    def _left(self) -> float:
        return max(0.01, self._deadline - time.monotonic())

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise BootstrapError(
                f"the job could not start: rank {self._rank} lost the other ranks: {error}"
            ) from error


def _is_whole(members: list[int]) -> bool:
    return members == list(range(len(members)))


def _packed(value: Any) -> bytes:
    """JSON, compressed: the records of many ranks are alike, and rank 0 sends them to all."""
    return zlib.compress(encode(value))


def _unpacked(data: bytes, limit: int) -> Any:
    try:
        return decode(zlib.decompressobj().decompress(data, limit))
    except zlib.error:
        raise BootstrapError("rank 0 sent a malformed list of records") from None
