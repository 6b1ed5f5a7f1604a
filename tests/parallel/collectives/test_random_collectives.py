"""Random collectives in random orders on process sets that overlap, come and go; and joins.

All ranks draw the same calls from one seed (TFRING_TEST_SEED, printed) and submit those that are
theirs in an order of their own, several rounds ahead of the results. A name is in flight once in
each set.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import pytest
from native_cases import AVERAGE, LIMIT, MAX, MIN, SUM, Array, dtype_of, reduced, share

from tfring.runtime._native import core

pytestmark = pytest.mark.any_ranks

ROUNDS = 400
IN_FLIGHT = 4
CALLS = 6  # in a round, at most
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bfloat16")
LARGE_BYTES = 4 << 20


class Task(NamedTuple):
    """One call of one process set; `number` is part of its name and of its values."""

    number: int
    kind: str
    name: str
    process_set: int
    ranks: list[int]
    dtype: np.dtype[Any]
    rows: list[int]
    columns: int
    op: int
    root: int
    peer: int
    splits: list[list[int]]

    def input_of(self, rank: int) -> Array:
        """A rank's input: small whole numbers, different for every call and rank."""
        shape = (self.rows[self.ranks.index(rank)], self.columns)
        count = shape[0] * shape[1]
        return (
            ((np.arange(count) + 3 * self.number + rank) % 5 + 1).astype(self.dtype).reshape(shape)
        )

    @property
    def at(self) -> dict[str, Any]:
        """The arguments that every call has."""
        return {"name": self.name, "process_set": self.process_set}


def block_of(task: Task, source: int, dest: int) -> Array:
    """The rows that go from one rank to another."""
    position, splits = task.ranks.index(dest), task.splits[task.ranks.index(source)]
    begin = sum(splits[:position])
    return task.input_of(source)[begin : begin + splits[position]]


def call(task: Task, rank: int) -> Any:
    """Makes this rank's call and returns its result."""
    x = task.input_of(rank)
    mine = task.splits[task.ranks.index(rank)]
    calls: dict[str, Callable[[], Any]] = {
        "reducescatter": lambda: core.reducescatter(x, op=task.op, **task.at),
        "reduce": lambda: core.reduce(x, op=task.op, root=task.root, **task.at),
        "allgather": lambda: core.allgather(x, **task.at),
        "gather": lambda: core.gather(x, root=task.root, **task.at),
        "broadcast": lambda: core.broadcast(x, root=task.root, **task.at),
        "scatter": lambda: core.scatter(x, mine, root=task.root, **task.at),
        "alltoall": lambda: core.alltoall(x, mine, **task.at),
        "barrier": lambda: core.barrier(**task.at),
        "message": lambda: (
            core.send(x, dest=task.peer, **task.at)
            if rank == task.root
            else core.recv(task.dtype, source=task.root, **task.at)
        ),
    }
    return calls[task.kind]()


def start(task: Task, rank: int, threads: ThreadPoolExecutor) -> Any:
    """Starts this rank's call: an allreduce by its handle, the others in a thread."""
    if task.kind == "allreduce":
        return core.allreduce_async(task.input_of(rank), op=task.op, **task.at)
    return threads.submit(call, task, rank)


def expected(task: Task, rank: int) -> Array | None:
    """What numpy says this rank gets."""
    whole: Array | None = None
    if task.kind in ("allreduce", "reduce", "reducescatter"):
        whole = reduced([task.input_of(r) for r in task.ranks], task.op)
    elif task.kind in ("allgather", "gather"):
        whole = np.concatenate([task.input_of(r) for r in task.ranks])
    elif task.kind in ("broadcast", "message"):
        whole = task.input_of(task.root)
    if task.kind == "reducescatter" and whole is not None:
        position = task.ranks.index(rank)
        return whole[share(task.rows[position], len(task.ranks), position)]
    if task.kind == "gather" and whole is not None and rank != task.root:
        return whole[:0]
    if task.kind == "alltoall":
        return np.concatenate([block_of(task, r, rank) for r in task.ranks])
    if task.kind == "scatter":
        return block_of(task, task.root, rank)
    nothing = (task.kind == "reduce" and rank != task.root) or (
        task.kind == "message" and rank == task.root
    )
    return None if nothing else whole


def check(task: Task, rank: int, got: Any) -> None:
    """Compares with numpy."""
    want = expected(task, rank)
    if task.kind == "alltoall":
        got, received = got
        position = task.ranks.index(rank)
        assert received.tolist() == [splits[position] for splits in task.splits], task
    if want is None:
        assert got is None, task
        return
    assert got.dtype == task.dtype and got.shape == want.shape, task
    if task.op != AVERAGE or want.dtype != np.float64:
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64), str(task))
        return
    if np.issubdtype(task.dtype, np.integer):
        want = np.floor(want)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-2, err_msg=str(task))


def cut(rng: random.Random, rows: int, parts: int) -> list[int]:
    """Divides rows into random parts, some of them zero."""
    bounds = sorted(rng.randint(0, rows) for _ in range(parts - 1))
    return [b - a for a, b in itertools.pairwise([0, *bounds, rows])]


def draw(rng: random.Random, number: int, names: Counter[int], sets: dict[int, list[int]]) -> Task:
    """A random call, the same on every rank; `names` counts those of its round in each set."""
    process_set = rng.choice(sorted(sets))
    names[process_set] += 1
    ranks = sets[process_set]
    kinds = ["allreduce", "reducescatter", "reduce", "allgather", "gather", "broadcast"]
    kinds += ["scatter", "alltoall", "barrier"] + ["message"] * (len(ranks) > 1)
    kind = rng.choice(kinds)
    dtype = dtype_of(rng.choice(DTYPES))
    columns = rng.randint(0, 6)
    most = 200
    if rng.random() < 0.004:
        columns = 64
        most = LARGE_BYTES // columns // dtype.itemsize
    same_rows = kind not in ("allgather", "gather", "alltoall", "scatter")
    rows = [rng.randint(most // 2 if most > 200 else 0, most) for _ in ranks]
    rows = [rows[0]] * len(ranks) if same_rows else rows
    pair = rng.sample(ranks, 2) if len(ranks) > 1 else ranks * 2
    return Task(
        number=number,
        kind=kind,
        name=f"random.{number // CALLS % IN_FLIGHT}.{names[process_set]}",
        process_set=process_set,
        ranks=ranks,
        dtype=dtype,
        rows=rows,
        columns=columns,
        op=rng.choice([AVERAGE, SUM, MIN, MAX]),
        root=pair[0],
        peer=pair[1],
        splits=[cut(rng, n, len(ranks)) for n in rows],
    )


used_ids = {0}  # of process sets, in this module


def change_sets(rng: random.Random, size: int, sets: dict[int, list[int]]) -> None:
    """Adds or removes one set, on every rank; no id is used twice."""
    subsets = [list(c) for n in range(1, size) for c in itertools.combinations(range(size), n)]
    free = [subset for subset in subsets if subset not in sets.values()]
    added = [number for number in sorted(sets) if number != 0]
    if free and (not added or rng.random() < 0.6):
        ranks = rng.choice(free)
        number = core.add_process_set(ranks)
        assert number > max(used_ids)
        used_ids.add(number)
        sets[number] = ranks
    elif added:
        number = rng.choice(added)
        core.remove_process_set(number)
        del sets[number]
    assert core.process_sets() == sets


def run_out(rng: random.Random, rank: int, size: int) -> None:
    """Every rank makes a random number of steps, then joins: averages are over those not joined."""
    steps = [rng.randint(0, 3) for _ in range(size)]
    for step in range(steps[rank]):
        going = [r for r in range(size) if steps[r] > step]
        got = core.allreduce(np.full(50, 12.0 * rank), name="random.step", op=AVERAGE)
        np.testing.assert_allclose(got, 12 * sum(going) / len(going), rtol=1e-12)
    last = core.join()
    assert steps[last] == max(steps)


@pytest.fixture
def seed() -> int:
    """The seed of the calls; shown when the test fails."""
    number = int(os.environ.get("TFRING_TEST_SEED", "20260301"))
    print(f"TFRING_TEST_SEED={number}")
    return number


def test_random_collectives(rank: int, size: int, seed: int) -> None:
    rng, order = random.Random(f"{seed}.{size}"), random.Random(f"{seed}.{size}.{rank}")
    sets = {0: list(range(size))}
    for triangle in range(size if size > 3 else 0):
        ranks = sorted((triangle + i) % size for i in range(3))
        sets[core.add_process_set(ranks)] = ranks
    flights: list[list[tuple[Task, Any]]] = []
    threads = ThreadPoolExecutor(IN_FLIGHT * CALLS)

    def land(how_many: int) -> None:
        for _ in range(how_many):
            for task, one in flights.pop(0):
                got = one.result(LIMIT) if isinstance(one, Future) else one.wait()
                check(task, rank, got)

    for number in range(ROUNDS):
        if rng.random() < 0.05:
            land(len(flights))
            change_sets(rng, size, sets)
        if rng.random() < 0.02:
            # A thread must not make its call after this rank has joined.
            wait([one for flight in flights for _, one in flight if isinstance(one, Future)], LIMIT)
            run_out(rng, rank, size)
        calls, names = rng.randint(1, CALLS), Counter[int]()
        tasks = [draw(rng, CALLS * number + i, names, sets) for i in range(calls)]
        mine = [t for t in tasks if rank in (t.ranks if t.kind != "message" else (t.root, t.peer))]
        order.shuffle(mine)
        flights.append([(task, start(task, rank, threads)) for task in mine])
        land(max(0, len(flights) - IN_FLIGHT + 1))
    land(len(flights))
    threads.shutdown()
    for number in sorted(sets)[1:]:
        core.remove_process_set(number)
    assert list(core.process_sets()) == [0]
