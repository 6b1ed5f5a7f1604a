"""Words as a sentence needs them."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """Returns "1 rank" or "3 ranks".

    Args:
        count: How many.
        what: Of what, in the singular.
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def upper_first(text: str) -> str:
    """Returns a text that begins a sentence."""
    return text[:1].upper() + text[1:]
