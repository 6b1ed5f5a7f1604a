"""Many small operations: some in every run, a million with `make soak`."""

from __future__ import annotations

import threading

import pytest
from store_tools import in_threads, programs

THREADS = 2  # more threads would wait for Python's lock, not for the store


def many(shared, operations):
    """Threads count, exchange values and delete them; returns errors."""
    clients = [shared.client() for _ in range(2)]
    rounds = operations // (5 * THREADS)

    def work(number):
        store = clients[number % 2]
        mine, theirs = number, number ^ 1
        for turn in range(rounds):
            store.add("n", 1)
            store.set(f"{turn}/{mine}", b"%d" % mine)
            assert store.get(f"{turn}/{theirs}") == b"%d" % theirs
            store.check(["n"])
            if turn:
                assert store.delete_key(f"{turn - 1}/{theirs}")

    _, errors = in_threads(work, THREADS, limit=None)
    assert not errors, errors
    assert clients[0].get("n") == b"%d" % (rounds * THREADS)
    assert clients[0].num_keys() == 1 + THREADS


def test_many_operations(tcp):
    many(tcp, 5_000)


@pytest.mark.soak
def test_a_million_operations(tcp):
    many(tcp, 1_000_000)


@pytest.mark.soak
def test_clients_are_killed_for_long(tcp):
    code = f"""
        store = {tcp.code}
        while True:
            store.add("n", 1)
            store.set("value", b"x" * 5000)
    """
    store, stop, before = tcp.client(), threading.Event(), 0
    for _ in range(200):
        with programs(code, code) as started:
            store.wait(["value"])
            assert len(started) == 2
            stop.wait(0.2)
        total = int(store.get("n"))
        assert total > before and store.get("value") == b"x" * 5000
        before = total
