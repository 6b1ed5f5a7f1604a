"""What is said of a job that has failed: what happened, where, what to do; the traceback once."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from tfring.launch.agents.rank import RankProcess
from tfring.launch.reports.text import MOST_CAUSE, error_of, unshown
from tfring.launch.signals import signal_name
from tfring.observe.explain.causes import Cause, Explanation
from tfring.observe.explain.launched import RunRecords
from tfring.runtime.texts.errors import ProgramError, of_any_rank
from tfring.runtime.texts.ranks import ranks_text
from tfring.runtime.texts.words import upper_first

# Programs end with these by mistakes in C or C++.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
# What explain knows better than the errors of the ranks: where these are, all ranks have errors.
_OF_SEVERAL = (Cause.DISAGREE, Cause.LEFT)
# What a stall ends with on all ranks, with and without TensorFlow.
_OF_STALLS = re.compile(r"DeadlineExceededError\b|CoreError: DeadlineExceeded\b")
# Such an error says what the rank knew that has looked at the processes while they were there.
_LAST_WARNING = re.compile(r"At the last warning: (.*?)(?: `tfring explain|$)")
_MARGIN = " " * len("tfring: ")


@dataclass(frozen=True)
class Verdict:
    """Why a job has failed."""

    # What happened; where, and what to do; what became of the others.
    lines: tuple[str, ...]
    rank: int = 0  # whose traceback this is
    frames: tuple[str, ...] = ()  # the traceback; (): it has been shown, or there is none

    @property
    def why(self) -> str:
        """The same in a few sentences."""
        return " ".join(self.lines)

    def block(self, job: str) -> str:
        """Returns the lines for the screen; `job` is what `tfring explain` knows it by, or ""."""
        lines = list(self.lines)
        if job:  # in a line with what became of the others
            last = [lines.pop()] if len(lines) > 1 else []
            lines.append(" ".join([*last, f"More: tfring explain {job}"]))
        if self.frames:
            lines.append(f"The traceback of rank {self.rank} (TFRING_TRACEBACK=full: all of it):")
            lines += self.frames
        return "\n".join([f"tfring: {lines[0]}", *(f"{_MARGIN}{line}" for line in lines[1:])])


def verdict(
    processes: Sequence[RankProcess],
    first: RankProcess,
    records: RunRecords,
    found: Explanation | None,
    size: int,
) -> Verdict:
    """Returns why a job of `size` ranks has failed. `first` is the rank that failed first.

    The processes are the ranks of this launcher, which have ended. `found` explains the records
    that they left.
    """
    several = len({process.slot.host for process in processes}) > 1
    who = f"Rank {first.rank}" + (f" on host {first.slot.host}" if several else "")
    error, frames = error_of(first), unshown(first)
    guilty, same = [first], _error_of_any_rank(first)
    if lost := first.lost():
        lines = [f"{who} was lost: {lost}."]
        if lost.startswith("ssh could not reach"):
            lines.append(f"Check that `ssh {first.slot.host}` reaches it without a password.")
    elif first.code is not None and first.code < 0:
        lines = _of_signal(who, first, -first.code, records.last_seen(first.rank))
    elif found is not None and _knows_better(found, error):
        seen = _LAST_WARNING.search(error.text) if error is not None else None
        what = [_of_several(found, processes, records), found.advice]
        lines = [seen[1]] if seen is not None else what
        guilty = [p for p in processes if p.rank in found.ranks] or guilty
        frames = frames if first in guilty else ()
    elif error is not None:
        guilty = [p for p in processes if p.failed() and _error_of_any_rank(p) == same]
        lines = [_of_error(guilty, size, who, error, same), error.advice]
    else:
        gone = found is not None and first.rank in found.ranks
        if not gone:
            guilty = [p for p in processes if p.code == first.code and not _error_of_any_rank(p)]
        who = _all_of(guilty, size, who)
        lines = [_of_code(who, first, gone, records.last_seen(first.rank))]
    lines += _others(processes, guilty, same)
    return Verdict(tuple(filter(None, lines)), first.rank, frames)


def _knows_better(found: Explanation, error: ProgramError | None) -> bool:
    if found.cause in _OF_SEVERAL:
        return True
    if error is None:
        return found.cause is not Cause.KILLED  # the launcher has seen how
    return error.follows or _OF_STALLS.match(error.line()) is not None


def _error_of_any_rank(process: RankProcess) -> str:
    error = error_of(process)
    return of_any_rank(error.line(), process.rank) if error is not None else ""


def _of_signal(who: str, process: RankProcess, number: int, seen: str) -> list[str]:
    name, where = signal_name(number), f"It was at {seen}." if seen else ""
    if memory := process.out_of_memory():
        advice = "Give the job more memory, or use a smaller batch."
        return [f"{who} was killed: {memory}.", f"{where} {advice}".strip()]
    if number in _CRASHES:
        advice = "PYTHONFAULTHANDLER=1 shows the line of the program."
        return [
            f"{who} crashed in C or C++: signal {number} ({name}).",
            f"{where} {advice}".strip(),
        ]
    if number != signal.SIGKILL:
        return [f"{who} was ended by {name} (signal {number}) from outside the job.", where]
    killed = f"{who} was killed by SIGKILL from outside the job"
    if process.facts.get("kernel_log"):
        return [f"{killed}. The kernel's log shows no out-of-memory kill.", where]
    return [
        f"{killed}, or by the kernel for lack of memory. In that case `dmesg` on its host shows an "
        "out-of-memory kill.",
        where,
    ]


def _of_several(found: Explanation, processes: Sequence[RankProcess], records: RunRecords) -> str:
    if found.cause is not Cause.LEFT:
        return upper_first(found.what)
    others = [process.rank for process in processes if process.rank not in found.ranks]
    step = records.last_seen(found.ranks[0]).rpartition("after ")[1:]
    after = f", {''.join(step)}" if step[0] else ""
    return f"{found.brief}{after}, while {ranks_text(others)} still trained."


def _of_error(
    guilty: list[RankProcess], size: int, who: str, error: ProgramError, same: str
) -> str:
    if len(guilty) == 1:
        return error.sentence(who)
    return error.sentence(_all_of(guilty, size, who), same)


def _all_of(guilty: list[RankProcess], size: int, who: str) -> str:
    """Returns "All 2 ranks", "Ranks 0 and 1", or `who` of one alone."""
    if len(guilty) == 1:
        return who
    if len(guilty) == size:
        return f"All {size} ranks"
    return upper_first(ranks_text([process.rank for process in guilty]))


def _of_code(who: str, process: RankProcess, gone: bool, seen: str) -> str:
    """Returns how a process ended that has written no exception.

    `gone` says that it has joined its job and has not left it in order.
    """
    if not gone:
        return f"{who} ended with exit code {process.code}: see the output above."
    where = f", at {seen}" if seen else ""
    return (
        f"{who} ended with exit code {process.code}{where}, without an error of Python: by "
        "os._exit, or in a library."
    )


def _others(
    processes: Sequence[RankProcess], guilty: Sequence[RankProcess], same: str
) -> list[str]:
    """Returns what became of the ranks that are not to blame."""
    stopped: list[int] = []
    ends: dict[str, list[int]] = {}
    for process in processes:
        if process in guilty or not process.failed():
            continue
        error = error_of(process)
        if process.ended_by_launcher or (error is not None and error.follows):
            stopped.append(process.rank)
        elif error is None:
            ends.setdefault(f"ended with {process.describe_end()}.", []).append(process.rank)
        elif _error_of_any_rank(process) == same:
            stopped.append(process.rank)
        else:
            ends.setdefault(error.sentence("")[1:MOST_CAUSE], []).append(process.rank)
    lines = [f"{upper_first(ranks_text(ranks))}, too, {end}" for end, ranks in ends.items()]
    if stopped:
        were = "was" if len(stopped) == 1 else "were"
        lines.append(f"{upper_first(ranks_text(stopped))} {were} stopped.")
    return lines
