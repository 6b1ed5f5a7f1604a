"""Words as a sentence needs them."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """Returns "1 rank" or "3 ranks"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def upper_first(text: str) -> str:
    """Returns a text with its first letter in upper case."""
    return text[:1].upper() + text[1:]
