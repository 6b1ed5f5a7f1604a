"""tools/gpu_check/run-part: parts of two packs, calls that were cut off, and what it says."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

RUN_PART = Path(__file__).resolve().parents[2] / "tools" / "gpu_check" / "run-part"
PART_BYTES = 1000
# Takes the place of tools/gpu_check.py.
TOOL = "import sys; print('{pack} runs', *sys.argv[1:])"


class Pack:
    """A folder as pack.sh makes it: one set of parts, SHA256SUMS and run-part."""

    def __init__(self, folder: Path, home: Path, set_name: str, pack: str, size: int) -> None:
        folder.mkdir()
        self.folder, self.home = folder, home
        shutil.copy(RUN_PART, folder)
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:xz") as tar:
            files = {"weights": os.urandom(size)}
            if set_name == "first":
                files["tree/tools/gpu_check.py"] = TOOL.replace("{pack}", pack).encode()
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        whole = data.getvalue()
        self.parts = []
        for at in range(0, len(whole), PART_BYTES):
            self.parts.append(folder / f"{set_name}.{at // PART_BYTES:02}")
            self.parts[-1].write_bytes(whole[at : at + PART_BYTES])
        sums = (f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in self.parts)
        (folder / "SHA256SUMS").write_text("".join(sums))

    def bring(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "run-part"), *map(str, arguments)],
            env={**os.environ, "GPU_CHECK_HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def first(tmp_path: Path, home: Path) -> Pack:
    return Pack(tmp_path / "new", home, "first", "new", 2 * PART_BYTES)


def test_after_a_cut_any_part_of_the_set_goes_on_from_the_lines(first: Pack, home: Path) -> None:
    assert len(first.parts) == 3
    for part in first.parts:
        ran = first.bring(part)
    assert ran.stdout.startswith("new runs"), ran
    # Only SHA256SUMS has to be there: the set is unpacked.
    first.parts[1].unlink()
    for part in first.parts:
        ran = first.bring(part, "--limit", "7")
        assert ran.stdout.startswith("new runs") and ran.stdout.endswith("--limit 7\n"), ran
        assert "--resume" in ran.stdout.split()
        assert list((home / "parts").iterdir()) == []


def test_another_pack_is_unpacked_in_place_of_the_first(
    first: Pack, tmp_path: Path, home: Path
) -> None:
    old = Pack(tmp_path / "old", home, "first", "old", 4 * PART_BYTES)
    for part in old.parts:
        ran = old.bring(part)
    assert ran.stdout.startswith("old runs"), ran
    for part in first.parts:
        ran = first.bring(part)
    assert ran.stdout.startswith("new runs"), ran


def test_parts_of_an_earlier_pack_are_dropped_and_asked_for_again(
    first: Pack, tmp_path: Path, home: Path
) -> None:
    old = Pack(tmp_path / "old", home, "first", "old", 4 * PART_BYTES)
    # The new pack has a first.00, too, and no first.04.
    for part in (old.parts[0], old.parts[4]):
        assert old.bring(part).returncode == 0
    ran = first.bring(first.parts[2])
    assert ran.returncode == 1, ran
    assert ran.stderr == "run-part: copy again what differs from SHA256SUMS: first.00\n"
    assert ran.stdout == "run-part: still to come: first.01\n"
    assert first.bring(first.parts[1]).stdout == "run-part: still to come: first.00\n"
    ran = first.bring(first.parts[0])
    assert ran.stdout.startswith("new runs"), ran


def test_tensorflow_needs_the_set_first(tmp_path: Path, home: Path) -> None:
    pack = Pack(tmp_path / "pack", home, "tensorflow", "new", 100)
    ran = pack.bring(pack.parts[0])
    assert ran.returncode == 1 and ran.stderr == (
        "run-part: bring all parts of `first`, too, then tensorflow.00 again\n"
    )


def test_what_is_not_there_is_named_in_a_sentence(first: Pack) -> None:
    usage = "run-part: name a part that pack.sh has made, as in `run-part FOLDER/first.00`\n"
    for arguments in ([], ["--help"], [first.folder / "SHA256SUMS"], [""]):
        assert first.bring(*arguments).stderr == usage
    folder = first.folder
    unknown = first.bring(folder / "first.77").stderr
    assert unknown == (
        f"run-part: {folder}/SHA256SUMS does not name first.77: copy both from the same pack\n"
    )
    first.parts[0].unlink()
    absent = first.bring(first.parts[0]).stderr
    assert absent == f"run-part: there is no first.00 in {folder}: copy it there\n"
    (folder / "SHA256SUMS").unlink()
    no_sums = first.bring(first.parts[1]).stderr
    assert no_sums == (
        f"run-part: there is no SHA256SUMS in {folder}: copy it there from the folder of pack.sh\n"
    )
