"""The handshake with peers that lie, send garbage or send nothing."""

from __future__ import annotations

import hashlib
import socket
import threading
import time

import pytest

from tfring.job.handshake import auth, handshakes
from tfring.job.handshake.connector import connect
from tfring.job.handshake.errors import AuthError, BootstrapError, NotAdmittedError
from tfring.job.handshake.listener import Listener, bind
from tfring.job.security.errors import SecretError
from tfring.job.security.mac import receive_exactly
from tfring.job.security.secret import expand, job_key

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


def join(listener, rank, key=KEY, role=DATA, wanted=0, seconds=10.0):
    address, port = listener.address
    return connect(address, port, key, auth.Hello(role, rank, wanted), soon(seconds)).sock


def test_wrong_secret_is_refused_by_both_sides(listener):
    finish = accept_in_background(listener, {(DATA, 1)}, seconds=4.0)
    with pytest.raises(AuthError, match="wrong secret"):
        join(listener, 1, key=job_key("b" * 64, "job"), seconds=2.0)
    assert finish() == {}


def test_short_secret_is_refused():
    with pytest.raises(SecretError, match="TFRING_SECRET"):
        job_key("abc", "job")


@pytest.mark.parametrize(
    "words",
    ["sixteen letters!", "please do not connect to my job!"],
)
def test_a_persons_own_words_are_stretched(words):
    """They go through scrypt, so that each guess costs memory and time."""
    plain = hashlib.sha256(b"tfring secret\0" + words.encode()).digest()
    assert job_key(words, "job") != expand(plain, b"job\0job")


def test_hexadecimal_digits_are_not_stretched():
    random = hashlib.sha256(b"tfring secret\0" + b"c" * 64).digest()
    assert job_key("c" * 64, "job") == expand(random, b"job\0job")


GARBAGE = [
    b"",
    b"\xff" * 4096,
    # A hello of the right size whose fields are all too large.
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


def test_silent_connection_is_closed(listener, monkeypatch):
    monkeypatch.setattr(handshakes, "_HANDSHAKE_SECONDS", 0.2)
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
            (auth.VERDICT_SIZE, server, client),
        ):
            data = receive_exactly(source, count)
            sink.sendall(data)
            if source is client:
                sent.extend(data)
        client.close(), server.close()

    thread = threading.Thread(target=relay)
    thread.start()
    finish = accept_in_background(listener, {(DATA, 1)})
    address, port = proxy.getsockname()
    channel = connect(address, port, KEY, auth.Hello(DATA, 1, 0), soon())
    thread.join(10)
    for accepted in finish().values():
        accepted.sock.close()
    channel.sock.close(), proxy.close()
    return bytes(sent)


def test_replayed_handshake_is_refused(listener):
    recorded = recorded_handshake(listener)
    assert len(recorded) == auth.HELLO_SIZE + auth.PROOF_SIZE
    finish = accept_in_background(listener, {(DATA, 1)}, seconds=2.0)
    attacker = socket.create_connection(listener.address, timeout=10)
    attacker.sendall(recorded)
    receive_exactly(attacker, auth.CHALLENGE_SIZE)
    assert receive_exactly(attacker, auth.VERDICT_SIZE) == auth.WRONG_SECRET_ANSWER
    assert attacker.recv(1) == b""
    attacker.close()
    assert finish() == {}


def test_reflected_proof_is_refused(listener):
    finish = accept_in_background(listener, {(DATA, 1)}, seconds=2.0)
    attacker = socket.create_connection(listener.address, timeout=10)
    attacker.sendall(auth._HELLO.pack(auth._MAGIC, DATA, 1, 0, b"n" * 32))
    challenge = receive_exactly(attacker, auth.CHALLENGE_SIZE)
    attacker.sendall(challenge[-auth.PROOF_SIZE :])
    assert receive_exactly(attacker, auth.VERDICT_SIZE) == auth.WRONG_SECRET_ANSWER
    assert attacker.recv(1) == b""
    attacker.close()
    assert finish() == {}


def test_listener_that_does_not_know_the_secret_is_refused():
    impostor = bind("127.0.0.1", 0, 1)
    closed = []

    def serve():
        sock, _ = impostor.accept()
        sock.settimeout(10)
        receive_exactly(sock, auth.HELLO_SIZE)
        sock.sendall(auth._MAGIC + b"\x00" * 32)
        proof = receive_exactly(sock, auth.PROOF_SIZE)
        impostor.close()
        sock.sendall(bytes([auth.Verdict.ADMITTED]) + proof)  # sent back to its sender
        closed.append(sock.recv(1))
        sock.close()

    thread = threading.Thread(target=serve)
    thread.start()
    address, port = impostor.getsockname()
    with pytest.raises(AuthError, match="wrong secret"):
        connect(address, port, KEY, auth.Hello(DATA, 1, 0), soon(1.0))
    thread.join(10)
    assert closed == [b""]  # nothing more is sent to it


def test_role_and_ranks_are_part_of_what_is_proven(listener):
    """A proof for one role and rank is not accepted for another."""
    handshake = auth.ListenerHandshake(KEY, 0)
    hello = auth._HELLO.pack(auth._MAGIC, DATA, 1, 0, b"n" * 32)
    challenge = handshake.challenge(hello)
    for role, rank in ((auth.Role.CONTROL, 1), (DATA, 2)):
        other = auth._HELLO.pack(auth._MAGIC, role, rank, 0, b"n" * 32)
        with pytest.raises(AuthError):
            handshake.finish(auth._proof(KEY, b"connector", other, challenge))
    assert handshake.finish(auth._proof(KEY, b"connector", hello, challenge)).connector == 1


def test_two_processes_with_one_rank(listener):
    finish = accept_in_background(listener, {(DATA, 1), (DATA, 2)})
    first = join(listener, 1)
    with pytest.raises(NotAdmittedError):
        join(listener, 1)
    with pytest.raises(BootstrapError, match="two processes say that they are rank 1"):
        finish()
    first.close()


@pytest.mark.parametrize("said", [b"", b"what it sends first"])
def test_rank_that_was_cut_off_may_come_again(listener, said):
    finish = accept_in_background(listener, {(DATA, 1), (DATA, 2)})
    first = join(listener, 1)
    first.sendall(said)
    first.close()
    second, other = join(listener, 1), join(listener, 2)
    present = finish()
    present[DATA, 1].sock.setblocking(True)
    second.sendall(b"x")
    assert present[DATA, 1].sock.recv(1) == b"x"
    second.close(), other.close()


def test_unexpected_rank_is_refused(listener):
    finish = accept_in_background(listener, {(DATA, 1)})
    with pytest.raises(NotAdmittedError, match="rank 0 does not wait for rank 5"):
        join(listener, 5)
    mine = join(listener, 1)
    assert set(finish()) == {(DATA, 1)}
    mine.close()
