"""The pages of the documentation, which the wheel contains."""

from __future__ import annotations

import pydoc
import shutil
import sys
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
# In a wheel, and in a checkout.
_FOLDERS = (_PACKAGE / "pages", _PACKAGE.parent / "docs")


def pages() -> dict[str, Path]:
    """Returns the pages by name."""
    folder = next((one for one in _FOLDERS if one.is_dir()), _FOLDERS[0])
    return {path.stem: path for path in sorted(folder.glob("*.md"))}


def show_long(text: str) -> None:
    """Prints a text, page by page where it is longer than the terminal."""
    if sys.stdout.isatty() and text.count("\n") >= shutil.get_terminal_size().lines:
        pydoc.pager(text)
    else:
        print(text, end="" if text.endswith("\n") else "\n")
