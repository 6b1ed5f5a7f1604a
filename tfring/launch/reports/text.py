"""Finds the rank that failed first and describes its failure in a line."""

from __future__ import annotations

from tfring.launch.agents.rank import RankProcess
from tfring.runtime.texts.errors import CAUSED_BY, ProgramError, last_traceback, read_error

MOST_CAUSE = 500
_MAX_LINES = 60
_PLAIN_LINES = 12


def first_failure(processes: list[RankProcess]) -> RankProcess | None:
    """Returns the rank whose failure came first; ranks that the launcher ended come last.

    If the error of a rank says that another rank was lost or left, the other one failed first.
    """
    failed = {p.rank: p for p in processes if p.failed()}
    if not failed:
        return None
    first = min(failed.values(), key=lambda p: (p.ended_by_launcher, p.failed_at()))
    seen = {first.rank}
    while True:
        causes = [failed[r] for r in blamed(first) if r in failed and r not in seen]
        if not causes or causes[0].ended_by_launcher:
            return first
        first = causes[0]
        seen.add(first.rank)


def blamed(process: RankProcess) -> set[int]:
    """Returns the ranks whose end the error of a rank names as its cause."""
    return {int(rank) for rank in CAUSED_BY.findall("\n".join(end_of_output(process)))}


def error_of(process: RankProcess) -> ProgramError | None:
    """Returns the exception at the end of a rank's error output; None if there is none."""
    return read_error(process.error_output().decode(errors="replace"))


def unshown(process: RankProcess) -> tuple[str, ...]:
    """Returns the traceback that has ended a rank if nobody has seen it, for the screen."""
    text = process.held.kept.decode(errors="replace").rstrip()
    error = read_error(text)
    return tuple(text.splitlines()[-_PLAIN_LINES:]) if error is None else error.frames


def end_of_output(process: RankProcess) -> list[str]:
    """Returns the last traceback in a rank's error output with its causes, else the last lines."""
    lines = process.tail.decode(errors="replace").rstrip().splitlines()
    block = last_traceback(lines) or lines[-_PLAIN_LINES:]
    if len(block) > _MAX_LINES:
        block = [*block[:10], "  ...", *block[-(_MAX_LINES - 11) :]]
    return block


def end_in_a_line(process: RankProcess) -> str:
    """Returns ``rank 2 on host node1 ended with exit code 1: ValueError: no such file``."""
    error = error_of(process)
    end = f"rank {process.rank} on host {process.slot.host} ended with {process.describe_end()}"
    return f"{end}: {error.line()[:MOST_CAUSE]}" if error is not None else end
