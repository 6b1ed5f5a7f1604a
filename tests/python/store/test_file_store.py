"""The file of a FileStore: what a killed writer leaves, who may use it, how long it gets."""

from __future__ import annotations

import fcntl
import os

import pytest
from store_tools import LIMIT, programs

from tfring.store import (
    FileStore,
    Limits,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
    StoreTimeoutError,
)
from tfring.store import file_store as module


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.mark.parametrize("cut", [1, 5, 9, 20, 700])
def test_half_a_record_is_none(path, cut):
    """As a writer leaves it that is killed; the next one writes in its place."""
    with FileStore(path, LIMIT) as store:
        store.set("before", b"1")
        size = path.stat().st_size
        store.set("torn", bytes(1000))
        os.truncate(path, path.stat().st_size - cut)
        with FileStore(path, LIMIT) as other:
            assert other.get("before") == b"1" and not other.check(["torn"])
            other.set("after", b"2")
            assert path.stat().st_size < size + 100
            assert other.get("after") == b"2"
    with FileStore(path, LIMIT) as third:
        assert third.num_keys() == 2


def test_garbage_behind_the_last_record(path):
    with FileStore(path, LIMIT) as store, FileStore(path) as other:
        store.set("k", b"1")
        with open(path, "ab") as file:
            file.write(bytes(100))
        assert other.get("k") == b"1"
        other.set("k", b"2")
        assert store.get("k") == b"2"


def test_a_lock_that_is_held_is_waited_for_and_not_for_ever(path):
    code = f"""
        import fcntl
        file = open({str(path)!r}, "r+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        print("locked")
        sys.stdin.read()
    """
    with FileStore(path, LIMIT) as store:
        store.set("k", b"1")
        with programs(code) as (holder,):
            assert holder.stdout.readline() == "locked\n"
            with pytest.raises(StoreTimeoutError, match="locked by another process"):
                store.get("k", timeout=0.1)
            holder.kill()
            assert store.get("k") == b"1"


def test_a_forked_child_has_a_lock_of_its_own(path):
    with FileStore(path, LIMIT) as store:
        store.add("n", 1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for _ in range(50):
                    store.add("n", 1)
                code = 0
            finally:
                os._exit(code)
        for _ in range(50):
            store.add("n", 1)
        assert os.waitpid(child, 0)[1] == 0
        assert store.get("n") == b"101"


def test_the_file_does_not_grow_for_ever(path, monkeypatch):
    """Others, who have the old file open, go on with the new one; watches miss no deletion."""
    monkeypatch.setattr(module, "_LONG_BYTES", 10_000)
    with FileStore(path, LIMIT) as store, FileStore(path, LIMIT) as other:
        watch = other.watch()
        store.set("gone", b"")
        assert watch.next()[:2] == ("gone", b"")
        first = path.stat().st_ino
        store.delete("gone")
        for number in range(2000):
            store.set("k", b"%d" % number)
        assert path.stat().st_ino != first and path.stat().st_size < 20_000
        seen = [watch.next(), watch.next()]
        assert {change[:2] for change in seen} == {("gone", None), ("k", b"1999")}
        other.set("k", b"other")
        assert store.get("k") == b"other"
        assert [name.name for name in path.parent.iterdir()] == ["store"]
        with FileStore(path, LIMIT) as third, third.watch() as late:
            assert late.next() == (watch.next())


def test_a_file_that_was_removed_or_replaced(path):
    with FileStore(path, LIMIT) as store, FileStore(path) as waiting:
        store.set("k", b"")
        path.unlink()
        with pytest.raises(StoreConnectionError, match="was removed"):
            store.set("k", b"")
        with FileStore(path, LIMIT) as new:
            assert new.num_keys() == 0
            with pytest.raises(StoreConnectionError, match="replaced by another"):
                waiting.get("k")


def test_whose_file_it_is(path, tmp_path):
    path.write_text("my data")
    path.chmod(0o600)
    with pytest.raises(StoreError, match="is not the file of a FileStore"):
        FileStore(path, LIMIT).num_keys()
    assert path.read_text() == "my data"
    path.chmod(0o644)
    with pytest.raises(StoreError, match="mode 0644"):
        FileStore(path, LIMIT)
    empty = tmp_path / "empty"
    empty.touch(0o644)
    with FileStore(empty, LIMIT) as store:
        store.set("k", b"")
        assert empty.stat().st_mode & 0o777 == 0o600
    link = tmp_path / "link"
    link.symlink_to(empty)
    for other in (link, tmp_path, tmp_path / "no" / "folder"):
        with pytest.raises(StoreError, match="cannot be opened"):
            FileStore(other)


def test_a_disk_that_is_full(path, monkeypatch):
    """An operation that could not be written has not happened."""
    with FileStore(path, LIMIT) as store, store.watch() as watch:
        store.set("k", b"1")
        assert watch.next().value == b"1"
        with monkeypatch.context() as patches:
            patches.setattr(os, "pwrite", _no_space)
            with pytest.raises(StoreError, match="nothing was changed"):
                store.set("k", b"2")
        assert store.get("k") == b"1"
        store.set("k", b"3")
        assert watch.next().value == b"3"


def _no_space(fd, data, offset):
    raise OSError(28, "No space left on device")


def test_limits(path):
    with FileStore(path, limits=Limits(keys=1)) as store:
        store.set("a", b"")
        with pytest.raises(StoreLimitError, match="1 keys, as many as it takes"):
            store.set("b", b"")
        store.set("a", b"1")
        assert store.num_keys() == 1


def test_the_lock_is_free_between_operations(path):
    with FileStore(path, LIMIT) as store, open(path, "rb") as file:
        store.set("k", b"")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
