"""What `make wheels` and `make wheels-test` decide; the latter tests the wheels themselves."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "wheels"))


def load(name: str) -> Any:
    return importlib.import_module(name)


def test_the_extras_allow_the_versions_that_are_served() -> None:
    minors = [int(minor.partition(".")[2]) for minor in load("tensorflows").MINORS]
    assert minors == list(range(minors[0], minors[-1] + 1))
    wanted = f">=2.{minors[0]},<2.{minors[-1] + 1}"
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    for extra in (f'cpu = ["tensorflow-cpu{wanted}"]', f'tensorflow = ["tensorflow{wanted}"]'):
        assert extra in project


def test_only_what_is_compiled_against_is_kept_of_tensorflow() -> None:
    is_needed = load("tensorflows")._is_needed
    kept = [
        "tensorflow/include/xla/ffi/api/c_api.h",
        "tensorflow/libtensorflow_cc.so.2",
        "tensorflow_cpu-2.18.1.dist-info/METADATA",
    ]
    left = ["tensorflow/python/_pywrap.so", "tensorflow_cpu-2.18.1.dist-info/RECORD", "x/include/y"]
    assert [name for name in kept + left if is_needed(name)] == kept


def test_a_release_takes_the_place_of_its_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorflows = load("tensorflows")
    monkeypatch.setattr(tensorflows, "_installed", lambda minor: None)
    asked: list[str] = []

    def download(command: list[str]) -> None:
        asked.append(command[-1])
        (folder,) = (part[len("--dest=") :] for part in command if part.startswith("--dest="))
        with zipfile.ZipFile(Path(folder) / "tensorflow_cpu.whl", "w") as wheel:
            wheel.writestr("tensorflow_cpu-2.22.0.dist-info/METADATA", "")

    monkeypatch.setattr(tensorflows.subprocess, "check_call", download)
    (tmp_path / "2.22" / "tensorflow_cpu-2.22.0rc0.dist-info").mkdir(parents=True)
    found = tensorflows.unpacked("2.22", tmp_path)
    assert [path.name for path in found.iterdir()] == ["tensorflow_cpu-2.22.0.dist-info"]
    assert tensorflows.unpacked("2.22", tmp_path) == found
    assert asked == ["tensorflow-cpu~=2.22.0.dev0"]


def test_a_python_is_what_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = load("pythons").find
    own = ".".join(map(str, sys.version_info[:2]))
    assert find(own) in (sys.executable, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    liar = tmp_path / "python3.99"
    liar.write_text("#!/bin/sh\necho 3.98 True\n")
    liar.chmod(0o755)
    assert find("3.99") is None
    liar.write_text("#!/bin/sh\necho 3.99 False\n")  # without Python.h
    assert find("3.99") is None
    liar.write_text("#!/bin/sh\necho 3.99 True\n")
    assert find("3.99") == str(liar)


def test_no_wheel_and_large_wheels_fail(tmp_path: Path, capsys: Any) -> None:
    make_wheels = load("make_wheels")
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(b"x" * 10)
    assert make_wheels.check([wheel]) == 0
    assert make_wheels.check([]) == 1
    wheel.write_bytes(b"x" * (make_wheels.BUDGET + 1))
    assert make_wheels.check([wheel]) == 1
    assert "a wheel may have 6000000" in capsys.readouterr().out


def test_each_tensorflow_is_tried_with_a_python_that_it_has(tmp_path: Path) -> None:
    check_wheels = load("check_wheels")
    for python in ("311", "313"):
        (tmp_path / f"tfring-0.1.0-cp{python}-cp{python}-manylinux_2_34_x86_64.whl").touch()
    chosen = [check_wheels.choose_wheel(minor, tmp_path)[1] for minor in ("2.16", "2.19", "2.21")]
    assert chosen == ["3.11", "3.11", "3.13"]
    (tmp_path / "tfring-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl").unlink()
    with pytest.raises(check_wheels.CheckError, match="no wheel"):
        check_wheels.choose_wheel("2.16", tmp_path)
