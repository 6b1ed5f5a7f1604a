"""Checkpoints in storage without rename, through fsspec."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfring.checkpoint import Checkpointer, FencedError
from tfring.checkpoint.folders import LocalFolder, folder_at
from tfring.checkpoint.shares import Share

fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install tfring[checkpoint]")


@pytest.fixture
def url() -> Iterator[str]:
    """A folder of fsspec's memory file system that no other test uses."""
    place = f"memory://{uuid.uuid4().hex}/run"
    yield place
    storage, path = fsspec.core.url_to_fs(place)
    if storage.exists(path):
        storage.rm(path, recursive=True)


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """Options for a server that speaks S3."""
    reason = "needs moto[server] and s3fs: the extra s3-tests"
    server_module = pytest.importorskip("moto.server", reason=reason)
    pytest.importorskip("s3fs", reason=reason)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {"key": "a", "secret": "b", "endpoint_url": f"http://{host}:{port}"}
    server.stop()


def files(url: str, **options: Any) -> list[str]:
    storage, path = fsspec.core.url_to_fs(url, **options)
    storage.invalidate_cache()
    return sorted(name.rsplit("/", 1)[-1] for name in storage.ls(path, detail=False))


def check_storage(url: str, **options: Any) -> None:
    """Checks what holds for a folder: order, the newest valid one, kept ones, owners."""

    def made(**more: Any) -> Checkpointer:
        return Checkpointer(url, keep_last=2, storage_options=options, **more)

    assert made().load() is None
    large = np.random.default_rng(0).normal(size=(1 << 20)).astype(np.float32)
    with made() as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save({"a": large + step, "b": b"xyz"}, step, 1, metadata={"s": step})
            checkpoints.wait()
    assert [info.step for info in made().all()] == [2, 3]
    assert len(files(url, **options)) == 4
    loaded = made().load()
    assert loaded is not None
    np.testing.assert_array_equal(loaded.state["a"], large + 3)
    assert (loaded.state["b"], loaded.info.metadata) == (b"xyz", {"s": 3})

    storage, path = fsspec.core.url_to_fs(url, **options)
    damaged = bytearray(storage.cat_file(f"{path}/{loaded.info.data}"))
    damaged[len(damaged) // 2] ^= 4
    storage.pipe_file(f"{path}/{loaded.info.data}", bytes(damaged))
    # A writer was killed between the arrays and the manifest.
    storage.pipe_file(f"{path}/g00001-s000000009-00000000.npz", b"arrays")
    found = made().load()
    assert found is not None
    assert found.info.step == 2

    with made(asynchronous=False) as newer:
        newer.save({"a": np.ones(1)}, 1, 2)
    with pytest.raises(FencedError):
        made(asynchronous=False).save({"a": np.ones(1)}, 4, 1)
    with pytest.raises(FencedError):
        made(asynchronous=False, lease_check=iter([True, False]).__next__).save({}, 9, 2)
    latest = made().latest()
    assert latest is not None
    assert latest.order == (2, 1)
    assert not [name for name in files(url, **options) if "s000000009" in name]
    assert [made().reserve() for _ in range(3)] == [3, 4, 5]
    folder = folder_at(url, **options)
    assert not folder.create("g00005.owner", b"another's")
    assert b"another's" not in storage.cat_file(f"{path}/g00005.owner")

    writers = [made(asynchronous=False) for _ in range(2)]
    generation = writers[0].reserve()
    data = writers[0].new_data(5, generation)
    for index, writer in enumerate(writers):
        sign = writers[0].leave_sign()
        assert writer.sees(sign)
        writers[0].remove_sign(sign)
        assert not writer.sees(sign)
        share = Share(data, index, 2)
        writer.save({f"a{index}": large + index}, 5, generation, share=share)
    loaded = made().load()
    assert loaded is not None
    assert (loaded.info.step, loaded.info.shares) == (5, 2)
    for index in range(2):
        np.testing.assert_array_equal(loaded.state[f"a{index}"], large + index)


def test_memory(url: str) -> None:
    check_storage(url)


def test_a_server_that_speaks_s3(s3: dict[str, Any]) -> None:
    fsspec.filesystem("s3", **s3).mkdir("bucket")
    check_storage("s3://bucket/deep/run", **s3)


def test_paths_are_local(tmp_path: Path) -> None:
    for place in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        folder = folder_at(place)
        assert isinstance(folder, LocalFolder)
        assert str(folder) == str(tmp_path)
    with pytest.raises(TypeError, match="only URLs have options"):
        folder_at(tmp_path, key="a")
