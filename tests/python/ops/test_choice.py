"""Which of the op libraries of a wheel is taken, and what is said where none fits."""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow as tf

from tfring.ops import library, xla
from tfring.runtime import _native, built

INSTALLED = ".".join(tf.__version__.split(".")[:2])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tfring looks for its libraries; empty."""
    monkeypatch.setenv("TFRING_X_LIB_DIR", str(tmp_path))
    return tmp_path


def serve(folder: Path, *minors: str) -> None:
    for minor in minors:
        own = folder / f"tensorflow-{minor}"
        own.mkdir()
        (own / library.BUILD_FILE).write_text(json.dumps({"tensorflow": f"{minor}.1"}))


def test_the_folder_of_the_minor_version(folder: Path) -> None:
    serve(folder, "2.21", "2.2", "2.16", "2.9")
    assert _native.minors_served() == ["2.2", "2.9", "2.16", "2.21"]
    assert _native.ops_folder("2.21.0") == folder / "tensorflow-2.21"
    assert _native.ops_folder("2.2.3-rc1") == folder / "tensorflow-2.2"
    assert _native.ops_folder("2.1.0") == _native.ops_folder("2.17.1") == folder


def test_a_build_from_source_has_one_folder(folder: Path) -> None:
    (folder / library.BUILD_FILE).write_text(json.dumps({"tensorflow": tf.__version__}))
    assert _native.minors_served() == []
    assert library.folder() == folder


def test_the_installed_tensorflow_chooses(folder: Path) -> None:
    serve(folder, "1.0", INSTALLED, "99.0")
    assert library.folder() == folder / f"tensorflow-{INSTALLED}"


def test_one_that_is_not_served(folder: Path) -> None:
    serve(folder, "2.1", "2.2")
    with pytest.raises(ImportError) as caught:
        library.folder()
    said = str(caught.value)
    assert f"TensorFlow {tf.__version__} is installed, but this tfring supports 2.1, 2.2." in said
    assert 'pip install "tensorflow==2.2.*"' in said and "\n" not in said


def test_a_folder_that_holds_another_build_is_refused(folder: Path) -> None:
    serve(folder, INSTALLED)
    (folder / f"tensorflow-{INSTALLED}" / library.BUILD_FILE).write_text('{"tensorflow": "2.2.0"}')
    with pytest.raises(ImportError, match=r"supports 2\.2 \(it was built for 2\.2\.0\)"):
        library.folder()


def test_whether_there_are_ops(folder: Path) -> None:
    assert not built.cuda_built()
    serve(folder, "2.1")
    assert not built.cuda_built()
    (folder / "tensorflow-2.1" / library.OPS_LIBRARY).touch()
    assert built.cuda_built()


def test_jit_compile_needs_a_newer_tensorflow() -> None:
    assert xla._reason("2.18.0") == xla._reason("2.21.1") == xla._reason("3.0.0") == ""
    assert "needs TensorFlow 2.18 or newer; TensorFlow 2.17.1 is" in xla._reason("2.17.1")
