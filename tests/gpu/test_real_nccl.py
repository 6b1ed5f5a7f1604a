"""The real NCCL has what the runtime's loader asks for, with the numbers it declares."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import nccl_wheels
import pytest

_API = Path(__file__).resolve().parents[2] / "ops/gpu/nccl/nccl_api.h"

# In a process of its own: NCCL starts a thread for each unique id.
_PROGRAM = """
import ctypes, json, sys
nccl = ctypes.CDLL(sys.argv[1])
version = ctypes.c_int()
results = [nccl.ncclGetVersion(ctypes.byref(version))]
ids = []
for _ in range(2):
    unique = ctypes.create_string_buffer(128)
    results.append(nccl.ncclGetUniqueId(unique))
    ids.append(unique.raw.hex())
nccl.ncclGetErrorString.restype = ctypes.c_char_p
texts = [nccl.ncclGetErrorString(code).decode() for code in range(8)]
missing = [name for name in sys.argv[2:] if not hasattr(nccl, name)]
print(json.dumps([results, version.value, ids, texts, missing]))
"""


@pytest.fixture(autouse=True, scope="session")
def gpu_wheel() -> None:
    """In place of the folder's: these tests need no TensorFlow."""


def _functions() -> list[str]:
    text = _API.read_text()
    names = re.findall(r"^ +X\((\w+),", text, re.MULTILINE)
    names += re.findall(r"const char\* \(\*(\w+)\)", text)
    assert {"GetVersion", "CommInitRankConfig", "AllReduce", "GetErrorString"} <= set(names)
    return ["nccl" + name for name in names]


@pytest.mark.parametrize("which", nccl_wheels.REQUIREMENTS)
def test_real_library(which):
    library, version = nccl_wheels.real_nccl(which)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(library), *_functions()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    results, said, ids, texts, missing = json.loads(done.stdout.splitlines()[-1])
    assert results == [0, 0, 0], texts
    assert said == version
    assert missing == []
    assert len(ids[0]) == 256 and ids[0] != ids[1]
    # The numbers of nccl_api.h mean the same there.
    assert texts[0] == "no error"
    assert "argument" in texts[4] and "usage" in texts[5]
    assert "remote" in texts[6] and "progress" in texts[7]
