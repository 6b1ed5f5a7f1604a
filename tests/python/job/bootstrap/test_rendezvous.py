"""The start of jobs without MPI, and its failures; ranks are threads."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import struct
import threading
import time

import pytest
from bootstrap_jobs import SECRET, close, free_port, identity, run_ranks

from tfring.job.bootstrap import (
    exchange,
    hosts,
    listening,
    meeting,
    mesh,
    records,
    store_exchange,
)
from tfring.job.bootstrap.connect import connect_job
from tfring.job.bootstrap.hosts import InterfaceAddress
from tfring.job.bootstrap.patience import Patience
from tfring.job.bootstrap.store_exchange import StoreExchange
from tfring.job.environments import Identity, Rendezvous
from tfring.job.handshake import auth
from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.listener import bind
from tfring.job.security.secret import job_key
from tfring.job.security.sources import JobSecret
from tfring.launch.agents import addresses
from tfring.launch.agents.addresses import own_address
from tfring.runtime import _native
from tfring.runtime.settings.environment import Settings, read_settings

KEY = job_key(SECRET, "")


def talk(memberships, kind):
    """Every rank sends its number on every connection, then reads and checks the peer's."""
    for rank, membership in memberships.items():
        for fd in getattr(membership, kind).values():
            assert not os.get_blocking(fd) and not os.get_inheritable(fd)
            os.write(fd, struct.pack(">I", rank))
    for membership in memberships.values():
        for peer, fd in getattr(membership, kind).items():
            os.set_blocking(fd, True)
            assert os.read(fd, 4) == struct.pack(">I", peer)


@pytest.mark.parametrize("size", [2, 5])
def test_all_ranks_are_connected(connect_all, size):
    memberships, errors = connect_all(size)
    assert not errors
    for rank, membership in memberships.items():
        others = set(range(size)) - {rank}
        assert set(membership.control_fds) == (others if rank == 0 else {0})
        assert set(membership.data_fds) == others
        assert set(membership.local_pids) == others
        assert (membership.local_rank, membership.local_size) == (rank, size)
        assert (membership.cross_rank, membership.cross_size) == (0, 1)
        assert membership.homogeneous and not membership.by_mpi
    talk(memberships, "control_fds")
    talk(memberships, "data_fds")


def test_large_jobs_connect_ring_neighbours_first(connect_all, monkeypatch):
    """Each rank has its own host; it goes on listening where the others expect it."""
    monkeypatch.setattr(records, "host_identity", lambda: secrets.token_hex(8))
    settings = Settings(secret=SECRET, start_timeout=20, mesh_limit=3, bind_addr="127.0.0.1")
    memberships, errors = connect_all(5, settings)
    assert not errors
    talk(memberships, "data_fds")
    seen = set()
    for rank, membership in memberships.items():
        options = _native.core.InitOptions()
        membership.hand_over(options)
        assert set(options.data_fds) == {(rank - 1) % 5, (rank + 1) % 5}
        for descriptor in (*options.control_fds.values(), *options.data_fds.values()):
            os.close(descriptor)
        seen.add((*options.data_endpoints, options.data_key))
        with socket.socket(fileno=options.data_listener) as sock:
            assert sock.getsockname() == options.data_endpoints[rank]
            socket.create_connection(options.data_endpoints[rank], timeout=10).close()
    assert len(seen) == 1


def test_each_generation_has_its_own_keys_and_number(connect_all):
    """Connections and frames of different generations cannot be confused."""
    settings = Settings(secret=SECRET, start_timeout=20)
    seen: dict[str, set[object]] = {"key": set(), "nonce": set(), "macs": set()}
    for _ in range(3):
        memberships, errors = connect_all(3, settings)
        assert not errors
        for name in ("key", "nonce"):
            (same,) = {getattr(membership, name) for membership in memberships.values()}
            assert same and same not in seen[name]
            seen[name].add(same)
        for membership in memberships.values():
            for keys in membership.control_keys.values():
                assert keys.send not in seen["macs"]
                seen["macs"].add(keys.send)


def test_ids_of_process_sets_go_on_where_any_rank_has_been():
    port = free_port()
    settings = Settings(secret=SECRET, start_timeout=20)
    memberships, errors = run_ranks(
        lambda rank: connect_job(
            identity(rank, 3, port), settings, {}, last_process_set=[4, 9, 0][rank]
        ),
        range(3),
    )
    assert not errors
    assert {membership.last_process_set for membership in memberships.values()} == {9}
    for membership in memberships.values():
        close(membership)


def test_every_rank_names_those_that_do_not_come():
    port = free_port()
    settings = Settings(secret=SECRET, start_timeout=2.0)
    _, errors = run_ranks(
        lambda rank: connect_job(identity(rank, 5, port), settings, {}), [0, 2, 4]
    )
    for rank in (0, 2, 4):
        assert isinstance(errors[rank], BootstrapError)
        assert "ranks 1 and 3 of 5 did not come" in str(errors[rank])


def test_rank_0_that_does_not_come():
    settings = Settings(secret=SECRET, start_timeout=0.5)
    with pytest.raises(BootstrapError, match="rank 1 could not reach rank 0 at localhost"):
        connect_job(identity(1, 2, free_port()), settings, {})


def test_different_secrets(connect_all):
    each = [Settings(secret=c * 64, start_timeout=3.0) for c in "ab"]
    _, errors = connect_all(2, each=each)
    assert "wrong secret" in str(errors[1])
    assert "rank 1 of 2 did not come" in str(errors[0])


def joined(port, rank, size):
    """Joins a job as a rank does; returns the rank's connections."""
    place = meeting.Meeting("localhost", [port], KEY, secret=JobSecret(SECRET))
    patience = Patience(f"rank {rank}", 20)
    owned = contextlib.ExitStack()
    if rank == 0:
        store = meeting.serve(place, size, owned)
    else:
        store, _ = meeting.join(place, rank, patience, owned)
    return store, StoreExchange(store, rank, range(size), patience, owned=owned)


def test_another_process_comes_in_the_place_of_one_that_was_killed():
    """As a pod that starts its container again."""
    port = free_port()
    settings = Settings(secret=SECRET, start_timeout=40)
    died = threading.Event()

    def work(number):
        rank = min(number, 2)
        if number == 1:
            store, _ = joined(port, 1, 3)
            store.cut()  # it sends no goodbye, like a killed process
            store.close()
            died.set()
            rank = 1
        if number == 2:
            died.wait(20)
        return connect_job(identity(rank, 3, port), settings, {})

    memberships, errors = run_ranks(work, range(3))
    assert not errors
    for membership in memberships.values():
        close(membership)


def test_the_record_of_a_killed_process_is_not_that_of_the_one_in_its_place():
    port = free_port()
    said = threading.Event()

    def work(rank):
        if rank == 2:
            said.wait(20)
        if rank == 1:
            store, lost = joined(port, 1, 3)
            store.set(lost._key(0, 1), exchange.encode("of the lost process"))
            store.cut()
            store.close()
            said.set()
        store, found = joined(port, rank, 3)
        if rank == 1:
            store.wait([found._key(0, 2)], 20)
            time.sleep(0.3)  # rank 0 must not hand out what it has
        try:
            return found.allgather(f"of rank {rank}")
        finally:
            found.close()

    values, errors = run_ranks(work, range(3))
    assert not errors
    assert all(each == ["of rank 0", "of rank 1", "of rank 2"] for each in values.values())


def test_rank_that_is_lost_while_the_job_starts_is_noticed_at_once():
    """And not when the time is up."""
    port = free_port()
    settings = Settings(secret=SECRET, start_timeout=600)

    def work(rank):
        if rank == 1:
            store, found = joined(port, 1, 3)
            found._store.wait([found._key(0, 2)], 30)  # all have come
            store.cut()
            store.close()
            return None
        return connect_job(identity(rank, 3, port), settings, {})

    _, errors = run_ranks(work, range(3))
    for rank in (0, 2):
        assert "rank 0 lost rank 1 while it started" in str(errors[rank])


@pytest.mark.parametrize(
    "payload,words",
    [
        (b"x" * (store_exchange.MAX_RECORD_BYTES + 1), "rank 1: a record of 65537 bytes"),
        (b"{]}", "not JSON"),
        (b"{}", "malformed record"),
        (b"null", "malformed record"),
        (b'{"version":"0.0.9"}', "rank 1 on host  has tfring 0.0.9, rank 0 on host"),
    ],
)
def test_malformed_records_from_a_member(payload, words):
    """A peer that knows the secret cannot make rank 0 crash."""
    port = free_port()
    settings = Settings(secret=SECRET, start_timeout=30)

    def work(rank):
        if rank == 0:
            return connect_job(identity(0, 2, port), settings, {})
        _, found = joined(port, 1, 2)
        with contextlib.closing(found), contextlib.suppress(BootstrapError):
            found._store.set(found._key(0, 1), payload)
            found._store.get(found._key(0, "all"), 20)
        return None

    _, errors = run_ranks(work, range(2))
    assert isinstance(errors[0], BootstrapError) and words in str(errors[0])


def test_rank_0s_settings_count_for_all(connect_all, caplog):
    each = [
        Settings(
            secret=SECRET, start_timeout=20, runtime={"PIECE_BYTES": "1", "LOG_LEVEL": "info"}
        ),
        Settings(
            secret=SECRET, start_timeout=20, runtime={"PIECE_BYTES": "2", "LOG_LEVEL": "error"}
        ),
        Settings(secret=SECRET, start_timeout=20),
    ]
    with caplog.at_level(logging.WARNING, "tfring"):
        memberships, errors = connect_all(3, each=each)
    assert not errors
    assert memberships[0].runtime == {"PIECE_BYTES": "1", "LOG_LEVEL": "info"}
    assert memberships[1].runtime == {"PIECE_BYTES": "1", "LOG_LEVEL": "error"}
    assert memberships[2].runtime == {"PIECE_BYTES": "1"}
    assert "TFRING_X_PIECE_BYTES is 2 on rank 1 and 1 on rank 0" in caplog.text


def test_unknown_interface_is_an_error_on_every_rank(connect_all):
    good = Settings(secret=SECRET, start_timeout=20)
    bad = Settings(secret=SECRET, start_timeout=20, interface=("nope0",))
    _, errors = connect_all(2, each=[good, bad])
    assert "nope0" in str(errors[1])
    assert "rank 1" in str(errors[0]) and "nope0" in str(errors[0])


def test_interface_is_respected(connect_all):
    own = [a for a in hosts.interface_addresses() if not a.loopback]
    if not own:
        pytest.skip("this machine has only a loopback interface")
    settings = Settings(secret=SECRET, start_timeout=20, interface=(own[0].interface,))
    memberships, errors = connect_all(2, settings)
    assert not errors
    with socket.socket(fileno=os.dup(memberships[0].data_fds[1])) as sock:
        assert sock.getsockname()[0] == own[0].address


def test_ranks_of_one_host_use_the_loopback_interface_only(connect_all):
    memberships, _ = connect_all(2)
    for fds in (memberships[0].data_fds, memberships[0].control_fds):
        with socket.socket(fileno=os.dup(fds[1])) as sock:
            assert sock.getsockname()[0] == sock.getpeername()[0] == "127.0.0.1"


def test_an_inherited_socket_is_used_only_if_it_is_one():
    sock = bind("127.0.0.1", 0, 4)
    port = sock.getsockname()[1]
    assert listening.adopt_socket(0, port) is None
    assert listening.adopt_socket(9999, port) is None
    assert listening.adopt_socket(sock.fileno(), port + 1) is None
    adopted = listening.adopt_socket(sock.detach(), port)
    assert adopted is not None and adopted.getsockname()[1] == port
    assert not adopted.get_inheritable()
    adopted.close()


def test_single_process():
    alone = Identity("a single process", 0, 1, Rendezvous.NONE)
    membership = connect_job(alone, read_settings({}), {})
    assert (membership.rank, membership.size, membership.local_size) == (0, 1, 1)
    assert membership.control_fds == membership.data_fds == membership.local_pids == {}


def record(rank, host, local=None, local_size=None):
    return records.Record(rank, host, host, 1, "0", local, local_size, 64, "", [], {})


def test_topology_from_host_identities():
    # Ranks 0, 2, 3 on host a, 1 and 4 on host b.
    job = [record(r, h) for r, h in enumerate("abaab")]
    places = [records.topology_of(job, r) for r in range(5)]
    assert [p.local_rank for p in places] == [0, 0, 1, 2, 1]
    assert [p.local_size for p in places] == [3, 2, 3, 3, 2]
    assert [p.cross_rank for p in places] == [0, 1, 0, 0, 1]
    assert [p.cross_size for p in places] == [2, 2, 2, 1, 2]
    assert not any(p.homogeneous for p in places)


def test_topology_of_the_environment_wins_if_everybody_has_it():
    job = [record(0, "a", 1, 2), record(1, "a", 0, 2)]
    assert records.topology_of(job, 0).local_rank == 1
    job = [record(0, "a", 1, 2), record(1, "a")]
    assert records.topology_of(job, 0).local_rank == 0


def address(text, prefix=24, name="eth0"):
    return InterfaceAddress(name, text, prefix, text.startswith("127."))


def test_common_network_is_not_a_bridge_that_looks_the_same_everywhere():
    loop, bridge = address("127.0.0.1", 8, "lo"), address("172.17.0.1", 16, "docker0")
    a = [loop, bridge, address("10.1.0.5")]
    b = [loop, bridge, address("10.1.0.6")]
    c = [loop, bridge, address("10.2.0.6")]
    assert hosts.common_network([a, b]) == "10.1.0.0/24"
    assert hosts.common_network([a, b, c]) is None


def test_records_survive_json():
    mine = records.Record.of_this_process(identity(0, 2, 1), read_settings({}))
    assert records.Record.from_json(json.loads(json.dumps(mine.to_json())), 0) == mine
    assert len(exchange.encode(mine.to_json())) < store_exchange.MAX_RECORD_BYTES
    with pytest.raises(BootstrapError, match="rank 3 describes itself as rank 0"):
        records.Record.from_json(mine.to_json(), 3)


@pytest.mark.parametrize("on_a_host", [1, 8])
@pytest.mark.parametrize("size,limit", [(3, 2), (64, 64), (65, 64)])
def test_links_are_the_same_at_both_ends(size, limit, on_a_host):
    host_ids = [str(rank // on_a_host) for rank in range(size)]
    links = [mesh.links(rank, host_ids, limit) for rank in range(size)]
    for rank in range(size):
        assert all((role, rank) in links[peer] for role, peer in links[rank])
        near = {r for r in range(size) if host_ids[r] == host_ids[rank]}
        near |= {(rank - 1) % size, (rank + 1) % size}
        data = {peer for role, peer in links[rank] if role is auth.Role.DATA}
        assert data == (near if size > limit else set(range(size))) - {rank}
    assert sum(role is auth.Role.CONTROL for own in links for role, _ in own) == 2 * (size - 1)


def test_rank_that_is_early_for_another_job_retries():
    """Rank 1 is there at once; rank 0 first forms a different job with rank 2."""
    port = free_port()
    settings = Settings(secret=SECRET, start_timeout=20)

    def work(rank):
        for other in {0: (2, 1), 1: (1,), 2: (2,)}[rank]:
            if rank == 2:
                time.sleep(0.5)
            own = identity(rank, 3, port)
            membership = connect_job(own, settings, {}, comm=[other, 0])
            close(membership)
        return membership

    memberships, errors = run_ranks(work, range(3))
    assert not errors
    assert {r: (m.rank, m.size) for r, m in memberships.items()} == {
        0: (1, 2),
        1: (0, 2),
        2: (0, 2),
    }
    assert all(m.local_size == 2 for m in memberships.values())


def test_an_interface_with_an_ipv6_address_only(monkeypatch):
    only = [hosts.InterfaceAddress("eth6", "fd00::1", 64, False)]
    monkeypatch.setattr(hosts, "interface_addresses", lambda: only)
    assert own_address("eth0,eth6", None) == "fd00::1"
    with pytest.raises(OSError, match=r"asks for eth0\. .*none of them is up.*those.*eth6"):
        own_address("eth0", None)


@pytest.mark.parametrize("order", [("::1", "127.0.0.1"), ("127.0.0.1", "::1")])
def test_the_family_towards_a_host_is_the_one_that_the_system_prefers(monkeypatch, order):
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *more, **few: [real(one, *more, **few)[0] for one in order]
    )
    try:
        assert own_address(None, "both.example") == order[0]
    except OSError as error:
        pytest.skip(f"needs IPv6: {error}")


def test_a_silent_name_server_does_not_hold_the_launcher_up(monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60))
    monkeypatch.setattr(addresses, "LOOKUP_SECONDS", 0.1)
    with pytest.raises(OSError, match=r"no name server has told the address of far\.example"):
        own_address(None, "far.example")
    over.set()
