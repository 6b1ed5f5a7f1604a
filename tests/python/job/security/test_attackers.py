"""An attacker on the network who knows all about tfring except the job's secret."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from attacks import Flood, Relay, Squatter
from bootstrap_jobs import SECRET, close, identity, run_ranks

import tfring
from tfring.collectives import objects
from tfring.job.bootstrap import meeting
from tfring.job.bootstrap.connect import connect_job
from tfring.job.handshake import auth
from tfring.job.handshake.connector import connect
from tfring.job.handshake.errors import AuthError, BootstrapError
from tfring.job.handshake.listener import Listener, bind
from tfring.job.security import generation
from tfring.job.security.errors import IntegrityError
from tfring.job.security.mac import Channel, ChannelKeys
from tfring.job.security.secret import job_key
from tfring.job.store import StoreError
from tfring.launch import function, function_task
from tfring.runtime.settings.environment import Settings

KEY = job_key(SECRET, "")
RENDEZVOUS = auth.Role.RENDEZVOUS


class Evil:
    """An object that runs code when it is unpickled."""

    def __reduce__(self):
        return exec, ("import os; os.environ['TFRING_TEST_EVIL'] = '1'",)


@pytest.fixture(autouse=True)
def nothing_of_the_attackers_runs(monkeypatch):
    monkeypatch.delenv("TFRING_TEST_EVIL", raising=False)
    yield
    assert "TFRING_TEST_EVIL" not in os.environ


def start_job(port, size=2, seconds=30.0):
    settings = Settings(secret=SECRET, start_timeout=seconds)
    memberships, errors = run_ranks(
        lambda rank: connect_job(identity(rank, size, port), settings, {}), range(size)
    )
    for membership in memberships.values():
        close(membership)
    return errors


@pytest.mark.parametrize(
    "squatter",
    [
        {"says": auth._MAGIC + b"\x00" * 32 + bytes([auth.Verdict.ADMITTED]) + b"\x00" * 32},
        {},  # silent
    ],
)
def test_squatter_on_the_jobs_port(squatter):
    with Squatter(**squatter) as there, Squatter(meeting.candidate_ports(KEY)[0], **squatter):
        assert start_job(there.port) == {}
        assert there.visitors > 0


def test_flood_and_port_scan_while_a_job_starts():
    port = meeting.candidate_ports(KEY)[0]
    hello = [
        auth.first_message(auth.Hello(role, rank, listener))
        for role in auth.Role
        for rank in (1, 2, 3)
        for listener in (0, 1)
    ]
    settings = Settings(secret=SECRET, start_timeout=30)
    with Flood(3000, hello) as flood:

        def work(rank):
            while rank != 0 and flood.opened < 1500:
                time.sleep(0.01)
            return connect_job(identity(rank, 4, port), settings, {})

        memberships, errors = run_ranks(work, range(4))
    assert not errors
    for membership in memberships.values():
        close(membership)


def test_slowloris():
    """More connections than the handshakes kept at once, each with a byte now and then."""
    listener = Listener(bind("127.0.0.1", 0, 1024), KEY, 0)
    stop = threading.Event()
    strangers = []

    def drip():
        while not stop.is_set():
            for sock in strangers:
                with contextlib.suppress(OSError):
                    sock.send(auth._MAGIC[:1])
            time.sleep(0.05)

    thread = threading.Thread(target=drip)
    result = {}
    accepting = threading.Thread(
        target=lambda: result.update(listener.accept({(RENDEZVOUS, 1)}, time.monotonic() + 20))
    )
    accepting.start()
    strangers += [socket.create_connection(listener.address) for _ in range(700)]
    thread.start()
    hello = auth.Hello(RENDEZVOUS, 1, 0)
    mine = connect(*listener.address, KEY, hello, time.monotonic() + 20)
    accepting.join(30)
    stop.set()
    thread.join(10)
    assert list(result) == [(RENDEZVOUS, 1)]
    for sock in [*strangers, mine.sock, result[RENDEZVOUS, 1].sock]:
        sock.close()
    listener.close()


EXHAUSTION = """
import logging, resource, socket, sys, threading, time
from tfring.job.handshake import auth
from tfring.job.handshake.connector import connect
from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.listener import Listener, bind
key, port = b"k" * 32, int(sys.argv[1])
listener = Listener(bind("127.0.0.1", port, 256), key, 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
print("ready", flush=True)
expected = {(auth.Role.CONTROL, rank) for rank in range(1, int(sys.argv[2]) + 1)}
before = time.process_time()
try:
    present = listener.accept(expected, time.monotonic() + 20)
    print(f"present {len(present)} of {len(expected)}")
except BootstrapError as error:
    print(error)
print("busy" if time.process_time() - before > 5 else "idle", flush=True)
sys.stdin.readline()
"""


def listener_with_few_descriptors(ranks):
    with bind("127.0.0.1", 0, 1) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", EXHAUSTION, str(port), str(ranks)]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert child.stdout.readline() == "ready\n"
    return child, port


def rest_of_output(child):
    child.stdin.write("\n")
    child.stdin.close()
    with child.stdout:
        text = child.stdout.read()
    assert child.wait(30) == 0
    return text


def test_exhaustion_of_descriptors_by_strangers():
    """A rank gets in although strangers use up all descriptors."""
    child, port = listener_with_few_descriptors(ranks=1)
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    hello = auth.Hello(auth.Role.CONTROL, 1, 0)
    mine = connect("127.0.0.1", port, b"k" * 32, hello, time.monotonic() + 20)
    output = rest_of_output(child)
    assert output == "present 1 of 1\nidle\n"
    for sock in [*strangers, mine.sock]:
        sock.close()


def test_too_few_descriptors_for_the_ranks_are_an_error():
    """The error comes at once, and nothing spins."""
    child, _ = listener_with_few_descriptors(ranks=64)
    output = rest_of_output(child)
    assert "rank 0 needs 64 more connections, and its limit of 40 descriptors" in output
    assert output.endswith("idle\n")


def test_init_raises_the_soft_limit():
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))\n"
        "from tfring.job.handshake.descriptors import raise_descriptor_limit\n"
        "print(raise_descriptor_limit())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == f"{min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])}\n"


def test_other_versions_of_the_protocol_are_named():
    listener = Listener(bind("127.0.0.1", 0, 16), KEY, 0)
    other = b"TFRING" + struct.pack(">H", auth.PROTOCOL + 1)
    handshake = auth.ListenerHandshake(KEY, 0)
    hello = auth.first_message(auth.Hello(RENDEZVOUS, 1, 0))
    with pytest.raises(AuthError, match="speaks version 3 of the start-up protocol and this"):
        handshake.challenge(other + hello[8:])
    listener.close()
    with Squatter(says=other + b"\x00" * 32) as newer, pytest.raises(AuthError, match="version 3"):
        connect("127.0.0.1", newer.port, KEY, auth.Hello(RENDEZVOUS, 1, 0), time.monotonic() + 1)


def channels():
    """Both ends of a channel."""
    a, b = socket.socketpair()
    a.settimeout(10), b.settimeout(10)
    keys = ChannelKeys(b"a" * 32, b"b" * 32)
    return Channel(a, keys), Channel(b, ChannelKeys(keys.receive, keys.send))


def test_channel_carries_messages_of_any_length():
    a, b = channels()
    for size in (0, 1, 1 << 20, (3 << 20) + 7):
        data = os.urandom(size)
        sender = threading.Thread(target=a.send, args=(data,))
        sender.start()
        assert b.receive(1 << 30) == data
        sender.join()
    a.sock.close(), b.sock.close()


LIES = {
    "another total": lambda sent, _: sent[:20] + struct.pack("<Q", 1 << 60) + sent[28:],
    "another length": lambda sent, _: struct.pack("<I", 0xFFFFFFFF) + sent[4:],
    "a changed byte": lambda sent, _: sent[:-1] + bytes([sent[-1] ^ 1]),
    "a repeated message": lambda sent, before: before,
    "a message of the other direction": lambda sent, _: reflected,
    "no MAC": lambda sent, _: sent[:4] + b"\x00" * 16 + sent[20:],
}
reflected = Channel(socket.socket(), ChannelKeys(b"b" * 32, b"a" * 32)).framed(b"second")


@pytest.mark.parametrize("lie", LIES)
def test_lies_on_a_channel(lie):
    """They are detected before anything is parsed or allocated."""
    a, b = channels()
    first, second = a.framed(b"first"), a.framed(b"second")
    b_in = a.sock
    b_in.sendall(first)
    assert b.receive(100) == b"first"
    b_in.sendall(LIES[lie](second, first))
    with pytest.raises(IntegrityError, match=r"failed authentication|allowed"):
        b.receive(100)
    a.sock.close(), b.sock.close()


def test_long_messages_are_refused_by_their_length():
    a, b = channels()
    a.send(b"x" * 101)
    with pytest.raises(IntegrityError, match="101 bytes was announced; 100 are allowed"):
        b.receive(100)
    a.sock.close(), b.sock.close()


def test_relay_that_changes_the_start_of_a_job(caplog):
    """It relays the handshake and then replaces rank 1's request by its own record."""
    with bind("127.0.0.1", 0, 1) as probe:
        port = probe.getsockname()[1]
    record = json.dumps({"version": "0", "settings": {}}).encode()
    settings = Settings(secret=SECRET, start_timeout=3)

    def change(number, data):
        return data if number < 2 else data[:20] + record

    with Relay(("127.0.0.1", port), change) as relay:

        def work(rank):
            own = port if rank == 0 else relay.address[1]
            only = Settings(**{**settings.__dict__, "rendezvous_port": own})
            return connect_job(identity(rank, 2, own), only, {})

        _, errors = run_ranks(work, range(2))
    assert isinstance(errors[0], BootstrapError) and "rank 1 of 2 did not come" in str(errors[0])
    assert "failed authentication" in caplog.text


def test_relay_on_the_connection_of_a_function(monkeypatch, caplog):
    """Neither side unpickles the relay's bytes."""
    evil = function.pickled_call(Evil(), (), {})
    with function.FunctionServer(
        function.pickled_call(len, [[]], {}), bind("127.0.0.1", 0, 1024)
    ) as server:
        where = server.environment

        def change(number, data):
            return data if number < 2 else data[:20] + evil

        address = (where["TFRING_X_FUNCTION_ADDR"], int(where["TFRING_X_FUNCTION_PORT"]))
        with Relay(address, change) as relay:
            monkeypatch.setenv("TFRING_X_FUNCTION_ADDR", relay.address[0])
            monkeypatch.setenv("TFRING_X_FUNCTION_PORT", str(relay.address[1]))
            monkeypatch.setenv("TFRING_X_FUNCTION_SECRET", where["TFRING_X_FUNCTION_SECRET"])
            monkeypatch.setenv("TFRING_X_RANK", "0")
            monkeypatch.setattr(function_task, "_CONNECT_SECONDS", 1.0)
            with pytest.raises(StoreError):
                function_task.main()
            assert "TFRING_X_FUNCTION_SECRET" not in os.environ
            with pytest.raises(RuntimeError, match="ranks without a result: 0"):
                server.results(1, 0)
    assert "failed authentication" in caplog.text


def test_strangers_do_not_wear_out_the_server_of_a_function(monkeypatch):
    threads = threading.active_count()
    with function.FunctionServer(
        function.pickled_call(len, [[]], {}), bind("127.0.0.1", 0, 1024)
    ) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TFRING_X_RANK", "0")
        port = int(os.environ["TFRING_X_FUNCTION_PORT"])
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(600)]
        assert threading.active_count() <= threads + 1  # none for a stranger
        assert function_task.main() == 0
        assert server.results(1, 0) == [0]
        for sock in strangers:
            sock.close()


@pytest.fixture
def key():
    generation.begin(b"g" * 32)
    yield
    generation.end()


@pytest.mark.usefixtures("key")
def test_objects_are_unpickled_only_with_the_mac_of_their_sender():
    evil = pickle.dumps(Evil())
    fine = generation.sign(b"data", "name", 1)
    assert generation.verify(fine, "name", 1) == b"data"
    later = generation.sign(b"data", "name", 1)
    for forged, name, sender in (
        (fine, "name", 1),  # a second time
        (later, "name", 2),  # as a different rank
        (later, "other", 1),  # of a different collective
        (later[:-1] + b"x", "name", 1),
        (bytes(24) + evil, "name", 1),
        (later[: generation.OVERHEAD] + evil, "name", 1),
        (struct.pack("<Q", 99) + later[8:], "name", 1),
        (b"", "name", 1),
    ):
        with pytest.raises(IntegrityError, match="discarded without unpickling"):
            generation.verify(forged, name, sender)
    assert generation.verify(later, "name", 1) == b"data"
    again = generation.sign(b"data", "name", 1)
    generation.begin(b"h" * 32)  # the next generation has another key
    with pytest.raises(IntegrityError):
        generation.verify(again, "name", 1)


@pytest.fixture
def patches(monkeypatch):
    tfring.init()
    yield monkeypatch
    monkeypatch.undo()  # shutdown needs the real core
    tfring.shutdown()


def test_bytes_that_come_instead_of_an_object(patches):
    """The data connections have no MACs: there a relay can change everything."""
    evil = pickle.dumps(Evil())
    header = objects.np.array([[0, 24 + len(evil)]], dtype="int64")
    data = objects.np.frombuffer(bytes(24) + evil, dtype="uint8")

    class Core:
        """A fake core that returns the bytes of a relay."""

        attempt = objects._native.core.attempt
        CoreError = objects._native.core.CoreError
        set_call_site = objects._native.core.set_call_site

        @staticmethod
        def allgather(_, name, process_set):
            del process_set
            return header if name.endswith(".size") else data

        @staticmethod
        def broadcast(_, name, root, process_set):
            del root, process_set
            return header[0, 1:] if name.endswith(".size") else data

    patches.setattr(objects._native, "core", Core)
    patches.setattr(objects, "rank", lambda: 0)
    patches.setattr(objects, "is_initialized", lambda: True)
    for call in (
        lambda: objects.allgather_object("mine"),
        lambda: objects.allgather_json("mine", "name"),
        lambda: objects.broadcast_object(None, root_rank=1),
    ):
        with pytest.raises(IntegrityError, match="discarded without unpickling"):
            call()
