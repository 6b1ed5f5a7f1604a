"""The flags to build against the TensorFlow in a folder: ops/kernels/tensorflow_flags.py."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import pytest
import tensorflow as tf

SOURCE = pathlib.Path(__file__).parents[3] / "ops" / "kernels" / "tensorflow_flags.py"


@pytest.fixture(scope="module")
def flags() -> Any:
    spec = importlib.util.spec_from_file_location("tensorflow_flags", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_a_folder_gives_is_what_tensorflow_says_of_itself(flags: Any) -> None:
    site = pathlib.Path(tf.__file__).parents[1]
    assert flags.of_folder(site) == flags.of_installed()


def make_package(folder: pathlib.Path, *names: str) -> None:
    (folder / "tensorflow" / "include").mkdir(parents=True)
    for name in names:
        (folder / f"{name}.dist-info").mkdir()


@pytest.mark.parametrize("name", ["tensorflow_cpu-2.16.2", "tensorflow-2.16.2"])
def test_the_version_is_that_of_the_package(flags: Any, tmp_path: pathlib.Path, name: str) -> None:
    make_package(
        tmp_path, name, "tensorflow_io_gcs_filesystem-0.37.1", "tensorflow_estimator-2.15.0"
    )
    assert flags.of_folder(tmp_path)[0] == "2.16.2"


@pytest.mark.parametrize("names", [(), ("tensorflow_cpu-2.16.2", "tensorflow-2.17.1")])
def test_a_folder_without_one_tensorflow_is_refused(
    flags: Any, tmp_path: pathlib.Path, names: tuple[str, ...]
) -> None:
    make_package(tmp_path, *names)
    with pytest.raises(SystemExit, match="one wheel"):
        flags.of_folder(tmp_path)
