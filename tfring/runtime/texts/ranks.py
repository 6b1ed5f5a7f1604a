"""Lists of ranks as text."""

from __future__ import annotations

from collections.abc import Iterable

# Up to this many neighbouring ranks are named one by one, else only the first and the last.
_NAMED = 4
# Beyond this many numbers and ranges the rest is only counted.
_MOST = 16
# More ranks than any job has.
_MOST_RANKS = 1_000_000


def ranks_text(ranks: Iterable[int]) -> str:
    """Returns ranks for a sentence: "rank 3", "ranks 0, 1 and 3", or "ranks 0-255"."""
    parts: list[tuple[str, int]] = []  # with how many ranks each of them names
    for first, last in _runs(ranks):
        count = last - first + 1
        if count > _NAMED:
            parts.append((f"{first}-{last}", count))
        else:
            parts += [(str(rank), 1) for rank in range(first, last + 1)]
    names = [name for name, _ in parts[:_MOST]]
    if more := sum(count for _, count in parts[_MOST:]):
        names.append(f"{more} more")
    one = len(parts) == 1 and parts[0][1] == 1
    return f"{'rank' if one else 'ranks'} {listed(names)}"


def rank_ranges(ranks: Iterable[int]) -> str:
    """Returns ranks in short form: "0-3,5"."""
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in _runs(ranks))


def parse_ranks(text: str) -> set[int]:
    """Returns the ranks that "0,3-5" names, as rank_ranges() writes them.

    Raises:
        ValueError: The text has another form.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text}: it has to be ranks and ranges of them, as 0,3-5")
        begin, end = int(first), int(last or first)
        if end < begin or end >= _MOST_RANKS:
            raise ValueError(f"{part.strip()} is no range of ranks: the smaller one comes first")
        ranks.update(range(begin, end + 1))
    return ranks


def listed(parts: list[str]) -> str:
    """Returns "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _runs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Returns the first and the last of each run of neighbouring ranks."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs
