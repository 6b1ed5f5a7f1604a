"""Durations as text."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    """Returns a time in one or two units: "3 ms", "0.4 s", "2 min 5 s", "3 h 20 min", "3 days"."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if 0 < seconds < 1:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, rest_of_hour = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    if hours:
        return f"{hours} h {rest_of_hour} min" if rest_of_hour else f"{hours} h"
    if minutes:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{rest} s"
