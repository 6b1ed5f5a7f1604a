"""The exchange through a store, which all ranks of a job can use.

A store may hold what an earlier job has left there that was killed. So every rank comes with a
token of its own, rank 0 answers each token with the name of this generation, and a rank that uses
the name has read the answer to its own token. All further keys begin with that name; rank 0
deletes them in the end.
"""

from __future__ import annotations

import contextlib
import secrets
import time
import zlib
from typing import Any

from tfring.bootstrap.exchange import decode, encode
from tfring.bootstrap.patience import Patience
from tfring.bootstrap.rendezvous import MAX_RECORD_BYTES
from tfring.handshake.errors import BootstrapError
from tfring.store import PrefixStore, Store, StoreError, StoreTimeoutError
from tfring.texts.ranks import ranks_text

_PREFIX = "tfring/init"
# Added to the time limit, so that rank 0 can still tell the others which rank is missing.
_REPORT_SECONDS = 5.0
# How long rank 0 waits for others to have read the last answer, before it deletes the keys.
_LEAVE_SECONDS = 5.0


class StoreExchange:
    """Exchanges values between the ranks of a job: rank 0 gathers them and hands them out."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float, *, owned: bool) -> None:
        """Meets the other ranks.

        Args:
            store: All ranks of the job have it.
            rank: Our rank.
            size: Number of ranks.
            timeout: Seconds to wait for the others.
            owned: Whether close() closes the store.

        Raises:
            BootstrapError: A rank did not come, or two say that they are the same; or the store
                failed.
        """
        self._given = store if owned else None
        self._store = PrefixStore(_PREFIX, store)
        self._rank, self._size = rank, size
        self._patience = Patience(f"rank {rank}", timeout)
        self._deadline = self._patience.deadline
        self._round = 0
        self._name = ""
        self._answered: list[str] = []  # rank 0: the keys of answers to those who came
        try:
            with self._store_errors():
                if rank == 0:
                    self._gather_ranks()
                else:
                    self._join()
        except BaseException:
            self._close_store()
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
            answer = self._read(self._store.get(self._key(number, "all"), patience))
            if not isinstance(answer, dict) or "error" in answer:
                text = answer.get("error") if isinstance(answer, dict) else "a malformed answer"
                raise BootstrapError(str(text))
            values = answer.get("values")
            if not isinstance(values, list) or len(values) != self._size:
                raise BootstrapError("rank 0 sent a malformed list of records")
            return values

    def close(self) -> None:
        """Leaves; rank 0 removes the keys when the others have read them. Never fails."""
        with contextlib.suppress(StoreError):
            if self._rank != 0:
                self._store.set(f"{self._name}/left/{self._rank}", b"", timeout=_LEAVE_SECONDS)
            else:
                left = [f"{self._name}/left/{other}" for other in range(1, self._size)]
                with contextlib.suppress(StoreTimeoutError):
                    self._store.wait(left, _LEAVE_SECONDS)
                joined = [f"{self._name}/joined/{other}" for other in range(1, self._size)]
                answers = [self._key(number, "all") for number in range(self._round)]
                for key in (*left, *joined, *answers, *self._answered):
                    self._store.delete(key, _LEAVE_SECONDS)
        self._close_store()

    def _close_store(self) -> None:
        if self._given is not None:
            self._given.close()

    def _gather_ranks(self) -> None:
        """Rank 0: answers whoever comes, until all ranks have read an answer."""
        self._name = secrets.token_hex(8)
        joined: set[int] = set()
        with self._store.watch(timeout=self._left()) as changes:
            while len(joined) < self._size - 1:
                missing = sorted(set(range(1, self._size)) - joined)
                self._patience.tell(f"{ranks_text(missing)} of {self._size}")
                if self._patience.is_over:
                    self._refuse(missing)
                try:
                    change = changes.next(self._patience.until_next_word)
                except StoreTimeoutError:
                    continue
                if change.value is None:
                    continue
                kind, _, last = change.key.rpartition("/")
                if kind == f"{self._name}/joined":
                    joined.add(int(last))
                elif kind == "arrived":
                    self._answer(last, decode(change.value), joined)

    def _answer(self, token: str, arrival: Any, joined: set[int]) -> None:
        try:
            rank, size = int(arrival["rank"]), int(arrival["size"])
        except (KeyError, TypeError, ValueError):
            return  # of another version of tfring, perhaps
        answer = {"name": self._name}
        if size != self._size or not 0 < rank < self._size:
            answer = {
                "error": f"rank {rank} was told that the job has {size} ranks, and rank 0 that it "
                f"has {self._size}: init(size=...) has to be the same on all of them"
            }
        elif rank in joined:
            answer = {"error": _two_processes(rank)}
        self._store.delete(f"arrived/{token}", self._left())
        self._store.set(f"answer/{token}", encode(answer), timeout=self._left())
        self._answered.append(f"answer/{token}")

    def _refuse(self, missing: list[int]) -> None:
        reason = (
            f"rank 0 waited {self._patience.seconds:g} s in the store, and {ranks_text(missing)} "
            f"of {self._size} did not come: look at their output for an earlier error, and check "
            "that they use the same store; if they only need longer, raise TFRING_START_TIMEOUT"
        )
        self._store.set(self._key(0, "all"), _packed({"error": reason}), timeout=_REPORT_SECONDS)
        raise BootstrapError(reason) from None

    def _join(self) -> None:
        """The other ranks: come with a token, and take part in the generation of its answer."""
        token = secrets.token_hex(8)
        arrival = {"rank": self._rank, "size": self._size}
        self._store.set(f"arrived/{token}", encode(arrival), timeout=self._left())
        answer = decode(self._answer_to(token))
        if "error" in answer:
            raise BootstrapError(str(answer["error"]))
        self._name = str(answer["name"])
        key = f"{self._name}/joined/{self._rank}"
        if self._store.compare_set(key, "", token, self._left()) != token.encode():
            raise BootstrapError(_two_processes(self._rank))

    def _answer_to(self, token: str) -> bytes:
        while not self._patience.is_over:
            try:
                return self._store.get(f"answer/{token}", self._patience.until_next_word)
            except StoreTimeoutError:
                if self._rank == 1:  # one of those that wait is enough
                    self._patience.tell(f"rank 0 of {self._size}, which has not come to the store")
        raise BootstrapError(
            f"rank {self._rank} waited {self._patience.seconds:g} s in the store for rank 0, which "
            "did not come: look at its output, and check that it uses the same store"
        )

    def _hand_out(self, number: int, value: Any) -> list[Any]:
        values, missing, broken = [value], [], ""
        for rank in range(1, self._size):
            try:
                values.append(decode(self._store.get(self._key(number, rank), self._left())))
            except StoreTimeoutError:
                missing.append(rank)
            except BootstrapError as error:
                broken = f"rank {rank}: {error}"
        if missing or broken:
            lost = f"rank 0 lost {ranks_text(missing)} while it started" if missing else broken
            reason = f"the job could not start: {lost}"
            self._store.set(self._key(number, "all"), _packed({"error": reason}), timeout=5.0)
            raise BootstrapError(reason)
        self._store.set(self._key(number, "all"), _packed({"values": values}), timeout=self._left())
        for rank in range(1, self._size):
            self._store.delete(self._key(number, rank), self._left())
        return values

    def _read(self, data: bytes) -> Any:
        limit = MAX_RECORD_BYTES * (self._size + 1)
        try:
            return decode(zlib.decompressobj().decompress(data, limit))
        except zlib.error:
            raise BootstrapError("rank 0 sent a malformed list of records") from None

    def _key(self, number: int, who: int | str) -> str:
        return f"{self._name}/{number}/{who}"

    def _left(self) -> float:
        return max(0.01, self._deadline - time.monotonic())

    @contextlib.contextmanager
    def _store_errors(self) -> Any:
        try:
            yield
        except StoreError as error:
            raise BootstrapError(
                f"the job could not start: rank {self._rank} lost the other ranks: {error}"
            ) from error


def _two_processes(rank: int) -> str:
    return (
        f"two processes say that they are rank {rank} of this job: check init(rank=...), and that "
        "no process of an earlier run still runs"
    )


def _packed(value: Any) -> bytes:
    return zlib.compress(encode(value))
