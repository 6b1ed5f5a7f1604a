"""Texts of programs, which may hold anything, as a terminal can show them."""

from __future__ import annotations


def plain(text: str) -> str:
    """Returns a text of a program without what would steer the terminal.

    Args:
        text: One line; ends of lines are replaced, too.
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)
