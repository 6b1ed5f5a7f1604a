"""Folders with files of an attacker: nothing outside is touched, and nothing hangs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfring.checkpoint import Checkpointer, CheckpointError, FencedError

GOOD, FORGED = "g00000-s000000001", "g00000-s000000009"
DATA = f"{FORGED}-0a1b2c3d.npz"
# Reads, lists and saves with 6 GiB of memory at most.
IN_A_CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from test_hostile_folders import assert_harmless
assert_harmless(sys.argv[1])
"""


def forge(folder: Path, *, file: str = f"{FORGED}.json", **changes: Any) -> None:
    """Writes a manifest with a right checksum; None for a key leaves it out."""
    fields = {
        "format": 2,
        "generation": 0,
        "step": 9,
        "metadata": {},
        "metrics": {},
        "created": 0.0,
        "data": DATA,
        "nbytes": 1,
        "parts": {},
        "shares": 1,
        **changes,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    (folder / file).write_text(json.dumps({"blake2b": digest, "manifest": fields}))


def forge_arrays(
    folder: Path, entry: str = "w.npy", part: Mapping[str, Any] | None = None, **changes: Any
) -> None:
    """Writes a file of one array of two float32, and a manifest that says otherwise."""
    content = io.BytesIO()
    np.lib.format.write_array(content, np.zeros(2, np.float32))
    with zipfile.ZipFile(folder / DATA, "w") as archive:
        archive.writestr(entry, content.getvalue())
        crc = archive.getinfo(entry).CRC
    parts = {"w": {"dtype": "<f4", "shape": [2], "nbytes": 8, "crc32": crc, **(part or {})}}
    size = (folder / DATA).stat().st_size
    forge(folder, **{"nbytes": size, "parts": parts, **changes})


def assert_harmless(path: str | Path) -> None:
    """Asserts that the good checkpoint is found, and that saving goes on."""
    checkpoints = Checkpointer(path, asynchronous=False, keep_last=1)
    found = checkpoints.load()
    assert found is not None and found.info.name == GOOD
    assert GOOD in [info.name for info in checkpoints.all()]
    checkpoints.save({"w": np.ones(2)}, 50)
    latest = checkpoints.latest()
    assert latest is not None and latest.step == 50


def good(folder: Path) -> Path:
    with Checkpointer(folder) as checkpoints:
        checkpoints.save({"w": np.zeros(2)}, 1)
    return folder


FIELDS: dict[str, dict[str, Any]] = {
    "no parts": {"parts": None},
    "a key too many": {"more": 1},
    "data in another folder": {"data": "../victim"},
    "data of another checkpoint": {"data": "g00000-s000000001-0a1b2c3d.npz"},
    "a truth for a number": {"generation": False},
    "a metric that no float can have": {"metrics": {"loss": 10**400}},
    "a part that is a text": {"parts": {"w": "x"}},
    "no shares": {"shares": 0},
    "more shares than ranks can be": {"shares": 1 << 62},
    "data of another share": {"data": f"{FORGED}-0a1b2c3d.1.npz"},
    "a format of next year": {"format": 3},
}
PARTS: dict[str, dict[str, Any]] = {
    "a key too many": {"more": 1},
    "a huge shape": {"shape": [1 << 45], "nbytes": 4 << 45},
    "a negative shape": {"shape": [-2]},
    "a huge empty shape": {"shape": [0, 1 << 70], "nbytes": 0},
    "a huge blob": {"dtype": None, "shape": [], "nbytes": 1 << 45},
    "a dtype that is a function": {"dtype": "finfo"},
    "a dtype of many numbers": {"dtype": "(1000000000,)f8"},
    "a dtype of nothing": {"dtype": "<U0", "shape": [1 << 45], "nbytes": 0},
    "a checksum that is a text": {"crc32": "0"},
}


def test_a_forged_one_with_nothing_wrong_is_read(tmp_path: Path) -> None:
    """Otherwise the next tests would show nothing."""
    forge_arrays(good(tmp_path))
    found = Checkpointer(tmp_path).load()
    assert found is not None and found.info.name == FORGED


@pytest.mark.parametrize("changes", FIELDS.values(), ids=FIELDS.keys())
def test_every_field_of_a_manifest_is_checked(tmp_path: Path, changes: dict[str, Any]) -> None:
    forge_arrays(good(tmp_path), **changes)
    (tmp_path.parent / "victim").write_bytes((tmp_path / DATA).read_bytes())
    assert_harmless(tmp_path)


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_what_a_manifest_says_of_an_array_is_checked_before_memory_is_allocated(
    tmp_path: Path, part: dict[str, Any]
) -> None:
    blob = "dtype" in part and part["dtype"] is None
    forge_arrays(good(tmp_path), "w.bin" if blob else "w.npy", part)
    assert_harmless(tmp_path)


def test_no_file_outside_of_the_folder_is_removed(tmp_path: Path) -> None:
    victim = tmp_path / "victim" / "thesis.tex"
    victim.parent.mkdir()
    victim.write_text("three years of work\n")
    folder = tmp_path / "published"
    folder.mkdir()
    size = victim.stat().st_size
    for step, data in enumerate(("../victim/thesis.tex", str(victim)), 1):
        forge(folder, file=f"g00000-s{step:09d}.json", step=step, data=data, nbytes=size)
    with Checkpointer(folder) as checkpoints:
        for step in range(100, 104):
            checkpoints.save({"w": np.ones(3)}, step)
            checkpoints.wait()
    assert victim.read_text() == "three years of work\n"


def fifo_as_data(folder: Path) -> None:
    os.mkfifo(folder / DATA)
    forge(folder, nbytes=0)


def endless_manifest(folder: Path) -> None:
    (folder / f"{FORGED}.json").symlink_to("/dev/zero")


def folders(folder: Path) -> None:
    (folder / f"{FORGED}.json").mkdir()
    (folder / "g00000-s000000000.json").mkdir()
    (folder / DATA).mkdir()


@pytest.mark.parametrize(
    "make",
    [fifo_as_data, endless_manifest, folders],
)
def test_what_is_no_file_or_endless_holds_nobody_up(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(good(tmp_path))
    command = [sys.executable, "-c", IN_A_CHILD, str(tmp_path)]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, timeout=120, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_name_alone_fences_nobody(tmp_path: Path) -> None:
    """Only the manifest of a newer generation does; anyone with write access can forge that."""
    good(tmp_path)
    for name in ("g99999-s000000001", "g" + "9" * 200 + "-s" + "1" * 40):
        (tmp_path / f"{name}.json").write_text("x")
    assert_harmless(tmp_path)
    name = "g00007-s000000001"
    checkpoints = Checkpointer(tmp_path, asynchronous=False)
    checkpoints.save({"w": np.ones(2)}, 51)
    forge(tmp_path, file=f"{name}.json", generation=7, step=1, data=f"{name}-0.npz")
    with pytest.raises(FencedError, match="generation 7 has published"):
        checkpoints.save({"w": np.ones(2)}, 52)
    assert checkpoints.reserve() == 8
    (tmp_path / f"g{'9' * 18}.owner").touch()
    with pytest.raises(CheckpointError, match=r"remove g9+\.owner, which tfring has not made"):
        checkpoints.reserve()


def test_numbers_that_no_name_can_have_are_refused(tmp_path: Path) -> None:
    checkpoints = Checkpointer(tmp_path, asynchronous=False)
    for step, generation in ((10**18, 0), (0, 10**18)):
        with pytest.raises(ValueError, match="less than 10\\*\\*18"):
            checkpoints.save({"w": np.ones(2)}, step, generation)


def test_a_manifest_too_large_to_be_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfring.checkpoint.manifest.MOST_BYTES", 1000)
    checkpoints = Checkpointer(tmp_path, asynchronous=False)
    with pytest.raises(CheckpointError, match="its metadata"):
        checkpoints.save({"w": np.ones(2)}, 1, metadata={"cursor": "x" * 1000})
    assert [path.name for path in tmp_path.iterdir()] == ["g00000.owner"]
