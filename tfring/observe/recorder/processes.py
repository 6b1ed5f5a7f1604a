"""The process of a record: whether it is there, and on the same host."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any


def own_boot() -> str:
    """Returns what is equal on processes that have the same monotonic clock."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def own_pid_space() -> int:
    """Returns what is equal on processes that see each other's process ids."""
    with contextlib.suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino
    return 0


def process_state(header: dict[str, Any]) -> str | None:
    """Returns how the process of a record is now.

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


def stat_fields(pid: int | str) -> list[str]:
    """Returns what /proc/PID/stat has after the program's name; OSError if the process is gone.

    The first field is the process's state, field 4 its terminal, field 19 when it was started.
    """
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()
