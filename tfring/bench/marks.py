"""What a line of a rank begins with that is an event, not output."""

from __future__ import annotations

MARK = "\x1etfring-bench "
