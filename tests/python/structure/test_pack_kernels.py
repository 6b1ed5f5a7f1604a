"""The PTX of the pack kernels in the repository is what NVRTC makes of their sources."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
AGAIN = "run `python tools/compile_pack_kernels.py --ptx` and commit pack_kernels.ptx.inc"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("compile_pack_kernels")


def test_the_ptx_is_of_these_sources(compiler: Any) -> None:
    head, mark, rest = compiler.PTX.read_text("utf-8").partition('R"ptx(')
    assert head == compiler.head_of(mark + rest), AGAIN


@pytest.mark.slow  # `make test-slow` installs NVRTC
def test_nvrtc_makes_the_same_ptx(compiler: Any) -> None:
    library = compiler.find_nvrtc()
    if library is None:
        pytest.skip("nvidia-cuda-nvrtc-cu12 is not installed: `make test-slow` installs it")
    kept = compiler.PTX.read_text("utf-8")
    made = compiler.ptx_of(compiler.Nvrtc(library))
    versions = [re.findall(r"Cuda compilation tools, .*", text)[0] for text in (kept, made)]
    if versions[0] != versions[1]:
        pytest.skip(f"the PTX is by {versions[0]}, and this is {versions[1]}")
    assert made == kept, AGAIN
