"""The reduce operations, numbered as in Horovod and in the runtime's wire format."""

from __future__ import annotations

from typing import Final

Average: Final = 0
Sum: Final = 1
Adasum: Final = 2
Min: Final = 3
Max: Final = 4
Product: Final = 5

NAMES: Final[dict[int, str]] = {
    Average: "Average",
    Sum: "Sum",
    Adasum: "Adasum",
    Min: "Min",
    Max: "Max",
    Product: "Product",
}


def name_of(op: int) -> str:
    """Returns "Average" for 0 and so on; raises ValueError for an unknown number."""
    if op not in NAMES:
        known = ", ".join(f"{name}={number}" for number, name in NAMES.items())
        raise ValueError(f"{op!r} is not a reduce operation. Use one of {known}")
    return NAMES[op]
