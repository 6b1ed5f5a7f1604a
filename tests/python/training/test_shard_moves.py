"""Parts of sharded states, while simulated ranks are killed and join at random moments."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tfring.training.shard_moves import (
    Choice,
    Held,
    Move,
    Offer,
    Version,
    Versions,
    choose,
    holders,
    plan,
)
from tfring.training.shards import EqualShards, OwnedShards

SIZES = [1, 2, 7, 12, 30]  # elements of the states; every second one has an owner
SEEDS = 200


def ranges(count: int) -> list[Any]:
    kinds = [OwnedShards(count, 0, n % count) if n % 2 else EqualShards(count, 0) for n in SIZES]
    return [kind.ranges(n) for kind, n in zip(kinds, SIZES, strict=True)]


def part_of(commit: int, count: int, rank: int) -> list[list[int]]:
    """What a rank has of the states after a commit."""
    return [
        [1000 * commit + element for element in range(*limits[rank])] for limits in ranges(count)
    ]


class Rank:
    """One process. Its weights are those of a commit."""

    def __init__(self) -> None:
        self.lineage = self.commit = 0
        self.versions: Versions[list[list[int]]] = Versions()

    def offer(self) -> Offer:
        return Offer(self.lineage, self.commit, 1, self.versions.held())


def moved(moves: list[Move], ranks: list[Rank], version: Version, receiver: int) -> Any:
    """The parts that a rank has after the moves; also checks that each range is sent once."""
    before, got, seen = ranges(version.ranks), {}, set()
    for move in moves:
        if move.receiver != receiver:
            continue
        parts = ranks[move.sender].versions.parts_of(version)
        start = before[move.state][move.source][0]
        piece = parts[move.source][move.state][move.first - start : move.last - start]
        got.setdefault(move.target, [[] for _ in SIZES])[move.state] += piece
        if move.sender != receiver:
            assert move.source not in ranks[receiver].versions.parts_of(version), "it has it"
        each = {(move.state, element) for element in range(move.first, move.last)}
        assert not seen & each, "it is sent twice"
        seen |= each
    return got


class Job:
    """Generations of ranks, whose parts are those of the real code."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.generation, self.returned, self.lost = 0, 0, 0
        self.ranks = [Rank() for _ in range(self.dice.randint(2, 5))]
        self.by = holders(self.hosts())
        for rank, one in enumerate(self.ranks):
            one.lineage = 1
            parts = {other: part_of(0, len(self.ranks), other) for other in self.held_by(rank)}
            one.versions.add(Version(0, 0, len(self.ranks)), parts)

    def hosts(self) -> list[str]:
        hosts = self.dice.choice([1, 2])
        return [f"host{rank * hosts // len(self.ranks)}" for rank in range(len(self.ranks))]

    def held_by(self, rank: int) -> list[int]:
        return [rank, *(other for other, to in enumerate(self.by) if rank in to)]

    def some(self) -> list[int]:
        """The ranks that get through an exchange before another one is lost."""
        count = len(self.ranks)
        return self.dice.sample(range(count), self.dice.randint(0, count))

    def is_moved(self) -> bool:
        """Whether all ranks have their parts."""
        newest = [version for one in self.ranks for version, _ in one.versions.kept[-1:]]
        return [one.generation for one in newest] == [self.generation] * len(self.ranks)

    def commits(self) -> None:
        """Makes commits; the last one may reach only some ranks."""
        for _ in range(self.dice.randint(0, 4)):
            commit, count = self.ranks[0].commit + 1, len(self.ranks)
            broken = self.dice.random() < 0.3
            through = self.some() if broken else range(count)
            for rank in through:
                parts = {other: part_of(commit, count, other) for other in self.held_by(rank)}
                self.ranks[rank].versions.add(Version(commit, self.generation, count), parts)
                self.ranks[rank].commit = commit
            if broken:
                return
            returns = self.some() if self.dice.random() < 0.3 else range(count)
            for rank in returns:
                self.returned = commit
                self.ranks[rank].versions.settle()

    def change(self, wrong: Callable[[list[Move]], list[Move]]) -> None:
        """Kills ranks, lets others join, and moves the parts, which may be interrupted."""
        count = len(self.ranks)
        kills = min(self.dice.choice([0, 1, 1, 1, 1, 2]), count - 1)
        killed = set(self.dice.sample(range(count), kills))
        # While parts move, a rank may be the only one that has a part.
        exposed = bool(killed) and not self.is_moved()
        pair_lost = exposed or any({rank, *self.by[rank]} <= killed for rank in range(count))
        self.ranks = [one for rank, one in enumerate(self.ranks) if rank not in killed]
        self.ranks += [Rank() for _ in range(self.dice.randint(0, 2))]
        choice = choose([one.offer() for one in self.ranks])
        if choice.lost:
            assert pair_lost, "parts are lost though each has a holder"
            self.lost += 1
            return
        assert choice.version is not None and choice.root is not None
        assert choice.version.commit >= self.returned, "a commit that has returned is lost"
        assert self.ranks[choice.root].commit == choice.version.commit
        count = len(self.ranks)
        self.generation, self.by = self.generation + 1, holders(self.hosts())
        wanted = [self.held_by(rank) for rank in range(count)]
        moves = plan(ranges(choice.version.ranks), ranges(count), choice.held, wanted)
        found = [moved(wrong(moves), self.ranks, choice.version, rank) for rank in range(count)]
        made = Version(choice.version.commit, self.generation, count)
        for rank in range(count):  # the weights come first
            self.ranks[rank].lineage, self.ranks[rank].commit = 1, choice.version.commit
        for rank in self.some() if self.dice.random() < 0.3 else range(count):
            parts = {r: found[rank].get(r, [[] for _ in SIZES]) for r in wanted[rank]}
            for other, part in parts.items():
                assert part == part_of(made.commit, count, other), "a part is wrong"
            self.ranks[rank].versions.move(choice.version, made, parts)


def run(seed: int, wrong: Callable[[list[Move]], list[Move]] = lambda moves: moves) -> Job:
    job = Job(seed)
    for _ in range(6):
        if job.is_moved():
            job.commits()
        job.change(wrong)
        if job.lost:
            break
    return job


def test_no_commit_that_has_returned_is_lost() -> None:
    jobs = [run(seed) for seed in range(SEEDS)]
    assert 0 < sum(job.lost for job in jobs) < SEEDS
    assert sum(job.returned for job in jobs) > SEEDS


@pytest.mark.parametrize(
    "wrong",
    [
        lambda moves: moves[:-1],
        lambda moves: [*moves, moves[0]],
        lambda moves: [move._replace(first=move.first + 1) for move in moves],
    ],
    ids=["one is missing", "one is there twice", "too short"],
)
def test_a_wrong_plan_is_found(wrong: Callable[[list[Move]], list[Move]]) -> None:
    with pytest.raises(AssertionError, match=r"a part is wrong|sent twice"):
        for seed in range(SEEDS):
            run(seed, wrong)


def test_ranks_that_keep_one_version_lose_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: Versions[Any], version: Version, parts: dict[int, Any]) -> None:
        self.kept = [(version, parts)]

    monkeypatch.setattr(Versions, "add", add)
    with pytest.raises(AssertionError, match="lost"):
        for seed in range(SEEDS):
            run(seed)


def test_a_choice_that_takes_the_newest_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(offers: list[Offer]) -> Choice:
        version = max(held.version for offer in offers for held in offer.held)
        found = [dict(offer.held).get(version, ()) for offer in offers]
        return Choice(version, found, [o.commit for o in offers].index(version.commit))

    monkeypatch.setitem(globals(), "choose", newest)
    with pytest.raises((AssertionError, ValueError)):
        for seed in range(SEEDS):
            run(seed)


def test_a_copy_is_on_another_host_if_there_is_one() -> None:
    assert holders(["a"]) == [[]]
    assert holders(["a", "a", "a"]) == [[1], [2], [0]]
    assert holders(["a", "a", "b", "b"]) == [[2], [3], [0], [1]]
    assert holders(["a", "a", "b"]) == [[2], [2], [0]]


def test_ranks_keep_what_they_have() -> None:
    before, after = [[(0, 4), (4, 8)]], [[(0, 2), (2, 4), (4, 6), (6, 8)]]
    moves = plan(before, after, [{0}, {1}, (), ()], [[0], [1], [2], [3]])
    sent = [(m.first, m.last, m.sender, m.receiver) for m in moves if m.sender != m.receiver]
    assert sent == [(2, 4, 0, 1), (4, 6, 1, 2), (6, 8, 1, 3)]
    assert [(m.first, m.last) for m in moves if m.sender == m.receiver] == [(0, 2)]


def test_what_ranks_begin_with() -> None:
    new = Offer(0, 0, 0, [Held(Version(0, 0, 2), [0])])
    assert choose([new, new]) == Choice(None, ())
    loaded = [Offer(0, 0, 5, [Held(Version(0, 0, 2), [rank])]) for rank in range(2)]
    assert choose(loaded) == Choice(Version(0, 0, 2), [(0,), (1,)])
    alone = Offer(0, 0, 5, [Held(Version(0, 0, 1), [0])])
    assert choose([alone, alone]) == Choice(Version(0, 0, 1), [(0,), ()], root=0)
    assert list(choose(loaded[1:]).lost) == [0]
    assert choose([Offer(7, 0, 0, loaded[1].held)]) == Choice(None, ())
    assert list(choose([Offer(7, 3, 5, [])]).lost) == [0]


def test_a_rank_that_alone_has_loaded_the_model_is_refused() -> None:
    ranks = [Offer(0, 0, 5 - 5 * rank, [Held(Version(0, 0, 2), [rank])]) for rank in range(2)]
    with pytest.raises(RuntimeError, match=r"steps: 5, 0 .*\nLoad the model on all ranks"):
        choose(ranks)


def test_versions_count_although_the_program_has_set_the_steps_to_zero() -> None:
    version = Version(4, 1, 2)
    ranks = [Offer(7, 4, 0, [Held(version, [rank])]) for rank in range(2)]
    assert choose(ranks) == Choice(version, [[0], [1]], root=0)


def test_weights_come_from_a_rank_that_has_the_version() -> None:
    version = Version(4, 1, 1)
    ranks = [Offer(7, 4, 9, []), Offer(7, 4, 9, [Held(version, [0])])]
    assert choose(ranks).root == 1
