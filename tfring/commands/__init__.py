"""What the ``tfring`` command can do with running and ended jobs: one file for each command.

Each has the command's `NAME` and `HELP`, `add_options(parser)`, and `run(options)`, which returns
the exit code. `ALL` is what the command line offers, in this order.
"""

from __future__ import annotations

import argparse
from typing import Protocol

from tfring.commands import dump, explain, jobs, report, stacks, timeline, top


class Command(Protocol):
    """A module of this package."""

    NAME: str
    HELP: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's options."""

    def run(self, options: argparse.Namespace) -> int:
        """Runs it; returns the exit code.

        Raises:
            tfring.recorder.reader.RecordError: There is no such job; the message is for the user.
            OSError: A file cannot be read or written.
        """


ALL: tuple[Command, ...] = (jobs, dump, explain, report, stacks, timeline, top)
