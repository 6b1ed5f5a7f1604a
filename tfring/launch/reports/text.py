"""Finds the rank that failed first and describes its failure."""

from __future__ import annotations

import re

from tfring.job.bootstrap.hosts import host_name
from tfring.launch.agents.rank import RankProcess

_HEADER = "Traceback (most recent call last):"
_CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# A line such as "ValueError: no such file" or "KeyboardInterrupt".
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?")
MOST_CAUSE = 500
_MAX_LINES = 60
_PLAIN_LINES = 12
# The runtime's errors name the rank that caused them in these words.
_CAUSE = re.compile(r"rank (\d+) (?:\([^)]*\) )?(?:was lost|has shut down|ended with an exception)")


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
    return {int(rank) for rank in _CAUSE.findall("\n".join(end_of_output(process)))}


def end_of_output(process: RankProcess) -> list[str]:
    """Returns the last traceback in a rank's error output with its causes, else the last lines."""
    return last_traceback(process.tail.decode(errors="replace"))


def last_traceback(text: str) -> list[str]:
    """Returns the last traceback in an error output with its causes, else the last lines."""
    lines = text.rstrip().splitlines()
    headers = [i for i, line in enumerate(lines) if line.endswith(_HEADER)]
    if not headers:
        return lines[-_PLAIN_LINES:]
    begin = len(headers) - 1
    while begin > 0 and any(
        line.strip() in _CHAINS for line in lines[headers[begin - 1] : headers[begin]]
    ):
        begin -= 1
    block = lines[headers[begin] :]
    if len(block) > _MAX_LINES:
        block = [*block[:10], "  ...", *block[-(_MAX_LINES - 11) :]]
    return block


def headline(first: RankProcess) -> str:
    """Returns who failed first, and how."""
    return f"{_rank_on_host(first)} failed first, with {first.describe_end()}"


def end_in_a_line(process: RankProcess) -> str:
    """Returns ``rank 2 on host node1 ended with exit code 1: ValueError: no such file``."""
    cause = exception_of(process.tail.decode(errors="replace"))
    end = f"{_rank_on_host(process)} ended with {process.describe_end()}"
    return f"{end}: {cause}" if cause else end


def _rank_on_host(process: RankProcess) -> str:
    # The runtime calls this host by its name, too.
    host = host_name() if process.slot.host == "localhost" else process.slot.host
    return f"rank {process.rank} on host {host}"


def exception_of(text: str) -> str:
    """Returns the exception at the end of the last traceback in an error output, or ""."""
    lines = last_traceback(text)
    headers = [i for i, line in enumerate(lines) if line.endswith(_HEADER)]
    if not headers:
        return ""
    # Frames are indented; the exception's first line is not, and what follows is not its own.
    for line in lines[headers[-1] + 1 :]:
        if _EXCEPTION.fullmatch(line):
            return line[:MOST_CAUSE]
    return ""


def describe(processes: list[RankProcess]) -> str:
    """Returns a summary of a failed job; empty if no rank failed."""
    first = first_failure(processes)
    if first is None:
        return ""
    block = end_of_output(first)
    lines = [f"tfring run: {headline(first)}." + (" The end of its error output:" if block else "")]
    lines += [f"    {line}" for line in block]
    followers = []
    for process in processes:
        if process is first or not process.failed():
            continue
        by_launcher = ", ended by tfring run" if process.ended_by_launcher else ""
        followers.append(f"rank {process.rank} ({process.describe_end()}{by_launcher})")
    if followers:
        shown = ", ".join(followers[:16]) + (", ..." if len(followers) > 16 else "")
        lines.append(f"tfring run: after it {shown}")
    return "\n".join(lines)
