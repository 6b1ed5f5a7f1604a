"""Rules about ranks that wait in different calls, or make none."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

from tfring.observe.explain.causes import Cause, Finding
from tfring.observe.explain.situation import (
    SECOND,
    Key,
    Situation,
    duration,
    make_key,
)
from tfring.observe.recorder.layout import CallFlags, RankState
from tfring.observe.recorder.reader import Call
from tfring.runtime.texts.ranks import listed, ranks_text
from tfring.runtime.texts.words import upper_first

# A rank may wait long in join. The others are blamed after doing nothing for this long.
_JOIN_PATIENCE = 3 * SECOND
_COMPILED = (
    "All these calls are in functions with jit_compile=True. There are two common causes. "
    "(1) Several threads run compiled functions that assign the same variable: run those functions "
    "on one thread. (2) The inter-op pool is too small: raise it with "
    "tf.config.threading.set_inter_op_parallelism_threads. Otherwise: "
)
_SAME_CALLS = "Every rank must make the same calls, eager calls in the same order. "


def find_different_calls(s: Situation) -> Finding | None:
    """Finds ranks that wait for each other, each in a call that another has not made."""
    stuck = _in_circles(s)
    if not stuck:
        return None
    places = {rank: _blocked(s, rank, stuck) for rank in stuck}
    age = min(s.waited(rank, call) for rank, call in places.items())
    # How long ranks had waited that were killed together is unknown.
    if not s.killed_together and not any(s.overdue(rank, call) for rank, call in places.items()):
        return None
    groups: dict[Key, list[int]] = defaultdict(list)
    for rank, call in places.items():
        groups[make_key(call)].append(rank)
    if len({call.process_set for call in places.values()}) > 1:
        return _circle_of_sets(s, places, age)
    usual = _usual(s, groups, places)
    odd = sorted(r for key, ranks in groups.items() if key != usual for r in ranks)
    cause, why = _judge(s, places, odd, groups[usual] if usual else [])
    last = _last_common(s, list(stuck))
    verb = "have waited" if s.lives else "had waited"
    text = (
        f"These ranks {verb} for each other for {duration(age)}: "
        f"{_places_text(groups, places)}. {why}"
        + (f" The last call that all of them made was {last.text()}." if last else "")
    )
    return Finding(
        cause=cause,
        ranks=tuple(odd) if usual else tuple(sorted(stuck)),
        names=tuple(sorted({key.name for key in groups})),
        text=text,
        advice=(_COMPILED if all(map(_compiled, places.values())) else "")
        + f"{_SAME_CALLS}Compare what leads to these lines on {ranks_text(stuck)}.",
        brief=f"{ranks_text(stuck)} wait for each other: {_places_text(groups, places)}",
        age=age,
    )


def _compiled(call: Call) -> bool:
    return CallFlags.COMPILED in call.flags


def find_not_calling(s: Situation) -> Finding | None:
    """Finds ranks that others wait for and that wait in no call themselves."""
    blamed: dict[int, list[tuple[int, Call]]] = defaultdict(list)
    for rank, calls in s.waiting.items():
        for call in calls:
            for other in s.missing(call):
                # A rank that still makes other calls may join later.
                busy = call.kind == "join" and s.idle(other) <= max(s.patience, _JOIN_PATIENCE)
                if other != rank and not s.open.get(other) and not busy:
                    blamed[other].append((rank, call))
    if not blamed:
        return None
    age = max(s.waited(rank, call) for found in blamed.values() for rank, call in found)
    if not any(s.overdue(r, call, other) for other, found in blamed.items() for r, call in found):
        return None
    ranks = sorted(blamed)
    call = blamed[ranks[0]][0][1]
    waits = sorted({rank for found in blamed.values() for rank, _ in found})
    text, brief = _who_waits(s, ranks, waits, call, age)
    return Finding(
        cause=Cause.NOT_CALLING,
        ranks=tuple(ranks),
        names=(call.name,),
        text=text,
        advice=_stack_advice(s, ranks[0], call),
        brief=brief,
        age=age,
    )


def _who_waits(
    s: Situation, ranks: list[int], waits: list[int], call: Call, age: int
) -> tuple[str, str]:
    """Returns a paragraph about ranks that others wait for, and the same in a few words."""
    verb = ("waits", "wait") if s.lives else ("waited", "waited")
    waiting = f"{ranks_text(waits)} {verb[len(waits) > 1]} for"
    if len(ranks) == 1 and (doing := s.doing(ranks[0])):
        brief = f"{ranks_text(ranks)} {doing}"
        what = f"{upper_first(brief)} and has called nothing for {duration(s.idle(ranks[0]))}"
        text = f"{what}; {waiting} it in {call.text()}, for {duration(age)}. {_about(s, ranks[0])}"
        return text, brief
    brief = f"{waiting} {ranks_text(ranks)}"
    do = "does" if len(ranks) == 1 else "do"
    text = (
        f"{upper_first(brief)} in {call.text()}, for {duration(age)}: {ranks_text(ranks)} {do} not "
        f"call it. {' '.join(_idle_text(s, rank) for rank in ranks[:4])}"
    )
    return text, brief


def _about(s: Situation, rank: int) -> str:
    """Returns which process a rank is, and what it called last."""
    record = s.job.records[rank]
    last = s.last_call(rank)
    called = f"called {last.text()} last" if last else "has called nothing yet"
    return f"It is process {record.pid} on host {record.host} and {called}."


def _stack_advice(s: Situation, rank: int, call: Call) -> str:
    advice = ""
    if call.kind == "join":
        advice = "A rank that runs out of data calls join. All other ranks must call it, too. "
    if s.place_text(rank):
        return advice.rstrip()
    if s.state(rank) == "running":
        pid = s.job.records[rank].pid
        advice += (
            f"`tfring stacks` or `py-spy dump --pid {pid}` on that host shows its current line. "
        )
    return advice + (
        "Often the reason is missing input, a lock, a branch without the call, or an "
        "evaluation or a checkpoint on one rank."
    )


def _in_circles(s: Situation) -> list[int]:
    """Returns the ranks that cannot go on because each waits for another of them."""
    stuck = {rank for rank, calls in s.waiting.items() if calls}
    changed = True
    while changed:
        changed = False
        for rank in sorted(stuck):
            if not any(set(s.missing(call)) & stuck for call in s.waiting[rank]):
                stuck.discard(rank)
                changed = True
    return sorted(stuck)


def _blocked(s: Situation, rank: int, stuck: list[int]) -> Call:
    """Returns the oldest call of a rank that waits for one of the others."""
    return next(call for call in s.waiting[rank] if set(s.missing(call)) & set(stuck))


def _usual(s: Situation, groups: dict[Key, list[int]], places: dict[int, Call]) -> Key | None:
    """Returns where the ranks should be: where most are; else what came next before."""
    sizes = sorted((len(ranks) for ranks in groups.values()), reverse=True)
    if len(sizes) == 1 or sizes[0] > sizes[1]:
        return max(groups, key=lambda key: len(groups[key]))
    seen = [key for key, ranks in groups.items() if any(_known(s, r, places[r]) for r in ranks)]
    return seen[0] if len(seen) == 1 else None


def _known(s: Situation, rank: int, call: Call) -> bool:
    """Whether the rank has made this call before, right after the same call."""
    calls = sorted(s.job.records[rank].calls, key=lambda c: c.number)
    names = [_place(c) for c in calls if c.number <= call.number]
    if len(names) < 2:
        return False
    return tuple(names[-2:]) in set(itertools.pairwise(names[:-1]))


def _place(call: Call) -> tuple[int, str]:
    return call.process_set, call.name


def _judge(
    s: Situation, places: dict[int, Call], odd: list[int], usual: list[int]
) -> tuple[Cause, str]:
    """Says what the odd ranks do differently, from the names that each side has ever called."""
    if not odd or not usual:
        one, other = sorted(places)[:2]
        odd, usual = [other], [one]
    rank, reference = odd[0], usual[0]
    theirs, expected = places[rank], places[reference]
    who, others = upper_first(ranks_text(odd)), ranks_text(usual)
    has = "has" if len(odd) == 1 else "have"
    known_there = s.counts[reference].get((theirs.process_set, theirs.name), 0) > 0
    known_here = s.counts[rank].get((expected.process_set, expected.name), 0) > 0
    if not known_there and not known_here:
        return Cause.OTHER_BRANCH, (
            f"Their programs differ from there on: {others} {_never(s, usual)} called "
            f"'{theirs.name}', and {ranks_text(odd)} {_never(s, odd)} called '{expected.name}'."
        )
    calls = sorted(s.job.records[rank].calls, key=lambda c: c.number)
    before = [c for c in calls if c.number < theirs.number]
    again = bool(before) and _place(before[-1]) == _place(theirs)
    if not known_there and (again or known_here):
        return Cause.EXTRA_CALL, (
            f"{who} {has} called '{theirs.name}', which {others} {_never(s, usual)} called. "
            f"{_extra_or_fewer(odd)}"
        )
    if again:
        return Cause.EXTRA_CALL, (
            f"{who} {has} called '{theirs.name}' again: call {theirs.invocation} of that name. "
            f"{_extra_or_fewer(odd)}"
        )
    count = s.counts[rank].get((expected.process_set, expected.name), 0)
    return Cause.OTHER_ORDER, (
        f"{who} {has} called '{expected.name}' {count} times, {others} {expected.invocation} "
        f"times. Either {ranks_text(odd)} left that call out, or made the calls in another order."
    )


def _extra_or_fewer(odd: list[int]) -> str:
    who = ranks_text(odd)
    makes = f"{who} makes an extra call, or it runs"
    make = f"{who} make an extra call, or they run"
    return f"Either {makes if len(odd) == 1 else make} fewer steps than the others."


def _never(s: Situation, ranks: list[int]) -> str:
    has = "has" if len(ranks) == 1 else "have"
    if any(s.job.records[rank].header["overwritten"] for rank in ranks):
        return f"{has} not, in the calls that are still recorded,"
    return f"{has} never"


def _circle_of_sets(s: Situation, places: dict[int, Call], age: int) -> Finding:
    """Describes ranks that wait for each other across process sets."""
    waited_for = {rank for call in places.values() for rank in s.missing(call)}
    places = {rank: call for rank, call in places.items() if rank in waited_for}
    parts = [
        f"rank {rank} waits in {call.text()} of process set {call.process_set} for "
        f"{ranks_text(s.missing(call))}"
        for rank, call in sorted(places.items())
    ]
    return Finding(
        cause=Cause.OTHER_ORDER,
        ranks=tuple(sorted(places)),
        names=tuple(sorted({c.name for c in places.values()})),
        text=f"These ranks have waited for each other across process sets for {duration(age)}: "
        + "; ".join(parts)
        + ".",
        advice=(
            "Ranks that are in several process sets must call their collectives in the same order, "
            "for example by the number of the set."
        ),
    )


def _places_text(groups: dict[Key, list[int]], places: dict[int, Call]) -> str:
    ordered = sorted(groups.values(), key=lambda ranks: ranks[0])
    return listed(
        [
            f"{ranks_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in "
            f"{places[ranks[0]].text()}"
            for ranks in ordered
        ]
    )


def _last_common(s: Situation, ranks: list[int]) -> Call | None:
    """Returns the last call that ended well on all of the ranks."""
    done = [
        {make_key(call): call for call in s.job.records[rank].calls if call.status == "OK"}
        for rank in ranks
    ]
    common = Counter(key for calls in done for key in calls)
    shared = [call for key, call in done[0].items() if common[key] == len(ranks)]
    return max(shared, key=lambda call: call.ended, default=None)


def _idle_text(s: Situation, rank: int) -> str:
    """Says what is known of a rank that calls nothing."""
    if rank not in s.job.records:
        return (
            f"{upper_first(ranks_text([rank]))} has no record here. Run `tfring explain` on its "
            "host, too."
        )
    if s.job.records[rank].state is RankState.LEFT:
        return f"{upper_first(s.who(rank))} has left the job."
    last, idle = s.last_call(rank), duration(s.idle(rank))
    text = upper_first(s.who(rank))
    if last:
        text += f" has called nothing for {idle}, since {last.text()}."
    else:
        text += (
            f" has not made its first call yet, after {idle}. It may still be loading or compiling."
        )
    busy = s.seen[rank].busy if rank in s.seen else None
    if busy is not None:
        text += " It computes." if busy else " It does not compute: it waits for something."
    return text + s.place_text(rank)
