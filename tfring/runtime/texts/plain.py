"""Makes any text fit for a terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """Returns one line of text with "?" in place of unprintable characters and ends of lines."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
