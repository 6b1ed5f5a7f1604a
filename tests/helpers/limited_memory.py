"""Control groups with little memory, in which tests run processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import launcher_tools as tools
import pytest


@contextlib.contextmanager
def limited_groups(count: int, mebibytes: int) -> Iterator[str]:
    """Makes control groups that each have so much memory and no swap; removes them at the end.

    Skips the test where it can make none.

    Args:
        count: the number of groups.
        mebibytes: the limit of each group.

    Yields:
        What their names start with: group 0 is `{prefix}.0`.
    """
    memory = str(mebibytes << 20)
    version1 = {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
    version2 = {"memory.max": memory, "memory.swap.max": "0"}
    for root, limits in (("memory", version1), ("", version2)):
        prefix = str(Path("/sys/fs/cgroup", root, f"tfring-test-{os.getpid()}"))
        groups: list[Path] = []
        try:
            for number in range(count):
                group = Path(f"{prefix}.{number}")
                group.mkdir()
                groups.append(group)
                for file, value in limits.items():
                    (group / file).write_text(value)
        except OSError:
            for group in groups:
                group.rmdir()
            continue
        try:
            yield prefix
        finally:
            _remove(groups)
        return
    pytest.skip("this system does not allow control groups with a limit of memory")


def enter(group: str) -> list[str]:
    """Returns what to put before a command so that it runs in a group.

    Args:
        group: its path, in which a shell replaces variables.
    """
    return ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh"]


def _remove(groups: list[Path]) -> None:
    left = [group for group in groups if group.is_dir() and not _removed(group)]
    assert not left


def _removed(group: Path) -> bool:
    """Removes a group when its processes have ended."""
    if not tools.wait_until(lambda: not (group / "cgroup.procs").read_text(), 60):
        return False
    group.rmdir()
    return True
