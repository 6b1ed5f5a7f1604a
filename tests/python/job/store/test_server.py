"""How the server of a TCPStore treats strangers, broken clients and slow clients."""

from __future__ import annotations

import random
import socket
import struct
import time
from datetime import timedelta

import pytest
from store_tools import LIMIT, SECRET, in_threads, programs

from tfring.job.handshake.auth import Hello, Role
from tfring.job.handshake.connector import connect
from tfring.job.security.errors import SecretError
from tfring.job.security.secret import job_key
from tfring.job.store import (
    Limits,
    PrefixStore,
    ServerLimits,
    StoreConnectionError,
    StoreLimitError,
    StoreTimeoutError,
    TCPStore,
)
from tfring.job.store.tcp.messages import Answer, Kind, Op, Request

KEY = job_key(SECRET, "store")
GETS = 600  # of 64 KiB each: more than sockets and the server's queue hold


def raw(port):
    """A connection after the handshake, without a client behind it."""
    hello = Hello(Role.STORE, 0, 0)
    channel = connect("localhost", port, KEY, hello, time.monotonic() + LIMIT)
    channel.sock.settimeout(LIMIT)
    return channel


def opened(port):
    """The same with a session."""
    channel = raw(port)
    channel.send(Request(Op.OPEN, 0, 0, (random.randbytes(16), b"1000", b"0")).encode())
    assert Answer.decode(channel.receive(1024)).kind is Kind.DONE
    return channel


def is_dropped(sock):
    """Waits until the server has closed a connection; ends with the test's limit if it has not."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def test_a_slow_client_harms_nobody(tcp):
    """The server stops reading from it, serves all others, and loses nothing."""
    store, value = tcp.client(), random.randbytes(64 << 10)
    store.set("large", value)
    slow = opened(tcp.server.port)
    slow.sock.setblocking(False)
    asked, unsent = 0, b""
    for turn in range(1, 4):  # its requests fill the buffers: the server reads no more of them
        try:
            while True:
                if not unsent:
                    asked += 1
                    what = (Op.GET, (b"large",)) if asked <= GETS else (Op.PING, (bytes(1 << 16),))
                    unsent = slow.framed(Request(what[0], asked, 1, what[1]).encode())
                unsent = unsent[slow.sock.send(unsent) :]
        except BlockingIOError:
            assert store.add("n", 1) == turn
    assert asked > GETS
    for number in range(10):
        store.set("other", b"%d" % number)
        assert store.get("other") == b"%d" % number
    slow.sock.settimeout(LIMIT)
    for number in range(1, GETS + 1):
        answer = Answer.decode(slow.receive(2 << 20))
        assert answer.number == number and answer.fields == (value,)
    slow.sock.close()


def test_a_slow_watcher_costs_the_server_no_more_than_the_keys(tcp):
    store = tcp.client()
    slow = opened(tcp.server.port)
    slow.send(Request(Op.WATCH, 1, 1, (b"",)).encode())
    value = bytes(64 << 10)
    for number in range(200):  # 13 MB, more than the sockets hold
        store.set("same", value + b"%d" % number)
    store.set("end", b"")
    revisions, last = [], b""
    while last != b"end":
        answer = Answer.decode(slow.receive(1 << 20))
        if answer.kind is Kind.CHANGED:
            last = answer.fields[0]
            revisions.append(int(answer.fields[1]))
    assert revisions == sorted(set(revisions)) and len(revisions) < 200
    slow.sock.close()


def garbage(dice):
    """Bytes that are not a request, or a request with invalid fields."""
    kind = dice.randrange(4)
    if kind == 0:
        return dice.randbytes(dice.randrange(60))
    fields = tuple(dice.randbytes(dice.randrange(12)) for _ in range(dice.randrange(4)))
    message = Request(dice.choice(list(Op)), dice.randrange(9), dice.randrange(9), fields).encode()
    if kind == 1:
        return message[: dice.randrange(len(message))]
    if kind == 2:
        position = dice.randrange(len(message))
        return message[:position] + dice.randbytes(3) + message[position + 3 :]
    return message


def test_requests_that_make_no_sense(tcp):
    """The server drops the sender or answers with an error; other clients notice nothing."""
    dice, store = random.Random(1), tcp.client()
    for number in range(60):
        channel = opened(tcp.server.port) if dice.random() < 0.8 else raw(tcp.server.port)
        with channel.sock:
            for _ in range(dice.randrange(1, 6)):
                try:
                    channel.send(garbage(dice))
                except ConnectionError:
                    break
        store.set(f"n{number % 3}", b"%d" % number)
        assert store.get(f"n{number % 3}") == b"%d" % number


@pytest.mark.parametrize("where", ["length", "MAC", "total"])
def test_frames_that_the_client_did_not_send(tcp, where):
    channel = opened(tcp.server.port)
    frame = bytearray(channel.framed(Request(Op.SET, 1, 1, (b"k", b"v", b"")).encode()))
    if where == "length":
        frame[0:4] = struct.pack("<I", 1 << 30)
    elif where == "MAC":
        frame[-1] ^= 1
    else:
        frame = bytearray(channel.framed(bytes(40 << 20))[:28])
    channel.sock.sendall(frame)
    assert is_dropped(channel.sock)
    assert not tcp.server.check(["k"])


def test_without_a_secret_a_store_is_for_this_host(monkeypatch):
    for name in ("TFRING_SECRET", "TFRING_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SecretError, match="set TFRING_SECRET"):
        TCPStore("192.0.2.1", 1, timeout=1)
    with TCPStore("localhost", 0, is_master=True, timeout=LIMIT, bind_addr="") as server:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", server.port), timeout=LIMIT)
        with TCPStore("127.0.0.1", server.port, timeout=LIMIT) as client:
            client.set("k", b"v")
            assert client.secret() == server.secret() != ""


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StoreConnectionError, match="cannot listen at localhost"):
            TCPStore("localhost", port, is_master=True)
    with pytest.raises(StoreConnectionError, match=r"could not be reached within 0\.3 s"):
        TCPStore("localhost", port, timeout=0.3)


def test_a_server_takes_only_so_much():
    limits = ServerLimits(Limits(keys=3, total_bytes=1000), clients=2)
    with TCPStore("localhost", 0, is_master=True, timeout=LIMIT, limits=limits) as server:
        for key in "abc":
            server.set(key, b"")
        with pytest.raises(StoreLimitError, match="3 keys, as many as it takes"):
            server.add("d", 1)
        with pytest.raises(StoreLimitError, match="takes 1000"):
            server.set("a", bytes(1000))
        server.set("a", bytes(900))
        server.delete_key("a")
        server.set("d", bytes(900))
        with (
            TCPStore("localhost", server.port, timeout=LIMIT),
            pytest.raises(StoreConnectionError, match="does not wait for a client"),
        ):
            TCPStore("localhost", server.port, timeout=0.3)


def test_a_number_that_waits_already_is_no_number_of_another_request(tcp):
    """Otherwise the first request would stay in the server for ever."""
    client = opened(tcp.server.port)
    for key in (b"never", b"nor this"):
        client.send(Request(Op.WAIT, 1, 1, (key,)).encode())
    assert is_dropped(client.sock)
    client.sock.close()
    assert tcp.client().add("n", 1) == 1


def test_arguments_are_those_of_torch():
    """In its order: world_size, is_master, timeout, wait_for_workers, multi_tenant."""
    limit = timedelta(seconds=LIMIT)
    with TCPStore("localhost", 0, 1, True, limit, True, True) as server:
        assert (server.host, server.timeout) == ("localhost", limit)
        with TCPStore("localhost", server.port, 5, True, limit, False, True) as other:
            other.set("k", b"v")
            assert server.get("k") == b"v"
        part = PrefixStore("part", server)
        assert part.underlying_store is server and part.timeout == limit
        part.set_timeout(timedelta(seconds=7))
        assert server.timeout == timedelta(seconds=7)
    with pytest.raises(StoreTimeoutError, match="for 2 clients"):
        TCPStore("localhost", 0, 2, True, timedelta(seconds=0.3))


def test_a_server_without_descriptors_takes_clients_when_it_has_some():
    code = """
        import os, resource
        server = TCPStore("localhost", 0, is_master=True)
        used = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 4, used + 4))
        print(server.port)
        sys.stdin.read()
    """
    with programs(code) as (process,):
        port = int(process.stdout.readline())

        def work(number):
            with TCPStore("localhost", port, timeout=LIMIT) as store:
                return store.add("n", 1)

        results, errors = in_threads(work, 10)
        assert not errors
        assert sorted(results.values()) == list(range(1, 11))
