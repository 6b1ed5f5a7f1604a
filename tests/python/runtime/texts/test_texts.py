"""How ranks and bytes are written."""

from __future__ import annotations

from tfring.runtime.texts.ranks import rank_ranges, ranks_text
from tfring.runtime.texts.sizes import size_text


def test_ranks_of_a_sentence() -> None:
    said = {(3,): "rank 3", (3, 1, 0): "ranks 0, 1 and 3", tuple(range(256)): "ranks 0-255"}
    said[(0, *range(2, 9), 11)] = "ranks 0, 2-8 and 11"
    assert {ranks: ranks_text(ranks) for ranks in said} == said


def test_of_many_ranks_in_no_row_the_rest_is_counted() -> None:
    even = range(0, 60, 2)
    shown = ", ".join(map(str, even[:16]))
    assert ranks_text(even) == f"ranks {shown} and 14 more"
    assert ranks_text([*even, *range(100, 110)]) == f"ranks {shown} and 24 more"


def test_ranks_in_front_of_a_line() -> None:
    assert rank_ranges([5, 1, 0, 2, 8, 7]) == "0-2,5,7-8"


def test_bytes() -> None:
    said = {0: "0 B", 1023: "1023 B", 1023.9: "1.00 KiB", 1536: "1.50 KiB", 48 << 20: "48 MiB"}
    said |= {1 << 30: "1.00 GiB", 5 << 50: "5120 TiB"}
    assert {count: size_text(count) for count in said} == said
