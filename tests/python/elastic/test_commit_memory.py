"""The memory in which a host keeps commits: the right one counts even if writers are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_tools import environment

from tfring.elastic.commit_memory import CommitMemory, CopyHead
from tfring.job.environments.elastic import make_memory


@pytest.fixture
def files() -> Iterator[tuple[int, ...]]:
    made = make_memory()
    yield made
    for file in made:
        os.close(file)


@pytest.fixture
def memory(files: tuple[int, ...]) -> Iterator[CommitMemory]:
    opened = CommitMemory(files)
    yield opened
    opened.close()


def head(commit: int, generation: int = 1) -> CopyHead:
    return CopyHead(generation, 77, commit, commit * 10, 5)


def put(memory: CommitMemory, at: CopyHead, *parts: bytes) -> bool:
    return memory.put(at, [len(part) for part in parts], parts)


def kept(memory: CommitMemory) -> tuple[CopyHead, list[bytes]] | None:
    with memory.reading() as found:
        return None if found is None else (found[0], [bytes(part) for part in found[1]])


def test_the_newest_commit_counts(memory: CommitMemory) -> None:
    assert memory.newest() is None and kept(memory) is None
    for commit in range(1, 6):
        assert put(memory, head(commit), b"weights" * commit, b"", b"more")
        assert kept(memory) == (head(commit), [b"weights" * commit, b"", b"more"])
    assert put(memory, head(2, generation=2))  # a later generation has gone back
    assert kept(memory) == (head(2, generation=2), [])


def test_memory_is_that_of_two_commits(files: tuple[int, ...], memory: CommitMemory) -> None:
    for commit in range(1, 6):
        put(memory, head(commit), b"x" * (100_000 // commit))
    assert sum(os.fstat(file).st_size for file in files) < 100_000 // 4 + 100_000 // 5 + 1000
    memory.clear()
    assert kept(memory) is None and sum(os.fstat(file).st_size for file in files) == 0


def test_an_older_generation_changes_nothing(memory: CommitMemory) -> None:
    put(memory, head(3, generation=2), b"new")
    assert not put(memory, head(9, generation=1), b"old")
    assert kept(memory) == (head(3, generation=2), [b"new"])


def test_a_copy_that_breaks_off_leaves_the_one_before(memory: CommitMemory) -> None:
    put(memory, head(1), b"first")

    def pieces() -> Iterator[bytes]:
        yield b"sec"
        raise OSError("the connection is lost")

    with pytest.raises(OSError, match="is lost"):
        memory.put(head(2), [6], pieces())
    with pytest.raises(ValueError, match="came with"):
        memory.put(head(2), [6], [b"sec"])
    assert kept(memory) == (head(1), [b"first"])


def test_a_writer_is_killed_while_it_writes(files: tuple[int, ...], memory: CommitMemory) -> None:
    """The older commit counts, and the memory is free for the next writer."""
    put(memory, head(1), b"first")
    program = """
import os, signal, sys
from tfring.elastic.commit_memory import CommitMemory, CopyHead

def pieces():
    yield b"half"
    os.kill(os.getpid(), signal.SIGKILL)

CommitMemory([int(one) for one in sys.argv[1:]]).put(CopyHead(1, 77, 2, 20, 5), [8], pieces())
"""
    command = [sys.executable, "-c", program, *map(str, files)]
    assert subprocess.run(command, pass_fds=files, env=environment()).returncode == -9
    assert kept(memory) == (head(1), [b"first"])
    assert put(memory, head(3), b"third")
    assert kept(memory) == (head(3), [b"third"])


def test_only_these_files_are_written_to(tmp_path: Path) -> None:
    """A parent may close inherited descriptors, and a different file may get the number."""
    with (tmp_path / "other").open("w+b") as file, pytest.raises(OSError, match="another file"):
        CommitMemory([file.fileno()])
    with pytest.raises(FileNotFoundError):
        CommitMemory([10_000])
