"""The width and the colours of the terminal behind a file."""

from __future__ import annotations

import os
from typing import IO, Any


def columns(file: IO[Any]) -> int | None:
    """Returns the width of the terminal behind a file; None: there is none."""
    try:
        return os.get_terminal_size(file.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return None


def colourful(file: IO[Any]) -> bool:
    """Tells whether a file is a terminal with colours that the user has not switched off."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and columns(file) is not None
