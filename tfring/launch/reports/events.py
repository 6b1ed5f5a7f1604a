"""The events of a job, as a file of JSON lines."""

from __future__ import annotations

import json
import time

from tfring.launch.output.files import RotatingFile
from tfring.launch.output.writer import BackgroundWriter, QueuedFile


class EventLog:
    """Writes events; without a file it does nothing.

    Args:
        writer: What writes the file.
        file: Where to.
    """

    def __init__(self, writer: BackgroundWriter, file: RotatingFile | None) -> None:
        self._file = None if file is None else QueuedFile(writer, file, "the events")

    def add(self, event: str, **facts: object) -> None:
        """Adds an event.

        Args:
            event: What has happened; docs/launcher.md lists them.
            **facts: What JSON can say of it; those that are None are left out.
        """
        if self._file is None:
            return
        known = {name: value for name, value in facts.items() if value is not None}
        line = {"time": time.time(), "event": event, **known}
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def left_out(self) -> list[str]:
        """Returns what could not be written, as a text; [] if all was."""
        text = "" if self._file is None else self._file.left_out()
        return [text] if text else []
