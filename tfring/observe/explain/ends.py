"""Rules about ranks that are stopped or gone, or have ended or failed."""

from __future__ import annotations

import re
from collections import Counter

from tfring.observe.explain.causes import Cause, Finding
from tfring.observe.explain.situation import Situation, duration
from tfring.observe.recorder.layout import EventType
from tfring.observe.recorder.reader import Call, Event
from tfring.runtime.texts.errors import follows, of_any_rank
from tfring.runtime.texts.ranks import listed, ranks_text
from tfring.runtime.texts.words import upper_first

# Only the text of an error names the rank at fault. ops/runtime/protocol/ writes it:
# engine/peers.cc, CancelFor in negotiation/failures.cc, CheckAbsent in negotiation/join.cc,
# and where steps fail.
_LOST = re.compile(r"rank (\d+) (?:\([^)]*\) )?was lost: (.*?)(?:\. See the log|$)", re.DOTALL)
_EXCEPTION = re.compile(
    r"rank (\d+) (?:\([^)]*\) )?ended with an exception: (.*?)(?:, while |\. No collective|$)",
    re.DOTALL,
)
_STEP = re.compile(r"the step of rank (\d+) (?:\([^)]*\) )?failed: (.*)", re.DOTALL)
_GONE = re.compile(r"rank (\d+) (?:\([^)]*\) )?has (?:shut down|left)")
_JOINED = re.compile(r"ranks? ([\d, and]+?) ha(?:s|ve) joined")
_ENDS = re.compile(r"rank (\d+) \(host [^)]*\)")
_DISAGREE = ("FailedPrecondition", "InvalidArgument", "Unimplemented", "ResourceExhausted")


def find_stopped(s: Situation) -> Finding | None:
    """Finds processes that are stopped, by the state that the kernel gives."""
    ranks = [rank for rank in s.ranks if s.state(rank) == "stopped"]
    if not ranks:
        return None
    if len(ranks) == s.job.size and s.job.size > 1:
        return Finding(
            cause=Cause.STOPPED,
            ranks=tuple(ranks),
            text=f"All {len(ranks)} ranks are stopped by a signal.",
            advice=(
                "`fg` in the terminal of the job, or `kill -CONT` on each process, lets them go on."
            ),
        )
    since = max(s.last_sign(rank) for rank in ranks)
    has = "has" if len(ranks) == 1 else "have"
    text = (
        f"{upper_first(s.whom(ranks))} {has} been stopped, by a signal or a debugger, for about "
        f"{duration(s.now - since)}"
    )
    waiters = s.waiters(without=ranks)
    it = "it" if len(ranks) == 1 else "them"
    pids = " ".join(str(s.job.records[rank].pid) for rank in ranks)
    hosts = " and ".join(sorted({s.job.records[rank].host for rank in ranks}))
    return Finding(
        cause=Cause.STOPPED,
        ranks=tuple(ranks),
        names=_names(s, ranks),
        text=text + (f"; {waiters}, for {it}." if waiters else "."),
        advice=f"`kill -CONT {pids}` on host {hosts} lets {it} go on.",
        brief=f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} stopped",
        age=s.now - since,
    )


def find_killed(s: Situation) -> Finding | None:
    """Finds processes that are gone and wrote no reason, while others are alive or saw it."""
    silent = [r for r in s.ranks if s.state(r) == "gone" and not s.left(r) and not s.failures[r]]
    others_failed = min((s.common(r, e.time) for r in s.ranks for e in s.failures[r]), default=0)
    if others_failed:
        # One that lived on after the first failure was ended because of it. Until it is killed, a
        # rank that waits writes to its record with every heartbeat.
        named = {int(match[1]) for _, match in _matches(s, _LOST)}
        silent = [r for r in silent if r in named or s.last_sign(r) <= others_failed]
    elif len(silent) == s.job.size:
        return None  # all at once: what they did says more
    if not silent:
        return None
    waiters = s.waiters(without=silent)
    last = [f"{upper_first(ranks_text([r]))} was {_doing(s, r)}." for r in silent[:4]]
    is_gone = "is gone: its process" if len(silent) == 1 else "are gone: their processes"
    heard = max(map(s.last_sign, silent))
    when = f", in the last {duration(s.now - heard)}" if s.lives else ""
    return Finding(
        cause=Cause.KILLED,
        ranks=tuple(silent),
        names=_names(s, silent),
        text=(
            f"{upper_first(s.whom(silent))} {is_gone} ended without shutdown{when}. "
            f"{' '.join(last)}" + (f" {upper_first(waiters)}." if waiters else "")
        ),
        advice=(
            "Look for a signal (`dmesg` names what the kernel killed for lack of memory), a crash "
            "in the output of that rank, or os._exit."
        ),
    )


def find_all_killed(s: Situation) -> Finding | None:
    """Finds that no process is left and none wrote why."""
    if any(s.state(rank) != "gone" or s.left(rank) or s.failures[rank] for rank in s.ranks):
        return None
    last = [f"{ranks_text([rank])} was {_doing(s, rank)}" for rank in s.ranks[:8]]
    return Finding(
        cause=Cause.KILLED,
        ranks=tuple(s.ranks),
        text=f"The processes of {ranks_text(s.ranks)} are gone; none has written why, so they were "
        f"killed together. {upper_first('; '.join(last))}.",
        advice="Look at what ended the job: its time limit, the launcher, the kernel (`dmesg`).",
    )


def find_failed(s: Situation) -> Finding | None:
    """Finds the first failure that a rank recorded, and its cause."""
    found = (_of_event(s, rank, event) for rank, event in _first_failures(s))
    return next((one for one in found if one is not None), None)


def find_any_failure(s: Situation) -> Finding | None:
    """Repeats the first failure if no other rule knows more."""
    for rank, event in _first_failures(s):
        named = tuple(sorted({int(r) for r in _ENDS.findall(event.text)})) or (rank,)
        return Finding(
            cause=Cause.FAILED,
            ranks=named,
            text=f"The job failed first on {s.who(rank)}: {event.text}",
            advice="Look at the end of that rank's error output.",
        )
    return None


def _first_failures(s: Situation) -> list[tuple[int, Event]]:
    """Returns all failures, in order of time."""
    found = [(s.common(r, e.time), r, e) for r, events in s.failures.items() for e in events]
    return [(r, e) for _, r, e in sorted(found, key=lambda one: one[:2])]


def _of_event(s: Situation, rank: int, event: Event) -> Finding | None:
    own_end = event.type is EventType.SHUTDOWN
    if own_end:
        return _exception(s, rank, event.text)
    if match := _EXCEPTION.search(event.text):
        return _exception(s, int(match[1]), match[2])
    if event.code in _DISAGREE:
        return _disagree(s, event)
    if match := _STEP.search(event.text):
        return _exception(s, int(match[1]), match[2], "the step of {} failed: ")
    if match := _LOST.search(event.text):
        return _lost(s, int(match[1]), match[2])
    if match := _GONE.search(event.text):
        return _left(s, int(match[1]), rank)
    return None


def _exception(s: Situation, rank: int, error: str, how: str = "{} ended with: ") -> Finding:
    # The other ranks get a shortened text.
    said = {
        r: e.text
        for r in s.ranks
        for e in s.job.records[r].events
        if e.type is EventType.SHUTDOWN and e.text
    }
    error = said.get(rank, error).rstrip(". ")
    others = [text for r, text in said.items() if r != rank]
    alike = {of_any_rank(text, r) for r, text in said.items()}
    if others and len(said) == s.job.size and len(alike) == 1:
        return Finding(
            cause=Cause.EXCEPTION,
            ranks=tuple(s.ranks),
            text=f"All {len(said)} ranks ended with: {alike.pop().rstrip('. ')}.",
            advice="Look at the traceback of one of them.",
        )
    last = s.last_call(rank) if rank in s.job.records else None
    after = f" Its last call that ended well was {last.text()}." if last else ""
    advice = "Look at the traceback of that rank"
    if all(map(follows, others)):
        after += " The other ranks cannot go on without it."
        advice += "; the errors of the others follow from it"
    return Finding(
        cause=Cause.EXCEPTION,
        ranks=(rank,),
        text=f"{upper_first(how.format(s.who(rank)))}{error}.{after}",
        advice=f"{advice}.",
    )


def _lost(s: Situation, rank: int, reason: str) -> Finding:
    silence = "has sent nothing" in reason or "heard nothing" in reason
    return Finding(
        cause=Cause.LOST if silence or s.state(rank) == "running" else Cause.KILLED,
        ranks=(rank,),
        names=_names(s, [rank]),
        text=f"{upper_first(s.who(rank))} was lost: {reason}. "
        + (f"It was {_doing(s, rank)}." if rank in s.job.records else ""),
        advice=(
            "Look at the output of that rank, at its host (`dmesg`: memory, hardware) and at the "
            "network between the hosts."
        ),
    )


def _left(s: Situation, rank: int, told: int) -> Finding:
    record = s.job.records.get(rank)
    marks = [e.text for e in record.events if e.type is EventType.MARK] if record else []
    called = next((text for text in reversed(marks) if text.startswith("sys.exit(")), "")
    waiters = s.waiters(without=[rank])
    needs = f"{upper_first(waiters)}, for it." if waiters else f"Rank {told} needs it for a call."
    last = s.last_call(rank) if record else None
    called_last = f"{last.text()}, call {last.invocation} of that name" if last else ""
    after = f" Its last call was {called_last}." if last else ""
    how = (
        f"called {called}" if called else "has left the job: its program ended, or called shutdown"
    )
    return Finding(
        cause=Cause.LEFT,
        ranks=(rank,),
        names=_names(s, [rank]),
        text=f"{upper_first(s.who(rank))} {how}.{after} {needs}",
        brief=f"{upper_first(ranks_text([rank]))} {how}",
        advice="Let all ranks call sys.exit there, or none."
        if called
        else (
            "Run the same number of steps on all ranks (JoinCallback or join() for ranks that run "
            "out of data), and look for sys.exit or shutdown that one rank alone reaches."
        ),
    )


def _disagree(s: Situation, event: Event) -> Finding:
    """Finds the ranks whose call differs from that of most others; of two, both."""
    calls: dict[int, Call] = {}
    for rank, record in s.job.records.items():
        failed = [call for call in record.calls if call.status in _DISAGREE]
        if failed:
            calls[rank] = failed[-1]
    values = {r: (c.kind, c.dtype, c.shapes, c.op, c.root, c.call_site) for r, c in calls.items()}
    usual, votes = Counter(values.values()).most_common(1)[0] if values else (None, 0)
    odd = [rank for rank, value in values.items() if value != usual]
    if not odd or 2 * votes <= len(values):
        odd = list(values)
    if match := _JOINED.search(event.text):
        odd = [int(rank) for rank in re.findall(r"\d+", match[1])]
    names = tuple(sorted({call.name for call in calls.values()}))
    sites = sorted({call.call_site for call in calls.values() if call.call_site})
    return Finding(
        cause=Cause.DISAGREE,
        ranks=tuple(odd),
        names=names,
        text=event.text,
        advice=(f"The calls are at {listed(sites)}. " if sites else "")
        + "Make this call with the same values on all ranks.",
    )


def _doing(s: Situation, rank: int) -> str:
    calls = s.open.get(rank, [])
    if calls:
        return f"in {calls[0].text()}"
    last = s.last_call(rank)
    return f"between two calls, the last of them {last.text()}" if last else "before its first call"


def _names(s: Situation, ranks: list[int]) -> tuple[str, ...]:
    calls = [call for rank, found in s.open.items() if rank not in ranks for call in found]
    return tuple(sorted({call.name for call in calls}))


def _matches(s: Situation, pattern: re.Pattern[str]) -> list[tuple[int, re.Match[str]]]:
    found = ((rank, pattern.search(event.text)) for _, rank, event in s.events())
    return [(rank, match) for rank, match in found if match is not None]
