"""Whether the kernel ended a process because memory ran out.

Two places tell: the kernel's log, which names the process but which few may read, and the counter
of the process's control group, which does not say whom the kernel chose.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from tfring.runtime.texts.sizes import size_text

_CGROUPS = Path("/sys/fs/cgroup")
_LOG = "/dev/kmsg"
# A record is "priority,number,microseconds,flags;text".
_RECORD = re.compile(r"\d+,\d+,(\d+),[^;]*;(.*)", re.DOTALL)
_KILLED = re.compile(r"Killed process (\d+)\b|oom-kill:.*\bpid=(\d+)\b")
_HELD = re.compile(r"\b(?:anon|file|shmem)-rss:(\d+)kB")
_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
# The kernel's log counts its time a little differently from the monotonic clock.
_SLACK_SECONDS = 5.0


def counter_files(groups: str, root: Path = _CGROUPS) -> list[Path]:
    """Returns the files that may count the kills of a process's control group, best first.

    `groups` is the text of /proc/PID/cgroup.
    """
    found = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found += [root / "memory" / path.lstrip("/") / "memory.oom_control"]
            found += [root / "memory" / "memory.oom_control"]  # a container's own
        elif not controllers:
            for mount in (root, root / "unified"):
                found += [mount / path.lstrip("/") / "memory.events", mount / "memory.events"]
    return found


def killed_in_log(records: list[str], pid: int, since: float) -> int | None:
    """Returns how many bytes a process held that was killed because memory ran out.

    The records are those of /dev/kmsg. The process was started `since` seconds after the start of
    the system. 0: the log does not say how many. None: it has no such process.
    """
    held = None
    for record in records:
        parts = _RECORD.match(record)
        if parts is None or int(parts[1]) / 1e6 < since - _SLACK_SECONDS:
            continue
        killed = _KILLED.search(parts[2])
        if killed is not None and pid in (int(killed[1] or 0), int(killed[2] or 0)):
            size = sum(int(count) for count in _HELD.findall(parts[2])) << 10
            held = max(held or 0, size)
    return held


def _read_log() -> list[str]:
    """Returns the records of the kernel's log; none if it may not be read."""
    records: list[str] = []
    try:
        log = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return records
    try:
        while True:
            with contextlib.suppress(BrokenPipeError):  # a record was overwritten meanwhile
                records.append(os.read(log, 1 << 16).decode(errors="replace"))
    except OSError:  # BlockingIOError at the end
        return records
    finally:
        os.close(log)


class OutOfMemoryWatch:
    """Remembers how often the kernel had ended a process of a control group when a rank started."""

    def __init__(self, pid: int, root: Path = _CGROUPS) -> None:
        self._pid = pid
        self._since = time.monotonic()
        self._file: Path | None = None
        self._before = 0
        self.log_read = False  # whether verdict() could read the kernel's log
        with contextlib.suppress(OSError, ValueError):
            groups = Path(f"/proc/{pid}/cgroup").read_text()
            for file in counter_files(groups, root):
                count = _read_counter(file)
                if count is not None:
                    self._file, self._before = file, count
                    break

    def verdict(self) -> str:
        """Returns the evidence that a rank killed by SIGKILL ran out of memory; "" if none."""
        records = _read_log()
        self.log_read = bool(records)
        held = killed_in_log(records, self._pid, self._since)
        if held is not None:
            parts = [f"it held {size_text(held)}"] if held else []
            return f"out of memory ({'; '.join([*parts, self._limit()])})"
        if self._file is not None and (_read_counter(self._file) or 0) > self._before:
            return (
                "probably out of memory: the kernel has ended a process of its control group "
                f"({self._limit()})"
            )
        return ""

    def _limit(self) -> str:
        """Returns how much memory there was."""
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        folder = _CGROUPS if self._file is None else self._file.parent
        most = min(filter(None, map(_read_limit, (folder, *folder.parents))), default=machine)
        if most < machine:
            return f"the limit of this container is {size_text(most)}"
        return f"this machine has {size_text(machine)}"


def _read_limit(folder: Path) -> int:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max": none
            return int((folder / name).read_text())
    return 0


def _read_counter(file: Path) -> int | None:
    try:
        found = _COUNTER.search(file.read_text())
    except OSError:
        return None
    return None if found is None else int(found[1])
