"""Tells whether the process of a record is alive, from /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any


def own_boot() -> str:
    """Returns a text that is equal on processes with the same monotonic clock."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def own_pid_space() -> int:
    """Returns a number that is equal on processes that see each other's process ids."""
    with contextlib.suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino
    return 0


def process_state(header: dict[str, Any]) -> str | None:
    """Returns the state of the process of a record.

    Args:
        header: Of its record.

    Returns:
        "running", "stopped" (by a signal or a debugger), "gone", or None if it is on another host
        or in another container.
    """
    if header["boot"] != own_boot() or header["pid_space"] != own_pid_space():
        return None
    try:
        fields = stat_fields(header["pid"])
    except OSError:
        return "gone"
    if header["pid_started"] not in (0, int(fields[19])) or fields[0] in "ZX":
        return "gone"
    return "stopped" if fields[0] in "Tt" else "running"


def own_terminal() -> int:
    """Returns the number of this process's terminal; 0: it has none."""
    return int(stat_fields("self")[4])


def stat_fields(pid: int | str) -> list[str]:
    """Returns the fields of /proc/PID/stat behind the program's name.

    Field 0 is the state, field 4 the terminal, field 19 the start time.

    Raises:
        OSError: The process is gone.
    """
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()
