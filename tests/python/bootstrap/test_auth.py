"""The handshake with peers that lie, send garbage or send nothing."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tfring.bootstrap import auth
from tfring.bootstrap import listener as listener_module
from tfring.bootstrap.errors import AuthError, BootstrapError
from tfring.bootstrap.listener import Listener, bind, connect
from tfring.bootstrap.secret import derived_secret, fresh_secret, job_key

KEY = job_key("a" * 64, "job")
DATA = auth.Role.DATA


@pytest.fixture
def listener():
    made = Listener(bind("127.0.0.1", 0, 16), KEY, 0)
    yield made
    made.close()


def soon(seconds=10.0):
    return time.monotonic() + seconds


def accept_in_background(listener, expected, seconds=10.0):
    """Calls accept() in a thread; returns a function that waits for its result."""
    result = {}

    def work():
        try:
            result["value"] = listener.accept(expected, soon(seconds))
        except BootstrapError as error:
            result["error"] = error

    thread = threading.Thread(target=work)
    thread.start()

    def finish():
        thread.join(30)
        assert not thread.is_alive()
        if "error" in result:
            raise result["error"]
        return result["value"]

    return finish


def join(listener, rank, key=KEY, role=DATA, wanted=0):
    address, port = listener.address
    return connect(address, port, key, auth.Hello(role, rank, wanted), soon())


def test_wrong_secret_is_refused_by_both_sides(listener):
    finish = accept_in_background(listener, {(DATA, 1)}, seconds=2.0)
    with pytest.raises(AuthError, match="wrong secret"):
        join(listener, 1, key=job_key("b" * 64, "job"))
    assert finish() == {}


def test_job_id_separates_jobs_with_one_secret():
    assert job_key("a" * 64, "one") != job_key("a" * 64, "two")
    assert fresh_secret() != fresh_secret()
    assert derived_secret("x") == derived_secret("x") != derived_secret("y")


def test_short_secret_is_refused():
    with pytest.raises(ValueError, match="TFRING_SECRET"):
        job_key("abc", "job")


GARBAGE = [
    b"",
    b"\x00",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10,
    b"\xff" * 4096,
    # A hello of the right size with everything too large.
    auth._HELLO.pack(auth._MAGIC, 255, 2**32 - 1, 2**32 - 1, b"\xff" * 32),
    auth._HELLO.pack(auth._MAGIC, DATA, 1, 7, b"n" * 32),  # for another rank
    auth._HELLO.pack(auth._MAGIC, DATA, 1, 0, b"n" * 32) + b"\x00" * 32,  # a made-up proof
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_does_not_keep_the_right_rank_out(listener, garbage):
    finish = accept_in_background(listener, {(DATA, 1)})
    stranger = socket.create_connection(listener.address)
    stranger.sendall(garbage)  # and then silence, with the connection open
    mine = join(listener, 1)
    assert set(finish()) == {(DATA, 1)}
    stranger.close(), mine.close()


def test_many_silent_connections_do_not_block(listener, monkeypatch):
    monkeypatch.setattr(listener_module, "_MAX_HANDSHAKES", 8)
    finish = accept_in_background(listener, {(DATA, 1)})
    strangers = [socket.create_connection(listener.address) for _ in range(30)]
    mine = join(listener, 1)
    assert set(finish()) == {(DATA, 1)}
    for sock in [*strangers, mine]:
        sock.close()


def test_silent_connection_is_closed(listener, monkeypatch):
    monkeypatch.setattr(listener_module, "_HANDSHAKE_SECONDS", 0.2)
    finish = accept_in_background(listener, {(DATA, 1)}, seconds=2.0)
    stranger = socket.create_connection(listener.address, timeout=10)
    assert stranger.recv(1) == b""
    stranger.close()
    assert finish() == {}


def recorded_handshake(listener):
    """Runs a handshake through an eavesdropper; returns what the connector sent."""
    proxy = bind("127.0.0.1", 0, 1)
    sent = bytearray()

    def relay():
        client, _ = proxy.accept()
        server = socket.create_connection(listener.address, timeout=10)
        client.settimeout(10)
        for count, source, sink in (
            (auth.HELLO_SIZE, client, server),
            (auth.CHALLENGE_SIZE, server, client),
            (auth.PROOF_SIZE, client, server),
        ):
            data = auth.receive_exactly(source, count)
            sink.sendall(data)
            if source is client:
                sent.extend(data)
        client.close(), server.close()

    thread = threading.Thread(target=relay)
    thread.start()
    finish = accept_in_background(listener, {(DATA, 1)})
    address, port = proxy.getsockname()
    sock = connect(address, port, KEY, auth.Hello(DATA, 1, 0), soon())
    thread.join(10)
    for accepted in finish().values():
        accepted.close()
    sock.close(), proxy.close()
    return bytes(sent)


def test_replayed_handshake_is_refused(listener):
    recorded = recorded_handshake(listener)
    assert len(recorded) == auth.HELLO_SIZE + auth.PROOF_SIZE
    finish = accept_in_background(listener, {(DATA, 1)}, seconds=2.0)
    attacker = socket.create_connection(listener.address, timeout=10)
    attacker.sendall(recorded)
    auth.receive_exactly(attacker, auth.CHALLENGE_SIZE)
    assert attacker.recv(1) == b""
    attacker.close()
    assert finish() == {}


def test_reflected_proof_is_refused(listener):
    finish = accept_in_background(listener, {(DATA, 1)}, seconds=2.0)
    attacker = socket.create_connection(listener.address, timeout=10)
    attacker.sendall(auth._HELLO.pack(auth._MAGIC, DATA, 1, 0, b"n" * 32))
    challenge = auth.receive_exactly(attacker, auth.CHALLENGE_SIZE)
    attacker.sendall(challenge[-auth.PROOF_SIZE :])
    assert attacker.recv(1) == b""
    attacker.close()
    assert finish() == {}


def test_listener_that_does_not_know_the_secret_is_refused():
    impostor = bind("127.0.0.1", 0, 1)

    def serve():
        sock, _ = impostor.accept()
        sock.settimeout(10)
        auth.receive_exactly(sock, auth.HELLO_SIZE)
        sock.sendall(b"\x00" * auth.CHALLENGE_SIZE)
        assert sock.recv(1) == b""  # no proof is sent to it
        sock.close()

    thread = threading.Thread(target=serve)
    thread.start()
    address, port = impostor.getsockname()
    with pytest.raises(AuthError, match="wrong secret"):
        connect(address, port, KEY, auth.Hello(DATA, 1, 0), soon())
    thread.join(10)
    impostor.close()


def test_role_and_ranks_are_part_of_what_is_proven(listener):
    """A proof for one role and rank is not accepted for another."""
    handshake = auth.ListenerHandshake(KEY, 0)
    hello = auth._HELLO.pack(auth._MAGIC, DATA, 1, 0, b"n" * 32)
    nonce = handshake.challenge(hello)[:32]
    for role, rank in ((auth.Role.CONTROL, 1), (DATA, 2)):
        other = auth._HELLO.pack(auth._MAGIC, role, rank, 0, b"n" * 32)
        with pytest.raises(AuthError):
            handshake.finish(auth._proof(KEY, b"connector", other, nonce))
    assert handshake.finish(auth._proof(KEY, b"connector", hello, nonce)).connector == 1


def test_two_processes_with_one_rank(listener):
    finish = accept_in_background(listener, {(DATA, 1), (DATA, 2)})
    first = join(listener, 1)
    second = join(listener, 1)
    with pytest.raises(BootstrapError, match="two processes say that they are rank 1"):
        finish()
    first.close(), second.close()


def test_unexpected_rank_is_refused(listener):
    finish = accept_in_background(listener, {(DATA, 1)})
    other = join(listener, 5)
    mine = join(listener, 1)
    assert set(finish()) == {(DATA, 1)}
    other.settimeout(10)
    assert other.recv(1) == b""
    other.close(), mine.close()
