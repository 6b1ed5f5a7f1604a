"""Numbers of bytes as text."""

from __future__ import annotations


def size_text(count: float) -> str:
    """Returns a number of bytes with about three digits: "12 B", "1.53 MiB", "48 MiB"."""
    if round(count) < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if round(count) < 1024:
            return f"{count:.{2 if count < 10 else 0}f} {unit}"
    return f"{count / 1024:.{2 if count < 10240 else 0}f} TiB"
