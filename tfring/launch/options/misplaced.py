"""Options of ``tfring run`` that stand behind the program, which gets them then."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tfring.launch.options.run_options import RunOptions

# Those that say where the ranks are. Others may be the program's own, too, as --verbose.
_PLACES = ("-np", "--num-proc", "-H", "--hosts", "-hostfile", "--hostfile", "--min-np", "--max-np")


def misplaced(words: Sequence[str], options: RunOptions) -> str:
    """Returns which option stands behind the program, and what to write; "" if none does.

    Where the options in front of the program say how many ranks there are, only those behind a
    script count: other programs may start ranks themselves. Those behind `--` never count.

    Args:
        words: All words of the command line behind `tfring run`.
        options: What has been read from them.
    """
    command = options.command
    first = 0
    if options.says_where:
        first = next((i for i, word in enumerate(command) if word.endswith(".py")), len(command))
    before = words[: len(words) - len(command)]
    wanted = set(_PLACES).difference(before)  # what stands in front, too, is a program's own
    at = next((i for i in range(first, len(command)) if command[i] in wanted), None)
    if at is None or command[0] == "--":
        return ""
    moved = command[at : at + 2]
    right = [*before, *moved, *command[:at], *command[at + 2 :]]
    return (
        f"{shlex.join(moved)} stands behind the program and went to it. Write: tfring run "
        f"{shlex.join(right)}"
    )
