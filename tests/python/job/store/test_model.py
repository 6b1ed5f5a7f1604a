"""Random operations, compared with a dict: by one client, and by several at a time."""

from __future__ import annotations

import itertools
import random

import pytest
from linearizability import Seen, is_linearizable, outcome, random_operation, run
from store_tools import in_threads

CLIENTS = 3
EACH = 7


@pytest.mark.parametrize("seed", range(2))
def test_one_client_sees_a_dict(shared, seed):
    dice, store, state = random.Random(seed), shared.client(), {}
    for _ in range(100):
        op, arguments = random_operation(dice, ("a", "b", "c/d"))
        state, expected = outcome(state, op, arguments)
        assert run(store, op, arguments) == expected, (op, arguments)
        assert store.num_keys() == len(state)
    for key, value in state.items():
        assert store.get(key) == value


@pytest.mark.parametrize("seed", range(4))
def test_several_clients_see_one_order(shared, seed):
    clients = [shared.client() for _ in range(CLIENTS)]
    clock = itertools.count()

    def work(number):
        dice, seen = random.Random(f"{seed} {number}"), []
        for _ in range(EACH):
            op, arguments = random_operation(dice)
            begun = next(clock)
            result = run(clients[number], op, arguments)
            seen.append(Seen(begun, next(clock), op, arguments, result))
        return seen

    results, errors = in_threads(work, CLIENTS)
    assert not errors
    history = [one for seen in results.values() for one in seen]
    assert len(history) == CLIENTS * EACH
    assert is_linearizable(history), sorted(history)


def test_the_checker_finds_a_lost_update():
    both = [Seen(0, 3, "add", ("k", 1), 1), Seen(1, 2, "add", ("k", 1), 1)]
    assert not is_linearizable(both)
    assert is_linearizable([both[0], both[1]._replace(result=2)])


def test_the_checker_finds_a_stale_read():
    set_before = [Seen(0, 1, "set", ("k", b"1"), None), Seen(2, 3, "check", ("k",), False)]
    assert not is_linearizable(set_before)
    assert is_linearizable([set_before[0]._replace(ended=4), set_before[1]])
