"""The NCCL that the runtime loads, and the output of `tfring doctor` without a GPU."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import gpu_fake
import pytest

from tfring.runtime import _native, built
from tfring.runtime.gpu import driver, nccl
from tfring.runtime.gpu.report import gpu_report
from tfring.runtime.gpu.toolkit import LIBDEVICE, PTXAS, find_toolkit

ROOT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.skipif(
    not (_native.library_dir() / "libtfring_cuda.so").exists(), reason="built without GPU code"
)


def library(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)],
        input=source,
        text=True,
        check=True,
    )
    return path


def nccl_of_version(path: Path, version: int, lacks: str = "") -> Path:
    """An NCCL that says its version, and has whatever else the runtime looks for."""
    api = (ROOT / "ops/gpu/nccl/nccl_api.h").read_text()
    names = set(re.findall(r"^ +X\((\w+),", api, re.MULTILINE)) | {"GetErrorString", "GetLastError"}
    assert {"AllReduce", "CommInitRankConfig", "GetVersion"} <= names
    others = names - {"GetVersion", lacks}
    functions = "".join(f"int nccl{name}() {{ return 3; }}\n" for name in sorted(others))
    get_version = f"int ncclGetVersion(int* v) {{ *v = {version}; return 0; }}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(compiled(f'extern "C" {{\n{get_version}{functions}}}'), path))


@functools.cache
def compiled(source: str) -> Path:
    """A library that several tests need."""
    return library(Path(tempfile.mkdtemp()) / "library.so", source)


def test_a_path_in_the_settings_comes_first_and_its_version_is_asked_for(tmp_path, monkeypatch):
    package(tmp_path / "site", monkeypatch)
    path = nccl_of_version(tmp_path / "libnccl.so.2", 22707)
    found = nccl.find_nccl({"NCCL_LIBRARY": str(path)})
    assert (found.path, found.version, found.trouble) == (str(path), 22707, "")
    assert found.text == f"2.27.7 in {path} (TFRING_NCCL_LIBRARY)"
    assert nccl.with_nccl({"NCCL_LIBRARY": str(path)}) == {"NCCL_LIBRARY": str(path)}


@pytest.mark.parametrize(
    ("source", "trouble"),
    [
        ('extern "C" int ncclGetVersion(int* v) { *v = 21705; return 0; }', "2.17.5"),
        ('extern "C" int ncclGetVersion(int*) { return 3; }', "ncclGetVersion returned 3"),
        ("int nothing;", "ncclGetVersion"),
    ],
)
def test_a_library_that_cannot_be_used_is_named_with_the_reason(tmp_path, source, trouble):
    path = library(tmp_path / "libnccl.so.2", source)
    found = nccl.find_nccl({"NCCL_LIBRARY": str(path)})
    assert trouble in found.trouble and str(path) in found.text
    assert (found.path, found.version) == ("", 0)


def test_a_library_that_lacks_a_function_is_none(tmp_path, monkeypatch):
    path = nccl_of_version(tmp_path / "libnccl.so.2", 22707, lacks="CommInitRankConfig")
    found = nccl.find_nccl({"NCCL_LIBRARY": str(path)})
    assert found.version == 0 and "lacks ncclCommInitRankConfig" in found.text
    monkeypatch.setenv("TFRING_NCCL_LIBRARY", str(path))
    assert built.nccl_built() == 0


def test_a_path_where_nothing_is(tmp_path):
    found = nccl.find_nccl({"NCCL_LIBRARY": str(tmp_path / "missing.so")})
    assert found.version == 0 and "missing.so" in found.trouble
    assert "pip install nvidia-nccl-cu12" in found.trouble  # what to do


def package(site: Path, monkeypatch) -> Path:
    path = nccl_of_version(site / "nvidia" / "nccl" / "lib" / "libnccl.so.2", 22707)
    (site / "nvidia" / "__init__.py").touch()
    (site / "nvidia" / "nccl" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(site))
    for name in [n for n in sys.modules if n == "nvidia" or n.startswith("nvidia.")]:
        monkeypatch.delitem(sys.modules, name)
    return path


def test_the_python_package_is_found_unless_a_library_is_loaded(tmp_path, monkeypatch):
    path = package(tmp_path, monkeypatch)
    monkeypatch.setattr(nccl, "nccl_in_process", lambda: None)
    assert nccl.nccl_of_package() == str(path)
    assert nccl.with_nccl({"LOG_LEVEL": "info"}) == {
        "LOG_LEVEL": "info",
        "NCCL_LIBRARY": str(path),
    }
    monkeypatch.setattr(nccl, "nccl_in_process", lambda: "/usr/lib/libnccl.so.2")
    assert nccl.with_nccl({}) == {}


def test_a_loaded_library_is_seen_in_the_memory_map(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 08:01 99   /usr/lib/libnccl.so.2.27.7\n")
    assert nccl.nccl_in_process(str(maps)) == "/usr/lib/libnccl.so.2.27.7"
    maps.write_text("7f00-7f01 r-xp 00000000 08:01 99   /usr/lib/libncclike.so\n")
    assert nccl.nccl_in_process(str(maps)) is None


@pytest.mark.parametrize(
    ("runtime", "given", "algorithm", "protocol"),
    [
        ({}, {}, None, None),
        ({"DETERMINISTIC": "0"}, {}, None, None),
        ({"DETERMINISTIC": "1"}, {}, "Ring", "Simple"),
        ({"DETERMINISTIC": "1"}, {"NCCL_ALGO": "Tree"}, "Tree", "Simple"),
        ({"DETERMINISTIC": "1"}, {"NCCL_PROTO": "LL"}, "Ring", "LL"),
    ],
)
def test_deterministic_sums_take_one_algorithm_of_nccl_unless_told(
    monkeypatch, runtime, given, algorithm, protocol
):
    monkeypatch.setattr(nccl.os, "environ", dict(given))
    nccl.fix_sums(runtime)
    assert nccl.os.environ.get("NCCL_ALGO") == algorithm
    assert nccl.os.environ.get("NCCL_PROTO") == protocol


def test_without_a_driver_the_doctor_says_so_and_nothing_is_wrong(tmp_path):
    missing = str(tmp_path / "libcuda.so.1")
    report = gpu_report({"CUDA_DRIVER": missing})
    lines = dict(report["lines"])
    assert missing in lines["CUDA driver"]
    assert lines["GPUs"] == "none" and "NCCL" not in lines
    assert report["problems"] == []
    report = gpu_report({"CUDA_DRIVER": missing, "GPU_OPERATIONS": "nccl"})
    assert report["problems"] == ["TFRING_GPU_OPERATIONS is nccl, and there is no GPU here"]


def test_a_driver_that_refuses_is_quoted(tmp_path):
    path = library(
        tmp_path / "libcuda.so.1",
        'extern "C" int cuInit(unsigned) { return 100; }\n'
        'extern "C" int cuGetErrorString(int, const char** s) { *s = "no device"; return 0; }',
    )
    with pytest.raises(driver.DriverError, match=r"cuInit answers 100 \(no device\)"):
        driver.Driver(str(path))


def test_what_is_built_is_told_truly(tmp_path, monkeypatch):
    path = nccl_of_version(tmp_path / "libnccl.so.2", 22707)
    monkeypatch.setenv("TFRING_NCCL_LIBRARY", str(path))
    assert _native.core  # loaded from where it is
    monkeypatch.setenv("TFRING_X_LIB_DIR", str(tmp_path))
    assert (built.cuda_built(), built.nccl_built()) == (False, 0)
    (tmp_path / "_tfring_ops.so").touch()
    assert (built.cuda_built(), built.nccl_built()) == (True, 22707)
    monkeypatch.setenv("TFRING_NCCL_LIBRARY", str(tmp_path / "missing.so"))
    assert built.nccl_built() == 0


def toolkit(folder: Path) -> dict[str, str]:
    """Puts what XLA compiles with into a folder. Returns the environment that names it."""
    for file in (PTXAS, LIBDEVICE):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).touch()
    return {"PATH": "", "XLA_FLAGS": f"--xla_other=1 --xla_gpu_cuda_data_dir={folder}"}


def test_what_xla_compiles_with_is_found_where_xla_looks(tmp_path, monkeypatch):
    environ = toolkit(tmp_path / "named")
    found = {"ptxas": tmp_path / "named" / PTXAS, "libdevice": tmp_path / "named" / LIBDEVICE}
    assert find_toolkit(environ) == {name: str(path) for name, path in found.items()}
    program = tmp_path / "ptxas"
    program.touch(0o755)
    assert find_toolkit({**environ, "PATH": str(tmp_path)})["ptxas"] == str(program)
    # Beside TensorFlow, where pip installs NVIDIA's package.
    monkeypatch.setattr("tfring.runtime.gpu.toolkit._SYSTEM", "/nonexistent")
    package = tmp_path / "site" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    toolkit(tmp_path / "site" / "nvidia" / "cuda_nvcc")
    assert find_toolkit({})["libdevice"] == ""
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert find_toolkit({})["libdevice"] == str(tmp_path / "site/nvidia/cuda_nvcc" / LIBDEVICE)


def test_the_doctor_says_what_xla_lacks(tmp_path, monkeypatch):
    nothing = {"ptxas": "", "libdevice": ""}
    monkeypatch.setattr("tfring.runtime.gpu.report.find_toolkit", lambda _: nothing)
    gpus = [driver.Gpu(0, "Any", "GPU-a", (9, 0), 1 << 30)]
    made = SimpleNamespace(version=lambda: "12.8", gpus=lambda: gpus)
    monkeypatch.setattr("tfring.runtime.gpu.report.Driver", lambda _: made)
    monkeypatch.setattr("tfring.runtime.gpu.report._own_code_trouble", lambda: "")
    report = gpu_report({"NCCL_LIBRARY": str(nccl_of_version(tmp_path / "libnccl.so.2", 22707))})
    (problem,) = report["problems"]
    assert "XLA finds no ptxas and no libdevice. Install nvidia-cuda-nvcc-cu12" in problem


def report_on_the_fake(tools: dict[str, str], **runtime: str) -> tuple[dict[str, str], list[str]]:
    """In a process of its own: the fake driver reads its settings once."""
    fake = gpu_fake.fakes() / gpu_fake.DRIVER
    if not fake.is_file():
        pytest.skip(f"no {fake}: run `make test-build`")
    code = "import json, sys; from tfring.runtime.gpu.report import gpu_report; " + (
        "print(json.dumps(gpu_report(json.loads(sys.argv[1]))))"
    )
    settings = json.dumps({"CUDA_DRIVER": str(fake), **runtime})
    env = {**os.environ, "FAKE_CUDA_DEVICES": "2", "PYTHONPATH": os.pathsep.join(sys.path), **tools}
    done = subprocess.run(
        [sys.executable, "-c", code, settings], env=env, capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout.splitlines()[-1])
    return dict(report["lines"]), report["problems"]


def test_the_doctor_describes_gpus_and_what_carries_their_tensors(tmp_path):
    usable = str(nccl_of_version(tmp_path / "libnccl.so.2", 22707))
    lines, problems = report_on_the_fake(toolkit(tmp_path), NCCL_LIBRARY=usable)
    assert re.search(r"sm_90, GPU-[0-9a-f-]{36};", lines["GPU 0"])
    assert re.search(r"sm_90, GPU-[0-9a-f-]{36};", lines["GPU 1"])
    assert lines["NCCL"].startswith("2.27.7 in ")
    assert lines["tensors on GPUs"].startswith("NCCL where all ranks can")
    assert problems == []


def test_the_doctor_says_what_becomes_of_tensors_without_nccl(tmp_path):
    missing = str(tmp_path / "missing.so")
    tools = toolkit(tmp_path)
    lines, problems = report_on_the_fake(tools, NCCL_LIBRARY=missing)
    assert missing in lines["NCCL"]
    assert (lines["tensors on GPUs"], problems) == ("copied through CPU memory", [])
    lines, (problem,) = report_on_the_fake(tools, NCCL_LIBRARY=missing, GPU_OPERATIONS="nccl")
    assert lines["tensors on GPUs"] == "an error, without NCCL"
    assert problem.count(missing) == 1 and "pip install nvidia-nccl-cu12" in problem


@pytest.mark.parametrize("content", [None, b"no library"])
def test_the_doctor_says_that_the_code_for_gpus_cannot_be_loaded(tmp_path, content):
    if content is not None:
        (tmp_path / "libtfring_cuda.so").write_bytes(content)
    usable = str(nccl_of_version(tmp_path / "libnccl.so.2", 22707))
    tools = {**toolkit(tmp_path), "TFRING_X_LIB_DIR": str(tmp_path)}
    lines, (problem,) = report_on_the_fake(tools, NCCL_LIBRARY=usable)
    assert lines["tensors on GPUs"].startswith(f"an error: {tmp_path}/libtfring_cuda.so")
    assert "collectives of tensors in GPU memory fail: install a tfring" in problem


def test_a_gpu_that_is_asked_for_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    insists = {"GPU_OPERATIONS": "NCCL", "CUDA_DRIVER": "libno_such_driver.so"}
    assert "libno_such_driver.so" in nccl.missing_gpu(insists)
    assert nccl.missing_gpu({**insists, "GPU_OPERATIONS": "host"}) == ""
    assert nccl.missing_gpu({**insists, "CUDA_DRIVER": "libc.so.6"}) == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "CUDA_VISIBLE_DEVICES=-1" in nccl.missing_gpu({**insists, "CUDA_DRIVER": "libc.so.6"})
