"""Runs programs on TensorFlow's GPU wheel on a machine without a GPU.

`python tests/helpers/gpu_fake.py` (make gpu-fake) downloads the wheel of the installed version of
TensorFlow, about 600 MB, and makes the libraries that it opens. Folders:

- TFRING_GPU_WHEEL_SITE, else build-gpu/site: the unpacked wheel
- build-gpu/stubs: empty CUDA libraries, made from the wheel
- TFRING_FAKES_DIR, else build/fakes: the fake driver and runtime, made by CMake
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build-gpu"
DRIVER = "libcuda.so.1"


class UnavailableError(Exception):
    """The GPU wheel or the fake driver is missing; the text says what to do."""


def version() -> str:
    """The installed version of TensorFlow, under any of its package names."""
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    raise UnavailableError("no TensorFlow is installed")


def site() -> Path:
    """The folder of the GPU wheel's package tensorflow; it need not exist."""
    return Path(os.environ.get("TFRING_GPU_WHEEL_SITE") or FOLDER / "site")


def fakes() -> Path:
    """The folder of the fake driver; it need not exist."""
    return Path(os.environ.get("TFRING_FAKES_DIR") or ROOT / "build" / "fakes")


def download() -> None:
    """Downloads and unpacks the GPU wheel, unless it is there already."""
    if (site() / "tensorflow").is_dir():
        return
    part = site().with_name("site.part")
    shutil.rmtree(part, ignore_errors=True)
    wanted = f"tensorflow=={version()}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--target", str(part)]
    result = subprocess.run([*pip, *options, wanted], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        shutil.rmtree(part, ignore_errors=True)
        last = (result.stderr.strip() or "no message").splitlines()[-1]
        raise UnavailableError(f"pip could not install {wanted}: {last}")
    part.rename(site())


def check() -> None:
    """Raises UnavailableError if the fake driver or the wheel of the right version is missing."""
    if not (site() / "tensorflow").is_dir():
        raise UnavailableError(
            f"TensorFlow's GPU wheel is not in {site()}: `make gpu-fake` downloads it, or "
            "TFRING_GPU_WHEEL_SITE names a folder that has it"
        )
    found = [path.stem.partition("-")[2] for path in site().glob("tensorflow-*.dist-info")]
    if found != [version()]:
        raise UnavailableError(
            f"TensorFlow's GPU wheel in {site()} has version {' '.join(found) or 'unknown'}, and "
            f"TensorFlow {version()} is installed: remove that folder and run `make gpu-fake`"
        )
    if not (fakes() / DRIVER).is_file():
        raise UnavailableError(f"no {fakes() / DRIVER}: run `make gpu-build`")


def build_stubs() -> Path:
    """Makes the empty CUDA libraries, unless they are there.

    Returns:
        Their folder.
    """
    path = ROOT / "tests" / "fakes" / "stub_libraries.py"
    spec = importlib.util.spec_from_file_location("stub_libraries", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    out = FOLDER / "stubs" / version()
    module.build(site(), out)
    return out


def environment(**settings: int) -> dict[str, str]:
    """The environment of a program that runs on the GPU wheel and the fake driver.

    Args:
        settings: Settings of the fake driver, `delay_us=20000` for example.

    Returns:
        A copy of this process's environment with what is needed.

    Raises:
        UnavailableError: If the wheel or the fake driver is not there.
    """
    check()
    found = {**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "true", "FAKE_CUDA_MEMORY_MIB": "8192"}
    found.pop("CUDA_VISIBLE_DEVICES", None)
    # TensorFlow's start and end rely on a cuMemFree that waits.
    found["FAKE_CUDA_FREE_WAITS"] = "1"
    # XLA would put its kernels into CUDA graphs, which the fake driver does not have.
    flags = [*found.get("XLA_FLAGS", "").split(), "--xla_gpu_enable_command_buffer="]
    found["XLA_FLAGS"] = " ".join(flags)
    found.update({f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()})
    for name, folders in {
        "LD_LIBRARY_PATH": [fakes(), build_stubs()],
        "PYTHONPATH": [site(), ROOT, ROOT / "tests" / "helpers"],
    }.items():
        old = [found[name]] if found.get(name) else []
        found[name] = os.pathsep.join([*map(str, folders), *old])
    return found


def run(program: Path, *arguments: str, timeout: float = 300, **settings: int) -> str:
    """Runs a Python program on the GPU wheel.

    Args:
        program: Its path.
        arguments: Its arguments.
        timeout: Seconds after which it is killed.
        settings: Settings of the fake driver.

    Returns:
        Its stdout.

    Raises:
        AssertionError: If it fails, with all its output.
        UnavailableError: If the wheel or the fake driver is not there.
    """
    result = subprocess.run(
        [sys.executable, str(program), *arguments],
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, f"{program.name} ended with {result.returncode}:\n" + (
        result.stdout + result.stderr
    )
    return result.stdout


def main() -> int:
    """Downloads and builds what is missing."""
    try:
        download()
        check()
        stubs = build_stubs()
    except UnavailableError as error:
        print(f"gpu-fake: {error}", file=sys.stderr)
        return 1
    print(f"gpu-fake: TensorFlow {version()} in {site()}, CUDA in {fakes()} and {stubs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
