"""The meaning of operations."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from store_tools import LIMIT, in_threads

from tfring.job.store import (
    StoreConnectionError,
    StoreLimitError,
    StoreTimeoutError,
    StoreValueError,
    StoreWatchError,
    TCPStore,
)


def test_values_are_bytes(shared):
    one, other = shared.client(), shared.client()
    one.set("text", "grün")
    one.set("bytes", b"\x00\xff")
    one.set("empty", b"")
    assert other.get("text") == "grün".encode()
    assert other.get("bytes") == b"\x00\xff"
    assert other.get("empty") == b""
    one.set("text", b"again")
    assert other.get("text") == b"again"


def test_large_values_and_long_keys(shared):
    one, other = shared.client(), shared.client()
    key, value = "k" * 1000, bytes(range(256)) * (40 << 10)
    one.set(key, value)
    assert other.get(key) == value


def test_get_waits_until_a_key_is_set(shared):
    one, other = shared.client(), shared.client()
    results, errors = in_threads(lambda n: one.get("late") if n else other.set("late", b"now"), 2)
    assert not errors and results[1] == b"now"


def test_wait_is_for_all_keys(shared):
    one, other = shared.client(), shared.client()
    one.set("a", b"")
    done = threading.Event()

    def waits():
        one.wait(["a", "b", "c"])
        done.set()

    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    other.set("b", b"")
    assert not other.check(["a", "b", "c"]) and not done.is_set()
    other.set("c", b"")
    assert done.wait(LIMIT)
    one.wait([])


def test_a_key_that_is_not_set_in_time(shared):
    store = shared.client()
    store.set("here", b"")
    with pytest.raises(StoreTimeoutError, match=r'not set within 0\.05 s: "(part/)?absent"'):
        store.get("absent", timeout=0.05)
    with pytest.raises(TimeoutError, match=r"absent.*and 2 others") as failed:
        store.wait(["here", *(f"absent{n}" for n in range(10))], timeout=0.05)
    assert "here" not in str(failed.value)


def test_check_does_not_wait(shared):
    store = shared.client()
    assert store.check([])
    assert not store.check(["a"])
    store.set("a", b"")
    assert store.check(["a"]) and not store.check(["a", "b"])


def test_add_counts(shared):
    one, other = shared.client(), shared.client()
    assert one.add("n", 2) == 2
    assert other.add("n", 0) == 2
    assert other.add("n", -5) == -3
    assert one.get("n") == b"-3"
    one.set("n", "40")
    assert other.add("n", 2) == 42


def test_add_refuses_what_is_no_number(shared):
    store = shared.client()
    store.set("word", b"seven")
    with pytest.raises(StoreValueError, match=r"no whole number.*seven"):
        store.add("word", 1)
    store.add("large", (1 << 63) - 1)
    with pytest.raises(StoreValueError, match="more than 64 bits"):
        store.add("large", 1)
    with pytest.raises(StoreValueError, match="more than 64 bits"):
        store.add("larger", 1 << 70, 1.0)
    with pytest.raises(TypeError):
        store.add("half", 0.5)
    assert store.get("word") == b"seven" and store.get("large") == b"%d" % ((1 << 63) - 1)


def test_compare_set(shared):
    one, other = shared.client(), shared.client()
    assert one.compare_set("k", "old", "new") == b"old"
    assert not one.check(["k"])
    assert one.compare_set("k", "", "first") == b"first"
    assert other.compare_set("k", "", "second") == b"first"
    assert other.compare_set("k", b"first", b"second") == b"second"
    assert one.get("k") == b"second"


def test_delete(shared):
    one, other = shared.client(), shared.client()
    one.set("k", b"v")
    assert other.delete_key("k") is True
    assert other.delete_key("k") is False
    assert not one.check(["k"])
    assert one.add("k", 1) == 1


def test_num_keys(shared):
    store = shared.client()
    assert store.num_keys() == 0
    for key in ("a/1", "a/2", "b"):
        store.set(key, b"")
    store.set("b", b"again")
    assert (store.num_keys(), store.num_keys("a/"), store.num_keys("c")) == (3, 2, 0)


def test_keys_and_values_have_limits(shared):
    store = shared.client()
    for key in ("", "k" * 1025):
        with pytest.raises(StoreLimitError, match="a key has"):
            store.set(key, b"")
        with pytest.raises(StoreLimitError, match="a key has"):
            store.get(key, timeout=0.05)
    with pytest.raises(StoreLimitError, match="16777217 bytes"):
        store.set("k", bytes((16 << 20) + 1))
    assert not store.check(["k"])
    with pytest.raises(TypeError, match="a list of keys"):
        store.wait("abc")
    with pytest.raises(TypeError, match="bytes or str"):
        store.set("k", 1)
    for timeout in (0, -1, float("inf")):
        with pytest.raises(ValueError, match="above 0"):
            store.get("k", timeout=timeout)


def test_watch_begins_with_what_is_there(shared):
    one, other = shared.client(), shared.client()
    one.set("w/a", b"1")
    one.set("other", b"1")
    with other.watch("w/") as watch:
        assert watch.next()[:2] == ("w/a", b"1")
        one.set("w/b", b"2")
        first = watch.next()
        one.set("other", b"2")
        one.delete_key("w/a")
        one.set("w/b", b"3")
        seen = [watch.next(), watch.next()]
        assert [first[:2], *(change[:2] for change in seen)] == [
            ("w/b", b"2"),
            ("w/a", None),
            ("w/b", b"3"),
        ]
        revisions = [change.revision for change in (first, *seen)]
        assert revisions == sorted(set(revisions))
        with pytest.raises(StoreTimeoutError, match="has changed"):
            watch.next(0.05)


def test_a_watch_can_be_looked_at_without_waiting(shared):
    one, other = shared.client(), shared.client()
    one.set("w/a", b"1")
    with other.watch("w/") as watch:
        assert watch.next()[:2] == ("w/a", b"1")
        assert watch.take() is None
        one.set("w/a", b"2")
        deadline = time.monotonic() + LIMIT
        while (change := watch.take()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert change[:2] == ("w/a", b"2")
    with pytest.raises(StoreWatchError):
        watch.take()


def test_a_watch_tells_when_it_is_worth_looking(shared):
    one, other, calls = shared.client(), shared.client(), threading.Semaphore(0)
    one.set("w/a", b"1")
    watch = other.watch("w/")
    watch.on_ready(calls.release)
    assert calls.acquire(timeout=LIMIT)
    while watch.take() is not None:
        pass
    one.set("w/b", b"2")
    assert calls.acquire(timeout=LIMIT)
    assert watch.take()[:2] == ("w/b", b"2")
    watch.close()
    assert calls.acquire(timeout=LIMIT)


def test_several_keys_are_set_at_a_time(shared):
    one, other = shared.client(), shared.client()
    one.multi_set(["a", "b", "c"], [b"1", "2", b"3"])
    assert [other.get(key) for key in "abc"] == [b"1", b"2", b"3"]
    one.multi_set([], [])
    with pytest.raises(ValueError, match="2 keys and 1 values"):
        one.multi_set(["a", "b"], [b"1"])
    with pytest.raises(TypeError, match="a list of keys"):
        one.multi_set("ab", [b"1", b"2"])
    with pytest.raises(StoreLimitError):
        one.multi_set(["a", "k" * 2000], [b"4", b"5"])


def test_several_keys_are_got_at_a_time(shared):
    one, other = shared.client(), shared.client()
    many = [f"k{number}" for number in range(1500)]  # more than a client may wait for at once
    one.multi_set(many, [key.encode() for key in many])
    assert other.multi_get(many) == [key.encode() for key in many]
    assert other.multi_get([]) == []
    results, errors = in_threads(
        lambda n: one.multi_get(["k1", "late"]) if n else other.set("late", b"now"), 2
    )
    assert not errors and results[1] == [b"k1", b"now"]
    with pytest.raises(StoreTimeoutError, match=r'not set within 0\.05 s: "(part/)?absent"'):
        one.multi_get(["k1", "absent"], timeout=0.05)


def test_append(shared):
    one, other = shared.client(), shared.client()
    one.append("k", "a")
    other.append("k", b"bc")
    assert one.get("k") == b"abc"
    with pytest.raises(StoreLimitError, match="16777217 bytes"):
        one.append("k", bytes((16 << 20) - 2))
    assert one.get("k") == b"abc"


def test_timeouts_may_be_timedeltas(shared):
    store = shared.client()
    with pytest.raises(StoreTimeoutError, match=r"within 0\.05 s"):
        store.get("absent", timedelta(seconds=0.05))
    before = store.timeout
    assert isinstance(before, timedelta)
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(StoreTimeoutError, match=r"within 0\.05 s"):
        store.wait(["absent"])
    store.set_timeout(before.total_seconds())
    assert store.timeout == before
    with pytest.raises(ValueError, match="above 0"):
        store.get("k", timeout=timedelta(0))


def test_a_slow_watcher_gets_the_newest(shared):
    """It may miss changes, but ends with the right state, in order of revisions."""
    one, other = shared.client(), shared.client()
    watch = other.watch()
    for number in range(200):
        one.set(f"k{number % 3}", b"%d" % number)
    one.set("end", b"")
    seen = []
    while not seen or seen[-1].key != "end":
        seen.append(watch.next())
    assert {change.key: change.value for change in seen} == {
        "k0": b"198",
        "k1": b"199",
        "k2": b"197",
        "end": b"",
    }
    assert [c.revision for c in seen] == sorted(c.revision for c in seen)
    watch.close()


def test_iterating_over_a_watch_ends_when_it_is_closed(shared):
    one, other = shared.client(), shared.client()
    watch, seen, got = other.watch(), [], threading.Event()

    def follow():
        for change in watch:
            seen.append(change.key)
            got.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    one.set("a", b"")
    assert got.wait(LIMIT)
    watch.close()
    thread.join(LIMIT)
    assert not thread.is_alive() and seen == ["a"]


def test_closing_ends_what_waits(tcp):
    store = tcp.client()
    watch, started = store.watch("w"), threading.Barrier(3)

    def waits(number):
        started.wait(LIMIT)
        if number == 0:
            store.get("never")
        elif number == 1:
            for _ in watch:
                pass
        else:
            store.close()

    results, errors = in_threads(waits, 3)
    assert isinstance(errors[0], StoreConnectionError)
    assert 2 in results
    with pytest.raises(StoreConnectionError, match="closed"):
        store.set("k", b"")
    store.close()


@pytest.mark.parametrize("port", [-1, 1 << 16])
def test_impossible_ports_are_refused(port):
    with pytest.raises(ValueError, match=f"port is {port}, and has to be from 0 to 65535"):
        TCPStore("localhost", port, is_master=True)
