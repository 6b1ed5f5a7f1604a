"""Jobs whose ranks meet through a store; ranks are threads."""

from __future__ import annotations

import json

import pytest
from bootstrap_jobs import SECRET, close, run_ranks
from own_store import OwnStore

from tfring.job.bootstrap import hosts, patience
from tfring.job.bootstrap.connect import connect_job
from tfring.job.bootstrap.patience import Patience
from tfring.job.bootstrap.store_exchange import StoreExchange
from tfring.job.environments import Identity, Rendezvous
from tfring.job.handshake.errors import BootstrapError
from tfring.job.security.errors import SecretError
from tfring.job.store import TCPStore
from tfring.runtime.settings.environment import Settings

LIMIT = 60.0
SETTINGS = Settings(start_timeout=LIMIT)


def identity(rank, size, path=None):
    return Identity("a test", rank, size, Rendezvous.STORE, address=path and str(path))


def connect(ranks, size, stores, settings=SETTINGS):
    """Connects ranks; `stores` gives a rank its store, or None and the path of a file."""

    def one(rank):
        store, path = stores(rank)
        return connect_job(identity(rank, size, path), settings, {}, store=store)

    return run_ranks(one, ranks)


def meet(store, rank, size, seconds):
    return StoreExchange(store, rank, range(size), Patience(f"rank {rank}", seconds))


def check_and_close(memberships, size):
    assert {r: (m.rank, m.size) for r, m in memberships.items()} == {
        rank: (rank, size) for rank in range(size)
    }
    assert len({m.key for m in memberships.values()}) == 1
    assert memberships[0].key is not None
    for membership in memberships.values():
        assert set(membership.data_fds) == set(range(size)) - {membership.rank}
        close(membership)


def test_several_jobs_in_a_row_through_one_store():
    with OwnStore() as store:
        keys = set()
        for size in (2, 3, 2):
            memberships, errors = connect(range(size), size, lambda _: (store, None))
            assert not errors
            keys.add(memberships[0].key)
            check_and_close(memberships, size)
            assert store.num_keys() == 0
        assert len(keys) == 3


def test_through_a_file(tmp_path):
    path = tmp_path / "job"
    for size in (3, 2):
        memberships, errors = connect(range(size), size, lambda _: (None, path))
        assert not errors
        check_and_close(memberships, size)
        assert not path.exists()


def test_a_file_that_an_earlier_job_has_left(tmp_path):
    """Its rank 0 was killed: the port is closed, or a different process has it."""
    path = tmp_path / "job"
    place = {"host": hosts.host_identity(), "addresses": [], "port": 1, "secret": SECRET}
    for left in (b"", json.dumps(place).encode(), b"{}"):
        path.write_bytes(left)
        path.chmod(0o600)
        memberships, errors = connect(range(2), 2, lambda _: (None, path))
        assert not errors
        check_and_close(memberships, 2)


def test_a_file_that_others_can_read_or_that_cannot_be_written(tmp_path):
    path = tmp_path / "job"
    path.write_text("{}")
    path.chmod(0o644)
    _, errors = connect([1], 2, lambda _: (None, path), Settings(start_timeout=0.3))
    assert "rank 1 waited 0.3 s for rank 0" in str(errors[1]) and "mode 0644" in str(errors[1])
    _, errors = connect([0], 2, lambda _: (None, tmp_path / "no" / "job"))
    assert "rank 0 cannot write" in str(errors[0])


def test_through_a_tcp_store():
    with TCPStore("localhost", 0, is_master=True, timeout=LIMIT) as server:
        clients = [server, TCPStore("localhost", server.port, timeout=LIMIT)]
        memberships, errors = connect(range(2), 2, lambda rank: (clients[rank], None))
        assert not errors
        check_and_close(memberships, 2)
        assert server.num_keys() == 0
        clients[1].close()


def test_what_a_killed_job_has_left_confuses_nobody():
    """All ranks were killed, in any phase, after rank 0 had answered."""
    with OwnStore() as store:
        for rank in (1, 2):
            arrival = {"rank": rank, "size": 3}
            store.set(f"tfring/init/arrived/old{rank}", json.dumps(arrival))
        for number, foreign in enumerate((b"{]}", b"null", b"[1]", b'{"rank": "a", "size": []}')):
            store.set(f"tfring/init/arrived/foreign{number}", foreign)
        store.set("tfring/init/answer/old1", json.dumps({"name": "oldname"}))
        store.set("tfring/init/oldname/joined/1", "old1")
        store.set("tfring/init/oldname/0/1", json.dumps({"version": "0"}))
        store.set("tfring/init/oldname/0/all", b"garbage")
        memberships, errors = connect(range(3), 3, lambda _: (store, None))
        assert not errors
        check_and_close(memberships, 3)


@pytest.mark.parametrize("answer", [b"{]}", b"null", b"[]", b"{}"])
def test_an_answer_that_rank_0_did_not_send(monkeypatch, answer):
    monkeypatch.setattr(StoreExchange, "_answer_to", lambda *_: answer)
    with OwnStore() as store, pytest.raises(BootstrapError, match=r"malformed|not JSON"):
        meet(store, 1, 2, LIMIT)


def test_everybody_is_told_who_did_not_come():
    settings = Settings(start_timeout=1.0)
    with OwnStore() as store:
        _, errors = connect([0, 2], 4, lambda _: (store, None), settings)
    for rank in (0, 2):
        assert isinstance(errors[rank], BootstrapError)
        assert "ranks 1 and 3 of 4 did not come" in str(errors[rank])


def test_who_waits_says_for_whom_long_before_the_time_is_up(monkeypatch, caplog):
    monkeypatch.setattr(patience, "_FIRST_SECONDS", 0.1)
    with OwnStore() as store:
        connect([0, 2], 4, lambda _: (store, None), Settings(start_timeout=1.0))
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("rank 0 waits for ranks 1 and 3 of 4, and gives up in 1 s")
    assert 1 <= len(set(said)) <= 2  # at growing intervals
    with OwnStore() as store:
        connect([1], 4, lambda _: (store, None), Settings(start_timeout=1.0))
    assert "rank 1 waits for rank 0, which has not come to the store" in caplog.text


def test_rank_0_does_not_come():
    settings = Settings(start_timeout=0.3)
    with OwnStore() as store:
        _, errors = connect([1], 2, lambda _: (store, None), settings)
    assert "rank 1 waited 0.3 s in the store for rank 0" in str(errors[1])


def test_ranks_that_disagree_about_the_size():
    with OwnStore() as store:

        def work(rank):
            timeout = 3.0 if rank == 0 else LIMIT
            return meet(store, rank, (2, 3)[rank], timeout)

        _, errors = run_ranks(work, range(2))
    assert "rank 1 was told that the job has 3 ranks, and rank 0 that it has 2" in str(errors[1])
    assert "rank 1 of 2 did not come" in str(errors[0])


def test_two_processes_with_one_rank():
    with OwnStore() as store:

        def work(number):
            rank = (0, 1, 1)[number]
            return meet(store, rank, 3, 2.0 if number == 0 else LIMIT)

        _, errors = run_ranks(work, range(3))
    assert "rank 2 of 3 did not come" in str(errors[0])
    said = [str(errors[n]) for n in (1, 2) if n in errors]
    assert len(said) == 1 and "two processes say that they are rank 1" in said[0]


def test_a_rank_that_is_lost_while_the_job_starts():
    with OwnStore() as store:
        exchanges, errors = run_ranks(lambda rank: meet(store, rank, 3, 2.0), range(3))
        assert not errors
        for exchange in exchanges.values():
            exchange._deadline -= 5.0  # the time that is left for reports, which this does not need
        _, errors = run_ranks(lambda rank: exchanges[rank].allgather(rank), [0, 1])
    assert "rank 0 lost rank 2 while it started" in str(errors[0])
    assert "rank 0 lost rank 2 while it started" in str(errors[1])


def test_a_store_that_is_gone():
    store = OwnStore()
    exchanges, _ = run_ranks(lambda rank: meet(store, rank, 2, LIMIT), range(2))
    store.close()
    _, errors = run_ranks(lambda rank: exchanges[rank].allgather(rank), range(2))
    for rank in range(2):
        assert f"rank {rank} lost the other ranks: the own store was closed" in str(errors[rank])
        exchanges[rank].close()


def test_a_store_that_others_may_read(monkeypatch):
    with OwnStore(secret=None) as store:
        memberships, errors = connect(range(2), 2, lambda _: (store, None))
        assert not errors
        check_and_close(memberships, 2)
        hosts = iter("ab")
        monkeypatch.setattr("tfring.job.bootstrap.records.host_identity", lambda: next(hosts))
        _, errors = connect(range(2), 2, lambda _: (store, None))
        assert all(isinstance(errors[rank], SecretError) for rank in range(2))
        hosts = iter("ab")
        with_secret = Settings(start_timeout=LIMIT, secret=SECRET)
        memberships, errors = connect(range(2), 2, lambda _: (store, None), with_secret)
        assert not errors
        for membership in memberships.values():
            close(membership)
