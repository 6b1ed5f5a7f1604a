"""A TCPStore whose connections break, whose clients vanish, or whose server changes."""

from __future__ import annotations

import random
import threading

import pytest
from store_tools import LIMIT, SECRET, Wire, in_threads, programs

from tfring.job.store import StoreAuthError, StoreConnectionError, StoreTimeoutError, TCPStore
from tfring.job.store.tcp import connection as module


def through(wire, **more):
    """A client that reaches the server over a wire."""
    more = {"timeout": LIMIT, "secret": SECRET, "lost_after": LIMIT, "lease": LIMIT, **more}
    return TCPStore("127.0.0.1", wire.address[1], **more)


def test_a_request_whose_answer_was_lost_happens_once(tcp):
    with Wire(tcp.server.port) as wire, through(wire) as store:
        for number, call in enumerate(
            [
                lambda: store.add("n", 1),
                lambda: store.compare_set("k", "", "mine"),
                lambda: store.delete_key("k"),
                lambda: store.set("n", b"7"),
            ]
        ):
            wire.lost.clear()
            wire.lose_answers()
            results = []
            thread = threading.Thread(target=lambda c=call, r=results: r.append(c()))
            thread.start()
            assert wire.lost.wait(LIMIT)
            if number == 3:  # another client changes it before the request comes again
                tcp.server.set("n", b"8")
            wire.cut()
            thread.join(LIMIT)
            assert results == [[1, b"mine", True, None][number]]
        assert tcp.server.get("n") == b"8"
        assert not tcp.server.check(["k"])


def test_connections_that_break_at_any_time(tcp):
    """Nothing is lost and nothing happens twice; a watch goes on, deletions included."""
    dice, stop = random.Random(1), threading.Event()
    with Wire(tcp.server.port) as wire, through(wire) as store, store.watch("w/") as watch:

        def cut_often():
            while not stop.wait(dice.uniform(0.01, 0.05)):
                wire.cut()

        cutter = threading.Thread(target=cut_often)
        cutter.start()
        try:
            results, errors = in_threads(lambda _: [store.add("n", 1) for _ in range(60)], 3)
        finally:
            stop.set()
            cutter.join(LIMIT)
        assert not errors
        seen = sorted(total for totals in results.values() for total in totals)
        assert seen == list(range(1, 181))
        tcp.server.set("w/a", b"1")
        assert watch.next()[:2] == ("w/a", b"1")
        tcp.server.delete_key("w/a")
        wire.cut()
        tcp.server.set("w/b", b"2")
        missed = [watch.next() for _ in range(2)]
        assert {change[:2] for change in missed} == {("w/a", None), ("w/b", b"2")}
        assert missed[0].revision <= missed[1].revision


def test_what_waits_goes_on_waiting_over_a_new_connection(tcp):
    with Wire(tcp.server.port) as wire, through(wire) as store:

        def work(number):
            if number == 0:
                return store.get("late")
            if number == 1:
                return store.wait(["late", "later"])
            store.check(["x"])
            wire.cut()
            store.check(["x"])
            tcp.server.set("late", b"1")
            tcp.server.set("later", b"1")
            return None

        results, errors = in_threads(work, 3)
        assert not errors and results[0] == b"1"


def test_ephemeral_keys_outlive_a_short_cut(tcp):
    with Wire(tcp.server.port) as wire, through(wire, lease=LIMIT) as store:
        store.set("here", b"1", ephemeral=True)
        wire.cut()
        store.set("other", b"")  # over a new connection
        assert tcp.server.check(["here"])
        store.close()
        assert not tcp.server.check(["here"])


def test_ephemeral_keys_of_a_killed_client_go(tcp):
    code = f"""
        store = TCPStore("localhost", {tcp.server.port}, secret={SECRET!r}, lease=0.2)
        store.set("here/1", b"", ephemeral=True)
        store.set("here/2", b"", ephemeral=True)
        store.set("stays", b"")
        print("set")
        sys.stdin.read()
    """
    with tcp.server.watch("here/") as watch, programs(code) as (client,):
        assert client.stdout.readline() == "set\n"
        assert [watch.next().value for _ in range(2)] == [b"", b""]
        tcp.server.set("here/2", b"another's now")
        assert watch.next().value == b"another's now"
        client.kill()
        assert watch.next()[:2] == ("here/1", None)
        assert tcp.server.check(["stays", "here/2"])


def test_a_lease_that_has_passed_is_told(tcp):
    """A request in flight when the server forgot the client may have happened or not."""
    with Wire(tcp.server.port) as wire, through(wire, lease=0.05) as store:
        store.set("mine", b"", ephemeral=True)
        wire.lose_answers()
        with tcp.server.watch("mine") as watch:
            assert watch.next().value == b""
            caught = []

            def work():
                with pytest.raises(StoreConnectionError, match="not known whether the last ADD"):
                    store.add("n", 1)
                caught.append(True)

            thread = threading.Thread(target=work)
            thread.start()
            assert wire.lost.wait(LIMIT)
            wire.close_door()
            assert watch.next().value is None
            wire.open_door()
            thread.join(LIMIT)
        assert caught
        assert store.add("n", 1) == 2  # it had happened


def test_another_server_has_nothing_of_the_first():
    first = TCPStore("localhost", 0, is_master=True, timeout=LIMIT)
    with Wire(first.port) as wire, through(wire, secret=None) as store:
        store.set("k", b"v")
        with TCPStore("localhost", 0, is_master=True, timeout=LIMIT) as second:
            wire.lead_to(second.port)
            wire.cut()
            with pytest.raises(StoreConnectionError, match="another server is there"):
                store.get("k")
            with pytest.raises(StoreConnectionError, match="another server is there"):
                store.set("k", b"v")
    first.close()


def test_a_server_with_another_secret_is_asked_seldom(monkeypatch):
    tries = []
    one = module.connect_once
    monkeypatch.setattr(module, "connect_once", lambda *args: tries.append(args) or one(*args))
    with (
        TCPStore("localhost", 0, is_master=True, timeout=LIMIT) as server,
        pytest.raises(StoreAuthError, match="wrong secret"),
    ):
        TCPStore("localhost", server.port, secret="another secret of 16", timeout=1.0)
    assert len(tries) <= 2 / module._PAUSE_SECONDS  # some hundred without a pause


def test_a_client_may_go_on_with_a_server_that_was_started_again():
    first = TCPStore("localhost", 0, is_master=True, timeout=LIMIT)
    with (
        Wire(first.port) as wire,
        through(wire, secret=None, may_restart=True) as store,
        TCPStore("localhost", 0, is_master=True, timeout=LIMIT) as second,
    ):
        store.set("k", b"v")
        watch = store.watch("w/")
        wire.lead_to(second.port)
        wire.cut()
        with pytest.raises(StoreConnectionError, match="another server is there"):
            watch.next()
        assert not store.check(["k"])
        store.set("k", b"again")
        assert second.get("k") == b"again"
        with store.watch("w/") as again:
            second.set("w/1", b"x")
            assert again.next().value == b"x"
    first.close()


def test_a_server_that_says_nothing_is_given_up(tcp, monkeypatch):
    monkeypatch.setattr(module, "_PING_SECONDS", 0.05)
    monkeypatch.setattr(module, "_SILENT_SECONDS", 0.2)
    monkeypatch.setattr(module, "_GOODBYE_SECONDS", 0.1)
    with Wire(tcp.server.port) as wire:
        store = through(wire, lost_after=0.5)
        wire.lose_answers()
        with pytest.raises(StoreConnectionError, match="said nothing"):
            store.get("k")
        store.close()


def test_time_limits_hold_while_the_server_is_stopped(tcp):
    with Wire(tcp.server.port) as wire:
        store = through(wire)
        wire.lose_answers()
        with pytest.raises(StoreTimeoutError, match=r"has not answered SET within 0\.1 s"):
            store.set("k", b"", timeout=0.1)
        with pytest.raises(StoreTimeoutError, match='"k"'):
            store.get("k", timeout=0.1)
        wire.cut()
        store.close()


def test_all_clients_are_waited_for():
    with TCPStore("localhost", 0, is_master=True, timeout=LIMIT) as server:
        first = threading.Event()

        def work(number):
            if number == 0:
                with TCPStore("localhost", server.port, world_size=3, timeout=LIMIT):
                    assert first.is_set()
            else:
                assert server.check([]) and not first.is_set()
                first.set()
                TCPStore("localhost", server.port, timeout=LIMIT).close()

        _, errors = in_threads(work, 2)
        assert not errors
        with pytest.raises(StoreTimeoutError, match=r"waited 0\.3 s for 9 clients"):
            TCPStore("localhost", server.port, world_size=9, timeout=0.299999)
