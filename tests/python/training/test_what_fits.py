"""docs/sharded_states.md: the table of what fits says what the table of bytes per weight says."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs/sharded_states.md"
MILLIONS = {"100 million": 100, "500 million": 500, "2 billion": 2000}


def tables() -> dict[str, list[list[str]]]:
    """The rows of each table of the page, by its first heading."""
    found: dict[str, list[list[str]]] = {}
    rows: list[list[str]] | None = None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            rows = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if rows is None:
            rows = found[cells[0]] = []
        if not cells[0].startswith("--"):
            rows.append(cells)
    return found


def bytes_per_weight(cells: list[str], ranks: int) -> float:
    """The sum of one row of formulas such as "about 8 / N"."""
    total = 0.0
    for cell in cells:
        number, _, divided = cell.removeprefix("about ").partition(" / ")
        assert divided in ("", "N"), cell
        total += float(number or 0) / (ranks if divided else 1)
    return total


def test_what_fits_follows_from_the_bytes_of_each_weight() -> None:
    found = tables()
    formulas = found["float32, N ranks"][1:]
    plain = {row[0].removeprefix("bytes for each weight, plain "): row[1:] for row in formulas[::2]}
    sharded = dict(zip(plain, (row[1:] for row in formulas[1::2]), strict=True))
    assert [row[0] for row in formulas[1::2]] == ["with `shard_states=True`"] * len(plain)
    heading, *rows = found["weights"]
    sizes = [int(cell.split()[0]) for cell in heading[2:]]
    assert sorted({row[1] for row in rows}) == sorted(plain)
    for weights, kind, *cells in rows:
        for ranks, cell in zip(sizes, cells, strict=True):
            row = (plain if ranks == 1 else sharded)[kind]
            assert cell == f"{MILLIONS[weights] * bytes_per_weight(row, ranks) / 1000:.1f}", (
                weights,
                kind,
                ranks,
            )
