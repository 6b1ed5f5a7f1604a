"""Builds the libraries with CMake and puts them into tfring/_lib.

`pip install .` comes here through pyproject.toml, which also names what the build needs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def read_version() -> str:
    text = (ROOT / "tfring" / "version.py").read_text(encoding="utf-8")
    match = re.search(r'__version__ = "([^"]+)"', text)
    if match is None:
        raise RuntimeError("tfring/version.py has no __version__")
    return match.group(1)


class FreshPackage(build_py):
    """Copies the modules into an empty folder, without leftovers of an earlier build.

    Adds the pages that `tfring help` prints.
    """

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            pages = Path(self.build_lib, "tfring", "pages")
            pages.mkdir()
            for page in (ROOT / "docs").glob("*.md"):
                shutil.copy(page, pages)


class CMakeBuild(build_ext):
    """Runs CMake once for all libraries, instead of compiling each extension with setuptools."""

    def run(self) -> None:
        in_place = self.inplace or getattr(self, "editable_mode", False)
        if in_place:
            output = ROOT / "tfring" / "_lib"
            build = ROOT / "build"
        else:
            output = Path(self.build_lib).resolve() / "tfring" / "_lib"
            build = Path(self.build_temp).resolve() / "cmake"
            # It names tools of an isolated environment, which is gone at the next build.
            (build / "CMakeCache.txt").unlink(missing_ok=True)
        output.mkdir(parents=True, exist_ok=True)
        jobs = self.parallel or int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2"))
        options = [
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DTFRING_OUTPUT_DIR={output}",
            f"-DPython_EXECUTABLE={sys.executable}",
        ]
        prebuilt = os.environ.get("TFRING_PREBUILT")
        if prebuilt:  # tools/wheels: all but the binding, for several versions of TensorFlow
            shutil.copytree(prebuilt, output, dirs_exist_ok=True)
            runtime = Path(prebuilt).resolve() / "libtfring_runtime.so"
            options += [f"-DTFRING_RUNTIME={runtime}", "-DTFRING_BUILD_OPS=OFF"]
            options += ["-DTFRING_OPENMPI_INCLUDE=OFF", "-DTFRING_MPICH_INCLUDE=OFF"]
        run = subprocess.check_call
        # For example CMAKE_ARGS=-DTFRING_BUILD_XLA=OFF: no jit_compile=True, and a shorter build.
        options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        run(["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *options])
        run(["cmake", "--build", str(build), "-j", str(jobs), "--target", "tfring_libraries"])

    def get_outputs(self) -> list[str]:
        return [str(path) for path in Path(self.build_lib, "tfring", "_lib").rglob("*.so")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


setup(
    version=read_version(),
    # One extension without sources: it makes the wheel a platform wheel, and CMakeBuild runs.
    ext_modules=[Extension("tfring._lib", sources=[])],
    cmdclass={"build_py": FreshPackage, "build_ext": CMakeBuild},
)
