"""Says which rank failed first, and why."""

from __future__ import annotations

import re

from tfring.launcher.process import RankProcess

_HEADER = "Traceback (most recent call last):"
_CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_MAX_LINES = 60
_PLAIN_LINES = 12
# How the runtime's errors name the rank that they are a consequence of.
_BLAME = re.compile(r"rank (\d+) (?:\([^)]*\) )?(?:was lost|has shut down)")


def first_failure(processes: list[RankProcess]) -> RankProcess | None:
    """The rank whose failure came first; those that the launcher ended itself come last.

    A rank whose error says that another one was lost or left failed because of that one.
    """
    failed = {p.rank: p for p in processes if p.failed()}
    if not failed:
        return None
    first = min(failed.values(), key=lambda p: (p.ended_by_us, p.failed_at()))
    seen = {first.rank}
    while True:
        blamed = [int(rank) for rank in _BLAME.findall("\n".join(_end_of_output(first)))]
        culprits = [failed[r] for r in blamed if r in failed and r not in seen]
        if not culprits or culprits[0].ended_by_us:
            return first
        first = culprits[0]
        seen.add(first.rank)


def _end_of_output(process: RankProcess) -> list[str]:
    return last_traceback(process.tail.decode(errors="replace"))


def last_traceback(text: str) -> list[str]:
    """The last traceback in an error output with what it was caused by, else its last lines."""
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


def describe(processes: list[RankProcess]) -> str:
    """The closing words about a job that failed; empty if nobody failed."""
    first = first_failure(processes)
    if first is None:
        return ""
    block = _end_of_output(first)
    lines = [
        f"tfring run: rank {first.rank} on host {first.slot.host} failed first, with "
        f"{first.describe_end()}." + (" The end of its error output:" if block else "")
    ]
    lines += [f"    {line}" for line in block]
    followers = []
    for process in processes:
        if process is first or not process.failed():
            continue
        by_us = ", ended by tfring run" if process.ended_by_us else ""
        followers.append(f"rank {process.rank} ({process.describe_end()}{by_us})")
    if followers:
        shown = ", ".join(followers[:16]) + (", ..." if len(followers) > 16 else "")
        lines.append(f"tfring run: after it {shown}")
    return "\n".join(lines)
