"""Where the program has called `sys.exit`, for those that ask why this rank has left."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, NoReturn

from tfring.runtime.texts.frames import is_users, place


class _State:
    """Of this process."""

    said = ""  # "sys.exit(3) in train.py:40 (on_epoch_end)"; "": not called, or not with an error


def watch() -> None:
    """Begins to remember; a `sys.exit` that the program has replaced stays."""
    if sys.exit.__module__ == "sys":
        sys.exit = _exit


def said() -> str:
    """Returns the last call with an error as its status; "" if there was none."""
    return _State.said


def _exit(status: Any = None, /) -> NoReturn:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None and status:
        line = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        where = place(line, frame.f_code.co_name)
        shown = status if isinstance(status, int) else "..."  # a text is on the screen
        _State.said = f"sys.exit({shown}) in {where}"
    raise SystemExit(status)
